"""Pack traces and overviews for the page: deflated arrays, pooled grids, the strongest links, exact blocks."""

from __future__ import annotations

import base64
import hashlib
import io
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from attnctl.blockwise import pool_keys, pool_rows
from attnctl.checks.tolerances import WHOLE_ROW
from attnctl.errors import AttnctlError
from attnctl.layer import LayerTrace
from attnctl.measures import measure_named
from attnctl.readings.heatmap import sinks_of_grid
from attnctl.readings.overview import Overview, PooledGrid
from attnctl.readings.questions.headline import doubt_of, headline
from attnctl.readings.rows import ExactBlock, strongest_links
from attnctl.readings.sinks import Sinks, sinks_of_heads
from attnctl.runtime.arrays import Bools, Floats
from attnctl.text import Document, counted, harmless_line, visible_text
from attnctl.text.tokens import Token
from attnctl.trace import ROLES, Headline, Trace, steps, word_groups
from attnctl.trace.model_info import ModelInfo
from attnctl.trace.notes import notes_of_kind

if TYPE_CHECKING:
    from PIL.Image import Image

POOLS = {
    "mean": ("mean weight", "each cell is the mean of its weights"),
    "max": ("largest weight", "each cell is the largest of its weights"),
    "mass": (
        "share of attention",
        "each cell is the share of its attention that a query of the row gives to the column, on average",
    ),
}


def pack_overview(overview: Overview, label: str, blobs: Blobs, exact: Sequence[ExactBlock] = ()) -> Document:
    """Return what the page reads from an overview. Raises AttnctlError if the overview has no grid."""
    grid = overview.grid
    if grid is None or not grid.weights:
        raise AttnctlError("this overview has no grid to look at: attnctl heatmap -o FILE.json writes one")
    layers = [
        {
            "layer": layer,
            "rows": list(range(len(grid.rows))),
            "hidden": _pack_hidden(grid.masks.get(layer), blobs),
            "heads": [
                _packed_head(overview, grid, layer, head, blobs, exact)
                for number, head in grid.weights
                if number == layer
            ],
        }
        for layer in dict.fromkeys(layer for layer, _ in grid.weights)
    ]
    return _packed_source(overview, label, layers) | {
        "text": "",
        "thumbs": pack_thumbnails(grid.weights.values(), blobs),
        "focus": _first_focus(layers),
        "overview": {
            "pool": grid.pool,
            "title": POOLS[grid.pool][0],
            "said": POOLS[grid.pool][1],
            "rows": [[visible_text(part.name), part.ranges] for part in grid.rows],
            "columns": [[visible_text(part.name), part.ranges] for part in grid.columns],
        },
    }


def _packed_source(source: Trace | Overview, label: str, layers: Sequence[Document]) -> Document:
    """Return what a trace and an overview have in common; parts that an overview does not have are empty."""
    keys = source.key_tokens
    return {
        "label": visible_text(label),
        "model": {  # what the page needs to compute the steps
            "name": visible_text(source.model.name),
            "defaultScale": isinstance(source, Trace) and source.model.has_default_scale,
            **{name: value for name in FACTS if (value := getattr(source.model, name)) is not None},
        },
        "facts": facts_line(source.model, len(source.tokens), layers),
        "roles": {
            f"{layer}.{head}": ", or ".join(_plain_roles(roles))
            for (layer, head), roles in source.model.roles_of_heads().items()
        },
        "tokens": packed_tokens(source.tokens, source.text),
        "keyTokens": None if keys is None else packed_tokens(keys, source.text),
        "crossed": not source.reads_itself,
        "layers": layers,
        "levels": 0,
        "lacking": [],
        "steps": None,
        "predictions": [],
        "notes": [harmless_line(note) for note in source.notes],
        "doubts": [harmless_line(note) for note in notes_of_kind(source.notes, "guess", "no-weights")],
        "holdsWeights": "no-weights" not in source.noted,
    }


def _plain_roles(roles: Sequence[str]) -> list[str]:
    """Return what a head usually links, without special cases of another role: "a verb to its subject, past other nouns"."""
    plain = [ROLES.get(role, role) for role in roles]
    return [role for role in plain if not any(role.startswith(f"{other},") for other in plain)]


def _packed_head(
    overview: Overview, grid: PooledGrid, layer: int, head: int, blobs: Blobs, exact: Sequence[ExactBlock]
) -> Document:
    weights = np.ascontiguousarray(grid.weights[layer, head], dtype="<f4")  # (rows, columns)
    blocks = [block for block in exact if (block.layer, block.head) == (layer, head)]
    links = overview.links.get((layer, head))
    starts = [part.first_token for part in grid.rows], [part.first_token for part in grid.columns]
    alone = replace(grid, weights={(layer, head): weights})
    named = grid.pool == "mass" and links is None  # parts of a text, such as paragraphs: no sinks
    return {
        "head": head,
        "parked": None if named else packed_sinks(sinks_of_grid(overview, alone, starts)),
        "weights": {"blob": blobs.add_blob(weights.tobytes())},
        "sums": None,
        "details": {},
        "links": [] if links is None else strongest_links(links, bool(overview.model.causal)),
        "blocks": [
            {
                "rows": block.rows,
                "keys": block.keys,
                "blob": blobs.add_blob(block.weights.astype("<f4").tobytes()),
                "hidden": _pack_hidden(None if block.visible.all() else block.visible, blobs),
            }
            for block in blocks
        ],
    }


def packed_sinks(sinks: Sinks | None) -> Document | None:
    """Return what a caption says about a head's sinks; None without sinks."""
    if sinks is None:
        return None
    return {"said": harmless_line(sinks.sentence), "columns": list(sinks.columns), "drop": list(sinks.drop)}


def _first_focus(layers: Sequence[Document]) -> dict[str, int]:
    """Return the first selection: the strongest link of the first head that has links."""
    for part in layers:
        for head in part["heads"]:
            if head["links"]:
                query, key, _ = head["links"][0]
                return {"layer": part["layer"], "head": head["head"], "query": query, "key": key}
    return {"layer": layers[0]["layer"], "head": layers[0]["heads"][0]["head"], "query": 0, "key": 0}


FACTS = ("d_k", "causal", "scale", "soft_cap", "temperature")  # fields of a model
# arrays of a head beside its weights, the most important first
DETAILS = ("queries", "keys", "values", "scores", "bias", "scaled_scores", "dropped_weights", "context")
PHOTOGRAPH_SIDE = 560  # pixels of the longer side of a picture
THUMBNAIL = 40  # the side, in cells, of the small picture of a head
# 0: exact float32; otherwise the number of even steps of the square roots of weights
LEVELS = (0, 65535, 4095, 1023, 255)

_ARROWS = str.maketrans({"␊": "↵", "␍": "⇤", "␉": "⇥"})


@dataclass
class Blobs:
    """Blocks of bytes; equal blocks are written once."""

    blocks: list[str] = field(default_factory=list)
    numbers: dict[bytes, int] = field(default_factory=dict)

    def add_blob(self, data: bytes) -> int:
        """Return the number of the block that holds `data`; add the block if it is new."""
        digest = hashlib.sha256(data).digest()
        if digest not in self.numbers:
            self.numbers[digest] = len(self.blocks)
            self.blocks.append(base64.b64encode(deflated(data)).decode())
        return self.numbers[digest]

    def as_read(self, number: int, inflated: bool) -> str:
        """Return a block in base64 as the page reads it: deflated, or as it is."""
        block = self.blocks[number]
        return base64.b64encode(zlib.decompress(base64.b64decode(block))).decode() if inflated else block


def opening_blocks(shown: Sequence[Document], start: Document) -> set[int]:
    """Return the numbers of the blocks that the first drawing of the page reads, of the traces that it shows.

    They are not deflated, so that the page is drawn before its load event: a browser inflates only later.
    """
    blocks: list[int | None] = []
    chosen = (shown[0]["focus"] or {}) | start
    for entry in shown:
        layers = entry["layers"]
        layer = next((part for part in layers if part["layer"] == chosen.get("layer")), layers[0])
        head = next((part for part in layer["heads"] if part["head"] == chosen.get("head")), layer["heads"][0])
        blocks += [entry["thumbs"]["blob"], layer["hidden"], head["weights"]["blob"], head["sums"]]
        blocks += [number for number, *_ in head["details"].values()]
        blocks += [part[name] for part in head.get("blocks", ()) for name in ("blob", "hidden")]
    return {number for number in blocks if number is not None}


def deflated(data: bytes) -> bytes:
    """Return `data` deflated (zlib), with a lower compression level for large data."""
    return zlib.compress(data, 6 if len(data) < 200_000 else 4)


def pack_trace(trace: Trace, label: str, blobs: Blobs, budget: int, with_steps: bool = True) -> Document:
    """Return what the page reads from a trace. Raises AttnctlError if the trace has no weights."""
    if not trace.layers or any(layer.weights is None for layer in trace.layers):
        raise AttnctlError("this trace holds no weights to look at: write it without narrowing its steps")
    levels, details, line = fitting_levels(trace, budget), fitting_details(trace, budget), headline(trace)
    lacking = [name for name in DETAILS[:3] if name not in details]
    measure = None if trace.measure is None else measure_named(trace.measure)
    return _packed_source(
        trace, label, [pack_layer(trace, layer, blobs, levels, details) for layer in trace.layers]
    ) | {
        "text": trace.text,
        "levels": levels,
        "thumbs": pack_thumbnails(weight_grids(trace), blobs),
        "lacking": [name for name in lacking if any(getattr(layer, name) is not None for layer in trace.layers)],
        "focus": None if line is None else opening_of(trace, line),
        "steps": packed_steps(trace) if with_steps else None,
        "predictions": [
            {"at": p.position, "text": page_label(p.text), "p": p.probability, "among": p.among}
            for p in trace.predictions
        ],
        "measure": measure and {"title": measure.title, "joinsHeads": measure.joins_heads},
    }


def opening_of(trace: Trace, line: Headline) -> Document:
    """Return what is selected when the page opens: the headline, the reason for it, how sure it is, and a doubt about it."""
    chosen = {name: getattr(line, name) for name in ("layer", "head", "query", "key")}
    reason = "" if line.role else line.reason  # the caption says what the head usually does
    reason = reason if line.stands_out else f"no head stands out in this text: {reason}"
    certainty = line.certainty or "" if line.stands_out else "no head stands out"
    doubt = doubt_of(trace, line)
    return chosen | {"reason": reason, "certainty": certainty, "doubt": harmless_line(doubt) if doubt else ""}


def facts_line(info: ModelInfo, n_tokens: int, layers: Sequence[Document]) -> str:
    """Return one line about a trace and its model, with the number of layers in the trace and in the model."""
    count, total = len(layers), info.n_layers or 0
    layer_words = counted(count, "layer")
    if total > count:
        layer_words = f"layer {layers[0]['layer']} of {total}" if count == 1 else f"{count} of {total} layers"
    facts = [visible_text(info.name), counted(n_tokens, "token"), layer_words, counted(len(layers[0]["heads"]), "head")]
    return " · ".join(fact.replace(" ", "\u00a0") for fact in (*facts, *info.settings))


def packed_tokens(tokens: tuple[Token, ...], text: str) -> Document:
    """Return the tokens' labels, boxes and words, and which are special, unknown or without a space before them."""
    boxes = [token.box if token.is_patch else None for token in tokens]
    return ({"boxes": boxes} if any(boxes) else {}) | {
        "labels": [page_label(token.text) + "†" * token.unknown for token in tokens],
        "special": [index for index, token in enumerate(tokens) if token.special],
        "unknown": [index for index, token in enumerate(tokens) if token.unknown],
        "glued": [i for i in range(1, len(tokens)) if _touches_token(tokens[i - 1], tokens[i], text)],
        "words": [number for number, group in enumerate(word_groups(tokens, text)) for _ in group],
    }


def packed_photograph(photograph: Image) -> Document:
    """Return a picture for the page: a JPEG in a data: URL, in the size shown, and the width and height of the original."""
    small = photograph.copy()
    small.thumbnail((PHOTOGRAPH_SIDE, PHOTOGRAPH_SIDE))
    out = io.BytesIO()
    small.save(out, "JPEG", quality=85)
    url = f"data:image/jpeg;base64,{base64.b64encode(out.getvalue()).decode()}"
    return {"url": url, "width": photograph.width, "height": photograph.height}


def page_label(text: str) -> str:
    """Return `visible_text` with arrows for line ends (↵, CR ⇤) and tabs (⇥): few fonts have control pictures."""
    return visible_text(text).translate(_ARROWS)


def _touches_token(before: Token, token: Token, text: str) -> bool:
    """Return whether two tokens touch in the text, without a space between them."""
    if before.special or token.special or before.end is None or token.start is None:
        return False
    blank = text[before.end - 1 : before.end].isspace() or text[token.start : token.start + 1].isspace()
    return before.end == token.start and 0 < token.start < len(text) and not blank


def packed_steps(trace: Trace) -> Document:
    """Return the words of the steps, the same words as in `explain`; heads with equal words share a list."""
    lists: list[list[Document]] = []
    list_numbers: dict[str, int] = {}
    whole: list[Document] = []
    for head in sorted({head for layer in trace.layers for head in layer.heads}):
        of_layer: dict[int, list[Document]] = {}
        for step in steps.walk_steps(trace, [head]):
            words = {"name": step.name, "title": step.title, "formula": step.formula, "sentence": step.sentence}
            if step.head is not None and step.layer is not None:
                of_layer.setdefault(step.layer, []).append(words)
            elif not list_numbers:
                whole.append(words | {"layer": step.layer})
        for layer, sentences in of_layer.items():
            if sentences not in lists:
                lists.append(sentences)
            list_numbers[f"{layer}/{head}"] = lists.index(sentences)
    return {"lists": lists, "of": list_numbers, "whole": whole}


def weight_grids(trace: Trace) -> list[Floats]:
    """Return the weights of every head, layer by layer: (n_q, n_k) each."""
    return [grid for layer in trace.layers if layer.weights is not None for grid in layer.weights]


# --- arrays ------------------------------------------------------------------------------------------------------


def pack_layer(trace: Trace, layer: LayerTrace, blobs: Blobs, levels: int, details: tuple[str, ...]) -> Document:
    """Return one layer: its mask, and the weights of its heads, a block for each head, with the details that fit."""
    assert layer.weights is not None
    heads, sinks = [], sinks_of_heads(trace, layer)
    for index, head in enumerate(layer.heads):
        weights = np.ascontiguousarray(layer.weights[index], dtype="<f4")  # (n_q, n_k)
        arrays = {name: array[index] for name in details if (array := getattr(layer, name)) is not None}
        heads.append(
            {
                "head": head,
                "parked": packed_sinks(sinks[index]),
                "weights": pack_weights(weights, levels, blobs),
                "sums": blobs.add_blob(weights.sum(axis=1, dtype=np.float64).astype("<f4").tobytes()),
                "details": {
                    name: [blobs.add_blob(array.astype("<f4").tobytes()), *array.shape]
                    for name, array in arrays.items()
                },
            }
        )
    return {
        "layer": layer.layer,
        "rows": None if layer.rows is None else list(layer.rows),
        "hidden": _pack_hidden(layer.mask, blobs),
        "sink": _sink_takes_the_rest(layer),
        "heads": heads,
    }


def _pack_hidden(mask: Bools | None, blobs: Blobs) -> int | None:
    """Return the block of a mask (n_q, n_k) as the page reads it: a byte for each cell, 1 if a query may not look there."""
    return None if mask is None else blobs.add_blob((~mask).astype(np.uint8).tobytes())


def _sink_takes_the_rest(layer: LayerTrace) -> bool:
    """Return whether each row sums to 1 together with the weight of a learned sink."""
    if layer.weights is None or layer.sink_weights is None:
        return False
    return bool(np.allclose(layer.weights.sum(axis=-1) + layer.sink_weights, 1.0, atol=WHOLE_ROW))


def pack_weights(weights: Floats, levels: int, blobs: Blobs) -> Document:
    """Return weights (n_q, n_k) as float32 (levels 0), or as whole numbers c with weight = top · (c / levels)²."""
    if not levels:
        return {"blob": blobs.add_blob(weights.tobytes())}
    top = float(weights.max(initial=0.0))
    return {"blob": blobs.add_blob(coded_levels(weights, levels)), "top": top}


def coded_levels(weights: Floats, levels: int) -> bytes:
    """Return the whole numbers of `pack_weights`: one byte each up to 255, otherwise all low bytes, then all high bytes."""
    top = float(weights.max(initial=0.0)) or 1.0
    codes = np.rint(np.sqrt(weights / np.float32(top)) * np.float32(levels))  # (n_q, n_k)
    whole = codes.astype("<u2" if levels > 255 else "u1").reshape(-1, 1)  # (n_q · n_k, 1)
    return bytes(whole.view(np.uint8).T.tobytes())


def fitting_levels(trace: Trace, budget: int) -> int:
    """Return the finest of LEVELS whose weights fit into the budget, estimated from a sample of heads."""
    grids = weight_grids(trace)
    size = sum(grid.size for grid in grids)
    if size * 4 * 4 // 3 <= budget // 4 or any(grid.min(initial=0.0) < 0 for grid in grids):
        return 0  # small, or not true weights: exact float32
    sample = grids[:: max(1, len(grids) // 6)]
    share = size / sum(grid.size for grid in sample)
    for levels in LEVELS[1:-1]:
        packed = sum(len(deflated(coded_levels(grid, levels))) for grid in sample)
        if packed * share * 4 / 3 * 1.04 <= budget * 0.95:
            return levels
    return LEVELS[-1]


def fitting_details(trace: Trace, budget: int) -> tuple[str, ...]:
    """Return the names of DETAILS that fit: all of them, or the first three (the page computes the others), or none."""
    for names in (DETAILS, DETAILS[:3]):
        size = 4 * sum(array.size for layer in trace.layers for n in names if (array := getattr(layer, n)) is not None)
        if size <= budget // 2:
            return names
    return ()


def pack_thumbnails(grids: Iterable[Floats], blobs: Blobs) -> Document:
    """Return a small picture of each head's grid: square roots of pooled weights, relative to the head's largest weight."""
    pictures = []
    for grid in grids:
        down, across = (np.arange((cells := min(n, THUMBNAIL)) + 1) * n // cells for n in grid.shape)
        # (rows, columns), at most THUMBNAIL each
        small = pool_rows(pool_keys(np.clip(grid, 0, None), across), down) / np.diff(across)
        pictures.append(np.rint(np.sqrt(small / (small.max() or 1.0)) * 255).astype(np.uint8))
    rows, columns = pictures[0].shape
    if any(picture.shape != (rows, columns) for picture in pictures):
        raise AttnctlError("the layers of this trace hold different query rows: choose one layer")
    return {"blob": blobs.add_blob(np.stack(pictures).tobytes()), "rows": rows, "columns": columns}
