"""Read the masks of a call of attention as intervals: for each head if they differ, and for each text of its batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from attnctl import attention
from attnctl.attention import Array, Call
from attnctl.commands.mask.exchange import CallMasks
from attnctl.commands.mask.intervals import band, masks_of_rows
from attnctl.models.exchange import visible_pairs_of_heads
from attnctl.runtime.arrays import Bools


def masks_of_call(call: Call) -> CallMasks:
    """Return what a call of attention lets through: for each head if they differ, and for each text of its batch."""
    batch = int(call.queries.shape[:-3].numel())
    if call.mask is None and call.bias is None:
        smallest, largest = attention.visible_gaps(call.causal, call.window)
        return ((band((call.n_q, call.n_k), largest, -smallest, call.first_position),) * batch,)

    def rows(lo: int, hi: int) -> Array:
        part = attention.select_call(call, rows=list(range(lo, hi)))
        return visible_pairs_of_heads(part).reshape(batch, -1, hi - lo, call.n_k)

    return masks_of_heads((call.n_q, call.n_k), rows)


def masks_of_heads(shape: tuple[int, int], rows: Callable[[int, int], Array]) -> CallMasks:
    """Return masks for each head, or one for all if they are alike, and in it for each row of the batch.

    `rows` returns the queries [lo, hi) as (batch, heads, hi - lo, n_k).
    """
    batch, heads = rows(0, 1).shape[:2]

    def flat(lo: int, hi: int) -> Bools:
        shown: Bools = rows(lo, hi).transpose(0, 1).reshape(heads * batch, hi - lo, shape[1]).cpu().numpy()
        return shown

    masks = masks_of_rows(shape, flat, heads * batch)
    of_heads = tuple(masks[first : first + batch] for first in range(0, len(masks), batch))
    alike = all(keys_of_masks(of_heads[:1]) == keys_of_masks((other,)) for other in of_heads[1:])
    return of_heads[:1] if alike else of_heads


def keys_of_masks(masks: CallMasks) -> list[list[bytes]]:
    """Return bytes that are the same for equal masks."""
    return [[mask.key for mask in rows] for rows in masks]


def rows_of_block_mask(
    block_mask: Any, batch: int, heads: int, n: int, device: torch.device, lo: int, hi: int
) -> Array:
    """Return which keys the queries [lo, hi) see by a BlockMask of FlexAttention → (batch, heads, hi - lo, n)."""
    from torch.nn.attention.flex_attention import create_mask

    def shifted(text: Array, head: Array, query: Array, key: Array) -> Array:
        return block_mask.mask_mod(text, head, query + lo, key)

    return create_mask(shifted, batch, heads, hi - lo, n, device=str(device))
