"""The parts of a heatmap put on a matplotlib Figure: cells, values, labels, names, the colour bar.

Everything is placed in inches on a bare Figure, without Axes, in a fraction of the time. Values in the cells are one path
a colour, their digits shaped once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib import ticker
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Colormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.image import BboxImage
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path
from matplotlib.transforms import Bbox, TransformedBbox

from attnctl.readings.heatmap import Reading
from attnctl.render.figure import layout
from attnctl.render.figure.labels import LONGEST, Labels
from attnctl.render.figure.layout import ASIDE, AXIS, EDGE, LINE, Ask, Axis, Plan
from attnctl.render.figure.numerals import outline

UNDER, CELLS, LINES, VALUES = 0.5, 1.0, 1.5, 2.0  # what lies over what
INK, QUIET, PAPER, HATCHED = "#111111", "#555555", "white", ("#f3f3f3", "#cfcfcf")
LEAST_VALUE = 4.2  # points: values that would be smaller are left out


class Sheet:
    """One picture in the making."""

    def __init__(
        self,
        reading: Reading,
        labels: Labels,
        colours: Colormap,
        scale: Normalize,
        title: str,
        said: Sequence[str],
        size: tuple[float, float] | None,
        dpi: float,
    ) -> None:
        self.reading, self.labels, self.colours, self.scale = reading, labels, colours, scale
        longest = LONGEST if len(reading.weights) == 1 else LONGEST - 5
        self.queries = [labels.label(token.text, longest) for token in reading.queries]
        self.keys = [labels.label(token.text, longest) for token in reading.keys]
        self.places, self.plan, self.title, self.said = self._planned(
            labels.drawable(title) if title else "", said, size, dpi
        )
        self.dpi = dpi
        self._begin()

    def _begin(self) -> None:
        p = self.plan
        self.figure = Figure(figsize=(p.width, p.height), dpi=self.dpi, facecolor=PAPER)
        FigureCanvasAgg(self.figure)
        self._font = FontProperties(family=self.labels.family)

    def _planned(
        self, title: str, said: Sequence[str], size: tuple[float, float] | None, dpi: float
    ) -> tuple[dict[tuple[int, int], tuple[int, int]], Plan, list[str], list[str]]:
        """Where each (layer, head) goes, the plan, and the title and subtitle broken into lines."""
        reading = self.reading
        n_layers, n_heads = len(reading.layers), len(reading.heads)
        columns = n_heads if n_layers > 1 or n_heads <= 4 else min(6, math.ceil(n_heads / math.ceil(n_heads / 6)))
        if n_layers > 1:
            shape = n_layers, n_heads
            places = {(l, h): (reading.layers.index(l), reading.heads.index(h)) for l, h in reading.weights}  # noqa: E741
        else:
            shape = -(-n_heads // columns), columns
            places = {at: divmod(number, columns) for number, at in enumerate(reading.weights)}

        def ask(titles: int, subtitles: int, least: float = 0.0) -> Ask:
            return Ask(
                n_q=len(self.queries),
                n_k=len(self.keys),
                shape=shape,
                by_layer=n_layers > 1,
                longest_query=max(self.labels.width(name, 10) for name in self.queries) / 10,
                longest_key=max(self.labels.width(name, 10) for name in self.keys) / 10,
                masked=reading.masked,
                size=size,
                dpi=dpi,
                titles=titles,
                subtitles=subtitles,
                least_width=least,
            )

        room = (size[0] if size else max(layout.plan(ask(1, 1)).width, 4.2)) - 2 * EDGE
        heading = self.labels.lines(title, layout.TITLE, room) if title else []
        below = self.labels.lines(self.labels.drawable("; ".join(said)), layout.SUBTITLE, room) if said else []
        widths = [self.labels.width(line, layout.TITLE) for line in heading]
        widths += [self.labels.width(line, layout.SUBTITLE) for line in below]
        least = max(widths, default=0.0) + 2 * EDGE
        return places, layout.plan(ask(len(heading), len(below), least)), heading, below

    # --- the parts -----------------------------------------------------------------------------------------------

    def draw(self, values: bool | None) -> None:
        """Everything, from the back to the front."""
        self._headings()
        lines: list[tuple[float, float, float, float]] = []
        for layer, head, weights, mask in self.reading.panels():
            row, column = self.places[layer, head]
            left, top = self.plan.corner(row, column)
            self._cells(left, top, weights, mask, values)
            if column == 0:
                lines += self._query_labels(left, top)
            if row == 0:
                lines += self._key_labels(left, top)
            self._names(row, column, layer, head, left, top)
        self._strokes(lines, QUIET, 0.6)
        self._colour_bar()

    def _text(self, x: float, y: float, text: str, size: float, **how: Any) -> None:
        p, how = self.plan, {"color": INK, "va": "center", "ha": "center"} | how
        self.figure.text(
            x / p.width,
            1 - y / p.height,
            text,
            fontsize=size,
            fontproperties=self._sized(size),
            parse_math=False,
            **how,
        )

    def _sized(self, size: float) -> FontProperties:
        font = self._font.copy()
        font.set_size(size)
        return font

    def _path(self, vertices: Any, codes: Any, **how: Any) -> None:
        """A path whose vertices (m, 2) are in inches from the top left."""
        upright = np.asarray(vertices, dtype=float) * (1, -1) + (0, self.plan.height)  # (m, 2)
        self.figure.add_artist(PathPatch(Path(upright, codes), transform=self.figure.dpi_scale_trans, **how))

    def _strokes(self, lines: Sequence[tuple[float, float, float, float]], colour: str, width: float) -> None:
        """Straight lines, each (x0, y0, x1, y1), as one path."""
        if lines:
            codes = np.tile(np.array([Path.MOVETO, Path.LINETO], dtype=np.uint8), len(lines))
            vertices = np.asarray(lines).reshape(-1, 2)  # (2 · lines, 2)
            self._path(
                vertices, codes, facecolor="none", edgecolor=colour, linewidth=width, capstyle="butt", zorder=LINES
            )

    def _image(self, left: float, top: float, width: float, height: float, rgba: Any, fine: bool = False) -> None:
        """Colours (rows, columns, 4), uint8, as a picture: the few cells are coloured, not its many pixels."""
        box = Bbox.from_bounds(left, self.plan.height - top - height, width, height)
        picture = BboxImage(
            TransformedBbox(box, self.figure.dpi_scale_trans),
            origin="upper",
            interpolation="auto" if fine else "nearest",
            zorder=CELLS,
        )
        picture.set_data(rgba)
        self.figure.add_artist(picture)

    def _hatched(self, left: float, top: float, width: float, height: float) -> None:
        self.figure.add_artist(
            Rectangle(
                (left, self.plan.height - top - height),
                width,
                height,
                transform=self.figure.dpi_scale_trans,
                facecolor=HATCHED[0],
                edgecolor=HATCHED[1],
                hatch="/////",
                hatch_linewidth=0.5,
                linewidth=0,
                zorder=UNDER,
            )
        )

    def _headings(self) -> None:
        y = EDGE
        for line in self.title:
            y += layout.TITLE * LINE
            self._text(EDGE, y - 0.3 * layout.TITLE * LINE, line, layout.TITLE, ha="left", va="baseline")
        for line in self.said:
            y += layout.SUBTITLE * LINE
            self._text(
                EDGE, y - 0.3 * layout.SUBTITLE * LINE, line, layout.SUBTITLE, ha="left", va="baseline", color=QUIET
            )
        p = self.plan
        inner = p.shape[1] * p.pitch[0] - (p.pitch[0] - p.panel[0]), p.shape[0] * p.pitch[1] - (p.pitch[1] - p.panel[1])
        self._text(p.left + inner[0] / 2, y + ASIDE + AXIS * LINE / 2, _axis_name("key", p.keys), AXIS, color=QUIET)
        down = _axis_name("query", p.queries)
        self._text(EDGE + AXIS * LINE / 2, p.top + inner[1] / 2, down, AXIS, color=QUIET, rotation=90)

    def _cells(self, left: float, top: float, weights: Any, mask: Any, values: bool | None) -> None:
        p = self.plan
        (w, h), (n_q, n_k) = p.cell, weights.shape
        shares = np.asarray(self.scale(np.clip(weights, self.scale.vmin, self.scale.vmax)))  # (n_q, n_k)
        colours = self.colours(shares, bytes=True)  # (n_q, n_k, 4)
        if mask is not None and not mask.all():
            self._hatched(left, top, *p.panel)
            colours[~mask] = 0  # transparent: the hatching shines through
        self._image(left, top, *p.panel, colours, fine=min(w, h) * self.dpi < 3)
        if min(w, h) > 0.07:
            across = [(left, top + i * h, left + p.panel[0], top + i * h) for i in range(1, n_q)]
            down = [(left + j * w, top, left + j * w, top + p.panel[1]) for j in range(1, n_k)]
            self._strokes([*across, *down], PAPER, min(1.2, 72 * min(w, h) * 0.05))
        if values is False:
            return
        # in units of the size: a digit is 0.64 wide; no weight is written shorter than 0.50
        if values or min(72 * w * 0.82 / (4 * 0.62), 72 * h * 0.5) >= LEAST_VALUE:
            texts = [_written(value, self.scale) for value in weights.ravel().tolist()]
            size = min(10.0, 72 * w * 0.82 / (max(map(len, texts)) * 0.62), 72 * h * 0.5)
            if values or size >= LEAST_VALUE:
                self._values(texts, left, top, colours, size)

    def _values(self, texts: Sequence[str], left: float, top: float, colours: Any, size: float) -> None:
        """The weights in their cells, but where these are transparent: one path for dark ink, one for light."""
        (w, h), n_k = self.plan.cell, colours.shape[1]
        bright, shown = bright_and_shown(colours)
        for light, colour in ((True, INK), (False, PAPER)):
            vertices, codes = [], []
            for at in np.flatnonzero(shown & (bright == light)).tolist():
                i, j = divmod(at, n_k)
                shape, shape_codes = outline(texts[at])
                vertices.append(shape * (size / 72) + (left + (j + 0.5) * w, top + (i + 0.5) * h))
                codes.append(shape_codes)
            if vertices:
                self._path(
                    np.concatenate(vertices),
                    np.concatenate(codes),
                    facecolor=colour,
                    edgecolor="none",
                    linewidth=0,
                    zorder=VALUES,
                )

    def _query_labels(self, left: float, top: float) -> Iterator[tuple[float, float, float, float]]:
        axis, h = self.plan.queries, self.plan.cell[1]
        for i in range(0, len(self.queries), axis.step):
            y = top + (i + 0.5) * h
            self._text(left - ASIDE, y, self.queries[i], axis.size, ha="right", va="center_baseline")
            if axis.step > 1:
                yield left - 0.035, y, left, y

    def _key_labels(self, left: float, top: float) -> Iterator[tuple[float, float, float, float]]:
        axis, w = self.plan.keys, self.plan.cell[0]
        how: dict[int, dict[str, Any]] = {
            0: {"ha": "center", "va": "baseline"},
            45: {"ha": "left", "va": "baseline", "rotation": 45, "rotation_mode": "anchor"},
            90: {"ha": "left", "va": "center_baseline", "rotation": 90, "rotation_mode": "anchor"},
        }
        for j in range(0, len(self.keys), axis.step):
            x = left + (j + 0.5) * w
            y = top - ASIDE - (0.2 * axis.size / 72 if axis.angle == 0 else 0)
            self._text(x, y, self.keys[j], axis.size, **how[axis.angle])
            if axis.step > 1:
                yield x, top - 0.035, x, top

    def _names(self, row: int, column: int, layer: int, head: int, left: float, top: float) -> None:
        """“head 3” over a panel, “layer 2” at the left of a row of them."""
        p, size = self.plan, AXIS - 0.5
        by_layer = len(self.reading.layers) > 1
        if p.heads_above and (row == 0 or not by_layer):
            y = top - (p.keys.depth + ASIDE if row == 0 else 0) - ASIDE - AXIS * LINE / 2
            name = self.labels.fitted(self.reading.panel_name(head), size, p.panel[0] + 0.1)
            self._text(left + p.panel[0] / 2, y, name, size)
        if by_layer and column == 0:
            x = p.label_left - ASIDE - AXIS * LINE / 2
            name = f"layer {layer}" if self.labels.width(f"layer {layer}", size) <= p.pitch[1] else str(layer)
            self._text(x, top + p.panel[1] / 2, name, size, rotation=90)

    def _colour_bar(self) -> None:
        p = self.plan
        left, top, height = p.bar
        gradient = self.colours(np.linspace(1, 0, 256)[:, None], bytes=True)  # (256, 1, 4)
        self._image(left, top, layout.BAR_WIDTH, height, gradient)
        right, lines = left + layout.BAR_WIDTH, []
        ticks = _ticks(self.scale, height)
        for tick, text in ticks:
            y = top + height * (1 - float(self.scale(tick)))
            lines.append((right, y, right + 0.035, y))
            self._text(right + 0.06, y, text, 7.5, ha="left", va="center_baseline")
        self._strokes(lines, QUIET, 0.6)
        name = self.reading.unit + (", rescaled" if "rows rescaled to sum to 1" in self.reading.said else "")
        widest = max((self.labels.width(text, 7.5) for _, text in ticks), default=0.0)
        self._text(right + widest + 0.1 + AXIS * LINE / 2, top + height / 2, name, AXIS, rotation=90, color=QUIET)
        if self.reading.masked:
            self._hatched(left, top + height + 0.2, layout.BAR_WIDTH, layout.BAR_WIDTH)
            self._text(right + 0.06, top + height + 0.2 + layout.BAR_WIDTH / 2, "masked", 7.5, ha="left")


def _axis_name(what: str, axis: Axis) -> str:
    ordinal = {2: "2nd", 3: "3rd"}.get(axis.step, f"{axis.step}th")
    return what if axis.step == 1 else f"{what} (every {ordinal} is named)"


def _written(value: float, scale: Normalize) -> str:
    """A weight as it stands in a cell: two decimals, or one digit and its power of ten on a logarithmic scale."""
    if isinstance(scale, LogNorm) and 0 < value < 0.1:
        return f"{value:.2f}" if value >= 0.01 else f"{value:.0e}".replace("e-0", "e-")
    text = f"{value:.2f}"
    return text[1:] if text == "-0.00" else text


def bright_and_shown(colours: Any) -> tuple[Any, Any]:
    """Which of the cells (n_q, n_k, 4) take dark digits, and which take any → (n_q · n_k,) each."""
    bright = _luminance(colours[..., :3].reshape(-1, 3) / 255.0) > 0.26  # (n_q · n_k,)
    return bright, colours[..., 3].ravel() > 0  # (n_q · n_k,)


def _luminance(rgb: Any) -> Any:
    """Relative luminance (WCAG 2) of sRGB colours (..., 3), 0 to 1 → (...)."""
    linear = np.where(rgb <= 0.03928, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)  # (..., 3)
    return linear @ np.array([0.2126, 0.7152, 0.0722])


def _ticks(scale: Normalize, height: float) -> list[tuple[float, str]]:
    """Places on the colour bar and what stands beside them."""
    low, high = float(scale.vmin or 0.0), float(scale.vmax or 0.0)
    few = max(2, min(6, int(height / 0.35)))
    if isinstance(scale, LogNorm):
        places = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        marks = (1, 2, 5) if len(places) <= 4 else (1,)
        at: Any = [mark * 10.0**place for place in places for mark in marks]
    else:
        at = ticker.MaxNLocator(few, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    slack = 1e-9 * max(abs(low), abs(high))
    inside = [float(tick) for tick in at if low - slack <= tick <= high + slack]
    every = -(-len(inside) // (few + 2)) if isinstance(scale, LogNorm) else 1
    return [(tick, f"{tick:g}".replace("e-0", "e-")) for tick in inside[::every]]
