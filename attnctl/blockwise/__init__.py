"""Statistics of a weight matrix that is never built: overview, entropies, distances, single weights, strongest links.

`sweep` goes over a `Call` of NumPy or torch arrays (heads, n, d) a block at a time, by torch. For weights that are
stored, the functions here compute the same numbers by NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from attnctl import attention
from attnctl.attention import Array, Call
from attnctl.runtime.arrays import as_numpy

LOG2_E = math.log2(math.e)
FLOOR = -1e30  # a hidden score: finite, so that a block with nothing visible still adds up; its exponential is 0
Tick = Callable[[float], None]  # receives, from any thread, the share of the work that was just done


class RowStatistics(NamedTuple):
    """Statistics of each row, and the pooled weights; every field but `logsumexp` is None unless requested."""

    logsumexp: Array  # (heads, n_q), of the masked scaled scores with sinks; -inf if no key is visible
    pooled: Array = None  # (heads, row bins, key bins)
    entropy: Array = None  # (heads, n_q), nats; a sink's share has no term
    distance: Array = None  # (heads, n_q), mean of |i - j| over what the row attends to, tokens
    spread: Array = None  # (heads, n_q), standard deviation of j, tokens
    marked: Array = None  # (heads, marks, n_q), mass on each set of marked keys, or the sum of weights times factors
    largest: Array = None  # (heads, n_q), the largest weight
    mass: Array = None  # (heads, n_q), mass on all keys: below 1 where a learned sink takes the rest
    max_logit: Array = None  # (heads, n_q), the largest scaled score of a visible key; -inf if no key is visible
    min_logit: Array = None  # (heads, n_q), the smallest one; inf if no key is visible


def neighbouring_edges(edges: Sequence[int]) -> list[tuple[int, int]]:
    """Return the bins between the edges, as pairs of an edge and the next edge."""
    return list(zip(edges, edges[1:], strict=False))


def even_edges(n: int, max_bins: int) -> list[int]:
    """Return the edges of at most `max_bins` bins over n tokens: equally wide, except the last."""
    return [*range(0, n, math.ceil(n / max_bins)), n]


def pool_keys(weights: Array, edges: Sequence[int], peaks: bool = False) -> Array:
    """Return the sum (with `peaks` the maximum) of each row's weights in each bin of keys → (heads, rows, bins)."""
    return (np.maximum if peaks else np.add).reduceat(weights, edges[:-1], -1)


def pool_rows(masses: Array, edges: Sequence[int], peaks: bool = False) -> Array:
    """Return the mean (with `peaks` the maximum) over the rows of each bin: (heads, n_q, bins) → (heads, row bins, bins)."""
    pooled = (np.maximum if peaks else np.add).reduceat(masses, edges[:-1], -2)  # (heads, row bins, bins)
    return pooled if peaks else pooled / np.diff(edges)[:, None]


def statistics_of_rows(weights: Array, positions: Array, marks: Array, logits: Array = None) -> RowStatistics:
    """Return entropy, distance, spread and marked mass of rows with stored weights (heads, rows, n_k).

    `positions` (rows,) are the positions of the queries among the keys, `marks` ([heads,] marks, n_k) those of
    `measure_rows`, `logits` (heads, rows, n_k) the scaled scores, -inf for a hidden key; None if they are unknown.
    """
    mass = weights.sum(-1)  # (heads, rows)
    total = np.where(mass == 0, 1, mass)  # (heads, rows)
    j = np.arange(weights.shape[-1])  # (n_k,)
    gap = np.abs(positions[:, None] - j)  # (rows, n_k)
    logs = np.log(weights, out=np.zeros_like(weights), where=weights > 0)  # (heads, rows, n_k)
    mean = (weights @ j / total)[..., None]  # (heads, rows, 1)
    marked = np.zeros((0, len(j)), weights.dtype) if marks is None else np.asarray(marks, weights.dtype)
    return RowStatistics(
        None,
        entropy=-(weights * logs).sum(-1),
        distance=(weights * gap).sum(-1) / total,
        spread=np.sqrt((weights * (j - mean) ** 2).sum(-1) / total),
        marked=np.swapaxes(weights @ np.swapaxes(marked, -1, -2), -1, -2),
        largest=weights.max(-1),
        mass=mass,
        max_logit=None if logits is None else logits.max(-1),
        min_logit=None if logits is None else np.where(np.isneginf(logits), np.inf, logits).min(-1),
    )


def hidden_below(bias: Array | None, temperature: float = 1.0) -> float:
    """Return the scaled score / temperature below which a key is hidden.

    A mask that differs from head to head is in the bias: the lowest number of its type hides a key.
    """
    lowest = FLOOR if bias is None else float(attention.array_namespace(bias).finfo(bias.dtype).min)
    return max(FLOOR, lowest / temperature) / 2


def call_positions(call: Call) -> Array:
    """Return the position of each query among the keys → (n_q,), integer."""
    return np.arange(call.n_q) + call.first_position


def cut_call(call: Call, lo: int, hi: int) -> Call:
    """Return the call of queries [lo, hi), with only the keys that they may see; nothing is copied."""
    n_q, n_k = call.n_q, call.n_k
    first, last = lo + call.first_position, hi - 1 + call.first_position
    smallest, largest = attention.visible_gaps(call.causal, call.window)
    b = int(min(n_k, max(last - smallest + 1, 1)))
    a = int(min(max(0, first - largest), b - 1))  # at least one key, even if none is visible

    def cut_cells(cells: Array | None) -> Array | None:
        """Return the cells (…, n_q or 1, n_k or 1) of these queries and keys."""
        if cells is None:
            return None
        cells = cells[..., lo:hi, :] if cells.shape[-2] == n_q else cells
        return cells[..., a:b] if cells.shape[-1] == n_k else cells

    return replace(
        call,
        queries=call.queries[:, lo:hi],
        keys=call.keys[:, a:b],
        values=call.values[:, a:b],
        bias=cut_cells(call.bias),
        mask=cut_cells(call.mask),
        keep=cut_cells(call.keep),
        sinks=call.sinks[..., lo:hi] if call.sinks is not None and call.sinks.ndim > 1 else call.sinks,
        offset=first - a,
    )


def count_visible(call: Call) -> Array:
    """Return the number of keys that each query sees → (n_q,)."""
    if call.mask is not None:
        rows = mask_rows(call)
        return np.concatenate([rows(lo, lo + 512).sum(-1) for lo in range(0, call.n_q, 512)])
    smallest, largest = attention.visible_gaps(call.causal, call.window)
    first = np.maximum(0, call_positions(call) - largest)  # (n_q,)
    last = np.minimum(call.n_k - 1, call_positions(call) - smallest)  # (n_q,)
    return np.maximum(last - first + 1, 0).astype(np.int64)


def seen_keys(call: Call) -> Array:
    """Return whether any query sees a key → (n_k,), boolean."""
    if call.mask is not None:
        rows = mask_rows(call)
        return np.any([rows(lo, lo + 512).any(0) for lo in range(0, call.n_q, 512)], axis=0)
    smallest, largest = attention.visible_gaps(call.causal, call.window)
    positions, keys = call_positions(call), np.arange(call.n_k)  # (n_q,), (n_k,)
    return (keys >= positions[0] - largest) & (keys <= positions[-1] - smallest)


def mask_rows(call: Call) -> Callable[[int, int], Array]:
    """Return a function that returns the mask of queries [lo, hi), with causality and window → (rows, n_k)."""
    mask = np.broadcast_to(as_numpy(call.mask), (call.n_q, call.n_k))
    places, keys = call_positions(call), np.arange(call.n_k)  # (n_q,), (n_k,)
    return lambda lo, hi: attention.visibility_mask(
        places[lo:hi], keys, causal=call.causal, window=call.window, mask=mask[lo:hi]
    )


Ranges = Sequence[tuple[int, int]]  # tokens [a, b), one stretch or several


# --- pooled ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parts:
    """Parts of one axis. The bins lie between the borders of all parts, and each bin belongs to a part."""

    edges: list[int]  # from the first token of any part to one past the last
    places: Array  # (bins, parts), 1 where a bin belongs to a part

    @property
    def sizes(self) -> Array:
        """Return the number of tokens in each part → (parts,)."""
        return self.places.T @ np.diff(self.edges)

    @classmethod
    def among(cls, parts: Sequence[Ranges], whole: int | None = None) -> Parts:
        """Return the parts, or with `whole` all tokens with the parts among them."""
        ends = {index for part in parts for span in part for index in span}
        edges = sorted(ends | (set() if whole is None else {0, whole}))
        places, bin_of_edge = np.zeros((len(edges) - 1, len(parts))), {edge: index for index, edge in enumerate(edges)}
        for index, part in enumerate(parts):
            for a, b in part:
                places[bin_of_edge[a] : bin_of_edge[b], index] = 1
        return cls(edges, places)


def pool_weights(
    blocks: Iterable[tuple[int, int, Array]], rows: Sequence[Ranges], columns: Sequence[Ranges], how: str = "mean"
) -> Array:
    """Return the weights of `sweep.pool_between_parts`, from stored weights: (first row, last + 1, (heads, rows, n_k))."""
    queries, peaks = Parts.among(rows), how == "max"
    first, last = queries.edges[0], queries.edges[-1]
    keys, masses = None, []
    for lo, hi, block in blocks:
        keys = Parts.among(columns, block.shape[-1]) if keys is None else keys
        a, b = max(lo, first), min(hi, last)
        if a < b:
            masses.append(pool_keys(block[:, a - lo : b - lo], keys.edges, peaks))  # (heads, rows, bins)
    assert keys is not None
    edges = [edge - first for edge in queries.edges]
    return joined_bins(pool_rows(np.concatenate(masses, axis=1), edges, peaks), queries, keys, how)


def joined_bins(bins: Array, rows: Parts, columns: Parts, how: str) -> Array:
    """Return bins (heads, row bins, key bins) joined into the parts → (heads, rows, columns)."""
    if how == "max":
        by_column = [bins[:, :, place].max(-1) for place in columns.places.T > 0]
        by_row = [np.stack(by_column, -1)[:, place].max(1) for place in rows.places.T > 0]
        return np.stack(by_row, 1)  # (heads, rows, columns)
    each = rows.places * np.diff(rows.edges)[:, None] / rows.sizes  # (row bins, rows)
    mass = each.T.astype(bins.dtype) @ (bins @ columns.places.astype(bins.dtype))  # (heads, rows, columns)
    return mass / columns.sizes.astype(bins.dtype) if how == "mean" else mass


def single_tokens(parts: Sequence[Ranges]) -> list[int] | None:
    """Return the token of each part if every part is a single token; else None."""
    single = all(len(part) == 1 and part[0][1] - part[0][0] == 1 for part in parts)
    return [part[0][0] for part in parts] if single else None


def parts_visible(call: Call, rows: Sequence[Ranges], columns: Sequence[Ranges]) -> Array:
    """Return whether any query of a row part sees any key of a column part → (rows, columns); None if true everywhere.

    A part of several stretches counts as everything between its ends; with a mask, parts of keys count exactly.
    """
    if call.mask is not None:
        visible = visible_mask(mask_rows(call), rows, columns)
    else:
        queries, keys = (np.array([(part[0][0], part[-1][1] - 1) for part in parts]) for parts in (rows, columns))
        position = call_positions(call)[queries]  # (rows, 2)
        smallest, largest = attention.visible_gaps(call.causal, call.window)
        widest = position[:, None, 1] - keys[None, :, 0]  # (rows, columns)
        narrowest = position[:, None, 0] - keys[None, :, 1]  # (rows, columns)
        visible = (widest >= smallest) & (narrowest <= largest)  # (rows, columns)
    return None if visible.all() else visible


def visible_mask(mask: Callable[[int, int], Array], rows: Sequence[Ranges], columns: Sequence[Ranges]) -> Array:
    """Return whether a mask shows a key of a column part to a row between the ends of a row part → (rows, columns).

    `mask` returns its rows [lo, hi), (rows, n_k).
    """
    by_row = np.stack([mask(part[0][0], part[-1][1]).any(0) for part in rows])  # (rows, n_k)
    return np.stack([np.any([by_row[:, a:b].any(1) for a, b in part], axis=0) for part in columns], 1)


def even_parts(first: int, last: int, max_parts: int) -> list[Ranges]:
    """Return at most `max_parts` parts of the tokens [first, last): equally wide, except the last."""
    return [((first + a, first + b),) for a, b in neighbouring_edges(even_edges(last - first, max_parts))]


def effective_rank(grids: Array) -> Array:
    """Return the number of directions over which a grid spreads (..., r, c) → (...): exp of its singular values' entropy.

    Source: Roy and Vetterli 2007.
    """
    singular = np.linalg.svd(grids, compute_uv=False)  # (..., min(r, c))
    total = singular.sum(-1, keepdims=True)  # (..., 1)
    share = singular / np.where(total == 0, 1, total)  # (..., min(r, c))
    logs = np.log(share, out=np.zeros_like(share), where=share > 0)
    return np.exp(-(share * logs).sum(-1))
