"""Pictures of grids drawn by matplotlib: cells, values, colour bars, and labels in fonts that have their characters.

Everything is placed in inches on a bare Figure, without Axes, in a fraction of the time. Values in the cells are one path
a colour, their digits shaped once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt
from matplotlib import font_manager, ticker
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import CenteredNorm, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.image import BboxImage
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path
from matplotlib.textpath import TextPath
from matplotlib.transforms import Bbox, TransformedBbox

from attnctl.arrays import Bools, Bytes
from attnctl.render.figure import layout
from attnctl.render.figure.layout import (
    ASIDE,
    EDGE,
    LINE,
    UNKNOWN,
    Axis,
    Grids,
    LayoutRequest,
    Panel,
    Scale,
    TextSetting,
)
from attnctl.render.figure.look import Look
from attnctl.render.forms import DARK_INK_FROM, LINEAR_OF_BYTE, LUMINANCE
from attnctl.text import visible_text
from attnctl.tokens import split_characters

BASE = "DejaVu Sans"  # ships with matplotlib: the same on every machine
_LAST_RESORT = "Last Resort"  # draws a box for everything, which is what must not happen
_INVISIBLE = frozenset("\u200c\u200d\ufe0e\ufe0f")
LONGEST = 18  # characters of a label


class Labels:
    """Text made drawable. `family` is what to draw it in, `notes` what could not be drawn, in sentences."""

    def __init__(self, texts: Iterable[str]) -> None:
        characters_met = {char for text in texts if not text.isascii() for char in _escaped_text(text)}
        unmet = sorted(char for char in characters_met if not _font_has(BASE, char) and char not in _INVISIBLE)
        eastern = _eastern_region(characters_met)
        found = {char: _family_with(char, eastern) for char in unmet}
        self.missing = [char for char in unmet if found[char] is None]
        self.family = [BASE, *sorted({family for family in found.values() if family})]
        self._ignored = {c for c in characters_met & _INVISIBLE if not any(_font_has(f, c) for f in self.family)}

    @property
    def missing_characters(self) -> tuple[str, ...]:
        """What a user should know: which characters no installed font has."""
        if not self.missing:
            return ()
        codes = ", ".join(f"{char} U+{ord(char):04X}" for char in self.missing[:6])
        more = f" and {len(self.missing) - 6} more" if len(self.missing) > 6 else ""
        return (
            f"no installed font has {codes}{more}: drawn as code points (install a font that has them, such as Noto's)",
        )

    def drawable(self, text: str) -> str:
        """`text` with control characters as escapes and characters that no font has as U+XXXX."""
        if text.isascii():
            return _escaped_text(text)
        missing = set(self.missing)
        pieces: list[str] = []
        for char in _escaped_text(text):
            if char in missing:
                pieces.append(f" U+{ord(char):04X} ")
            elif char not in self._ignored and not (missing and char in _INVISIBLE):
                pieces.append(char)
        drawn = "".join(pieces)
        return " ".join(drawn.split()) if missing else drawn

    def axis_label(self, text: str, longest: int = LONGEST) -> str:
        """`drawable`, abridged to what may stand beside an axis: in the middle, or after whole code points.

        A text that was cut at its end is cut there again.
        """
        drawn = self.drawable(text)
        if len(drawn) <= longest:
            return drawn
        if self.missing and "U+" in drawn:
            mark = "†" * drawn.endswith("†")
            return drawn[:longest].rpartition(" ")[0] + "…" + mark if " " in drawn[:longest] else drawn
        pieces = [drawn[token.start : token.end] for token in split_characters(drawn)]  # never half a character
        if len(pieces) <= longest:
            return drawn
        if drawn.endswith("…"):
            return "".join(pieces[: longest - 1]).rstrip() + "…"
        tail = longest // 3
        return "".join(pieces[: longest - 1 - tail]) + "…" + "".join(pieces[-tail:])

    def text_width(self, text: str, size: float) -> float:
        """The width in inches of `text` at `size` points."""
        return _text_width(tuple(self.family), text, size)

    def cut_to_width(self, text: str, size: float, width: float) -> str:
        """`text` cut at its end, with an ellipsis, to `width` inches at `size` points."""
        while len(text) > 2 and self.text_width(text, size) > width:
            text = text[: max(1, int(len(text) * 0.95) - 1)].rstrip() + "…"
        return text

    def broken_lines(self, text: str, size: float, width: float) -> list[str]:
        """`text` broken between words into lines of at most `width` inches, too long a word cut."""
        lines = [""]
        for word in text.split(" "):
            longer = f"{lines[-1]} {word}".lstrip()
            if lines[-1] and self.text_width(longer, size) > width:
                lines.append(word)
            else:
                lines[-1] = longer
        return [self.cut_to_width(line, size, width) for line in lines]


def _escaped_text(text: str) -> str:
    """As `visible_text`, but control characters as escapes: few fonts have the symbols for them."""
    return "".join(
        repr(chr(ord(char) - 0x2400))[1:-1] if "\u2400" <= char < "\u2420" else char for char in visible_text(text)
    ).replace("\u2421", "\\x7f")


@lru_cache(maxsize=8192)
def _text_width(families: tuple[str, ...], text: str, size: float) -> float:
    font: Any = font_manager.get_font([_font_path(family) for family in families])
    font.set_size(size, 72.0)
    font.set_text(text)
    return float(font.get_width_height()[0]) / 64.0 / 72.0


@lru_cache(maxsize=256)
def _font_path(family: str) -> str:
    return font_manager.findfont(font_manager.FontProperties(family=family))


@lru_cache(maxsize=8192)
def _font_has(family: str, char: str) -> bool:
    font: Any = font_manager.get_font(_font_path(family))
    return bool(font.get_char_index(ord(char)))


@lru_cache(maxsize=8)
def _font_families(eastern: str) -> tuple[str, ...]:
    """Every upright family, the likeliest to look well beside the base first."""

    def family_rank(name: str) -> tuple[bool, bool, bool, bool, str]:
        han = " CJK " in name and not name.endswith(eastern)
        return ("Sans" not in name, "Mono" in name, han, not name.startswith("Noto"), name)

    upright = {
        font.name
        for font in font_manager.fontManager.ttflist
        if font.style == "normal" and font.stretch == "normal" and font.weight in (400, "normal", "regular")
    }
    return tuple(
        sorted((name for name in upright if not name.startswith((_LAST_RESORT, "cm", "STIX"))), key=family_rank)
    )


@lru_cache(maxsize=8192)
def _family_with(char: str, eastern: str) -> str | None:
    for family in _font_families(eastern):
        try:
            if _font_has(family, char):
                return family
        except (OSError, RuntimeError, ValueError):  # a font file that went away, or that FreeType cannot read
            continue
    return None


def _eastern_region(characters_met: set[str]) -> str:
    """Han characters look different in Japan, Korea and China: kana or hangul beside them tell."""
    if any("\u3040" <= char <= "\u30ff" for char in characters_met):
        return "JP"
    if any("\uac00" <= char <= "\ud7a3" for char in characters_met):
        return "KR"
    return "SC"


Doubles = npt.NDArray[np.float64]
HEIGHT = 0.73  # of a digit at one point of size


@lru_cache(maxsize=4096)
def number_outline(text: str) -> tuple[Doubles, Bytes]:
    """The outline of a number: vertices (m, 2) at one point of size, y down, centred on the origin, and path codes (m,)."""
    vertices, codes, x = [], [], 0.0
    for char in text:
        shape, shape_codes, advance = _digit_outline(char)
        vertices.append(shape + (x, 0.0))
        codes.append(shape_codes)
        x += advance
    return np.concatenate(vertices) + (-x / 2, HEIGHT / 2), np.concatenate(codes)


@lru_cache(maxsize=64)
def _digit_outline(char: str) -> tuple[Doubles, Bytes, float]:
    """One character's vertices (m, 2) at one point of size, its codes, and how far it moves what follows."""
    shape = _at_100(char)
    moves = (_at_100(char + "0").get_extents().x1 - _at_100("0").get_extents().x1) / 100
    return shape.vertices * (0.01, -0.01), shape.codes, moves


def _at_100(text: str) -> TextPath:
    return TextPath((0, 0), text, size=100, prop=FontProperties(family=BASE))


UNDER, CELLS, LINES, VALUES = 0.5, 1.0, 1.5, 2.0  # what lies over what
INK, QUIET, PAPER, HATCHED = "#111111", "#555555", "white", ("#f3f3f3", "#cfcfcf")
LEAST_VALUE = 5.0  # points: values that would be smaller are left out
MOST_VALUES = 600  # cells of all panels: more numbers cannot be read, only seen
LINEAR = np.array(LINEAR_OF_BYTE)  # (256,)


class Sheet:
    """One picture in the making: `grids` as `look` has them."""

    def __init__(self, grids: Grids, look: Look) -> None:
        self.grids, self.look, self.dpi = grids, look, look.dpi
        self.said = (*grids.said, UNKNOWN) if any("†" in name for name in (*grids.rows, *grids.columns)) else grids.said
        names = (panel.name for panel in grids.panels)
        self.labels = Labels([grids.title, *self.said, *grids.rows, *grids.columns, *names])
        longest = LONGEST if len(grids.panels) == 1 else LONGEST - 5
        self.queries = [self.labels.axis_label(name, longest) for name in grids.rows]
        self.keys = [self.labels.axis_label(name, longest) for name in grids.columns]
        self._plan_all()
        self._begin_canvas()

    def _begin_canvas(self) -> None:
        p = self.plan
        self.figure = Figure(figsize=(p.width, p.height), dpi=self.dpi, facecolor=PAPER, label=self.grids.cited)
        FigureCanvasAgg(self.figure)
        self._font = FontProperties(family=self.labels.family)

    def _plan_all(self) -> None:
        """The title and what is said broken into lines, and the place of everything."""
        size, labels = self.look.size, self.labels
        letters = layout.type_sizes(self.look.font_size, None if size is None else size[0])
        ask = LayoutRequest(
            n_q=len(self.queries),
            n_k=len(self.keys),
            shape=self.grids.panel_counts,
            rows_named=bool(self.grids.row_names),
            longest_query=max(labels.text_width(name, 10) for name in self.queries) / 10,
            longest_key=max(labels.text_width(name, 10) for name in self.keys) / 10,
            hidden=labels.text_width(self.grids.hidden, 10) / 10 if self.grids.is_masked else 0.0,
            bars=len(self.grids.scales) if self.look.colour_bar else 0,
            names=1 + max(panel.name.count("\n") for panel in self.grids.panels),
            type=letters,
            size=size,
            dpi=self.dpi,
        )
        title = labels.drawable(self.grids.title) if self.grids.title else ""
        room = (size[0] if size else max(layout.plan_layout(replace(ask, titles=1, subtitles=1)).width, 4.2)) - 2 * EDGE
        self.title = labels.broken_lines(title, letters.title, room) if title else []
        said = "; ".join(self.said)
        self.subtitle = labels.broken_lines(labels.drawable(said), letters.subtitle, room) if said else []
        widths = [labels.text_width(line, letters.title) for line in self.title]
        widths += [labels.text_width(line, letters.subtitle) for line in self.subtitle]
        least = max(widths, default=0.0) + 2 * EDGE
        self.plan = layout.plan_layout(
            replace(ask, titles=len(self.title), subtitles=len(self.subtitle), least_width=least)
        )

    # --- the parts -----------------------------------------------------------------------------------------------

    def draw(self) -> None:
        """Everything, from the back to the front."""
        self._draw_headings()
        lines: list[tuple[float, float, float, float]] = []
        values = self.look.values
        if values is None:  # the numbers stand in the cells where they are no clutter
            values = sum(panel.array.size for panel in self.grids.panels) <= MOST_VALUES
        for panel in self.grids.panels:
            left, top = self.plan.panel_corner(panel.row, panel.column)
            self._draw_cells(left, top, panel, values)
            if panel.column == 0:
                lines += self._query_labels(left, top)
            if panel.row == 0:
                lines += self._key_labels(left, top)
            self._panel_names(panel, left, top)
        self._put_lines(lines, QUIET, 0.6)
        if self.look.colour_bar:
            for scale, bar in zip(self.grids.scales, self.plan.bars, strict=True):
                self._colour_bar(scale, bar)

    def _put_text(self, x: float, y: float, text: str, size: float, **how: Unpack[TextSetting]) -> None:
        p, font = self.plan, self._font.copy()
        font.set_size(size)
        setting: dict[str, Any] = {"color": INK, "va": "center", "ha": "center", **how}
        self.figure.text(
            x / p.width,
            1 - y / p.height,
            text,
            fontsize=size,
            fontproperties=font,
            parse_math=False,
            **setting,
        )

    def _add_path(self, vertices: npt.ArrayLike, codes: Bytes, **how: object) -> None:
        """A path whose vertices (m, 2) are in inches from the top left."""
        upright = np.asarray(vertices, dtype=float) * (1, -1) + (0, self.plan.height)  # (m, 2)
        self.figure.add_artist(PathPatch(Path(upright, codes), transform=self.figure.dpi_scale_trans, **how))

    def _put_lines(self, lines: Sequence[tuple[float, float, float, float]], colour: str, width: float) -> None:
        """Straight lines, each (x0, y0, x1, y1), as one path."""
        if lines:
            codes = np.tile(np.array([Path.MOVETO, Path.LINETO], dtype=np.uint8), len(lines))
            vertices = np.asarray(lines).reshape(-1, 2)  # (2 · lines, 2)
            self._add_path(
                vertices, codes, facecolor="none", edgecolor=colour, linewidth=width, capstyle="butt", zorder=LINES
            )

    def _put_cells(self, left: float, top: float, width: float, height: float, rgba: Bytes, fine: bool = False) -> None:
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

    def _put_hatching(self, left: float, top: float, width: float, height: float) -> None:
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

    def _draw_headings(self) -> None:
        y = EDGE
        p, size = self.plan, self.plan.type
        for lines, points, colour in ((self.title, size.title, INK), (self.subtitle, size.subtitle, QUIET)):
            for line in lines:
                y += points * LINE
                self._put_text(EDGE, y - 0.3 * points * LINE, line, points, ha="left", va="baseline", color=colour)
        down, across = self.grids.axes
        inner = p.shape[1] * p.pitch[0] - (p.pitch[0] - p.panel[0]), p.shape[0] * p.pitch[1] - (p.pitch[1] - p.panel[1])
        middle = p.left + inner[0] / 2, p.top + inner[1] / 2
        self._put_text(middle[0], y + ASIDE + size.axis * LINE / 2, _axis_name(across, p.keys), size.axis, color=QUIET)
        left = EDGE + size.axis * LINE / 2
        self._put_text(left, middle[1], _axis_name(down, p.queries), size.axis, color=QUIET, rotation=90)

    def _draw_cells(self, left: float, top: float, panel: Panel, values: bool) -> None:
        p, scale = self.plan, self.grids.scales[panel.scale]
        (w, h), (n_q, n_k) = p.cell, panel.array.shape
        shares = np.asarray(scale.norm(np.clip(panel.array, scale.norm.vmin, scale.norm.vmax)))  # (n_q, n_k)
        colours = scale.colours(shares, bytes=True)  # (n_q, n_k, 4)
        if panel.mask is not None and not panel.mask.all():
            self._put_hatching(left, top, *p.panel)
            colours[~panel.mask] = 0  # transparent: the hatching shines through
        self._put_cells(left, top, *p.panel, colours, fine=min(w, h) * self.dpi < 3)
        if min(w, h) > 0.07:
            across = [(left, top + i * h, left + p.panel[0], top + i * h) for i in range(1, n_q)]
            down = [(left + j * w, top, left + j * w, top + p.panel[1]) for j in range(1, n_k)]
            self._put_lines([*across, *down], PAPER, min(1.2, 72 * min(w, h) * 0.05))
        if panel.ring is not None:
            x0, y0 = left + panel.ring[1] * w, top + panel.ring[0] * h
            box = [(x0, y0), (x0 + w, y0), (x0 + w, y0 + h), (x0, y0 + h), (x0, y0)]
            for colour, thick in ((PAPER, 2.4), (INK, 1.2)):
                self._put_lines([(*a, *b) for a, b in pairwise(box)], colour, thick)
        # in units of the size: a digit is 0.64 wide; no weight is written shorter than 0.50
        if values and (self.look.values or min(72 * w * 0.82 / (4 * 0.62), 72 * h * 0.5) >= LEAST_VALUE):
            texts = [scale.cell_number(value) for value in panel.array.ravel().tolist()]
            size = min(10.0, 72 * w * 0.82 / (max(map(len, texts)) * 0.62), 72 * h * 0.5)
            if self.look.values or size >= LEAST_VALUE:
                self._put_numbers(texts, left, top, colours, size)

    def _put_numbers(self, texts: Sequence[str], left: float, top: float, colours: Bytes, size: float) -> None:
        """The weights in their cells, but where these are transparent: one path for dark ink, one for light."""
        (w, h), n_k = self.plan.cell, colours.shape[1]
        bright, shown = bright_and_shown(colours)
        for light, colour in ((True, INK), (False, PAPER)):
            vertices, codes = [], []
            for at in np.flatnonzero(shown & (bright == light)).tolist():
                i, j = divmod(at, n_k)
                shape, shape_codes = number_outline(texts[at])
                vertices.append(shape * (size / 72) + (left + (j + 0.5) * w, top + (i + 0.5) * h))
                codes.append(shape_codes)
            if vertices:
                self._add_path(
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
            self._put_text(left - ASIDE, y, self.queries[i], axis.size, ha="right", va="center_baseline")
            if axis.step > 1:
                yield left - 0.035, y, left, y

    def _key_labels(self, left: float, top: float) -> Iterator[tuple[float, float, float, float]]:
        axis, w = self.plan.keys, self.plan.cell[0]
        how: dict[int, TextSetting] = {
            0: {"ha": "center", "va": "baseline"},
            45: {"ha": "left", "va": "baseline", "rotation": 45, "rotation_mode": "anchor"},
            90: {"ha": "left", "va": "center_baseline", "rotation": 90, "rotation_mode": "anchor"},
        }
        for j in range(0, len(self.keys), axis.step):
            x = left + (j + 0.5) * w
            y = top - ASIDE - (0.2 * axis.size / 72 if axis.angle == 0 else 0)
            self._put_text(x, y, self.keys[j], axis.size, **how[axis.angle])
            if axis.step > 1:
                yield x, top - 0.035, x, top

    def _panel_names(self, panel: Panel, left: float, top: float) -> None:
        """“head 3” over a panel, “layer 2” at the left of a row of them."""
        p, size, named = self.plan, self.plan.type.axis - 0.5, self.grids.row_names
        if p.names_above and (panel.row == 0 or not named):
            y = top - (p.keys.depth + ASIDE if panel.row == 0 else 0) - ASIDE + p.type.axis * LINE / 2
            for at, line in enumerate(reversed(panel.name.split("\n")), 1):
                name = self.labels.cut_to_width(self.labels.drawable(line), size, p.panel[0] + 0.1)
                self._put_text(left + p.panel[0] / 2, y - at * p.type.axis * LINE, name, size)
        if named and panel.column == 0:
            x = p.label_left - ASIDE - p.type.axis * LINE / 2
            name = named[panel.row]
            if self.labels.text_width(name, size) > p.pitch[1]:
                name = name.rpartition(" ")[2]  # the number alone
            self._put_text(x, top + p.panel[1] / 2, name, size, rotation=90)

    def _colour_bar(self, scale: Scale, bar: tuple[float, float, float]) -> None:
        (left, top, height), size = bar, self.plan.type
        gradient = scale.colours(np.linspace(1, 0, 256)[:, None], bytes=True)  # (256, 1, 4)
        self._put_cells(left, top, layout.BAR_WIDTH, height, gradient)
        right, lines = left + layout.BAR_WIDTH, []
        ticks = _colour_ticks(scale.norm, height)
        for tick, text in ticks:
            y = top + height * (1 - float(scale.norm(tick)))
            lines.append((right, y, right + 0.035, y))
            self._put_text(right + 0.06, y, text, size.tick, ha="left", va="center_baseline")
        self._put_lines(lines, QUIET, 0.6)
        widest = max((self.labels.text_width(text, size.tick) for _, text in ticks), default=0.0)
        x = right + widest + 0.1 + size.axis * LINE / 2
        unit = self.labels.cut_to_width(scale.unit, size.axis, max(height, 1.0))
        self._put_text(x, top + height / 2, unit, size.axis, rotation=90, color=QUIET)
        if self.grids.is_masked and scale is self.grids.scales[0]:
            self._put_hatching(left, top + height + 0.2, layout.BAR_WIDTH, layout.BAR_WIDTH)
            y = top + height + 0.2 + layout.BAR_WIDTH / 2
            self._put_text(right + 0.06, y, self.grids.hidden, size.tick, ha="left")


def _axis_name(what: str, axis: Axis) -> str:
    ordinal = {2: "2nd", 3: "3rd"}.get(axis.step, f"{axis.step}th")
    return what if axis.step == 1 else f"{what} (every {ordinal} is named)"


def bright_and_shown(colours: Bytes) -> tuple[Bools, Bools]:
    """Which of the cells (n_q, n_k, 4) take dark digits, and which take any → (n_q · n_k,) each."""
    luminance = LINEAR[colours[..., :3].reshape(-1, 3)] @ np.array(LUMINANCE)  # (n_q · n_k,)
    return luminance > DARK_INK_FROM, colours[..., 3].ravel() > 0


def _colour_ticks(scale: Normalize, height: float) -> list[tuple[float, str]]:
    """Places on the colour bar and what stands beside them."""
    low, high = float(scale.vmin or 0.0), float(scale.vmax or 0.0)
    few = max(2, min(6, int(height / 0.35)))
    if isinstance(scale, LogNorm):
        places = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        marks = (1, 2, 5) if len(places) <= 4 else (1,)
        at: Iterable[float] = [mark * 10.0**place for place in places for mark in marks]
    else:
        if isinstance(scale, CenteredNorm):
            low, high = -float(scale.halfrange), float(scale.halfrange)
        at = ticker.MaxNLocator(few, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    slack = 1e-9 * max(abs(low), abs(high))
    inside = [float(tick) for tick in at if low - slack <= tick <= high + slack]
    every = -(-len(inside) // (few + 2)) if isinstance(scale, LogNorm) else 1
    return [(tick, f"{tick:g}".replace("e-0", "e-")) for tick in inside[::every]]
