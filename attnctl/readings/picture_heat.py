"""Show where queries look in a picture: their weights over the boxes of the patches, one query or a panel for each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from attnctl.checks.document_fields import Box
from attnctl.checks.selection import find_several, find_token
from attnctl.errors import UsageError, option_name
from attnctl.readings.overview import LongRow, Overview
from attnctl.runtime.arrays import Floats
from attnctl.runtime.files import names_picture
from attnctl.text import counted, visible_text
from attnctl.text.tokens import PADDING, WHOLE, Token

SINK = 0.3  # a token with this share of a query's weight or more is named
EACH = "each"  # as a query: every object that was found, or every word


class Panel(NamedTuple):
    """Weights on the keys of a picture, (n_k,): a title, a short name for sentences, the layer, the box of the query."""

    title: str
    name: str
    layer: int
    weights: Floats
    box: Box | None = None


class PictureHeat(NamedTuple):
    """The panels over one picture, with their keys, a heading, and how the model is cited."""

    heading: str
    panels: Sequence[Panel]
    keys: tuple[Token, ...]
    cited: str


def queries_of_picture(
    tokens: tuple[Token, ...], text: str, query: str | None, causal: bool, n_new: int = 0
) -> tuple[list[int], bool]:
    """Return the queries to show, and whether each has a panel of its own; a single one has a panel for each head.

    By default these are the objects that a detector found, the surest first, the words of a caption, if `text` is the name
    of a picture, or the `n_new` tokens that a model generated; else CLS, or the last token of a text. Raises the errors of
    `query_of_picture`, and UsageError if no token is an object or a word.
    """
    if query not in (None, EACH):
        named = find_several(tokens, query)
        return named, len(named) > 1
    if objects := _objects_found(tokens):
        return objects, True
    about_picture = names_picture(text) and (has_text(tokens) or not any(token.is_patch for token in tokens))
    if query is None and not (about_picture or n_new):
        return [query_of_picture(tokens, None, causal)], False
    first = max((place + 1 for place, token in enumerate(tokens) if token.is_patch), default=0)
    first = max(first, len(tokens) - n_new) if n_new else first
    words = [place for place in range(first, len(tokens)) if not tokens[place].special and tokens[place].text.strip()]
    if not words and query is None:
        return [query_of_picture(tokens, None, causal)], False
    if not words:
        raise UsageError("no token here is a word after the picture or an object", option="query", value=EACH)
    return words, True


def _objects_found(tokens: Sequence[Token]) -> list[int]:
    """Return the queries of a detector that found an object, the surest first."""
    found = [place for place, token in enumerate(tokens) if token.box is not None and token.score is not None]
    return sorted(found, key=lambda place: -(tokens[place].score or 0.0))


def query_of_picture(tokens: tuple[Token, ...], query: str | None, causal: bool) -> int:
    """Return the query that `query` names; by default CLS (the first token but the patches), or the last token of a text.

    Raises UsageError if there is no such token, or no CLS token.
    """
    if query is not None:
        return find_token(tokens, query)
    if causal or has_text(tokens) or not any(token.is_patch for token in tokens):  # the words of a caption
        return len(tokens) - 1
    return cls_token(tokens)


def cls_token(tokens: Sequence[Token]) -> int:
    """Return the position of CLS, the first token but the patches. Raises UsageError if every token is a patch."""
    first = next((index for index, token in enumerate(tokens) if token.box is None and PADDING not in token.text), None)
    if first is None:
        how = f"name a patch with {option_name('query')}, by its pixel (120,80) or its index"
        raise UsageError(f"this model has no CLS token: {how}")
    return first


def has_text(tokens: Sequence[Token]) -> bool:
    """Return whether a text belongs to a picture: tokens that are neither its patches nor special tokens."""
    has_picture = any(token.is_patch for token in tokens)
    return has_picture and any(token.box is None and not token.special for token in tokens)


def heat_of_boxes(weights: Floats, keys: tuple[Token, ...], size: tuple[int, int], shape: tuple[int, int]) -> Floats:
    """Return weights (n_k,) as an image (rows, columns) of their boxes, NaN outside; `size` is (width, height) in pixels.

    If boxes overlap (tiles and a small view of the whole), each weight is spread evenly over its box, and the weights of
    a pixel are added up. The scale is such that one of the smallest boxes shows its whole weight.
    """
    heat = np.full(shape, np.nan, np.float32)  # (rows, columns)
    adds, smallest = lie_over_each_other(keys), dict[int | None, int]()  # the smallest area of a box in each picture
    for token in keys:
        if token.is_patch and token.box is not None:
            smallest[token.picture] = min(_area(token.box), smallest.get(token.picture, _area(token.box)))
    for weight, token in zip(weights.tolist(), keys, strict=True):
        if token.box is None or not token.is_patch:
            continue
        left, top, right, bottom = token.box
        rows = _cells_between(top, bottom, shape[0] / size[1])
        columns = _cells_between(left, right, shape[1] / size[0])
        if adds:
            spread = weight * smallest[token.picture] / _area(token.box)
            heat[rows, columns] = np.nan_to_num(heat[rows, columns]) + spread
        else:
            heat[rows, columns] = weight
    return heat


def _area(box: tuple[int, int, int, int]) -> int:
    left, top, right, bottom = box
    return max(1, (right - left) * (bottom - top))


def _cells_between(first: int, end: int, scale: float) -> slice:
    """Return the cells, at least one, that show pixels [first, end) of the picture."""
    start = math.floor(first * scale + 1e-9)
    return slice(start, max(math.floor(end * scale + 1e-9), start + 1))


def lie_over_each_other(keys: Sequence[Token]) -> bool:
    """Return whether the keys hold tokens of a small view of the whole picture and tokens of its tiles."""
    return any(WHOLE in key.text for key in keys if key.is_patch)


def heading_of_row(row: LongRow) -> str:
    """Return the heading of a picture of the row."""
    query, text = visible_text(row.tokens[row.query].text), visible_text(row.text)
    is_asked = any(token.box is None and not token.special for token in (*row.tokens, *row.key_axis))
    where = text if names_picture(row.text) else f"the picture, asked “{text}”" if is_asked else "the picture"
    return f"{row.model.name}: where {query} looks in {where}, {counted(len(row.weights), 'head')}"


def panels_of(value: LongRow | Overview) -> PictureHeat:
    """Return the panels of one query, one for each head, or of the queries of a grid, one for each."""
    return panels_of_row(value) if isinstance(value, LongRow) else panels_of_queries(value)


def panels_of_row(row: LongRow) -> PictureHeat:
    """Return the weights of one query, a panel for each head."""
    box = row.tokens[row.query].box
    panels = [
        Panel(f"layer {layer}, head {head}", f"{layer}.{head}", layer, weights, box)
        for (layer, head), weights in row.weights.items()
    ]
    return PictureHeat(heading_of_row(row), panels, row.key_axis, row.model.citation)


def panels_of_queries(overview: Overview) -> PictureHeat:
    """Return the weights of several queries, a panel for each query and layer: the mean of the heads of a layer.

    `overview` has a grid with a row for each query and a column for each key.
    """
    grid = overview.grid
    assert grid is not None
    by_layer: dict[int, list[int]] = {}
    for layer, head in grid.weights:
        by_layer.setdefault(layer, []).append(head)
    panels = []
    for layer, heads in by_layer.items():
        stacked = np.stack([grid.weights[layer, head] for head in heads])  # (heads, rows, columns)
        mean: Floats = stacked.mean(0, dtype=np.float64).astype(np.float32)
        for part, weights in zip(grid.rows, mean, strict=True):
            token = overview.tokens[part.first_token]
            name = visible_text(token.text)
            title = name if token.score is None else f"{name} {100 * token.score:.0f} %"
            title += f", layer {layer}" if len(by_layer) > 1 else ""
            panels.append(Panel(title, name, layer, weights, token.box))
    return PictureHeat(_heading_of_queries(overview, by_layer), panels, overview.key_axis, overview.model.citation)


def _heading_of_queries(overview: Overview, heads_by_layer: Mapping[int, Sequence[int]]) -> str:
    """Return the heading of a picture with a panel for each query."""
    assert overview.grid is not None
    queries = [overview.tokens[part.first_token] for part in overview.grid.rows]
    kind = "object" if any(query.score is not None for query in queries) else "word"
    kind = "patch" if all(query.is_patch for query in queries) else kind
    what = f"{len(queries)} {kind}{'es' if kind == 'patch' else 's'}" if len(queries) > 1 else f"1 {kind}"
    text = visible_text(overview.text)
    where = text if names_picture(overview.text) else f"the picture, asked “{text}”"
    layers = f" of layer {next(iter(heads_by_layer))}" if len(heads_by_layer) == 1 else " of each layer"
    count, first = max(map(len, heads_by_layer.values())), next(iter(heads_by_layer.values()))[0]
    how = f"mean of {counted(count, 'head')}" if count > 1 else f"head {first}"
    return f"{overview.model.name}: where {what} look{'s' * (len(queries) == 1)} in {where}, {how}{layers}"


def sentences_of_heat(heat: PictureHeat) -> Iterator[str]:
    """Yield sentences on what the panels do not show: weight on other tokens, and single keys that take much."""
    is_patch = [key.is_patch for key in heat.keys]  # (n_k,)
    beside = [1 - float(panel.weights[is_patch].sum()) for panel in heat.panels]
    names_beside = [visible_text(key.text) for key in heat.keys if not key.is_patch and PADDING not in key.text]
    padding = ["what fills the picture up"] * any(key.box is None and PADDING in key.text for key in heat.keys)
    if names_beside or padding:
        low, high = (f"{100 * max(share, 0.0):.0f}" for share in (min(beside), max(beside)))
        span = f"{high} %" if low == high else f"{low} to {high} %"
        names = ", ".join(
            [*(names_beside if len(names_beside) <= 6 else [f"{names_beside[0]} to {names_beside[-1]}"]), *padding]
        )
        yield f"Not in the picture: {span} of the weight, on {names}."
    if lie_over_each_other(heat.keys):
        yield "Tiles and the view of the whole added up, each weight spread over its box."
    sinks = []
    for panel in heat.panels:
        key = int(np.argmax(panel.weights))
        if panel.weights[key] >= SINK:
            sinks.append(
                f"{100 * float(panel.weights[key]):.0f} % of {panel.name} on {visible_text(heat.keys[key].text)}"
            )
    if sinks:
        more = f" and {len(sinks) - 6} more" if len(sinks) > 6 else ""
        yield f"One key takes much ({option_name('drop')} leaves keys out): {', '.join(sinks[:6])}{more}."
