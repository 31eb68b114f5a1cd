"""Sweep over the keys of a long text a block at a time: the n × n weights are never in memory.

The scaled scores of every query on one block of keys fit in a buffer of fixed size. Their logsumexp is what each query
would give the block before normalisation; the logsumexps of blocks add up to that of the row (Milakov and Gimelshein
2018, Rabe and Staats 2021), and means over blocks combine by their shares. So one pass over the keys gives exact
results: the mass of each row on given bins of keys, its entropy, the mean and spread of its distance, its mass on
marked keys.

Blocks have the keys first, (heads, keys, rows): sums over keys then run along whole rows of memory.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import groupby
from threading import Event
from typing import NamedTuple, TypeVar

import numpy as np
import torch

from attnctl import attention
from attnctl.attention import Array, Call
from attnctl.blockwise import (
    FLOOR,
    LOG2_E,
    Parts,
    Ranges,
    RowStatistics,
    Tick,
    cut_call,
    joined_bins,
    neighbouring_edges,
)
from attnctl.blockwise.row_tally import Rows, row_fields, share_with_sinks
from attnctl.blockwise.tiles import (
    FUSED_MARKS,
    HeadGroup,
    as_torch,
    is_fusible,
    open_group,
    row_tiles,
    shaped_buffer,
)
from attnctl.runtime.arrays import as_numpy, one_thread

Result = TypeVar("Result")


class BlockSize(NamedTuple):
    """How many keys a block has at most, and how many numbers each of its two buffers holds."""

    keys: int
    elements: int


SHARED = BlockSize(128, 1 << 21)  # in the cache that a CPU's cores share: few operations, for all heads together
LOCAL = BlockSize(512, 1 << 18)  # in the cache of one core
LONG = 4096  # queries from which an operation on a part of one head takes longer than its call
ON_DEVICE = BlockSize(512, 1 << 26)

MOST_RUNS = 4  # of bins of one width in a block, to be added run by run
BINS = 16  # in a block at most, if bins are narrow: to sum many bins takes longer than a second block


def map_groups(work: Callable[[range], Result], groups: Sequence[range], stop: Event) -> list[Result]:
    """Return the results of `work` on every group of heads.

    On a CPU each thread takes its own groups; an interruption sets `stop`, so that they end early.
    """
    threads = torch.get_num_threads()
    if len(groups) < threads or threads == 1:
        return [work(heads) for heads in groups]

    with one_thread(), ThreadPoolExecutor(threads) as pool:
        try:
            return list(pool.map(torch.inference_mode()(work), groups))  # known to one thread only
        except BaseException:  # Ctrl-C reaches this thread alone
            stop.set()
            raise


# --- the statistics of a row ------------------------------------------------------------------------------------


class BlockSums(NamedTuple):
    """What some rows sum over one block of keys, weighted by exp2(score - top): (heads, rows) each, or (heads, ., rows).

    Scores are in bits. What no caller asks for has no rows.
    """

    top: torch.Tensor  # the largest score
    columns: torch.Tensor  # (heads, columns, rows), of the columns of a `KeyBlock`
    bottom: torch.Tensor  # the smallest score of a visible key
    logs: torch.Tensor  # score - top
    squares: torch.Tensor  # squared distance of a key from the row's mean key
    gaps: torch.Tensor  # |i - j|, of rows that are among the keys of the block

    @classmethod
    def empty(cls, like: torch.Tensor, columns: int, n: int, rows: bool) -> BlockSums:
        """Return room for the sums of n rows over this many columns, and with `rows` for all the others."""
        heads = len(like)
        others = like.new_empty(4, heads, n if rows else 0).unbind()
        return cls(like.new_empty(heads, n), like.new_empty(heads, columns, n), *others)

    def between(self, lo: int, hi: int) -> BlockSums:
        """Return a view of rows [lo, hi)."""
        return BlockSums(*(part[..., lo:hi] for part in self))


# --- one pass ----------------------------------------------------------------------------------------------------


def measure_rows(
    call: Call,
    *,
    key_edges: Sequence[int] | None = None,
    row_edges: Sequence[int] | None = None,
    marks: Array | None = None,
    rows: bool = False,
    peaks: bool = False,
    tick: Tick | None = None,
) -> RowStatistics:
    """Return each row's logsumexp, and what `sweep_keys` is asked for, as NumPy arrays; weights are before dropout."""
    with torch.inference_mode():
        statistics = sweep_keys(
            as_torch(call), key_edges=key_edges, row_edges=row_edges, marks=marks, rows=rows, peaks=peaks, tick=tick
        )
    return RowStatistics(*(None if part is None else as_numpy(part) for part in statistics))


def pool_between_parts(
    call: Call, rows: Sequence[Ranges], columns: Sequence[Ranges], how: str = "mean", tick: Tick | None = None
) -> tuple[Array, Array | None]:
    """Return the weights between parts of the text → (heads, rows, columns), and `measure_rows`'s logsumexp (heads, n_q).

    `how` is mean (of the weights in a cell), max, or mass: the mean over the queries of the row part of their mass on
    the column part. Parts may leave tokens out, and must not overlap. The logsumexp is None if they do not reach from the
    first query to the last.
    """
    queries, keys = Parts.among(rows), Parts.among(columns, call.n_k)
    first, last = queries.edges[0], queries.edges[-1]
    every_row = (first, last) == (0, call.n_q)
    if not every_row:  # only these rows, but all the keys
        call = replace(
            cut_call(replace(call, causal=False, window=None), first, last), causal=call.causal, window=call.window
        )
    edges = [edge - first for edge in queries.edges]
    statistics = measure_rows(call, key_edges=keys.edges, row_edges=edges, peaks=how == "max", tick=tick)
    return joined_bins(statistics.pooled, queries, keys, how), statistics.logsumexp if every_row else None


def sweep_keys(
    call: Call,
    *,
    key_edges: Sequence[int] | None = None,
    row_edges: Sequence[int] | None = None,
    marks: Array | None = None,
    rows: bool = False,
    peaks: bool = False,
    tick: Tick | None = None,
) -> RowStatistics:
    """Return the results of one pass over the keys of a call of 3-D torch arrays, as torch arrays.

    `key_edges` 0 … n_k and `row_edges` 0 … n_q cut keys and rows into bins: the mass of a row bin on a key bin,
    averaged over its rows, or with `peaks` the largest weight between them. `rows` requests entropy, distance, spread,
    and the mass on each set of `marks` ([heads,] marks, n_k), true for a key in the set; numbers in their place are
    factors of the weights. Long calls on a CUDA device go through the fused kernels (see `is_fusible`).
    """
    n_q, n_k = call.n_q, call.n_k
    if is_fusible(call) and (marks is None or np.shape(marks)[-2] <= FUSED_MARKS):
        from attnctl.blockwise.fused import fused_sweep

        return fused_sweep(
            call, key_edges=key_edges, row_edges=row_edges, marks=marks, rows=rows, peaks=peaks, tick=tick
        )
    edges = [0, n_k] if key_edges is None else list(key_edges)
    marked = None if marks is None else torch.as_tensor(np.asarray(marks), device=call.queries.device)
    size = block_size(call)
    narrow = BINS * -(-n_k // (len(edges) - 1))  # keys in BINS bins
    most = size.keys if call.queries.is_cuda else min(size.keys, max(narrow, size.keys // 4))
    cuts = block_cuts(edges, most)
    widest = max(b - a for a, b in neighbouring_edges(cuts))
    elements = max(size.elements, widest)
    n_heads = call.queries.shape[0]
    of_thread = n_heads if call.queries.is_cuda else -(-n_heads // torch.get_num_threads())
    step = max(1, min(elements // (widest * n_q), of_thread))

    stop = Event()
    of_all = of_head = None
    if marked is not None and rows:
        marked = marked.to(torch.float64 if call.queries.dtype == torch.float64 else torch.float32)
        of_all, of_head = (marked, None) if marked.ndim == 2 else (None, marked)
    blocks = key_blocks(call.queries, edges, cuts, of_all, rows, peaks)

    def sweep_heads(heads: range) -> tuple[Array | None, ...]:
        own = None if of_head is None else of_head[heads.start : heads.stop]
        tally = BlockTally.empty(open_group(call, heads, elements), edges, blocks, own, rows, peaks)
        for block in blocks:
            if stop.is_set():
                break
            tally.take_keys(block)
            if tick is not None:
                tick((block.b - block.a) / n_k * len(heads) / n_heads)
        return tally.finish_fields(row_edges if key_edges is not None else None)

    fields = map_groups(
        sweep_heads, [range(start, min(start + step, n_heads)) for start in range(0, n_heads, step)], stop
    )
    return RowStatistics(*(None if parts[0] is None else torch.cat(parts) for parts in zip(*fields, strict=True)))


def block_size(call: Call) -> BlockSize:
    """Return the size of the blocks of a call of torch arrays."""
    if call.queries.device.type != "cpu":
        return ON_DEVICE
    smallest, largest = attention.visible_gaps(call.causal, call.window)
    return LOCAL if call.n_q >= LONG and largest - smallest > LOCAL.keys else SHARED


def block_cuts(edges: Sequence[int], size: int) -> list[int]:
    """Return where to cut keys into blocks of at most `size`; a block is whole bins or a part of one bin."""
    cuts = [edges[0]]
    for a, b in neighbouring_edges(edges):
        if b - cuts[-1] > size and a > cuts[-1]:
            cuts.append(a)
        if b - a > size:
            cuts += [*range(a + size, b, size), b]
    return sorted({*cuts, edges[-1]})


class KeyBlock(NamedTuple):
    """The keys [a, b), which are whole bins or a part of one bin."""

    a: int
    b: int
    span: int  # its number
    bins: slice  # the bins of its span
    inner: Sequence[tuple[int, int]]  # its part of each bin that it touches, from its first key
    columns: torch.Tensor  # (columns, keys), factors of the keys: their bins, then positions and marks of all heads
    runs: Sequence[
        tuple[int, int]
    ]  # (bins, keys of each) of bins of one width, from the first; empty: add by `columns`


def key_blocks(
    like: torch.Tensor,
    edges: Sequence[int],
    cuts: Sequence[int],
    marks: torch.Tensor | None,
    rows: bool,
    peaks: bool,
) -> list[KeyBlock]:
    """Return the blocks of keys between `cuts`; the blocks of one span hold the same bins.

    `edges` are those of the bins, `marks` (marks, n_k) are of all heads; where `peaks` are kept, the masses have one bin.
    """
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    marked = like.new_zeros(0, edges[-1], dtype=dtype) if marks is None else marks
    spans = [(0, 1)] if peaks else neighbouring_edges([bisect_left(edges, cut) for cut in cuts if cut in set(edges)])
    blocks = []
    for a, b in neighbouring_edges(cuts):
        first, last = bisect_right(edges, a) - 1, bisect_left(edges, b)  # the bins that the block touches
        inner = [(max(edges[index], a) - a, min(edges[index + 1], b) - a) for index in range(first, last)]
        span = 0 if peaks else bisect_right(spans, first, key=lambda span: span[0]) - 1
        parts = [(0, b - a)] if peaks else inner
        columns = marked.new_zeros(len(parts) + rows * (1 + len(marked)), b - a)
        for index, (x, y) in enumerate(parts):
            columns[index, x:y] = 1
        if rows:
            columns[len(parts)] = torch.arange(a, b, device=like.device) - (a + b) // 2
            columns[len(parts) + 1 :] = marked[:, a:b]
        runs = [(len(list(run)), width) for width, run in groupby(y - x for x, y in parts)]
        quick = runs if not rows and len(runs) <= MOST_RUNS else []
        blocks.append(KeyBlock(a, b, span, slice(*spans[span]), inner, columns, quick))
    return blocks


@dataclass
class BlockTally:
    """The sums of a sweep of one group of heads so far.

    Masses are relative to the largest score in the blocks of their bins, so that no bin needs its own logarithm.
    Scores are in bits, but for those of `rows`.
    """

    group: HeadGroup
    edges: Sequence[int]  # bins of keys
    spans: Sequence[slice]  # bins that share blocks
    masses: torch.Tensor  # (heads, bins, n_q), sums of exp2(score - top); one bin where peaks are kept
    tops: torch.Tensor  # (heads, spans, n_q), the largest score of each row in the blocks of a span
    peaks: torch.Tensor | None  # (heads, bins, n_q), largest score in each bin
    marks: torch.Tensor | None  # (heads, marks, n_k), factors of the keys of each head
    rows: Rows | None

    @classmethod
    def empty(
        cls,
        group: HeadGroup,
        edges: Sequence[int],
        blocks: Sequence[KeyBlock],
        marks: torch.Tensor | None,
        rows: bool,
        peaks: bool,
    ) -> BlockTally:
        """Return a tally before the first of the `blocks`."""
        like, n_q = group.keys, group.call.n_q
        heads, bins = len(like), len(edges) - 1
        spans = list({block.span: block.bins for block in blocks}.values())
        masses = like.new_zeros(heads, spans[-1].stop, n_q)
        tops = like.new_full((heads, len(spans), n_q), FLOOR)
        highest = like.new_full((heads, bins, n_q), FLOOR) if peaks else None
        row_tally = None
        if rows:
            shared = len(blocks[0].columns) - (1 if peaks else len(blocks[0].inner)) - 1
            row_tally = Rows.empty(like, heads, n_q, shared if marks is None else marks.shape[1])
        return cls(group, edges, spans, masses, tops, highest, marks, row_tally)

    def take_keys(self, block: KeyBlock) -> None:
        """Add the keys of a block: the sums of each tile of rows, then of all rows at once."""
        group, (a, b, span, bins, _, columns, _) = self.group, block
        if self.marks is not None:
            columns = torch.cat([columns.expand(len(group.keys), -1, -1), self.marks[..., a:b]], 1)
        max_rows = max(1, len(group.buffers[0]) // (len(group.keys) * (b - a)))
        tiles = list(row_tiles(group.call, a, b, max_rows))
        if not tiles:
            return
        first, last = tiles[0][0], tiles[-1][1]
        sums = BlockSums.empty(group.keys, columns.shape[-2], last - first, self.rows is not None)
        for lo, hi, whole in tiles:
            self._sum_tile(block, columns, (lo, hi, whole), sums.between(lo - first, hi - first))
        masses = self.masses[:, bins, first:last]  # (heads, bins, rows)
        mass, extra = sums.columns[:, : masses.shape[1]], sums.columns[:, masses.shape[1] :]
        add_masses(self.tops[:, span, first:last], masses, sums.top, mass)
        if self.rows is not None:
            self.rows.add_block(first, last, self._block_rows(block, sums, mass.sum(1), extra, (first, last)))

    def _sum_tile(self, block: KeyBlock, columns: torch.Tensor, tile: tuple[int, int, bool], sums: BlockSums) -> None:
        """Write the sums of the rows of a `tile` of `row_tiles` over a block; `columns` ([heads,] columns, keys)."""
        group, (a, b, _, bins, inner, *_), (lo, hi, whole) = self.group, block, tile
        scores = group.masked_scores(a, b, lo, hi, whole)  # (heads, keys, rows)
        if self.peaks is not None:
            for index, (x, y) in enumerate(inner, bisect_right(self.edges, a) - 1):
                peak = self.peaks[:, index, lo:hi]  # (heads, rows)
                torch.maximum(peak, scores[:, x:y].amax(1), out=peak)
        torch.amax(scores, 1, out=sums.top)
        if self.rows is not None:
            sums.bottom.copy_(group.smallest_visible(scores, whole))
        e = scores if self.rows is None else shaped_buffer(group.buffers[1], *scores.shape)
        torch.exp2(scores.sub_(sums.top[:, None]), out=e)
        if block.runs:
            sum_runs(e, block.runs, sums.columns)
        else:
            sums.columns.copy_(columns @ e)
        if self.rows is None:
            return
        torch.sum(scores.mul_(e), 1, out=sums.logs)
        n_bins = bins.stop - bins.start
        local = block.columns[n_bins]  # (keys,), positions from the middle of the block
        mean = sums.columns[:, n_bins] / sums.columns[:, :n_bins].sum(1)  # (heads, rows)
        # squared about the row's own mean, since a difference of squares would cancel
        torch.sub(local[:, None], mean[:, None], out=scores)
        torch.sum(scores.square_().mul_(e), 1, out=sums.squares)
        if lo + group.call.first_position < b and a < hi + group.call.first_position:  # rows among the keys
            positions = torch.arange(lo, hi, device=e.device) + (group.call.first_position - (a + b) // 2)  # (rows,)
            gaps = (positions.to(e.dtype) - local[:, None]).abs_()  # (keys, rows)
            torch.sum(torch.mul(e, gaps, out=scores), 1, out=sums.gaps)

    def _block_rows(
        self, block: KeyBlock, sums: BlockSums, total: torch.Tensor, extra: torch.Tensor, span: tuple[int, int]
    ) -> Rows:
        """Return the statistics of the rows of `span` over one block.

        `total` (heads, rows) are the sums of their exponentials, `extra` (heads, 1 + marks, rows) those of key position and
        marks; positions count from the middle of the block.
        """
        (a, b, *_), (lo, hi) = block, span
        middle, first = (a + b) // 2, self.group.call.first_position
        mean = extra[:, 0] / total  # (heads, rows)
        positions = torch.arange(lo + first - middle, hi + first - middle, device=mean.device)  # (rows,)
        distance = (positions - mean).abs_()  # (heads, rows)
        x, y = max(lo, a - first), min(hi, b - first)
        if x < y:  # the rows among the keys, whose gaps would cancel
            near = slice(x - lo, y - lo)
            torch.div(sums.gaps[:, near], total[:, near], out=distance[:, near])
        logs = total.log()  # (heads, rows)
        return Rows(
            sums.top / LOG2_E + logs,
            logs - sums.logs / total / LOG2_E,
            distance,
            mean + middle,
            sums.squares / total,
            extra[:, 1:] / total[:, None],  # (heads, marks, rows)
            sums.top / LOG2_E,
            sums.bottom / LOG2_E,
        )

    def finish_fields(self, row_edges: Sequence[int] | None) -> tuple[Array | None, ...]:
        """Return the fields of RowStatistics, in order; the tally is used up."""
        if self.rows is not None:
            lse = self.rows.logsumexp  # (heads, n_q)
        else:
            lse = torch.full_like(self.tops[:, 0], FLOOR)  # (heads, n_q)
            for index, bins in enumerate(self.spans):
                of_span = self.masses[:, bins].sum(1).log_().add_(self.tops[:, index] / LOG2_E)  # (heads, n_q)
                torch.logaddexp(lse, of_span, out=lse)
        sees_key = lse > FLOOR / 2  # (heads, n_q)
        lse, log_share = share_with_sinks(self.group.call, self.group.heads, lse)
        pooled = None
        if row_edges is not None:
            weights = self.masses if self.peaks is None else self.peaks  # (heads, bins, n_q)
            logs = self.tops if self.peaks is None else weights  # (heads, spans or bins, n_q)
            shares = logs.sub_(lse[:, None] * LOG2_E).exp2_().mul_(sees_key[:, None])
            if self.peaks is None:
                for index, bins in enumerate(self.spans):
                    weights[:, bins].mul_(shares[:, index : index + 1])
            weights.clamp_(max=1)  # above only by rounding
            pooled = pool_bins(weights, row_edges, self.peaks is not None).mT  # (heads, row bins, bins)
        fields: tuple[Array | None, ...] = (None,) * 8
        if self.rows is not None:
            fields = row_fields(self.rows, lse, log_share, sees_key, self.group.call.temperature)
        return lse.masked_fill(~sees_key, -math.inf), pooled, *fields


def pool_bins(array: torch.Tensor, edges: Sequence[int], peaks: bool = False, axis: int = -1) -> torch.Tensor:
    """Return the mean (with `peaks` the maximum) of each bin of an axis; bins of equal width are computed together."""
    axis %= array.ndim
    pooled = []
    for width, group in groupby(neighbouring_edges(edges), lambda edge: edge[1] - edge[0]):
        bins = list(group)
        whole = array.narrow(axis, bins[0][0], len(bins) * width)
        parts = whole.reshape(*array.shape[:axis], len(bins), width, *array.shape[axis + 1 :])  # (…, bins, width, …)
        pooled.append(parts.amax(axis + 1) if peaks else parts.mean(axis + 1))
    return torch.cat(pooled, axis)


def sum_runs(array: torch.Tensor, runs: Sequence[tuple[int, int]], sums: torch.Tensor) -> None:
    """Write the sums of bins of an array (heads, keys, rows) to `sums` (heads, bins, rows), each run of bins in one go.

    This is three to ten times as fast as the product with a matrix of ones and zeros.
    """
    first = key = 0
    for bins, width in runs:
        part = array[:, key : key + bins * width].view(len(array), bins, width, -1)  # (heads, bins, width, rows)
        torch.sum(part, 2, out=sums[:, first : first + bins])
        first, key = first + bins, key + bins * width


def add_masses(tops: torch.Tensor, masses: torch.Tensor, top: torch.Tensor, mass: torch.Tensor) -> None:
    """Add `mass` (heads, bins, rows) relative to `top` (heads, rows) to `masses` relative to `tops`, in place."""
    highest = torch.maximum(tops, top)  # (heads, rows)
    old, new = ((side - highest).exp2_()[:, None] for side in (tops, top))  # each (heads, 1, rows)
    masses.mul_(old).addcmul_(mass, new)
    tops.copy_(highest)
