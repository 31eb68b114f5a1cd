"""Leaks between the segments of a batch as tables and a figure of segment × segment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from attnctl.commands.leaks.result import LeakPair, Leaks, headline, segment_name, sentences
from attnctl.render.forms import Column, Form, Line, Table
from attnctl.text import number_list

if TYPE_CHECKING:
    from attnctl.render.figure.layout import Drawing

MOST, WIDEST = 12, 12  # sentences, and segments of a row in a table


def leaks_forms(found: Leaks) -> Iterator[Form]:
    """What was measured, what is wrong, and how each pair stands."""
    yield Line(headline(found), "bold")
    yield from (Line(sentence, indent=2, hanging=2, mark="✗ ") for sentence in sentences(found)[:MOST])
    if len(found.wrong) > MOST:
        yield f"  … {len(found.wrong) - MOST} more: all are in JSON"
    rows = sorted({found.segments[pair.query].row for pair in found.wrong}) or [0]
    for row in rows[:3]:
        pairs = [pair for pair in found.pairs if found.segments[pair.query].row == row]
        if len({pair.key for pair in pairs}) <= WIDEST:
            yield from row_tables(found, pairs, f", row {row} of the batch" * (found.segments[-1].row > 0))
    yield ""
    noise = "the same to the last bit" if not found.floor else f"up to {found.floor:.1e} apart"
    yield Line(
        f"The diagonal is a segment's own future. Two runs of the same input are {noise}; changes of {found.outputs} by "
        f"up to {found.limit:.1e} are rounding.",
        "dim",
    )


def row_tables(found: Leaks, pairs: Sequence[LeakPair], where: str) -> Iterator[Form]:
    """The tables of one row of the batch: what may be seen, what is, and what it moves."""
    for at, group in enumerate(found.layers):
        layers = f"layer{'s' * (len(group) > 1)} {number_list(group)}" if len(found.layers) > 1 else "every layer"
        yield from _table(
            found, pairs, f"may: share of pairs visible, {layers}{where}", [one.visible[at] for one in pairs], True
        )
    if found.layers:
        yield from _table(found, pairs, f"does: largest weight of a token{where}", [one.largest for one in pairs], True)
    title = f"matters: largest change of {found.outputs}{where}"
    yield from _table(found, pairs, title, [one.change for one in pairs], False)


def _table(
    found: Leaks, pairs: Sequence[LeakPair], title: str, values: Sequence[float | None], shares: bool
) -> Iterator[Form]:
    """Numbers of pairs as a table, a row a segment that looks, on the diagonal those of its own future."""
    queries, keys = dict.fromkeys(pair.query for pair in pairs), dict.fromkeys(pair.key for pair in pairs)
    of_pair = {(pair.query, pair.key): value for pair, value in zip(pairs, values, strict=True)}
    top = 1.0 if shares else max([found.limit, *(value or 0 for value in values)])
    yield ""
    yield Line(title, "accent")
    columns = [Column("looks ↓ at →", [segment_name(found, query) for query in queries], "text")]
    for key in keys:
        own = [of_pair[query, key] for query in queries]
        shade = [None if value is None else value / top for value in own]
        columns.append(Column(segment_name(found, key), own, "heat", format=_number, shade=shade))
    yield Table(columns, indent=2)


def _number(value: float) -> str:
    return "0" if value == 0 else f"{value:.2f}" if value >= 0.005 else f"{value:.0e}"


def leaks_drawing(found: Leaks) -> Drawing:
    """Segment × segment: what may be seen, what is, and what it moves; on the diagonal a segment's own future."""
    from matplotlib.colors import Normalize

    from attnctl.formats.pictures import CMAP
    from attnctl.render.figure.heatmap import colour_map, drawing_of
    from attnctl.render.figure.layout import Grids, Panel, Scale

    queries, keys = (
        tuple(dict.fromkeys(which)) for which in zip(*((one.query, one.key) for one in found.pairs), strict=True)
    )
    arrays = np.zeros((3, len(queries), len(keys)), np.float32)
    there = np.zeros((len(queries), len(keys)), np.bool_)
    for pair in found.pairs:
        at = queries.index(pair.query), keys.index(pair.key)
        there[at], arrays[:, *at] = True, (max(pair.visible, default=0), pair.largest or 0, pair.change or 0)
    scales = (
        Scale(Normalize(0, 1), colour_map(CMAP), "share"),
        Scale(Normalize(0, max(float(arrays[2].max()), found.limit)), colour_map(CMAP), f"change of {found.outputs}"),
    )
    told = ("may: share of pairs visible", "does: largest weight"), f"matters: change of {found.outputs}"
    panels = [Panel(0, at, name, arrays[at], there) for at, name in enumerate(told[0] if found.layers else ())]
    panels.append(Panel(0, len(panels), told[1], arrays[2], there, scale=1))
    grids = Grids(
        panels=tuple(panels),
        rows=tuple(segment_name(found, at) for at in queries),
        columns=tuple(segment_name(found, at) for at in keys),
        scales=scales,
        title=headline(found),
        notes=("on the diagonal: a segment's own future",),
        axes=("segment that looks", "segment that is seen"),
        hidden="in another row of the batch",
        cited=found.model.citation,
    )
    return drawing_of(grids)
