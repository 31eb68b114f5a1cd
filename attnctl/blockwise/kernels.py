"""Triton kernels of a sweep on a CUDA device: tiles of scores live in registers and never reach the device's memory.

The first pass computes each row's logsumexp, largest score and mean gap, online (Milakov and Gimelshein 2018). With
these, the second pass computes each weight as one exponential, and adds up the weights by cells of the picture and by
rows. Neither pass reads values, so each costs half of a fused forward.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def tile_scores(
    q, k_ptr, keys, last, gap, least, greatest, scale, cap, k_row: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr,
    FLOOR: tl.constexpr, CAPPED: tl.constexpr,
):  # fmt: skip
    """Return masked scaled scores of one tile in powers of two: queries (rows, d), keys (keys,) → (rows, keys).

    With `CAPPED` a score s becomes `cap` tanh(`scale` s), else `scale` s.
    """
    d = tl.arange(0, WIDE)
    k = tl.load(k_ptr + keys[None, :] * k_row + d[:, None], mask=(keys[None, :] < last) & (d[:, None] < D), other=0.0)
    scores = tl.dot(q, k, input_precision="tf32x3") * scale  # (rows, keys)
    if CAPPED:
        scores = cap - 2 * cap / (1 + tl.exp2(scores * 2.8853900817779268))  # tanh x = 1 - 2 / (1 + e^2x)
    return tl.where((gap >= least) & (gap <= greatest) & (keys[None, :] < last), scores, FLOOR)


@triton.jit
def first_pass(
    q_ptr, k_ptr, lse_ptr, top_ptr, bottom_ptr, mean_ptr, n_q, n_k, offset, least, greatest, scale, cap, q_head,
    q_row: tl.constexpr, k_head, k_row: tl.constexpr, SHARE: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, FLOOR: tl.constexpr, CAPPED: tl.constexpr, MOMENTS: tl.constexpr,
):  # fmt: skip
    """Store each row's logsumexp, largest and smallest score (powers of two) and its mean gap i - j (tokens)."""
    tile, head = (
        tl.num_programs(0) - 1 - tl.program_id(0),
        tl.program_id(1),
    )  # under causality the last rows are the longest
    rows, d = tile * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDE)
    inside = rows < n_q
    q_ptr += head.to(tl.int64) * q_head
    k_ptr += (head // SHARE).to(tl.int64) * k_head
    q = tl.load(q_ptr + rows[:, None] * q_row + d[None, :], mask=inside[:, None] & (d[None, :] < D), other=0.0)
    positions = rows + offset  # (rows,)
    begin = tl.maximum(tile * ROWS + offset - greatest, 0) // KEYS * KEYS
    end = tl.minimum(tl.minimum(tile * ROWS + ROWS, n_q) - 1 + offset - least + 1, n_k)
    top = tl.full((ROWS,), FLOOR, tl.float32)
    bottom = tl.full((ROWS,), -FLOOR, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    moment = tl.zeros((ROWS,), tl.float32)
    for start in range(begin, end, KEYS):
        keys = start + tl.arange(0, KEYS)
        gap = positions[:, None] - keys[None, :]  # (rows, keys)
        scores = tile_scores(q, k_ptr, keys, n_k, gap, least, greatest, scale, cap, k_row, D, WIDE, FLOOR, CAPPED)
        highest = tl.maximum(top, tl.max(scores, 1))
        e = tl.exp2(scores - highest[:, None])
        shrink = tl.exp2(top - highest)
        total = total * shrink + tl.sum(e, 1)
        if MOMENTS:
            moment = moment * shrink + tl.sum(e * gap.to(tl.float32), 1)
            bottom = tl.minimum(bottom, tl.min(tl.where(scores <= FLOOR / 2, -FLOOR, scores), 1))
        top = highest
    unseen = top <= FLOOR / 2
    place = head.to(tl.int64) * n_q + rows
    tl.store(lse_ptr + place, tl.where(unseen, FLOOR, top + tl.log2(total)), mask=inside)
    tl.store(top_ptr + place, top, mask=inside)
    if MOMENTS:
        tl.store(mean_ptr + place, tl.where(unseen, 0.0, moment / total), mask=inside)
        tl.store(bottom_ptr + place, bottom, mask=inside)


@triton.jit
def second_pass(
    q_ptr, k_ptr, lse_ptr, mean_ptr, share_ptr, marks_ptr, row_cuts, key_cuts, first_tiles, last_tiles, cells_ptr,
    entropy_ptr, distance_ptr, variance_ptr, marked_ptr, n_q, n_k, n_row_tiles, n_key_tiles, n_marks, marks_head, offset,
    least, greatest, scale, cap, q_head, q_row: tl.constexpr, k_head, k_row: tl.constexpr, SHARE: tl.constexpr,
    D: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, FLOOR: tl.constexpr, CAPPED: tl.constexpr,
    POOLED: tl.constexpr, PEAKS: tl.constexpr, MOMENTS: tl.constexpr, BOTH_SIDES: tl.constexpr, MARKS: tl.constexpr,
):  # fmt: skip
    """Store the sum (or largest) of the weights of each tile, and each row's entropy, distance, variance and marked mass."""
    tile, head = tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1)
    lo, hi = tl.load(row_cuts + tile), tl.load(row_cuts + tile + 1)
    rows, d = lo + tl.arange(0, ROWS), tl.arange(0, WIDE)
    inside = rows < hi
    q_ptr += head.to(tl.int64) * q_head
    k_ptr += (head // SHARE).to(tl.int64) * k_head
    q = tl.load(q_ptr + rows[:, None] * q_row + d[None, :], mask=inside[:, None] & (d[None, :] < D), other=0.0)
    place = head.to(tl.int64) * n_q + rows
    lse = tl.load(lse_ptr + place, mask=inside, other=FLOOR)
    lse = tl.where(lse <= FLOOR / 2, -FLOOR, lse)  # a row that sees nothing: its weights are 0
    share = tl.load(share_ptr + place, mask=inside, other=0.0)
    positions = rows + offset  # (rows,)
    entropy = tl.zeros((ROWS,), tl.float32)
    distance = tl.zeros((ROWS,), tl.float32)
    variance = tl.zeros((ROWS,), tl.float32)
    marked = tl.zeros((ROWS, 16), tl.float32)
    mean = tl.zeros((ROWS,), tl.float32)
    if MOMENTS:
        mean = tl.load(mean_ptr + place, mask=inside, other=0.0)
    for tile_k in range(tl.load(first_tiles + tile), tl.load(last_tiles + tile)):
        a, b = tl.load(key_cuts + tile_k), tl.load(key_cuts + tile_k + 1)
        keys = a + tl.arange(0, KEYS)
        gap = positions[:, None] - keys[None, :]  # (rows, keys)
        scores = tile_scores(q, k_ptr, keys, b, gap, least, greatest, scale, cap, k_row, D, WIDE, FLOOR, CAPPED)
        logs = tl.minimum(scores - lse[:, None], 0.0)  # (rows, keys); above 0 only by rounding
        weights = tl.exp2(logs)  # (rows, keys)
        if POOLED:
            if PEAKS:  # noqa: SIM108, Triton compiles one branch
                cell = tl.max(tl.max(weights, 1) * share, 0)
            else:
                cell = tl.sum(tl.sum(weights, 1) * share, 0)
            tl.store(cells_ptr + (head.to(tl.int64) * n_row_tiles + tile) * n_key_tiles + tile_k, cell)
        if MOMENTS:
            tokens = gap.to(tl.float32)
            entropy -= tl.sum(weights * logs, 1)
            if BOTH_SIDES:
                distance += tl.sum(weights * tl.abs(tokens), 1)
            apart = tokens - mean[:, None]
            variance += tl.sum(weights * apart * apart, 1)
        if MARKS:
            m = tl.arange(0, 16)
            marks = tl.load(
                marks_ptr + head.to(tl.int64) * marks_head + m[None, :] * n_k + keys[:, None],
                mask=(keys[:, None] < b) & (m[None, :] < n_marks),
                other=0.0,
            )  # (keys, 16)
            marked = tl.dot(weights, marks, marked, input_precision="tf32x3")
    if MOMENTS:
        tl.store(entropy_ptr + place, entropy, mask=inside)
        tl.store(distance_ptr + place, distance if BOTH_SIDES else mean, mask=inside)
        tl.store(variance_ptr + place, variance, mask=inside)
    if MARKS:
        m = tl.arange(0, 16)
        spot = marked_ptr + (head.to(tl.int64) * n_marks + m[None, :]) * n_q + rows[:, None]
        tl.store(spot, marked, mask=inside[:, None] & (m[None, :] < n_marks))
