"""The terminal: its width and colours, and every form of a reading as lines."""

from __future__ import annotations

import html
import io
import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from rich.cells import cell_len, chop_cells
from rich.console import Console, ConsoleDimensions, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from attnctl.render.forms import (
    ABSENT,
    VIRIDIS,
    Column,
    Form,
    Grid,
    Line,
    Piece,
    Table,
    label_fit,
    piece_parts,
    takes_dark_ink,
)
from attnctl.text import counted, harmless_line, harmless_text

SAVED_WIDTH = 100  # cells
NARROWEST = 20  # cells of a terminal that lines are laid out for; one that is narrower breaks them
WIDEST = 10_000  # cells that a line fills: no terminal has them, and $COLUMNS may be any number


class SafeConsole(Console):
    """A rich Console without markup of its own, which writes no control character but those that rich makes itself.

    It is NARROWEST cells wide at least, as what is laid out for fewer says nothing, and WIDEST at most.
    """

    def __init__(self, **how: Any) -> None:
        super().__init__(**({"highlight": False, "markup": False, "emoji": False} | how))

    @property
    def size(self) -> ConsoleDimensions:
        """Cells across and down."""
        found = super().size
        return ConsoleDimensions(min(max(NARROWEST, found.width), WIDEST), found.height)

    @size.setter
    def size(self, new_size: tuple[int, int]) -> None:
        self._width, self._height = new_size

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments of a renderable, their text made harmless."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(harmless_line(segment.text), segment.style)


def as_text(content: RenderableType, width: int = SAVED_WIDTH) -> str:
    """The renderable as plain text, no line wider than `width` cells."""
    page = io.StringIO()
    SafeConsole(file=page, width=width, color_system=None).print(content)
    return page.getvalue()


def as_svg(content: RenderableType, title: str, cited: str = "") -> str:
    """The renderable as an SVG picture of a terminal, its fonts those of the reader's machine: nothing is fetched.

    `cited`, what the numbers come from, is its description.
    """
    from rich._export_format import CONSOLE_SVG_FORMAT
    from rich.terminal_theme import SVG_EXPORT_THEME

    console = SafeConsole(
        file=io.StringIO(),
        width=SAVED_WIDTH,
        record=True,
        force_terminal=True,
        color_system="truecolor",
        legacy_windows=False,
    )
    console.print(content)
    form = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    form = form.replace("Fira Code, monospace", "Fira Code, DejaVu Sans Mono, Menlo, Consolas, monospace")
    if cited:
        said = html.escape(harmless_text(cited)).replace("{", "{{").replace("}", "}}")
        form = form.replace(">", f"><desc>{said}</desc>", 1)
    picture = console.export_svg(title=title, code_format=form, theme=SVG_EXPORT_THEME, unique_id="attnctl")
    return re.sub(r'(<text [^>]* x=")([^"]+)(" [^>]*textLength=")[^"]+("[^>]*>)([^<]*)</text>', _placed_texts, picture)


SVG_CELL = 12.2  # the width of a cell in rich's picture


def _placed_texts(found: re.Match[str]) -> str:
    """A text of rich's picture as one for each cell of a table, at its column and of its length, whatever the fonts."""
    before, left, between, after, text = found.groups()
    said, placed = html.unescape(text), ""
    for part in re.finditer(r"\S+(\s\S+)*", said):
        at, length = float(left) + SVG_CELL * cell_len(said[: part.start()]), SVG_CELL * cell_len(part[0])
        placed += f"{before}{at:g}{between}{length:g}{after}{html.escape(part[0])}</text>"
    return placed


ACCENT = "bright_magenta"
DIM = "dim"
GAP = 2
NAME = 8  # cells of a column's name


def viridis_colour(share: float) -> tuple[int, int, int]:
    """The colour, red, green and blue from 0 to 255, for a number from 0 to 1."""
    place = min(max(share, 0.0), 1.0) * (len(VIRIDIS) - 1)
    low = min(int(place), len(VIRIDIS) - 2)
    ends = (bytes.fromhex(colour[1:]) for colour in VIRIDIS[low : low + 2])
    r, g, b = (round(a + (c - a) * (place - low)) for a, c in zip(*ends, strict=True))
    return r, g, b


def painted_style(colour: tuple[int, int, int]) -> Style:
    """That background, with a foreground that can be read on it."""
    r, g, b = colour
    ink = "#000000" if takes_dark_ink(r, g, b) else "#ffffff"
    return Style.parse(f"{ink} on #{r:02x}{g:02x}{b:02x}")


def heat_style(share: float) -> Style:
    """The background for a number from 0 to 1, with a foreground that can be read on it; near 0 there is none.

    The darkest fifth of the map is left out: on a light terminal it would shout where there is least to see.
    """
    return painted_style(viridis_colour(0.2 + 0.8 * min(share, 1.0))) if share >= 0.02 else Style()


def change_style(amount: float) -> Style:
    """The background for a difference from -1 to 1: orange for more, blue for less, none near 0."""
    if abs(amount) < 0.005:
        return Style()
    end = (230, 97, 1) if amount > 0 else (58, 111, 184)  # told apart by every kind of colour vision
    share = 0.25 + 0.75 * min(abs(amount), 1.0)
    r, g, b = (round(255 + (c - 255) * share) for c in end)
    return Style.parse(f"#000000 on #{r:02x}{g:02x}{b:02x}")


SHADES = {"heat": heat_style, "change": change_style}


def padded_text(text: str, width: int, right: bool = True) -> str:
    """`text` in exactly `width` cells; right: pushed to the right edge."""
    space = " " * max(0, width - cell_len(text))
    return space + text if right else text + space


def kept_lines(count: int, room: int, must: Sequence[int] = ()) -> list[int | None]:
    """Which of `count` rows or columns are shown where there is room for `room` lines; None stands for an ellipsis.

    Where there is room for few, those that `must` be shown come before the last and the first, in their own order.
    """
    if count <= room:
        return list(range(count))
    wanted = [index for index in must if 0 <= index < count]
    ordered = dict.fromkeys([*wanted, count - 1, *range(min(room, count))])
    chosen = sorted(list(ordered)[: max(room - 1, 1)])  # one line goes to an ellipsis
    result: list[int | None] = []
    for index in chosen:
        if index > 0 and (not result or result[-1] != index - 1):
            result.append(None)
        result.append(index)
    return result if chosen[-1] == count - 1 else [*result, None]


def grid_lines(grid: Grid, width: int, style: Callable[[int, int], Style] | None = None) -> list[Text]:
    """A grid in at most `width` cells a line; `style` gives a cell's colours by row and column (None: the form's)."""
    style = style or partial(_cell_style, grid)
    names = [label_fit(row, max(12, width // 4)) for row in grid.rows]
    left = max([cell_len(name) for name in names] + [1])
    rows = kept_lines(len(grid.array), grid.max_rows, grid.marks)
    columns, widths, total = _column_widths(grid, [row for row in rows if row is not None], width - left - 2)
    shaded = grid.heat or grid.change  # from the cell before the number on
    out = []
    if any(grid.columns):
        head = Text(" " * (2 + left), DIM)
        for at, wide in zip(columns, widths, strict=True):
            head.append(" " * GAP + padded_text("…" if at is None else label_fit(grid.columns[at], wide), wide))
        out.append(head.append((" " * (GAP + 1) + padded_text("Σ", total)) * bool(total)))
    for row in rows:
        if row is None:
            out.append(Text("  ⋮", DIM))
            continue
        marked = row in grid.marks
        line = Text("▸ " if marked else "  ", ACCENT if marked else "")
        line.append(padded_text(names[row], left, right=False), "bold" if marked else "")
        for at, wide in zip(columns, widths, strict=True):
            text = "…" if at is None else grid.cell_text(row, at)
            cell = Style(dim=True) if at is None or text == ABSENT else style(row, at)
            line.append(" " * (GAP - shaded)).append(" " * shaded + padded_text(text, wide), cell)
        if total:
            line.append(" " * (GAP + 1) + padded_text(grid.number(float(grid.array[row].sum())), total), DIM)
        if row in grid.strong:
            line.stylize("bold")
        out.append(line)
    sizes = zip(("row", "column"), grid.array.shape, (rows, columns), strict=True)
    missing = {what: size - sum(at is not None for at in kept) for what, size, kept in sizes}
    more = [counted(count, f"more {what}") for what, count in missing.items() if count]
    return [*out, Text(f"  … {', '.join(more)}", DIM)] if more else out


def _cell_style(grid: Grid, row: int, at: int) -> Style:
    value = grid.array[row, at]
    return heat_style(value) if grid.heat else change_style(value) if grid.change else Style()


def _column_widths(grid: Grid, rows: Sequence[int], width: int) -> tuple[list[int | None], list[int], int]:
    """Which columns are shown (None: an ellipsis), how wide each, and how wide the sums; 0 where they do not fit."""
    seen = grid.array[rows]
    wide = 1 if seen.dtype == np.bool_ else max(len(grid.number(float(x))) for x in (seen.min(), seen.max()))
    names = [cell_len(name) for name in grid.columns]
    cell = max(wide, min(max([*names, 1]), NAME))
    total = max(len(grid.number(float(x))) for x in seen.sum(axis=1)) if grid.sums else 0
    total *= width >= cell + total + 2 * GAP + 1
    room = width - (total + GAP + 1 if total else 0)  # cells for the columns
    own = [[max(wide, min(name, longest)) for name in names] for longest in range(NAME, 3, -1)]
    # of one width, or as wide as its name: names give way before columns, and so does the sum
    tried = [(widths, room, total) for widths in ([cell] * len(names), *own)]
    tried += [(widths, width, 0) for widths in own]
    for widths, most, sums in tried:
        if sum(widths) + GAP * len(widths) <= most:
            return list(range(len(widths))), widths, sums
    for count in range(min(len(names) - 1, room // (wide + GAP)) + 1, 0, -1):
        columns = kept_lines(len(names), count, grid.must)
        widths = [1 if at is None else max(wide, min(names[at], NAME)) for at in columns]  # an ellipsis is narrow
        if sum(widths) + GAP * len(widths) <= room:
            break
    excess = max(0, sum(widths) + GAP * len(widths) - room)  # of the one column that is left: its name gives way
    return columns, [1 if at is None else max(wide, w - excess) for at, w in zip(columns, widths, strict=True)], total


def cropped_line(line: Text, width: int) -> Text:
    """The line in one piece: never wrapped, never followed by spaces."""
    line.truncate(width)
    line.rstrip()
    line.no_wrap = True
    return line


def share_bar(share: float, width: int) -> str:
    """A bar for a number from 0 to 1, exact to an eighth of a cell."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    return "█" * (eighths // 8) + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[eighths % 8]


# --- forms as lines ---

LEAST_TEXT, LEAST_BAR, BAR = 12, 4, 8  # cells of a column that gives way, and of a bar before texts have more
LEAST_BESIDE = 22  # cells below which a text stands below its mark


class Shown:
    """Forms as a rich renderable, no line wider than the console."""

    def __init__(self, forms: Iterable[Form]) -> None:
        self.forms = list(forms)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The lines of each form."""
        for form in self.forms:
            if isinstance(form, Line) and form.shaded and (console.no_color or console.color_system is None):
                continue
            yield from lines_of(form, options.max_width, not console.is_terminal)


def lines_of(form: Form, width: int, in_pipe: bool = False) -> Iterable[Text]:
    """A form in lines of at most `width` cells; a table that is told in full there, `in_pipe`, of any number."""
    if isinstance(form, Grid):
        lines = grid_lines(form, width - form.indent)
        return [cropped_line(Text(" " * form.indent).append_text(line), width) for line in lines]
    if isinstance(form, Table):
        return table_lines(form, width, in_full=form.in_full and in_pipe)
    return text_lines(form if isinstance(form, Line) else Line(form), width)


def _styled(piece: Piece) -> Text:
    text, tone, _ = piece_parts(piece)
    kind, _, share = tone.partition(" ")
    return Text(text, SHADES[kind](float(share)) if kind in SHADES else tone.replace("accent", ACCENT))


def _fitting_line(line: Line, width: int) -> Line:
    """The line with the pieces that have room in `width` cells: those of the lowest rank are left out first.

    Pieces of a sentence, which are no list, stand each for itself: a lower one is told where it has room.
    """
    ranks = sorted({rank for *_, rank in line.pieces if rank is not None}, reverse=True)

    def is_wide(count: int) -> bool:
        return cell_len(_with_ranks(line, ranks[:count]).text) > width

    # with all of them nothing is said of others; else the more, the wider
    count = bisect_left(range(1, len(ranks)), True, key=is_wide) if is_wide(len(ranks)) else len(ranks)
    kept = ranks[:count]
    for rank in () if line.rest or line.between else ranks[len(kept) :]:
        if cell_len(_with_ranks(line, [*kept, rank]).text) <= width:
            kept.append(rank)
    return _with_ranks(line, kept)


def _with_ranks(line: Line, ranks: Collection[int]) -> Line:
    """The line with those of its ranked pieces that have these ranks, and what stands in place of the others."""
    told: list[Piece] = [one for one in line.pieces if one[2] is None or one[2] in ranks]
    if line.rest and len(told) < len(line.pieces):
        at = next(at for at, one in enumerate(line.pieces) if one not in told)
        told.insert(at, line.rest[at == 0].format(len(line.pieces) - len(told)))
    return replace(line, said=told)


def _joined(line: Line) -> Text:
    return Text(line.between or "").join(map(_styled, line.pieces))


def text_lines(line: Line, width: int) -> list[Text]:
    """A line of text in lines of at most `width` cells."""
    mark, right, style = _styled(line.mark), _styled(line.right), line.tone.replace("accent", ACCENT)
    below, edge = line.indent + line.hanging, width - (right.cell_len + 2 if right else 0)
    first, lines = Text(" " * line.indent, style).append_text(mark), []
    if mark and not line.cut and width - below < min(LEAST_BESIDE, cell_len(line.text)):
        lines.append(first)
        below = min(below, line.indent + 6)
        first = Text(" " * below, style)
    elif mark:
        first.append(" " * (below - first.cell_len))
    room = edge - first.cell_len
    told = _fitting_line(line, room)
    if line.cut:
        if cell_len(told.text) > room:
            widest = max(cell_len(text) for text, *_ in told.pieces)
            # the widest pieces give way, each to the same width
            fitting = bisect_left(range(1, widest), True, key=lambda most: cell_len(_with_cut(told, most).text) > room)
            told = _with_cut(told, max(fitting, 1))
        return [cropped_line(first.append_text(_joined(told)), width)]
    told = told if cell_len(told.text) <= room else line
    whole = _joined(told)
    plain, start, end, is_cut = whole.plain, 0, 0, False
    spans: list[tuple[Text, int, int]] = []  # of the lines: how each begins, and which characters follow
    for begin, after, alone in _unbroken_parts(told, width - below):
        if end > start and (alone or first.cell_len + cell_len(plain[start:after]) > edge):
            spans.append((first, start, end))
            first, start, edge = Text(" " * below, style), begin, width
        if first.cell_len + cell_len(word := plain[start:after]) > max(edge, below + 8):
            beginning = chop_cells(word, max(edge - first.cell_len, 8))[0]
            for part in [beginning, *chop_cells(word[len(beginning) :], max(width - below, 8))[:-1]]:
                spans.append((first, start, start + len(part)))
                first, start, edge = Text(" " * below, style), start + len(part), width
        end = after
        if is_cut := 0 < line.lines <= len(lines) + len(spans):
            spans = spans[: line.lines - len(lines)]
            break
    else:
        spans.append((first, start, end))
    ends = [place for _, *span in spans for place in span]
    lines += [begun.append_text(part) for (begun, *_), part in zip(spans, whole.divide(ends)[1::2], strict=True)]
    if is_cut:
        lines[-1].append(" …").truncate(width, overflow="ellipsis")
        return lines
    if right:
        lines[0].append(" " * (width - lines[0].cell_len - right.cell_len)).append_text(right)
    return lines


def _with_cut(line: Line, most: int) -> Line:
    """The line with each of its pieces in at most `most` cells."""
    return replace(line, said=[(label_fit(text, most), tone, rank) for text, tone, rank in line.pieces])


def _unbroken_parts(line: Line, room: int) -> Iterator[tuple[int, int, bool]]:
    """Where words begin and end, or pieces that are not broken, and whether a part begins a line: a piece without room."""
    at = 0
    for text, *_ in [(line.text,)] if line.between is None else line.pieces:
        long = line.between is None or cell_len(text) > room
        parts = [word.span() for word in re.finditer(r"\S+", text)] if long else [(0, len(text))]
        for number, (start, end) in enumerate(parts):
            yield at + start, at + end, long and not number
        at += len(text) + len(line.between or "")


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
    if not shown:
        return
    every = [_cells_of(one, foot) for one, foot in zip(shown, [*table.foot, *[""] * len(shown)], strict=False)]
    kept, room = list(every), WIDEST if in_full else width - table.indent
    by_rank = sorted((one for one in every if one.column.rank is not None), key=lambda one: one.column.rank or 0)
    for one in by_rank:
        if sum(other.least for other in kept) + sum(_gaps(kept, table.gap)) > room:
            kept.remove(one)
    gaps = _gaps(kept, table.gap)
    widths = [_used_width(one, wide) for one, wide in zip(kept, _shared_room(kept, room - sum(gaps)), strict=True)]
    for row in range(0 if any(one.column.heading for one in kept) else 1, len(kept[0].texts) - (not table.foot)):
        lines = [list(_cell_lines(one, row, wide)) for one, wide in zip(kept, widths, strict=True)]
        strong = table.strong and 0 < row <= len(table.strong) and table.strong[row - 1]
        for below in range(max(map(len, lines))):
            line = Text(" " * table.indent, "bold" if strong else "")
            for gap, cell, wide in zip(gaps, lines, widths, strict=True):
                line.append(" " * gap)
                line.append_text(cell[below] if below < len(cell) else Text(" " * wide))
            yield cropped_line(line, room + table.indent)
        if table.rest and row == len(kept[0].column.values):
            yield from text_lines(Line(table.rest, DIM, table.indent), width)
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


def _used_width(one: _Cells, wide: int) -> int:
    """The cells that a column takes of those that it may: a line that leaves pieces out may take fewer."""
    lines = [value for value in one.column.values if isinstance(value, Line)]
    return max((min(wide, cell_len(_fitting_line(line, wide).text)) for line in lines), default=wide)


def _cell_lines(one: _Cells, row: int, wide: int) -> Iterator[Text]:
    """The lines of a cell, each `wide` cells; row 0 is the heading, the last one the foot."""
    column, text = one.column, one.texts[row]
    left = column.kind in ("text", "bar") and column.cut != "start"
    if not 0 < row <= len(column.values):
        yield Text(padded_text(label_fit(text, wide), wide, right=not left), DIM)
        return
    value, style = column.values[row - 1], Style.parse(column.tone.replace("accent", ACCENT))
    if column.kind == "bar":
        style = style or Style(color=heat_style(value or 0).bgcolor)
        yield Text(padded_text(share_bar(abs(value or 0), wide), wide, right=False), style)
    elif isinstance(value, Line):
        whole = Text("", style).append_text(_joined(_fitting_line(value, wide)))
        whole.truncate(wide, overflow="ellipsis", pad=True)
        yield whole
    elif column.cut == "below":
        for part in text_lines(Line(text), wide):
            yield Text(padded_text(part.plain, wide, right=False), style)
    else:
        if (shade := column.shade_at(row - 1)) is not None:
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
