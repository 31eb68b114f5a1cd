"""The picture formats: for each its suffix, what a file of it holds, and who writes it.

Every command that writes pictures reads this table. A new format is a line here and its writer.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from attnctl import find_named
from attnctl.errors import UsageError
from attnctl.text import either

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from attnctl.readings.heatmap import HeatmapGrid
    from attnctl.render.figure.look import Look


class PictureFormat(NamedTuple):
    """One format. A writer is "module:function", imported when it is used."""

    name: str  # and the suffix, without its dot
    kind: str  # "figure": one picture; "frames": one a training step, moving; "page": HTML to explore
    writer: str  # of a figure: (Figure) → bytes
    heatmap_writer: str | None = None  # a quicker one, without a Figure: (Reading, Look) → (bytes, notes)


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
        PictureFormat("gif", "frames", "attnctl.render.figure.evolution:moving_picture"),
        PictureFormat("html", "page", "attnctl.render.page.document:page_html"),
    )
}


def format_names(*kinds: str) -> tuple[str, ...]:
    """The formats of these kinds ("figure", where none is named)."""
    return tuple(form.name for form in PICTURE_FORMATS.values() if form.kind in (kinds or ("figure",)))


def suffixes_listed(*kinds: str, last: str = " or ") -> str:
    """For a sentence: .png, .svg or .pdf."""
    return either([f".{name}" for name in format_names(*kinds)], last)


def picture_format(path: str | Path, *kinds: str) -> str | None:
    """The format of these kinds ("figure", where none is named) that a file's suffix names; None for another suffix."""
    suffix = Path(path).suffix.lower()[1:]
    return suffix if suffix in format_names(*kinds) else None


def figure_bytes(figure: Figure, name: str) -> bytes:
    """A figure as a file of a format. Raises UsageError where it is none of a figure."""
    if name not in format_names():
        raise UsageError(f"a picture is written as {suffixes_listed()}, not as {name or 'a name without suffix'}")
    written: bytes = find_named(PICTURE_FORMATS[name].writer)(figure)
    return written


def heatmap_bytes(reading: HeatmapGrid, look: Look, name: str) -> tuple[bytes, tuple[str, ...]]:
    """Weights drawn as a file of a format, by the quickest way there is, and notes about the picture."""
    form = PICTURE_FORMATS.get(name)
    if form is not None and form.heatmap_writer is not None:
        quick: tuple[bytes, tuple[str, ...]] = find_named(form.heatmap_writer)(reading, look)
        return quick
    figure, notes = find_named("attnctl.render.figure.heatmap:draw_heatmap")(reading, look)
    return figure_bytes(figure, name), notes
