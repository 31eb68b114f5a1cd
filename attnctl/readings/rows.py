"""Single rows and small blocks of the weights as readings, exact at any length."""

from __future__ import annotations

from collections.abc import Sequence

from attnctl.arrays import Floats
from attnctl.layer import LayerAttention, Run
from attnctl.readings.overview import LongRow


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
