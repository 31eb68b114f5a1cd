"""Align many recordings, or many pairs of texts: a file for each recording, or one file of all."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from attnctl.batching import BatchFormat, Item, NamedFiles, Result, Task, Work
from attnctl.checks.selection import selected_indices
from attnctl.commands.align.result import AlignedSpeech, AlignedText
from attnctl.errors import AttnctlError, UsageError
from attnctl.models import Model, open_named_model
from attnctl.runtime.files import write_whole
from attnctl.text import either

if TYPE_CHECKING:
    from attnctl.source import AlignsTexts

BETWEEN = " ||| "  # between source and target in a line, as fast_align reads them
OWN = ("heads", "language")  # options that one text may have in the input
# format → suffix of a recording's own file, and the form of its transcript
OF_A_RECORDING = {
    "textgrid": ("TextGrid", "textgrid"),
    "srt": ("srt", "srt"),
    "vtt": ("vtt", "vtt"),
    "labels": ("txt", "txt"),
    "words": ("json", "json"),
}


class Alignments(Task):
    """The task of aligning recordings with their words, or pairs of texts."""

    def __init__(self, work: Work, model: Model | None = None) -> None:
        from attnctl.commands.align.compute import hears_speech
        from attnctl.source import AlignsTexts

        opened = open_named_model(**work.options) if model is None else model
        wanted = f"name a checkpoint with {'a text' if work.formats == ('pharaoh',) else 'speech'} to align"
        if not isinstance(opened, AlignsTexts):
            raise UsageError(f"{opened.info.name} aligns nothing: {wanted}")
        self.forms, self.model = work.formats, opened
        self.aligning: AlignsTexts = opened
        self.hears = hears_speech("", opened)
        for form in self.forms:
            if (form == "pharaoh") == self.hears:
                forms = either([*OF_A_RECORDING, "ctm"]) if self.hears else "pharaoh"
                why = f"{opened.info.name} reads {'sounds' if self.hears else 'texts'}: it is {forms}"
                raise UsageError(why, option="format", value=form)
        if "textgrid" in self.forms:
            from attnctl.commands.align.transcripts import check_form

            check_form("textgrid")
        self.heads = _chosen_heads(work, opened)

    def failed(self, item: Item, why: str) -> Result:
        """Return the result of a text that failed; its line of links is empty, so that the lines stay those of the input."""
        return Result(item, {"pharaoh": b"\n"} if "pharaoh" in self.forms else {}, error=why)

    def begin(self, item: Item) -> Result:
        """Return the alignment of an item. Raises the error of an item that cannot be aligned."""
        if item.error is not None:
            raise AttnctlError(item.error)
        if item.trace is not None or item.tokens is not None or item.messages is not None or item.text_pair is not None:
            raise AttnctlError('it is a "text", and a "target" if that is known: nothing else can be aligned')
        for name, value in item.options.items():
            if name not in OWN or not isinstance(value, str):
                raise UsageError(
                    f"an alignment has no option {name!r}: its options are {' and '.join(OWN)}, each a text"
                )
        heads, language = item.options.get("heads", self.heads), item.options.get("language")
        from attnctl.commands.align.compute import align_steps

        text, target = (item.text, item.target) if self.hears else self._two_sides(item)
        generate = None if self.hears or target is not None else self.aligning.generate or None
        target = target if target is not None else self.aligning.target
        *_, made = align_steps(text, self.aligning, heads=heads, target=target, language=language, generate=generate)
        if isinstance(made, AlignedText):
            return Result(item, {"pharaoh": f"{made.pharaoh}\n".encode()}, len(made.links), notes=made.notes)
        assert isinstance(made, AlignedSpeech)
        notes = tuple(f"{item}: {note}" for note in made.notes)
        return Result(item, {form: _transcript(item, made, form) for form in self.forms}, len(made.words), notes=notes)

    def _two_sides(self, item: Item) -> tuple[str, str | None]:
        """Return source and target as the model reads them: two texts, or one with >> between them."""
        from attnctl.commands.align.texts import MARK

        text, target = item.text, item.target
        if target is None and BETWEEN in text:
            text, _, target = text.partition(BETWEEN)
        if self.aligning.writes_targets():
            return text, target
        return (text, None) if target is None else (f"{text} {MARK} {target}", None)


def _chosen_heads(work: Work, model: AlignsTexts) -> str | None:
    """Return the heads that a work selects by its layers and heads, as layer.head; None if it selects none."""
    if work.layer is None and work.head is None:
        return None
    info = model.with_cross_attention().info
    n_layers, n_heads = info.n_layers or 1, info.n_heads or 1
    layers = selected_indices(work.layer, n_layers, "layer", info.name)
    heads = selected_indices(work.head, n_heads, "head", info.name)
    places = product(range(n_layers) if layers is None else layers, range(n_heads) if heads is None else heads)
    return ",".join(f"{layer}.{head}" for layer, head in places)


def _transcript(item: Item, made: AlignedSpeech, form: str) -> tuple[str, bytes]:
    """Return the name of an item's file, and what is in it; CTM has one file for all."""
    from attnctl.commands.align.transcripts import time_marks, transcript
    from attnctl.formats import write_json

    if form == "ctm":
        return "", time_marks(made, None if item.id is None else str(item.id)).encode()
    suffix, kind = OF_A_RECORDING[form]
    data = write_json(made, "alignment") + b"\n" if kind == "json" else transcript(made, kind)
    return f"{item.file_stem}.{suffix}", data


class _OwnFiles(BatchFormat):
    """A file for each recording, named by its number and its name."""

    task, reads_sounds = Alignments, True

    def add(self, made: tuple[str, bytes]) -> NamedFiles:
        """Return the file of a recording."""
        return [made]

    def rest(self) -> NamedFiles:
        """Return no files: each recording has its own."""
        return []


class TextGrids(_OwnFiles):
    """A TextGrid for each recording."""

    form = "textgrid"


class SubRips(_OwnFiles):
    """Subtitles, SRT, for each recording."""

    form = "srt"


class WebVideoTexts(_OwnFiles):
    """Subtitles, WebVTT, for each recording."""

    form = "vtt"


class Labels(_OwnFiles):
    """Labels of Audacity for each recording."""

    form = "labels"


class Documents(_OwnFiles):
    """A document of JSON for each recording."""

    form = "words"


class _OneFile(BatchFormat):
    """One file of the lines of all texts, in their order: `aligned.FORM`."""

    task = Alignments
    _lines: list[bytes]

    def __init__(self) -> None:
        self._lines = []

    def rest(self) -> NamedFiles:
        """Return the file with the lines of the group."""
        lines, self._lines = self._lines, []
        return [(self.name_of_part(f".{self.form}"), b"".join(lines))]

    def finish(self, folder: Path, parts: Iterator[bytes]) -> None:
        """Write all lines to one file."""
        write_whole(folder / f"aligned.{self.form}", b"".join(parts), inside=folder)


class TimeMarks(_OneFile):
    """The words of all recordings as CTM."""

    form, reads_sounds = "ctm", True

    def add(self, made: tuple[str, bytes]) -> None:
        """Add the lines of a recording."""
        self._lines.append(made[1])


class PharaohLinks(_OneFile):
    """A line of links for each pair of texts."""

    form = "pharaoh"

    def add(self, made: bytes) -> None:
        """Add the line of a pair."""
        self._lines.append(made)
