"""What attention comes to where a query sees only the first tokens and the last: what a streaming cache would keep.

Source: attention sinks and a window (Xiao et al. 2024, Efficient Streaming Language Models with Attention Sinks).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attnctl import attention
from attnctl.arrays import as_numpy
from attnctl.attention import Array, Call
from attnctl.blockwise import call_positions

TILE = 256  # queries at a time


def streaming_change_of_call(call: Call, context: Array, first: int, last: int) -> Array:
    """How far each query's context moves where it sees only the `first` tokens and the `last` up to itself.

    ‖after - before‖ / ‖before‖ of every query that has more tokens before it: (heads, queries). `context` (heads, n_q, d_v)
    is that with all keys. Work and memory grow with n, not n².
    """
    places = call_positions(call)  # (n_q,)
    changes = []
    for lo in range(int((places < first + last).sum()), call.n_q, TILE):
        hi = min(lo + TILE, call.n_q)
        after = as_numpy(attention.run_call(_streaming(call, places[lo:hi], lo, hi, first, last)).context)
        before = as_numpy(context[:, lo:hi])  # (heads, rows, d_v)
        changes.append(relative_change(after, before))
    heads = call.queries.shape[-3]
    return np.concatenate(changes, -1) if changes else np.zeros((heads, 0), np.float32)


def _streaming(call: Call, rows: Array, lo: int, hi: int, first: int, last: int) -> Call:
    """The call of queries [lo, hi) at the positions `rows`, with the keys that some of them keeps."""
    near = max(first, int(rows[0]) - last + 1)
    keys = np.r_[0:first, near : min(call.n_k, int(rows[-1]) + 1)]  # (kept,)
    mask = call.mask
    if mask is not None:
        own = as_numpy(mask)  # (n_q or 1, n_k)
        mask = (own[lo:hi] if own.shape[-2] > 1 else own)[:, keys]  # (rows or 1, kept)
    shown = attention.visibility_mask(rows, keys, causal=call.causal, window=call.window, mask=mask)
    kept = (keys < first) | (keys > rows[:, None] - last)  # (rows, kept)
    shown = kept if shown is None else kept & shown  # (rows, kept)
    bias = call.bias
    if bias is not None:
        bias = bias[..., lo:hi, :] if bias.shape[-2] > 1 else bias
        bias = bias[..., _like(keys, bias)] if bias.shape[-1] > 1 else bias
    return replace(
        call,
        queries=call.queries[..., lo:hi, :],
        keys=call.keys[..., _like(keys, call.keys), :],
        values=call.values[..., _like(keys, call.values), :],
        mask=_like(shown, call.queries),
        bias=bias,
        causal=False,
        window=None,
        offset=None,
        keep=None,
    )


def relative_change(after: Array, before: Array) -> Array:
    """‖after - before‖ / ‖before‖ over the last axis; 0 where both are 0."""
    size = np.linalg.norm(before, axis=-1)  # (heads, rows)
    gap = np.linalg.norm(after - before, axis=-1)  # (heads, rows)
    return gap / np.where(size == 0, 1, size)


def _like(array: Array, like: Array) -> Array:
    """A NumPy array in the library of another."""
    if isinstance(like, np.ndarray):
        return array
    import torch

    return torch.as_tensor(np.ascontiguousarray(array), device=like.device)
