"""What is read of a prepared source beside a trace: its cells, single or pooled; of a long text rows, links and blocks."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attnctl import limits
from attnctl.blockwise import even_parts
from attnctl.errors import AttnctlError, UsageError, option_name
from attnctl.readings.heatmap import GridReading, HeatmapGrid, OverviewReading, of_overview
from attnctl.readings.overview import LongRow, Overview, TextPart, part_snippet
from attnctl.readings.questions.headline import headline
from attnctl.readings.rows import BlocksReading, ExactBlock, LinksReading, RowReading, telling_blocks
from attnctl.readings.spans import parts_of, stand_in_text
from attnctl.readings.statistics_reading import HeadStatisticsReading
from attnctl.selection import selected_indices, token_range
from attnctl.source import Changes, OverviewSource, Prepared, Say, Source, TraceSource, is_long, prepare
from attnctl.text import counted, duration_text
from attnctl.tokens import Token
from attnctl.trace import Trace, own_numbers
from attnctl.trace.model_info import ModelInfo

if TYPE_CHECKING:
    from attnctl.blockwise import Tick


SIZE = 256  # cells a side of an overview
MANY = 4  # heads, beyond which each is drawn small


class Zoom(NamedTuple):
    """Which part of a text is looked at, and how."""

    rows: str | None = None
    columns: str | None = None
    pool: str | None = None
    spans: str | None = None


EVERY_CELL = Zoom()


def heatmap_grid(given: Prepared, cells: Overview) -> HeatmapGrid:
    """The cells of what was prepared, as they are shown."""
    return of_overview(cells, given.done, given.source.measure, given.key_numbers)


class Evolution(NamedTuple):
    """One head over training: its weights at each kept step of a run, and what run and head are called."""

    readings: Sequence[HeatmapGrid]
    steps: Sequence[int]
    name: str


def evolution_of_run(
    steps: Iterable[Source],
    labels: Mapping[int, str],
    folder: str,
    changes: Changes,
    layer: str | None,
    head: str | None,
    say: Say | None = None,
) -> Evolution:
    """One head at every kept step of a run, the most telling one of those chosen. Raises UsageError for one not there."""
    traces = [prepare(step, changes, range(step.counts[0]), say=say).trace(predictions=False) for step in steps]
    info = traces[-1].model
    layers = selected_indices(layer, info.n_layers or 1, "layer", folder)
    heads = selected_indices(head, info.n_heads or 1, "head", folder)
    best = headline(traces[-1], layer=layers[0] if layers else None, head=heads[0] if heads else None)
    assert best is not None
    name = Path(os.path.realpath(folder)).name + (f", layer {best.layer}" if (info.n_layers or 1) > 1 else "")
    readings = [read_heatmap(trace, layers=[best.layer], heads=[best.head]) for trace in traces]
    return Evolution(readings, list(labels), f"{name}, head {best.head}")


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
        raise UsageError("it is mean or max", option="pool", value=zoom.pool)
    if zoom.spans is not None and zoom[:3] != (None, None, None):
        others = f"{option_name('rows')}, {option_name('columns')} and {option_name('pool')}"
        raise UsageError(f"goes without {others}: its cells are the parts' shares", option="spans")
    if isinstance(source, OverviewSource):
        return _kept_grid(source, zoom)
    if zoom == EVERY_CELL and not is_long(source):
        return _single_tokens(source)
    if zoom.spans is not None:
        if source.key_tokens != source.tokens and own_numbers(source.tokens, source.key_tokens) is None:
            raise UsageError("names parts of one text, and here queries and keys are of two", option="spans")
        rows, columns = (parts_of(zoom.spans, source.text, axis) for axis in (source.tokens, source.key_tokens))
        return GridReading(rows, columns, "mass")
    size = SIZE if heads <= MANY else SIZE // 4
    if room is not None:
        size = min(room, size) if heads <= MANY else 32
    name = 18 if heads == 1 or room is not None else 13  # characters, as many as a picture writes
    rows = zoom_cells(source.tokens, range(len(source.tokens)), zoom.rows, "rows", size, source.text, name)
    columns = zoom_cells(source.key_tokens, given.key_numbers, zoom.columns, "columns", size, source.text, name)
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
    """Return the cells that an overview holds, of them those within `rows` and `columns`."""
    grid = source.overview.grid if isinstance(source.overview, Overview) else None
    if grid is None:
        raise AttnctlError(f"{source.name} holds no grid of weights: give the text and its model")
    if zoom.spans is not None:
        raise UsageError(f"does not go with {source.name}: its cells are pooled already", option="spans")
    kept = []
    for parts, tokens, spec, option in (
        (grid.rows, source.tokens, zoom.rows, "rows"),
        (grid.columns, source.key_tokens, zoom.columns, "columns"),
    ):
        first, last = token_range(spec, len(tokens), option)
        kept.append([part for part in parts if first <= part.first_token and part.ranges[-1][1] <= last])
    if not all(kept):
        raise UsageError(f"no whole cell of {source.name} lies in these rows and columns")
    return GridReading(kept[0], kept[1], zoom.pool or grid.pool)


def zoom_cells(
    tokens: Sequence[Token], numbers: Sequence[int], spec: str | None, option: str, size: int, text: str, name: int = 18
) -> tuple[TextPart, ...]:
    """Return the tokens that `spec` names in at most `size` even cells, each named by where and how it begins.

    `numbers` are those of the tokens in the text, by which they are named and divided.
    """
    first, last = token_range(spec, numbers[-1] + 1, option)
    found = []
    for ((a, b),) in even_parts(first, last, size):
        a, b = bisect_left(numbers, a), bisect_left(numbers, b)
        if a < b:  # tokens of no text are named by their numbers
            named = part_snippet(tokens, a, b, text, name, numbers[a]) if text else str(numbers[a])
            named = tokens[a].text if tokens[a].seconds else named  # a frame is called by when it begins
            found.append(TextPart(named, ((a, b),)))
    return tuple(found)


# --- rows and links of a long text -------------------------------------------------------------------------------

TOP = 10  # links of a query, unless told otherwise
PAGE_LINKS = 3  # keys kept for each query on a page
SURVEY_SWEEPS = 3  # over a long text for its page: the grid, its links, the rows of the blocks, about one sweep each


def own_parts(source: Source, spans: str | None) -> tuple[TextPart, ...]:
    """The parts of the keys' text that `spans` names; None: those into which a text falls by itself."""
    if spans is None and stand_in_text(source.key_tokens):
        breaks = source.text.count("\n\n")
        spans = "paragraphs" if 1 <= breaks <= 150 or source.text.count("\n") > 150 else "lines"
    return () if spans is None else parts_of(spans, source.text, source.key_tokens)


def named_query(given: Prepared, at: int | None) -> tuple[int, tuple[str, ...]]:
    """The query that was named, or the last one, and what is to be said of it."""
    if at is not None:
        return at, ()
    n, held = len(given.source.tokens), given.source.held_rows
    said = f"there are {n:,} tokens: shown is where the last one looks ({option_name('query')} names another)"
    return n - 1 if held is None else held[-1], (said,)


def query_row(given: Prepared, query: int, links: int | None = None, tick: Tick | None = None) -> LongRow:
    """The exact row of a query; with `links` so many of its strongest links, in a row that is 0 elsewhere."""
    if links is None:
        return given.read(RowReading(query), tick)
    source, found = given.source, given.read(OverviewReading(links=LinksReading(links)), tick)
    weights = {}
    for place, kept in found.links.items():
        row = weights[place] = np.zeros(len(source.key_tokens), np.float32)  # (n_k,)
        row[kept.keys[query]] = kept.weights[query]
    return LongRow(source.text, source.tokens, source.key_tokens, source.info, query, weights, found.notes)


def check_links(given: Prepared, top: int) -> None:
    """Raise AttnctlError where the `top` strongest links of each query are too much to write."""
    n = len(given.source.tokens)
    size = 16.0 * given.head_count * n * min(top, len(given.source.key_tokens))
    if size > limits.ROWS_JSON_BYTES:
        raise AttnctlError(
            f"the {top} strongest links of {n:,} tokens in {given.head_count} heads are about {size / 1e9:.1f} GB of JSON: "
            "choose layers, heads or a query, or fewer links"
        )


def read_strongest_links(given: Prepared, top: int, tick: Tick | None = None) -> Overview:
    """The strongest links of each query, and of a run the statistics of its heads: its file may be asked for both again."""
    source = given.source
    kept = getattr(source, "overview", None)
    asks = not given.left_out and (kept is None or bool(getattr(kept, "head_statistics", ())))
    statistics = HeadStatisticsReading(source.tokens, source.key_tokens) if asks else None
    return given.read(OverviewReading(statistics=statistics, links=LinksReading(top)), tick)


def survey_text(given: Prepared) -> tuple[Overview, list[ExactBlock]]:
    """The overview of a long text with its strongest links, and the blocks around them, exactly: two readings."""
    source = given.source
    parts = zoom_cells(source.tokens, range(len(source.tokens)), None, "rows", SIZE, source.text)
    columns = parts
    if source.key_tokens != source.tokens:
        columns = zoom_cells(source.key_tokens, given.key_numbers, None, "columns", SIZE, "")
    overview = given.read(OverviewReading(GridReading(parts, columns, "mass"), links=LinksReading(PAGE_LINKS)))
    blocks = telling_blocks(overview)
    found = given.read(BlocksReading(blocks))
    exact = [
        ExactBlock(at_layer, at_head, block[:2], block[2:], *arrays)
        for (at_layer, at_head), grids in found.items()
        for block, arrays in zip(blocks, grids, strict=True)
    ]
    return overview, exact


# --- what long work takes ----------------------------------------------------------------------------------------

PAIRS_A_SECOND = 2e8  # weights swept by one thread
PRODUCTS_A_SECOND = 2e10  # multiplications with an addition in the other layers of a network, by one thread
TOLD_SECONDS = 20.0  # from which on the cost is told beforehand
CUT_BYTES = 12  # a pair of tokens, of a pass with cut edges: its mask and what is made of it
LESS_HEADS = "fewer layers or heads take less"


def cost_of_heads(source: Source, heads: int, sweeps: int = 1) -> str | None:
    """What so many heads of a text through a model will take, in so many sweeps; None where that is little.

    Raises AttnctlError where memory will not do.
    """
    if not hasattr(source, "model"):
        return None
    info, n = source.info, len(source.tokens)
    d_k, d_model, every = info.d_k or 64, info.d_model or 64, info.n_heads or 1
    # queries, keys, values and their copies; the stream with its layers; each thread's masses
    need = 4.0 * n * (8 * every * d_k + 12 * d_model + 2 * (os.cpu_count() or 1) * SIZE)
    limits.check_memory(need, f"a text of {n:,} tokens", "shorten it, or cut it into parts")
    seconds = _pass_seconds(info, n, sweeps * heads)
    return _cost_told(f"{counted(heads, 'head')} over {n:,} tokens", seconds, info, need, LESS_HEADS)


def cost_of_passes(info: ModelInfo, n: int, passes: int, *, cuts: bool, fewer: str = LESS_HEADS) -> str | None:
    """What so many passes over n tokens will take; None where that is little. A pass with `cuts` holds its mask.

    `fewer` says what takes fewer. Raises AttnctlError where memory will not do.
    """
    need = CUT_BYTES * float(n) ** 2 if cuts else 0.0
    limits.check_memory(need, f"cutting edges of {n:,} tokens", "shorten the text")
    seconds = passes * _pass_seconds(info, n, (info.n_layers or 1) * (info.n_heads or 1))
    return _cost_told(f"{passes:,} passes over {n:,} tokens", seconds, info, need, fewer)


def _pass_seconds(info: ModelInfo, n: int, heads: int) -> float:
    """What one pass takes on the CPU: n × n weights of so many heads swept, and the rest of the network.

    Beside its attention a layer has about 12 d_model² weights: 4 in W_Q to W_O, 8 in an MLP.
    """
    threads = os.cpu_count() or 1
    sweep = heads * float(n) ** 2 * (0.5 if info.causal else 1.0) / (PAIRS_A_SECOND * threads)
    return sweep + 12.0 * (info.d_model or 64) ** 2 * (info.n_layers or 1) * n / (PRODUCTS_A_SECOND * threads)


def _cost_told(what: str, seconds: float, info: ModelInfo, need: float, fewer: str) -> str | None:
    if info.device != "cpu" or seconds <= TOLD_SECONDS:
        return None
    memory = f" and {limits.bytes_text(need)}" if need else ""
    return f"{what}: about {duration_text(seconds)}{memory} on the CPU ({fewer})"
