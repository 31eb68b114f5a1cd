"""What every picture of numbers is made of: grids side by side, labels, a colour bar a scale, and where each stands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple, TypedDict

from matplotlib.colors import CenteredNorm, Colormap, LogNorm, Normalize
from matplotlib.figure import Figure

from attnctl.arrays import Bools, Floats
from attnctl.errors import UsageError
from attnctl.tokens import Token

UNKNOWN = "† not among the words the model knows"


@dataclass(frozen=True)
class Scale:
    """Colours for numbers, and what the numbers are."""

    norm: Normalize
    colours: Colormap
    unit: str

    def cell_number(self, value: float) -> str:
        """A number as it stands in a cell: two decimals; on a logarithmic scale one digit and its power of ten."""
        if isinstance(self.norm, LogNorm) and 0 < value < 0.1:
            return f"{value:.2f}" if value >= 0.01 else f"{value:.0e}".replace("e-0", "e-")
        text = f"{value:+.2f}" if isinstance(self.norm, CenteredNorm) else f"{value:.2f}"
        return text[1:] if text in ("-0.00", "+0.00") else text


class Panel(NamedTuple):
    """One grid: where it stands, its name, its numbers, and which scale gives their colours."""

    row: int
    column: int
    name: str  # one line, or two
    array: Floats  # (rows, columns)
    mask: Bools | None = None  # (rows, columns), false where there is no number to show
    scale: int = 0
    ring: tuple[int, int] | None = None  # the cell that stands out


@dataclass(frozen=True)
class Grids:
    """A picture: panels in rows and columns, all with the same labels."""

    panels: tuple[Panel, ...]
    rows: tuple[str, ...]  # labels at the left
    columns: tuple[str, ...]  # labels above
    scales: tuple[Scale, ...]
    title: str = ""
    said: tuple[str, ...] = ()  # what was done to the numbers
    axes: tuple[str, str] = ("query", "key")  # what goes down, what goes across
    row_names: tuple[str, ...] = ()  # of the rows of panels, where these are named
    hidden: str = "masked"  # what a hatched cell is
    cited: str = ""  # what the numbers come from, for the metadata

    @property
    def panel_counts(self) -> tuple[int, int]:
        """Rows and columns of panels."""
        return 1 + max(panel.row for panel in self.panels), 1 + max(panel.column for panel in self.panels)

    @property
    def is_masked(self) -> bool:
        """Whether a cell is hatched."""
        return any(panel.mask is not None and not panel.mask.all() for panel in self.panels)


class TextSetting(TypedDict, total=False):
    """How a text is set, in the words of matplotlib."""

    color: str
    ha: str
    va: str
    rotation: float
    rotation_mode: str


class Drawing(NamedTuple):
    """A picture, and what a user should know about it, in sentences."""

    figure: Figure
    notes: tuple[str, ...]


def token_labels(tokens: Sequence[Token]) -> tuple[str, ...]:
    """Tokens as labels, marked † where the model does not know them."""
    return tuple(token.text + "†" * token.unknown for token in tokens)


EDGE = 0.14  # around everything
BAR_GAP, BAR_WIDTH, BAR_TEXT = 0.2, 0.14, 0.6
LINE = 1.35 / 72  # inches from line to line, for each point of size
ASIDE = 0.05  # between labels and cells
WIDEST, PIXELS = 60.0, 150e6
NARROW = 5.0  # inches: in a narrower picture all letters are smaller, so that titles and labels agree


@dataclass(frozen=True)
class TypeSizes:
    """The sizes of all letters of a picture, in points."""

    title: float = 11.5
    subtitle: float = 8.0
    axis: float = 9.0  # names of the axes, of the panels and of the colour bar
    label: float = 9.0  # of tokens, at most
    label_of_many: float = 7.5  # the same where there are several panels
    smallest: float = 5.5  # of tokens, at least
    tick: float = 7.5  # beside the colour bar


def type_sizes(font_size: float | None, width: float | None) -> TypeSizes:
    """The letters of a picture `width` inches wide (None: as it comes); `font_size` is that of its labels."""
    if font_size is not None:
        return TypeSizes(1.2 * font_size, 0.9 * font_size, font_size, font_size, font_size, font_size, 0.85 * font_size)
    sizes = TypeSizes()
    if width is None or width >= NARROW:
        return sizes
    factor = max(7 / 9, width / NARROW)
    return replace(
        sizes, **{one.name: factor * getattr(sizes, one.name) for one in fields(sizes) if one.name != "smallest"}
    )


@dataclass(frozen=True)
class Axis:
    """One side's token labels: their size in points, every how many-th is written, their angle and longest extent."""

    size: float
    step: int
    angle: int = 0
    depth: float = 0.0  # inches they reach away from the cells


@dataclass(frozen=True)
class Plan:
    """The whole picture: its size, the panels' place and size, the axes, the colour bar."""

    width: float
    height: float
    left: float  # of the first panel
    top: float
    panel: tuple[float, float]  # width, height
    pitch: tuple[float, float]  # from one panel to the next
    shape: tuple[int, int]  # rows, columns of panels
    cell: tuple[float, float]
    queries: Axis
    keys: Axis
    bars: tuple[tuple[float, float, float], ...]  # of the colours: left, top, height
    label_left: float  # the right edge of the queries' labels
    names_above: bool  # whether each panel bears a name
    type: TypeSizes

    def panel_corner(self, row: int, column: int) -> tuple[float, float]:
        """The top left corner of a panel."""
        return self.left + column * self.pitch[0], self.top + row * self.pitch[1]


@dataclass(frozen=True)
class LayoutRequest:
    """What has to find room."""

    n_q: int
    n_k: int
    shape: tuple[int, int]  # rows, columns of panels
    rows_named: bool  # whether the rows of panels have names of their own, at their left
    longest_query: float  # inches, of the longest label at one point of size
    longest_key: float
    hidden: float  # of what a hatched cell is, said beneath the colour bar; 0: nothing is hatched
    bars: int  # of colours
    type: TypeSizes
    size: tuple[float, float] | None
    dpi: float
    names: int = 1  # lines of a panel's name
    titles: int = 0  # lines
    subtitles: int = 0
    least_width: float = 0.0  # inches, of the title

    @property
    def single(self) -> bool:
        """Whether there is one big panel."""
        return self.shape == (1, 1)


def plan_layout(ask: LayoutRequest) -> Plan:
    """Lay the picture out. Raises UsageError where it would be too small, or too large to be drawn."""
    cell = _cell_size(ask)
    queries, keys = _label_axes(ask, cell)
    if ask.size is not None:
        # the labels' size depends on the cells, and the room for cells on the labels: twice comes close enough
        for _ in range(2):
            cell = _cells_to_size(ask, queries, keys)
            queries, keys = _label_axes(ask, cell)
        cell = _cells_to_size(ask, queries, keys)
    return _placed_plan(ask, cell, queries, keys)


def _cell_size(ask: LayoutRequest) -> tuple[float, float]:
    """The size of a cell that suits so many tokens and panels, a whole number of pixels where that is more than a few."""
    n = max(ask.n_q, ask.n_k)
    rows, columns = ask.shape
    if ask.single:
        side = min(0.85, max(2.4 / n, min(0.5, min(max(7.5, 0.05 * n), 10.0) / n)))
    else:
        wanted = min(4.0, max(1.5, 0.3 * n, 0.055 * n))
        side = max(min(wanted, 13.0 / columns), 0.4) / n
    pixels = side * ask.dpi
    side = max(1, round(pixels)) / ask.dpi if pixels > 3 else side
    return side, side


def _label_axes(ask: LayoutRequest, cell: tuple[float, float]) -> tuple[Axis, Axis]:
    """How the labels are written beside cells of this size: smaller first, then every second, third, …"""
    w, h = cell
    most = ask.type.label if ask.single else ask.type.label_of_many

    def thinned_labels(room: float) -> tuple[float, int]:
        size = min(most, room * 72 / 1.15)
        if size >= ask.type.smallest:
            return size, 1
        size = min(most, ask.type.smallest + 0.5)
        return size, math.ceil(size * 1.2 / 72 / room)

    size, step = thinned_labels(h)
    queries = Axis(size, step, depth=ask.longest_query * size)
    size, step = thinned_labels(w)
    width = ask.longest_key * size
    if width <= w * 0.94 - 0.02:
        return queries, Axis(size, 1, 0, size * LINE)
    if ask.single and w >= 0.3:
        return queries, Axis(size, step, 45, (width + size * LINE) * math.sqrt(0.5))
    return queries, Axis(size, step, 90, width)


def _margins(ask: LayoutRequest, queries: Axis, keys: Axis) -> tuple[float, float, float, float]:
    """Inches at the left, top, right and bottom of the panels."""
    t = ask.type
    left = EDGE + t.axis * LINE + queries.depth + 2 * ASIDE + (t.axis * LINE + ASIDE if ask.rows_named else 0)
    top = EDGE + ask.titles * t.title * LINE + ask.subtitles * t.subtitle * LINE + ASIDE + t.axis * LINE
    top += keys.depth + 2 * ASIDE + (0 if ask.single else ask.names * t.axis * LINE)
    bars = BAR_GAP + max(ask.bars * bar_pitch(t), BAR_WIDTH + ASIDE + ask.hidden * t.tick) if ask.bars else 0.0
    over = max(0.0, keys.depth - bars + (BAR_GAP if bars else 0)) if keys.angle == 45 else 0.0
    return left, top, bars + over + EDGE, EDGE + 0.04


def bar_pitch(sizes: TypeSizes) -> float:
    """Inches that a colour bar takes with its ticks and its name."""
    return BAR_WIDTH + BAR_TEXT * sizes.tick / 7.5


def _panel_gaps(ask: LayoutRequest) -> tuple[float, float]:
    """Inches between panels, across and down: down there are titles where the rows are not layers."""
    return (0.09 if ask.rows_named else 0.14), (0.09 if ask.rows_named else ask.names * ask.type.axis * LINE + 0.12)


def _cells_to_size(ask: LayoutRequest, queries: Axis, keys: Axis) -> tuple[float, float]:
    """The cells that fill a picture of the size asked for."""
    assert ask.size is not None
    left, top, right, bottom = _margins(ask, queries, keys)
    (rows, columns), (across, down) = ask.shape, _panel_gaps(ask)
    width = (ask.size[0] - left - right - across * (columns - 1)) / columns
    height = (ask.size[1] - top - bottom - down * (rows - 1)) / rows
    if width < 0.25 or height < 0.25:
        need = left + right + (0.3 + across) * columns, top + bottom + (0.3 + down) * rows
        raise UsageError(
            f"--size {ask.size[0]:g}x{ask.size[1]:g} leaves no room for the cells beside the labels: "
            f"at least {math.ceil(need[0] * 2) / 2:g}x{math.ceil(need[1] * 2) / 2:g} inches"
        )
    return width / ask.n_k, height / ask.n_q


def _placed_plan(ask: LayoutRequest, cell: tuple[float, float], queries: Axis, keys: Axis) -> Plan:
    left, top, right, bottom = _margins(ask, queries, keys)
    (rows, columns), (across, down) = ask.shape, _panel_gaps(ask)
    panel = cell[0] * ask.n_k, cell[1] * ask.n_q
    pitch = panel[0] + across, panel[1] + down
    inner = columns * pitch[0] - across, rows * pitch[1] - down
    width, height = max(left + inner[0] + right, ask.least_width), top + inner[1] + bottom
    if ask.size is not None:
        width, height = ask.size
    if max(width, height) > WIDEST or width * height * ask.dpi**2 > PIXELS or max(width, height) * ask.dpi > 65_000:
        raise UsageError(
            f"the picture would be {width:.0f} × {height:.0f} inches, "
            f"{width * ask.dpi:,.0f} × {height * ask.dpi:,.0f} pixels: "
            "choose layers and heads (--layer, --head), or a smaller --size or --dpi"
        )
    # pixels that cells fill evenly start on a whole pixel
    left, top = (round(left * ask.dpi) / ask.dpi, round(top * ask.dpi) / ask.dpi)
    legend = 0.42 if ask.hidden and ask.bars else 0.0
    bar_height = min(max(inner[1] - legend, 0.9 if ask.size is None else 0.2), 5.0)
    return Plan(
        width=width,
        height=max(height, top + bar_height + legend + bottom) if ask.size is None and ask.bars else height,
        left=left,
        top=top,
        panel=panel,
        pitch=pitch,
        shape=ask.shape,
        cell=cell,
        queries=queries,
        keys=keys,
        bars=tuple((left + inner[0] + BAR_GAP + at * bar_pitch(ask.type), top, bar_height) for at in range(ask.bars)),
        label_left=left - ASIDE - queries.depth,
        names_above=not ask.single,
        type=ask.type,
    )
