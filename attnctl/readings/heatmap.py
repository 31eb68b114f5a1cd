"""Panels of weights: the readings that make them, whole, pooled or by parts of a text, and the sentences about them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from attnctl.attention import Array
from attnctl.errors import AttnctlError
from attnctl.layer import LayerAttention
from attnctl.layer.computed import SweptLayer
from attnctl.measures import Measure, measure_named
from attnctl.readings.overview import LongRow, Overview, PooledGrid, TextPart
from attnctl.readings.rows import LinksReading
from attnctl.readings.sinks import Cells, Sinks, may_have_sinks, sinks_of_cells
from attnctl.readings.spans import REST
from attnctl.readings.statistics_reading import HeadStatisticsReading
from attnctl.runtime.arrays import Bools, Floats
from attnctl.text import shortened, visible_text
from attnctl.text.tokens import Token
from attnctl.trace import Headline, Trace
from attnctl.trace.notes import notes_of_kind
from attnctl.trace.run import Run


class GridReading:
    """A reading of the weights between the parts `rows` and `columns`; a cell is the mean or largest weight, or a mass."""

    predicts = False

    def __init__(self, rows: Sequence[TextPart], columns: Sequence[TextPart], pool: str = "mean") -> None:
        self.rows, self.columns, self.pool = tuple(rows), tuple(columns), pool
        self._weights: dict[tuple[int, int], Array] = {}
        self._masks: dict[int, Array] = {}

    def take(self, layer: LayerAttention) -> None:
        """Pool the weights of one layer. Raises AttnctlError for a weight that is not finite."""
        parts = [part.ranges for part in self.rows], [part.ranges for part in self.columns]
        grids = layer.pooled(*parts, self.pool)  # (heads, rows, columns)
        if not np.isfinite(grids).all():
            raise AttnctlError(f"layer {layer.layer} of this trace holds a weight that is not finite (NaN or infinity)")
        self._weights |= {(layer.layer, head): grid for head, grid in zip(layer.heads, grids, strict=True)}
        if (mask := layer.visible_parts(*parts)) is not None:
            self._masks[layer.layer] = mask

    def kept_in(self, overview: Overview | LongRow, name: str) -> PooledGrid:
        """Return these rows and columns of an overview's grid. Raises AttnctlError if it does not hold them."""
        grid = overview.grid if isinstance(overview, Overview) else None
        if (
            grid is None
            or grid.pool != self.pool
            or not {*self.rows} <= {*grid.rows}
            or not {*self.columns} <= {*grid.columns}
        ):
            contents = (
                "no grid" if grid is None else f"a grid of {len(grid.rows)} × {len(grid.columns)} cells, {grid.pool}"
            )
            raise AttnctlError(f"{name} holds {contents}, and not the cells asked for: give the text and its model")
        rows, columns = [grid.rows.index(row) for row in self.rows], [grid.columns.index(part) for part in self.columns]
        if not grid.weights:
            raise AttnctlError(f"{name} has no grid of these layers and heads")
        weights = {place: cells[rows][:, columns] for place, cells in grid.weights.items()}
        masks = {layer: mask[rows][:, columns] for layer, mask in grid.masks.items()}
        return PooledGrid(self.pool, self.rows, self.columns, weights, masks)

    def value(self, run: Run) -> PooledGrid:
        """Return the grid of each layer and head."""
        return PooledGrid(self.pool, self.rows, self.columns, self._weights, self._masks)


class OverviewReading:
    """A reading of a grid, the statistics of each head and the strongest links, as far as each is given."""

    predicts = False

    def __init__(
        self,
        grid: GridReading | None = None,
        statistics: HeadStatisticsReading | None = None,
        links: LinksReading | None = None,
    ) -> None:
        self._grid, self._statistics, self._links = grid, statistics, links

    def may_lag(self, layer: LayerAttention) -> bool:
        """Return whether it has statistics: cells alone take so little that the model computes faster with every thread."""
        if self._links is not None or self._statistics is None:
            return False
        grid_may_lag = self._grid is None or isinstance(layer, SweptLayer)  # and not steps, which short texts have
        return self._statistics.may_lag(layer) and grid_may_lag

    def take(self, layer: LayerAttention) -> None:
        """Pass one layer to each reading. Raises AttnctlError if its scores are NaN or infinite."""
        for reading in (self._grid, self._statistics, self._links):
            if reading is not None:
                reading.take(layer)

    def kept_in(self, overview: Overview | LongRow, name: str) -> Overview:
        """Return these parts of an overview. Raises AttnctlError if it does not hold them."""
        return Overview(
            overview.subject,
            grid=None if self._grid is None else self._grid.kept_in(overview, name),
            head_statistics=() if self._statistics is None else self._statistics.kept_in(overview, name),
            links={} if self._links is None else self._links.kept_in(overview, name),
        )

    def value(self, run: Run) -> Overview:
        """Return the overview."""
        more_notes = () if self._statistics is None else self._statistics.notes_of(run.subject.model)
        return Overview(
            replace(run.subject, notes=(*run.subject.notes, *more_notes)) if more_notes else run.subject,
            grid=None if self._grid is None else self._grid.value(run),
            head_statistics=() if self._statistics is None else self._statistics.value(run),
            links={} if self._links is None else self._links.value(run),
        )


SINK_TAKES_PART = "a learned sink takes a part of each row"
AS_GIVEN = "given"  # in place of a measure, for a matrix of numbers that are not attention weights
POOLED = {"mass": "mass", "mean": "mean weight", "max": "largest weight"}  # how weights are pooled → a cell's number


@dataclass(frozen=True)
class HeatmapGrid:
    """The grid of an overview as a heat map shows it: its labels and its title, and what was done to the weights."""

    overview: Overview
    remarks: tuple[str, ...] = ()  # what was done to the weights, in words for the reader of the picture
    key_numbers: Sequence[int] | None = None  # the number in the text of each key of the overview; None: its place
    sinks: Sinks | None = None
    cited: str = ""  # the source of the numbers, for the metadata of a picture
    names: tuple[str, ...] = ()  # names of the panels, if they are not heads
    ring: tuple[int, int, int, int] | None = None  # layer, head, row and column of the headline's cell

    @property
    def cells(self) -> PooledGrid:
        """Return the grid of the overview."""
        assert self.overview.grid is not None
        return self.overview.grid

    @property
    def weights(self) -> dict[tuple[int, int], Floats]:
        """Return (layer, head) → weights (n_q, n_k)."""
        return self.cells.weights

    @cached_property
    def layers(self) -> tuple[int, ...]:
        """Return the layers of the panels."""
        return tuple(dict.fromkeys(layer for layer, _ in self.weights))

    @cached_property
    def heads(self) -> tuple[int, ...]:
        """Return the heads of the panels."""
        return tuple(dict.fromkeys(head for _, head in self.weights))

    @cached_property
    def is_single(self) -> bool:
        """Return whether each row and column is a single token."""
        return all(part.token_count == 1 for part in (*self.cells.rows, *self.cells.columns))

    @cached_property
    def is_plain(self) -> bool:
        """Return whether each row and column is a single token with its own text as name."""
        sides = (self.cells.rows, self.overview.tokens), (self.cells.columns, self.overview.key_axis)
        return self.is_single and all(
            part.name == tokens[part.first_token].text for parts, tokens in sides for part in parts
        )

    @cached_property
    def queries(self) -> tuple[Token, ...]:
        """Return the tokens of the rows; of parts of a text, tokens with their names."""
        return self._labels(self.cells.rows, self.overview.tokens)

    @cached_property
    def keys(self) -> tuple[Token, ...]:
        """Return the tokens of the columns; of parts of a text, tokens with their names."""
        return self._labels(self.cells.columns, self.overview.key_axis)

    def _labels(self, parts: Sequence[TextPart], tokens: Sequence[Token]) -> tuple[Token, ...]:
        return tuple(tokens[part.first_token] if self.is_plain else Token(part.name) for part in parts)

    @cached_property
    def first_tokens(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the number in the text of each row's and each column's first token."""
        numbers = range(len(self.overview.key_axis)) if self.key_numbers is None else self.key_numbers
        return _part_starts(self.cells.rows), tuple(numbers[index] for index in _part_starts(self.cells.columns))

    @property
    def starts(self) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Return the first tokens of pooled rows and columns, whose names begin with them; None for other grids."""
        return None if self.is_plain or self.cells.pool == "mass" else self.first_tokens

    @property
    def numbers(self) -> tuple[Sequence[int], Sequence[int]]:
        """Return the number of each row and column: that of its first token; parts of a text count from 0."""
        if self.is_plain or self.cells.pool != "mass":
            return self.first_tokens
        return range(len(self.queries)), range(len(self.keys))

    @cached_property
    def full(self) -> tuple[Bools, Bools] | None:
        """Return which rows and columns have as many tokens as the largest; None if all do, or cells are no means."""
        return _full_parts(self.cells.rows, self.cells.columns) if self.cells.pool == "mean" else None

    def panels(self) -> Iterator[tuple[int, int, Floats, Bools | None]]:
        """Yield (layer, head, weights (n_q, n_k), mask (n_q, n_k) or None) of each panel, layer by layer."""
        for (layer, head), weights in self.weights.items():
            yield layer, head, weights, self.cells.masks.get(layer)

    @property
    def hides_keys(self) -> bool:
        """Return whether any weight of the map is hidden by a mask."""
        return any(not mask.all() for mask in self.cells.masks.values())

    @cached_property
    def roles(self) -> Mapping[tuple[int, int], str]:
        """Return (layer, head) → what it was measured to find, of the heads that are shown."""
        roles = self.overview.model.roles_of_heads()
        return {place: _short_role(relations) for place, relations in roles.items() if place in self.weights}

    @property
    def sentence(self) -> str:
        """Return the text on one line, for a title; only the beginning of a long text."""
        return _sentence_of(self.overview.text)

    def panel_name(self, head: int) -> str:
        """Return the heading over the panel of a head."""
        return self.names[head] if self.names else "all heads" if self._joins_heads else f"head {head}"

    @cached_property
    def measure(self) -> str | None:
        """Return what a cell holds: a measure, `given` for a bare matrix, mean, max or mass; None for a weight."""
        given = AS_GIVEN if self.is_single and "no-weights" in self.overview.noted else self.overview.measure
        return given if given is not None or (self.is_single and self.cells.pool != "mass") else self.cells.pool

    @property
    def _measure(self) -> Measure | None:
        measure = self.measure
        return None if measure in (None, AS_GIVEN, *POOLED) else measure_named(str(measure))

    @property
    def _joins_heads(self) -> bool:
        return self._measure is not None and self._measure.joins_heads

    @property
    def picture_title(self) -> str:
        """Return the title: the model, the layers and the heads; for a single head also its role."""
        heads = _numbers_text(self.heads, "head")
        if self._measure is not None and self._joins_heads:
            heads = f"{self._measure.title.lower()} of all heads"
        role = next(iter(self.roles.values())) if len(self.weights) == 1 and self.roles else ""
        title = f"{self.overview.model.name}, {_numbers_text(self.layers, 'layer')}, {heads}"
        return title + (f": {role}" if role else "")

    @property
    def unit_of_cells(self) -> str:
        """Return the meaning of a cell's number, for the colour bar."""
        if self._measure is not None:
            return self._measure.unit
        return (POOLED | {AS_GIVEN: "number as given"}).get(self.measure or "", "weight")


class Evolution(NamedTuple):
    """One head over training: its weights at each step of a run that was kept, and the name of run and head."""

    grids: Sequence[HeatmapGrid]
    steps: Sequence[int]
    name: str


def labelled_grid(
    overview: Overview, changes: tuple[str, ...] = (), key_numbers: Sequence[int] | None = None
) -> HeatmapGrid:
    """Return the cells of an overview to draw, with a label for each row and column.

    `changes` are remarks on other changes, `key_numbers` holds the numbers of the keys in the text (None: all keys are
    there).
    """
    grid = HeatmapGrid(overview, key_numbers=key_numbers, cited=overview.cited)
    cells, remarks = grid.cells, []
    if cells.pool == "mass":
        remarks.append("share of its attention that a query of the row gives to the column, on average")
        if any(part.name == REST for part in (*cells.rows, *cells.columns)):
            remarks.append(f"{REST}: tokens in no part")
    elif not grid.is_single:
        cell = f"each cell of {_part_labels(cells.rows)} × {_part_labels(cells.columns)}"
        remarks.append(f"{cell}: the {'mean' if cells.pool == 'mean' else 'largest'} of its weights")
    of_weights = grid.measure in (None, *POOLED)
    if "sink" in overview.noted and of_weights and not notes_of_kind(changes, "rescaled"):
        remarks.append(SINK_TAKES_PART)
    has_sinks = of_weights and cells.pool != "mass"
    sinks = sinks_of_grid(overview, cells, grid.first_tokens) if has_sinks else None
    return replace(grid, remarks=(*remarks, *changes), sinks=sinks)


def with_headline(grid: HeatmapGrid, trace: Trace, line: Headline) -> HeatmapGrid:
    """Return the grids with the trace's headline as a first remark and, if they hold its cell, a ring around the cell."""
    if not line.stands_out:
        return grid
    number = trace.key_numbers[line.key]
    query, key = visible_text(trace.tokens[line.query].text), visible_text(trace.key_axis[line.key].text)
    sure = f" ({line.certainty})" if line.certainty else ""
    remark = f"headline: {query} → {key} {line.weight:.2f}{sure}"
    rows, columns = map(list, grid.numbers)
    ring = None
    if line.query in rows and number in columns:
        ring = line.layer, line.head, rows.index(line.query), columns.index(number)
    return replace(grid, remarks=(remark, *grid.remarks), ring=ring)


def _short_role(roles: Sequence[str]) -> str:
    """Return the surest role of a head; of "verb → subject past others" and "verb → subject" the shorter one."""
    return min((role for role in roles if roles[0].startswith(role)), key=len)


LONGEST_SENTENCE = 300  # characters: no title has room for more


def _sentence_of(text: str) -> str:
    """Return the text for a title: on one line, shortened if it is long, with invisible characters made visible."""
    line = " ".join(text[: 4 * LONGEST_SENTENCE].split())
    return shortened(visible_text(line), LONGEST_SENTENCE) if line else ""


def sinks_of_grid(overview: Overview, grid: PooledGrid, starts: tuple[Sequence[int], Sequence[int]]) -> Sinks | None:
    """Return the sinks of an overview's grid, whose rows and columns begin at tokens `starts`; None if no head has one."""
    reads_itself = overview.reads_itself
    if (
        not may_have_sinks(overview.model, len(grid.rows), reads_itself)
        or grid.pool == "max"
        or "no-weights" in overview.noted
    ):
        return None
    counts = np.array([part.token_count for part in grid.columns])  # (columns,)
    shares = grid.pool == "mass" or counts.max() == 1
    weights = grid.weights if shares else {place: cells * counts for place, cells in grid.weights.items()}
    whole = int(counts.sum()) == len(overview.key_axis)
    keys = [overview.key_axis[part.first_token] if part.token_count == 1 else Token(part.name) for part in grid.columns]
    first = starts[0].index(0) if reads_itself and 0 in starts[0] else None
    learned = "sink" in overview.noted and not overview.noted & {"rescaled", "left-out"} and whole
    is_remainder = overview.noted >= {"rescaled", "left-out"}
    return sinks_of_cells(Cells(weights, grid.masks, keys, starts[1], counts.tolist(), first, learned, is_remainder))


def _full_parts(rows: Sequence[TextPart], columns: Sequence[TextPart]) -> tuple[Bools, Bools] | None:
    """Return which rows and columns hold the largest number of tokens; None if all do."""
    counts = [np.array([part.token_count for part in parts]) for parts in (rows, columns)]
    full = counts[0] == counts[0].max(), counts[1] == counts[1].max()  # (n_q,), (n_k,)
    return None if all(side.all() for side in full) else full


def _part_starts(parts: Sequence[TextPart]) -> tuple[int, ...]:
    return tuple(part.first_token for part in parts)


def _part_labels(parts: Sequence[TextPart]) -> str:
    count = max(part.token_count for part in parts)
    return f"{count} token{'s' * (count != 1)}"


def _numbers_text(numbers: Sequence[int], noun: str) -> str:
    """Return `head 3`, `heads 0–7`, `heads 1, 4, 7` or `12 heads`."""
    if len(numbers) == 1:
        return f"{noun} {numbers[0]}"
    if list(numbers) == list(range(numbers[0], numbers[0] + len(numbers))):
        return f"{noun}s {numbers[0]}–{numbers[-1]}"
    return f"{noun}s {', '.join(map(str, numbers))}" if len(numbers) <= 6 else f"{len(numbers)} {noun}s"


def is_drowned(grid: HeatmapGrid) -> bool:
    """Return whether most cells would have the colour of zero, while a logarithmic scale would show them."""
    visible = np.concatenate([w.ravel() if mask is None else w[mask] for _, _, w, mask in grid.panels()])  # (cells,)
    return bool(visible.min() >= 0 and np.median(visible) < 0.02 * weight_span(grid)[1])


def weight_span(grid: HeatmapGrid) -> tuple[float, float]:
    """Return the smallest (at most 0) and the largest weight that a query may give: the ends of the colour scale."""
    low, high, highest = 0.0, 0.0, 0.0
    for _, _, weights, mask in grid.panels():
        visible: Array = weights if mask is None else weights[mask]
        if visible.size:
            low, highest = min(low, float(visible.min())), max(highest, float(visible.max()))
        if grid.full is not None:  # cells with fewer tokens, such as the last, do not set the scale
            is_full = np.outer(*grid.full) if mask is None else np.outer(*grid.full) & mask  # (n_q, n_k)
            high = max(high, float(weights[is_full].max(initial=0.0)))
    high = high or highest
    return low, high if high > low else 1.0


DECADES = 6  # powers of ten on a logarithmic scale, at most


def log_span(grid: HeatmapGrid) -> tuple[float, float, str]:
    """Return the ends of a logarithmic colour scale, and a remark about it.

    Raises AttnctlError if some weights are negative or all are 0.
    """
    low, high = weight_span(grid)
    smallest = min((float(w[w > 0].min()) for _, _, w, _ in grid.panels() if (w > 0).any()), default=None)
    if low < 0 or smallest is None:
        raise AttnctlError(f"no logarithmic scale for these weights: {'some are negative' if low < 0 else 'all are 0'}")
    floor = high * 10.0**-DECADES
    remark = "colours on a logarithmic scale"
    if smallest < floor:
        remark += f", all below {floor:.0e} alike".replace("e-0", "e-")
    return min(max(smallest, floor), high / 10), high, remark
