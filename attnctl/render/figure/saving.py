"""Figures as the bytes of files: the same bytes for the same figure, whatever the user's matplotlibrc says."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.text import Text

from attnctl import __version__
from attnctl.text import harmless_text

VECTOR_DPI = 300  # vector files hold the cells as an image: fine enough that their edges stay sharp in print


def png_bytes(figure: Figure) -> bytes:
    """A PNG file."""
    return _saved_bytes(figure, "png", figure.dpi, dict(png_metadata(str(figure.get_label()))))


def png_metadata(cited: str) -> dict[str, str]:
    """The text of a PNG file's metadata: the program, and what the numbers come from. In Latin-1, as PNG has it."""
    said = harmless_text(cited).encode("latin-1", "backslashreplace").decode("latin-1")
    return {"Software": f"attnctl {__version__}"} | ({"Source": said} if said else {})


def svg_bytes(figure: Figure) -> bytes:
    """An SVG file, its letters as outlines."""
    return _saved_bytes(
        figure,
        "svg",
        max(figure.dpi, VECTOR_DPI),
        {"Date": None, "Creator": f"attnctl {__version__}", "Source": _source_of(figure)},
    )


def pdf_bytes(figure: Figure) -> bytes:
    """A PDF file of one page, its fonts embedded."""
    program = f"attnctl {__version__}"
    metadata = {"CreationDate": None, "Producer": program, "Creator": program, "Subject": _source_of(figure)}
    return _saved_bytes(figure, "pdf", max(figure.dpi, VECTOR_DPI), metadata)


def _source_of(figure: Figure) -> str | None:
    """What the numbers of a figure come from, which its label says; None where it says nothing."""
    return harmless_text(str(figure.get_label())) or None


def _saved_bytes(figure: Figure, form: str, dpi: float, metadata: dict[str, str | None]) -> bytes:
    for text in figure.findobj(Text):
        text.set_text(harmless_text(text.get_text()).replace("\t", " "))
    out = io.BytesIO()
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
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # `Labels` tells the user
        dict.update(settings, defaults)  # they need no validation, which takes 5 ms
        yield
