"""Contact sheets: many small grids on a page, as PNG; and such pages as one PDF."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import IO

import numpy as np
from PIL import Image

from attnctl import __version__
from attnctl.arrays import Bytes
from attnctl.formats.photographs import open_picture
from attnctl.formats.pictures import CMAP
from attnctl.render.figure.drawing import HATCHING, INK, QUIET
from attnctl.render.figure.heatmap import colour_map
from attnctl.render.figure.labels import Labels
from attnctl.render.figure.raster import Canvas
from attnctl.render.figure.saving import check_source_date, png_of_pixels
from attnctl.trace import Trace

DPI = 150
PAGE = (1754, 1240)  # pixels: A4
SHAPE = (8, 5)  # grids on a page, down and across
MARGIN, HEAD = 45, 75  # pixels: around the page, and for what stands at its top
TILE = ((PAGE[0] - HEAD - MARGIN) // SHAPE[0], (PAGE[1] - 2 * MARGIN) // SHAPE[1])  # pixels
GRID, GAP = 158, 28  # pixels: the longer side of a grid, and between two tiles


def head_tiles(trace: Trace, name: str, cmap: str = CMAP) -> Iterator[Bytes]:
    """A small grid for each layer and head of a trace, what it is written beneath: (TILE height, width, 3), uint8."""
    colours = colour_map(cmap)
    labels = Labels([name, trace.text])
    several = len(trace.layers) > 1 or any(len(layer.heads) > 1 for layer in trace.layers)
    for layer in trace.layers:
        if layer.weights is None:
            continue
        for head, weights in zip(layer.heads, layer.weights, strict=True):
            most = float(weights.max())
            rgb = colours(weights / most if most > 0 else weights, bytes=True)[..., :3]  # (n_q, n_k, 3)
            if layer.mask is not None:
                rgb[~layer.mask] = [int(HATCHING["facecolor"][at : at + 2], 16) for at in (1, 3, 5)]
            place = f"  layer {layer.layer}, head {head}" if several else ""
            yield _labelled_tile(rgb, labels, f"{name}  {trace.text}", f"0 – {most:.2f}{place}")


def _labelled_tile(rgb: Bytes, labels: Labels, above: str, beneath: str) -> Bytes:
    tile = Canvas(*TILE, DPI)
    scale = GRID / max(rgb.shape[:2])
    high, wide = (max(1, round(side * scale)) for side in rgb.shape[:2])
    grid = Image.fromarray(rgb).resize((wide, high), Image.Resampling.NEAREST)
    tile.pixels[20 : 20 + high, :wide, :3] = np.asarray(grid)
    caption = labels.cut_to_width(labels.drawable(" ".join(above.split())), 6.0, (TILE[1] - GAP) / DPI)
    for y, text, colour in ((14, caption, INK), (20 + high + 14, beneath, QUIET)):
        tile.put_text(0, y, text, 6.0, tuple(labels.family), ha="left", va="baseline", color=colour)
    return tile.pixels[..., :3]


def sheet_page(tiles: Sequence[Bytes], heading: str) -> bytes:
    """The bytes of a PNG of at most SHAPE[0] × SHAPE[1] tiles, row by row."""
    page, labels = Canvas(*PAGE, DPI), Labels([heading])
    title = labels.cut_to_width(labels.drawable(heading), 10.0, (PAGE[1] - 2 * MARGIN) / DPI)
    what = "queries down, keys across; each grid coloured from 0 to its largest weight, which stands beneath it"
    for y, text, size, colour in ((42, title, 10.0, INK), (62, what, 6.5, QUIET)):
        page.put_text(MARGIN, y, text, size, tuple(labels.family), ha="left", va="baseline", color=colour)
    for at, tile in enumerate(tiles):
        row, column = divmod(at, SHAPE[1])
        y, x = HEAD + row * TILE[0], MARGIN + column * TILE[1]
        page.pixels[y : y + TILE[0], x : x + TILE[1], :3] = tile
    return png_of_pixels(page.pixels, DPI, f"attnctl {__version__}, {heading}")


# --- PDF ---------------------------------------------------------------------------------------------------------


def sheet_pdf(pages: Iterable[bytes], file: IO[bytes]) -> None:
    """Write a PDF file whose pages are PNG files as `sheet_page` makes them, one pixel for each of theirs."""
    from matplotlib.backends.backend_pdf import PdfPages
    from matplotlib.figure import Figure

    check_source_date()
    high, wide = PAGE
    with PdfPages(file, metadata={"Creator": None, "Producer": None, "CreationDate": None}) as document:
        for png in pages:
            figure = Figure(figsize=(wide / DPI, high / DPI))
            axes = figure.add_axes((0, 0, 1, 1), frameon=False, xticks=[], yticks=[])
            with open_picture(
                io.BytesIO(png), ("PNG",)
            ) as picture:  # RGBA: matplotlib takes it as it is, RGB it converts
                axes.imshow(np.asarray(picture.convert("RGBA")), aspect="auto", interpolation="none")
            document.savefig(figure)


def packed_tiles(tiles: Iterable[Bytes]) -> bytes:
    """Tiles as bytes, to travel between processes; `unpacked_tiles` is the way back."""
    return zlib.compress(b"".join(tile.tobytes() for tile in tiles), 1)


def unpacked_tiles(data: bytes) -> Bytes:
    """→ (tiles, TILE height, TILE width, 3)."""
    return np.frombuffer(zlib.decompress(data), dtype=np.uint8).reshape(-1, *TILE, 3)
