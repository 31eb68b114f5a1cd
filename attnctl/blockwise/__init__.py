"""Facts about a weight matrix that is never built: its overview, entropies, distances, single weights, strongest links.

Each takes a `Call` of NumPy or torch arrays, (heads, n, d), and answers NumPy arrays. Short texts have their whole matrix
built by `attention.run`; long ones are swept a block at a time (see `sweep`), and torch imported; both ways give the same
numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from attnctl import attention
from attnctl.arrays import as_numpy
from attnctl.attention import Array, Call

Tick = Callable[[float], None]
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
    tick: Tick | None = None,
) -> Facts:
    """All facts asked for, in one pass over the keys.

    `key_edges` 0 … n_k and `row_edges` 0 … n_q cut keys and rows into bins: `pooled` is the mass that the rows of a row bin
    give to a key bin, on average; with `peaks` the largest weight between them instead. `rows` asks for entropy, distance,
    spread, and the mass on each set of `marks` (marks, n_k), true where a key belongs to it. `plain` overrides `is_short`.
    `tick` hears, from any thread, which share of the work was just done. Weights are those before dropout.
    """
    if is_short(call) if plain is None else plain:
        return _measure_plain(call, key_edges, row_edges, marks, rows, peaks)
    import torch

    from attnctl.blockwise.sweep import sweep
    from attnctl.blockwise.tiles import as_torch

    with torch.inference_mode():
        chosen = None if marks is None else torch.as_tensor(np.asarray(marks), device=as_torch(call).queries.device)
        found = sweep(
            as_torch(call), key_edges=key_edges, row_edges=row_edges, marks=chosen, rows=rows, peaks=peaks, tick=tick
        )
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


def cut(call: Call, lo: int, hi: int) -> Call:
    """The call for the queries [lo, hi) alone, and for the keys that these may see; nothing is copied."""
    n_q, n_k = call.queries.shape[-2], call.keys.shape[-2]
    place = positions(call)
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
    return replace(call, **changes)


Ranges = Sequence[tuple[int, int]]  # tokens [a, b), one stretch or several


def pool(
    call: Call, rows: Sequence[Ranges], columns: Sequence[Ranges], how: str = "mean", tick: Tick | None = None
) -> Any:
    """The weights between parts of the text → (heads, rows, columns).

    `how` is mean (of the weights in a cell), max, or mass: what a query of the row part gives to the column part, on
    average. Parts may leave tokens out, and must not overlap.
    """
    n_k = call.keys.shape[-2]
    first, last = (pick(at for part in rows for span in part for at in span) for pick in (min, max))
    if (first, last) != (0, call.queries.shape[-2]):  # only these rows, but all the keys
        call = replace(
            cut(replace(call, causal=False, window=None), first, last), causal=call.causal, window=call.window
        )
    row_edges, (to_rows, sizes) = _edges_and_places(rows, first, last)
    key_edges, (to_columns, widths) = _edges_and_places(columns, 0, n_k)
    peaks = how == "max"
    found: Any = measure(
        call, key_edges=key_edges, row_edges=[at - first for at in row_edges], peaks=peaks, tick=tick
    ).pooled  # (heads, fine rows, fine columns)
    if peaks:
        by_column = [found[:, :, place].max(-1) for place in to_columns.T > 0]
        by_row = [np.stack(by_column, -1)[:, place].max(1) for place in to_rows.T > 0]
        return np.stack(by_row, 1)  # (heads, rows, columns)
    each = to_rows * np.diff(row_edges)[:, None] / sizes  # (fine rows, rows)
    mass = each.T.astype(found.dtype) @ (found @ to_columns.astype(found.dtype))  # (heads, rows, columns)
    return mass / widths.astype(found.dtype) if how == "mean" else mass


def _edges_and_places(parts: Sequence[Ranges], first: int, last: int) -> tuple[list[int], tuple[Any, Any]]:
    """Edges between all the parts' stretches, which part each bin belongs to (bins, parts), and the parts' sizes."""
    edges = sorted({first, last, *(at for part in parts for span in part for at in span)})
    places = np.zeros((len(edges) - 1, len(parts)))
    for at, part in enumerate(parts):
        for a, b in part:
            places[edges.index(a) : edges.index(b), at] = 1
    return edges, (places, places.T @ np.diff(edges))


def even(first: int, last: int, most: int) -> list[Ranges]:
    """At most `most` parts of tokens [first, last), as wide as each other but for the last."""
    return [((first + a, first + b),) for a, b in pairs(even_edges(last - first, most))]


def overview(call: Call, size: int = 256, how: str = "mean") -> Any:
    """The weights pooled to a grid of at most size × size even cells → (heads, rows, columns)."""
    n_q, n_k = call.queries.shape[-2], call.keys.shape[-2]
    return pool(call, even(0, n_q, size), even(0, n_k, size), how)


def effective_rank(grids: Any) -> Any:
    """How many directions a grid spreads over: exp of the entropy of its singular values' shares: (..., r, c) → (...).

    Source: Roy and Vetterli 2007.
    """
    singular = np.linalg.svd(grids, compute_uv=False)  # (..., min(r, c))
    total = singular.sum(-1, keepdims=True)  # (..., 1)
    share = singular / np.where(total == 0, 1, total)  # (..., min(r, c))
    logs = np.log(share, out=np.zeros_like(share), where=share > 0)
    return np.exp(-(share * logs).sum(-1))
