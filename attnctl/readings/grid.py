"""The grid of a heatmap as a reading: the weights between parts of the text, every one of them or pooled."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attnctl.attention import Array
from attnctl.errors import AttnctlError
from attnctl.layer import LayerAttention, Run
from attnctl.readings.overview import LongRow, Overview, PooledGrid, TextPart


class GridReading:
    """The weights between the parts `rows` and `columns` of a text; a cell is the mean or max of its weights, or mass."""

    predicts = False

    def __init__(self, rows: Sequence[TextPart], columns: Sequence[TextPart], pool: str = "mean") -> None:
        self.rows, self.columns, self.pool = tuple(rows), tuple(columns), pool
        self._weights: dict[tuple[int, int], Array] = {}
        self._masks: dict[int, Array] = {}

    def take(self, layer: LayerAttention) -> None:
        """Take in one layer."""
        parts = [part.ranges for part in self.rows], [part.ranges for part in self.columns]
        grids = layer.pooled(*parts, self.pool)  # (heads, rows, columns)
        self._weights |= {(layer.layer, head): grid for head, grid in zip(layer.heads, grids, strict=True)}
        if (mask := layer.visible_parts(*parts)) is not None:
            self._masks[layer.layer] = mask

    def kept_in(self, overview: Overview | LongRow, wanted: Callable[[int, int], bool], name: str) -> PooledGrid:
        """These rows and columns of an overview's grid. Raises AttnctlError where it has none such."""
        grid = overview.grid if isinstance(overview, Overview) else None
        if (
            grid is None
            or grid.pool != self.pool
            or not {*self.rows} <= {*grid.rows}
            or not {*self.columns} <= {*grid.columns}
        ):
            held = "no grid" if grid is None else f"a grid of {len(grid.rows)} × {len(grid.columns)} cells, {grid.pool}"
            raise AttnctlError(f"{name} holds {held}, and not the cells asked for: give the text and its model")
        rows, columns = [grid.rows.index(row) for row in self.rows], [grid.columns.index(part) for part in self.columns]
        weights = {at: cells[rows][:, columns] for at, cells in grid.weights.items() if wanted(*at)}
        if not weights:
            raise AttnctlError(f"{name} has no grid of these layers and heads")
        shown = {layer for layer, _ in weights}
        masks = {layer: mask[rows][:, columns] for layer, mask in grid.masks.items() if layer in shown}
        return PooledGrid(self.pool, self.rows, self.columns, weights, masks)

    def value(self, run: Run) -> PooledGrid:
        """The grid of each layer and head."""
        return PooledGrid(self.pool, self.rows, self.columns, self._weights, self._masks)
