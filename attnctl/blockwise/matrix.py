"""Compute the statistics of a short call from its whole matrix, in torch: the weights are built, and returned."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event

import numpy as np
import torch

from attnctl.attention import Array, Call, visible_keys
from attnctl.blockwise import FLOOR, LOG2_E, RowStatistics, hidden_below
from attnctl.blockwise.row_tally import Rows, row_fields, share_with_sinks
from attnctl.blockwise.sweep import map_groups, pool_last
from attnctl.blockwise.tiles import as_torch
from attnctl.runtime.arrays import as_numpy

ELEMENTS = 1 << 19  # weights of a group of heads, to stay in a CPU's cache


def measure_matrix(
    call: Call, key_edges: Sequence[int], row_edges: Sequence[int], marks: Array | None = None
) -> tuple[RowStatistics, Array]:
    """Return what `measure_rows` returns of a call of torch arrays, every field, and the weights (heads, n_q, n_k)."""
    kv_heads, n_heads = call.keys.shape[0], call.queries.shape[0]
    share = n_heads // kv_heads
    with torch.inference_mode():
        call = as_torch(call)
        factors = None if marks is None else torch.as_tensor(np.asarray(marks), device=call.queries.device)
        mask = visible_keys(call)  # (n_q, n_k)
        hidden = None if mask is None else ~mask.broadcast_to(call.n_q, call.n_k)
        step = max(1, ELEMENTS // (call.n_q * call.n_k * share))
        step = min(step, max(1, -(-kv_heads // torch.get_num_threads())))  # key heads

        def measure(part: range) -> tuple[Array | None, ...]:
            heads = range(part.start * share, part.stop * share)
            of_heads = factors if factors is None or factors.ndim == 2 else factors[heads.start : heads.stop]
            return _measure_heads(call, part, heads, hidden, key_edges, row_edges, of_heads)

        groups = [range(start, min(start + step, kv_heads)) for start in range(0, kv_heads, step)]
        parts = zip(*map_groups(measure, groups, Event()), strict=True)
        *fields, weights = (as_numpy(torch.cat(part)) for part in parts)
    return RowStatistics(*fields), weights


def _measure_heads(
    call: Call,
    kv_heads: range,
    heads: range,
    hidden: torch.Tensor | None,
    key_edges: Sequence[int],
    row_edges: Sequence[int],
    marks: torch.Tensor | None,
) -> tuple[torch.Tensor, ...]:
    """Return the fields of `RowStatistics` of some heads, in order, and their weights; `hidden` is (n_q, n_k)."""
    n_q, n_k = call.n_q, call.n_k
    dtype = torch.float64 if call.queries.dtype == torch.float64 else torch.float32
    keys = call.keys[kv_heads.start : kv_heads.stop].to(dtype)  # (kv_heads, n_k, d)
    queries = call.queries[heads.start : heads.stop].to(dtype).reshape(len(kv_heads), -1, keys.shape[-1])
    # the heads that share a key are rows of one product
    scores = torch.bmm(queries, keys.mT).view(len(heads), n_q, n_k)
    bias = None
    if call.bends_scores:
        if call.bias is not None:
            bias = call.bias.broadcast_to(call.queries.shape[0], n_q, n_k)[heads.start : heads.stop].to(dtype)
        scores = (call.scaled_part(scores, bias) / call.temperature).clamp_(min=FLOOR)
    else:
        scores.mul_(call.effective_scale / call.temperature)
    unseen = hidden
    if bias is not None:
        dark = scores <= hidden_below(call.bias, call.temperature)  # (heads, n_q, n_k)
        unseen = dark if hidden is None else dark | hidden
    buffer = torch.empty_like(scores)
    bottom = (scores if unseen is None else torch.where(unseen, scores.new_tensor(-FLOOR), scores, out=buffer)).amin(-1)
    if hidden is not None:
        scores.masked_fill_(hidden, FLOOR)
    top = scores.amax(-1)  # (heads, n_q)
    logs = scores.sub_(top[..., None])
    weights = torch.mul(logs, LOG2_E, out=buffer).exp2_()  # faster than exp for results near 0
    total = weights.sum(-1)  # (heads, n_q)
    weights.mul_(total.reciprocal()[..., None])
    entropy = total.log() - logs.mul_(weights).sum(-1)  # (heads, n_q)
    middle = n_k // 2
    local = torch.arange(n_k, dtype=dtype, device=keys.device) - middle  # (n_k,)
    factors = (
        local[None] if marks is None else torch.cat([local.expand(*marks.shape[:-2], 1, n_k), marks.to(dtype)], -2)
    )
    sums = weights @ factors.mT  # (heads, n_q, 1 + marks)
    mean, marked = sums[..., 0], sums[..., 1:].mT
    # squared about the row's own mean, since a difference of squares would cancel
    variance = torch.sub(local, mean[..., None], out=logs).square_().mul_(weights).sum(-1)  # (heads, n_q)
    positions = torch.arange(n_q, dtype=dtype, device=keys.device) + (call.first_position - middle)  # (n_q,)
    distance = torch.mul(weights, (positions[:, None] - local).abs_(), out=logs).sum(-1)  # (heads, n_q)
    lse = top + total.log()
    sees_key = lse > FLOOR / 2
    lse, log_share = share_with_sinks(call, heads, lse)
    rows = Rows(lse, entropy, distance, mean, variance, marked, top, bottom)
    fields = row_fields(rows, lse, log_share, sees_key, call.temperature)
    if call.sinks is not None or not bool(sees_key.all()):
        weights.mul_((log_share.exp() * sees_key)[..., None])
    by_row = pool_last(weights.mT, row_edges, peaks=False)  # (heads, n_k, row bins)
    sizes = torch.tensor(np.diff(key_edges), dtype=dtype, device=keys.device)
    pooled = pool_last(by_row.mT, key_edges, peaks=False) * sizes  # (heads, row bins, key bins)
    return lse.masked_fill(~sees_key, -torch.inf), pooled, *fields, weights
