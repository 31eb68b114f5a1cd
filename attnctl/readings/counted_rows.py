"""The queries over which a statistic is a mean: those that see something and are no padding."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attnctl.attention import Array
from attnctl.blockwise import Ranges
from attnctl.layer import LayerAttention
from attnctl.runtime.arrays import Bools, Floats
from attnctl.trace.notes import Note


@dataclass(frozen=True)
class CountedRows:
    """The rows of a layer that count in a mean, and the keys that are no padding."""

    by_head: Bools  # (heads, n_q)
    keys: Bools  # (n_k,)

    @cached_property
    def rows(self) -> Bools:
        """Return the rows that count in any head → (n_q,)."""
        return np.asarray(self.by_head.any(0), bool)

    @property
    def whole(self) -> bool:
        """Return whether every row counts, and no key is padding."""
        return bool(self.by_head.all() and self.keys.all())

    @property
    def first_key(self) -> int:
        """Return the first key that is no padding."""
        return int(self.keys.argmax())

    @property
    def first_row(self) -> int:
        """Return the first row that counts."""
        return int(self.rows.argmax())

    @property
    def last_row(self) -> int:
        """Return the last row that counts."""
        return len(self.rows) - 1 - int(self.rows[::-1].argmax())

    @property
    def stretches(self) -> Ranges:
        """Return the rows that count, as stretches [a, b)."""
        edges = np.flatnonzero(np.diff(np.r_[False, self.rows, False].astype(np.int8)))
        return tuple((int(a), int(b)) for a, b in edges.reshape(-1, 2))

    def mean(self, values: Array) -> Array:
        """Return the mean over the rows that count: (heads, …, n_q) → (heads, …), NaN for a head without such rows."""
        counted = self.by_head.reshape(len(self.by_head), *(1,) * (values.ndim - 2), -1)[..., -values.shape[-1] :]
        if counted.all():
            return values.mean(-1)
        return mean_where(values, np.broadcast_to(counted, values.shape))


def mean_where(values: Array, counted: Bools) -> Array:
    """Return the mean over the last axis of the values where `counted`, in the same shape, is true; NaN without any."""
    total = np.where(counted, values, 0).sum(-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return total / counted.sum(-1)


def counted_rows(
    layer: LayerAttention, mass: Floats, left_out: Sequence[int], *, reads_itself: bool, has_sink: bool
) -> CountedRows:
    """Return the rows of a layer that count: `mass` (heads, n_q) is what each row gives to its keys.

    In a text that reads itself, a token is padding if no query sees it, not even its own, while other tokens see
    themselves. Keys that were `left_out` are no padding.
    """
    keys = np.array(layer.seen_keys())  # (n_k,)
    keys[list(left_out)] = True
    sees = layer.visible_counts() > 0  # (n_q,)
    if reads_itself and not keys.all():
        itself = np.arange(layer.n_q)[:, None]  # (n_q, 1)
        if layer.visible_at(itself, itself).any():
            sees = sees & keys
    # beside a learned sink, the mass of a row that sees keys may round to 0
    return CountedRows(sees & ((mass > 0) | has_sink), keys)


def count_notes(counted: Collection[Bools]) -> tuple[Note, ...]:
    """Return a note about the rows that count, true in the array (n_q,) of each layer; () if all do."""
    counts, totals = [int(rows.sum()) for rows in counted], [len(rows) for rows in counted]
    if counts == totals:
        return ()
    low, high = min(counts), max(counts)
    number = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    sentence = f"Means are over {number} of {max(totals):,} queries: the others see nothing, or are padding."
    return (Note(sentence, "unseen"),)
