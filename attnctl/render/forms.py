"""The forms of a result: lines of text, tables of typed columns, grids of numbers.

They know neither terminal nor page: each of these writes every form in its own way, and the CSV of a result is its table.
In a shaded text the tones of a line's pieces are shades; bars, and sums worked out, are columns of a table.

The file also holds the colours of attention, and of ink on them, as plain numbers: no picture library is needed to use them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from attnctl.runtime.arrays import Bools, Floats
from attnctl.text import LABEL_CHARACTERS, csv_table, isolated, number_text, percent, shortened, visible_text
from attnctl.text.tokens import Token

# Lightness falls (or rises) evenly along the map in OKLab, and one family of hues from green to blue carries it, so that it
# reads alike for every kind of colour sight and in grey. Zero is close to the page's own colour.
HEAT_ON_LIGHT = (
    "#eef7f4", "#b1eae0", "#7ed6d3", "#4dc0c9", "#1da8bd", "#008fae", "#00769c", "#005d85", "#0f466c", "#133150", "#111d33",
)  # fmt: skip
HEAT_ON_DARK = (
    "#1b202b", "#1f324c", "#1b476b", "#075d86", "#00759b", "#008eac", "#19a6b8", "#4dbcc2", "#7bd1cc", "#a7e4d8", "#d2f7ea",
)  # fmt: skip
# matplotlib's maps of the same names (viridis, cividis: public domain), every sixteenth colour
VIRIDIS = (
    "#440154", "#48186a", "#472d7b", "#424086", "#3b528b", "#33638d", "#2c728e", "#26828e", "#21918c",
    "#1fa088", "#28ae80", "#3fbc73", "#5ec962", "#84d44b", "#addc30", "#d8e219", "#fde725",
)  # fmt: skip
CIVIDIS = (
    "#00224e", "#002e6a", "#1a386f", "#32436d", "#434e6c", "#535a6d", "#61656f", "#6f7073", "#7d7c78",
    "#8c8878", "#9b9476", "#aba072", "#bcae6c", "#cdbb63", "#dec958", "#f0d846", "#fee838",
)  # fmt: skip

# a map of matplotlib: orange for more, violet for less; every kind of colour vision distinguishes them
CHANGE = "PuOr_r"

# --- ink on a cell: dark or white; terminal, pictures and page read these three constants ------------------------

LUMINANCE = (0.2126, 0.7152, 0.0722)  # relative luminance (WCAG 2) of linear red, green and blue
LINEAR_OF_BYTE = tuple(
    (byte / 255) / 12.92 if byte / 255 <= 0.04045 else ((byte / 255 + 0.055) / 1.055) ** 2.4 for byte in range(256)
)
# dark ink from this luminance on: both inks have the same contrast at 0.19, but white is easier to read on middle tones;
# at 0.26 its contrast is still 3.4, more than the 3 that WCAG asks for pictures
DARK_INK_FROM = 0.26


def takes_dark_ink(red: int, green: int, blue: int) -> bool:
    """Return whether dark ink, not white, is easier to read on a colour; its parts are 0 to 255."""
    parts = zip(LUMINANCE, (red, green, blue), strict=True)
    return sum(weight * LINEAR_OF_BYTE[byte] for weight, byte in parts) > DARK_INK_FROM


# a text; or a text and its tone (bold, dim, accent, or several of them; "heat 0.7", "change -0.2": a shade); or both and a
# rank: a line leaves out the pieces of the lowest rank first if there is too little room
Piece = str | tuple[str, str] | tuple[str, str, int | None]
Doubles = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.float32 | np.float64 | np.bool_]
ABSENT = "·"  # in place of a missing number
MOST_SHADED = 60  # tokens of a shaded text


def piece_parts(piece: Piece) -> tuple[str, str, int | None]:
    """Return its text, tone and rank."""
    text, tone, *rank = (piece, "") if isinstance(piece, str) else piece
    return text, tone, rank[0] if rank else None


@dataclass(frozen=True)
class Line:
    """A line of text; text that is too long continues on the next line.

    Each line begins with `indent` cells, and all but the first with `hanging` more; the first has the `mark` there.
    Pieces that have a rank are left out, the lowest first, if the other pieces then fit in one line.
    """

    content: Piece | list[Piece]
    tone: str = ""
    indent: int = 0
    hanging: int = 0
    mark: Piece = ""
    between: str | None = None  # the text between pieces, which are then not broken if they fit; None: no text
    cut: bool = False  # one line, in which the longest pieces are shortened; a line in a table always is one
    lines: int = 0  # the largest number of lines, the last one cut; 0: no limit
    right: Piece = ""  # at the right edge of the first line
    omission: tuple[str, str] | None = None  # the text for left-out pieces, beside others or alone: {} is their number
    shaded: bool = False  # shown only with colours, as its shades are its content
    uncoloured: tuple[Piece, ...] = ()  # its content without colours

    @classmethod
    def of_texts(cls, texts: Sequence[str]) -> Line:
        """Return a line of texts beside each other; if there is too little room, the last texts are left out."""
        return cls([(text, "", -rank or None) for rank, text in enumerate(texts)], between="   ")

    @cached_property
    def pieces(self) -> list[tuple[str, str, int | None]]:
        """Return each piece's text, tone and rank."""
        return [piece_parts(piece) for piece in (self.content if isinstance(self.content, list) else [self.content])]

    @property
    def text(self) -> str:
        """Return its whole text."""
        return (self.between or "").join(text for text, *_ in self.pieces)


def shaded_tokens(tokens: Sequence[Token], shares: Sequence[float] | Floats, kind: str = "heat") -> list[Form]:
    """Return a text with shaded tokens: heat for shares from 0 to 1, change for -1 to 1; empty for a long text."""
    if len(tokens) > MOST_SHADED:
        return []
    pairs = zip(tokens, shares, strict=True)
    return [Line([(token_label(token), f"{kind} {share:.3f}") for token, share in pairs], between=" ", shaded=True)]


Value = Any  # of a cell: a number, a text, a Line, or any value that the column's `format` function takes


@dataclass(frozen=True, eq=False)
class Column:
    """A column of a table: its values, None for a missing value, and the format of its cells.

    `kind` is text, number, share (0 to 1, shown in percent), heat (0 to 1, shaded), change (shaded by sign and size) or bar
    (0 to 1). A column without any value is not shown. A text may be a Line.
    """

    heading: str
    values: Sequence[Value] | Floats | Doubles
    kind: str = "number"
    format: str | Callable[[Value], str] = ""  # a format of numbers, or a function; "": the format of its kind
    rank: int | None = None  # if a table is too wide, columns of the lowest rank are left out first; None: never
    min_width: int = 0  # cells: columns of lower rank are left out before a text that may be cut becomes narrower
    max_width: int = 0  # cells: a longer text is cut at its end, and a bar of 1 has this length; 0: no limit
    cut: str = ""  # if there is little room, text is cut at its "end" or its "start", or goes on "below"; "": neither
    tone: str = ""
    shade: Sequence[float | None] = ()  # heat from 0 to 1, a change from -1 to 1; (): heat by its values
    about: str = ""  # a description of its values, for the legend
    name: str | None = None  # in a file; None: its heading, "": left out of files
    hidden: bool = False  # written to files only
    joined: bool = False  # without a gap to the column before it

    def cell_text(self, value: Value) -> str:
        """Return a value as text."""
        if value is None:
            return "" if self.kind == "text" else ABSENT
        if isinstance(value, str):
            return value
        if callable(self.format):
            return self.format(value)
        if isinstance(value, Line):
            return value.text
        return percent(value, 1) if self.kind == "share" else format(value, self.format or ",")

    def shade_at(self, row: int) -> float | None:
        """Return the shade of a value of heat or change; None for no shade."""
        return self.shade[row] if self.shade else self.values[row] if self.kind == "heat" else None


def bar_columns(
    values: Sequence[float | None], number_format: str = "", max_width: int = 20, tone: str = ""
) -> list[Column]:
    """Return numbers from 0 to 1 with a bar each, which is left out first: in `number_format`, or in percent."""
    number = Column("", values, "number" if number_format else "share", number_format)
    return [number, Column("", values, "bar", max_width=max_width, rank=0, tone=tone)]


def sum_columns(
    names: Sequence[str], terms: Sequence[Sequence[str]], results: Sequence[str], last: str = ""
) -> list[Column]:
    """Return sums worked out, one for each row: its name, as many of its terms as fit, the last one, and its result."""
    # of the terms the first is left out last, and `last` just before it
    ranked = [
        [*((term, "", -2 * rank) for rank, term in enumerate(terms_of_sum)), (last, "", -1)] for terms_of_sum in terms
    ]
    lines = [Line(list(terms_of_sum), omission=(" + … {} more", "… {} terms")) for terms_of_sum in ranked]
    return [
        Column("", names, "text"),
        Column("", lines, "text", cut="end"),
        Column("", [" = "] * len(names), "text", joined=True),
        Column("", results, tone="bold", joined=True),
    ]


@dataclass(frozen=True)
class Table:
    """Columns beside each other, with a `legend`; {} in it becomes the `about` of the visible columns."""

    columns: Sequence[Column]
    strong: Sequence[bool] = ()  # whether each row is bold
    foot: Sequence[str] = ()  # a last row
    indent: int = 0
    gap: int = 2  # cells between columns
    legend: str = ""
    elsewhere: str = ""  # where the reader finds the columns that were left out
    in_full: bool = False  # in a pipe no column is left out
    omission: str = ""  # a line about the rows that are left out, below the others

    def as_csv(self, delimiter: str = ",") -> str:
        """Return the values as CSV text, with a first line of names and six digits of each decimal number."""
        named = [column for column in self.columns if column.name != ""]
        rows = zip(*(column.values for column in named), strict=True)
        return csv_table([column.name or column.heading for column in named], rows, 6, delimiter)


@dataclass(frozen=True)
class Grid:
    """A matrix with its labels: `array` (rows, columns) holds numbers, or is a boolean mask."""

    array: Numbers
    rows: Sequence[str]
    columns: Sequence[str]
    precision: int = 2
    mask: Bools | None = None  # (rows, columns), false cells are shown as ·
    heat: bool = False
    change: bool = False  # numbers from -1 to 1, coloured by sign
    sums: bool = False
    marks: tuple[int, ...] = ()  # the rows to point at
    must: tuple[int, ...] = ()  # the columns that are never left out
    max_rows: int = 24
    strong: tuple[int, ...] = ()  # the rows that are bold
    indent: int = 0

    @cached_property
    def number(self) -> Callable[[float], str]:
        """Return the function that formats its numbers: as powers of ten if all of them are tiny."""
        tiny = not self.heat and 0 < float(np.abs(self.array).max()) < 0.5 * 10**-self.precision
        return partial(number_text, precision=self.precision, tiny=tiny)

    def cell_text(self, row: int, column: int) -> str:
        """Return a number as text, ✓ for true in a boolean mask, · for false or a masked cell."""
        value = self.array[row, column]
        if self.mask is not None and not self.mask[row][column] or value is np.False_:
            return ABSENT
        return "✓" if value is np.True_ else self.number(float(value))


Form = Piece | Line | Table | Grid


def exponential_heading(shift: float, number: Callable[[float], str]) -> str:
    """Return the heading of exponentials: exp, or with the number that is subtracted first: exp(· - 3.00), exp(· + 3.00)."""
    return f"exp(· {'-' if shift > 0 else '+'} {number(abs(shift))})" if shift else "exp"


def token_label(token: Token | str, width: int | None = None) -> str:
    """Return a token as a label: safe, on one line, marked † if the model does not know it, at most `width` cells wide."""
    text = visible_text(shortened(token if isinstance(token, str) else token.text, LABEL_CHARACTERS))
    if isinstance(token, Token) and token.unknown:
        text += "†"
    return isolated(text if width is None else label_fit(text, width))


def label_fit(text: str, width: int) -> str:
    """Return `text` in at most `width` cells; … replaces the end of a longer text, but † of an unknown word stays."""
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= width:
        return text
    mark = "†" * (text.endswith("†") and width > 3)
    return set_cell_size(text, max(width - 1 - len(mark), 0)).rstrip() + "…" + mark
