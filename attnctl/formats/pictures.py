"""List the formats of pictures, each with its suffix, its kind and its writer, and the settings of a picture.

Every command that writes pictures uses both. To add a format, add a line here and its writer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, NamedTuple

from attnctl.checks import limits
from attnctl.errors import UsageError, option_name
from attnctl.text import either

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from attnctl.readings.heatmap import HeatmapGrid

CMAP = "viridis"  # perceptually uniform, safe for colour-blind readers, and in order when printed in grey
DPI = 200


class PictureFormat(NamedTuple):
    """One format. A writer is "module:function", imported when it is used."""

    name: str  # also the suffix, without the dot
    kind: str  # "figure": one picture; "frames": a moving picture, a frame for each training step; "page": HTML
    writer: str  # of a figure: (Figure) → bytes
    heatmap_writer: str | None = None  # a faster one, without a Figure: (Reading, Look) → (bytes, notes)


PICTURE_FORMATS = {
    form.name: form
    for form in (
        PictureFormat(
            "png",
            "figure",
            "attnctl.render.figure.saving:png_bytes",
            "attnctl.render.figure.raster:heatmap_png",
        ),
        PictureFormat("svg", "figure", "attnctl.render.figure.saving:svg_bytes"),
        PictureFormat("pdf", "figure", "attnctl.render.figure.saving:pdf_bytes"),
        PictureFormat("gif", "frames", "attnctl.render.figure.heatmap:moving_picture"),
        PictureFormat("html", "page", "attnctl.render.page:page_html"),
    )
}


def format_names(*kinds: str) -> tuple[str, ...]:
    """Return the formats of these kinds (without kinds: "figure")."""
    return tuple(form.name for form in PICTURE_FORMATS.values() if form.kind in (kinds or ("figure",)))


def suffixes_listed(*kinds: str, last: str = " or ") -> str:
    """Return the suffixes for a sentence: .png, .svg or .pdf."""
    return either([f".{name}" for name in format_names(*kinds)], last)


def picture_format(path: str | Path, *kinds: str) -> str | None:
    """Return the format, among these kinds (without kinds: "figure"), of a file's suffix; None for another suffix."""
    suffix = Path(path).suffix.lower()[1:]
    return suffix if suffix in format_names(*kinds) else None


def figure_bytes(figure: Figure, name: str) -> bytes:
    """Return a figure as a file of a format. Raises UsageError if the format cannot hold a figure."""
    if name not in format_names():
        raise UsageError(f"a picture is written as {suffixes_listed()}, not as {name or 'a name without suffix'}")
    written: bytes = resolve_name(PICTURE_FORMATS[name].writer)(figure)
    return written


def heatmap_bytes(grid: HeatmapGrid, look: Look, name: str) -> tuple[bytes, tuple[str, ...]]:
    """Return weights drawn as a file of a format, by the fastest writer, and notes about the picture."""
    form = PICTURE_FORMATS.get(name)
    if form is not None and form.heatmap_writer is not None:
        quick: tuple[bytes, tuple[str, ...]] = resolve_name(form.heatmap_writer)(grid, look)
        return quick
    figure, notes = resolve_name("attnctl.render.figure.heatmap:draw_heatmap")(grid, look)
    return figure_bytes(figure, name), notes


@dataclass(frozen=True)
class Look:
    """Colours, size and letters of a picture. Raises UsageError for a value that is not possible."""

    cmap: str = CMAP  # a colour map of matplotlib
    size: tuple[float, float] | None = None  # (width, height) in inches; None: as large as the cells need
    dpi: float = DPI
    title: str | None = None  # None: a title that says what is shown; "": no title
    values: bool | None = None  # write the numbers into the cells; None: if they fit and can be read
    log: bool = False  # colours on a logarithmic scale
    font_size: float | None = None  # size of the labels in points; all other letters are in proportion
    vmin: float | None = None  # the ends of the colour scale; None: 0 or less, and the largest weight
    vmax: float | None = None
    colour_bar: bool = True

    def __post_init__(self) -> None:
        limits.DPI.check_value("dpi", self.dpi)
        if self.font_size is not None:
            limits.FONT_SIZE.check_value("font_size", self.font_size)
        if self.vmin is not None and self.vmax is not None and self.vmin >= self.vmax:
            raise UsageError(f"it is not below {option_name('vmax', self.vmax)}", option="vmin", value=self.vmin)
        if self.log and self.vmin is not None and self.vmin <= 0:
            why = f"it has no place on a logarithmic scale: above 0, or without {option_name('log', True)}"
            raise UsageError(why, option="vmin", value=self.vmin)


PLAIN = Look()


def size_in_inches(size: str) -> tuple[float, float]:
    """Return the size of a picture, "6x4", as (width, height) in inches."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*[x×,]\s*(\d+(?:\.\d+)?)", size.strip().lower())
    if not match:
        raise UsageError("it is WIDTHxHEIGHT in inches, like 6x4", option="size", value=size)
    width, height = float(match[1]), float(match[2])
    if not (1 <= width <= 60 and 1 <= height <= 60):
        raise UsageError("each side is 1 to 60 inches", option="size", value=size)
    return width, height
