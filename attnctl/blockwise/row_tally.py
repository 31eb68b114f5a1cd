"""Keep the statistics of each row over the blocks of keys, and finish them after the last block."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from attnctl.attention import Array, Call
from attnctl.blockwise import FLOOR


class Rows(NamedTuple):
    """The statistics of each row over the keys so far, all (heads, n_q); means are over these keys alone."""

    logsumexp: torch.Tensor
    entropy: torch.Tensor
    distance: torch.Tensor
    position: torch.Tensor
    variance: torch.Tensor
    marked: torch.Tensor  # (heads, marks, n_q)
    top: torch.Tensor  # the largest score
    bottom: torch.Tensor  # the smallest score of a visible key; -FLOOR before there is one

    @classmethod
    def empty(cls, like: torch.Tensor, heads: int, n_q: int, marks: int) -> Rows:
        """Return the statistics of rows before the first key."""
        a, b, c, d = like.new_zeros(4, heads, n_q)
        unseen, top = like.new_full((2, heads, n_q), FLOOR)
        return cls(unseen, a, b, c, d, like.new_zeros(heads, marks, n_q), top, torch.full_like(top, -FLOOR))

    def add_block(self, lo: int, hi: int, block: Rows) -> None:
        """Add the statistics of rows [lo, hi) over a block of keys: each side counts by its share of the sum."""
        mine = Rows(*(part[..., lo:hi] for part in self))  # views
        joined = torch.logaddexp(mine.logsumexp, block.logsumexp)  # (heads, rows)
        p, q = (mine.logsumexp - joined).exp(), (block.logsumexp - joined).exp()  # (heads, rows)
        # a choice in two steps; every term is positive, so nothing cancels
        choice = p * (joined - mine.logsumexp) + q * (joined - block.logsumexp)  # (heads, rows)
        gap = block.position - mine.position  # (heads, rows)
        mine.entropy.mul_(p).addcmul_(q, block.entropy).add_(choice)
        mine.variance.mul_(p).addcmul_(q, block.variance).add_(p * q * gap * gap)  # Chan, Golub and LeVeque 1979
        mine.distance.mul_(p).addcmul_(q, block.distance)
        mine.position.mul_(p).addcmul_(q, block.position)
        torch.maximum(mine.top, block.top, out=mine.top)
        torch.minimum(mine.bottom, block.bottom, out=mine.bottom)
        mine.marked.mul_(p[:, None]).addcmul_(q[:, None], block.marked)
        mine.logsumexp.copy_(joined)


def share_with_sinks(call: Call, heads: range, lse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logsumexp with the sinks of these heads in it, and the log of the keys' share: (heads, n_q) each."""
    if call.sinks is None:
        return lse, torch.zeros_like(lse)
    sinks = call.sinks[:, None] if call.sinks.ndim == 1 else call.sinks  # (every head, 1 or n_q)
    sinks = sinks[heads.start : heads.stop].to(lse.dtype) / call.temperature  # (heads, 1 or n_q)
    return torch.logaddexp(lse, sinks), -torch.nn.functional.softplus(sinks - lse)


def row_fields(
    rows: Rows, lse: torch.Tensor, log_share: torch.Tensor, sees_key: torch.Tensor, temperature: float
) -> tuple[Array, ...]:
    """Return entropy and all fields of `RowStatistics` after it.

    `sees_key` (heads, n_q) is true for a row that sees a key. `temperature` is the call's, by which the scores of `rows`
    are divided.
    """
    share = log_share.exp() * sees_key  # (heads, n_q)
    entropy = (rows.entropy - log_share) * share  # (heads, n_q)
    largest = (rows.top - lse).clamp(max=0).exp() * sees_key  # (heads, n_q), above 1 only by rounding
    return (
        entropy,
        rows.distance * sees_key,
        rows.variance.sqrt() * sees_key,
        rows.marked * share[:, None],
        largest,
        share,
        (rows.top * temperature).masked_fill(~sees_key, -math.inf),
        (rows.bottom * temperature).masked_fill(~sees_key, math.inf),
    )
