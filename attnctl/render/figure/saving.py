"""Write figures as files: the same bytes for the same figure, whatever the user's matplotlibrc says."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from functools import cache, partial
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from attnctl.errors import AttnctlError
from attnctl.render.figure.png import png_of_pixels
from attnctl.text import harmless_text
from attnctl.version import __version__

# the same bytes each time
VECTOR: dict[Any, Any] = {"svg.hashsalt": "attnctl", "pdf.fonttype": 42, "image.composite_image": False}
PROGRAM = f"attnctl {__version__}"
VECTOR_DPI = 300  # vector files hold the cells as an image: fine enough that their edges stay sharp in print


def png_bytes(figure: Figure) -> bytes:
    """Return a figure as a PNG file: the pixels of matplotlib's own, compressed in a fraction of its time."""
    _make_texts_harmless(figure)
    canvas: Any = FigureCanvasAgg(figure)  # which has no types
    with plain_settings():
        canvas.draw()
    return png_of_pixels(np.asarray(canvas.buffer_rgba()), figure.dpi, png_metadata(str(figure.get_label())))


def png_metadata(cited: str) -> dict[str, str]:
    """Return the text fields of a PNG file, in Latin-1 as PNG requires: the program, and the source of the numbers."""
    source = harmless_text(cited).encode("latin-1", "backslashreplace").decode("latin-1")
    return {"Software": PROGRAM} | ({"Source": source} if source else {})


def svg_bytes(figure: Figure) -> bytes:
    """Return a figure as an SVG file, its letters as outlines."""
    return _saved_bytes(figure, "svg", {"Date": None, "Creator": PROGRAM, "Source": _source_of(figure)})


def pdf_bytes(figure: Figure) -> bytes:
    """Return a figure as a PDF file of one page, its fonts embedded."""
    check_source_date()
    metadata = {"CreationDate": None, "Producer": PROGRAM, "Creator": PROGRAM, "Subject": _source_of(figure)}
    return _saved_bytes(figure, "pdf", metadata)


def check_source_date() -> None:
    """Raise AttnctlError if SOURCE_DATE_EPOCH is not a date: Matplotlib and fontTools read it for every PDF."""
    seconds = os.environ.get("SOURCE_DATE_EPOCH")
    try:
        datetime.fromtimestamp(int(seconds or 0), UTC)
    except (ValueError, OverflowError, OSError):
        raise AttnctlError(f"SOURCE_DATE_EPOCH={seconds} is not a number of seconds since 1970: unset it") from None


def _source_of(figure: Figure) -> str | None:
    """Return the source of the numbers of a figure, which is the figure's label; None if the label is empty."""
    return harmless_text(str(figure.get_label())) or None


def _saved_bytes(figure: Figure, form: str, metadata: dict[str, str | None]) -> bytes:
    _make_texts_harmless(figure)
    out = io.BytesIO()
    with plain_settings(), matplotlib.rc_context(VECTOR):
        figure.savefig(out, format=form, dpi=max(figure.dpi, VECTOR_DPI), metadata=metadata)
    return out.getvalue()


def _make_texts_harmless(figure: Figure) -> None:
    for text in figure.findobj(Text):
        text.set_text(harmless_text(text.get_text()).replace("\t", " "))


@contextmanager
def plain_settings() -> Iterator[None]:
    """Draw with matplotlib's default settings, without the user's matplotlibrc."""
    setting = partial(dict.__getitem__, matplotlib.rcParams)  # rcParams[name] looks for old names first
    changed = {name: value for name, value in _defaults().items() if setting(name) != value}
    with matplotlib.rc_context(changed) if changed else nullcontext():  # which takes 0.5 ms
        yield


@cache
def _defaults() -> dict[Any, Any]:
    """Return matplotlib's default settings, except the backend settings."""
    return {name: value for name, value in dict.items(matplotlib.rcParamsDefault) if not name.startswith("backend")}
