"""The same heatmap as pixels, without matplotlib's artists: what makes a batch of pictures ten times as quick.

Kept by hand for the budget of `tests/benchmarks/bench_batch.py`: at least 10 times as many pictures a second as seaborn. A
head of 12 tokens takes 13 ms so, 69 ms by `draw_heatmap` and about 100 ms by a loop over matplotlib (one core, 100 dpi); a
PNG takes 3 ms by `encode_png` and 12 ms or more by Pillow.
A `Sheet` whose parts are put straight into an array. Letters and numbers are drawn by Agg once, kept as stamps, and pressed
where they belong; cells are blocks of colour. Against `figure.draw` a stamp may stand up to a pixel elsewhere.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Unpack

import numpy as np
import numpy.typing as npt
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.path import Path
from matplotlib.text import Text
from matplotlib.transforms import IdentityTransform

from attnctl.arrays import Bytes
from attnctl.readings.heatmap import HeatmapGrid
from attnctl.render.figure.drawing import HATCHED, HEIGHT, INK, PAPER, Sheet, bright_and_shown, number_outline
from attnctl.render.figure.heatmap import draw_heatmap, grids_of_reading
from attnctl.render.figure.layout import TextSetting
from attnctl.render.figure.look import Look
from attnctl.render.figure.saving import plain_settings, png_bytes, png_metadata

Inks = npt.NDArray[np.uint16]  # a colour for each cell, or one for all: red, green, blue
DIGIT, POINT = 0.637, 0.318  # widths at one point of size: of a digit, and what the point is narrower
LEAST_CELL = 3.0  # pixels: smaller cells need the smoothing of matplotlib's own images


class Stamp(NamedTuple):
    """Ink on nothing: alpha (height, width) 0 to 255, and where its anchor stands from its top left corner."""

    alpha: Bytes
    x: int
    y: int


def heatmap_png(reading: HeatmapGrid, look: Look) -> tuple[bytes, tuple[str, ...]]:
    """The picture of `draw_heatmap` as the bytes of a PNG file, and its notes."""
    with plain_settings():
        sheet = Raster(grids_of_reading(reading, look), look)
        sheet.draw()
    if sheet.too_fine:
        drawing = draw_heatmap(reading, look)
        return png_bytes(drawing.figure), drawing.notes
    return encode_png(sheet.canvas, sheet.dpi, reading.cited), sheet.labels.missing_characters


class Raster(Sheet):
    """A sheet in pixels: `canvas` (height, width, 3), red, green and blue from 0 to 255."""

    def _begin_canvas(self) -> None:
        p = self.plan
        self.too_fine = min(p.cell) * self.dpi < LEAST_CELL
        shape = (1, 1) if self.too_fine else (int(p.height * self.dpi + 1e-6), int(p.width * self.dpi + 1e-6))
        self.canvas = np.full((*shape, 3), 255, dtype=np.uint8)  # (height, width, 3)

    def draw(self) -> None:
        """Everything, from the back to the front; nothing where it is `too_fine`."""
        if not self.too_fine:
            super().draw()

    def _put_text(self, x: float, y: float, text: str, size: float, **how: Unpack[TextSetting]) -> None:
        ink = how.pop("color", INK)
        stamp = text_stamp(text, size, self.dpi, tuple(self.labels.family), **how)
        press_stamp(self.canvas, stamp, round(x * self.dpi), round(y * self.dpi), ink)

    def _put_lines(self, lines: Sequence[tuple[float, float, float, float]], colour: str, width: float) -> None:
        """Lines along the axes, their edges softened by how much of a pixel they cover."""
        thick, ink = width * self.dpi / 72, _ink_bytes(colour)
        snap = 0.5 * (round(thick) % 2)
        for line in lines:
            x0, y0, x1, y1 = (at * self.dpi for at in line)
            across = y0 == y1
            middle = np.floor((y0 if across else x0) + 0.5) + snap
            first, alpha = _covered_pixels(middle - thick / 2, middle + thick / 2)
            ends = slice(*sorted((round(x0 if across else y0), round(x1 if across else y1))))
            band = slice(max(first, 0), first + len(alpha))
            region = self.canvas[band, ends] if across else self.canvas[ends, band]
            region[...] = _mixed_ink(region, ink, alpha[:, None, None] if across else alpha[None, :, None])

    def _put_cells(self, left: float, top: float, width: float, height: float, rgba: Bytes, fine: bool = False) -> None:
        x, y, w, h = (round(at * self.dpi) for at in (left, top, width, height))
        region = self.canvas[y : y + h, x : x + w]
        h, w = region.shape[:2]
        columns = (np.arange(w) * 2 + 1) * rgba.shape[1] // (2 * w)  # (w,)
        edges = [(2 * h * row + len(rgba)) // (2 * len(rgba)) for row in range(len(rgba) + 1)]
        wide = np.ascontiguousarray(rgba[..., :3][:, columns])  # (rows, w, 3)
        seen = None if (rgba[..., 3] == 255).all() else rgba[..., 3][:, columns] > 0  # (rows, w)
        for row, (low, high) in enumerate(zip(edges, edges[1:], strict=False)):
            if seen is None:
                region[low:high] = wide[row]
            else:
                region[low:high, seen[row]] = wide[row][seen[row]]

    def _put_hatching(self, left: float, top: float, width: float, height: float) -> None:
        x, y, w, h = (round(at * self.dpi) for at in (left, top, width, height))
        region, tile = self.canvas[y : y + h, x : x + w], _hatched_square(self.dpi)
        times = -(-h // tile.shape[0]), -(-w // tile.shape[1]), 1
        region[...] = np.tile(tile, times)[: region.shape[0], : region.shape[1]]

    def _put_numbers(self, texts: Sequence[str], left: float, top: float, colours: Bytes, size: float) -> None:
        n_k, bright, shown = colours.shape[1], *bright_and_shown(colours)
        w, h = (side * self.dpi for side in self.plan.cell)
        x, y = left * self.dpi + w / 2, top * self.dpi + h / 2
        half, longest = (x % 1 >= 0.5, y % 1 >= 0.5), max(map(len, texts))
        for cell in np.flatnonzero(shown).tolist():
            stamp = _number_stamp(texts[cell], size, self.dpi, longest, *half)
            place = math.floor(x + cell % n_k * w), math.floor(y + cell // n_k * h)
            press_stamp(self.canvas, stamp, *place, INK if bright[cell] else PAPER)


# --- ink ---------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _ink_bytes(colour: str) -> Inks:
    return np.array([round(255 * part) for part in to_rgb(colour)], dtype=np.uint16)  # (3,)


def press_stamp(canvas: Bytes, stamp: Stamp, x: int, y: int, colour: str) -> None:
    """Ink of a colour on canvas (height, width, 3), through a stamp whose anchor is put on pixel (x, y)."""
    left, top = x - stamp.x, y - stamp.y
    skip_x, skip_y = max(0, -left), max(0, -top)
    region = canvas[top + skip_y : top + stamp.alpha.shape[0], left + skip_x : left + stamp.alpha.shape[1]]
    alpha = stamp.alpha[skip_y : skip_y + region.shape[0], skip_x : skip_x + region.shape[1]]
    region[...] = _mixed_ink(region, _ink_bytes(colour), alpha[..., None])


def _mixed_ink(under: Bytes, ink: Inks, alpha: Bytes) -> Bytes:
    """Ink over what is there, alpha 0 to 255; all broadcast → uint8."""
    share = alpha.astype(np.uint16)
    share += share >> 7  # 0 to 256: what follows is then a shift
    return ((under * (256 - share) + ink * share + 128) >> 8).astype(np.uint8)


def _covered_pixels(low: float, high: float) -> tuple[int, Bytes]:
    """The first pixel that a stretch touches, and how much of each it covers, 0 to 255."""
    first, last = int(np.floor(low)), int(np.ceil(high))
    edges = np.arange(first, last)  # (pixels,)
    share = np.minimum(edges + 1, high) - np.maximum(edges, low)  # (pixels,)
    return first, np.rint(255 * share).astype(np.uint8)


# --- stamps ------------------------------------------------------------------------------------------------------


_renderer: Any = RendererAgg  # which has no types


@lru_cache(maxsize=4)
def _text_figure(dpi: float) -> Any:  # which has no types
    return FigureCanvasAgg(Figure(dpi=dpi))


@lru_cache(maxsize=8192)
def text_stamp(text: str, size: float, dpi: float, family: tuple[str, ...], **how: Unpack[TextSetting]) -> Stamp:
    """A text as matplotlib sets it, around its anchor."""
    easel = _text_figure(dpi)
    setting: dict[str, Any] = {"ha": "center", "va": "center", **how}
    label = Text(0, 0, text, fontsize=size, family=list(family), parse_math=False, **setting)
    label.set_figure(easel.figure)
    extent = label.get_window_extent(easel.get_renderer())
    x, y = (2 - int(np.floor(low)) for low in (extent.x0, extent.y0))
    renderer: Any = _renderer(int(np.ceil(extent.width)) + 5, int(np.ceil(extent.height)) + 5, dpi)
    label.set_position((x, y))
    label.draw(renderer)
    alpha = np.array(renderer.buffer_rgba())[..., 3]  # (height, width)
    return Stamp(alpha, x, alpha.shape[0] - y)


@lru_cache(maxsize=8192)
def _number_stamp(text: str, size: float, dpi: float, longest: int, half_x: bool, half_y: bool) -> Stamp:
    """A number centred in a box that holds any of so many characters, in the middle of a pixel or between two."""
    point = size * dpi / 72
    high, wide = 2 * int(0.5 * HEIGHT * point + 2), 2 * int(0.5 * point * (DIGIT * longest - POINT) + 2)
    vertices, codes = number_outline(text)
    middle = wide // 2 + half_x / 2, high - high // 2 - half_y / 2
    renderer: Any = _renderer(wide, high, dpi)
    pen = renderer.new_gc()
    pen.set_linewidth(0)
    renderer.draw_path(pen, Path(vertices * (point, -point) + middle, codes), IdentityTransform(), (0.0, 0.0, 0.0))
    return Stamp(np.array(renderer.buffer_rgba())[..., 3], wide // 2, high // 2)


@lru_cache(maxsize=4)
def _hatched_square(dpi: float) -> Bytes:
    """A square inch of the pattern that says "masked" → (dpi, dpi, 3)."""
    figure = Figure(figsize=(1, 1), dpi=dpi)
    canvas: Any = FigureCanvasAgg(figure)
    box = Rectangle((0, 0), 1, 1, facecolor=HATCHED[0], edgecolor=HATCHED[1], hatch="/////", linewidth=0)
    box.set_hatch_linewidth(0.5)
    box.set_transform(figure.dpi_scale_trans)
    figure.add_artist(box)
    canvas.draw()
    return np.array(canvas.buffer_rgba())[..., :3]


# --- PNG ---------------------------------------------------------------------------------------------------------


def encode_png(canvas: Bytes, dpi: float, cited: str = "") -> bytes:
    """The bytes of a PNG file of canvas (height, width, 3), quickly: rows as differences, lightly deflated."""
    high, wide = canvas.shape[:2]
    flat = canvas.reshape(high, -1)  # (height, 3 · width)
    rows = np.empty((high, 1 + flat.shape[1]), dtype=np.uint8)
    rows[0, 0], rows[1:, 0] = 0, 2  # the first row as it is, each other minus the one above it
    rows[0, 1:] = flat[0]
    np.subtract(flat[1:], flat[:-1], out=rows[1:, 1:])
    per_metre = round(dpi / 0.0254)
    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            _png_chunk(b"IHDR", struct.pack(">IIBBBBB", wide, high, 8, 2, 0, 0, 0)),
            *(_png_chunk(b"tEXt", f"{key}\0{said}".encode("latin-1")) for key, said in png_metadata(cited).items()),
            _png_chunk(b"pHYs", struct.pack(">IIB", per_metre, per_metre, 1)),
            _png_chunk(b"IDAT", zlib.compress(rows.data, 1)),
            _png_chunk(b"IEND", b""),
        )
    )


def _png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
