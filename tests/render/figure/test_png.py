"""PNG files against Pillow, which reads them, and figures against matplotlib's own files."""

from __future__ import annotations

import io
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from attnctl.render.figure import png
from attnctl.render.figure.png import png_of_pixels
from attnctl.render.figure.saving import plain_settings, png_bytes


def decoded(data: bytes) -> Image.Image:
    """Return a PNG file as Pillow reads it, after it has checked the sums of all parts."""
    Image.open(io.BytesIO(data)).verify()
    return Image.open(io.BytesIO(data))


@pytest.mark.parametrize("strip", [1, 700, 4000, png.STRIP])
@pytest.mark.parametrize("opaque", [True, False])
@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 300), (37, 5), (64, 100)])
def test_pillow_reads_the_same_pixels(
    monkeypatch: pytest.MonkeyPatch, height: int, width: int, opaque: bool, strip: int
) -> None:
    monkeypatch.setattr(png, "STRIP", strip)
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 4), np.uint8)
    if opaque:
        pixels[..., 3] = 255
    picture = decoded(png_of_pixels(pixels, 200, {"Source": "café"}))
    assert picture.mode == ("RGB" if opaque else "RGBA")
    assert (np.asarray(picture.convert("RGBA")) == pixels).all()
    assert picture.info["Source"] == "café"
    assert picture.info["dpi"] == pytest.approx((200, 200), abs=0.01)


def test_long_strips_have_the_checksum_of_one_stream() -> None:
    """The sums of the lines pass 65,521 many times, and zlib compares them with the file's."""
    pixels = np.full((900, 2000, 4), 255, np.uint8)  # several strips
    pixels[::7] = 254
    data = png_of_pixels(pixels, 100, {})
    place = data.index(b"IDAT")
    (length,) = struct.unpack(">I", data[place - 4 : place])
    lines = zlib.decompress(data[place + 4 : place + 4 + length])  # which compares it
    assert len(lines) == 900 * (1 + 4 * 2000)


@pytest.mark.parametrize("face", ["white", "none"])
def test_figures_have_the_pixels_of_matplotlibs_own_file(face: str) -> None:
    figure = Figure((4, 3), dpi=120, facecolor=face, label="weights of a model")
    axes = figure.add_axes((0.2, 0.2, 0.7, 0.7), facecolor="#00640080")
    axes.plot([0, 1, 0.5], label="a line")
    axes.legend()
    expected = io.BytesIO()
    with plain_settings():
        figure.savefig(expected, format="png")
    assert (
        np.asarray(decoded(png_bytes(figure)).convert("RGBA")) == np.asarray(Image.open(expected).convert("RGBA"))
    ).all()


def test_one_thread_writes_the_same_file(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = np.random.default_rng(0).integers(0, 2, (1500, 3000, 4), np.uint8)

    def written(threads: int) -> bytes:
        monkeypatch.setattr(png, "ThreadPoolExecutor", lambda _, name: ThreadPoolExecutor(threads, name))
        return png_of_pixels(pixels, 100, {})

    assert pixels.nbytes > 4 * png.STRIP
    assert written(1) == written(2)
