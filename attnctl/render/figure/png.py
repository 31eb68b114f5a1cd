"""Write pixels as a PNG file, in strips that two threads compress at once: zlib computes while other threads run.

Pillow, which writes matplotlib's PNG files, compresses in one thread, and at its usual level in four times the time.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from attnctl.runtime.arrays import Bytes

STRIP = 1 << 22  # bytes of a strip: the same on every machine, so that the file is the same
LEVEL = 3  # from 4 on zlib takes twice as long, for a tenth less
UP = 2  # the filter of a line: its bytes minus those of the line above it
ADLER = 65521  # the modulus of a checksum


class Strip(NamedTuple):
    """A strip of the picture: its compressed lines, their checksum, and their length before."""

    deflated: bytes
    checksum: int
    length: int


def png_of_pixels(pixels: Bytes, dpi: float, texts: Mapping[str, str]) -> bytes:
    """Return pixels (height, width, 4), RGBA, as a PNG file with `texts` in Latin-1; without alpha if all are opaque."""
    height, width, _ = pixels.shape
    channels = 3 if (pixels[..., 3] == 255).all() else 4
    count = max(1, STRIP // (channels * width))  # lines of a strip

    def compress(start: int) -> Strip:
        stop = min(start + count, height)
        above = max(start - 1, 0)
        colours = np.zeros((1 + stop - start, width, channels), np.uint8)  # and the line above: zeros above the first
        for channel in range(channels):  # in half the time of all at once
            colours[above - stop :, :, channel] = pixels[above:stop, :, channel]
        flat = colours.reshape(1 + stop - start, -1)
        lines = np.full((stop - start, 1 + channels * width), UP, np.uint8)
        np.subtract(flat[1:], flat[:-1], out=lines[:, 1:])
        deflate = zlib.compressobj(LEVEL, wbits=-zlib.MAX_WBITS)  # without a header and a checksum
        deflated = deflate.compress(lines.data) + deflate.flush(zlib.Z_FINISH if stop == height else zlib.Z_SYNC_FLUSH)
        return Strip(deflated, zlib.adler32(lines.data), lines.size)

    with ThreadPoolExecutor(2, "strips of a picture") as pool:
        strips = list(pool.map(compress, range(0, height, count)))
    low, high = 1, 0  # of the checksum of all lines: two sums
    for strip in strips:
        high += (strip.checksum >> 16) + strip.length * (low - 1)
        low += (strip.checksum & 0xFFFF) - 1
    data = [b"\x78\x01", *(strip.deflated for strip in strips), struct.pack(">HH", high % ADLER, low % ADLER)]
    per_metre = round(dpi / 0.0254)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(content, zlib.crc32(kind)))
        for kind, content in (
            (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 6, 0, 0, 0)),
            *((b"tEXt", f"{key}\0{text}".encode("latin-1")) for key, text in texts.items()),
            (b"pHYs", struct.pack(">IIB", per_metre, per_metre, 1)),
            (b"IDAT", b"".join(data)),
            (b"IEND", b""),
        )
    )
