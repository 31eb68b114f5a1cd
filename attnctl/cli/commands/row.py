"""`attnctl explain` on a long text: one exact row in the terminal, the strongest links as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnctl import limits
from attnctl.cli import arguments
from attnctl.cli.output import put_bytes, write_renderable
from attnctl.cli.progress import check_cost, cost_progress, heads_over_tokens
from attnctl.errors import AttnctlError, UsageError

if TYPE_CHECKING:
    from attnctl.cli.commands.explain import LongChoice
    from attnctl.readings.overview import LongRow, Overview, TextPart
    from attnctl.render.terminal.row import RowTable
    from attnctl.source import Source
    from attnctl.source.changes import Prepared

TOP = 10  # links of a query, unless told otherwise


def explain_long(given: Prepared, form: str, output: str | None, wanted: LongChoice) -> None:
    """Write what a long text comes to; `form` is as of explain. Raises AttnctlError where it would be too large."""
    from attnctl.tokens import find_several

    source = given.source
    if form == "npz":
        n, n_k = len(source.tokens), len(source.key_tokens)
        size = given.head_count * 12e-9 * n * n_k  # GB
        raise AttnctlError(
            f"a trace of {n:,} tokens and {given.head_count} heads is about {size:.1f} GB: write .json, the strongest "
            "links of each query, or see attnctl heatmap and attnctl heads"
        )
    kept = getattr(getattr(source, "overview", None), "query", None)  # the one query of a file that holds its row
    queries = [kept] if wanted.query is None else find_several(source.tokens, wanted.query)
    if form == "json":
        _write_json(given, queries, output, wanted)
        return
    from rich.console import Group

    shown = Group(*(_row_table(given, at, wanted) for at in queries))
    write_renderable(shown, form, output, "attnctl explain")


def _write_json(given: Prepared, queries: Sequence[int | None], output: str | None, wanted: LongChoice) -> None:
    """The strongest links of every query; where queries were named all of each one's row, one a line."""
    if queries == [None]:
        if wanted.spans is not None:
            raise UsageError("--spans sums up where one query looks: name it with --query")
        _write_row([_strongest_links(given, wanted.top or TOP)], output)
        return
    if wanted.top is not None or wanted.spans is not None:
        raise UsageError("--top and --spans sum up a row in words: with --json and --query all of it is written")
    if len(queries) > 1 and output not in (None, "-"):
        raise UsageError(f"-o {output}: a file of JSON holds one row: name one query, or write lines with --json")
    _write_row([_long_row(given, at) for at in queries], output)


def _row_table(given: Prepared, at: int | None, wanted: LongChoice) -> RowTable:
    """Where a query looks: its exact row, or its strongest links where a file holds no more of it."""
    from attnctl.readings.overview import Overview
    from attnctl.render.terminal.row import RowTable

    kept = getattr(given.source, "overview", None)
    if not isinstance(kept, Overview):
        parts = _parts(given.source, wanted.spans)
        return RowTable(_long_row(given, at), parts, wanted.top or TOP)
    if wanted.spans is not None:
        raise UsageError(
            f"--spans sums up a whole row, and {given.source.name} holds links: give the text and its model"
        )
    top = wanted.top or min(TOP, *(link.keys.shape[1] for link in kept.links.values()), TOP)
    return RowTable(_linked_row(given, at, top), top=top, whole=False)


def _linked_row(given: Prepared, at: int | None, top: int) -> LongRow:
    """The strongest links of a query as a row that is 0 elsewhere."""
    import numpy as np

    from attnctl.readings.grid import OverviewReading
    from attnctl.readings.links import LinksReading
    from attnctl.readings.overview import LongRow

    source = given.source
    found = given.read(OverviewReading(links=LinksReading(top)))
    at, said = _named_query(source, at)
    weights = {}
    for place, links in found.links.items():
        row = weights[place] = np.zeros(len(source.key_tokens), np.float32)  # (n_k,)
        row[links.keys[at]] = links.weights[at]
    arguments.say_notes((*said, *found.notes))
    return LongRow(source.text, source.tokens, source.key_tokens, source.info, at, weights, found.notes)


def _named_query(source: Source, at: int | None) -> tuple[int, tuple[str, ...]]:
    """The query that was named, or the last one, and what is to be said of it."""
    if at is not None:
        return at, ()
    n = len(source.tokens)
    said = f"there are {n:,} tokens: shown is where the last one looks (--query names another)"
    return n - 1 if source.held_rows is None else source.held_rows[-1], (said,)


def _parts(source: Source, spans: str | None) -> tuple[TextPart, ...]:
    from attnctl.readings.spans import parts_of, stand_in_text

    if spans is None and not stand_in_text(source.key_tokens):
        return ()
    return parts_of(spans or _natural_parts(source.text), source.text, source.key_tokens)


def _long_row(given: Prepared, at: int | None) -> LongRow:
    from attnctl.readings.rows import RowReading

    source = given.source
    at, said = _named_query(source, at)
    with cost_progress(heads_over_tokens(len(source.tokens), given.head_count)) as tick:
        row = given.read(RowReading(at), tick)
    arguments.say_notes((*said, *row.notes))
    return row


def _strongest_links(given: Prepared, top: int) -> Overview:
    """The strongest links of each query, and of a run the statistics of its heads: its file may be asked for both again."""
    from attnctl.readings.grid import OverviewReading
    from attnctl.readings.head_statistics import HeadStatisticsReading
    from attnctl.readings.links import LinksReading

    source = given.source
    n = len(source.tokens)
    size = 16.0 * given.head_count * n * min(top, len(source.key_tokens))
    if size > limits.ROWS_JSON_BYTES:
        raise AttnctlError(
            f"the {top} strongest links of {n:,} tokens in {given.head_count} heads are about {size / 1e9:.1f} GB of JSON: "
            "choose with --layer, --head or --query, or fewer with --top"
        )
    check_cost(source, given.head_count)
    kept = getattr(source, "overview", None)
    asks = not given.left_out and (kept is None or bool(getattr(kept, "head_statistics", ())))
    statistics = HeadStatisticsReading(source.tokens, source.key_tokens) if asks else None
    with cost_progress(heads_over_tokens(n, given.head_count)) as tick:
        found = given.read(OverviewReading(statistics=statistics, links=LinksReading(top)), tick)
    arguments.say_notes(found.notes)
    return found


def _natural_parts(text: str) -> str:
    """The parts a text falls into by itself: paragraphs where blank lines part it in a few, lines where not."""
    paragraphs = text.count("\n\n")
    return "paragraphs" if 1 <= paragraphs <= 150 or text.count("\n") > 150 else "lines"


def _write_row(found: Sequence[Overview | LongRow], output: str | None) -> None:
    from attnctl.formats.documents.overview_json import overview_to_json

    put_bytes(b"".join(overview_to_json(one) + b"\n" for one in found), output)
