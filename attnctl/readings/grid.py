"""Readings of an overview: its grid of weights, every one or pooled; and grid, statistics and links in one run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from attnctl.attention import Array
from attnctl.errors import AttnctlError
from attnctl.layer import LayerAttention, Run
from attnctl.readings.head_statistics import HeadStatisticsReading
from attnctl.readings.overview import LongRow, Overview, PooledGrid, TextPart
from attnctl.readings.rows import LinksReading


class GridReading:
    """The weights between the parts `rows` and `columns` of a text; a cell is the mean or max of its weights, or mass."""

    predicts = False

    def __init__(self, rows: Sequence[TextPart], columns: Sequence[TextPart], pool: str = "mean") -> None:
        self.rows, self.columns, self.pool = tuple(rows), tuple(columns), pool
        self._weights: dict[tuple[int, int], Array] = {}
        self._masks: dict[int, Array] = {}

    def take(self, layer: LayerAttention) -> None:
        """Take in one layer. Raises AttnctlError for a weight that is not finite."""
        parts = [part.ranges for part in self.rows], [part.ranges for part in self.columns]
        grids = layer.pooled(*parts, self.pool)  # (heads, rows, columns)
        if not np.isfinite(grids).all():
            raise AttnctlError(f"layer {layer.layer} of this trace holds a weight that is not finite (NaN or infinity)")
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


class OverviewReading:
    """A grid, the statistics of each head, the strongest links: whichever of them are given."""

    predicts = False

    def __init__(
        self,
        grid: GridReading | None = None,
        statistics: HeadStatisticsReading | None = None,
        links: LinksReading | None = None,
    ) -> None:
        self._grid, self._statistics, self._links = grid, statistics, links

    def take(self, layer: LayerAttention) -> None:
        """Take in one layer. Raises AttnctlError where its scores are NaN or infinite."""
        for reading in (self._grid, self._statistics, self._links):
            if reading is not None:
                reading.take(layer)

    def kept_in(self, overview: Overview | LongRow, wanted: Callable[[int, int], bool], name: str) -> Overview:
        """What an overview holds of it. Raises AttnctlError where it does not hold what is asked for."""
        return Overview(
            overview.text,
            overview.tokens,
            overview.model,
            None if overview.key_axis == overview.tokens else overview.key_axis,
            grid=None if self._grid is None else self._grid.kept_in(overview, wanted, name),
            head_statistics=() if self._statistics is None else self._statistics.kept_in(overview, wanted, name),
            links={} if self._links is None else self._links.kept_in(overview, wanted, name),
            notes=overview.notes,
        )

    def value(self, run: Run) -> Overview:
        """The overview."""
        return Overview(
            text=run.text,
            tokens=run.tokens,
            model=run.known_model,
            key_tokens=run.key_tokens,
            grid=None if self._grid is None else self._grid.value(run),
            head_statistics=() if self._statistics is None else self._statistics.value(run),
            links={} if self._links is None else self._links.value(run),
            notes=run.notes,
        )
