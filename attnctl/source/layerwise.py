"""A source whose layers are changed on the way: keys left out, words merged, another measure in place of weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Generic

from attnctl.layer import LayerAttention, Run
from attnctl.source import Reading, Result, Source
from attnctl.tokens import Token

if TYPE_CHECKING:
    from attnctl.blockwise import Tick


Change = Callable[[LayerAttention], LayerAttention]


class Changed(Generic[Result]):
    """A reading of layers that are changed before it takes them, each by itself, and of what was told of them."""

    def __init__(self, reading: Reading[Result], source: LayerwiseSource) -> None:
        self.predicts, self._reading, self._source = reading.predicts, reading, source

    def take(self, layer: LayerAttention) -> None:
        """Hand on the changed layer."""
        self._reading.take(self._source.change(layer))

    def value(self, run: Run) -> Result:
        """What the reading made of it."""
        run.measure = self._source.measure
        run.notes += self._source.notes()
        return self._reading.value(run)


class LayerwiseSource:
    """Another source whose layers are changed, each by itself, before a reading takes them.

    `notes` are asked for when all layers have gone by: what a reader must know of the change, in sentences.
    """

    def __init__(
        self,
        source: Source,
        change: Change,
        measure: str | None = None,
        notes: Callable[[], tuple[str, ...]] = tuple,
    ) -> None:
        self.source, self.change, self.notes = source, change, notes
        self.measure = source.measure if measure is None else measure
        self.name, self.text, self.tokens, self.info = source.name, source.text, source.tokens, source.info
        self.held_rows, self.counts = source.held_rows, source.counts

    @property
    def key_tokens(self) -> tuple[Token, ...]:
        """The tokens of the key axis."""
        return self.source.key_tokens

    def read(
        self,
        reading: Reading[Result],
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
        tick: Tick | None = None,
    ) -> Result:
        """The reading's value over some layers and heads of the other source, changed."""
        return self.source.read(Changed(reading, self), layers, heads, tick)
