"""Compute the statistics of a short call from its whole matrix, in torch: the weights are built, and returned."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from threading import Event
from typing import NamedTuple

import numpy as np
import torch

from attnctl.attention import Array, Call, visible_keys
from attnctl.blockwise import FLOOR, LOG2_E, RowStatistics, cut_call, even_edges, hidden_below
from attnctl.blockwise.row_tally import Rows, row_fields, share_with_sinks
from attnctl.blockwise.sweep import map_groups, pool_bins
from attnctl.blockwise.tiles import as_torch
from attnctl.runtime.arrays import as_numpy

ELEMENTS = 1 << 19  # weights of a group of heads, to stay in a CPU's cache
ROWS = 128  # queries of a block, where each block sees keys of its own: the others are not computed


def measure_matrix(
    call: Call, key_edges: Sequence[int], row_edges: Sequence[int], marks: Array | None = None
) -> tuple[RowStatistics, Array]:
    """Return what `measure_rows` returns of a call of torch arrays, every field, and the weights (heads, n_q, n_k)."""
    kv_heads, n_heads = call.keys.shape[0], call.queries.shape[0]
    share = n_heads // kv_heads
    with torch.inference_mode():
        call = as_torch(call)
        factors = None if marks is None else torch.as_tensor(np.asarray(marks), device=call.queries.device)
        dtype = torch.float64 if call.queries.dtype == torch.float64 else torch.float32
        limits_keys = call.causal or call.window is not None
        rows = even_edges(call.n_q, -(-call.n_q // ROWS) if limits_keys else 1)
        blocks = [_RowBlock.of_call(call, lo, hi) for lo, hi in pairwise(rows)]
        step = max(1, ELEMENTS // ((rows[1] - rows[0]) * call.n_k * share))
        step = min(step, max(1, -(-kv_heads // torch.get_num_threads())))  # key heads
        weights = torch.empty(n_heads, call.n_q, call.n_k, dtype=dtype, device=call.queries.device)

        def measure(part: range) -> tuple[Array, ...]:
            heads = range(part.start * share, part.stop * share)
            of_heads = factors if factors is None or factors.ndim == 2 else factors[heads.start : heads.stop]
            whole = weights[heads.start : heads.stop]  # (heads, n_q, n_k)
            fields = [_measure_rows(call, block, part, heads, of_heads, whole) for block in blocks]
            lse, *others = (torch.cat(field, -1) for field in zip(*fields, strict=True))  # (heads, …, n_q) each
            return lse, _pooled(whole, key_edges, row_edges), *others

        groups = [range(start, min(start + step, kv_heads)) for start in range(0, kv_heads, step)]
        parts = zip(*map_groups(measure, groups, Event()), strict=True)
        fields = (as_numpy(torch.cat(part)) for part in parts)
    return RowStatistics(*fields), as_numpy(weights)


class _RowBlock(NamedTuple):
    """Some queries of a call, and the keys that they may see."""

    rows: slice
    keys: slice
    cut: Call  # the call of these queries and keys
    hidden: torch.Tensor | None  # true where a key is hidden from a query → (rows, keys); None if none is
    from_key: int  # each query sees the keys before this one

    @classmethod
    def of_call(cls, call: Call, lo: int, hi: int) -> _RowBlock:
        """Return the block of queries [lo, hi)."""
        cut = cut_call(call, lo, hi)
        first = lo + call.first_position - cut.first_position
        mask = visible_keys(cut)  # (rows, keys)
        hidden = None if mask is None else ~mask.broadcast_to(cut.n_q, cut.n_k)
        from_key = cut.n_k
        if hidden is not None and len(somewhere := hidden.any(0).nonzero()):  # (keys, 1)
            from_key = int(somewhere[0])
        hidden = hidden if from_key < cut.n_k else None
        return cls(slice(lo, hi), slice(first, first + cut.n_k), cut, hidden, from_key)


def _measure_rows(
    call: Call, block: _RowBlock, kv_heads: range, heads: range, marks: torch.Tensor | None, whole: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Return the fields of `RowStatistics` of some rows of some heads, in order but for `pooled`.

    `marks` ([heads,] marks, n_k) and `whole` (heads, n_q, n_k), to which the weights are written, are of all keys.
    """
    cut, hidden = block.cut, block.hidden
    n_q, n_k = cut.n_q, cut.n_k
    keys = cut.keys[kv_heads.start : kv_heads.stop].to(whole.dtype)  # (kv_heads, n_k, d)
    queries = cut.queries[heads.start : heads.stop].to(whole.dtype).reshape(len(kv_heads), -1, keys.shape[-1])
    weights = whole[:, block.rows, block.keys]  # (heads, n_q, n_k)
    for no_key in (slice(0, block.keys.start), slice(block.keys.stop, None)):
        whole[:, block.rows, no_key] = 0
    # the heads that share a key are rows of one product; scores are in bits, since exp2 is faster than exp near 0
    in_bits = LOG2_E / call.temperature
    if cut.bends_scores:
        bias = None
        if cut.bias is not None:
            bias = cut.bias.broadcast_to(call.queries.shape[0], n_q, n_k)[heads.start : heads.stop].to(whole.dtype)
        scores = cut.scaled_part(torch.bmm(queries, keys.mT).view(weights.shape), bias)  # (heads, n_q, n_k)
        dark = None if cut.bias is None else scores <= hidden_below(cut.bias)  # (heads, n_q, n_k)
        scores = (scores * in_bits).clamp_(min=FLOOR)
    else:
        scores = torch.bmm(queries * (call.effective_scale * in_bits), keys.mT).view(weights.shape)
        dark = None
    bottom = _smallest_seen(scores, block, dark)  # (heads, n_q)
    if hidden is not None:
        scores[..., block.from_key :].masked_fill_(hidden[:, block.from_key :], FLOOR)
    top = scores.amax(-1)  # (heads, n_q)
    logs = scores.sub_(top[..., None])
    torch.exp2(logs, out=weights)
    total = weights.sum(-1)  # (heads, n_q)
    weights.mul_(total.reciprocal()[..., None])
    entropy = total.log() - logs.mul_(weights).sum(-1) / LOG2_E  # (heads, n_q), nats
    middle = n_k // 2
    local = torch.arange(n_k, dtype=whole.dtype, device=keys.device) - middle  # (n_k,)
    factors = local[None]
    if marks is not None:
        of_keys = marks[..., block.keys].to(whole.dtype)  # ([heads,] marks, n_k)
        factors = torch.cat([local.expand(*marks.shape[:-2], 1, n_k), of_keys], -2)
    sums = weights @ factors.mT  # (heads, n_q, 1 + marks)
    mean, marked = sums[..., 0], sums[..., 1:].mT
    # squared about the row's own mean, since a difference of squares would cancel
    variance = torch.sub(local, mean[..., None], out=logs).square_().mul_(weights).sum(-1)  # (heads, n_q)
    positions = torch.arange(n_q, dtype=whole.dtype, device=keys.device) + (cut.first_position - middle)  # (n_q,)
    distance = torch.mul(weights, (positions[:, None] - local).abs_(), out=logs).sum(-1)  # (heads, n_q)
    top, bottom = top / LOG2_E, bottom / LOG2_E
    lse = top + total.log()  # (heads, n_q)
    sees_key = lse > FLOOR / 2
    lse, log_share = share_with_sinks(cut, heads, lse)
    rows = Rows(lse, entropy, distance, mean, variance, marked, top, bottom)
    fields = row_fields(rows, lse, log_share, sees_key, call.temperature)
    if call.sinks is not None or not bool(sees_key.all()):
        weights.mul_((log_share.exp() * sees_key)[..., None])
    return lse.masked_fill(~sees_key, -torch.inf), *fields


def _smallest_seen(scores: torch.Tensor, block: _RowBlock, dark: torch.Tensor | None) -> torch.Tensor:
    """Return the smallest score of each row that is neither hidden nor `dark` (heads, n_q, n_k): (heads, n_q).

    A row that sees no key has -FLOOR.
    """
    unseen, start = block.hidden, block.from_key
    if dark is not None:
        unseen, start = (dark if unseen is None else dark | unseen), 0
    if unseen is None:
        return scores.amin(-1)
    some = torch.where(unseen[..., start:], scores.new_tensor(-FLOOR), scores[..., start:]).amin(-1)  # (heads, n_q)
    return some if start == 0 else torch.minimum(some, scores[..., :start].amin(-1))


def _pooled(weights: torch.Tensor, key_edges: Sequence[int], row_edges: Sequence[int]) -> torch.Tensor:
    """Return the mean over rows of the mass of bins of keys: (heads, n_q, n_k) → (heads, row bins, key bins)."""
    rows = pool_bins(weights, row_edges, axis=-2)  # (heads, row bins, n_k)
    sizes = torch.tensor(np.diff(key_edges), dtype=weights.dtype, device=weights.device)  # (key bins,)
    return pool_bins(rows, key_edges) * sizes
