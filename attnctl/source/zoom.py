"""Choose the cells of a grid: single tokens of a short text, pooled parts of a long text, or the part to zoom in on."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from attnctl.blockwise import even_parts
from attnctl.checks import limits
from attnctl.checks.selection import find_several, token_range
from attnctl.errors import AttnctlError, UsageError, option_name
from attnctl.readings.heatmap import GridReading, HeatmapGrid, OverviewReading, labelled_grid
from attnctl.readings.overview import LongRow, Overview, TextPart, part_snippet
from attnctl.readings.spans import parts_of
from attnctl.source.changes import Changes, prepare
from attnctl.source.prepared import Prepared
from attnctl.source.sources import LONG, TraceSource
from attnctl.text.tokens import Token
from attnctl.trace import Trace
from attnctl.trace.notes import Note
from attnctl.trace.subject import numbers_in_text

SIZE = 256  # cells a side of an overview
MANY = 4  # with more heads, each is drawn small


class Zoom(NamedTuple):
    """The part of a text to show, and how its cells are pooled."""

    rows: str | None = None
    columns: str | None = None
    pool: str | None = None
    spans: str | None = None
    query: str | None = None  # a token, or neighbours, in place of `rows`

    def with_rows_of_query(self, tokens: Sequence[Token]) -> Zoom:
        """Return the zoom with the rows of its query. Raises UsageError for a query beside `rows`, or of several places."""
        if self.query is None:
            return self
        if self.rows is not None:
            why = f"cannot be combined with {option_name('rows')}, which names the queries"
            raise UsageError(why, option="query")
        queries = find_several(tokens, self.query)
        if queries != list(range(queries[0], queries[-1] + 1)):
            why = f"names queries that are not side by side: {option_name('rows', '2-5')} shows those between, too"
            raise UsageError(why, option="query", value=self.query)
        return self._replace(rows=f"{queries[0]}-{queries[-1]}", query=None)


EVERY_CELL = Zoom()


def zoom_on_sound(prepared: Prepared, zoom: Zoom) -> list[str]:
    """Return the options that leave out the silence with which a model fills up a sound; none that `zoom` has already."""
    if prepared.overview is not None or zoom.spans is not None or zoom.query is not None:
        return []
    sides = (("rows", zoom.rows, prepared.source.tokens), ("columns", zoom.columns, prepared.key_tokens))
    options = []
    for name, chosen, axis in sides:
        filled = [token.special and token.seconds is not None for token in axis]
        heard = len(filled) - sum(filled)
        # patches of bands are not in the order of time: no range of them is the sound
        if chosen is None and 0 < heard < len(filled) and not any(filled[:heard]):
            options.append(option_name(name, f"0-{heard - 1}"))
    return options


def labelled_cells(prepared: Prepared, cells: Overview) -> HeatmapGrid:
    """Return the cells of a prepared source as a grid to draw, with the changes of the source and those made now."""
    stored = (Note(f"{note[:1].lower()}{note[1:]}".rstrip("."), note.kind) for note in cells.subject.change_notes)
    changes = tuple({change: change for change in (*stored, *prepared.change_notes)}.values())
    return labelled_grid(cells, changes, prepared.key_numbers)


def read_heatmap(
    trace: Trace,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    drop: Sequence[str] = (),
    renormalise: bool = False,
) -> HeatmapGrid:
    """Return every weight of a trace for some layers and heads (None: all).

    Raises AttnctlError if the trace lacks a layer, a head or its weights, UsageError if a key to drop does not exist.
    """
    if not trace.layers:
        raise AttnctlError("this trace holds no layers, so there are no weights to show")
    for part in trace.layers if layers is None else map(trace.layer, layers):
        for head in heads or ():
            part.position_of(head)
    prepared = prepare(TraceSource(trace), Changes(drop=drop, renormalise=renormalise), layers, heads)
    grid = OverviewReading(_single_tokens(prepared))
    return replace(labelled_cells(prepared, prepared.read(grid)), cited=trace.cited)


def cells_to_read(
    prepared: Prepared, zoom: Zoom = EVERY_CELL, room: int | None = None, *, each_token: bool = False
) -> GridReading:
    """Return the cells of a grid, at most `room` a side; with `each_token` a cell for each token, however many.

    Raises UsageError for a zoom outside the text, AttnctlError for more than limits.TABLE_WEIGHTS cells of single tokens.
    """
    source, heads = prepared.source, prepared.head_count
    zoom = zoom.with_rows_of_query(source.tokens)
    if zoom.pool not in (None, "mean", "max"):
        raise UsageError("it is mean or max", option="pool", value=zoom.pool)
    if zoom.spans is not None and zoom[:3] != (None, None, None):
        options = f"{option_name('rows')}, {option_name('columns')} and {option_name('pool')}"
        raise UsageError(f"cannot be combined with {options}: its cells are the shares of the parts", option="spans")
    if prepared.overview is not None:
        return _stored_grid(prepared.overview, source.name, zoom)
    if each_token and zoom.spans is None and zoom.rows is zoom.columns is None:
        _check_table(heads * len(source.tokens) * len(prepared.key_tokens))
    if zoom == EVERY_CELL and max(len(source.tokens), len(prepared.key_tokens)) <= LONG:
        return _single_tokens(prepared)
    if zoom.spans is not None:
        if prepared.key_tokens != source.tokens and numbers_in_text(source.tokens, prepared.key_tokens) is None:
            raise UsageError("names parts of one text, and here queries and keys are of two", option="spans")
        rows, columns = (parts_of(zoom.spans, source.text, axis) for axis in (source.tokens, prepared.key_tokens))
        return GridReading(rows, columns, "mass")
    size = SIZE if heads <= MANY else SIZE // 4
    if each_token:
        size = max(len(source.tokens), len(prepared.key_tokens))
    if room is not None:
        size = min(room, size) if heads <= MANY else 32
    name = 18 if heads == 1 or room is not None else 13  # number of characters of a name in a picture
    rows = zoom_cells(source.tokens, range(len(source.tokens)), zoom.rows, "rows", size, source.text, name)
    columns = zoom_cells(prepared.key_tokens, prepared.key_numbers, zoom.columns, "columns", size, source.text, name)
    if not columns:
        raise UsageError("dropping every key leaves nothing to show")
    if each_token:
        _check_table(heads * len(rows) * len(columns))
    return GridReading(rows, columns, zoom.pool or "mean")


def _check_table(cells: int) -> None:
    """Raise AttnctlError if a table has too many cells, a row each."""
    advice = (
        f"choose layers and heads, {option_name('rows')} and {option_name('columns')}, or {option_name('pool', 'mean')}"
    )
    if cells > limits.TABLE_WEIGHTS:
        raise AttnctlError(f"a table of {cells:,} weights has more than {limits.TABLE_WEIGHTS:,} rows: {advice}")
    limits.check_memory(5.0 * cells, f"a table of {cells:,} weights", advice)


def _single_tokens(prepared: Prepared) -> GridReading:
    """Return one cell for each query with known weights and each key, named by the token."""
    tokens, keys = prepared.source.tokens, prepared.key_tokens
    queries = range(len(tokens)) if prepared.source.held_rows is None else prepared.source.held_rows
    return GridReading(
        [TextPart(tokens[index].text, ((index, index + 1),)) for index in queries],
        [TextPart(token.text, ((index, index + 1),)) for index, token in enumerate(keys)],
    )


def _stored_grid(overview: Overview | LongRow, name: str, zoom: Zoom) -> GridReading:
    """Return the cells of an overview's grid that lie within `rows` and `columns`."""
    grid = overview.grid if isinstance(overview, Overview) else None
    if grid is None:
        raise AttnctlError(f"{name} holds no grid of weights: give the text and its model")
    if zoom.spans is not None:
        raise UsageError(f"cannot be combined with {name}: its cells are pooled already", option="spans")
    chosen = []
    for parts, tokens, spec, option in (
        (grid.rows, overview.tokens, zoom.rows, "rows"),
        (grid.columns, overview.key_axis, zoom.columns, "columns"),
    ):
        first, last = token_range(spec, len(tokens), option)
        chosen.append([part for part in parts if first <= part.first_token and part.ranges[-1][1] <= last])
    if not all(chosen):
        raise UsageError(f"no whole cell of {name} lies in these rows and columns")
    return GridReading(chosen[0], chosen[1], zoom.pool or grid.pool)


def zoom_cells(
    tokens: Sequence[Token], numbers: Sequence[int], spec: str | None, option: str, size: int, text: str, name: int = 18
) -> tuple[TextPart, ...]:
    """Return the tokens that `spec` names in at most `size` even cells; a name says where a cell begins, and its text.

    `numbers` are the numbers of the tokens in the text: they divide and name the cells.
    """
    first, last = token_range(spec, numbers[-1] + 1, option)
    cells = []
    for ((a, b),) in even_parts(first, last, size):
        a, b = bisect_left(numbers, a), bisect_left(numbers, b)
        if a < b:  # tokens without a text are named by their numbers
            named = part_snippet(tokens, a, b, text, name, numbers[a]) if text else str(numbers[a])
            named = tokens[a].text if tokens[a].seconds else named  # a frame is named by its start time
            cells.append(TextPart(named, ((a, b),)))
    return tuple(cells)
