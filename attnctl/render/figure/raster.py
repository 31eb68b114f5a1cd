"""Draw the same panels as pixels, without a Figure: a batch of pictures is ten times as fast as a loop of seaborn.

A `Sheet` whose parts are drawn immediately. Agg draws the paths; cells are blocks of colour; matplotlib sets each text
once, and later drawings copy its pixels, which are up to a pixel away from their place in a figure.
"""

from __future__ import annotations

import io
import math
import threading
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple, Unpack

import numpy as np
import numpy.typing as npt
from matplotlib.artist import Artist
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.colors import to_rgb, to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.path import Path
from matplotlib.text import Text
from matplotlib.transforms import Affine2D
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from attnctl.formats.photographs import open_picture
from attnctl.formats.pictures import PLAIN, Look, figure_bytes
from attnctl.readings.heatmap import Evolution, HeatmapGrid
from attnctl.render.figure.drawing import HATCHING, INK, LEAST_CELL, PAPER, QUIET, Sheet
from attnctl.render.figure.heatmap import drawing_of, on_one_scale, panels_of_grid
from attnctl.render.figure.layout import Panels, TextSetting, colour_map
from attnctl.render.figure.png import png_of_pixels
from attnctl.render.figure.saving import plain_settings, png_bytes, png_metadata
from attnctl.render.forms import takes_dark_ink
from attnctl.runtime.arrays import Bytes, keep_freed_memory

_agg: Any = RendererAgg  # which has no types
WHITE = 0xFFFFFFFF  # the number of a pixel
FRAME, LAST = 400, 2500  # milliseconds
FRAME_DPI = 120  # dots per inch of a frame, at most
AT_ONCE = 1 << 14  # pixels of cells that are coloured at a time: a copy of so few stays in the cache


def heatmap_png(grid: HeatmapGrid, look: Look) -> tuple[bytes, tuple[str, ...]]:
    """Return the picture of `draw_heatmap` as the bytes of a PNG file, and its notes."""
    keep_freed_memory()
    panels = panels_of_grid(grid, look)
    with plain_settings():
        if (sheet := _drawn_sheet(panels, look)) is not None:
            return _png_with_palette(sheet.canvas.pixels, look, grid.cited), sheet.labels.missing_characters
    return _png_of_figure(panels, look)


def panels_bytes(picture: Panels, look: Look, name: str) -> tuple[bytes, tuple[str, ...]]:
    """Return the picture of `drawing_of` as a file of a format, a PNG file in all its colours, and notes about it.

    Raises UsageError if the format cannot hold a figure.
    """
    if name != "png":
        drawing = drawing_of(picture, look)
        return figure_bytes(drawing.figure, name), drawing.notes
    with plain_settings():
        if (sheet := _drawn_sheet(picture, look)) is not None:
            data = png_of_pixels(sheet.canvas.pixels, look.dpi, png_metadata(picture.cited))
            return data, sheet.labels.missing_characters
    return _png_of_figure(picture, look)


def _drawn_sheet(picture: Panels, look: Look) -> Raster | None:
    """Return panels drawn as pixels; None if their cells are so small that matplotlib draws them better."""
    sheet = Raster(picture, look)
    if min(sheet.plan.cell) * look.dpi < LEAST_CELL:
        return None
    sheet.draw()
    return sheet


def _png_of_figure(picture: Panels, look: Look) -> tuple[bytes, tuple[str, ...]]:
    drawing = drawing_of(picture, look)
    return png_bytes(drawing.figure), drawing.notes


def _png_with_palette(pixels: Bytes, look: Look, cited: str) -> bytes:
    """Return pixels (height, width, 4), all opaque, as a PNG file with a palette: a third of the size, in half the time."""
    height, width, _ = pixels.shape
    picture = Image.frombytes("RGB", (width, height), pixels, "raw", "RGBX")  # a copy, in half the time of a conversion
    indexed = picture.quantize(palette=_palette(look.cmap), dither=Image.Dither.NONE)
    text, out = PngInfo(), io.BytesIO()
    for key, value in png_metadata(cited).items():
        text.add_text(key, value)
    indexed.save(out, "PNG", compress_level=1, dpi=(look.dpi, look.dpi), pnginfo=text)
    return out.getvalue()


def moving_picture(run: Evolution, look: Look = PLAIN) -> tuple[bytes, tuple[str, ...]]:
    """Return a GIF with one frame for each step, the last one shown longer, and the notes of the drawing."""
    frames = []
    notes: tuple[str, ...] = ()
    look = replace(look, dpi=min(look.dpi, FRAME_DPI))
    for grid, step in zip(run.grids, run.steps, strict=True):
        # the title is equally wide in every frame, so that all frames have the same size
        width = len(f"{run.steps[-1]:,}")
        data, notes = heatmap_png(grid, on_one_scale(look, f"{run.name}, step {step:>{width},}"))
        frames.append(open_picture(io.BytesIO(data), ("PNG",)).convert("RGB"))
    size = max(frame.width for frame in frames), max(frame.height for frame in frames)
    pages = []
    for frame in frames:
        page = Image.new("RGB", size, "white")
        page.paste(frame, (0, 0))
        pages.append(page)
    out = io.BytesIO()
    durations = [FRAME] * (len(pages) - 1) + [LAST]
    pages[0].save(out, format="GIF", save_all=True, append_images=pages[1:], duration=durations, loop=0)
    return out.getvalue(), notes


@lru_cache(maxsize=4)
def _palette(cmap: str) -> Image.Image:
    """Return 256 colours for heatmaps: colours of the map, greys, and blends of numbers with the cells behind them."""
    colours = colour_map(cmap)
    cells, few = (colours(np.linspace(0, 1, n), bytes=True)[:, :3] for n in (128, 32))  # (128, 3), (32, 3)
    inks = np.array([[17] * 3 if takes_dark_ink(*cell) else [255] * 3 for cell in few.tolist()])  # (32, 3)
    blends = [few * (1 - share) + inks * share for share in (0.25, 0.5, 0.75)]
    exact = [
        tuple(round(255 * part) for part in to_rgb(name))
        for name in (INK, QUIET, PAPER, HATCHING["facecolor"], HATCHING["edgecolor"])
    ]  # (5, 3)
    greys = np.linspace(17, 255, 32 - len(exact))[:, None].repeat(3, 1)  # (27, 3)
    palette = Image.new("P", (1, 1))
    palette.putpalette(np.concatenate([cells, exact, greys, *blends]).round().astype(np.uint8).tobytes())
    return palette


class Canvas:
    """White paper for Agg: `pixels` (height, width, 4), uint8; `numbers` (height, width) holds each as one number."""

    def __init__(self, height: int, width: int, dpi: float) -> None:
        self.dpi, self.height = dpi, height
        self.agg: Any = _agg(width, height, dpi)
        self._plain: Any = self.agg.new_gc()  # the context of all texts, which never change it
        self.pixels: Bytes = np.asarray(self.agg.buffer_rgba())
        self.pixels[...] = 255
        self.numbers: npt.NDArray[np.uint32] = self.pixels.view(np.uint32)[..., 0]

    def put_text(
        self, x: int, y: int, text: str, size: float, family: tuple[str, ...], **how: Unpack[TextSetting]
    ) -> None:
        """Write a text around pixel (x, y), counted from the top left."""
        stamp = _text_stamp(text, size, self.dpi, family, **how)
        height, width, _ = stamp.ink.shape
        top, left = y - stamp.y, x - stamp.x
        paper = self.numbers[max(top, 0) : max(top + height, 0), max(left, 0) : max(left + width, 0)]
        if paper.shape == stamp.on_white.shape and (paper == WHITE).all():
            paper[...] = stamp.on_white  # as Agg would, in a fifth of the time
        else:
            self.agg.draw_image(self._plain, left, self.height - top - height, stamp.ink[::-1])


class Raster(Sheet):
    """A sheet drawn as pixels on `canvas`."""

    def _begin_canvas(self) -> None:
        p, dpi = self.plan, self.look.dpi
        self.canvas = Canvas(int(p.height * dpi + 1e-6), int(p.width * dpi + 1e-6), dpi)
        self._inches = Affine2D().scale(dpi)

    def _add(self, artist: Artist) -> None:
        artist.draw(self.canvas.agg)

    def _draw_path(self, path: Path, fill: str, line: str, width: float) -> None:
        """Draw a path as its patch would: to make the patch takes longer than to draw it."""
        agg = self.canvas.agg
        context = agg.new_gc()
        context.set_linewidth(width)
        context.set_joinstyle("miter")
        context.set_foreground(to_rgba(line), isRGBA=True)
        agg.draw_path(context, path, self._inches, None if fill == "none" else to_rgba(fill))

    def _put_text(self, x: float, y: float, text: str, size: float, **how: Unpack[TextSetting]) -> None:
        place = round(x * self.look.dpi), round(y * self.look.dpi)
        self.canvas.put_text(*place, text, size, tuple(self.labels.family), **how)

    def _put_line(self, x: float, y: float, text: str, size: float, colour: str) -> None:
        """Write each word separately: the words of many pictures are set once."""
        words = self.labels.words_of_line(text, size, self.look.dpi)
        if not words:
            super()._put_line(x, y, text, size, colour)
        for word, width in words:
            if word:
                super()._put_line(x, y, word, size, colour)
            x += width

    def _put_cells(self, left: float, top: float, width: float, height: float, rgba: Bytes, fine: bool = False) -> None:
        x, y, w, h = (round(inches * self.look.dpi) for inches in (left, top, width, height))
        region = self.canvas.numbers[y : y + h, x : x + w]
        cells = np.ascontiguousarray(rgba).view(np.uint32)[..., 0]  # (rows, columns)
        down, across = (
            (np.arange(n) * 2 + 1) * count // (2 * n) for n, count in zip(region.shape, cells.shape, strict=True)
        )
        stretched, opaque = cells.take(across, 1), bool(cells.all())  # (rows, w)
        lines = -(-AT_ONCE // max(w, 1))
        for start in range(0, h, lines):
            colours = stretched.take(down[start : start + lines], 0)  # (lines, w)
            np.copyto(region[start : start + lines], colours, where=opaque or colours > 0)  # 0 is transparent

    def _put_hatching(self, left: float, top: float, width: float, height: float) -> None:
        dpi, low = self.look.dpi, self.plan.height - top - height
        wide, high = (left + width - left) * dpi, (low + height - low) * dpi  # exactly the numbers of a Rectangle
        x, y = left * dpi, self.canvas.height - low * dpi
        across = np.arange(math.floor(x + 0.5), math.floor(wide + x + 0.5))  # as Agg snaps a box to pixels
        down = np.arange(math.floor(y - high + 0.5), math.floor(y + 0.5))
        tile = _hatched_tile(dpi)  # (n, n)
        box = tile.take(down % len(tile), 0).take(across % len(tile), 1)
        self.canvas.numbers[down[0] : down[-1] + 1, across[0] : across[-1] + 1] = box


class _Stamp(NamedTuple):
    """A text on a transparent ground and on white, and the place of its anchor from the top left corner."""

    ink: Bytes  # (height, width, 4)
    on_white: npt.NDArray[np.uint32]  # (height, width)
    x: int
    y: int


@lru_cache(maxsize=4)
def _hatched_tile(dpi: float) -> npt.NDArray[np.uint32]:
    """Return hatching around the top left corner (n, n): Agg repeats the same n = int(dpi) pixels from there."""
    canvas = Canvas(int(dpi), int(dpi), dpi)
    Rectangle((0, 0), 2 * int(dpi), 2 * int(dpi), **HATCHING).draw(canvas.agg)
    return canvas.numbers


@lru_cache(maxsize=4)
def _text_figure(dpi: float, thread: int) -> Any:  # which has no types; two threads draw on two
    return FigureCanvasAgg(Figure(dpi=dpi))


@lru_cache(maxsize=8192)
def _text_stamp(text: str, size: float, dpi: float, family: tuple[str, ...], **how: Unpack[TextSetting]) -> _Stamp:
    """Return a text as matplotlib sets it, around its anchor."""
    easel = _text_figure(dpi, threading.get_ident())
    setting: TextSetting = {"color": INK, "ha": "center", "va": "center", **how}
    label = Text(0, 0, text, fontsize=size, family=list(family), parse_math=False, **setting)
    label.set_figure(easel.figure)
    extent = label.get_window_extent(easel.get_renderer())
    x, y = (2 - math.floor(low) for low in (extent.x0, extent.y0))
    sides = math.ceil(extent.width) + 5, math.ceil(extent.height) + 5
    agg, paper = easel.get_renderer(), Canvas(*sides[::-1], dpi)  # which has the measures of the text already
    if sides[0] > agg.width or sides[1] > agg.height:
        agg = _agg(*sides, dpi)
    label.set_position((x, y))
    ground = np.asarray(agg.buffer_rgba())[int(agg.height) - sides[1] :, : sides[0]]  # Agg counts from the bottom
    ground[...] = 255, 255, 255, 0  # Agg's empty ground, in place of the text before
    label.draw(agg)
    rgba = ground.copy()  # (height, width, 4)
    paper.agg.draw_image(paper.agg.new_gc(), 0, 0, rgba[::-1])  # Agg begins at the last line
    rows, columns = (np.flatnonzero(rgba[..., 3].any(axis)) for axis in (1, 0))  # with ink
    if not len(rows):
        rows = columns = np.zeros(1, dtype=int)
    box = np.s_[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    return _Stamp(rgba[box].copy(), paper.numbers[box].copy(), x - int(columns[0]), len(rgba) - y - int(rows[0]))
