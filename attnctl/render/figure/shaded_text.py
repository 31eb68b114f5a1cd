"""Draw a text in lines, each part of it shaded by a number, with the number below."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from attnctl.errors import AttnctlError
from attnctl.formats.pictures import DPI
from attnctl.render.figure.drawing import INK, QUIET
from attnctl.render.figure.labels import Labels
from attnctl.render.figure.layout import WIDEST, Drawing, Scale
from attnctl.render.figure.saving import plain_settings
from attnctl.render.forms import takes_dark_ink
from attnctl.text.tokens import split_characters

WIDTH, EDGE, HEAD, FOOT = 7.5, 0.2, 0.75, 0.6  # inches
LINE, SHADE = 0.42, 0.22  # inches from line to line, and of the shade behind a word
WORD, NUMBER = 10.5, 6.5  # points
SPACE = 0.045  # inches between two words, and around a word or a number


class ShadedPart(NamedTuple):
    """A part of a text, with its value and the number to write below; a part without them is not shaded."""

    text: str
    value: float | None = None
    number: str = ""


@dataclass
class _Piece:
    """A word of a part, and its place in a line: the left edge and the width in inches.

    `number` stands below it. `gap` is the space before it, `shaded_gap`: that belongs to the part too.
    """

    text: str
    value: float | None
    number: str
    width: float
    gap: float
    shaded_gap: bool
    left: float = 0.0


def draw_shaded_text(title: str, sentence: str, parts: Sequence[ShadedPart], scale: Scale, cited: str) -> Drawing:
    """Return a drawing of the parts of a text in lines, shaded by their values, with a colour bar below.

    Lines begin at the right if the text does. Raises AttnctlError if the text is too long for a picture.
    """
    labels = Labels([title, sentence, scale.unit, *(part.text for part in parts)])
    lines = _broken_lines(_pieces(labels, parts))
    height = HEAD + LINE * len(lines) + FOOT
    if height > WIDEST:
        raise AttnctlError(
            f"the text has {len(lines):,} lines, too many for a picture: write .html, or shorten the text"
        )
    from_right = _begins_at_right("".join(part.text for part in parts))
    with plain_settings():
        figure = Figure(figsize=(WIDTH, height), dpi=DPI, facecolor="white", label=cited)
        FigureCanvasAgg(figure)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(WIDTH, 0) if from_right else (0, WIDTH), ylim=(height, 0))
        axes.set_axis_off()
        for number, line in enumerate(lines):
            for piece in line:
                _draw_piece(axes, piece, HEAD + LINE * number, scale, labels)
        bar = figure.add_axes((EDGE / WIDTH, 0.3 / height, 2.4 / WIDTH, 0.1 / height))
        mapped = ScalarMappable(scale.norm, scale.colours)
        figure.colorbar(mapped, cax=bar, orientation="horizontal").outline.set_visible(False)
        bar.tick_params(labelsize=7.5, length=2)
        bar.locator_params(nbins=5)
        bar.ticklabel_format(style="plain", useOffset=False)
        labels.write_line(figure, ((EDGE + 2.6) / WIDTH, 0.35 / height), labels.drawable(scale.unit), 8.5, QUIET)
        for text, size, colour, down in ((title, 11.5, INK, 0.22), (sentence, 8.5, QUIET, 0.46)):
            fitting = labels.cut_to_width(labels.drawable(text), size, WIDTH - 2 * EDGE)
            labels.write_line(figure, (EDGE / WIDTH, 1 - down / height), fitting, size, colour)
    return Drawing(figure, labels.missing_characters)


def _draw_piece(axes: Axes, piece: _Piece, top: float, scale: Scale, labels: Labels) -> None:
    """Draw a word, the shade behind it, and the number below it, in inches from the upper corner where lines begin."""
    ink = INK
    if piece.value is not None:
        red, green, blue, _ = map(int, scale.colours(float(scale.norm(piece.value)), bytes=True))
        ink = "black" if takes_dark_ink(red, green, blue) else "white"
        gap = piece.gap if piece.shaded_gap else 0.0
        shade = Rectangle((piece.left - gap, top), piece.width + gap, SHADE, linewidth=0)
        shade.set_facecolor((red / 255, green / 255, blue / 255))
        axes.add_patch(shade)
    middle = piece.left + piece.width / 2
    for text, down, size, colour in (
        (piece.text, top + SHADE / 2, WORD, ink),
        (piece.number, top + SHADE + 0.065, NUMBER, QUIET),
    ):
        written = axes.text(middle, down, text, fontsize=size, color=colour, ha="center", va="center_baseline")
        written.set(parse_math=False, family=labels.family)


def _pieces(labels: Labels, parts: Iterable[ShadedPart]) -> Iterator[_Piece]:
    """Yield the words of the parts with their widths; a word that is wider than a line in several pieces."""
    gap = 0.0
    for part in parts:
        gap = SPACE if part.text[:1].isspace() else gap
        number = part.number
        for index, word in enumerate(part.text.split()):
            for text in _fitting(labels, word):
                room = max(labels.text_width(text, WORD), labels.text_width(number, NUMBER) if number else 0.0)
                yield _Piece(text, part.value, number, room + SPACE, gap, index > 0)
                number, gap = "", 0.0
            gap = SPACE
        gap = SPACE * part.text[-1:].isspace() if part.text else gap


def _fitting(labels: Labels, word: str) -> Iterator[str]:
    """Yield a word as it is drawn, in as many pieces as it needs lines."""
    room, piece = WIDTH - 2 * EDGE - 2 * SPACE, ""
    if labels.text_width(labels.drawable(word), WORD) <= room:
        yield labels.drawable(word).strip()
        return
    for token in split_characters(word):
        if piece and labels.text_width(labels.drawable(piece + token.text), WORD) > room:
            yield labels.drawable(piece).strip()
            piece = ""
        piece += token.text
    yield labels.drawable(piece).strip()


def _broken_lines(pieces: Iterable[_Piece]) -> list[list[_Piece]]:
    """Return the pieces in lines, each at its place."""
    lines: list[list[_Piece]] = [[]]
    right = EDGE
    for piece in pieces:
        piece.left = right + piece.gap
        if lines[-1] and piece.left + piece.width > WIDTH - EDGE:
            lines.append([])
            piece.left, piece.shaded_gap = EDGE, False
        lines[-1].append(piece)
        right = piece.left + piece.width
    return lines


def _begins_at_right(text: str) -> bool:
    """Return whether the first letter of a text is of a script that is written from right to left."""
    directions = (unicodedata.bidirectional(char) for char in text)
    return next((direction for direction in directions if direction in ("L", "R", "AL")), "L") != "L"
