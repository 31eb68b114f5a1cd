"""Draw panels with matplotlib: cells, values, colour bars, and labels in fonts that have their characters.

All parts are placed in inches on a Figure without Axes, which takes a fraction of the time. The values in the cells are
one path for each colour, and the shape of each digit is made once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt
from matplotlib import ticker
from matplotlib.artist import Artist
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import CenteredNorm, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.image import BboxImage
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path
from matplotlib.textpath import TextPath
from matplotlib.transforms import Bbox, Transform, TransformedBbox

from attnctl.formats.pictures import Look
from attnctl.render.figure.labels import BASE, Labels
from attnctl.render.figure.layout import (
    ASIDE,
    BAR_WIDTH,
    EDGE,
    GAP_BELOW,
    LINE,
    UNKNOWN,
    Axis,
    Panel,
    Panels,
    Plan,
    Scale,
    TextSetting,
)
from attnctl.render.forms import DARK_INK_FROM, LINEAR_OF_BYTE, LUMINANCE
from attnctl.runtime.arrays import Bools, Bytes

Doubles = npt.NDArray[np.float64]
HEIGHT = 0.73  # of a digit at one point of size


@lru_cache(maxsize=4096)
def number_outline(text: str) -> tuple[Doubles, Bytes]:
    """Return the outline of a number: vertices (m, 2) at one point of size, y down, its centre at the origin; codes (m,)."""
    shape, right = _at_100(text), (_at_100(before + "0").vertices[:, 0].max() for before in (text, ""))
    width = (next(right) - next(right)) / 100  # how far it moves the text after it
    return shape.vertices * (0.01, -0.01) + (-width / 2, HEIGHT / 2), shape.codes


@lru_cache(maxsize=64)
def _at_100(text: str) -> TextPath:
    return TextPath((0, 0), text, size=100, prop=FontProperties(family=BASE))


INK, QUIET, PAPER = "#111111", "#555555", "white"
HATCHING: dict[str, Any] = {"facecolor": "#f3f3f3", "edgecolor": "#cfcfcf", "linewidth": 0}
HATCHING |= {"hatch": "/////", "hatch_linewidth": 0.5}
LEAST_VALUE = 5.0  # points: smaller values are not written
LEAST_CELL = 3.0  # pixels: smaller cells need the smoothing of matplotlib's own images
MOST_VALUES = 600  # cells of all panels: nobody can read more numbers
AT_ONCE = 2000  # numbers of a path
MOST_LINES = 512  # of a path: matplotlib moves the lines of longer paths to no whole pixels
LINEAR = np.array(LINEAR_OF_BYTE)  # (256,)


class Sheet:
    """A picture while it is drawn: panels in the style of `look`, on `figure`, from the back to the front."""

    def __init__(self, picture: Panels, look: Look) -> None:
        texts = (
            picture.sentence,
            picture.title,
            picture.below,
            *picture.notes,
            *picture.rows,
            *picture.columns,
            *(panel.name for panel in picture.panels),
        )
        self.picture, self.look, self.labels = picture, look, Labels([*texts, UNKNOWN], look.dpi)
        self.plan = Plan(picture, look, self.labels)
        self._begin_canvas()

    def _begin_canvas(self) -> None:
        size = self.plan.width, self.plan.height
        self.figure = Figure(figsize=size, dpi=self.look.dpi, facecolor=PAPER, label=self.picture.cited)
        FigureCanvasAgg(self.figure)
        self._inches: Transform = self.figure.dpi_scale_trans
        self._font = FontProperties(family=self.labels.family)

    def _add(self, artist: Artist) -> None:
        artist.set_zorder(1)  # the later lies over the earlier
        self.figure.add_artist(artist)

    # --- the parts -----------------------------------------------------------------------------------------------

    def draw(self) -> None:
        """Draw all parts, from the back to the front."""
        self._draw_headings()
        values = self.look.values
        if values is None:  # write the numbers unless they would be clutter
            values = sum(panel.array.size for panel in self.picture.panels) <= MOST_VALUES
        p = self.plan
        corners = [
            (p.left + panel.column * p.pitch[0], p.top + panel.row * p.pitch[1]) for panel in self.picture.panels
        ]
        self._draw_cells(corners, values)
        for panel, name, corner in zip(self.picture.panels, p.names, corners, strict=True):
            if panel.column == 0:
                self._query_labels(*corner)
            if panel.row == 0:
                self._key_labels(*corner)
            self._panel_names(panel, name, *corner)
        for number, scale in enumerate(self.picture.scales if self.look.colorbar else ()):
            self._colour_bar(scale, p.bar_left + number * p.bar_pitch)

    def _put_text(self, x: float, y: float, text: str, size: float, **how: Unpack[TextSetting]) -> None:
        p, font = self.plan, self._font.copy()
        font.set_size(size)
        setting: TextSetting = {"color": INK, "va": "center", "ha": "center", **how}
        self.figure.text(x / p.width, 1 - y / p.height, text, fontproperties=font, parse_math=False, **setting)

    def _put_line(self, x: float, y: float, text: str, size: float, colour: str) -> None:
        """Write a line of a title or a sentence; (x, y) is the beginning of its baseline."""
        self._put_text(x, y, text, size, ha="left", va="baseline", color=colour)

    def _add_path(
        self, vertices: npt.ArrayLike, codes: Bytes, fill: str = "none", line: str = "none", width: float = 0
    ) -> None:
        """Fill a path, or draw it as a line of a `width` in points.

        Its vertices (m, 2) are in inches from the top left.
        """
        upright = np.asarray(vertices, dtype=float) * (1, -1) + (0, self.plan.height)  # (m, 2)
        self._draw_path(Path(upright, codes), fill, line, width)

    def _draw_path(self, path: Path, fill: str, line: str, width: float) -> None:
        stroke: dict[str, Any] = {} if line == "none" else {"edgecolor": line, "capstyle": "butt"}
        self._add(PathPatch(path, transform=self._inches, facecolor=fill, linewidth=width, **stroke))

    def _put_lines(self, lines: Sequence[tuple[float, float, float, float]], colour: str, width: float) -> None:
        """Draw straight lines, each (x0, y0, x1, y1), as one path."""
        if lines:
            codes = np.tile(np.array([Path.MOVETO, Path.LINETO], dtype=np.uint8), len(lines))
            vertices = np.asarray(lines).reshape(-1, 2)  # (2 · lines, 2)
            self._add_path(vertices, codes, line=colour, width=width)

    def _put_cells(self, left: float, top: float, width: float, height: float, rgba: Bytes, fine: bool = False) -> None:
        """Draw colours (rows, columns, 4), uint8, as an image: this colours the few cells, not its many pixels."""
        box = TransformedBbox(Bbox.from_bounds(left, self.plan.height - top - height, width, height), self._inches)
        image = BboxImage(box, origin="upper", interpolation="auto" if fine else "nearest")
        image.set_data(rgba)
        self._add(image)

    def _put_hatching(self, left: float, top: float, width: float, height: float) -> None:
        corner = left, self.plan.height - top - height
        self._add(Rectangle(corner, width, height, transform=self._inches, **HATCHING))

    def _draw_headings(self) -> None:
        y, p, size = EDGE, self.plan, self.plan.type
        for lines, points, colour in ((p.title, size.title, INK), (p.subtitle, size.subtitle, QUIET)):
            for line in lines:
                y += points * LINE
                self._put_line(EDGE, y - 0.3 * points * LINE, line, points, colour)
        (down, across), under = self.picture.axes, p.top + p.inner[1]
        name, x = self._axis_name(across, p.keys, p.left + p.inner[0] / 2, (EDGE, p.width - EDGE))
        self._put_text(x, y + ASIDE + size.axis * LINE / 2, name, size.axis, color=QUIET)
        name, middle = self._axis_name(down, p.queries, p.top + p.inner[1] / 2, (y + ASIDE, under + EDGE))
        self._put_text(EDGE + size.axis * LINE / 2, middle, name, size.axis, color=QUIET, rotation=90)
        low = p.top + p.inner[1] + GAP_BELOW
        for line in p.below:
            low += size.subtitle * LINE
            self._put_line(EDGE, low - 0.3 * size.subtitle * LINE, line, size.subtitle, QUIET)

    def _axis_name(self, name: str, axis: Axis, middle: float, room: tuple[float, float]) -> tuple[str, float]:
        """Return the name of an axis, and its place: about `middle`, and within `room` if it is not wider than that."""
        ordinal = {2: "2nd", 3: "3rd"}.get(axis.step, f"{axis.step}th")
        for longest in [] if axis.step == 1 else [f"{name} (every {ordinal} is named)"]:
            half = self.labels.line_width(longest, self.plan.type.axis) / 2
            if 2 * half <= room[1] - room[0]:
                return longest, min(max(middle, room[0] + half), room[1] - half)
        return name, middle

    def _draw_cells(self, corners: Sequence[tuple[float, float]], values: bool) -> None:
        """Draw what is in the panels, whose top left corners are given: colours, lines, and numbers."""
        p, panels, (w, h) = self.plan, self.picture.panels, self.plan.cell
        colours = self._cell_colours()  # (panels, n_q, n_k, 4)
        for panel, corner, cells in zip(panels, corners, colours, strict=True):
            if panel.mask is not None and not panel.mask.all():
                self._put_hatching(*corner, *p.panel)
            self._put_cells(*corner, *p.panel, cells, fine=min(w, h) * self.look.dpi < LEAST_CELL)
        if min(w, h) > 0.07:
            self._draw_grids(corners)
        for panel, (left, top) in zip(panels, corners, strict=True):
            edges = [] if panel.outlined is None else outline(panel.outlined)
            ring = [] if panel.ring is None else outline_of_cell(*panel.ring)
            for cells_apart in (edges, ring):
                lines = [(left + a * w, top + b * h, left + c * w, top + d * h) for a, b, c, d in cells_apart]
                for colour, thick in ((PAPER, 2.4), (INK, 1.2)):
                    self._put_lines(lines, colour, thick)
        # in units of the size: a digit is 0.64 wide; no weight is written shorter than 0.50
        if values and (self.look.values or min(72 * w * 0.82 / (4 * 0.62), 72 * h * 0.5) >= LEAST_VALUE):
            count = math.ceil(AT_ONCE / panels[0].array.size)  # panels
            for first in range(0, len(panels), count):
                chosen = np.s_[first : first + count]
                self._put_numbers(panels[chosen], corners[chosen], colours[chosen])

    def _cell_colours(self) -> Bytes:
        """Return the colours of all cells (panels, n_q, n_k, 4); cells without a number are transparent."""
        panels = self.picture.panels
        colours = np.empty((len(panels), *panels[0].array.shape, 4), np.uint8)
        for number, scale in enumerate(self.picture.scales):
            chosen = [index for index, panel in enumerate(panels) if panel.scale == number]
            if chosen:
                arrays, norm = np.stack([panels[index].array for index in chosen]), scale.norm  # (chosen, n_q, n_k)
                shares = np.asarray(norm(np.clip(arrays.ravel(), norm.vmin, norm.vmax)))
                colours[chosen] = scale.colours(shares, bytes=True).reshape(*arrays.shape, 4)
        for cells, panel in zip(colours, panels, strict=True):
            if panel.mask is not None:
                cells[~panel.mask] = 0  # the hatching shines through
        return colours

    def _draw_grids(self, corners: Sequence[tuple[float, float]]) -> None:
        """Draw white lines between the cells, those of several panels as one path."""
        p, (w, h), lines = self.plan, self.plan.cell, list[tuple[float, float, float, float]]()
        n_q, n_k = self.picture.panels[0].array.shape
        for left, top in corners:
            if len(lines) + n_q + n_k - 2 > MOST_LINES:
                self._put_lines(lines, PAPER, min(1.2, 72 * min(w, h) * 0.05))
                lines = []
            lines += [(left, top + i * h, left + p.panel[0], top + i * h) for i in range(1, n_q)]
            lines += [(left + j * w, top, left + j * w, top + p.panel[1]) for j in range(1, n_k)]
        self._put_lines(lines, PAPER, min(1.2, 72 * min(w, h) * 0.05))

    def _put_numbers(self, panels: Sequence[Panel], corners: Sequence[tuple[float, float]], colours: Bytes) -> None:
        """Write the weights into their cells, except the transparent cells: one path for dark ink, one for light."""
        (w, h), (n_q, n_k) = self.plan.cell, colours.shape[1:3]
        texts, sizes = list[str](), np.zeros(len(panels))
        for number, panel in enumerate(panels):
            text_of = self.picture.scales[panel.scale].cell_number
            numbers = [text_of(value) for value in panel.array.ravel().tolist()]
            texts += numbers
            sizes[number] = min(10.0, 72 * w * 0.82 / (max(map(len, numbers)) * 0.62), 72 * h * 0.5)
        readable = (sizes >= LEAST_VALUE) | bool(self.look.values)  # (panels,)
        luminance = LINEAR[colours[..., :3].reshape(-1, 3)] @ np.array(LUMINANCE)  # (cells,) of all panels
        bright, visible = luminance > DARK_INK_FROM, (colours[..., 3] > 0).reshape(len(panels), -1) & readable[:, None]
        i, j = np.indices((n_q, n_k)).reshape(2, -1)  # (n_q · n_k,) each
        left, top = np.array(corners).T[..., None]  # (panels, 1) each
        middles = np.stack([left + (j + 0.5) * w, top + (i + 0.5) * h], axis=-1).reshape(-1, 2)  # (cells, 2)
        for light, colour in ((True, INK), (False, PAPER)):
            chosen = np.flatnonzero(visible.ravel() & (bright == light))
            if len(chosen):
                shapes, codes = zip(*(number_outline(texts[cell]) for cell in chosen.tolist()), strict=True)
                counts = [len(shape) for shape in shapes]
                vertices = np.concatenate(shapes)  # (points of all, 2)
                vertices *= (sizes[chosen // (n_q * n_k)] / 72).repeat(counts)[:, None]
                vertices += middles[chosen].repeat(counts, axis=0)
                self._add_path(vertices, np.concatenate(codes), fill=colour)

    def _query_labels(self, left: float, top: float) -> None:
        axis, h, lines = self.plan.queries, self.plan.cell[1], []
        for i in self.plan.named_queries:
            name, y = self.plan.query_labels[i], top + (i + 0.5) * h
            self._put_text(left - ASIDE, y, name, axis.size, ha="right", va="center_baseline")
            lines.append((left - 0.035, y, left, y))
        self._put_lines(lines if axis.step > 1 else [], QUIET, 0.6)

    def _key_labels(self, left: float, top: float) -> None:
        axis, w, lines = self.plan.keys, self.plan.cell[0], []
        how: dict[int, TextSetting] = {
            0: {"ha": "center", "va": "baseline"},
            45: {"ha": "left", "va": "baseline", "rotation": 45, "rotation_mode": "anchor"},
            90: {"ha": "left", "va": "center_baseline", "rotation": 90, "rotation_mode": "anchor"},
        }
        for j in self.plan.named_keys:
            name, x = self.plan.key_labels[j], left + (j + 0.5) * w
            self._put_text(
                x, top - ASIDE - 0.2 * axis.size / 72 * (axis.angle == 0), name, axis.size, **how[axis.angle]
            )
            lines.append((x, top - 0.035, x, top))
        self._put_lines(lines if axis.step > 1 else [], QUIET, 0.6)

    def _panel_names(self, panel: Panel, lines: Sequence[str], left: float, top: float) -> None:
        """Write “head 3” over a panel and “layer 2” at the left of a row of panels."""
        p, size, named = self.plan, self.plan.type.axis - 0.5, self.picture.row_names
        if p.names_above and (panel.row == 0 or not named or self.picture.each_named):
            y = top - (p.keys.depth + ASIDE if panel.row == 0 else 0) - ASIDE + p.type.axis * LINE / 2
            for number, line in enumerate(reversed(lines), 1):
                name = self.labels.cut_to_width(line, size, p.panel[0] + 0.1)
                self._put_text(left + p.panel[0] / 2, y - number * p.type.axis * LINE, name, size)
        if named and panel.column == 0:
            x = p.left - 2 * ASIDE - p.queries.depth - p.type.axis * LINE / 2
            name = named[panel.row]
            if self.labels.text_width(name, size) > p.pitch[1]:
                name = name.rpartition(" ")[2]  # the number alone
            self._put_text(x, top + p.panel[1] / 2, name, size, rotation=90)

    def _colour_bar(self, scale: Scale, left: float) -> None:
        top, height, size = self.plan.top, self.plan.bar_height, self.plan.type
        gradient = scale.colours(np.linspace(1, 0, 256)[:, None], bytes=True)  # (256, 1, 4)
        self._put_cells(left, top, BAR_WIDTH, height, gradient)
        right, lines, widest = left + BAR_WIDTH, [], 0.0
        ticks = _colour_ticks(scale.norm, height)
        for share, (_, text) in zip(np.asarray(scale.norm([tick for tick, _ in ticks])), ticks, strict=True):
            y = top + height * (1 - float(share))
            lines.append((right, y, right + 0.035, y))
            self._put_text(right + 0.06, y, text, size.tick, ha="left", va="center_baseline")
            widest = max(widest, self.labels.text_width(text, size.tick))
        self._put_lines(lines, QUIET, 0.6)
        x = right + widest + 0.1 + size.axis * LINE / 2
        unit = self.labels.cut_to_width(scale.unit, size.axis, max(height, 1.0))
        self._put_text(x, top + height / 2, unit, size.axis, rotation=90, color=QUIET)
        if self.picture.is_masked and scale is self.picture.scales[0]:
            below = top + height + self.plan.legend - BAR_WIDTH
            self._put_hatching(left, below, BAR_WIDTH, BAR_WIDTH)
            self._put_text(right + 0.06, below + BAR_WIDTH / 2, self.picture.hidden, size.tick, ha="left")


def _colour_ticks(scale: Normalize, height: float) -> list[tuple[float, str]]:
    """Return the ticks of a colour bar: the value of each, and its label."""
    low, high = float(scale.vmin or 0.0), float(scale.vmax or 0.0)
    few = max(2, min(6, int(height / 0.35)))
    if isinstance(scale, LogNorm):
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        marks = (1, 2, 5) if len(powers) <= 4 else (1,)
        places: Iterable[float] = [mark * 10.0**power for power in powers for mark in marks]
    else:
        if isinstance(scale, CenteredNorm):
            low, high = -float(scale.halfrange), float(scale.halfrange)
        places = ticker.MaxNLocator(few, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    slack = 1e-9 * max(abs(low), abs(high))
    inside = [float(tick) for tick in places if low - slack <= tick <= high + slack]
    every = -(-len(inside) // (few + 2)) if isinstance(scale, LogNorm) else 1
    return [(tick, f"{tick:g}".replace("e-0", "e-")) for tick in inside[::every]]


def outline(cells: Bools) -> list[tuple[int, int, int, int]]:
    """Return the edges between the cells (rows, columns) that are true and all others: x0, y0, x1, y1 in cells."""
    framed = np.pad(cells, 1)
    down = np.argwhere(framed[1:-1, 1:] != framed[1:-1, :-1]).tolist()  # an edge at the left of a cell
    across = np.argwhere(framed[1:, 1:-1] != framed[:-1, 1:-1]).tolist()  # an edge above a cell
    return [(x, y, x, y + 1) for y, x in down] + [(x, y, x + 1, y) for y, x in across]


def outline_of_cell(row: int, column: int) -> list[tuple[int, int, int, int]]:
    """Return the edges of one cell, around it: x0, y0, x1, y1 in cells."""
    corners = (0, 0), (1, 0), (1, 1), (0, 1), (0, 0)
    return [(column + a, row + b, column + c, row + d) for (a, b), (c, d) in pairwise(corners)]
