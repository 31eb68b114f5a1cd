"""Where attention comes from: a text through a model, here; a trace or an overview, in `stored`.

A source hands its layers to a reading, one after another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np

from attnctl import limits
from attnctl.argument_types import chosen_indices
from attnctl.errors import AttnctlError, UsageError
from attnctl.layer import LayerAttention, Run, StopForward
from attnctl.readings.traces.trace import ModelInfo, Trace, TraceReading, notes_of_kind, stored_layer
from attnctl.text import number_list
from attnctl.tokens import Token, checked_text

if TYPE_CHECKING:
    from attnctl.blockwise import Tick
    from attnctl.layer.run_memory import RunMemory
    from attnctl.readings.overview import LongRow, Overview


Value = TypeVar("Value", covariant=True)
Result = TypeVar("Result")


class Reading(Protocol[Value]):
    """What is kept of a text's attention: `take` sees each chosen layer in order, `value` answers at the end.

    `predicts` asks the model to run on after the last chosen layer, for what it predicts.
    """

    predicts: bool

    def take(self, layer: LayerAttention) -> None:
        """Keep what is wanted of one layer."""

    def value(self, run: Run) -> Value:
        """What has come of all layers; `run` is what the model told beside them."""


class Source(Protocol):
    """Where attention comes from."""

    name: str  # for messages
    text: str
    tokens: tuple[Token, ...]
    info: ModelInfo
    measure: str | None  # what stands in place of the weights: value-norm, rollout
    held_rows: tuple[int, ...] | None  # the queries whose weights are there; None where all are
    counts: tuple[int, int]  # how many layers and heads there are to choose from

    @property
    def key_tokens(self) -> tuple[Token, ...]:
        """The tokens of the key axis: the same tokens, but for cross attention."""

    def read(
        self,
        reading: Reading[Result],
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
        tick: Tick | None = None,
    ) -> Result:
        """The reading's value over some layers and heads (None: all). `tick` hears which share of the work was done.

        Raises UsageError for a layer or head that is not there.
        """


class Model(Protocol):
    """What a model offers: a text's tokens, and their way through its layers."""

    @property
    def info(self) -> ModelInfo:
        """What is known of it before any text."""

    def tokenize(self, text: str, /) -> tuple[Token, ...]:
        """The tokens of a text."""

    def run(self, tokens: Sequence[Token], visit: Callable[[LayerAttention], None], text: str = "") -> Run:
        """The text through every layer; `visit` sees each layer's attention on the way, until it raises StopForward."""


class Pass(Generic[Result]):
    """One text on its way through a model: `visit` hands its layers to a reading, `value` ends it."""

    def __init__(
        self,
        source: TextSource,
        reading: Reading[Result],
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
        tick: Tick | None = None,
    ) -> None:
        info = source.info
        self.source, self.tokens, self._reading = source, source.tokens, reading
        self._named = layers is not None
        self._layers = set(chosen_indices(layers, info.n_layers or 1, "layer", info.name))
        self._heads = None if heads is None else chosen_indices(heads, info.n_heads or 1, "head", info.name)
        self._last = None if reading.predicts else max(self._layers)
        self._tick: Tick | None = None
        if tick is not None:
            self._tick = lambda share: tick(share / len(self._layers))
        self._met: list[int] = []
        self._n_k = len(source.key_tokens)

    def visit(self, layer: LayerAttention) -> None:
        """Hand a layer on, if it was asked for. Raises StopForward where nothing that follows is wanted.

        Raises AttnctlError for keys that no token stands for.
        """
        self._met.append(layer.layer)
        if layer.n_k != self._n_k:
            raise AttnctlError(
                f"layer {layer.layer} of {self.source.info.name} has {layer.n_k} keys for {self._n_k} tokens: there are no "
                "tokens that all of them stand for"
            )
        if layer.layer in self._layers or not self._named:
            # of all heads, each layer has its own number
            part = layer if self._heads is None else layer.select_heads(self._heads)
            part.tick = self._tick
            self._reading.take(part)
        if layer.layer == self._last:
            raise StopForward

    def value(self, run: Run) -> Result:
        """What the reading made of it. Raises UsageError for a chosen layer that did not attend."""
        for layer in sorted(self._layers - set(self._met)) if self._named else ():
            held = number_list(sorted(set(self._met)))
            raise UsageError(f"layer {layer} of {self.source.info.name} has no attention: it is in {held}")
        run.text, run.model = self.source.text, run.model or self.source.info
        return self._reading.value(run)


class TextSource:
    """A text through a model. `tokens` are those of the text unless they are given."""

    held_rows: tuple[int, ...] | None = None
    measure: str | None = None
    memory: RunMemory | None = None  # of all texts, where a session asks more than one question

    def __init__(self, model: Model, text: str, tokens: Sequence[Token] | None = None) -> None:
        self.model, self.text, self.info, self.name = model, text, model.info, model.info.name
        self.tokens = model.tokenize(checked_text(text)) if tokens is None else tuple(tokens)
        if not self.tokens:
            raise AttnctlError("the text has no tokens: give at least one word")
        self.counts = self.info.n_layers or 1, self.info.n_heads or 1

    @property
    def key_tokens(self) -> tuple[Token, ...]:
        """The tokens of the key axis: the same tokens, but for cross attention."""
        asked: Any = getattr(self.model, "tokens_of_keys", None)
        return self.tokens if asked is None else asked(self.tokens, self.text) or self.tokens

    def read(
        self,
        reading: Reading[Result],
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
        tick: Tick | None = None,
    ) -> Result:
        """The reading's value over some layers and heads (None: all); the model runs once."""
        forward = Pass(self, reading, layers, heads, tick)
        with np.errstate(all="ignore"):  # what overflows is refused by name, not warned of
            if self.memory is not None:
                return forward.value(self.memory.run(self.model, self.tokens, forward.visit, self.text))
            return forward.value(self.model.run(self.tokens, forward.visit, self.text))


def record_trace(
    model: Model,
    text: str,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    rows: Sequence[int] | None = None,
    predictions: bool = True,
) -> Trace:
    """The trace of `text`, for the layers, heads and query rows asked for (None: all).

    Without `predictions` the model is left after the last layer asked for. Raises AttnctlError for an empty text,
    UsageError for a selection that is not there.
    """
    source = TextSource(model, text)
    check_room(source.info, len(source.tokens), layers, heads, rows)
    return source.read(TraceReading(rows, predictions), layers, heads)


def check_room(
    info: ModelInfo,
    n: int,
    layers: Sequence[int] | None,
    heads: Sequence[int] | None,
    rows: Sequence[int] | None,
    instead: str = "choose with --layer, --head and --query",
) -> None:
    """Raise AttnctlError, before any work, where the scores, scaled scores and weights would fill the memory.

    `instead` is what a user can do then.
    """
    many, each, queries = _sizes_of_trace(info, n, layers, heads, rows)
    size = room_of_trace(info, n, layers, heads, rows)
    if size > limits.TRACE_BYTES:
        raise AttnctlError(
            f"every step of {many} layer{'s' * (many != 1)} × {each} head{'s' * (each != 1)}, {queries:,} × {n:,} each, "
            f"takes {size / 1e9:.0f} GB: {instead}"
        )
    limits.check_memory(1.2 * size, f"every step of {n:,} tokens", instead)


def room_of_trace(
    info: ModelInfo, n: int, layers: Sequence[int] | None, heads: Sequence[int] | None, rows: Sequence[int] | None
) -> int:
    """Bytes of the scores, scaled scores and weights of a trace."""
    many, each, queries = _sizes_of_trace(info, n, layers, heads, rows)
    return 3 * 4 * many * each * queries * n


def _sizes_of_trace(
    info: ModelInfo, n: int, layers: Sequence[int] | None, heads: Sequence[int] | None, rows: Sequence[int] | None
) -> tuple[int, int, int]:
    """How many layers, heads and queries were chosen."""
    many = (info.n_layers or 1) if layers is None else len(layers)
    return many, (info.n_heads or 1) if heads is None else len(heads), n if rows is None else len(rows)


class TraceSource:
    """A trace: its layers as they are stored. `name` is its file's, for messages."""

    def __init__(self, trace: Trace, name: str | None = None) -> None:
        self.trace, self.text, self.tokens, self.info = trace, trace.text, trace.tokens, trace.model
        self.name = trace.model.name if name is None else name
        layers, info = trace.layers, trace.model
        n_layers = max(info.n_layers or 0, *(layer.layer + 1 for layer in layers), 0)
        n_heads = max(info.n_heads or 0, *(head + 1 for layer in layers for head in layer.heads), 0)
        self.measure, self.counts = trace.measure, (n_layers, n_heads)  # as far as the trace tells
        self.held_rows = layers[0].rows if layers else None

    @property
    def key_tokens(self) -> tuple[Token, ...]:
        """The tokens of the key axis: the same tokens, but for cross attention."""
        return self.trace.key_axis

    def read(
        self,
        reading: Reading[Result],
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
        tick: Tick | None = None,
    ) -> Result:
        """The reading's value over some layers and heads (None: all that there are)."""
        n_layers, n_heads = self.counts
        parts = self.trace.layers
        if layers is not None:
            parts = tuple(self.trace.layer(index) for index in chosen_indices(layers, n_layers, "layer", self.name))
        some = None if heads is None else chosen_indices(heads, n_heads, "head", self.name)
        for part in parts:
            layer = stored_layer(part)
            layer = layer if some is None else layer.select_heads(some)
            layer.tick = None if tick is None else lambda share: tick(share / len(parts))
            reading.take(layer)
        trace = self.trace
        said = (trace.predictions, trace.model, trace.notes, trace.text, trace.measure)
        return reading.value(Run(trace.tokens, trace.embeddings, trace.key_tokens, *said))


class OverviewSource:
    """An overview, or one query's weights, from a file: a reading gets what was kept, where that is what it asks for."""

    def __init__(self, overview: Overview | LongRow, name: str) -> None:
        self.overview, self.name = overview, name
        self.text, self.tokens, self.info = overview.text, overview.tokens, overview.model
        self.counts = self.info.n_layers or 1, self.info.n_heads or 1
        self.held_rows: tuple[int, ...] | None = None
        self.measure: str | None = None

    @property
    def key_tokens(self) -> tuple[Token, ...]:
        """The tokens of the key axis: the same tokens, but for cross attention."""
        return self.overview.key_axis

    def read(
        self,
        reading: Reading[Result],
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
        tick: Tick | None = None,
    ) -> Result:
        """What the overview holds of a reading, for some layers and heads (None: all that there are).

        Raises AttnctlError where it does not hold that.
        """
        keep: Any = getattr(reading, "kept_in", None)
        if keep is None:
            raise AttnctlError(
                f"{self.name} holds an overview of a long text, not its every weight: give the text and its model"
            )
        n_layers, n_heads = self.counts
        some = None if layers is None else chosen_indices(layers, n_layers, "layer", self.name)
        few = None if heads is None else chosen_indices(heads, n_heads, "head", self.name)
        return keep(  # type: ignore[no-any-return]
            self.overview,
            lambda layer, head: (some is None or layer in some) and (few is None or head in few),
            self.name,
        )


def check_attention_weights(source: Source, command: str) -> None:
    """Raise AttnctlError where a source holds numbers that are no attention weights, of which `command` can tell nothing."""
    for told in notes_of_kind(source.trace.notes, "no-weights") if isinstance(source, TraceSource) else ():
        raise AttnctlError(f"{command} tells of attention weights. {source.name}: {told[:1].lower()}{told[1:]}")
