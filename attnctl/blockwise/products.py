"""Compute chosen weights of a call for all its heads at once, each as a product of a query and a key; by torch.

With the logsumexp of its row a weight is the exponential of its own score, so no other key of the row is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from attnctl.attention import Array, Call, visible_gaps
from attnctl.blockwise import LOG2_E
from attnctl.blockwise.rows import grids_visible
from attnctl.blockwise.tiles import as_torch
from attnctl.runtime.arrays import as_numpy, one_thread, place_array

SMALL = 1 << 24  # multiplications, up to which a second thread waits longer than it computes
BLOCK = 1 << 20  # products of numbers of queries and keys that are kept before they are added


@contextmanager
def products_of(multiplications: int) -> Iterator[None]:
    """Compute without gradients within the context, in one thread where there are few `multiplications`."""
    with torch.inference_mode(), one_thread(multiplications < SMALL):
        yield


def weights_between(call: Call, logsumexp: Array, rows: Array, columns: Array) -> Array:
    """Return exact weights of small grids of the matrix: rows (grids, r), columns (grids, c) → (heads, grids, r, c).

    `logsumexp` (heads, n_q) comes from `measure_rows`.
    """
    with products_of(call.queries.shape[0] * rows.size * columns.shape[1] * call.queries.shape[-1]):
        weights = _weights_between(as_torch(call), logsumexp, rows, columns)
        visible = grids_visible(call, rows, columns)  # (grids, r, c)
        if not visible.all():
            weights.masked_fill_(place_array(~visible, weights)[:, None], 0)
        return as_numpy(weights.transpose(1, 2).reshape(-1, *visible.shape))


def mass_between(call: Call, logsumexp: Array, rows: Array, columns: Array, counts: Array) -> Array:
    """Return each row's sum of the weights of `weights_between` where `counts` (grids, r, c) is true → (heads, grids, r).

    `counts` is false for hidden keys.
    """
    with products_of(call.queries.shape[0] * rows.size * columns.shape[1] * call.queries.shape[-1]):
        weights = _weights_between(as_torch(call), logsumexp, rows, columns)
        mass = weights.mul_(place_array(counts, weights)[:, None]).sum(-1)  # (kv_heads, grids, share, r)
        return as_numpy(mass.transpose(1, 2).reshape(-1, *rows.shape))


def _weights_between(call: Call, logsumexp: Array, rows: Array, columns: Array) -> torch.Tensor:
    """Return weights of small grids as if every key were visible, 1 at most → (kv_heads, grids, share, r, c)."""
    kv_heads, (n_heads, n_q, d), n_k = call.keys.shape[0], call.queries.shape, call.n_k
    grids, r = rows.shape
    i, j = (place_array(places, call.queries) for places in (rows, columns))

    def by_key_head(array: torch.Tensor) -> torch.Tensor:
        """Return an array (heads, grids, r, …) of the queries as (kv_heads, grids, share, r, …)."""
        return array.reshape(kv_heads, -1, *array.shape[1:]).transpose(1, 2)

    q = by_key_head(_in_bits(call, call.queries[:, i])).reshape(
        kv_heads, grids, -1, d
    )  # (kv_heads, grids, share · r, d)
    # the heads that share a key are rows of one product
    raw = (q @ _wide(call.keys[:, j]).mT).view(
        kv_heads, grids, -1, r, columns.shape[1]
    )  # (kv_heads, grids, share, r, c)
    bias = None
    if call.bias is not None:
        bias = by_key_head(call.bias.broadcast_to(n_heads, n_q, n_k)[:, i[:, :, None], j[:, None, :]])
    return _exponentials(call, raw, bias, by_key_head(place_array(logsumexp, raw)[:, i])[..., None])


def weights_at_offset(call: Call, logsumexp: Array, offset: int) -> Array:
    """Return each query's weight on the key `offset` positions away: 0 is itself, -1 the key before → (heads, n_q).

    NaN if there is no such key.
    """
    n_heads, n_q, n_k = call.queries.shape[0], call.n_q, call.n_k
    result = np.full((n_heads, n_q), np.nan, np.float32)
    diagonal = call.first_position + offset  # the key of query 0
    lo, hi = max(0, -diagonal), min(n_q, n_k - diagonal)
    if lo >= hi:
        return result
    smallest, largest = visible_gaps(call.causal, call.window)
    if not smallest <= -offset <= largest:
        result[:, lo:hi] = 0
        return result
    with products_of(call.queries.numel() if isinstance(call.queries, torch.Tensor) else call.queries.size):
        call = as_torch(call)
        kv_heads = call.keys.shape[0]
        q = _in_bits(call, call.queries[:, lo:hi]).reshape(kv_heads, n_heads // kv_heads, hi - lo, -1)
        k = _wide(call.keys[:, lo + diagonal : hi + diagonal])[:, None]  # (kv_heads, 1, rows, d)
        step = max(1, BLOCK // (n_heads * q.shape[-1]))
        blocks = [(a * b).sum(-1) for a, b in zip(torch.split(q, step, -2), torch.split(k, step, -2), strict=True)]
        raw = torch.cat(blocks, -1).view(n_heads, hi - lo)  # (heads, rows)
        bias, seen = call.bias, call.mask
        if bias is not None:
            bias = bias.broadcast_to(n_heads, n_q, n_k).diagonal(diagonal, -2, -1)  # (heads, rows)
        if seen is not None:
            seen = seen.broadcast_to(n_q, n_k).diagonal(diagonal)  # (rows,)
        weights = _exponentials(call, raw, bias, place_array(logsumexp[:, lo:hi], raw))
        result[:, lo:hi] = as_numpy(weights if seen is None else weights.masked_fill_(~seen, 0))
    return result


def _in_bits(call: Call, queries: torch.Tensor) -> torch.Tensor:
    """Return queries that give scaled scores in bits, log2(e) of the natural ones, where nothing but the softmax follows.

    exp2 is faster than exp for results near 0.
    """
    queries = _wide(queries)
    return queries if call.bends_scores else queries * (call.effective_scale * LOG2_E / call.temperature)


def _exponentials(call: Call, raw: torch.Tensor, bias: torch.Tensor | None, lse: torch.Tensor) -> torch.Tensor:
    """Return the weights of scores of the queries of `_in_bits`, 1 at most: shapes that broadcast; `raw` is overwritten."""
    if call.bends_scores:
        raw = call.scaled_part(raw, None if bias is None else bias.to(raw.dtype)).mul_(LOG2_E / call.temperature)
    # above 0 only by the rounding of large scores, or for a hidden key
    powers = raw.sub_(lse.to(raw.dtype) * LOG2_E).clamp_(max=0)
    odd = ~lse.isfinite()  # -inf for a row that sees nothing
    weights = powers.exp2_()
    return weights.masked_fill_(odd, 0) if bool(odd.any()) else weights


def _wide(array: torch.Tensor) -> torch.Tensor:
    """Return the array as float32 if it has half precision."""
    return array if array.dtype.itemsize >= 4 else array.float()
