"""An overview of a long text packed for the page: pooled grids, the strongest links, and blocks kept exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
import numpy.typing as npt

from attnctl.errors import AttnctlError
from attnctl.readings.overview import Grid, Links, Overview
from attnctl.render.page.packing import Blobs, described, pack_thumbnails, packed_tokens
from attnctl.text import shown

MOST_LINKS = 14
MOST_EXACT = 4_000_000  # weights kept exactly, over all heads
SIDE = 64  # of an exact block, tokens
POOLS = {
    "mean": ("mean weight", "each cell is the mean of its weights"),
    "max": ("largest weight", "each cell is the largest of its weights"),
    "mass": (
        "share of attention",
        "each cell is the share of its attention that a query of the row gives to the column, on average",
    ),
}


@dataclass(frozen=True)
class Exact:
    """Weights of one head kept exactly: queries [a, b), keys [a, b), weights (queries, keys)."""

    layer: int
    head: int
    rows: tuple[int, int]
    keys: tuple[int, int]
    weights: npt.NDArray[np.float32]


def pack_overview(overview: Overview, label: str, blobs: Blobs, exact: Sequence[Exact] = ()) -> dict[str, Any]:
    """What the page reads of an overview. Raises AttnctlError where it has no grid."""
    grid = overview.grid
    if grid is None or not grid.weights:
        raise AttnctlError("this overview has no grid to look at: write one with attnctl heatmap")
    layers = [
        {
            "layer": layer,
            "rows": None,
            "mask": None if layer not in grid.masks else blobs.add(grid.masks[layer].astype(np.uint8).tobytes()),
            "heads": [_head(overview, grid, layer, head, blobs, exact) for at, head in grid.weights if at == layer],
        }
        for layer in dict.fromkeys(layer for layer, _ in grid.weights)
    ]
    keys = overview.key_tokens
    return {
        "label": shown(label),
        "text": "",
        "model": described(overview.model),
        "tokens": packed_tokens(overview.tokens, overview.text),
        "keyTokens": None if keys is None else packed_tokens(keys, overview.text),
        "layers": layers,
        "levels": 0,
        "thumbs": pack_thumbnails(grid.weights.values(), blobs),
        "lacking": [],
        "focus": _focus(layers),
        "steps": None,
        "predictions": [],
        "notes": [shown(note) for note in overview.notes],
        "overview": {
            "pool": grid.pool,
            "title": POOLS[grid.pool][0],
            "said": POOLS[grid.pool][1],
            "rows": [[shown(part.name), part.ranges] for part in grid.rows],
            "columns": [[shown(part.name), part.ranges] for part in grid.columns],
        },
    }


def _head(
    overview: Overview, grid: Grid, layer: int, head: int, blobs: Blobs, exact: Sequence[Exact]
) -> dict[str, Any]:
    weights = np.ascontiguousarray(grid.weights[layer, head], dtype="<f4")  # (rows, columns)
    own = [block for block in exact if (block.layer, block.head) == (layer, head)]
    links = overview.links.get((layer, head))
    return {
        "head": head,
        "weights": {"blob": blobs.add(weights.tobytes())},
        "sums": None,
        "details": {},
        "links": [] if links is None else strongest(links, bool(overview.model.causal)),
        "blocks": [
            {"rows": block.rows, "keys": block.keys, "blob": blobs.add(block.weights.astype("<f4").tobytes())}
            for block in own
        ],
    }


def strongest(links: Links, causal: bool, most: int = MOST_LINKS) -> list[tuple[int, int, float]]:
    """The strongest links of a head, (query, key, weight), the most telling first.

    A large weight tells less where a causal query has few keys to choose from, and little on the first token (where unused
    attention is parked) or on itself.
    """
    weights = np.array(links.weights, dtype=np.float64)  # (n_q, count)
    keys = np.asarray(links.keys)  # (n_q, count)
    i = np.arange(len(keys))[:, None]  # (n_q, 1)
    rank = weights * np.log1p(i) if causal else weights
    rank = np.where((keys == 0) | (keys == i), rank * 1e-3, rank)  # not 0: taken where nothing else is there
    best = np.argsort(-rank, axis=None, kind="stable")[:most]
    rows, places = np.unravel_index(best, rank.shape)
    found = zip(rows, places, strict=True)
    return [(int(i), int(keys[i, at]), float(links.weights[i, at])) for i, at in found if links.weights[i, at] > 0]


def telling_blocks(overview: Overview) -> list[tuple[int, int, int, int]]:
    """Where to look exactly: blocks (first query, past, first key, past) that hold the strongest links of all heads."""
    causal = bool(overview.model.causal)
    # in turn: each head's most telling link, then each head's second, …
    turns = zip_longest(*(strongest(found, causal) for found in overview.links.values()))
    links = [link for turn in turns for link in turn if link is not None]
    n_q, n_k = len(overview.tokens), len(overview.keys_of)
    most = max(1, MOST_EXACT // (SIDE * SIDE * max(1, len(overview.links))))
    corners = dict.fromkeys((i // SIDE * SIDE, j // SIDE * SIDE) for i, j, _ in links)
    return [(i, min(i + SIDE, n_q), j, min(j + SIDE, n_k)) for i, j in list(corners)[: min(most, 8)]]


def _focus(layers: Sequence[dict[str, Any]]) -> dict[str, int]:
    """What is chosen at first: the most telling link of the first head that has one."""
    for part in layers:
        for head in part["heads"]:
            if head["links"]:
                query, key, _ = head["links"][0]
                return {"layer": part["layer"], "head": head["head"], "query": query, "key": key}
    return {"layer": layers[0]["layer"], "head": layers[0]["heads"][0]["head"], "query": 0, "key": 0}
