"""The sources of attention: a text through a model, a trace, an overview from a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from attnctl.checks.selection import chosen_indices
from attnctl.errors import AttnctlError, UsageError
from attnctl.source.model import Generates, Model, ReadsTokens
from attnctl.source.reading import Visit
from attnctl.text import visible_text
from attnctl.text.tokens import Token, checked_text
from attnctl.trace import Trace
from attnctl.trace.model_info import ModelInfo
from attnctl.trace.notes import notes_of_kind
from attnctl.trace.run import Run, StopForward
from attnctl.trace.subject import HasSubject, Subject

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from attnctl.blockwise import Tick
    from attnctl.readings.overview import LongRow, Overview


LONG = 512  # tokens; a longer text has an overview instead of every weight


class Source(HasSubject):
    """A source of attention. `name` is for messages."""

    def __init__(self, name: str, subject: Subject, counts: tuple[int, int] | None = None) -> None:
        self.name, self.subject, info = name, subject, subject.model
        self.input_text = subject.text  # the input of a model: the first of two texts
        self.counts = counts or (info.n_layers or 1, info.n_heads or 1)  # layers and heads to choose from
        self.held_rows: tuple[int, ...] | None = None  # the queries whose weights are known; None: all
        self.key_numbers: Sequence[int] = range(len(subject.key_axis))  # the number of each key in the text

    @property
    def key_tokens(self) -> tuple[Token, ...]:
        """Return the tokens of the keys: other tokens in cross attention and with slots."""
        return self.subject.key_axis

    @property
    def info(self) -> ModelInfo:
        """Return the facts about the model."""
        return self.subject.model

    def run(self, visit: Visit, layers: Sequence[int] | None = None) -> Run:
        """Give `visit` the layers, at least the chosen ones (None: all); return everything else that the run tells."""
        raise NotImplementedError


class TextSource(Source):
    """A text through a model, which runs once. `tokens` are the tokens of the text by default."""

    # runs the model in place of `model.run`: a shell stores runs, so that a second question needs no new run
    runner: Callable[[Model, Sequence[Token], Visit, str], Run] | None = None
    # shows the progress of a measure that runs layers again: a label → the receiver of shares
    progress: Callable[[str], AbstractContextManager[Tick | None]] | None = None

    def __init__(self, model: Model, text: str, tokens: Sequence[Token] | None = None) -> None:
        self.model = model = model.model_for(text)
        tokens = model.tokenize(checked_text(text)) if tokens is None else tuple(tokens)
        if not tokens:
            raise AttnctlError("the text has no tokens: give at least one word")
        keys, read = model.tokens_of_keys(tokens, text), model.text_as_read(text)
        super().__init__(model.info.name, Subject(read, tokens, model.info, keys))
        self.input_text = text

    def run(self, visit: Visit, layers: Sequence[int] | None = None) -> Run:
        """Run the model; `visit` receives every layer until it raises StopForward."""
        if self.runner is not None:
            return self.runner(self.model, self.tokens, visit, self.input_text)
        return self.model.run(self.tokens, visit, self.input_text)


def listed_tokens(model: Model, text: str, names: Sequence[str]) -> tuple[Token, ...]:
    """Return the tokens that a user lists for a text, as the model reads them.

    Raises AttnctlError for a name that is not one token of its vocabulary, UsageError if it splits each text itself.
    """
    model = model.model_for(text)
    if not isinstance(model, ReadsTokens):
        raise UsageError(f"names the tokens of a text, which {model.info.name} splits itself", option="tokens")
    return model.listed_tokens(checked_text(text), names)


def notes_of_listed(source: TextSource) -> tuple[str, ...]:
    """Return notes if tokens that a user lists are not in the text, or lack special tokens that the model adds to it."""
    tokens, notes = source.tokens, []
    absent = [visible_text(token.text) for token in tokens if token.start is None and not token.special]
    if absent:
        notes.append(
            f"Not in the text, in the order of the tokens: {', '.join(absent[:6])}{', …' * (len(absent) > 6)}."
        )
    if not (isinstance(source.model, Generates) and source.model.generate):
        ids = {token.id for token in tokens}
        usual = source.model.tokenize(source.input_text)
        lacking = dict.fromkeys(token.text for token in usual if token.special and token.id not in ids)
        if lacking:
            marks = " and ".join(visible_text(mark) for mark in lacking)
            notes.append(
                f"The tokens are read as they are listed, without {marks}, which {source.name} adds to a text."
            )
    return tuple(notes)


class TraceSource(Source):
    """A trace with its stored layers. `name` is the name of its file, for messages."""

    def __init__(self, trace: Trace, name: str | None = None) -> None:
        self.trace, layers, info = trace, trace.layers, trace.model
        n_layers = max(info.n_layers or 0, *(layer.layer + 1 for layer in layers), 0)
        n_heads = max(info.n_heads or 0, *(head + 1 for layer in layers for head in layer.heads), 0)
        counts = n_layers, n_heads  # as far as the trace shows them
        super().__init__(info.name if name is None else name, trace.subject, counts)
        self.key_numbers = trace.key_numbers
        self.held_rows = layers[0].rows if layers else None

    def run(self, visit: Visit, layers: Sequence[int] | None = None) -> Run:
        """Give `visit` the chosen layers. Raises AttnctlError for a layer that was not stored, or if none was."""
        trace = self.trace
        if not trace.layers:
            raise AttnctlError("this trace holds no weights: write it without narrowing its steps")
        for layer in trace.layers if layers is None else [trace.layer(index) for index in layers]:
            with suppress(StopForward):
                visit(replace(layer))
        return Run(trace.subject, trace.embeddings, trace.predictions, positions=trace.positions)


class OverviewSource(Source):
    """An overview, or one query's weights, from a file: a reading gets the stored result, if it is stored."""

    def __init__(self, overview: Overview | LongRow, name: str) -> None:
        self.overview = overview
        super().__init__(name, overview.subject)

    def run(self, visit: Visit, layers: Sequence[int] | None = None) -> Run:
        """Raise AttnctlError: an overview has no layers."""
        raise AttnctlError(
            f"{self.name} holds an overview of a long text, not its every weight: give the text and its model"
        )

    def narrowed(self, layers: Sequence[int] | None, heads: Sequence[int] | None) -> Overview | LongRow:
        """Return the overview for some layers and heads (None: all)."""
        chosen_layers = chosen_indices(layers, self.counts[0], "layer", self.name)
        chosen_heads = chosen_indices(heads, self.counts[1], "head", self.name)
        return self.overview.narrowed(
            lambda layer, head: (layers is None or layer in chosen_layers) and (heads is None or head in chosen_heads)
        )

    def without_keys(self, out: Sequence[int]) -> OverviewSource:
        """Return the overview without the cells of some keys. Raises AttnctlError if it has no cells."""
        from attnctl.readings.overview import Overview

        if not isinstance(self.overview, Overview) or self.overview.grid is None:
            raise AttnctlError(f"{self.name} holds no grid of weights: give the text and its model")
        return OverviewSource(self.overview.without_keys(out, self.name), self.name)


def is_long(source: Source) -> bool:
    """Return whether a text is shown by cells instead of every weight."""
    return max(len(source.tokens), len(source.key_tokens)) > LONG


def check_attention_weights(source: Source, command: str) -> None:
    """Raise AttnctlError if the numbers of a source are not attention weights, so that `command` cannot use them."""
    for note in notes_of_kind(source.trace.notes, "no-weights") if isinstance(source, TraceSource) else ():
        raise AttnctlError(f"{command} is for attention weights. {source.name}: {note[:1].lower()}{note[1:]}")
