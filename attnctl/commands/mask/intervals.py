"""A mask as intervals of keys: its memory grows with the number of tokens, not with the number of their pairs.

A mask of n tokens that is causal, a window, a prefix or segments has a few intervals in each row. Only a mask without
order, such as a table that a user draws up, has as many intervals as pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

import numpy as np

from attnctl.checks.document_fields import Count, Part, Places, about
from attnctl.runtime.arrays import Bools, Floats, Ints

PLAIN = 512 * 512  # pairs of tokens, up to which a matrix is written whole
CELLS = 1 << 22  # pairs of tokens whose visibility is in memory together


class IntervalMask(Part, eq=False):
    """A mask as intervals: query[k] sees the keys from first[k] to last[k], both included, for each interval k."""

    shape: Annotated[tuple[Count, Count], about("The numbers of queries and of keys.")]
    query: Annotated[Places, about("The query of each interval, in rising order.")]
    first: Annotated[Places, about("The first key of each interval.")]
    last: Annotated[Places, about("The last key of each interval.")]

    # the intervals of a row are in rising order and do not touch, so equal masks have equal arrays

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Bools:
        """Return the whole matrix (n_q, n_k) for `numpy.asarray`. Its memory grows with n_q · n_k."""
        n_q, n_k = self.shape
        flips = np.zeros(n_q * (n_k + 1), np.bool_)
        flips[self._edges] = True
        matrix: Bools = np.logical_xor.accumulate(flips).reshape(n_q, n_k + 1)[:, :-1].astype(dtype or np.bool_)
        return matrix

    @property
    def _edges(self) -> Ints:
        """Return where what is visible begins and ends, in turn, in all rows one after the other: (2 · intervals,).

        A hidden cell follows each row, so that no interval goes on in the next row.
        """
        before = self.query * (self.shape[1] + 1)
        return np.stack([before + self.first, before + self.last + 1], 1).ravel()

    @property
    def key(self) -> bytes:
        """Return bytes that are the same for equal masks of the same shape alone."""
        return self._edges.tobytes()

    @property
    def pairs(self) -> int:
        """Return the number of visible pairs."""
        return int((self.last - self.first + 1).sum())

    @property
    def is_full(self) -> bool:
        """Return whether every query sees every key."""
        return self.pairs == self.shape[0] * self.shape[1]

    def keys_of_queries(self) -> Ints:
        """Return how many keys each query sees → (n_q,)."""
        return np.bincount(self.query, self.last - self.first + 1, self.shape[0]).astype(np.int64)

    def queries_of_keys(self) -> Ints:
        """Return how many queries see each key → (n_k,)."""
        begins, ends = (np.bincount(places, minlength=self.shape[1] + 1) for places in (self.first, self.last + 1))
        return np.cumsum(begins - ends)[:-1]

    def row(self, query: int) -> Bools:
        """Return the keys that a query sees → (n_k,)."""
        keys = np.zeros(self.shape[1], np.bool_)
        begin, end = np.searchsorted(self.query, [query, query + 1])
        for first, last in zip(self.first[begin:end], self.last[begin:end], strict=True):
            keys[first : last + 1] = True
        return keys

    def row_keys(self) -> list[bytes]:
        """Return bytes for each query, which are the same for queries that see the same keys."""
        starts = np.searchsorted(self.query, np.arange(self.shape[0] + 1)).tolist()
        ends = np.stack([self.first, self.last], 1)
        return [ends[begin:end].tobytes() for begin, end in zip(starts, starts[1:], strict=False)]

    def sees(self, keys: Bools) -> Bools:
        """Return whether each query sees any of some keys (n_k,) → (n_q,)."""
        before = np.append(0, np.cumsum(keys))
        seeing = np.zeros(self.shape[0], np.bool_)
        seeing[self.query[before[self.last + 1] > before[self.first]]] = True
        return seeing

    def seen_by(self, queries: Bools) -> Bools:
        """Return whether any of some queries (n_q,) sees each key → (n_k,)."""
        return self._some(queries[self.query]).queries_of_keys() > 0

    def cut(self, queries: Bools, keys: Bools) -> IntervalMask:
        """Return the mask of some queries (n_q,) and some keys (n_k,) alone."""
        chosen, before = self._some(queries[self.query]), np.append(0, np.cumsum(keys))
        shape = int(queries.sum()), int(keys.sum())
        places = np.cumsum(queries) - 1
        return intervals(shape, places[chosen.query], before[chosen.first], before[chosen.last + 1] - 1)

    def square(self, first: int, last: int) -> IntervalMask:
        """Return the mask of the queries and keys from first to last alone."""
        part, n = self._some(slice(*np.searchsorted(self.query, [first, last + 1]))), last - first + 1
        return intervals((n, n), part.query - first, part.first - first, part.last - first)

    def _some(self, chosen: Any) -> IntervalMask:
        return IntervalMask(self.shape, self.query[chosen], self.first[chosen], self.last[chosen])

    def pooled(self, rows: Sequence[int], columns: Sequence[int]) -> Floats:
        """Return the share of visible pairs between the edges of bins of queries and of keys → (row bins, key bins)."""
        bins = np.searchsorted(rows, self.query, "right") - 1
        steps = np.zeros((len(rows) - 1, self.shape[1] + 1), np.int64)
        np.add.at(steps, (bins, self.first), 1)
        np.add.at(steps, (bins, self.last + 1), -1)
        sums = np.add.reduceat(np.cumsum(steps, 1)[:, :-1], columns[:-1], 1)  # (row bins, key bins)
        shares: Floats = (sums / (np.diff(rows)[:, None] * np.diff(columns))).astype(np.float32)
        return shares

    def __and__(self, other: IntervalMask) -> IntervalMask:
        return self._joined(other, 2)

    def __or__(self, other: IntervalMask) -> IntervalMask:
        return self._joined(other, 1)

    def __invert__(self) -> IntervalMask:
        every = outer(np.ones(self.shape[0], np.bool_), np.ones(self.shape[1], np.bool_))
        return _between(self.shape, np.setxor1d(every._edges, self._edges, assume_unique=True))

    def __sub__(self, other: IntervalMask) -> IntervalMask:
        return self & ~other

    def _joined(self, other: IntervalMask, least: int) -> IntervalMask:
        """Return the pairs that are visible in at least so many of two masks of the same shape."""
        places = np.concatenate([self._edges, other._edges])
        order = np.argsort(places, kind="stable")
        places, depth = places[order], np.cumsum(np.resize([1, -1], len(places))[order])
        is_last = np.diff(places, append=-1) != 0  # of the edges at the same place
        visible = depth[is_last] >= least
        return _between(self.shape, places[is_last][np.diff(visible, prepend=False)])


def _between(shape: tuple[int, int], edges: Ints) -> IntervalMask:
    """Return the mask with these edges, which `IntervalMask._edges` describes."""
    query, first = np.divmod(edges[::2], shape[1] + 1)
    return IntervalMask(shape, query, first, edges[1::2] - query * (shape[1] + 1) - 1)


# --- made of what is known of the tokens ------------------------------------------------------------------------------


def intervals(shape: tuple[int, int], query: Ints, first: Any, last: Any) -> IntervalMask:
    """Return a mask from intervals in any order, (intervals,) each. Those of a row may touch, but not overlap.

    Keys outside of the mask are left out.
    """
    first, last = np.maximum(first, 0), np.minimum(last, shape[1] - 1)
    some, before = first <= last, query * (shape[1] + 1)
    edges = np.concatenate([before + first, before + last + 1])[np.tile(some, 2)].astype(np.int64)
    places, counts = np.unique(edges, return_counts=True)
    return _between(shape, places[counts == 1])  # where one interval ends and another begins, nothing ends


def band(shape: tuple[int, int], back: float, ahead: float, offset: int = 0) -> IntervalMask:
    """Return the mask in which a query sees `back` keys before it and `ahead` behind it; infinite: all.

    `offset` is the place of the first query among the keys.
    """
    place = np.arange(shape[0]) + offset
    return intervals(shape, np.arange(shape[0]), place - back, place + ahead)


def outer(queries: Bools, keys: Bools) -> IntervalMask:
    """Return the mask in which some queries (n_q,) see some keys (n_k,)."""
    edges, seeing = np.flatnonzero(np.diff(keys, prepend=False, append=False)), np.flatnonzero(queries)
    count = len(edges) // 2
    query, first, last = np.repeat(seeing, count), np.tile(edges[::2], len(seeing)), np.tile(edges[1::2], len(seeing))
    return IntervalMask((len(queries), len(keys)), query, first, last - 1)


def same(numbers: Ints, seeing: Bools | None = None) -> IntervalMask:
    """Return the mask in which tokens see the tokens with the same number (n,); `seeing` (n,): only these tokens see any."""
    n = len(numbers)
    begins = np.flatnonzero(np.diff(numbers, prepend=numbers[0] - 1))  # of the runs of equal numbers
    ends = np.append(begins[1:], n)
    order = np.argsort(numbers[begins], kind="stable")
    low, high = (np.searchsorted(numbers[begins][order], numbers, side) for side in ("left", "right"))
    counts = high - low if seeing is None else np.where(seeing, high - low, 0)  # (n,), of the runs that a token sees
    query = np.repeat(np.arange(n), counts)
    runs = order[np.arange(len(query)) - np.repeat(np.cumsum(counts) - counts - low, counts)]
    return intervals((n, n), query, begins[runs], ends[runs] - 1)


# --- from and to a matrix ---------------------------------------------------------------------------------------------


def interval_mask(mask: Bools | IntervalMask) -> IntervalMask:
    """Return a matrix (n_q, n_k) as intervals."""
    return mask if isinstance(mask, IntervalMask) else masks_of_rows(mask.shape, lambda lo, hi: mask[None, lo:hi])[0]


def checked_intervals(mask: IntervalMask) -> IntervalMask:
    """Return the mask of a document. Raises ValueError if its intervals are not in order, or leave its shape."""
    n_q, n_k = mask.shape
    query, first, last = mask.query, mask.first, mask.last
    if not len(query) == len(first) == len(last):
        raise ValueError(f"it has {len(query)} queries, {len(first)} first keys and {len(last)} last keys")
    rising = (np.diff(query) > 0) | ((np.diff(query) == 0) & (first[1:] > last[:-1] + 1))
    if not (rising.all() and (first <= last).all() and (query < n_q).all() and (last < n_k).all()):
        raise ValueError(f"its intervals are not in order within {n_q} × {n_k}")
    return mask


def masks_of_rows(
    shape: Sequence[int], rows: Callable[[int, int], Bools], together: int = 1
) -> tuple[IntervalMask, ...]:
    """Return masks of which `rows` returns the queries [lo, hi) as matrices (masks, hi - lo, n_k), a block at a time.

    A block holds `together` numbers for each of its pairs.
    """
    n_q, n_k = shape
    step, parts = max(1, CELLS // (together * n_k)), list[list[Ints]]()
    for lo in range(0, n_q, step):
        block = rows(lo, min(lo + step, n_q))
        cells = np.zeros((*block.shape[:2], n_k + 1), np.bool_)
        cells[..., :-1] = block
        edges = [np.flatnonzero(np.diff(mask.ravel(), prepend=False)) + lo * (n_k + 1) for mask in cells]
        parts.append(edges)
    return tuple(_between((n_q, n_k), np.concatenate(edges)) for edges in zip(*parts, strict=True))


def written(mask: IntervalMask) -> Bools | IntervalMask:
    """Return the matrix of a short text, and the intervals of a long one, whose matrix would be of no use to a reader."""
    return np.asarray(mask) if mask.shape[0] * mask.shape[1] <= PLAIN else mask


def different(masks: Iterable[IntervalMask]) -> tuple[IntervalMask, ...]:
    """Return the masks, equal ones once."""
    return tuple({(mask.shape, mask.key): mask for mask in masks}.values())
