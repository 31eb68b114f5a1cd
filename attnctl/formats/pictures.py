"""List the formats of pictures, each with its suffix, its kind and its writer, and the settings of a picture.

Every command that writes pictures uses both. To add a format, add a line here and its writer. To add a setting, add a field
to `Look`: it is an option of each command that draws.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, NamedTuple

from typer import Option

from attnctl.checks import limits
from attnctl.checks.options import PICTURE, SHOW, decimal, whole
from attnctl.errors import UsageError, option_name
from attnctl.text import either

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from attnctl.readings.heatmap import HeatmapGrid

CMAP = "heat"  # that of the page: perceptually uniform, safe for colour-blind readers, in order when printed in grey
DPI = 200
BATCH_DPI = 100
# frequent colour maps of matplotlib for grids of weights; a test checks that matplotlib has them
MAPS = ("viridis", "cividis", "magma", "inferno", "plasma", "Greys", "Blues", "Greens", "Oranges", "Purples", "Reds",
        "YlGnBu", "gray", "bone", "hot", "cubehelix")  # fmt: skip


class PictureFormat(NamedTuple):
    """One format. A writer is "module:function", imported when it is used."""

    name: str  # also the suffix, without the dot
    kind: str  # "figure": one picture; "frames": a moving picture, a frame for each training step; "page": HTML
    writer: str  # of a figure: (Figure) → bytes
    heatmap_writer: str | None = None  # a faster one, without a Figure: (HeatmapGrid, Look) → (bytes, notes)


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
        PictureFormat("gif", "frames", "attnctl.render.figure.raster:moving_picture"),
        PictureFormat("html", "page", "attnctl.render.page.trace_page:page_html"),
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


class Size(NamedTuple):
    """The width and height of a picture in inches."""

    width: float
    height: float


def size_in_inches(size: str) -> Size:
    """Return the size of a picture, "6x4"."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*[x×,]\s*(\d+(?:\.\d+)?)", size.strip().lower())
    if not match:
        raise UsageError("it is WIDTHxHEIGHT in inches, like 6x4", option="size", value=size)
    width, height = float(match[1]), float(match[2])
    if not (1 <= width <= 60 and 1 <= height <= 60):
        raise UsageError("each side is 1 to 60 inches", option="size", value=size)
    return Size(width, height)


DpiOption = Annotated[
    float, Option(help="Dots per inch, 30 to 1200.", metavar="N", parser=whole(limits.DPI), rich_help_panel=PICTURE)
]

TitleOption = Annotated[str | None, Option(help="Title; '' for no title.", metavar="TEXT", rich_help_panel=SHOW)]


def completed_map(incomplete: str) -> list[str]:
    """Return the frequent colour maps whose names begin so."""
    return [name for name in (CMAP, *MAPS) if name.startswith(incomplete)]


@dataclass(frozen=True)
class MapLook:
    """The look of a page of small maps."""

    cmap: Annotated[
        str,
        Option(
            help="Colour map: heat, which pages have, too, or one of matplotlib.",
            metavar="MAP",
            autocompletion=completed_map,
            rich_help_panel=SHOW,
        ),
    ] = CMAP
    dpi: DpiOption = DPI
    title: TitleOption = None  # None: a title that says what is shown

    def __post_init__(self) -> None:
        limits.DPI.check_value("dpi", self.dpi)

    def as_look(self) -> Look:
        """Return these settings as a `Look`, with the defaults of the others."""
        return Look(**{field.name: getattr(self, field.name) for field in fields(self)})


@dataclass(frozen=True)
class PictureLook(MapLook):
    """The look of a picture. Raises UsageError for a value that is not possible."""

    size: Annotated[  # None: as large as the cells need
        Size | None,
        Option(help="Width and height in inches: 6x4.", metavar="WxH", parser=size_in_inches, rich_help_panel=PICTURE),
    ] = None
    values: Annotated[
        bool | None,
        Option(help="Write numbers in the cells, or do not [default: if they can be read].", rich_help_panel=SHOW),
    ] = None
    font_size: Annotated[
        float | None,
        Option(
            help="Size of the labels in points; other text in proportion.",
            metavar="X",
            parser=decimal(limits.FONT_SIZE),
            rich_help_panel=PICTURE,
        ),
    ] = None
    vmin: Annotated[  # None: 0 or less
        float | None,
        Option(
            help="The number with the first colour [default: 0].",
            metavar="X",
            parser=decimal(limits.COLOUR_END),
            rich_help_panel=PICTURE,
        ),
    ] = None
    vmax: Annotated[
        float | None,
        Option(
            help="The number with the last colour [default: the largest].",
            metavar="X",
            parser=decimal(limits.COLOUR_END),
            rich_help_panel=PICTURE,
        ),
    ] = None
    colorbar: Annotated[
        bool,
        Option(
            "--colorbar/--no-colorbar", help="Draw a colour bar, or none.", show_default=False, rich_help_panel=PICTURE
        ),
    ] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.font_size is not None:
            limits.FONT_SIZE.check_value("font_size", self.font_size)
        for option, end in (("vmin", self.vmin), ("vmax", self.vmax)):
            if end is not None:
                limits.COLOUR_END.check_value(option, end)
        if self.vmin is not None and self.vmax is not None and self.vmin >= self.vmax:
            raise UsageError(f"it is not below {option_name('vmax', self.vmax)}", option="vmin", value=self.vmin)


@dataclass(frozen=True)
class Look(PictureLook):
    """The look of a grid of weights: each field is an option of `attnctl heatmap` and of `Trace.figure`."""

    log: Annotated[  # None: not, unless the command finds a reason for it
        bool | None,
        Option(
            help="Colours on a logarithmic scale [default: only for a long text with most weight in a few cells].",
            rich_help_panel=SHOW,
        ),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.log and self.vmin is not None and self.vmin <= 0:
            why = f"it has no place on a logarithmic scale: above 0, or without {option_name('log', True)}"
            raise UsageError(why, option="vmin", value=self.vmin)


@dataclass(frozen=True)
class BatchLook(Look):
    """The look of many pictures, which are smaller files."""

    dpi: DpiOption = BATCH_DPI


PLAIN = Look()
FIGURE_ALONE = ("size", "dpi", "font_size", "vmin", "vmax", "colorbar")  # fields that neither a terminal nor a page has
