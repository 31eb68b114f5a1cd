"""Read where the queries of a long text look: one exact row, the strongest links, the blocks around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from attnctl.checks import limits
from attnctl.errors import AttnctlError, option_name
from attnctl.readings.heatmap import GridReading, OverviewReading
from attnctl.readings.overview import LongRow, Overview, TextPart
from attnctl.readings.rows import BlocksReading, ExactBlock, LinksReading, RowReading, telling_blocks
from attnctl.readings.spans import parts_of, stand_in_text
from attnctl.readings.statistics_reading import HeadStatisticsReading
from attnctl.source.prepared import Prepared
from attnctl.source.zoom import SIZE, zoom_cells

if TYPE_CHECKING:
    from attnctl.blockwise import Tick

TOP_LINKS = 10  # links of a query, by default
PAGE_LINKS = 3  # keys stored for each query on a page


def parts_of_keys(prepared: Prepared, spans: str | None) -> tuple[TextPart, ...]:
    """Return the parts of the keys' text that `spans` names; None: paragraphs or lines, whichever the text has."""
    text, keys = prepared.source.text, prepared.key_tokens
    if spans is None and stand_in_text(keys):
        breaks = text.count("\n\n")
        spans = "paragraphs" if 1 <= breaks <= 150 or text.count("\n") > 150 else "lines"
    return () if spans is None else parts_of(spans, text, keys)


def named_query(prepared: Prepared, query: int | None) -> tuple[int, tuple[str, ...]]:
    """Return the named query, without a note; or the last query, with a note that says so."""
    if query is not None:
        return query, ()
    n, rows = len(prepared.source.tokens), prepared.source.held_rows
    note = f"there are {n:,} tokens: shown is where the last one looks ({option_name('query')} names another)"
    return n - 1 if rows is None else rows[-1], (note,)


def query_row(prepared: Prepared, query: int, links: int | None = None, tick: Tick | None = None) -> LongRow:
    """Return the exact row of a query.

    With `links`, return the query's strongest links only: the row is 0 elsewhere.
    """
    if links is None:
        return prepared.read(RowReading(query), tick)
    strongest = prepared.read(OverviewReading(links=LinksReading(links)), tick)
    weights = {}
    for place, head_links in strongest.links.items():
        row = weights[place] = np.zeros(len(prepared.key_tokens), np.float32)  # (n_k,)
        row[head_links.keys[query]] = head_links.weights[query]
    return LongRow(strongest.subject, query, weights)


def query_rows(prepared: Prepared, queries: Sequence[int]) -> Overview:
    """Return the exact rows of several queries, in their order: a grid with a column for each key."""
    tokens, keys = prepared.source.tokens, prepared.key_tokens
    rows = [TextPart(name=tokens[query].text, ranges=((query, query + 1),)) for query in queries]
    columns = [TextPart(name=key.text, ranges=((place, place + 1),)) for place, key in enumerate(keys)]
    return prepared.read(OverviewReading(GridReading(rows, columns)))


def check_links(prepared: Prepared, top: int) -> None:
    """Raise AttnctlError if the `top` strongest links of each query are too much JSON to write."""
    n = len(prepared.source.tokens)
    size = 16.0 * prepared.head_count * n * min(top, len(prepared.key_tokens))
    if size > limits.ROWS_JSON_BYTES:
        raise AttnctlError(
            f"the {top} strongest links of {n:,} tokens in {prepared.head_count} heads are about {size / 1e9:.1f} GB "
            "of JSON: choose layers, heads or a query, or fewer links"
        )


def read_strongest_links(prepared: Prepared, top: int, tick: Tick | None = None) -> Overview:
    """Return the strongest links of each query, and the statistics of the heads if they can be known.

    A file keeps both.
    """
    overview = prepared.overview
    asks = not prepared.left_out and (
        overview is None or (isinstance(overview, Overview) and bool(overview.head_statistics))
    )
    statistics = HeadStatisticsReading(prepared.source.tokens, prepared.key_tokens) if asks else None
    return prepared.read(OverviewReading(statistics=statistics, links=LinksReading(top)), tick)


def survey_text(prepared: Prepared) -> tuple[Overview, list[ExactBlock]]:
    """Return the overview of a long text with its strongest links, and exact blocks around them.

    The source is read twice.
    """
    source = prepared.source
    parts = zoom_cells(source.tokens, range(len(source.tokens)), None, "rows", SIZE, source.text)
    columns = parts
    if prepared.key_tokens != source.tokens:
        columns = zoom_cells(prepared.key_tokens, prepared.key_numbers, None, "columns", SIZE, "")
    overview = prepared.read(OverviewReading(GridReading(parts, columns, "mass"), links=LinksReading(PAGE_LINKS)))
    blocks = telling_blocks(overview)
    by_head = prepared.read(BlocksReading(blocks))
    exact = [
        ExactBlock(at_layer, at_head, block[:2], block[2:], *arrays)
        for (at_layer, at_head), grids in by_head.items()
        for block, arrays in zip(blocks, grids, strict=True)
    ]
    return overview, exact
