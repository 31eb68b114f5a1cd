"""The words of a speech with their times, and the heads that they were read from."""

from __future__ import annotations

from collections.abc import Iterator

from attnctl.readings.alignment import LISTED_HEADS, AlignedSpeech, heads_listed
from attnctl.render.forms import Column, Form, Line, Table
from attnctl.text import visible_text

CHOSEN = {
    "named": "the checkpoint's own alignment heads",
    "auto": "those that go along with the sound best",
    "given": "as given",
}


def align_forms(found: AlignedSpeech) -> Iterator[Form]:
    """What was said, each word's time, and the heads."""
    language = "" if found.language is None else f", language {found.language}"
    said = "the text is given" if found.given else f"written down by {visible_text(found.model.name)}"
    yield f"{visible_text(found.audio)}: {found.seconds:.1f} s{language}; {said}"
    yield Line(visible_text(found.text), "bold")
    yield ""
    yield words_table(found)
    yield ""
    yield Line(f"Read from heads {heads_listed(found.heads)}: {CHOSEN[found.chosen]}.")
    yield Line(f"Heads that go along with the sound best: {heads_listed(found.found_heads)}.")
    if found.named_heads:
        named = heads_listed(found.named_heads)
        yield Line(
            f"The checkpoint names {named}: {found.common_heads} of these {len(found.named_heads)} are among the best "
            f"{LISTED_HEADS}."
        )


def words_table(found: AlignedSpeech) -> Table:
    """A row a word."""
    words = found.words
    sure = [word.confidence for word in words]
    return Table(
        [
            Column("start", [word.start for word in words], told=".2f"),
            Column("end", [word.end for word in words], told=".2f"),
            Column("word", [visible_text(word.text) for word in words], "text"),
            Column("confidence", sure, "heat", told=".2f"),
            Column("", sure, "bar", most=10, rank=0, name=""),
        ]
    )
