"""Single rows and small blocks of the weights as readings, exact at any length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from attnctl.arrays import Floats
from attnctl.errors import AttnctlError
from attnctl.layer import LayerAttention, Run
from attnctl.readings.overview import LongRow, Overview


class RowReading:
    """The weights of one query, by its index, on every key."""

    predicts = False

    def __init__(self, query: int) -> None:
        self._query = query
        self._weights: dict[tuple[int, int], Floats] = {}

    def take(self, layer: LayerAttention) -> None:
        """Take in one layer."""
        rows = layer.rows([self._query])[:, 0]  # (heads, n_k)
        self._weights |= {(layer.layer, head): row for head, row in zip(layer.heads, rows, strict=True)}

    def kept_in(self, overview: Overview | LongRow, wanted: Callable[[int, int], bool], name: str) -> LongRow:
        """The row, where it is the one that was kept. Raises AttnctlError where not."""
        if not isinstance(overview, LongRow) or overview.query != self._query:
            held = f"query {overview.query} alone" if isinstance(overview, LongRow) else "no single rows"
            raise AttnctlError(f"{name} holds {held}, not query {self._query}: give the text and its model")
        return replace(overview, weights={at: row for at, row in overview.weights.items() if wanted(*at)})

    def value(self, run: Run) -> LongRow:
        """The row of each layer and head."""
        keys = run.tokens if run.key_tokens is None else run.key_tokens
        return LongRow(run.text, run.tokens, keys, run.known_model, self._query, self._weights, run.notes)


Block = tuple[int, int, int, int]  # first query, one past the last, first key, one past the last


class BlocksReading:
    """The weights of some blocks: (layer, head) → one (rows, keys) each."""

    predicts = False

    def __init__(self, blocks: Sequence[Block]) -> None:
        self._blocks = blocks
        self._weights: dict[tuple[int, int], list[Floats]] = {}

    def take(self, layer: LayerAttention) -> None:
        """Take in one layer."""
        for block in self._blocks:
            for head, weights in zip(layer.heads, layer.block(*block), strict=True):
                self._weights.setdefault((layer.layer, head), []).append(weights)

    def value(self, run: Run) -> dict[tuple[int, int], list[Floats]]:
        """(layer, head) → the weights of each block."""
        return self._weights
