"""An overview of a long text packed for the page: pooled grids, the strongest links, and blocks kept exactly."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnctl.errors import AttnctlError
from attnctl.readings.exact_blocks import ExactBlock, strongest_links
from attnctl.readings.overview import Overview, PooledGrid
from attnctl.readings.traces.trace import notes_of_kind
from attnctl.render.page.packing import Blobs, model_facts, pack_thumbnails, packed_tokens
from attnctl.text import Document, visible_text

POOLS = {
    "mean": ("mean weight", "each cell is the mean of its weights"),
    "max": ("largest weight", "each cell is the largest of its weights"),
    "mass": (
        "share of attention",
        "each cell is the share of its attention that a query of the row gives to the column, on average",
    ),
}


def pack_overview(overview: Overview, label: str, blobs: Blobs, exact: Sequence[ExactBlock] = ()) -> Document:
    """What the page reads of an overview. Raises AttnctlError where it has no grid."""
    grid = overview.grid
    if grid is None or not grid.weights:
        raise AttnctlError("this overview has no grid to look at: attnctl heatmap -o FILE.json writes one")
    layers = [
        {
            "layer": layer,
            "rows": None,
            "mask": None if layer not in grid.masks else blobs.add_blob(grid.masks[layer].astype(np.uint8).tobytes()),
            "heads": [
                _packed_head(overview, grid, layer, head, blobs, exact) for at, head in grid.weights if at == layer
            ],
        }
        for layer in dict.fromkeys(layer for layer, _ in grid.weights)
    ]
    keys = overview.key_tokens
    return {
        "label": visible_text(label),
        "text": "",
        "model": model_facts(overview.model),
        "tokens": packed_tokens(overview.tokens, overview.text),
        "keyTokens": None if keys is None else packed_tokens(keys, overview.text),
        "crossed": not overview.reads_itself,
        "layers": layers,
        "levels": 0,
        "thumbs": pack_thumbnails(grid.weights.values(), blobs),
        "lacking": [],
        "focus": _first_focus(layers),
        "steps": None,
        "predictions": [],
        "notes": [visible_text(note) for note in overview.notes],
        "doubts": [visible_text(note) for note in notes_of_kind(overview.notes, "guess", "no-weights")],
        "holdsWeights": "no-weights" not in overview.noted,
        "overview": {
            "pool": grid.pool,
            "title": POOLS[grid.pool][0],
            "said": POOLS[grid.pool][1],
            "rows": [[visible_text(part.name), part.ranges] for part in grid.rows],
            "columns": [[visible_text(part.name), part.ranges] for part in grid.columns],
        },
    }


def _packed_head(
    overview: Overview, grid: PooledGrid, layer: int, head: int, blobs: Blobs, exact: Sequence[ExactBlock]
) -> Document:
    weights = np.ascontiguousarray(grid.weights[layer, head], dtype="<f4")  # (rows, columns)
    own = [block for block in exact if (block.layer, block.head) == (layer, head)]
    links = overview.links.get((layer, head))
    return {
        "head": head,
        "weights": {"blob": blobs.add_blob(weights.tobytes())},
        "sums": None,
        "details": {},
        "links": [] if links is None else strongest_links(links, bool(overview.model.causal)),
        "blocks": [
            {"rows": block.rows, "keys": block.keys, "blob": blobs.add_blob(block.weights.astype("<f4").tobytes())}
            for block in own
        ],
    }


def _first_focus(layers: Sequence[Document]) -> dict[str, int]:
    """What is chosen at first: the most telling link of the first head that has one."""
    for part in layers:
        for head in part["heads"]:
            if head["links"]:
                query, key, _ = head["links"][0]
                return {"layer": part["layer"], "head": head["head"], "query": query, "key": key}
    return {"layer": layers[0]["layer"], "head": layers[0]["heads"][0]["head"], "query": 0, "key": 0}
