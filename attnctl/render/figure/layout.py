"""Describe a picture of numbers and place its parts: panels side by side, labels, and a colour bar for each scale."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Literal, NamedTuple, TypedDict

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import CenteredNorm, Colormap, LinearSegmentedColormap, LogNorm, Normalize
from matplotlib.figure import Figure

from attnctl.errors import UsageError, option_name
from attnctl.formats.pictures import Look
from attnctl.render.figure.labels import LONGEST_LABEL, Labels
from attnctl.render.forms import HEAT_ON_LIGHT
from attnctl.runtime.arrays import Bools, Floats
from attnctl.text.tokens import Token

LEAST_EXTENT = 1e-6  # the extent of a scale if all numbers are 0
UNKNOWN = "† not among the words the model knows"


@dataclass(frozen=True)
class Scale:
    """Colours for numbers, and the unit of the numbers."""

    norm: Normalize
    colours: Colormap
    unit: str
    number_text: Callable[[float], str] | None = None  # how cells show a number, if not as in `cell_number`

    @cached_property
    def cell_number(self) -> Callable[[float], str]:
        """Return the function that writes a number as a cell shows it."""
        if self.number_text is not None:
            return self.number_text
        if isinstance(self.norm, LogNorm):
            return _power_of_ten
        return _change if isinstance(self.norm, CenteredNorm) else _weight


def _weight(value: float) -> str:
    """Return a number with two decimals."""
    text = f"{value:.2f}"
    return "0.00" if text == "-0.00" else text


def _change(value: float) -> str:
    """Return a number with its sign and two decimals."""
    text = f"{value:+.2f}"
    return "0.00" if text in ("-0.00", "+0.00") else text


def _power_of_ten(value: float) -> str:
    """Return a number with two decimals, below 0.01 one digit and its power of ten."""
    return f"{value:.0e}".replace("e-0", "e-") if 0 < value < 0.01 else _weight(value)


def colour_norm(low: float, high: float, *, log: bool = False, clip: bool = False) -> Normalize:
    """Return the scale of colours between two ends. Raises UsageError if they are not in order."""
    if low >= high:
        raise UsageError(
            f"the colours would go from {low:g} to {high:g}: give another {option_name('vmin')} or {option_name('vmax')}"
        )
    return LogNorm(low, high, clip) if log else Normalize(low, high, clip)


def colour_map(name: str) -> Colormap:
    """Return the colour map of the page ("heat") or one of matplotlib. Raises UsageError that suggests similar names."""
    if name == "heat":
        return _heat()
    if name in colormaps:
        return colormaps[name]
    near = difflib.get_close_matches(name, list(colormaps), 3)
    advice = f"did you mean {' or '.join(near)}?" if near else "try heat, viridis, cividis, magma or gray_r"
    raise UsageError(f"no colour map {name!r}: {advice}", value=name)


@cache
def _heat() -> Colormap:
    return LinearSegmentedColormap.from_list("heat", HEAT_ON_LIGHT)


class Panel(NamedTuple):
    """One grid: its place, its name, its numbers, and the number of the scale that gives their colours."""

    row: int
    column: int
    name: str  # one line, which is cut to the width of the panel, or several, which are broken there
    array: Floats  # (rows, columns)
    mask: Bools | None = None  # (rows, columns), false: no number to show
    scale: int = 0
    ring: tuple[int, int] | None = None  # the cell to mark
    outlined: Bools | None = None  # (rows, columns), true: within an outline
    breaks: bool = False  # whether a name of one line is broken, too


@dataclass(frozen=True)
class Panels:
    """A picture: panels in rows and columns, all with the same labels."""

    panels: tuple[Panel, ...]
    rows: tuple[str, ...]  # labels at the left
    columns: tuple[str, ...]  # labels above
    scales: tuple[Scale, ...]
    title: str = ""
    sentence: str = ""  # the text, above the title; cut to the width of the picture
    notes: tuple[str, ...] = ()  # how the numbers were changed, in sentences
    below: str = ""  # a sentence under the panels
    axes: tuple[str, str] = ("query", "key")  # the names of the axes, down and across
    row_names: tuple[str, ...] = ()  # names of the rows of panels; empty: no names
    each_named: bool = False  # whether every panel shows its name, not only those of the top row
    hidden: str = "masked"  # what a hatched cell means
    cited: str = ""  # the source of the numbers, for the metadata

    @property
    def panel_counts(self) -> tuple[int, int]:
        """Return the numbers of rows and columns of panels."""
        return 1 + max(panel.row for panel in self.panels), 1 + max(panel.column for panel in self.panels)

    @property
    def is_masked(self) -> bool:
        """Return whether a cell is hatched."""
        return any(panel.mask is not None and not panel.mask.all() for panel in self.panels)


def panel_of_heads(
    values: Mapping[tuple[int, int], float | None], scale: Scale, title: str, note: str, hidden: str, cited: str
) -> Panels:
    """Return a grid of (layer, head) → value: a row for each layer, a column for each head.

    Heads without a value are hatched, and `hidden` is the name of these cells.
    """
    layers, heads = (sorted(set(numbers)) for numbers in zip(*values, strict=True))
    numbers = {place: value for place, value in values.items() if value is not None}
    array = np.array([[numbers.get((layer, head), np.nan) for head in heads] for layer in layers], dtype=np.float32)
    mask = np.isfinite(array)  # (layers, heads)
    return Panels(
        panels=(Panel(0, 0, "", np.where(mask, array, 0), mask),),
        rows=tuple(map(str, layers)),
        columns=tuple(map(str, heads)),
        scales=(scale,),
        title=title,
        notes=(note,),
        axes=("layer", "head"),
        hidden=hidden,
        cited=cited,
    )


class TextSetting(TypedDict, total=False):
    """The settings of a text, by matplotlib's names."""

    color: str
    ha: Literal["left", "center", "right"]
    va: Literal["bottom", "baseline", "center", "center_baseline", "top"]
    rotation: float
    rotation_mode: Literal["default", "anchor"]


class Drawing(NamedTuple):
    """A picture, and notes about it for the user."""

    figure: Figure
    notes: tuple[str, ...]


def token_labels(tokens: Sequence[Token]) -> tuple[str, ...]:
    """Return tokens as labels, with a † behind those that the model does not know."""
    return tuple(token.text + "†" * token.unknown for token in tokens)


EDGE = 0.14  # around everything
BAR_GAP, BAR_WIDTH, BAR_TEXT = 0.2, 0.14, 0.6
LINE = 1.35 / 72  # inches from line to line, for each point of size
ASIDE = 0.05  # between labels and cells
WIDEST, PIXELS = 60.0, 150e6
GAP_BELOW = 0.1  # between the panels and the text under them
MOST_BELOW = 0.2  # share of the height, if the size of the picture is set
NARROW = 5.0  # inches: in a narrower picture all letters are smaller, so that titles and labels agree


class TypeSizes(NamedTuple):
    """The sizes of all letters of a picture, in points."""

    title: float = 11.5
    subtitle: float = 8.0
    axis: float = 9.0  # names of the axes, of the panels and of the colour bar
    label: float = 9.0  # of tokens: the largest size
    label_of_many: float = 7.5  # the same, if there are several panels
    smallest: float = 5.5  # of tokens: the smallest size
    tick: float = 7.5  # beside the colour bar


def type_sizes(font_size: float | None, width: float | None) -> TypeSizes:
    """Return the sizes of all letters in a picture `width` inches wide; `font_size`, if set, is the size of its labels."""
    if font_size is not None:
        return TypeSizes(1.2 * font_size, 0.9 * font_size, font_size, font_size, font_size, font_size, 0.85 * font_size)
    sizes = TypeSizes()
    if width is None or width >= NARROW:
        return sizes
    factor = max(7 / 9, width / NARROW)
    return TypeSizes(*(factor * size for size in sizes))._replace(smallest=sizes.smallest)


class Axis(NamedTuple):
    """The token labels of one side: size in points, step (every step-th is written), angle and longest extent."""

    size: float
    step: int
    angle: int = 0
    depth: float = 0.0  # inches from the cells to the far end of the labels


def _named(axis: Axis, count: int, cell: float, gap: float | None) -> range:
    """Return which of `count` labels are written; not the last where the first of a panel after a `gap` is too near."""
    named = range(0, count, axis.step)
    if gap is None or axis.step == 1 or len(named) == 1 or (count - named[-1]) * cell + gap >= axis.size * LINE:
        return named
    return named[:-1]


class Plan:
    """The places of all parts of a picture, in inches from its top left corner.

    Raises UsageError if the picture would be too small, or too large to be drawn.
    """

    def __init__(self, picture: Panels, look: Look, labels: Labels) -> None:
        self.picture, self.look = picture, look
        self.type = t = type_sizes(look.font_size, None if look.size is None else look.size[0])
        self.shape = picture.panel_counts  # rows, columns of panels
        self.names_above = self.shape != (1, 1)  # whether panels have names
        longest = LONGEST_LABEL - 5 * self.names_above
        self.query_labels = [labels.axis_label(name, longest) for name in picture.rows]
        self.key_labels = [labels.axis_label(name, longest) for name in picture.columns]
        # the widths of the longest labels, and of the name of hatched cells, at one point of size
        self.longest_query = max(labels.text_width(name, 10) for name in self.query_labels) / 10
        self.longest_key = max(labels.text_width(name, 10) for name in self.key_labels) / 10
        self.hidden = labels.text_width(picture.hidden, 10) / 10 if picture.is_masked else 0.0
        self.title: list[str] = []
        self.subtitle: list[str] = []
        self.below: list[str] = []
        cell = self._cell_size()
        self.names = [self._name_lines(panel, labels, cell[0] * len(picture.columns)) for panel in picture.panels]
        self.name_lines = max(map(len, self.names))
        self.queries, self.keys = self._label_axes(cell)
        room = (look.size[0] if look.size else max(self._size(cell)[0], 4.2)) - 2 * EDGE
        notes = "; ".join((*picture.notes, *[UNKNOWN] * any("†" in name for name in (*picture.rows, *picture.columns))))
        if picture.sentence:  # the title is its second line
            self.title = [labels.cut_to_width(labels.drawable(picture.sentence), t.title, room)]
            self.subtitle = labels.broken_lines(labels.drawable(picture.title), t.subtitle, room)
        elif picture.title:
            self.title = labels.broken_lines(labels.drawable(picture.title), t.title, room)
        if notes:
            self.subtitle += labels.broken_lines(labels.drawable(notes), t.subtitle, room)
        if picture.below:
            beside = self._margins()[2] - EDGE if self.legend else 0.0
            self.below = labels.broken_lines(labels.drawable(picture.below), t.subtitle, room - beside)
            if look.size and len(self.below) * t.subtitle * LINE > look.size[1] * MOST_BELOW:
                self.below = []  # the cells of a small picture need the room
        widths = [labels.line_width(line, t.title) for line in self.title]
        widths += [labels.text_width(line, t.subtitle) for line in self.subtitle]
        # the size of the labels depends on the cells, and the room for cells on the labels: two rounds are enough
        for _ in range(2 if look.size else 0):
            cell = self._cells_to_size()
            self.queries, self.keys = self._label_axes(cell)
        self.cell = self._cells_to_size() if look.size else cell
        self._place(max(widths, default=0.0) + 2 * EDGE)

    def _name_lines(self, panel: Panel, labels: Labels, width: float) -> list[str]:
        """Return the lines of a panel's name, those of a name of several lines broken between words."""
        lines, size = [labels.drawable(line) for line in panel.name.split("\n")], self.type.axis - 0.5
        if len(lines) == 1 and not panel.breaks:
            return lines
        parts: list[str] = []
        for line in lines:
            fewest = broken = labels.broken_lines(line, size, width)
            for share in (0.9, 0.8, 0.7, 0.6, 0.5):  # as many lines, of more equal lengths
                narrower = labels.broken_lines(line, size, share * width)
                if len(narrower) == len(fewest) > 1 and " ".join(narrower) == line:
                    broken = narrower
            parts += broken
        return parts

    def _cell_size(self) -> tuple[float, float]:
        """Return a size of cells that suits the tokens and panels: a whole number of pixels if that is 4 or more."""
        n = max(len(self.query_labels), len(self.key_labels))
        if not self.names_above:
            side = min(0.85, max(2.4 / n, min(0.5, min(max(7.5, 0.05 * n), 10.0) / n)))
        else:
            side = min(4.0, max(1.5, 0.3 * n, 0.055 * n))
            side = max(min(side, 13.0 / self.shape[1]), 0.4) / n
        pixels = side * self.look.dpi
        side = max(1, round(pixels)) / self.look.dpi if pixels > 3 else side
        return side, side

    def _label_axes(self, cell: tuple[float, float]) -> tuple[Axis, Axis]:
        """Return how to write the labels beside cells of this size: first smaller letters, then only every n-th label."""
        w, h = cell
        largest = self.type.label_of_many if self.names_above else self.type.label

        def thinned_labels(room: float) -> tuple[float, int]:
            size = min(largest, room * 72 / 1.15)
            if size >= self.type.smallest:
                return size, 1
            size = min(largest, self.type.smallest + 0.5)
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
        """Return the inches at the left, top, right and bottom of the panels."""
        t, keys = self.type, self.keys
        left = EDGE + t.axis * LINE + self.queries.depth + 2 * ASIDE
        left += (t.axis * LINE + ASIDE) * bool(self.picture.row_names)
        top = EDGE + len(self.title) * t.title * LINE + len(self.subtitle) * t.subtitle * LINE + ASIDE + t.axis * LINE
        top += keys.depth + 2 * ASIDE + self.names_above * self.name_lines * t.axis * LINE
        bars = 0.0
        if self.look.colorbar:
            bars = BAR_GAP + max(len(self.picture.scales) * self.bar_pitch, BAR_WIDTH + ASIDE + self.hidden * t.tick)
        over = max(0.0, keys.depth - bars + (BAR_GAP if bars else 0)) if keys.angle == 45 else 0.0
        below = max((GAP_BELOW + len(self.below) * t.subtitle * LINE) * bool(self.below), self.legend)
        tick = t.tick * LINE / 2 if self.look.colorbar else 0.0  # half of the last tick stands under the bar
        return left, top, bars + over + EDGE, max(EDGE + 0.04, tick + ASIDE) + below

    @property
    def legend(self) -> float:
        """Return the inches under the colour bar that the name of hatched cells takes, a line below the last tick."""
        if not (self.hidden and self.look.colorbar):
            return 0.0
        return max(GAP_BELOW + BAR_WIDTH, self.type.tick * LINE + BAR_WIDTH / 2)

    @property
    def named_queries(self) -> range:
        """Return the numbers of the rows with labels."""
        return _named(self.queries, len(self.query_labels), self.cell[1], self.gaps[1] if self.shape[0] > 1 else None)

    @property
    def named_keys(self) -> range:
        """Return the numbers of the columns with labels."""
        return _named(self.keys, len(self.key_labels), self.cell[0], self.gaps[0] if self.shape[1] > 1 else None)

    @property
    def bar_pitch(self) -> float:
        """Return the inches that a colour bar takes with its ticks and its name."""
        return BAR_WIDTH + BAR_TEXT * self.type.tick / 7.5

    @property
    def gaps(self) -> tuple[float, float]:
        """Return the inches between panels, across and down: if the rows are not layers, panels have names between them."""
        named = bool(self.picture.row_names) and not self.picture.each_named
        return (0.09, 0.09) if named else (0.14, self.name_lines * self.type.axis * LINE + 0.12)

    def _cells_to_size(self) -> tuple[float, float]:
        """Return the size of the cells that fill a picture of the requested size."""
        assert self.look.size is not None
        left, top, right, bottom = self._margins()
        (rows, columns), (across, down), size = self.shape, self.gaps, self.look.size
        width = (size[0] - left - right - across * (columns - 1)) / columns
        height = (size[1] - top - bottom - down * (rows - 1)) / rows
        if width < 0.25 or height < 0.25:
            need = left + right + (0.3 + across) * columns, top + bottom + (0.3 + down) * rows
            raise UsageError(
                "it leaves no room for the cells beside the labels: "
                f"at least {math.ceil(need[0] * 2) / 2:g}x{math.ceil(need[1] * 2) / 2:g} inches",
                option="size",
                value=f"{size[0]:g}x{size[1]:g}",
            )
        return width / len(self.key_labels), height / len(self.query_labels)

    def _size(self, cell: tuple[float, float]) -> tuple[float, float]:
        """Return the width and height of the picture with cells of this size."""
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
