"""Show the leaks between the segments of a batch, as tables and as a figure of segment × segment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from attnctl.commands.leaks.result import LeakPair, Leaks, headline, segment_name, sentences
from attnctl.render import Column, Form, Line, Table
from attnctl.text import number_list

if TYPE_CHECKING:
    from attnctl.render import Panels

MAX_SENTENCES, MAX_COLUMNS = 12, 12


def leaks_forms(leaks: Leaks) -> Iterator[Form]:
    """Return what was measured, what is wrong, and a table of every pair."""
    yield Line(headline(leaks), "bold")
    yield from (Line(sentence, indent=2, hanging=2, mark="✗ ") for sentence in sentences(leaks)[:MAX_SENTENCES])
    if len(leaks.wrong) > MAX_SENTENCES:
        yield f"  … {len(leaks.wrong) - MAX_SENTENCES} more: --json has them all"
    rows = sorted({leaks.segments[pair.query].row for pair in leaks.wrong}) or [0]
    for row in rows[:3]:
        pairs = [pair for pair in leaks.pairs if leaks.segments[pair.query].row == row]
        if len({pair.key for pair in pairs}) <= MAX_COLUMNS:
            yield from row_tables(leaks, pairs, f", row {row} of the batch" * (leaks.segments[-1].row > 0))
    yield ""
    noise = "the same to the last bit" if not leaks.floor else f"up to {leaks.floor:.1e} apart"
    yield Line(
        f"The diagonal is a segment's own future. Two runs of the same input are {noise}; changes of {leaks.outputs} by "
        f"up to {leaks.limit:.1e} are rounding.",
        "dim",
    )


def row_tables(leaks: Leaks, pairs: Sequence[LeakPair], where: str) -> Iterator[Form]:
    """Return the tables of one row of the batch: which segments may see each other, which do, and how far outputs move."""
    for index, group in enumerate(leaks.layers):
        layers = f"layer{'s' * (len(group) > 1)} {number_list(group)}" if len(leaks.layers) > 1 else "every layer"
        yield from _table(
            leaks, pairs, f"may: share of pairs visible, {layers}{where}", [pair.visible[index] for pair in pairs], True
        )
    if leaks.layers:
        yield from _table(
            leaks, pairs, f"does: largest weight of a token{where}", [pair.largest for pair in pairs], True
        )
    title = f"matters: largest change of {leaks.outputs}{where}"
    yield from _table(leaks, pairs, title, [pair.change for pair in pairs], False)


def _table(
    leaks: Leaks, pairs: Sequence[LeakPair], title: str, values: Sequence[float | None], shares: bool
) -> Iterator[Form]:
    """Return a table of numbers of pairs: a row for each segment that looks; the diagonal is a segment's own future."""
    queries, keys = dict.fromkeys(pair.query for pair in pairs), dict.fromkeys(pair.key for pair in pairs)
    of_pair = {(pair.query, pair.key): value for pair, value in zip(pairs, values, strict=True)}
    top = 1.0 if shares else max([leaks.limit, *(value or 0 for value in values)])
    yield ""
    yield Line(title, "accent")
    columns = [Column("looks ↓ at →", [segment_name(leaks, query) for query in queries], "text")]
    for key in keys:
        column = [of_pair[query, key] for query in queries]
        shade = [None if value is None else value / top for value in column]
        columns.append(Column(segment_name(leaks, key), column, "heat", format=_number, shade=shade))
    yield Table(columns, indent=2)


def _number(value: float) -> str:
    return "0" if value == 0 else f"{value:.2f}" if value >= 0.005 else f"{value:.0e}"


def leaks_panels(leaks: Leaks) -> Panels:
    """Return a picture of segment × segment: who may see whom, who does, how far outputs move.

    The diagonal is a segment's own future.
    """
    from matplotlib.colors import Normalize

    from attnctl.formats import CMAP
    from attnctl.render import Panel, Panels, Scale, colour_map

    queries, keys = (
        tuple(dict.fromkeys(ids)) for ids in zip(*((pair.query, pair.key) for pair in leaks.pairs), strict=True)
    )
    arrays = np.zeros((3, len(queries), len(keys)), np.float32)
    measured = np.zeros((len(queries), len(keys)), np.bool_)
    for pair in leaks.pairs:
        cell = queries.index(pair.query), keys.index(pair.key)
        measured[cell], arrays[:, *cell] = True, (max(pair.visible, default=0), pair.largest or 0, pair.change or 0)
    scales = (
        Scale(Normalize(0, 1), colour_map(CMAP), "share"),
        Scale(Normalize(0, max(float(arrays[2].max()), leaks.limit)), colour_map(CMAP), f"change of {leaks.outputs}"),
    )
    titles = ("may: share of pairs visible", "does: largest weight"), f"matters: change of {leaks.outputs}"
    panels = [
        Panel(0, cell, name, arrays[cell], measured, breaks=True)
        for cell, name in enumerate(titles[0] if leaks.layers else ())
    ]
    panels.append(Panel(0, len(panels), titles[1], arrays[2], measured, scale=1, breaks=True))
    return Panels(
        panels=tuple(panels),
        rows=tuple(segment_name(leaks, cell) for cell in queries),
        columns=tuple(segment_name(leaks, cell) for cell in keys),
        scales=scales,
        title=headline(leaks),
        notes=("on the diagonal: a segment's own future",),
        axes=("segment that looks", "segment that is seen"),
        hidden="in another row of the batch",
        cited=leaks.model.citation,
    )
