"""Which cells a grid of weights has: every token of a short text, cells of a long one, a part of it, or named spans."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from attnctl.cli.inputs.sources import is_long
from attnctl.errors import UsageError

if TYPE_CHECKING:
    from attnctl.readings.grid import GridReading
    from attnctl.readings.overview import TextPart
    from attnctl.source import Source
    from attnctl.source.stored import OverviewSource
    from attnctl.tokens import Token

SIZE = 256  # cells a side of an overview
MANY = 4  # heads, beyond which each is drawn small


class Zoom(NamedTuple):
    """Which part of a text is looked at, and how."""

    rows: str | None = None
    columns: str | None = None
    pool: str | None = None
    spans: str | None = None


def grid_of(
    source: Source, zoom: Zoom, out: Sequence[int] = (), heads: int = 1, room: int | None = None
) -> GridReading:
    """The cells of a source's grid without the keys `out`: at most `room` a side where so many heads are drawn.

    Raises UsageError for a zoom that is not there.
    """
    from attnctl.readings.grid import GridReading
    from attnctl.source.stored import OverviewSource

    _check_zoom(zoom)
    if isinstance(source, OverviewSource):
        return _kept_grid(source, zoom, out)
    if zoom == Zoom() and not is_long(source):
        held = range(len(source.tokens)) if source.held_rows is None else source.held_rows
        kept = (j for j in range(len(source.key_tokens)) if j not in set(out))
        return GridReading(_single_parts(source.tokens, held), _single_parts(source.key_tokens, kept))
    if zoom.spans is not None:
        rows, columns = _span_parts(source, zoom.spans)
    else:
        size = SIZE if heads <= MANY else SIZE // 4
        if room is not None:
            size = min(room, size) if heads <= MANY else 32
        name = 18 if heads == 1 or room is not None else 13  # characters, as many as a picture writes
        rows = zoom_cells(source.tokens, zoom.rows, "--rows", size, source.text, name)
        columns = zoom_cells(source.key_tokens, zoom.columns, "--columns", size, source.text, name)
    left = tuple(part for part in (without_tokens(part, out) for part in columns) if part is not None)
    if not left:
        raise UsageError("dropping every key leaves nothing to show")
    return GridReading(rows, left, "mass" if zoom.spans is not None else zoom.pool or "mean")


def _check_zoom(zoom: Zoom) -> None:
    if zoom.pool not in (None, "mean", "max"):
        raise UsageError(f"--pool {zoom.pool}: it is mean or max")
    if zoom.spans is not None and zoom[:3] != (None, None, None):
        raise UsageError("--spans goes without --rows, --columns and --pool: its cells are the parts' shares")


def _single_parts(tokens: Sequence[Token], indices: Iterable[int]) -> tuple[TextPart, ...]:
    """Each of these tokens as a part, by its own name."""
    from attnctl.readings.overview import TextPart

    return tuple(TextPart(tokens[at].text, ((at, at + 1),)) for at in indices)


def _span_parts(source: Source, spans: str) -> tuple[tuple[TextPart, ...], tuple[TextPart, ...]]:
    from attnctl.readings.spans import parts_of

    if source.key_tokens != source.tokens:
        raise UsageError("--spans are parts of one text, and here queries and keys are of two")
    parts = parts_of(spans, source.text, source.tokens)
    return parts, parts


def _kept_grid(source: OverviewSource, zoom: Zoom, out: Sequence[int]) -> GridReading:
    """The cells that an overview holds, those within --rows and --columns."""
    from attnctl.errors import AttnctlError
    from attnctl.readings.grid import GridReading
    from attnctl.readings.overview import Overview
    from attnctl.selection import token_range

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
    gone = [part for part in kept[1] if without_tokens(part, out) != part]
    if any(part.token_count > 1 for part in gone):
        raise UsageError(f"--drop does not go with {source.name}: the key is pooled with others already")
    columns = [part for part in kept[1] if part not in gone]
    if not kept[0] or not columns:
        raise UsageError(f"no whole cell of {source.name} lies in --rows and --columns")
    return GridReading(kept[0], columns, zoom.pool or grid.pool)


def without_tokens(part: TextPart, out: Sequence[int]) -> TextPart | None:
    """The part with the tokens `out` left out; None where nothing is left."""
    from attnctl.readings.overview import TextPart

    ranges = []
    for a, b in part.ranges:
        edges = [a, *(at for token in out if a <= token < b for at in (token, token + 1)), b]
        ranges += [(x, y) for x, y in zip(edges[::2], edges[1::2], strict=True) if x < y]
    return TextPart(part.name, tuple(ranges)) if ranges else None


def zoom_cells(
    tokens: Sequence[Token], spec: str | None, option: str, size: int, text: str, name: int = 18
) -> tuple[TextPart, ...]:
    """The tokens that --rows or --columns names in at most `size` even cells, each named by where and how it begins."""
    from attnctl.blockwise import even_parts
    from attnctl.readings.overview import TextPart, part_snippet
    from attnctl.selection import token_range

    first, last = token_range(spec, len(tokens), option)
    found = [(a, b) for ((a, b),) in even_parts(first, last, size)]
    # tokens of no text are named by their numbers
    return tuple(TextPart(part_snippet(tokens, a, b, text, name) if text else str(a), ((a, b),)) for a, b in found)
