"""What is asked of the weights in one pass over the keys, and what is found."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from attnctl.attention import Array

Tick = Callable[[float], None]  # hears, from any thread, which share of the work was just done


@dataclass(frozen=True)
class Wanted:
    """What is asked of one pass over the keys, beside each row's logsumexp.

    `key_edges` 0 … n_k and `row_edges` 0 … n_q cut keys and rows into bins: the mass that a row bin gives to a key bin,
    averaged over its rows; with `peaks` the largest weight between them instead. `rows` asks for entropy, distance, spread,
    and the mass on each set of `marks` (marks, n_k), true where a key belongs to it.
    """

    key_edges: Sequence[int] | None = None
    row_edges: Sequence[int] | None = None
    marks: Array | None = None
    rows: bool = False
    peaks: bool = False


@dataclass(frozen=True)
class RowStatistics:
    """What is known of each row, and of the whole pooled; all but `logsumexp` only where asked for."""

    logsumexp: Array  # (heads, n_q), of the masked scaled scores, sinks in it; -inf where nothing is visible
    pooled: Array | None = None  # (heads, row bins, key bins)
    entropy: Array | None = None  # (heads, n_q), nats; what a sink takes has no term
    distance: Array | None = None  # (heads, n_q), mean of |i - j| over what the row attends to, tokens
    spread: Array | None = None  # (heads, n_q), standard deviation of j, tokens
    marked: Array | None = None  # (heads, marks, n_q), mass on each set of marked keys
    largest: Array | None = None  # (heads, n_q), the largest weight
    kept: Array | None = None  # (heads, n_q), mass on all keys: below 1 where a learned sink takes the rest


def neighbouring_edges(edges: Sequence[int]) -> list[tuple[int, int]]:
    """Neighbouring edges: the bins between them."""
    return list(zip(edges, edges[1:], strict=False))


def even_edges(n: int, most: int) -> list[int]:
    """Edges of at most `most` bins over n tokens: all as wide as each other, but for the last."""
    return [*range(0, n, math.ceil(n / most)), n]
