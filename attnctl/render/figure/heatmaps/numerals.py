"""Numbers as outlines, each digit shaped once: what makes a grid of a thousand values quick to draw."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

from attnctl.arrays import Bytes
from attnctl.render.figure.heatmaps.labels import BASE

Doubles = npt.NDArray[np.float64]
HEIGHT = 0.73  # of a digit at one point of size


@lru_cache(maxsize=4096)
def number_outline(text: str) -> tuple[Doubles, Bytes]:
    """The outline of a number: vertices (m, 2) at one point of size, y down, centred on the origin, and path codes (m,)."""
    vertices, codes, x = [], [], 0.0
    for char in text:
        shape, shape_codes, advance = _digit_outline(char)
        vertices.append(shape + (x, 0.0))
        codes.append(shape_codes)
        x += advance
    return np.concatenate(vertices) + (-x / 2, HEIGHT / 2), np.concatenate(codes)


@lru_cache(maxsize=64)
def _digit_outline(char: str) -> tuple[Doubles, Bytes, float]:
    """One character's vertices (m, 2) at one point of size, its codes, and how far it moves what follows."""
    shape = _at_100(char)
    moves = (_at_100(char + "0").get_extents().x1 - _at_100("0").get_extents().x1) / 100
    return shape.vertices * (0.01, -0.01), shape.codes, moves


def _at_100(text: str) -> TextPath:
    return TextPath((0, 0), text, size=100, prop=FontProperties(family=BASE))
