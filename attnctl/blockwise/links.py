"""Find the keys with the largest weights of each query of a long text; by torch.

The keys with the largest weights are those with the largest scores. So with the logsumexp of each row, no other weight is
computed, and the scores stay in a CPU's cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from attnctl.attention import Array, Call, visible_gaps
from attnctl.blockwise import FLOOR, LOG2_E, cut_call
from attnctl.blockwise.tiles import HeadGroup, as_torch, hidden_keys, open_group
from attnctl.runtime.arrays import as_numpy, place_array

ELEMENTS = 1 << 19  # scores of a block on a CPU
ON_DEVICE = 1 << 26
ROWS = 1024  # queries whose keys are cut together
CHUNK = 64  # keys whose largest score is compared first


def top_links(call: Call, count: int, logsumexp: Array) -> tuple[Array, Array]:
    """Return the `count` keys with the largest weights of each query, and these weights: two arrays (heads, n_q, count).

    The largest comes first; if fewer keys are visible, the other weights are 0. The sum of the weights is their
    coverage. `logsumexp` (heads, n_q) comes from `measure_rows`.
    """
    n_heads, n_q = call.queries.shape[0], call.n_q
    count = min(count, call.n_k)
    keys = np.zeros((n_heads, n_q, count), np.int64)
    weights = np.zeros((n_heads, n_q, count), np.float32)
    with torch.inference_mode():
        call = as_torch(replace(call, keep=None))
        sums = place_array(logsumexp, call.queries)  # (heads, n_q)
        for lo in range(0, n_q, ROWS):
            part = cut_call(call, lo, min(lo + ROWS, n_q))
            first = lo + call.first_position - int(part.offset or 0)
            for heads, a, b, best, values in _links_of_blocks(part, count, sums[:, lo : lo + ROWS]):
                place = slice(heads.start, heads.stop), slice(lo + a, lo + b), slice(best.shape[-1])
                keys[place], weights[place] = as_numpy(best) + first, as_numpy(values)
    return keys, weights


def _links_of_blocks(
    call: Call, count: int, logsumexp: torch.Tensor
) -> Iterator[tuple[range, int, int, torch.Tensor, torch.Tensor]]:
    """Yield heads, first row, last + 1, and the links of these rows: keys and weights (heads, rows, count or n_k)."""
    n_heads, n_q, n_k = call.queries.shape[0], call.n_q, call.n_k
    elements = max(ON_DEVICE if call.queries.is_cuda else ELEMENTS, n_k)
    step = max(1, min(n_heads, elements // (n_k * min(n_q, 128))))
    for start in range(0, n_heads, step):
        heads = range(start, min(start + step, n_heads))
        group = open_group(call, heads, elements)
        rows = max(1, elements // (len(heads) * n_k))
        for a in range(0, n_q, rows):
            b = min(a + rows, n_q)
            yield heads, a, b, *_strongest(group, a, b, min(count, n_k), logsumexp)


def _partly_hidden(call: Call, lo: int, hi: int) -> list[tuple[int, int]]:
    """Return the stretches [x, y) of keys of which some may be hidden from some row of [lo, hi)."""
    if call.mask is not None:
        return [(0, call.n_k)]
    smallest, largest = visible_gaps(call.causal, call.window)
    first, last = lo + call.first_position, hi - 1 + call.first_position
    begin = int(max(0, min(call.n_k, last - largest)))  # from here every row sees the keys
    end = int(max(begin, min(call.n_k, first - smallest + 1)))  # up to here
    return [(x, y) for x, y in ((0, begin), (end, call.n_k)) if x < y]


def _strongest(
    group: HeadGroup, lo: int, hi: int, count: int, logsumexp: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the keys of the largest weights of rows [lo, hi), and these weights: (heads, rows, count) each."""
    call, n_k = group.call, group.call.n_k
    scores = group.masked_scores(0, n_k, lo, hi, whole=True)  # (heads, keys, rows), nothing hidden yet
    for x, y in _partly_hidden(call, lo, hi):
        scores[:, x:y].masked_fill_(hidden_keys(call, lo, hi, x, y), FLOOR)
    n_whole = n_k // CHUNK * CHUNK
    blocks = scores[:, :n_whole].reshape(len(scores), n_whole // CHUNK, CHUNK, hi - lo)
    peaks = blocks.amax(2)  # (heads, chunks, rows)
    if n_whole < n_k:
        peaks = torch.cat([peaks, scores[:, n_whole:].amax(1, keepdim=True)], 1)
    # the largest scores lie in as many chunks with the largest peaks
    chunks = peaks.topk(min(count, peaks.shape[1]), 1, sorted=False).indices  # (heads, best chunks, rows)
    inside = torch.arange(CHUNK, device=chunks.device)[:, None]  # (keys of a chunk, 1)
    places = (chunks[:, :, None] * CHUNK + inside).flatten(1, 2)  # (heads, candidates, rows)
    candidates = scores.gather(1, places.clamp(max=n_k - 1))
    candidates.masked_fill_(places >= n_k, -torch.inf)  # the last chunk may end early
    best, order = candidates.topk(count, 1)  # (heads, count, rows), the largest first
    lse = logsumexp[group.heads.start : group.heads.stop, None, lo:hi].to(best.dtype)  # (heads, 1, rows)
    # a weight is above 1 only by rounding; the logsumexp of a row that sees nothing is -inf
    weights = best.sub_(lse * LOG2_E).clamp_(max=0).exp2_().mul_(lse.isfinite())
    return places.gather(1, order).mT, weights.mT
