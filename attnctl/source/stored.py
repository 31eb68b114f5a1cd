"""Attention that is stored: a trace, or an overview, from a file or a pipe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attnctl.errors import AttnctlError
from attnctl.layer import Run
from attnctl.readings.traces.record import stored_layer
from attnctl.readings.traces.trace import Trace, notes_of_kind
from attnctl.selection import chosen_indices
from attnctl.source import Reading, Result, Source
from attnctl.tokens import Token

if TYPE_CHECKING:
    from attnctl.blockwise import Tick
    from attnctl.readings.overview import LongRow, Overview


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
