"""Statistics of a long call on a CUDA device, by two passes of the Triton kernels (see `kernels`)."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
import torch
import triton

from attnctl import attention
from attnctl.attention import Array, Call
from attnctl.blockwise import FLOOR, LOG2_E, RowStatistics, Tick, neighbouring_edges
from attnctl.blockwise.kernels import first_pass, second_pass
from attnctl.blockwise.row_tally import Rows, row_fields, share_with_sinks

Tensor = torch.Tensor

ROWS, KEYS = 128, 64  # rows and keys of a tile
FAR = 1 << 30  # a gap that no text reaches
CELLS = 1 << 26  # tiles whose sums are kept at a time: 256 MiB


def shared_by(call: Call) -> int:
    """Return the number of query heads that share one key head."""
    return int(call.queries.shape[0] // call.keys.shape[0])


def tile_cuts(edges: Sequence[int], size: int) -> list[int]:
    """Return the borders of tiles of at most `size` tokens, each inside one bin."""
    return [*(start for a, b in neighbouring_edges(edges) for start in range(a, b, size)), edges[-1]]


def sum_tiles(cells: Tensor, cuts: Sequence[int], edges: Sequence[int], peaks: bool) -> Tensor:
    """Return the sum, or with `peaks` the largest, of the tiles of each bin along the last axis: (…, tiles) → (…, bins)."""
    bins = neighbouring_edges([bisect_left(cuts, edge) for edge in edges])
    most, empty = max(b - a for a, b in bins), len(cuts) - 1
    places = [[*range(a, b), *[empty] * (most - b + a)] for a, b in bins]
    padded = torch.nn.functional.pad(cells, (0, 1))  # a tile of zeros at the end
    parts = padded[..., torch.tensor(places, device=cells.device)]  # (…, bins, most)
    return parts.amax(-1) if peaks else parts.sum(-1)


class FusedSweep:
    """One call on a CUDA device after its first pass: (heads, n, d) in half or single precision."""

    def __init__(self, call: Call, heads: range, moments: bool) -> None:
        """Compute each row's logsumexp and largest score and, with `moments`, its smallest score and its mean gap.

        All are (heads, n_q).
        """
        share = shared_by(call)
        self.call, self.moments = call, moments
        self.queries = call.queries[heads.start : heads.stop].contiguous()  # (heads, n_q, d)
        self.keys = call.keys[heads.start // share : heads.stop // share].contiguous()  # (key heads, n_k, d)
        least, greatest = attention.visible_gaps(call.causal, call.window)
        d = self.queries.shape[-1]
        self._reach = int(max(least, -FAR)), int(min(greatest, FAR))
        self._scale, self._cap = call.effective_scale / call.temperature * LOG2_E, 0.0
        if call.soft_cap is not None:
            self._scale, self._cap = call.effective_scale / call.soft_cap, call.soft_cap / call.temperature * LOG2_E
        self._layout = {
            "q_row": d, "k_row": d, "SHARE": share, "D": d, "WIDE": triton.next_power_of_2(d),
            "FLOOR": FLOOR, "CAPPED": call.soft_cap is not None,
        }  # fmt: skip
        rows = call.n_q
        self.lse, self.top, self.bottom, self.mean = self.queries.new_zeros(4, len(heads), rows, dtype=torch.float32)
        wide = self._layout["WIDE"] > 128 or self.queries.dtype == torch.float32
        self.rows_of_tile, self.warps = (64, 4) if wide else (ROWS, 8)
        first_pass[triton.cdiv(rows, self.rows_of_tile), len(heads)](
            self.queries, self.keys, self.lse, self.top, self.bottom, self.mean, rows, call.n_k, int(call.first_position),
            *self._reach, self._scale, self._cap, self.queries.stride(0), k_head=self.keys.stride(0), ROWS=self.rows_of_tile,
            KEYS=KEYS, MOMENTS=moments, num_warps=self.warps, **self._layout,
        )  # fmt: skip

    def weigh(
        self,
        key_edges: Sequence[int] | None,
        row_edges: Sequence[int] | None,
        marks: Tensor | None,
        peaks: bool,
        share: Tensor,
    ) -> tuple[Tensor | None, Rows | None]:
        """Return the pooled weights (heads, row bins, key bins) and the statistics of the rows; each may be None.

        `share` (heads, n_q) is the mass of a row on all keys: the pooled weights include it, the rows do not. `marks` are
        ([heads,] marks, n_k).
        """
        call, device = self.call, self.queries.device
        n_heads, n_q, n_k = len(self.queries), call.n_q, call.n_k
        pooled = key_edges is not None
        row_edges, key_edges = row_edges or [0, n_q], key_edges or [0, n_k]
        row_cuts = tile_cuts(row_edges, self.rows_of_tile)
        widest = max(b - a for a, b in neighbouring_edges(key_edges))
        narrow = max(16, min(KEYS, triton.next_power_of_2(widest)))
        key_cuts = tile_cuts(key_edges, narrow)
        least, greatest = self._reach
        offset = int(call.first_position)
        first = [max(0, bisect_left(key_cuts, lo + offset - greatest + 1) - 1) for lo in row_cuts[:-1]]
        last = [bisect_left(key_cuts, min(n_k, hi + offset - least)) for hi in row_cuts[1:]]
        tables = [torch.tensor(table, dtype=torch.int32, device=device) for table in (row_cuts, key_cuts, first, last)]
        n_rows, n_keys = len(row_cuts) - 1, len(key_cuts) - 1
        cells = torch.zeros((n_heads, n_rows, n_keys) if pooled else (1,), device=device)
        entropy, distance, variance = torch.zeros((3, n_heads, n_q) if self.moments else (3, 1), device=device)
        n_marks = 0 if marks is None else marks.shape[-2]
        marked = torch.zeros((n_heads, n_marks, n_q) if n_marks else (1,), device=device)
        second_pass[n_rows, n_heads](
            self.queries, self.keys, self.lse, self.mean, share.contiguous(),
            cells if marks is None else marks.float().contiguous(), *tables, cells, entropy, distance, variance, marked,
            n_q, n_k, n_rows, n_keys, n_marks, 0 if marks is None or marks.ndim == 2 else n_marks * n_k, offset,
            *self._reach, self._scale, self._cap, self.queries.stride(0),
            k_head=self.keys.stride(0), ROWS=self.rows_of_tile, KEYS=narrow, POOLED=pooled, PEAKS=peaks,
            MOMENTS=self.moments, BOTH_SIDES=least < 0, MARKS=n_marks > 0, num_warps=self.warps, **self._layout,
        )  # fmt: skip
        grid = None
        if pooled:
            by_key = sum_tiles(cells, key_cuts, key_edges, peaks)  # (heads, row tiles, key bins)
            grid = sum_tiles(by_key.mT, row_cuts, row_edges, peaks).mT  # (heads, row bins, key bins)
            if not peaks:
                sizes = [b - a for a, b in neighbouring_edges(row_edges)]
                grid = grid / torch.tensor(sizes, device=device)[:, None]
        if not self.moments:
            return grid, None
        marked = marked if n_marks else self.lse.new_zeros(n_heads, 0, n_q)
        lse, top, bottom = (powers / LOG2_E for powers in (self.lse, self.top, self.bottom))  # (heads, n_q), nats
        return grid, Rows(lse, entropy / LOG2_E, distance, self.mean, variance, marked, top, bottom)


def fused_sweep(
    call: Call,
    *,
    key_edges: Sequence[int] | None = None,
    row_edges: Sequence[int] | None = None,
    marks: Array | None = None,
    rows: bool = False,
    peaks: bool = False,
    tick: Tick | None = None,
) -> RowStatistics:
    """Return what `sweep.sweep_keys` returns, by the two fused passes."""
    n_heads, n_q, n_k = call.queries.shape[0], call.n_q, call.n_k
    tiles_of_head = (n_q // 64 + len(row_edges or ())) * (n_k // KEYS + len(key_edges or ()))
    step = max(1, CELLS // tiles_of_head // shared_by(call)) * shared_by(call)  # whole groups that share a key head
    marked = None if marks is None else torch.as_tensor(np.asarray(marks), device=call.queries.device)
    parts = []
    for start in range(0, n_heads, step):
        heads = range(start, min(start + step, n_heads))
        with torch.cuda.device(call.queries.device):  # Triton launches on the current device
            sweep = FusedSweep(call, heads, rows)
            lse = sweep.lse / LOG2_E  # (heads, n_q), nats
            visible = sweep.lse > FLOOR / 2  # (heads, n_q), rows that see a key
            lse, log_share = share_with_sinks(call, heads, lse)
            marks_here = marked if marked is None or marked.ndim == 2 else marked[heads.start : heads.stop]
            pooled, tally = sweep.weigh(key_edges, row_edges, marks_here, peaks, log_share.exp() * visible)
            fields: tuple[Array | None, ...] = (None,) * 8
            if tally is not None:
                fields = row_fields(tally, lse, log_share, visible, call.temperature)
            parts.append((lse.masked_fill(~visible, -math.inf), pooled, *fields))
            if tick is not None:
                torch.cuda.synchronize()
                tick(len(heads) / n_heads)
    return RowStatistics(*(None if part[0] is None else torch.cat(part) for part in zip(*parts, strict=True)))
