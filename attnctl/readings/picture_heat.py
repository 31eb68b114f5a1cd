"""Show where one query looks in a picture: draw its weights over the boxes of the patches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from attnctl.checks.selection import find_token
from attnctl.errors import UsageError, option_name
from attnctl.readings.overview import LongRow
from attnctl.runtime.arrays import Floats
from attnctl.runtime.files import names_picture
from attnctl.text import counted, visible_text
from attnctl.text.tokens import PADDING, WHOLE, Token

SINK = 0.3  # a token with this share of a query's weight or more is named


def query_of_picture(tokens: tuple[Token, ...], query: str | None, causal: bool) -> int:
    """Return the query that `query` names; by default CLS (the first token but the patches), or the last token of a text.

    Raises UsageError if there is no such token, or no CLS token.
    """
    if query is not None:
        return find_token(tokens, query)
    if causal or has_text(tokens) or not any(token.box is not None for token in tokens):  # the words of a caption
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
    has_picture = any(token.box is not None for token in tokens)
    return has_picture and any(token.box is None and not token.special for token in tokens)


def heat_of_boxes(weights: Floats, keys: tuple[Token, ...], size: tuple[int, int], shape: tuple[int, int]) -> Floats:
    """Return weights (n_k,) as an image (rows, columns) of their boxes, NaN outside; `size` is (width, height) in pixels.

    If boxes overlap (tiles and a small view of the whole), each weight is spread evenly over its box, and the weights of
    a pixel are added up. The scale is such that one of the smallest boxes shows its whole weight.
    """
    heat = np.full(shape, np.nan, np.float32)  # (rows, columns)
    adds, smallest = lie_over_each_other(keys), dict[int | None, int]()  # the smallest area of a box in each picture
    for token in keys:
        if token.box is not None:
            smallest[token.picture] = min(_area(token.box), smallest.get(token.picture, _area(token.box)))
    for weight, token in zip(weights.tolist(), keys, strict=True):
        if token.box is None:
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
    return any(WHOLE in key.text for key in keys if key.box is not None)


def share_on_patches(row: LongRow, place: tuple[int, int]) -> float:
    """Return how much of its weight the query gives to patches, 0 to 1."""
    boxed = [key.box is not None for key in row.key_axis]  # (n_k,)
    return float(row.weights[place][boxed].sum())


def heading_of_row(row: LongRow) -> str:
    """Return the heading of a picture of the row."""
    query, text = visible_text(row.tokens[row.query].text), visible_text(row.text)
    is_asked = any(token.box is None and not token.special for token in (*row.tokens, *row.key_axis))
    where = text if names_picture(row.text) else f"the picture, asked “{text}”" if is_asked else "the picture"
    return f"{row.model.name}: where {query} looks in {where}, {counted(len(row.weights), 'head')}"


def sentences_of_row(row: LongRow) -> Iterator[str]:
    """Yield sentences on what the heat map does not show: weight on other tokens, and single keys that take much."""
    beside = [1 - share_on_patches(row, place) for place in row.weights]
    names_beside = [visible_text(key.text) for key in row.key_axis if key.box is None and PADDING not in key.text]
    padding = ["what fills the picture up"] * any(key.box is None and PADDING in key.text for key in row.key_axis)
    if names_beside or padding:
        low, high = (f"{100 * share:.0f}" for share in (min(beside), max(beside)))
        span = f"{high} %" if low == high else f"{low} to {high} %"
        names = ", ".join(
            [*(names_beside if len(names_beside) <= 6 else [f"{names_beside[0]} to {names_beside[-1]}"]), *padding]
        )
        yield f"Not in the picture: {span} of the weight, on {names}."
    if lie_over_each_other(row.key_axis):
        yield "Tiles and the view of the whole added up, each weight spread over its box."
    sinks = []
    for (layer, head), weights in row.weights.items():
        key = int(np.argmax(weights))
        if weights[key] >= SINK:
            sinks.append(f"{100 * float(weights[key]):.0f} % of {layer}.{head} on {row.key_axis[key].text}")
    if sinks:
        more = f" and {len(sinks) - 6} more" if len(sinks) > 6 else ""
        yield f"One key takes much ({option_name('drop')} leaves keys out): {', '.join(sinks[:6])}{more}."
