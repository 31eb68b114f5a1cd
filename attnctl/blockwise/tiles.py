"""Blocks of scores with the keys first, (heads, keys, rows): the working memory of a sweep."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib.util import find_spec
from shutil import which

import numpy as np
import torch

from attnctl import attention
from attnctl.attention import Array, Call
from attnctl.blockwise import FLOOR, LOG2_E, hidden_below


def as_torch(call: Call) -> Call:
    """Return the call with torch tensors as its arrays; NumPy arrays are not copied. Raises ValueError unless 3-D."""

    def as_tensor(array: Array | None) -> Array:
        return torch.from_numpy(np.ascontiguousarray(array)) if isinstance(array, np.ndarray) else array

    if call.queries.ndim != 3:
        raise ValueError(f"queries have shape {tuple(call.queries.shape)}: one text at a time, (heads, n, d)")
    return replace(
        call,
        queries=as_tensor(call.queries),
        keys=as_tensor(call.keys),
        values=as_tensor(call.values),
        bias=as_tensor(call.bias),
        mask=as_tensor(call.mask),
        sinks=as_tensor(call.sinks),
        keep=as_tensor(call.keep),
    )


# --- which rows see which keys -----------------------------------------------------------------------------------


def row_tiles(call: Call, a: int, b: int, max_rows: int) -> Iterator[tuple[int, int, bool]]:
    """Yield ranges [lo, hi) of at most `max_rows` rows that see a key of [a, b), and whether every row sees all these keys.

    Arithmetic decides causality and windows; only tiles on a border need a mask.
    """
    n_q, offset = call.n_q, call.first_position
    smallest, largest = attention.visible_gaps(call.causal, call.window)
    some_keys = (a + smallest, b + largest)  # queries at these positions, the last excluded, see a key of the block
    all_keys = (b - 1 + smallest, a + largest + 1)  # these, the last excluded, every key
    # tiles of few rows cost more than a mask
    few = some_keys[1] - some_keys[0] <= 2 * (b - a)
    borders = some_keys if few else (*some_keys, *all_keys, a, b)
    cuts = sorted({0, n_q, *(int(row) - offset for row in borders if math.isfinite(row) and 0 < row - offset < n_q)})
    for lo, hi in zip(cuts, cuts[1:], strict=False):
        first, last = lo + offset, hi - 1 + offset
        if last < some_keys[0] or first >= some_keys[1]:
            continue
        whole = call.mask is None and first >= all_keys[0] and last < all_keys[1]
        for row in range(lo, hi, max_rows):
            yield row, min(row + max_rows, hi), whole


def hidden_keys(call: Call, lo: int, hi: int, a: int, b: int) -> torch.Tensor:
    """Return true where key [a, b) is hidden from query [lo, hi) → (keys, rows)."""
    first, device = lo + call.first_position - a, call.queries.device  # position of the first query from key a
    if call.mask is None:
        return _hidden_by_distance(call.causal, call.window, first, hi - lo, b - a, device)
    mask = torch.broadcast_to(call.mask, (call.n_q, call.n_k))[lo:hi, a:b]  # (rows, keys)
    return _hidden(call.causal, call.window, first, b - a, mask)


@lru_cache(maxsize=8)
def _hidden_by_distance(
    causal: bool, window: int | None, first: int, rows: int, keys: int, device: torch.device
) -> torch.Tensor:
    """Return the same without a mask: every block of a head and every head have the same few tiles on their borders."""
    with torch.inference_mode():
        return _hidden(causal, window, first, keys, torch.ones(rows, keys, dtype=torch.bool, device=device))


def _hidden(causal: bool, window: int | None, first: int, keys: int, mask: torch.Tensor) -> torch.Tensor:
    positions = torch.arange(first, first + len(mask), device=mask.device)  # (rows,)
    visible: Array = attention.visibility_mask(
        positions, torch.arange(keys, device=mask.device), causal=causal, window=window, mask=mask
    )
    return torch.logical_not(visible.T).contiguous()  # (keys, rows)


# --- some heads, ready to sweep ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeadGroup:
    """Some heads of a call, laid out for blocks: queries scaled and transposed, one key head for each query head.

    Scores are in bits, log2(e) of the natural ones: exp is three times slower than exp2, and ten times for results near 0.
    """

    call: Call
    heads: range
    queries: torch.Tensor  # (heads, d, n_q), times the scale where nothing but the softmax follows
    keys: torch.Tensor  # (heads, n_k, d)
    bias: torch.Tensor | None  # (heads, n_q, n_k)
    buffers: tuple[torch.Tensor, torch.Tensor]

    def masked_scores(self, a: int, b: int, lo: int, hi: int, whole: bool) -> torch.Tensor:
        """Return the masked scaled scores of keys [a, b) and rows [lo, hi), in the first buffer → (heads, keys, rows)."""
        block = shaped_buffer(self.buffers[0], len(self.keys), b - a, hi - lo)
        torch.bmm(self.keys[:, a:b], self.queries[:, :, lo:hi], out=block)  # (heads, keys, rows)
        call = self.call
        if call.bends_scores:
            bias = None if self.bias is None else self.bias[:, lo:hi, a:b].mT.to(block.dtype)  # (heads, keys, rows)
            bent = call.scaled_part(block, bias)  # (heads, keys, rows)
            torch.mul(bent, LOG2_E / call.temperature, out=block).clamp_(min=FLOOR)
        if not whole:
            block.masked_fill_(hidden_keys(call, lo, hi, a, b), FLOOR)
        return block

    def smallest_visible(self, scores: torch.Tensor, whole: bool) -> torch.Tensor:
        """Return the smallest of the scores (heads, keys, rows) of visible keys → (heads, rows), -FLOOR if none is visible.

        The second buffer is overwritten.
        """
        if whole and self.bias is None:
            return scores.amin(1)
        hidden = scores <= hidden_below(self.bias, self.call.temperature / LOG2_E)  # (heads, keys, rows)
        visible = shaped_buffer(self.buffers[1], *scores.shape)
        return torch.where(hidden, scores.new_tensor(-FLOOR), scores, out=visible).amin(1)


FUSED_FROM = 1 << 22  # queries × keys: below that the compilation of a kernel takes longer than the sweep
FUSED_MARKS = 16  # sets of marked keys that a kernel can add up


def is_fusible(call: Call) -> bool:
    """Return whether the kernels of `blockwise.fused` take the call: long, on a CUDA device, without bias or mask."""
    q = call.queries
    if not q.is_cuda or q.dtype.itemsize > 4 or q.shape[-1] > 256 or call.n_q * call.n_k < FUSED_FROM:
        return False
    return call.bias is None and call.mask is None and has_triton()


@cache
def has_triton() -> bool:
    """Return whether Triton can compile the kernels here.

    Triton needs a C compiler. The kernels need an NVIDIA GPU of Ampere or later: older ones have neither tf32 nor bfloat16.
    """
    if torch.version.cuda is None or find_spec("triton") is None:
        return False
    compilers = (os.environ.get("CC", ""), "cc", "gcc", "clang")
    return any(which(name) for name in compilers if name) and torch.cuda.get_device_capability()[0] >= 8


def shaped_buffer(buffer: torch.Tensor, *shape: int) -> torch.Tensor:
    """Return the front of a flat buffer as an array of `shape`."""
    return buffer[: math.prod(shape)].view(shape)


def open_group(call: Call, heads: range, elements: int) -> HeadGroup:
    """Return these heads with their own buffers."""
    n_heads, share = call.queries.shape[0], call.queries.shape[0] // call.keys.shape[0]
    dtype = torch.float64 if call.queries.dtype == torch.float64 else torch.float32
    factor = 1.0 if call.bends_scores else call.effective_scale * LOG2_E / call.temperature
    q = (call.queries[heads.start : heads.stop].to(dtype) * factor).mT.contiguous()  # (heads, d, n_q)
    k = call.keys[[head // share for head in heads]].to(dtype)  # (heads, n_k, d)
    bias = None
    if call.bias is not None:
        whole = torch.broadcast_to(call.bias, (n_heads, call.n_q, call.n_k))
        bias = whole[heads.start : heads.stop]  # (heads, n_q, n_k)
    first, second = torch.empty(2, elements, dtype=dtype, device=q.device)
    return HeadGroup(call, heads, q, k, bias, (first, second))
