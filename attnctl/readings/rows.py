"""Single rows of exact weights and the strongest links, of a trace and of a long text that is read block by block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from attnctl.errors import AttnctlError
from attnctl.layer import LayerAttention
from attnctl.readings.overview import Links, LongRow, Overview
from attnctl.runtime.arrays import Bools, Floats
from attnctl.trace.run import Run


class RowReading:
    """A reading of the weights of one query, by its index, on every key."""

    predicts = False

    def __init__(self, query: int) -> None:
        self._query = query
        self._weights: dict[tuple[int, int], Floats] = {}

    def take(self, layer: LayerAttention) -> None:
        """Keep the row of each head of one layer."""
        rows = layer.rows_of([self._query])[:, 0]  # (heads, n_k)
        self._weights |= {(layer.layer, head): row for head, row in zip(layer.heads, rows, strict=True)}

    def kept_in(self, overview: Overview | LongRow, name: str) -> LongRow:
        """Return the row if `overview` holds this query. Raises AttnctlError if it does not."""
        if not isinstance(overview, LongRow) or overview.query != self._query:
            contents = f"query {overview.query} alone" if isinstance(overview, LongRow) else "no single rows"
            raise AttnctlError(f"{name} holds {contents}, not query {self._query}: give the text and its model")
        return overview

    def value(self, run: Run) -> LongRow:
        """Return the row of each layer and head."""
        return LongRow(run.subject, self._query, self._weights)


Block = tuple[int, int, int, int]  # first query, end, first key, end


class BlocksReading:
    """A reading of some blocks of weights and of their masks: (layer, head) → (rows, keys) of both for each block."""

    predicts = False

    def __init__(self, blocks: Sequence[Block]) -> None:
        self._blocks = blocks
        self._weights: dict[tuple[int, int], list[tuple[Floats, Bools]]] = {}

    def take(self, layer: LayerAttention) -> None:
        """Keep the blocks of each head of one layer."""
        for a, b, c, d in self._blocks:
            visible = layer.visible_at(np.arange(a, b)[None], np.arange(c, d)[None])[0]  # (rows, keys)
            for head, weights in zip(layer.heads, layer.block(a, b, c, d), strict=True):
                self._weights.setdefault((layer.layer, head), []).append((weights, visible))

    def value(self, run: Run) -> dict[tuple[int, int], list[tuple[Floats, Bools]]]:
        """Return (layer, head) → the weights of each block, and its mask: true where the query may look at the key."""
        return self._weights


class LinksReading:
    """A reading of the `count` keys that each query attends to most, for each layer and head."""

    predicts = False

    def __init__(self, count: int) -> None:
        self._count = count
        self._links: dict[tuple[int, int], Links] = {}

    def take(self, layer: LayerAttention) -> None:
        """Keep the strongest links of each head of one layer."""
        keys, weights = layer.links(self._count)  # (heads, n_q, count) each
        for head, *link in zip(layer.heads, keys, weights, strict=True):
            self._links[layer.layer, head] = Links(*link)

    def kept_in(self, overview: Overview | LongRow, name: str) -> dict[tuple[int, int], Links]:
        """Return the strongest links of each query in an overview. Raises AttnctlError if it holds fewer."""
        links = overview.links if isinstance(overview, Overview) else {}
        count = min((link.keys.shape[1] for link in links.values()), default=0)
        if count < min(self._count, len(overview.key_axis)):
            links_held = f"{count} links a query, not {self._count}" if count else "no links of single queries"
            raise AttnctlError(f"{name} holds {links_held}: give the text and its model")
        return {
            place: Links(link.keys[:, : self._count], link.weights[:, : self._count]) for place, link in links.items()
        }

    def value(self, run: Run) -> dict[tuple[int, int], Links]:
        """Return (layer, head) → its links."""
        return self._links


MOST_LINKS = 14  # links of a head
MOST_EXACT = 4_000_000  # exact weights of all heads together
SIDE = 64  # tokens on each side of an exact block


@dataclass(frozen=True)
class ExactBlock:
    """Exact weights of one head: queries [a, b), keys [a, b), weights and mask (queries, keys)."""

    layer: int
    head: int
    rows: tuple[int, int]
    keys: tuple[int, int]
    weights: Floats
    visible: Bools


def strongest_links(links: Links, causal: bool) -> list[tuple[int, int, float]]:
    """Return the strongest links of a head as (query, key, weight), the most informative first.

    A large weight says less for a causal query with few keys to choose from, and little on the first token (where unused
    attention is parked) or on the query itself.
    """
    weights = np.array(links.weights, dtype=np.float64)  # (n_q, count)
    keys = np.asarray(links.keys)  # (n_q, count)
    i = np.arange(len(keys))[:, None]  # (n_q, 1)
    rank = weights * np.log1p(i) if causal else weights
    rank = np.where((keys == 0) | (keys == i), rank * 1e-3, rank)  # not 0: chosen if there are no others
    best = np.argsort(-rank, axis=None, kind="stable")[:MOST_LINKS]
    rows, places = np.unravel_index(best, rank.shape)
    cells = zip(rows, places, strict=True)
    return [
        (int(i), int(keys[i, place]), float(links.weights[i, place]))
        for i, place in cells
        if links.weights[i, place] > 0
    ]


def telling_blocks(overview: Overview) -> list[tuple[int, int, int, int]]:
    """Return the blocks (first query, end, first key, end) that hold the strongest links of all heads."""
    causal = bool(overview.model.causal)
    # in turn: each head's first link, then each head's second, …
    turns = zip_longest(*(strongest_links(links_of_head, causal) for links_of_head in overview.links.values()))
    links = [link for turn in turns for link in turn if link is not None]
    n_q, n_k = len(overview.tokens), len(overview.key_axis)
    limit = max(1, MOST_EXACT // (SIDE * SIDE * max(1, len(overview.links))))
    corners = dict.fromkeys((i // SIDE * SIDE, j // SIDE * SIDE) for i, j, _ in links)
    return [(i, min(i + SIDE, n_q), j, min(j + SIDE, n_k)) for i, j in list(corners)[: min(limit, 8)]]
