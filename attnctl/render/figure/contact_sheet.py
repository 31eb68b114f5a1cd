"""Contact sheets: many small grids on a page, as PNG; and such pages as one PDF."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from attnctl.readings.trace import Trace
from attnctl.render.figure.drawing import HATCHED, INK, QUIET
from attnctl.render.figure.heatmap import colour_map
from attnctl.render.figure.labels import Labels
from attnctl.render.figure.look import CMAP
from attnctl.render.figure.raster import encoded, lettering, press

DPI = 150
PAGE = (1754, 1240)  # pixels: A4
SHAPE = (8, 5)  # grids on a page, down and across
MARGIN, HEAD = 45, 75  # pixels: around the page, and for what stands at its top
TILE = ((PAGE[0] - HEAD - MARGIN) // SHAPE[0], (PAGE[1] - 2 * MARGIN) // SHAPE[1])  # pixels
GRID, GAP = 158, 28  # pixels: the longer side of a grid, and between two tiles


def tiles(trace: Trace, name: str, cmap: str = CMAP) -> Iterator[Any]:
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
                rgb[~layer.mask] = [int(HATCHED[0][at : at + 2], 16) for at in (1, 3, 5)]
            place = f"  layer {layer.layer}, head {head}" if several else ""
            yield _tile(rgb, labels, f"{name}  {trace.text}", f"0 – {most:.2f}{place}")


def _tile(rgb: Any, labels: Labels, above: str, beneath: str) -> Any:
    tile = np.full((*TILE, 3), 255, dtype=np.uint8)  # (height, width, 3)
    scale = GRID / max(rgb.shape[:2])
    high, wide = (max(1, round(side * scale)) for side in rgb.shape[:2])
    rows, columns = ((np.arange(size) * n // size) for size, n in ((high, len(rgb)), (wide, len(rgb[0]))))
    tile[20 : 20 + high, :wide] = rgb[rows][:, columns]
    caption = labels.fitted(labels.drawable(" ".join(above.split())), 6.0, (TILE[1] - GAP) / DPI)
    for text, y, colour in ((caption, 14, INK), (beneath, 20 + high + 14, QUIET)):
        press(tile, lettering(text, 6.0, DPI, tuple(labels.family), ha="left", va="baseline"), 0, y, colour)
    return tile


def page(tiles: Sequence[Any], heading: str) -> bytes:
    """The bytes of a PNG of at most SHAPE[0] × SHAPE[1] tiles, row by row."""
    canvas = np.full((*PAGE, 3), 255, dtype=np.uint8)  # (height, width, 3)
    labels = Labels([heading])
    family = tuple(labels.family)
    title = labels.fitted(labels.drawable(heading), 10.0, (PAGE[1] - 2 * MARGIN) / DPI)
    press(canvas, lettering(title, 10.0, DPI, family, ha="left", va="baseline"), MARGIN, 42, INK)
    what = "queries down, keys across; each grid coloured from 0 to its largest weight, which stands beneath it"
    press(canvas, lettering(what, 6.5, DPI, family, ha="left", va="baseline"), MARGIN, 62, QUIET)
    for at, tile in enumerate(tiles):
        row, column = divmod(at, SHAPE[1])
        top, left = HEAD + row * TILE[0], MARGIN + column * TILE[1]
        canvas[top : top + TILE[0], left : left + TILE[1]] = tile
    return encoded(canvas, DPI)


# --- PDF ---------------------------------------------------------------------------------------------------------


def pdf(pages: Iterable[bytes]) -> Iterator[bytes]:
    """The pieces of a PDF file whose pages are PNG files as `page` makes them; a page is taken in as it is, compressed."""
    offsets: dict[int, int] = {}
    written = 0

    def piece(data: bytes, number: int | None = None) -> bytes:
        nonlocal written
        if number is not None:
            offsets[number] = written
            data = b"%d 0 obj\n%s\nendobj\n" % (number, data)
        written += len(data)
        return data

    yield piece(b"%PDF-1.5\n%\xe2\xe3\xcf\xd3\n")
    yield piece(b"<< /Type /Catalog /Pages 2 0 R >>", 1)
    kids: list[int] = []
    wide, high = (side * 72 / DPI for side in PAGE[::-1])
    for png in pages:
        number = 3 + 3 * len(kids)
        kids.append(number)
        drawing = b"%.2f 0 0 %.2f 0 0 cm /P Do" % (wide, high)
        box = b"/MediaBox [0 0 %.2f %.2f] /Resources << /XObject << /P %d 0 R >> >>" % (wide, high, number + 2)
        yield piece(b"<< /Type /Page /Parent 2 0 R %s /Contents %d 0 R >>" % (box, number + 1), number)
        yield piece(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(drawing), drawing), number + 1)
        data = _pixels(png)
        how = b"/Filter /FlateDecode /DecodeParms << /Predictor 15 /Colors 3 /Columns %d >>" % PAGE[1]
        what = b"/Width %d /Height %d /ColorSpace /DeviceRGB /BitsPerComponent 8" % PAGE[::-1]
        head = b"<< /Type /XObject /Subtype /Image %s %s /Length %d >>" % (what, how, len(data))
        yield piece(b"%s\nstream\n%s\nendstream" % (head, data), number + 2)
    yield piece(b"<< /Type /Pages /Count %d /Kids [%s] >>" % (len(kids), b" ".join(b"%d 0 R" % kid for kid in kids)), 2)
    start = written
    table = b"".join(b"%010d 00000 n \n" % offsets[number] for number in sorted(offsets))
    yield b"xref\n0 %d\n0000000000 65535 f \n%s" % (len(offsets) + 1, table)
    yield b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(offsets) + 1, start)


def _pixels(png: bytes) -> bytes:
    """The compressed rows of a PNG file."""
    at, found = 8, b""
    while at < len(png):
        length, kind = int.from_bytes(png[at : at + 4], "big"), png[at + 4 : at + 8]
        if kind == b"IDAT":
            found += png[at + 8 : at + 8 + length]
        at += 12 + length
    return found


def packed(tiles: Iterable[Any]) -> bytes:
    """Tiles as bytes, to travel between processes; `unpacked` is the way back."""
    return zlib.compress(b"".join(tile.tobytes() for tile in tiles), 1)


def unpacked(data: bytes) -> Any:
    """→ (tiles, TILE height, TILE width, 3)."""
    return np.frombuffer(zlib.decompress(data), dtype=np.uint8).reshape(-1, *TILE, 3)
