"""Facts about a weight matrix that is never built: its overview, entropies, distances, single weights, strongest links.

Each takes a `Call` of NumPy or torch arrays, (heads, n, d), and answers NumPy arrays. Short texts have their whole matrix
built by `attention.run`; long ones are swept a block at a time (`attnctl.sweep`); both ways give the same numbers.
Importing torch is left to the long way.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any

import numpy as np

from attnctl import attention
from attnctl.attention import Array, Call

PLAIN = 512 * 512  # weights a head, up to which the matrix is simply built
MEMORY = 256 << 20  # bytes for blocks of whole rows


@dataclass(frozen=True)
class Facts:
    """What is known of each row, and of the whole pooled; all but `logsumexp` only where asked for."""

    logsumexp: Array  # (heads, n_q), of the masked scaled scores, sinks in it; -inf where nothing is visible
    pooled: Array | None = None  # (heads, row bins, key bins)
    entropy: Array | None = None  # (heads, n_q), nats; what a sink takes has no term
    distance: Array | None = None  # (heads, n_q), mean of |i - j| over what the row attends to, tokens
    spread: Array | None = None  # (heads, n_q), standard deviation of j, tokens
    marked: Array | None = None  # (heads, marks, n_q), mass on each set of marked keys


def pairs(edges: Sequence[int]) -> list[tuple[int, int]]:
    """Neighbouring edges: the bins between them."""
    return list(zip(edges, edges[1:], strict=False))


def even_edges(n: int, most: int) -> list[int]:
    """Edges of at most `most` bins over n tokens: all as wide as each other, but for the last."""
    return [*range(0, n, math.ceil(n / most)), n]


def is_short(call: Call) -> bool:
    """Whether the whole matrix is simply built."""
    return bool(call.queries.shape[-2] * call.keys.shape[-2] <= PLAIN)


def as_numpy(array: Array) -> Any:
    """Any library's array as NumPy on the CPU, low precision widened to float32."""
    if isinstance(array, np.ndarray):
        return array
    tensor = array.detach().cpu()
    return (tensor.float() if tensor.dtype.itemsize < 4 and tensor.dtype.is_floating_point else tensor).numpy()


# --- one pass ----------------------------------------------------------------------------------------------------


def measure(
    call: Call,
    *,
    key_edges: Sequence[int] | None = None,
    row_edges: Sequence[int] | None = None,
    marks: Any = None,
    rows: bool = False,
    peaks: bool = False,
    plain: bool | None = None,
) -> Facts:
    """All facts asked for, in one pass over the keys.

    `key_edges` 0 … n_k and `row_edges` 0 … n_q cut keys and rows into bins: `pooled` is the mass that the rows of a row bin
    give to a key bin, on average; with `peaks` the largest weight between them instead. `rows` asks for entropy, distance,
    spread, and the mass on each set of `marks` (marks, n_k), true where a key belongs to it. `plain` overrides `is_short`.
    Dropout is not seen: weights are those before it.
    """
    if is_short(call) if plain is None else plain:
        return _measure_plain(call, key_edges, row_edges, marks, rows, peaks)
    import torch

    from attnctl.sweep import as_torch, sweep

    with torch.inference_mode():
        chosen = None if marks is None else torch.as_tensor(np.asarray(marks), device=as_torch(call).queries.device)
        found = sweep(as_torch(call), key_edges=key_edges, row_edges=row_edges, marks=chosen, rows=rows, peaks=peaks)
    parts = {f.name: getattr(found, f.name) for f in fields(Facts)}
    return Facts(**{name: None if part is None else as_numpy(part) for name, part in parts.items()})


def _measure_plain(
    call: Call,
    key_edges: Sequence[int] | None,
    row_edges: Sequence[int] | None,
    marks: Any,
    rows: bool,
    peaks: bool,
) -> Facts:
    steps = attention.run(replace(call, keep=None))
    weights, scores = as_numpy(steps.weights), as_numpy(steps.scaled_scores)  # (heads, n_q, n_k)
    best = weights.argmax(-1)[..., None]  # (heads, n_q, 1)
    top, score = (np.take_along_axis(part, best, -1)[..., 0] for part in (weights, scores))  # (heads, n_q)
    with np.errstate(divide="ignore"):
        logsumexp = np.where(top > 0, score / np.float32(call.temperature) - np.log(top), -np.inf)  # (heads, n_q)
    pooled = None
    if key_edges is not None and row_edges is not None:
        pool = np.maximum if peaks else np.add
        pooled = pool.reduceat(pool.reduceat(weights, key_edges[:-1], -1), row_edges[:-1], -2)
        pooled = pooled if peaks else pooled / np.diff(row_edges)[:, None]  # (heads, row bins, key bins)
    if not rows:
        return Facts(logsumexp, pooled)
    total = weights.sum(-1)  # (heads, n_q)
    total[total == 0] = 1
    j = np.arange(weights.shape[-1])  # (n_k,)
    gap = np.abs(positions(call)[:, None] - j)  # (n_q, n_k)
    logs = np.log(weights, out=np.zeros_like(weights), where=weights > 0)  # (heads, n_q, n_k)
    mean = (weights @ j / total)[..., None]  # (heads, n_q, 1)
    return Facts(
        logsumexp,
        pooled,
        entropy=-(weights * logs).sum(-1),
        distance=(weights * gap).sum(-1) / total,
        spread=np.sqrt((weights * (j - mean) ** 2).sum(-1) / total),
        marked=np.swapaxes(
            weights @ np.asarray([] if marks is None else marks, weights.dtype).reshape(-1, len(j)).T, -1, -2
        ),
    )


def positions(call: Call) -> Any:
    """The queries' places among the keys → (n_q,), integer."""
    n_q, n_k = call.queries.shape[-2], call.keys.shape[-2]
    return np.arange(n_q) + (n_k - n_q if call.offset is None else call.offset)


def overview(call: Call, size: int = 256, *, peaks: bool = False) -> tuple[Any, list[int], list[int]]:
    """The mean weight (or with `peaks` the largest) in each cell of a grid of at most size × size cells.

    → grid (heads, rows, columns), row edges, column edges, in tokens.
    """
    row_edges, key_edges = (even_edges(n, size) for n in (call.queries.shape[-2], call.keys.shape[-2]))
    pooled: Any = measure(call, key_edges=key_edges, row_edges=row_edges, peaks=peaks).pooled
    return (pooled if peaks else pooled / np.diff(key_edges)), row_edges, key_edges


def effective_rank(grids: Any) -> Any:
    """How many directions a grid spreads over: exp of the entropy of its singular values' shares: (..., r, c) → (...).

    Source: Roy and Vetterli 2007.
    """
    singular = np.linalg.svd(grids, compute_uv=False)  # (..., min(r, c))
    total = singular.sum(-1, keepdims=True)  # (..., 1)
    share = singular / np.where(total == 0, 1, total)  # (..., min(r, c))
    logs = np.log(share, out=np.zeros_like(share), where=share > 0)
    return np.exp(-(share * logs).sum(-1))


# --- single weights ----------------------------------------------------------------------------------------------


def weights_between(call: Call, logsumexp: Any, rows: Any, columns: Any) -> Any:
    """Exact weights of small grids cut from the matrix: rows (grids, r), columns (grids, c) → (heads, grids, r, c).

    `logsumexp` (heads, n_q) as from `measure`. With r = c = 1, these are single weights (i, j), each O(d).
    """
    queries, keys = call.queries, call.keys
    n_heads, (n_q, n_k) = queries.shape[0], (queries.shape[-2], keys.shape[-2])
    share = n_heads // keys.shape[0]
    seen = _seen(call, rows, columns)  # (grids, r, c)
    bias = None if call.bias is None else _broadcast(call.bias, (n_heads, n_q, n_k))
    found = np.empty((n_heads, *seen.shape), np.float32)
    for head in range(n_heads):
        q, k = _single(queries[head][rows]), _single(keys[head // share][columns])  # (grids, r, d), (grids, c, d)
        raw = (q * k).sum(-1)[..., None] if q.shape[1] == k.shape[1] == 1 else attention.scores(q, k)
        part = None if bias is None else _single(bias[head][rows[:, :, None], columns[:, None, :]])  # (grids, r, c)
        scaled = attention.scaled(raw, call.effective_scale, call.soft_cap, part) / call.temperature  # (grids, r, c)
        lse = logsumexp[head][rows][..., None]  # (grids, r, 1)
        found[head] = np.exp(np.where(seen & np.isfinite(lse), as_numpy(scaled) - lse, -np.inf))
    return found


def _single(array: Array) -> Array:
    """Half precision widened to float32."""
    return array if isinstance(array, np.ndarray) or array.dtype.itemsize >= 4 else array.float()


def _broadcast(array: Array, shape: tuple[int, ...]) -> Array:
    return np.broadcast_to(array, shape) if isinstance(array, np.ndarray) else array.broadcast_to(shape)


def _seen(call: Call, rows: Any, columns: Any) -> Any:
    """The mask, for small grids → (grids, r, c)."""
    gap = positions(call)[rows][:, :, None] - columns[:, None, :]  # (grids, r, c)
    seen = gap >= 0 if call.causal else np.ones_like(gap, dtype=bool)
    if call.window is not None:
        seen &= np.abs(gap) < call.window
    if call.mask is not None:
        mask = as_numpy(_broadcast(call.mask, (call.queries.shape[-2], call.keys.shape[-2])))
        seen &= mask[rows[:, :, None], columns[:, None, :]]
    return seen


def at_offset(call: Call, logsumexp: Any, offset: int) -> Any:
    """Each query's weight on the key `offset` places from itself: 0 itself, -1 the one before → (heads, n_q).

    NaN where there is no such key.
    """
    n_q, n_k = call.queries.shape[-2], call.keys.shape[-2]
    columns = positions(call) + offset  # (n_q,)
    there = np.flatnonzero((columns >= 0) & (columns < n_k))
    found = np.full((call.queries.shape[0], n_q), np.nan, np.float32)
    if len(there):
        found[:, there] = weights_between(call, logsumexp, there[:, None], columns[there][:, None])[:, :, 0, 0]
    return found


def on_copies(call: Call, logsumexp: Any, ids: Sequence[int], shift: int = 0) -> Any:
    """Each query's mass on the keys `shift` places after the other copies of its own token → (heads, n).

    Shift 0 asks who looks at duplicates, 1 who looks at what followed them (induction: Olsson et al. 2022). Queries and keys
    are the tokens `ids`. Its own place does not count. NaN where a token has no copy that it could look back to.
    """
    names = np.asarray(ids)
    n = len(names)
    order = np.argsort(names, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(names[order]) != 0])
    sizes = np.diff(np.r_[starts, n])
    found = np.full((call.queries.shape[0], n), np.nan, np.float32)
    for size in np.unique(sizes[sizes > 1]).tolist():
        copies = order[starts[sizes == size][:, None] + np.arange(size)]  # (distinct tokens, copies), ascending
        room = max(1, MEMORY // (16 * call.queries.shape[0] * size))  # rows of `size` weights at a time
        few, many = min(room, size), max(1, room // size)
        for at, lo in product(range(0, len(copies), many), range(0, size, few)):
            everyone = copies[at : at + many]
            rows = everyone[:, lo : lo + few]  # (distinct, rows)
            columns = np.minimum(everyone + shift, n - 1)  # (distinct, copies)
            counts = (rows[:, :, None] != everyone[:, None, :]) & (columns[:, None, :] != rows[:, :, None])
            counts &= (everyone + shift < n)[:, None, :] & _seen(call, rows, columns)  # (distinct, rows, copies)
            weights = weights_between(call, logsumexp, rows, columns)  # (heads, distinct, rows, copies)
            mass = np.einsum("hdrc,drc->hdr", weights, counts)  # (heads, distinct, rows)
            found[:, rows] = np.where(counts.any(-1), mass, np.nan)
    return found


# --- whole rows --------------------------------------------------------------------------------------------------


def exact_rows(call: Call, rows: Sequence[int]) -> Any:
    """The weights of the chosen queries → (heads, rows, n_k)."""
    n_heads, n_k = call.queries.shape[0], call.keys.shape[-2]
    step = max(1, MEMORY // (24 * n_heads * n_k))
    parts = [
        as_numpy(attention.run(attention.select(replace(call, keep=None), rows=list(rows[at : at + step]))).weights)
        for at in range(0, len(rows), step)
    ]
    return np.concatenate(parts, axis=-2)  # (heads, rows, n_k)


def row_blocks(call: Call) -> Iterator[tuple[int, int, int, attention.Attended]]:
    """The call a block of rows at a time, cut to the keys those may see: first row, last + 1, first key, its steps."""
    n_heads, n_q, n_k = call.queries.shape[0], call.queries.shape[-2], call.keys.shape[-2]
    place = positions(call)
    step = max(1, MEMORY // (24 * n_heads * n_k))
    for lo in range(0, n_q, step):
        hi = min(lo + step, n_q)
        first, last = int(place[lo]), int(place[hi - 1])
        a, b = 0, min(n_k, max(last + 1, 1)) if call.causal else n_k
        if call.window is not None:
            a, b = min(max(0, first - call.window + 1), b - 1), min(b, last + call.window)
        changes: dict[str, Any] = {"queries": call.queries[:, lo:hi], "offset": first - a}
        changes |= {name: getattr(call, name)[:, a:b] for name in ("keys", "values")}
        for name in ("bias", "mask", "keep"):
            part = getattr(call, name)
            if part is not None:
                part = part[..., lo:hi, :] if part.shape[-2] == n_q else part
                changes[name] = part[..., a:b] if part.shape[-1] == n_k else part
        yield lo, hi, a, attention.run(replace(call, **changes))


def top_links(call: Call, count: int) -> tuple[Any, Any]:
    """The `count` keys that each query attends to most, and their weights: two arrays (heads, n_q, count).

    Strongest first; where fewer keys are visible, the rest have weight 0. The sum of the weights is their coverage.
    """
    n_heads, n_q = call.queries.shape[0], call.queries.shape[-2]
    count = min(count, call.keys.shape[-2])
    keys = np.zeros((n_heads, n_q, count), np.int64)
    weights = np.zeros((n_heads, n_q, count), np.float32)
    for lo, hi, first, steps in row_blocks(replace(call, keep=None)):
        block = as_numpy(steps.weights)  # (heads, rows, keys)
        most = min(count, block.shape[-1])
        best = np.argpartition(-block, most - 1, axis=-1)[..., :most]  # (heads, rows, most)
        values = np.take_along_axis(block, best, -1)
        order = np.argsort(-values, axis=-1, kind="stable")
        keys[:, lo:hi, :most] = np.take_along_axis(best, order, -1) + first
        weights[:, lo:hi, :most] = np.take_along_axis(values, order, -1)
    return keys, weights


# --- the context -------------------------------------------------------------------------------------------------


def fused_context(call: Call) -> Array:
    """The context of a call → (heads, n_q, d_v), in its own library: by a fused kernel, or in blocks of rows.

    The kernel takes scale, causality, grouped heads and a mask; what it cannot take goes through `attention.run`.
    """
    if is_short(call):
        return attention.run(call).context
    bent = call.soft_cap is not None or call.bias is not None or call.sinks is not None
    n_q, n_k = call.queries.shape[-2], call.keys.shape[-2]
    square = n_q == n_k and call.offset in (None, 0)
    same = call.values.shape[-1] == call.queries.shape[-1]
    if bent or call.keep is not None or call.window is not None or (call.causal and not square) or not same:
        return attention.namespace(call.queries).concat([steps.context for *_, steps in row_blocks(call)], axis=-2)
    if call.causal and call.mask is not None:
        return attention.namespace(call.queries).concat([steps.context for *_, steps in row_blocks(call)], axis=-2)
    import torch

    from attnctl.sweep import as_torch

    given = as_torch(call)
    context: Any = torch.nn.functional.scaled_dot_product_attention(
        given.queries[None],
        given.keys[None],
        given.values[None],
        attn_mask=given.mask,
        is_causal=call.causal,
        scale=call.effective_scale / call.temperature,
        enable_gqa=given.queries.shape[0] != given.keys.shape[0],
    )[0]  # (heads, n_q, d_v)
    return context.numpy() if isinstance(call.queries, np.ndarray) else context
