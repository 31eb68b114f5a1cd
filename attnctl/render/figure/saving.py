"""Figures as the bytes of files: the same bytes for the same figure, whatever the user's matplotlibrc says."""

from __future__ import annotations

import io
import os
import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.text import Text

from attnctl import __version__
from attnctl.arrays import Bytes
from attnctl.errors import AttnctlError
from attnctl.text import harmless_text

PROGRAM = f"attnctl {__version__}"
VECTOR_DPI = 300  # vector files hold the cells as an image: fine enough that their edges stay sharp in print


def png_bytes(figure: Figure) -> bytes:
    """A PNG file."""
    return _saved_bytes(figure, "png", dict(png_metadata(str(figure.get_label()))))


BAND = 16  # rows of a picture


def png_of_pixels(pixels: Bytes, dpi: float, cited: str = "") -> bytes:
    """A PNG file of pixels (height, width, 4), all opaque."""
    high, wide = pixels.shape[:2]
    per_metre = round(dpi / 0.0254)
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", wide, high, 8, 2, 0, 0, 0)),
        *((b"tEXt", f"{key}\0{said}".encode("latin-1")) for key, said in png_metadata(cited).items()),
        (b"pHYs", struct.pack(">IIB", per_metre, per_metre, 1)),
        (b"IDAT", _deflated_rows(pixels)),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def _deflated_rows(pixels: Bytes) -> bytes:
    """Rows of pixels (height, width, 4), the first as it is, each other minus the one above it, as a zlib stream.

    Half of a heatmap's rows equal the one above. Such a row is deflated once and put in wherever it belongs: zlib takes
    as long for zeros as for anything else. BAND rows at a time are made ready, so that they stay in the cache.
    """
    (high, wide), words = pixels.shape[:2], pixels.view(np.uint32)[..., 0]  # (height, width)
    at = np.flatnonzero(np.concatenate([[True], (words[1:] != words[:-1]).any(axis=1)]))  # (rows,) unlike those above
    repeats = (np.diff(at, append=high) - 1).tolist()
    rows = np.full((BAND, 1 + 3 * wide), 2, dtype=np.uint8)  # 2: minus the row above
    deflate, once = (zlib.compressobj(1, wbits=-15, memLevel=7) for _ in range(2))
    same = once.compress(b"\2" + bytes(3 * wide)) + once.flush(zlib.Z_FULL_FLUSH)
    stream, checksum = [b"\x78\x01"], 1
    for first in range(0, len(at), BAND):
        band = at[first : first + BAND]
        colours = pixels[band]  # (rows, width, 4)
        colours[int(first == 0) :] -= pixels[band[int(first == 0) :] - 1]
        rows[0, 0] = 2 * bool(first)
        for part in range(3):
            rows[: len(band), 1 + part :: 3] = colours[..., part]
        start = 0
        for end, count in enumerate(repeats[first : first + BAND], 1):
            if not count and end < len(band):
                continue
            some, start = rows[start:end].data, end
            stream.append(deflate.compress(some))
            checksum = zlib.adler32(some, checksum)
            if count:
                stream += deflate.flush(zlib.Z_FULL_FLUSH), same * count
                low, sums = (
                    checksum & 0xFFFF,
                    checksum >> 16,
                )  # Adler-32: of the bytes, and of these sums after each byte
                sums += rows.shape[1] * count * (low + count + 1)
                checksum = sums % 65521 << 16 | (low + 2 * count) % 65521
    return b"".join([*stream, deflate.flush(), checksum.to_bytes(4, "big")])


def png_metadata(cited: str) -> dict[str, str]:
    """The text of a PNG file's metadata: the program, and what the numbers come from. In Latin-1, as PNG has it."""
    said = harmless_text(cited).encode("latin-1", "backslashreplace").decode("latin-1")
    return {"Software": PROGRAM} | ({"Source": said} if said else {})


def svg_bytes(figure: Figure) -> bytes:
    """An SVG file, its letters as outlines."""
    return _saved_bytes(figure, "svg", {"Date": None, "Creator": PROGRAM, "Source": _source_of(figure)})


def pdf_bytes(figure: Figure) -> bytes:
    """A PDF file of one page, its fonts embedded."""
    check_source_date()
    metadata = {"CreationDate": None, "Producer": PROGRAM, "Creator": PROGRAM, "Subject": _source_of(figure)}
    return _saved_bytes(figure, "pdf", metadata)


def check_source_date() -> None:
    """Raise AttnctlError where SOURCE_DATE_EPOCH is no date: Matplotlib and fontTools read it for every PDF."""
    seconds = os.environ.get("SOURCE_DATE_EPOCH")
    try:
        datetime.fromtimestamp(int(seconds or 0), UTC)
    except (ValueError, OverflowError, OSError):
        raise AttnctlError(f"SOURCE_DATE_EPOCH={seconds} is no number of seconds since 1970: unset it") from None


def _source_of(figure: Figure) -> str | None:
    """What the numbers of a figure come from, which its label says; None where it says nothing."""
    return harmless_text(str(figure.get_label())) or None


def _saved_bytes(figure: Figure, form: str, metadata: dict[str, str | None]) -> bytes:
    for text in figure.findobj(Text):
        text.set_text(harmless_text(text.get_text()).replace("\t", " "))
    out, dpi = io.BytesIO(), figure.dpi if form == "png" else max(figure.dpi, VECTOR_DPI)
    with plain_settings():
        figure.savefig(out, format=form, dpi=dpi, metadata=metadata)
    return out.getvalue()


@contextmanager
def plain_settings() -> Iterator[None]:
    """Matplotlib as it comes, without the user's matplotlibrc, for as long as something is drawn."""
    defaults: dict[str, object] = {
        name: value for name, value in dict.items(matplotlib.rcParamsDefault) if not name.startswith("backend")
    }
    defaults |= {"svg.hashsalt": "attnctl", "pdf.fonttype": 42, "image.composite_image": False}
    settings: Any = matplotlib.rcParams
    # by dict's own methods: validation takes 5 ms, `rc_context` 0.5
    users = {name: dict.__getitem__(settings, name) for name in defaults}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # `Labels` tells the user
        dict.update(settings, defaults)
        try:
            yield
        finally:
            dict.update(settings, users)
