"""Where an overview is worth looking at exactly: its strongest links, and square blocks of weights around them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from attnctl.arrays import Floats
from attnctl.readings.overview import Links, Overview

MOST_LINKS = 14  # of a head
MOST_EXACT = 4_000_000  # weights kept exactly, over all heads
SIDE = 64  # of an exact block, tokens


@dataclass(frozen=True)
class ExactBlock:
    """Weights of one head kept exactly: queries [a, b), keys [a, b), weights (queries, keys)."""

    layer: int
    head: int
    rows: tuple[int, int]
    keys: tuple[int, int]
    weights: Floats


def strongest_links(links: Links, causal: bool) -> list[tuple[int, int, float]]:
    """The strongest links of a head, (query, key, weight), the most telling first.

    A large weight tells less where a causal query has few keys to choose from, and little on the first token (where unused
    attention is parked) or on itself.
    """
    weights = np.array(links.weights, dtype=np.float64)  # (n_q, count)
    keys = np.asarray(links.keys)  # (n_q, count)
    i = np.arange(len(keys))[:, None]  # (n_q, 1)
    rank = weights * np.log1p(i) if causal else weights
    rank = np.where((keys == 0) | (keys == i), rank * 1e-3, rank)  # not 0: taken where nothing else is there
    best = np.argsort(-rank, axis=None, kind="stable")[:MOST_LINKS]
    rows, places = np.unravel_index(best, rank.shape)
    found = zip(rows, places, strict=True)
    return [(int(i), int(keys[i, at]), float(links.weights[i, at])) for i, at in found if links.weights[i, at] > 0]


def telling_blocks(overview: Overview) -> list[tuple[int, int, int, int]]:
    """Where to look exactly: blocks (first query, past, first key, past) that hold the strongest links of all heads."""
    causal = bool(overview.model.causal)
    # in turn: each head's most telling link, then each head's second, …
    turns = zip_longest(*(strongest_links(found, causal) for found in overview.links.values()))
    links = [link for turn in turns for link in turn if link is not None]
    n_q, n_k = len(overview.tokens), len(overview.key_axis)
    most = max(1, MOST_EXACT // (SIDE * SIDE * max(1, len(overview.links))))
    corners = dict.fromkeys((i // SIDE * SIDE, j // SIDE * SIDE) for i, j, _ in links)
    return [(i, min(i + SIDE, n_q), j, min(j + SIDE, n_k)) for i, j in list(corners)[: min(most, 8)]]
