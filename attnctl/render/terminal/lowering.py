"""Every form of a reading as lines of a terminal: the one place where text goes on below, and where columns find room."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from rich.cells import cell_len, chop_cells
from rich.console import Console, ConsoleOptions, RenderResult
from rich.style import Style
from rich.text import Text

from attnctl.render.forms import Column, Form, Grid, Line, Piece, Table, label_fit
from attnctl.render.terminal.console import (
    ACCENT,
    DIM,
    WIDEST,
    change_style,
    cropped_line,
    grid_lines,
    heat_style,
    padded_text,
    share_bar,
)

LEAST_TEXT, LEAST_BAR, BAR = 12, 4, 8  # cells of a column that gives way, and of a bar before texts have more
LEAST_BESIDE = 22  # cells below which a text stands below its mark


class Shown:
    """Forms as a rich renderable, no line wider than the console."""

    def __init__(self, forms: Iterable[Form]) -> None:
        self.forms = list(forms)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The lines of each form."""
        for form in self.forms:
            if isinstance(form, Grid):
                yield from grid_lines(form, options.max_width)
            elif isinstance(form, Table):
                yield from table_lines(form, options.max_width, in_full=form.in_full and not console.is_terminal)
            else:
                yield from text_lines(form if isinstance(form, Line) else Line(form), options.max_width)


def _styled(piece: Piece) -> Text:
    text, tone = (piece, "") if isinstance(piece, str) else piece
    return Text(text, tone.replace("accent", ACCENT))


def text_lines(line: Line, width: int) -> Iterator[Text]:
    """A line of text in lines of at most `width` cells."""
    pieces = [_styled(piece) for piece in (line.said if isinstance(line.said, list) else [line.said])]
    between, mark, style = line.between or "", _styled(line.mark), line.tone.replace("accent", ACCENT)
    whole = Text(between).join(pieces)
    below = line.indent + line.hanging
    first = Text(" " * line.indent, style).append_text(mark)
    if mark and not line.cut and width - below < min(LEAST_BESIDE, whole.cell_len):
        yield first
        below = min(below, line.indent + 6)
        first = Text(" " * below, style)
    elif mark:
        first.append(" " * (below - first.cell_len))
    if line.cut:
        yield cropped_line(first.append_text(whole), width)
        return
    plain, ends = whole.plain, list(accumulate(len(piece) + len(between) for piece in pieces))
    words = [(end - len(between) - len(piece), end - len(between)) for piece, end in zip(pieces, ends, strict=True)]
    if line.between is None or max(piece.cell_len for piece in pieces) + below > width:
        words = [match.span() for match in re.finditer(r"\S+", plain)]
    start = end = 0
    for begin, after in words:
        if end > start and first.cell_len + cell_len(plain[start:after]) > width:
            yield first.append_text(whole[start:end])
            first, start = Text(" " * below, style), begin
        while first.cell_len + cell_len(plain[start:after]) > max(width, below + 8):
            part = chop_cells(plain[start:after], max(width - first.cell_len, 8))[0]
            yield first.append_text(whole[start : start + len(part)])
            first, start = Text(" " * below, style), start + len(part)
        end = after
    yield first.append_text(whole[start:end])


class _Cells(NamedTuple):
    """A column, its heading, cells and foot as text, and the cells that it takes, at best and at least."""

    column: Column
    texts: list[str]
    natural: int
    least: int


def _cells_of(column: Column, foot: str) -> _Cells:
    texts = [column.heading, *("" if column.kind == "bar" else column.cell_text(one) for one in column.values), foot]
    if column.kind == "bar":
        return _Cells(column, texts, column.most, min(column.most, LEAST_BAR))
    widest = max(map(cell_len, texts))
    natural = min(widest, column.most or widest)
    return _Cells(column, texts, natural, min(natural, LEAST_TEXT) if column.cut else natural)


def table_lines(table: Table, width: int, in_full: bool = False) -> Iterator[Text]:
    """A table in lines of at most `width` cells (`in_full`: of any number), what was left out of it, and its legend."""
    shown = [one for one in table.columns if not one.hidden and any(value is not None for value in one.values)]
    every = [_cells_of(one, foot) for one, foot in zip(shown, [*table.foot, *[""] * len(shown)], strict=False)]
    kept, room = list(every), WIDEST if in_full else width - table.indent
    by_rank = sorted((one for one in every if one.column.rank is not None), key=lambda one: one.column.rank or 0)
    for one in by_rank:
        if sum(other.least for other in kept) + sum(_gaps(kept, table.gap)) > room:
            kept.remove(one)
    gaps = _gaps(kept, table.gap)
    widths = _shared_room(kept, room - sum(gaps))
    for row in range(0 if any(one.column.heading for one in kept) else 1, len(kept[0].texts) - (not table.foot)):
        lines = [list(_cell_lines(one, row, wide)) for one, wide in zip(kept, widths, strict=True)]
        strong = table.strong and 0 < row <= len(table.strong) and table.strong[row - 1]
        for below in range(max(map(len, lines))):
            line = Text(" " * table.indent, "bold" if strong else "")
            for gap, cell, wide in zip(gaps, lines, widths, strict=True):
                line.append(" " * gap)
                line.append_text(cell[below] if below < len(cell) else Text(" " * wide))
            yield cropped_line(line, room + table.indent)
    if out := [one.column.heading for one in every if one not in kept and one.column.heading]:
        yield from text_lines(Line(f"left out for width: {', '.join(out)}{table.elsewhere}", DIM, table.indent), width)
    if table.legend:
        about = "; ".join(one.column.about for one in kept if one.column.about)
        yield from text_lines(Line(table.legend.replace("{}", about), DIM, table.indent), width)


def _gaps(kept: Sequence[_Cells], gap: int) -> list[int]:
    """The cells before each column."""
    return [gap if at and not one.column.joined else 0 for at, one in enumerate(kept)]


def _shared_room(kept: Sequence[_Cells], room: int) -> list[int]:
    """How wide each column is in `room` cells: what is left goes to short bars first, then to texts, then to bars."""
    widths = [one.least for one in kept]
    for bars, most in ((True, BAR), (False, WIDEST), (True, WIDEST)):
        giving = [at for at, one in enumerate(kept) if (one.column.kind == "bar") == bars]
        wanted = sorted((max(0, min(kept[at].natural, most) - widths[at]), at) for at in giving)
        for number, (left, at) in enumerate(wanted):
            widths[at] += min(left, max(0, room - sum(widths)) // (len(wanted) - number))
    return widths


def _cell_lines(one: _Cells, row: int, wide: int) -> Iterator[Text]:
    """The lines of a cell, each `wide` cells; row 0 is the heading, the last one the foot."""
    column, text = one.column, one.texts[row]
    left = column.kind in ("text", "bar") and column.cut != "start"
    if not 0 < row <= len(column.values):
        style = "bold" if row == 0 and "bold" in column.tone else DIM
        yield Text(padded_text(label_fit(text, wide), wide, right=not left), style)
        return
    value, style = column.values[row - 1], Style.parse(column.tone.replace("accent", ACCENT))
    if column.kind == "bar":
        style = style or Style(color=heat_style(value or 0).bgcolor)
        yield Text(padded_text(share_bar(abs(value or 0), wide), wide, right=False), style)
    elif isinstance(value, Line):
        pieces = list(value.said)
        while (
            value.between and len(pieces) > 1 and cell_len(column.cell_text(Line(pieces, between=value.between))) > wide
        ):
            pieces.pop()
        whole = Text(value.between or "", style).join(map(_styled, pieces))
        whole.truncate(wide, overflow="ellipsis", pad=True)
        yield whole
    elif column.cut == "below":
        for part in text_lines(Line(text), wide):
            yield Text(padded_text(part.plain, wide, right=False), style)
    else:
        shade = column.shade[row - 1] if column.shade else value if column.kind == "heat" else None
        if shade is not None:
            style += (change_style if column.kind == "change" else heat_style)(shade)
        text = cut_at_start(text, wide) if column.cut == "start" else label_fit(text, wide)
        yield Text(padded_text(text, wide, right=not left), style)


def cut_at_start(text: str, width: int) -> str:
    """The end of a text in at most `width` cells, after an ellipsis where it is not all of it."""
    if cell_len(text) <= width:
        return text
    start = len(text)
    while start > 0 and cell_len(text[start - 1 :]) < width:
        start -= 1
    return f"…{text[start:]}"[:width]
