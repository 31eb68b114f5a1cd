"""Place the tokens of a picture: the grid of its patches, and where each patch lies in the photograph.

A user's own transform resizes, crops and scales in ways that nobody tells. So it is run on pictures whose brightness is the
place of a pixel, and the result says where each pixel of the model's input comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnctl.errors import AttnctlError
from attnctl.models.huggingface.readers.picture import boxes_of_spans
from attnctl.runtime.arrays import Floats, as_numpy
from attnctl.text.tokens import Token

if TYPE_CHECKING:
    from PIL.Image import Image

MOST_LEADING = 32  # tokens before the patches: CLS, DIST, registers
STRAIGHT = 0.02  # the part of a side by which places may lie off a line


class Line(NamedTuple):
    """Where the pixels of one side of the model's input come from: pixel + 0.5 → start + step · (pixel + 0.5), in shares."""

    start: float
    step: float


def grid_of_tokens(
    n: int, side: tuple[int, int] | None, sizes: Collection[tuple[int, int]] = ()
) -> tuple[int, int] | None:
    """Return rows and columns of the patches among n tokens, behind at most MOST_LEADING others; None if there is no grid.

    `sizes` are (rows, columns) that the model's own convolutions gave: the largest that fits is the grid. Without one it has
    the shape of the input, `side` (height, width), and is as large as possible.
    """
    fitting = [grid for grid in sizes if 1 < grid[0] * grid[1] <= n <= grid[0] * grid[1] + MOST_LEADING]
    if fitting:
        return max(fitting, key=lambda grid: grid[0] * grid[1])
    if side is None:
        return None
    for count in range(n, max(1, n - MOST_LEADING - 1, (2 * n - 1) // 3), -1):  # most of them are patches
        columns = round((count * side[1] / side[0]) ** 0.5)
        if columns and count % columns == 0 and (count // columns) * side[1] == columns * side[0]:
            return count // columns, columns
    return None


def tokens_of_grid(n: int, grid: tuple[int, int], patches: list[Token] | None = None) -> tuple[Token, ...]:
    """Return n tokens: those before the patches, [CLS] and [REG0], …, then the patches row by row, named r0c0."""
    rows, columns = grid
    if patches is None:
        patches = [Token(f"r{row}c{column}") for row in range(rows) for column in range(columns)]
    before = n - rows * columns
    names = ["[CLS]"] * (before > 0) + [f"[REG{number}]" for number in range(before - 1)]
    return (*(Token(name, special=True) for name in names), *patches)


def patches_in(
    photograph: Image, grid: tuple[int, int], lines: tuple[Line | None, Line | None] = (None, None)
) -> list[Token]:
    """Return the patches of a grid row by row, each with its box in the photograph.

    `lines` say where rows and columns of the model's input come from; None: the whole side is the input.
    """
    spans = []
    for count, line, size in zip(grid, lines, (photograph.height, photograph.width), strict=True):
        edges = np.arange(count + 1) / count  # in shares of the input
        exact = (edges if line is None else line.start + line.step * edges) * size
        pixels = np.clip(np.round(exact), 0, size).astype(int).tolist()
        inside = [(low + high) / 2 for low, high in pairwise(exact.tolist())]
        pairs = [(min(pair), max(pair)) for pair in pairwise(pixels)]
        spans.append([pair if 0 <= middle <= size else None for pair, middle in zip(pairs, inside, strict=True)])
    return boxes_of_spans(spans[0], spans[1])


def lines_of_transform(transform: Callable[[Any], Any], photograph: Image) -> tuple[Line, Line]:
    """Return where the rows and the columns of a transform's result come from in a photograph of this size.

    Raises AttnctlError for a transform whose pixels do not lie on straight lines: a random one, or one that turns pictures.
    """
    from PIL import Image

    width, height = photograph.size

    def seen(values: Floats) -> Floats:
        """Return the result for a picture of these values, 0 to 255 (height, width)."""
        grey = Image.fromarray(np.broadcast_to(np.round(values), (height, width)).astype(np.uint8)).convert("RGB")
        return picture_values(transform(grey))

    black, white = seen(np.zeros(1, np.float32)), seen(np.full(1, 255, np.float32))
    scale = white - black
    inner = np.abs(scale) > np.abs(scale).max() / 2  # the rest is padding
    if not inner.any():
        raise AttnctlError("the transform gives the same for white and black: where its pixels come from is unknown")
    across, down = (
        np.linspace(0, 255, width, dtype=np.float32)[None],
        np.linspace(0, 255, height, dtype=np.float32)[:, None],
    )
    lines = []
    for axis, (ramp, size) in enumerate(((down, height), (across, width))):
        share = np.where(inner, (seen(ramp) - black) / np.where(inner, scale, 1), np.nan)
        places = np.nanmedian(share, 1 - axis)  # of each row, or column, of the input
        pixels = (np.arange(len(places)) + 0.5) / len(places)
        known = ~np.isnan(places) & (places > EDGE) & (places < 1 - EDGE)
        if known.sum() < 2:
            raise AttnctlError("the transform keeps too little of the picture to tell where its pixels come from")
        sources = (places[known] * (size - 1) + 0.5) / size  # brightness 0 is the middle of the first pixel
        step, start = np.polyfit(pixels[known], sources, 1)
        if np.abs(np.polyval((step, start), pixels[known]) - sources).max() > STRAIGHT:
            raise AttnctlError(
                "the transform moves pixels at random, or turns pictures: where they come from is unknown"
            )
        lines.append(Line(float(start), float(step)))
    return lines[0], lines[1]


EDGE = 0.01  # brightness this near to black or white may be cut off


def picture_values(result: Any) -> Floats:
    """Return a transform's result as one channel (height, width): the mean over channels and the batch's axis."""
    import torch

    if isinstance(result, dict) or hasattr(result, "keys"):
        result = next(
            (value for value in result.values() if isinstance(value, torch.Tensor) and value.ndim > 2), result
        )
    if isinstance(result, (tuple, list)):
        result = next((value for value in result if isinstance(value, torch.Tensor) and value.ndim > 2), result)
    if not isinstance(result, torch.Tensor) or result.ndim not in (3, 4):
        raise AttnctlError("the transform returns no picture (channels, height, width)")
    values = as_numpy(result.double())
    mean: Floats = values.reshape(-1, *values.shape[-2:]).mean(0)
    return mean
