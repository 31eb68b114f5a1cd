"""What every picture of numbers is made of: grids side by side, labels, a colour bar a scale, and where each stands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypedDict

from matplotlib.colors import CenteredNorm, Colormap, LogNorm, Normalize
from matplotlib.figure import Figure

from attnctl.arrays import Bools, Floats
from attnctl.errors import UsageError, option_name
from attnctl.formats.pictures import Look
from attnctl.render.figure.labels import LONGEST, Labels
from attnctl.tokens import Token

LEAST = 1e-6  # a scale's extent where all numbers are 0
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


def colour_norm(low: float, high: float, *, log: bool = False, clip: bool = False) -> Normalize:
    """Return the scale of colours between two ends. Raises UsageError if they are not in order."""
    if low >= high:
        raise UsageError(
            f"the colours would go from {low:g} to {high:g}: give another {option_name('vmin')} or {option_name('vmax')}"
        )
    return LogNorm(low, high, clip) if log else Normalize(low, high, clip)


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
    sentence: str = ""  # the text, above the title; cut to the width of the picture
    said: tuple[str, ...] = ()  # what was done to the numbers
    below: str = ""  # a sentence under the panels
    axes: tuple[str, str] = ("query", "key")  # what goes down, what goes across
    row_names: tuple[str, ...] = ()  # of the rows of panels, where these are named
    each_named: bool = False  # whether every panel bears its name, and not only those at the top of the named rows
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
    ha: Literal["left", "center", "right"]
    va: Literal["bottom", "baseline", "center", "center_baseline", "top"]
    rotation: float
    rotation_mode: Literal["default", "anchor"]


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
GAP_BELOW = 0.1  # between the panels and what stands under them
MOST_BELOW = 0.2  # of the height of a picture whose size was asked for
NARROW = 5.0  # inches: in a narrower picture all letters are smaller, so that titles and labels agree


class TypeSizes(NamedTuple):
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
    return TypeSizes(*(factor * size for size in sizes))._replace(smallest=sizes.smallest)


class Axis(NamedTuple):
    """One side's token labels: their size in points, every how many-th is written, their angle and longest extent."""

    size: float
    step: int
    angle: int = 0
    depth: float = 0.0  # inches they reach away from the cells


class Plan:
    """Where everything of a picture stands, in inches from its top left corner.

    Raises UsageError where the picture would be too small, or too large to be drawn.
    """

    def __init__(self, grids: Grids, look: Look, labels: Labels) -> None:
        self.grids, self.look = grids, look
        self.type = t = type_sizes(look.font_size, None if look.size is None else look.size[0])
        self.shape = grids.panel_counts  # rows, columns of panels
        self.names_above = self.shape != (1, 1)  # whether each panel bears a name
        self.name_lines = 1 + max(panel.name.count("\n") for panel in grids.panels)
        longest = LONGEST - 5 * self.names_above
        self.query_labels = [labels.axis_label(name, longest) for name in grids.rows]
        self.key_labels = [labels.axis_label(name, longest) for name in grids.columns]
        # the widths of the longest labels, and of the name of hatched cells, at one point of size
        self.longest_query = max(labels.text_width(name, 10) for name in self.query_labels) / 10
        self.longest_key = max(labels.text_width(name, 10) for name in self.key_labels) / 10
        self.hidden = labels.text_width(grids.hidden, 10) / 10 if grids.is_masked else 0.0
        self.title: list[str] = []
        self.subtitle: list[str] = []
        self.below: list[str] = []
        cell = self._cell_size()
        self.queries, self.keys = self._label_axes(cell)
        room = (look.size[0] if look.size else max(self._size(cell)[0], 4.2)) - 2 * EDGE
        said = "; ".join((*grids.said, *[UNKNOWN] * any("†" in name for name in (*grids.rows, *grids.columns))))
        if grids.sentence:  # the title is its second line
            self.title = [labels.cut_to_width(labels.drawable(grids.sentence), t.title, room)]
            self.subtitle = labels.broken_lines(labels.drawable(grids.title), t.subtitle, room)
        elif grids.title:
            self.title = labels.broken_lines(labels.drawable(grids.title), t.title, room)
        if said:
            self.subtitle += labels.broken_lines(labels.drawable(said), t.subtitle, room)
        if grids.below:
            beside = self._margins()[2] - EDGE if self.legend else 0.0
            self.below = labels.broken_lines(labels.drawable(grids.below), t.subtitle, room - beside)
            if look.size and len(self.below) * t.subtitle * LINE > look.size[1] * MOST_BELOW:
                self.below = []  # the cells of a small picture need the room
        widths = [labels.line_width(line, t.title) for line in self.title]
        widths += [labels.text_width(line, t.subtitle) for line in self.subtitle]
        # the labels' size depends on the cells, and the room for cells on the labels: twice comes close enough
        for _ in range(2 if look.size else 0):
            cell = self._cells_to_size()
            self.queries, self.keys = self._label_axes(cell)
        self.cell = self._cells_to_size() if look.size else cell
        self._place(max(widths, default=0.0) + 2 * EDGE)

    def _cell_size(self) -> tuple[float, float]:
        """The size of a cell that suits so many tokens and panels, a whole number of pixels where that is 4 or more."""
        n = max(len(self.query_labels), len(self.key_labels))
        if not self.names_above:
            side = min(0.85, max(2.4 / n, min(0.5, min(max(7.5, 0.05 * n), 10.0) / n)))
        else:
            wanted = min(4.0, max(1.5, 0.3 * n, 0.055 * n))
            side = max(min(wanted, 13.0 / self.shape[1]), 0.4) / n
        pixels = side * self.look.dpi
        side = max(1, round(pixels)) / self.look.dpi if pixels > 3 else side
        return side, side

    def _label_axes(self, cell: tuple[float, float]) -> tuple[Axis, Axis]:
        """How the labels are written beside cells of this size: smaller first, then every second, third, …"""
        w, h = cell
        most = self.type.label_of_many if self.names_above else self.type.label

        def thinned_labels(room: float) -> tuple[float, int]:
            size = min(most, room * 72 / 1.15)
            if size >= self.type.smallest:
                return size, 1
            size = min(most, self.type.smallest + 0.5)
            return size, math.ceil(size * 1.2 / 72 / room)

        size, step = thinned_labels(h)
        queries = Axis(size, step, depth=self.longest_query * size)
        size, step = thinned_labels(w)
        width = self.longest_key * size
        if width <= w * 0.94 - 0.02:
            return queries, Axis(size, 1, 0, size * LINE)
        if not self.names_above and w >= 0.3:
            return queries, Axis(size, step, 45, (width + size * LINE) * math.sqrt(0.5))
        return queries, Axis(size, step, 90, width)

    def _margins(self) -> tuple[float, float, float, float]:
        """Inches at the left, top, right and bottom of the panels."""
        t, keys = self.type, self.keys
        left = EDGE + t.axis * LINE + self.queries.depth + 2 * ASIDE
        left += (t.axis * LINE + ASIDE) * bool(self.grids.row_names)
        top = EDGE + len(self.title) * t.title * LINE + len(self.subtitle) * t.subtitle * LINE + ASIDE + t.axis * LINE
        top += keys.depth + 2 * ASIDE + self.names_above * self.name_lines * t.axis * LINE
        bars = 0.0
        if self.look.colour_bar:
            bars = BAR_GAP + max(len(self.grids.scales) * self.bar_pitch, BAR_WIDTH + ASIDE + self.hidden * t.tick)
        over = max(0.0, keys.depth - bars + (BAR_GAP if bars else 0)) if keys.angle == 45 else 0.0
        below = max((GAP_BELOW + len(self.below) * t.subtitle * LINE) * bool(self.below), self.legend)
        return left, top, bars + over + EDGE, EDGE + 0.04 + below

    @property
    def legend(self) -> float:
        """Inches under the colour bar that the name of hatched cells takes."""
        return GAP_BELOW + BAR_WIDTH if self.hidden and self.look.colour_bar else 0.0

    @property
    def bar_pitch(self) -> float:
        """Inches that a colour bar takes with its ticks and its name."""
        return BAR_WIDTH + BAR_TEXT * self.type.tick / 7.5

    @property
    def gaps(self) -> tuple[float, float]:
        """Inches between panels, across and down: down there are titles where the rows are not layers."""
        named = bool(self.grids.row_names) and not self.grids.each_named
        return (0.09, 0.09) if named else (0.14, self.name_lines * self.type.axis * LINE + 0.12)

    def _cells_to_size(self) -> tuple[float, float]:
        """The cells that fill a picture of the size asked for."""
        assert self.look.size is not None
        left, top, right, bottom = self._margins()
        (rows, columns), (across, down), asked = self.shape, self.gaps, self.look.size
        width = (asked[0] - left - right - across * (columns - 1)) / columns
        height = (asked[1] - top - bottom - down * (rows - 1)) / rows
        if width < 0.25 or height < 0.25:
            need = left + right + (0.3 + across) * columns, top + bottom + (0.3 + down) * rows
            raise UsageError(
                "it leaves no room for the cells beside the labels: "
                f"at least {math.ceil(need[0] * 2) / 2:g}x{math.ceil(need[1] * 2) / 2:g} inches",
                option="size",
                value=f"{asked[0]:g}x{asked[1]:g}",
            )
        return width / len(self.key_labels), height / len(self.query_labels)

    def _size(self, cell: tuple[float, float]) -> tuple[float, float]:
        """The width and height of the picture with such cells."""
        left, top, right, bottom = self._margins()
        (rows, columns), (across, down) = self.shape, self.gaps
        self.panel = cell[0] * len(self.key_labels), cell[1] * len(self.query_labels)
        self.pitch = self.panel[0] + across, self.panel[1] + down  # from one panel to the next
        self.inner = columns * self.pitch[0] - across, rows * self.pitch[1] - down  # all panels together
        return left + self.inner[0] + right, top + self.inner[1] + bottom

    def _place(self, least_width: float) -> None:
        width, height = self._size(self.cell)
        self.width, self.height = self.look.size or (max(width, least_width), height)
        dpi = self.look.dpi
        if (
            max(self.width, self.height) > WIDEST
            or self.width * self.height * dpi**2 > PIXELS
            or max(self.width, self.height) * dpi > 65_000
        ):
            raise UsageError(
                f"the picture would be {self.width:.0f} × {self.height:.0f} inches, "
                f"{self.width * dpi:,.0f} × {self.height * dpi:,.0f} pixels: "
                "choose layers and heads, a smaller size, or fewer dots per inch"
            )
        left, top, _, bottom = self._margins()
        # pixels that cells fill evenly start on a whole pixel
        self.left, self.top = round(left * dpi) / dpi, round(top * dpi) / dpi
        self.bar_left = self.left + self.inner[0] + BAR_GAP
        self.bar_height = self.inner[1]
