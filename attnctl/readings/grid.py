"""The grid of a heatmap as a reading: the weights between parts of the text, every one of them or pooled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attnctl.layer import LayerAttention, Run
from attnctl.readings.overview import Grid, Part


class GridReading:
    """The weights between the parts `rows` and `columns` of a text; a cell is the mean or max of its weights, or mass."""

    predicts = False

    def __init__(self, rows: Sequence[Part], columns: Sequence[Part], pool: str = "mean") -> None:
        self.rows, self.columns, self.pool = tuple(rows), tuple(columns), pool
        self._weights: dict[tuple[int, int], Any] = {}
        self._masks: dict[int, Any] = {}

    def take(self, layer: LayerAttention) -> None:
        """Take in one layer."""
        parts = [part.ranges for part in self.rows], [part.ranges for part in self.columns]
        grids = layer.pooled(*parts, self.pool)  # (heads, rows, columns)
        self._weights |= {(layer.layer, head): grid for head, grid in zip(layer.heads, grids, strict=True)}
        if (mask := layer.visible_parts(*parts)) is not None:
            self._masks[layer.layer] = mask

    def value(self, run: Run) -> Grid:
        """The grid of each layer and head."""
        return Grid(self.pool, self.rows, self.columns, self._weights, self._masks)
