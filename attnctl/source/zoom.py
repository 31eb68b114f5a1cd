"""The cells of a grid of weights: every token of a short text, parts of a long one, a stretch of it, or named spans."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from attnctl.blockwise import even_parts
from attnctl.errors import AttnctlError, UsageError
from attnctl.readings.grid import GridReading, OverviewReading
from attnctl.readings.heatmap import HeatmapGrid, of_overview
from attnctl.readings.overview import Overview, TextPart, part_snippet
from attnctl.readings.spans import parts_of
from attnctl.readings.traces.trace import Trace, own_numbers
from attnctl.selection import token_range
from attnctl.source import Source
from attnctl.source.changes import Changes, Prepared, prepare
from attnctl.source.stored import OverviewSource, TraceSource
from attnctl.tokens import Token

if TYPE_CHECKING:
    from attnctl.blockwise import Tick

LONG = 512  # tokens, beyond which a text has an overview instead of every weight
SIZE = 256  # cells a side of an overview
MANY = 4  # heads, beyond which each is drawn small


class Zoom(NamedTuple):
    """Which part of a text is looked at, and how."""

    rows: str | None = None
    columns: str | None = None
    pool: str | None = None
    spans: str | None = None


EVERY_CELL = Zoom()


def is_long(source: Source) -> bool:
    """Whether a text has cells instead of every weight."""
    return max(len(source.tokens), len(source.key_tokens)) > LONG


def read_cells(given: Prepared, zoom: Zoom = EVERY_CELL, room: int | None = None, tick: Tick | None = None) -> Overview:
    """The cells of what was prepared, at most `room` a side."""
    return given.read(OverviewReading(grid_of(given, zoom, room)), tick)


def heatmap_grid(given: Prepared, cells: Overview) -> HeatmapGrid:
    """The cells of what was prepared, as they are shown."""
    return of_overview(cells, given.done, given.source.measure, given.key_numbers)


def read_heatmap(
    trace: Trace,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    drop: Sequence[str] = (),
    renormalise: bool = False,
) -> HeatmapGrid:
    """The weights of a trace for the layers and heads asked for (None: all that it holds), every one.

    Raises AttnctlError where the trace has no such layer, head or weights, UsageError where a key to drop is not there.
    """
    if not trace.layers:
        raise AttnctlError("this trace holds no layers, so there are no weights to show")
    for part in trace.layers if layers is None else map(trace.layer, layers):
        for head in heads or ():
            part.position_of(head)
    given = prepare(TraceSource(trace), Changes(drop=drop, renormalise=renormalise), layers, heads)
    grid = OverviewReading(_single_tokens(given.source))
    return replace(heatmap_grid(given, given.read(grid)), cited=trace.cited)


def grid_of(given: Prepared, zoom: Zoom = EVERY_CELL, room: int | None = None) -> GridReading:
    """The cells of a grid: at most `room` a side. Raises UsageError for a zoom that is not there."""
    source, heads = given.source, given.head_count
    if zoom.pool not in (None, "mean", "max"):
        raise UsageError(f"--pool {zoom.pool}: it is mean or max")
    if zoom.spans is not None and zoom[:3] != (None, None, None):
        raise UsageError("--spans goes without --rows, --columns and --pool: its cells are the parts' shares")
    if isinstance(source, OverviewSource):
        return _kept_grid(source, zoom)
    if zoom == EVERY_CELL and not is_long(source):
        return _single_tokens(source)
    if zoom.spans is not None:
        if source.key_tokens != source.tokens and own_numbers(source.tokens, source.key_tokens) is None:
            raise UsageError("--spans are parts of one text, and here queries and keys are of two")
        rows, columns = (parts_of(zoom.spans, source.text, axis) for axis in (source.tokens, source.key_tokens))
        return GridReading(rows, columns, "mass")
    size = SIZE if heads <= MANY else SIZE // 4
    if room is not None:
        size = min(room, size) if heads <= MANY else 32
    name = 18 if heads == 1 or room is not None else 13  # characters, as many as a picture writes
    rows = zoom_cells(source.tokens, range(len(source.tokens)), zoom.rows, "--rows", size, source.text, name)
    columns = zoom_cells(source.key_tokens, given.key_numbers, zoom.columns, "--columns", size, source.text, name)
    if not columns:
        raise UsageError("dropping every key leaves nothing to show")
    return GridReading(rows, columns, zoom.pool or "mean")


def _single_tokens(source: Source) -> GridReading:
    """A cell for each query that is there and each key."""
    held = range(len(source.tokens)) if source.held_rows is None else source.held_rows
    return GridReading(
        _single_parts(source.tokens, held), _single_parts(source.key_tokens, range(len(source.key_tokens)))
    )


def _single_parts(tokens: Sequence[Token], indices: Iterable[int]) -> tuple[TextPart, ...]:
    """Each of these tokens as a part, by its own name."""
    return tuple(TextPart(tokens[at].text, ((at, at + 1),)) for at in indices)


def _kept_grid(source: OverviewSource, zoom: Zoom) -> GridReading:
    """The cells that an overview holds, those within --rows and --columns."""
    grid = source.overview.grid if isinstance(source.overview, Overview) else None
    if grid is None:
        raise AttnctlError(f"{source.name} holds no grid of weights: give the text and its model")
    if zoom.spans is not None:
        raise UsageError(f"--spans does not go with {source.name}: its cells are pooled already")
    kept = []
    for parts, tokens, spec, option in (
        (grid.rows, source.tokens, zoom.rows, "--rows"),
        (grid.columns, source.key_tokens, zoom.columns, "--columns"),
    ):
        first, last = token_range(spec, len(tokens), option)
        kept.append([part for part in parts if first <= part.first_token and part.ranges[-1][1] <= last])
    if not all(kept):
        raise UsageError(f"no whole cell of {source.name} lies in --rows and --columns")
    return GridReading(kept[0], kept[1], zoom.pool or grid.pool)


def zoom_cells(
    tokens: Sequence[Token], numbers: Sequence[int], spec: str | None, option: str, size: int, text: str, name: int = 18
) -> tuple[TextPart, ...]:
    """The tokens that --rows or --columns names in at most `size` even cells, each named by where and how it begins.

    `numbers` are those of the tokens in the text, by which they are named and divided.
    """
    first, last = token_range(spec, numbers[-1] + 1, option)
    found = []
    for ((a, b),) in even_parts(first, last, size):
        a, b = bisect_left(numbers, a), bisect_left(numbers, b)
        if a < b:  # tokens of no text are named by their numbers
            named = part_snippet(tokens, a, b, text, name, numbers[a]) if text else str(numbers[a])
            found.append(TextPart(named, ((a, b),)))
    return tuple(found)
