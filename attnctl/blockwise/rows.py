"""Compute rows of weights and the context of a long text: by a fused kernel, in blocks of rows, or key after key.

Source: attention sinks and a window (Xiao et al. 2024, Efficient Streaming Language Models with Attention Sinks).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from attnctl import attention
from attnctl.attention import Array, Call
from attnctl.blockwise import call_positions, cut_call
from attnctl.checks.tolerances import NOTHING
from attnctl.runtime.arrays import MEMORY, as_numpy, place_array


def fused_context(call: Call) -> Array:
    """Return the context of a call → (heads, n_q, d_v), in its own library.

    A fused kernel takes scale, causality, grouped heads and a mask; everything else goes through `attention.run_call` in
    blocks of rows.
    """
    bent = call.bends_scores or call.sinks is not None
    square = call.n_q == call.n_k and call.first_position == 0
    same = call.values.shape[-1] == call.queries.shape[-1]
    causal_alone = not call.causal or (square and call.mask is None)
    if bent or call.keep is not None or call.window is not None or not causal_alone or not same:
        return attention.array_namespace(call.queries).concat(
            [steps.context for *_, steps in row_blocks(call)], axis=-2
        )
    import torch

    from attnctl.blockwise.tiles import as_torch

    tensors = as_torch(call)
    context: Array = torch.nn.functional.scaled_dot_product_attention(
        tensors.queries[None],
        tensors.keys[None],
        tensors.values[None],
        attn_mask=tensors.mask,
        is_causal=call.causal,
        scale=call.effective_scale / call.temperature,
        enable_gqa=tensors.queries.shape[0] != tensors.keys.shape[0],
    )[0]  # (heads, n_q, d_v)
    return context.numpy() if isinstance(call.queries, np.ndarray) else context


def masked_context(call: Call) -> Array:
    """Return the context of a batch of calls (batch, heads, n_q, d_v), by torch's kernel where a mask alone hides keys."""
    bent = call.bends_scores or call.sinks is not None or call.keep is not None
    plain = not bent and not call.causal and call.window is None and call.values.shape[-1] == call.queries.shape[-1]
    if not plain or call.mask is None or isinstance(call.queries, np.ndarray):
        return attention.run_call(call).context
    import torch

    return torch.nn.functional.scaled_dot_product_attention(
        call.queries,
        call.keys,
        call.values,
        attn_mask=call.mask[:, None] if call.mask.ndim == 3 else call.mask,
        scale=call.effective_scale / call.temperature,
        enable_gqa=call.queries.shape[-3] != call.keys.shape[-3],
    )


Cells = Callable[[Array, Array], Array]  # queries (grids, r), keys (grids, c) → something of (…, grids, r, c)


def _broadcast_heads(array: Array, shape: tuple[int, ...]) -> Array:
    return np.broadcast_to(array, shape) if isinstance(array, np.ndarray) else array.broadcast_to(shape)


def grids_visible(call: Call, rows: Array, columns: Array) -> Array:
    """Return the mask of small grids of the matrix: rows (grids, r), columns (grids, c) → (grids, r, c)."""
    mask = np.ones((len(rows), rows.shape[1], columns.shape[1]), bool)
    if call.mask is not None:
        whole = as_numpy(_broadcast_heads(call.mask, (call.n_q, call.n_k)))  # (n_q, n_k)
        mask = whole[rows[:, :, None], columns[:, None, :]]  # (grids, r, c)
    return attention.visibility_mask(
        call_positions(call)[rows], columns, causal=call.causal, window=call.window, mask=mask
    )


def weights_at_offset(cells: Cells, positions: Array, n_k: int, offset: int) -> Array:
    """Return each query's weight on the key `offset` positions away: 0 is itself, -1 the key before → (heads, n_q).

    `cells` returns the weights of small grids, `positions` (n_q,) are the positions of the queries among the keys. NaN
    if there is no such key.
    """
    columns = positions + offset  # (n_q,)
    inside = np.flatnonzero((columns >= 0) & (columns < n_k))
    weights = cells(inside[:, None], columns[inside][:, None])[:, :, 0, 0]  # (heads, inside)
    result = np.full((len(weights), len(positions)), np.nan, np.float32)
    result[:, inside] = weights
    return result


COPIES = 1 << 17  # pairs of copies of a token at a time
FEWEST = 32  # a row of fewer copies counts as so many: its query is gathered, too
Masses = Callable[
    [Array, Array, Array], Array
]  # queries (grids, r), keys (grids, c), counted (grids, r, c) → (…, grids, r)


def weights_on_copies(cells: Cells, visible: Cells, ids: Sequence[int], shift: int) -> Array:
    """Return each query's mass on the keys `shift` positions after other copies of its token → (heads, n).

    Shift 0 measures who looks at duplicates, 1 who looks at the tokens after them (induction: Olsson et al. 2022).
    Queries and keys are the tokens `ids`; `cells` and `visible` return the weights and the mask of small grids. A token's
    own position does not count. NaN if a token sees no copy; (1, n) if no token has a copy.
    """
    n = len(ids)
    result: Array = None
    for rows, copies in _pairs_of_copies(np.asarray(ids)):
        columns = copies + shift  # (pairs,)
        counted = (copies != rows) & (columns < n) & (columns != rows)
        rows, columns = rows[counted], columns[counted]
        if len(rows):
            seen = visible(rows[:, None], columns[:, None])[:, 0, 0]  # (pairs,)
            rows, columns = rows[seen], columns[seen]
        if len(rows):
            firsts = np.flatnonzero(np.diff(rows, prepend=-1))  # the first pair of each query
            mass = np.add.reduceat(cells(rows[:, None], columns[:, None])[..., 0, 0], firsts, -1)  # (heads, queries)
            result = np.full((len(mass), n), np.nan, np.float32) if result is None else result
            result[:, rows[firsts]] = np.minimum(mass, 1)
    return np.full((1, n), np.nan, np.float32) if result is None else result


def _pairs_of_copies(names: Array) -> Iterator[tuple[Array, Array]]:
    """Yield each token with a copy beside each of its copies, itself among them: (pairs,) each, about COPIES at a time.

    No token has pairs in two parts.
    """
    order, starts, sizes = _copies(names)
    of_place = np.repeat(np.arange(len(sizes)), sizes)  # (n,), the distinct token of each place of `order`
    ends = np.cumsum(np.where(sizes > 1, sizes, 0)[of_place])  # (n,), the pairs up to this place
    lo = 0
    while lo < len(order):
        before = ends[lo - 1] if lo else 0
        hi = max(lo + 1, int(np.searchsorted(ends, before + COPIES, "right")))
        counts = np.diff(ends[lo:hi], prepend=before)  # (places,)
        number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)  # (pairs,), of the copy
        yield np.repeat(order[lo:hi], counts), order[np.repeat(starts[of_place[lo:hi]], counts) + number]
        lo = hi


def _copies(names: Array) -> tuple[Array, Array, Array]:
    """Return the places of tokens (n,) with copies beside each other, and where each token's copies start, and how many."""
    order = np.argsort(names, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(names[order]) != 0])
    return order, starts, np.diff(np.r_[starts, len(names)])


def masses_on_copies(masses: Masses, visible: Cells, ids: Sequence[int], shift: int) -> Array:
    """Return what `weights_on_copies` returns, where a sum of weights is cheaper than the weights.

    `masses` and `visible` return sums of counted weights and the mask of small grids, of at most about COPIES cells.
    """
    n = len(ids)
    order, starts, sizes = _copies(np.asarray(ids))
    result: Array = None
    for size in np.unique(sizes[sizes > 1]).tolist():
        copies = order[starts[sizes == size][:, None] + np.arange(size)]  # (distinct tokens, copies), ascending
        max_rows = max(1, COPIES // max(size, FEWEST))  # rows of `size` weights at a time
        row_step, token_step = min(max_rows, size), max(1, max_rows // size)
        for start, lo in product(range(0, len(copies), token_step), range(0, size, row_step)):
            occurrences = copies[start : start + token_step]
            rows = occurrences[:, lo : lo + row_step]  # (distinct, rows)
            columns = np.minimum(occurrences + shift, n - 1)  # (distinct, copies)
            counts = (rows[:, :, None] != occurrences[:, None, :]) & (columns[:, None, :] != rows[:, :, None])
            counts &= (occurrences + shift < n)[:, None, :] & visible(rows, columns)  # (distinct, rows, copies)
            mass = masses(rows, columns, counts)  # (heads, distinct, rows)
            result = np.full((len(mass), n), np.nan, np.float32) if result is None else result
            result[:, rows] = np.where(counts.any(-1), np.minimum(mass, 1), np.nan)
    return np.full((1, n), np.nan, np.float32) if result is None else result


# --- whole rows --------------------------------------------------------------------------------------------------


def scores_of_heads(call: Call, queries: Sequence[int]) -> tuple[Array, Array]:
    """Return the scaled scores of one query of each head, and its mask: (heads, n_k) each, as NumPy."""
    heads, places = np.arange(len(queries)), np.asarray(queries)
    kv_heads = call.keys.shape[0]
    index = tuple(place_array(part, call.queries) for part in (heads, places))
    xp = attention.array_namespace(call.queries)
    rows = xp.reshape(call.queries[index], (kv_heads, len(heads) // kv_heads, -1))  # (kv_heads, share, d)
    raw = xp.reshape(attention.scores(rows, call.keys), (len(heads), -1))  # (heads, n_k)
    shape = (len(heads), call.n_q, call.n_k)
    bias = None if call.bias is None else _broadcast_heads(call.bias, shape)[index]  # (heads, n_k)
    return as_numpy(call.scaled_part(raw, bias)), grids_visible(call, places[:, None], np.arange(call.n_k)[None])[:, 0]


def exact_rows(call: Call, rows: Sequence[int]) -> Array:
    """Return the weights of the chosen queries → (heads, rows, n_k)."""
    n_heads, n_k = call.queries.shape[0], call.n_k
    step = max(1, MEMORY // (24 * n_heads * n_k))
    parts = [
        as_numpy(
            attention.run_call(
                attention.select_call(replace(call, keep=None), rows=list(rows[start : start + step]))
            ).weights
        )
        for start in range(0, len(rows), step)
    ]
    return np.concatenate(parts, axis=-2)  # (heads, rows, n_k)


NEAR = 64  # rows of a block whose windows are narrow: it also computes the keys outside of them


def row_blocks(call: Call) -> Iterator[tuple[int, int, int, attention.Attended]]:
    """Yield the call in blocks of rows: first row, last + 1, first key that they may see, results of the steps."""
    n_heads, n_q, n_k = call.queries.shape[0], call.n_q, call.n_k
    smallest, largest = attention.visible_gaps(call.causal, call.window)
    width = min(n_k, NEAR + largest - smallest)  # keys of NEAR rows
    max_rows = max(1, int(MEMORY // (24 * n_heads * width)))
    # an eighth: the steps of a block then take the memory of the block before it
    step = max(min(max_rows, 16), max_rows // 8)
    step = min(step, NEAR) if width < n_k else step
    for lo in range(0, n_q, step):
        hi = min(lo + step, n_q)
        part = cut_call(call, lo, hi)
        yield lo, hi, lo + call.first_position - int(part.offset or 0), attention.run_call(part)


CHUNK = 64  # keys whose largest weight is compared first


def strongest_keys(weights: Array, count: int) -> tuple[Array, Array]:
    """Return the keys of the `count` largest weights of each row, and these weights, largest first: (heads, rows, count)."""
    n_k = weights.shape[-1]
    n_best, starts = min(count, n_k), np.arange(0, n_k, CHUNK)
    peaks = np.fmax.reduceat(weights, starts, -1)  # (heads, rows, chunks)
    # the n_best largest weights lie in the n_best chunks with the largest peaks
    chunks = np.sort(np.argpartition(-peaks, min(n_best, len(starts)) - 1, axis=-1)[..., :n_best], -1)
    keys = (chunks[..., None] * CHUNK + np.arange(CHUNK)).reshape(*chunks.shape[:-1], -1)  # (heads, rows, candidates)
    candidates = np.take_along_axis(weights, np.minimum(keys, n_k - 1), -1)
    candidates = np.where(keys < n_k, candidates, -np.inf)  # the last chunk may end early
    best = np.argpartition(-candidates, n_best - 1, axis=-1)[..., :n_best]  # (heads, rows, n_best)
    values = np.take_along_axis(candidates, best, -1)
    best = np.take_along_axis(best, np.argsort(-values, axis=-1, kind="stable"), -1)
    return np.take_along_axis(keys, best, -1), np.take_along_axis(candidates, best, -1)


TILE = 32  # queries that share the keys near them
TILES = 1 << 20  # scores of tiles at a time


def streaming_change_of_call(call: Call, context: Array, first: int, last: int) -> Array:
    """Return how far each query's context moves if it sees only the `first` tokens and the `last` up to itself.

    ‖after - before‖ / ‖before‖ for every query with more tokens before it: (heads, queries). `context` (heads, n_q,
    d_v) is the context over all keys. Work and memory grow with n, not n².
    """
    xp, heads = attention.array_namespace(call.queries), call.queries.shape[-3]
    start = min(call.n_q, max(0, first + last - call.first_position))
    starts = np.arange(start, call.n_q, TILE)
    step = max(1, TILES // (heads * TILE * (first + last + TILE)))
    changes = []
    for lo in range(0, len(starts), step):
        rows = starts[lo : lo + step, None] + np.arange(TILE)  # (tiles, rows); the last rows may be beyond the text
        after = masked_context(_streaming(call, np.minimum(rows, call.n_q - 1), first, last))
        after = xp.reshape(xp.permute_dims(after, (1, 0, 2, 3)), (heads, rows.size, -1))  # (heads, rows, d_v)
        begin, end = int(rows[0, 0]), min(int(rows[-1, -1]) + 1, call.n_q)
        changes.append(relative_change(after[:, : end - begin], context[:, begin:end]))
    return np.concatenate(changes, -1) if changes else np.zeros((heads, 0), np.float32)


def _streaming(call: Call, rows: Array, first: int, last: int) -> Call:
    """Return a batch of calls, one for each tile of queries (tiles, rows), with the keys that any of them still sees."""
    places = rows + call.first_position  # (tiles, rows)
    near = places[:, :1] - last + 1 + np.arange(last + rows.shape[1] - 1)  # (tiles, keys)
    keys = np.concatenate([np.broadcast_to(np.arange(first), (len(rows), first)), near], axis=1)  # (tiles, keys)
    gaps = places[:, :, None] - keys[:, None, :]  # (tiles, rows, keys)
    streamed = (keys[:, None, :] < first) | (gaps < last)
    keys, before = np.minimum(keys, call.n_k - 1), gaps >= 0
    n_heads, cells = call.queries.shape[-3], (rows[:, :, None], keys[:, None, :])

    def select(array: Array, places: Array) -> Array:
        """Return the queries, keys or values at `places` (tiles, places), of (heads, n, d) → (tiles, heads, places, d)."""
        return attention.array_namespace(array).permute_dims(array[:, place_array(places, array)], (1, 0, 2, 3))

    mask = call.mask
    if mask is not None:
        mask = _broadcast_heads(as_numpy(mask), (call.n_q, call.n_k))[cells]  # (tiles, rows, keys)
    visible = attention.visibility_mask(places, keys, causal=call.causal, window=call.window, mask=mask)
    streamed &= before if visible is None else before & visible  # (tiles, rows, keys)
    bias, sinks = call.bias, call.sinks
    if bias is not None:
        bias = _broadcast_heads(bias, (n_heads, call.n_q, call.n_k))
        bias = bias[(slice(None), *(place_array(part, bias) for part in cells))]  # (heads, tiles, rows, keys)
        bias = attention.array_namespace(bias).permute_dims(bias, (1, 0, 2, 3))
    if sinks is not None and sinks.ndim > 1:
        sinks = attention.array_namespace(sinks).permute_dims(sinks[:, place_array(rows, sinks)], (1, 0, 2))
    return replace(
        call,
        queries=select(call.queries, rows),
        keys=select(call.keys, keys),
        values=select(call.values, keys),
        mask=place_array(streamed, call.queries),
        bias=bias,
        sinks=sinks,
        causal=False,
        window=None,
        offset=None,
        keep=None,
    )


ROWS = 64  # queries whose weights near them are multiplied at once


def streaming_change_of_weights(
    weights: Array,
    values: Array,
    positions: Array,
    first: int,
    last: int,
    *,
    context: Array | None,
    sinks: Array | None,
) -> Array:
    """Return what `streaming_change_of_call` returns, from weights: rows of NaN where it cannot be computed from them.

    `weights` (heads, n_q, n_k), `values` (heads or kv_heads, n_k, d_v), `positions` (n_q,), which ascend, `context` as there
    (None: the weights times the values), `sinks` (heads, n_q) the mass that learned sinks take (None: no sinks).
    """
    xp, (heads, n_q, _) = attention.array_namespace(weights), weights.shape
    values = xp.astype(values, weights.dtype)

    def times_values(part: Array, a: int, b: int) -> Array:
        """Return weights (heads, rows, b - a) times the values of keys [a, b) → (heads, rows, d_v)."""
        grouped = xp.reshape(part, (values.shape[0], -1, b - a))  # (kv_heads, group · rows, keys)
        return xp.reshape(grouped @ values[:, a:b], (heads, part.shape[1], -1))

    changes = []
    for lo in range(int((positions < first + last).sum()), n_q, ROWS):
        hi = min(lo + ROWS, n_q)
        a, b = max(first, int(positions[lo]) - last + 1), int(positions[hi - 1]) + 1
        gaps = positions[lo:hi, None] - np.arange(a, b)  # (rows, keys)
        counted = place_array((gaps >= 0) & (gaps < last), weights)  # (rows, keys)
        near = weights[:, lo:hi, a:b] * xp.astype(counted, weights.dtype)  # (heads, rows, keys)
        begin = weights[:, lo:hi, :first]
        rest = near.sum(-1) + begin.sum(-1)  # (heads, rows)
        whole = rest if sinks is None else rest + sinks[:, lo:hi]
        whole = xp.where(whole < NOTHING, xp.nan, whole)
        after = (times_values(near, a, b) + times_values(begin, 0, first)) / whole[..., None]
        before = times_values(weights[:, lo:hi], 0, weights.shape[-1]) if context is None else context[:, lo:hi]
        changes.append(relative_change(after, before))
    return np.concatenate(changes, -1) if changes else np.zeros((heads, 0), np.float32)


def relative_change(after: Array, before: Array) -> Array:
    """Return ‖after - before‖ / ‖before‖ over the last axis, as NumPy; 0 if both are 0."""
    xp = attention.array_namespace(after)
    if xp.finfo(after.dtype).bits < 32:
        after, before = xp.astype(after, xp.float32), xp.astype(before, xp.float32)
    norm = xp.linalg.vector_norm
    size, gap = (as_numpy(norm(array, axis=-1)) for array in (before, after - before))  # (heads, rows) each
    return gap / np.where(size == 0, 1, size)
