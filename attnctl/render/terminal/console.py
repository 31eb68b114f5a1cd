"""The terminal: its width and colours, and the forms of a result as lines."""

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
from rich.bar import Bar
from rich.cells import cell_len, chop_cells, split_text
from rich.console import Console, ConsoleDimensions, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.segment import Segment
from rich.style import Style
from rich.table import Table as RichTable
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
NARROWEST = 20  # cells; a narrower terminal breaks the lines itself
WIDEST = 10_000  # cells: no terminal is as wide, but $COLUMNS may be any number


class SafeConsole(Console):
    """A rich Console without markup, which writes no control characters except those of rich itself.

    It is between NARROWEST and WIDEST cells wide: a layout for fewer cells would show nothing.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**({"highlight": False, "markup": False, "emoji": False} | options))

    @property
    def size(self) -> ConsoleDimensions:
        """Return the width and height in cells."""
        size = super().size
        return ConsoleDimensions(min(max(NARROWEST, size.width), WIDEST), size.height)

    @size.setter
    def size(self, new_size: tuple[int, int]) -> None:
        self._width, self._height = new_size

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of a renderable, with harmless text."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(harmless_line(segment.text), segment.style)


def as_text(content: RenderableType, width: int = SAVED_WIDTH) -> str:
    """Return the renderable as plain text, no line wider than `width` cells."""
    page = io.StringIO()
    SafeConsole(file=page, width=width, color_system=None).print(content)
    return page.getvalue()


SVG = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">DESCRIPTION
    <style>
    .{unique_id}-matrix {{
        font-family: Fira Code, DejaVu Sans Mono, Menlo, Consolas, monospace;
        font-size: {char_height}px;
        line-height: {line_height}px;
        font-variant-east-asian: full-width;
    }}
    .{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: arial, sans-serif; }}
    {styles}
    </style>
    <defs>
    <clipPath id="{unique_id}-clip-terminal">
      <rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
    </clipPath>
    {lines}
    </defs>
    {chrome}
    <g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
    {backgrounds}
    <g class="{unique_id}-matrix">
    {matrix}
    </g>
    </g>
</svg>
"""  # rich's own names a font of another host
SVG_CELL = 12.2  # the width of a cell in rich's picture


def as_svg(content: RenderableType, title: str, cited: str = "") -> str:
    """Return the renderable as an SVG picture of a terminal; it uses fonts of the reader's machine and fetches nothing.

    `cited`, the source of the numbers, is the description of the picture.
    """
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
    description = f"<desc>{html.escape(harmless_text(cited))}</desc>" if cited else ""
    form = SVG.replace("DESCRIPTION", description.replace("{", "{{").replace("}", "}}"))
    picture = console.export_svg(title=title, code_format=form, theme=SVG_EXPORT_THEME, unique_id="attnctl")

    def with_cells(tag: re.Match[str]) -> str:
        return f'textLength="{SVG_CELL * cell_len(html.unescape(tag[2])):g}"{tag[1]}{tag[2]}<'

    # rich counts characters, but some of them are two cells wide
    return re.sub(r'textLength="[^"]+"([^>]*>)([^<]*)<', with_cells, picture)


ACCENT = "bright_magenta"
DIM = "dim"
GAP = 2
NAME = 8  # cells of a column's name
_PLAIN, _DIM = Style(), Style.parse(DIM)


VIRIDIS_BYTES = tuple(bytes.fromhex(colour[1:]) for colour in VIRIDIS)


def viridis_colour(share: float) -> tuple[int, int, int]:
    """Return the colour (red, green, blue from 0 to 255) for a number from 0 to 1."""
    place = min(max(share, 0.0), 1.0) * (len(VIRIDIS) - 1)
    low = min(int(place), len(VIRIDIS) - 2)
    first, second = VIRIDIS_BYTES[low : low + 2]
    r, g, b = (round(a + (c - a) * (place - low)) for a, c in zip(first, second, strict=True))
    return r, g, b


def painted_style(colour: tuple[int, int, int]) -> Style:
    """Return a style with this background and readable text on it."""
    r, g, b = colour
    ink = "#000000" if takes_dark_ink(r, g, b) else "#ffffff"
    return Style.parse(f"{ink} on #{r:02x}{g:02x}{b:02x}")


def heat_style(share: float) -> Style:
    """Return the background for a number from 0 to 1, with readable text on it; no background near 0.

    The darkest fifth of the map is left out: on a light terminal it would make the smallest weights stand out.
    """
    return painted_style(viridis_colour(0.2 + 0.8 * min(share, 1.0))) if share >= 0.02 else Style()


def change_style(amount: float) -> Style:
    """Return the background for a difference from -1 to 1: orange for more, blue for less, none near 0."""
    if abs(amount) < 0.005:
        return Style()
    end = (230, 97, 1) if amount > 0 else (58, 111, 184)  # colours that every kind of colour vision distinguishes
    share = 0.25 + 0.75 * min(abs(amount), 1.0)
    r, g, b = (round(255 + (c - 255) * share) for c in end)
    return Style.parse(f"#000000 on #{r:02x}{g:02x}{b:02x}")


SHADES = {"heat": heat_style, "change": change_style}


def padded_text(text: str, width: int, right: bool = True) -> str:
    """Return `text` in exactly `width` cells; `right`: aligned to the right."""
    space = " " * max(0, width - cell_len(text))
    return space + text if right else text + space


def kept_lines(count: int, room: int, must: Sequence[int] = ()) -> list[int | None]:
    """Return which of `count` rows or columns are shown if there is room for `room` lines; None is an ellipsis.

    If there is little room, those that `must` be shown come before the last and the first, in the order of `must`.
    """
    if count <= room:
        return list(range(count))
    required = [index for index in must if 0 <= index < count]
    ordered = dict.fromkeys([*required, count - 1, *range(min(room, count))])
    chosen = sorted(list(ordered)[: max(room - 1, 1)])  # one line goes to an ellipsis
    result: list[int | None] = []
    for index in chosen:
        if index > 0 and (not result or result[-1] != index - 1):
            result.append(None)
        result.append(index)
    return result if chosen[-1] == count - 1 else [*result, None]


def grid_lines(grid: Grid, width: int, style: Callable[[int, int], Style] | None = None) -> Iterator[RenderableType]:
    """Yield a grid in at most `width` cells a line; `style` gives a cell's colours by row and column (None: the form's)."""
    style = style or partial(_cell_style, grid)
    rows = kept_lines(len(grid.array), grid.max_rows, grid.marks)
    names = [label_fit(row, max(12, width // 4)) for row in grid.rows]
    left = max([cell_len(name) for name in names] + [1]) + 2
    columns, widths, sums = _grid_columns(grid, [row for row in rows if row is not None], width - left)
    table = _plain_table(any(grid.columns))
    table.add_column(width=left)
    for column, wide in zip(columns, widths, strict=True):
        heading = "…" if column is None else label_fit(grid.columns[column], wide)
        table.add_column(safe_text(heading), justify="right", width=GAP + wide)
    if sums:
        table.add_column("Σ", justify="right", width=GAP + 1 + sums, style=DIM)
    for row in rows:
        if row is None:
            table.add_row(Text("  ⋮", DIM))
            continue
        marked = row in grid.marks
        name = Text.assemble("▸ " if marked else "  ", (names[row], "bold" if marked else ""))
        cells: list[RenderableType] = [name]
        for column, wide in zip(columns, widths, strict=True):
            text = "…" if column is None else grid.cell_text(row, column)
            shade = _DIM if column is None or text == ABSENT else style(row, column)
            # the shade begins one cell before the number
            number = padded_text(text, wide + (grid.heat or grid.change))
            cells.append(_Fitted(number, shade, right=True, bare=True))
        cells.append(_Fitted(grid.number(float(grid.array[row].sum())), _PLAIN, right=True))
        tone = f"{ACCENT * marked}{' bold' * (row in grid.strong)}"
        table.add_row(*cells[: len(table.columns)], style=tone)
    yield Unpadded(table, width, grid.indent)
    sizes = zip(("row", "column"), grid.array.shape, (rows, columns), strict=True)
    missing = {axis: size - sum(index is not None for index in shown) for axis, size, shown in sizes}
    if more := [counted(count, f"more {axis}") for axis, count in missing.items() if count]:
        yield cropped_line(Text(f"{' ' * grid.indent}  … {', '.join(more)}", DIM), width + grid.indent)


def _cell_style(grid: Grid, row: int, column: int) -> Style:
    value = grid.array[row, column]
    return heat_style(value) if grid.heat else change_style(value) if grid.change else Style()


def _grid_columns(grid: Grid, rows: Sequence[int], width: int) -> tuple[list[int | None], list[int], int]:
    """Return which columns are shown (None: an ellipsis), their widths, and the width of the sums; 0 if they do not fit."""
    visible = grid.array[rows]
    wide = 1 if visible.dtype == np.bool_ else max(len(grid.number(float(x))) for x in (visible.min(), visible.max()))
    names = [cell_len(name) for name in grid.columns]
    cell = max(wide, min(max([*names, 1]), NAME))
    sums = max(len(grid.number(float(x))) for x in visible.sum(axis=1)) if grid.sums else 0
    sums *= width >= cell + sums + 2 * GAP + 1
    room = width - (sums + GAP + 1 if sums else 0)  # cells for the columns
    own_widths = [[max(wide, min(name, longest)) for name in names] for longest in range(NAME, 3, -1)]
    # first equal widths, then the width of each name: names are shortened, and the sum left out, before a column is
    tried = [(widths, room, sums) for widths in ([cell] * len(names), *own_widths)]
    for widths, limit, total in [*tried, *((widths, width, 0) for widths in own_widths)]:
        if sum(widths) + GAP * len(widths) <= limit:
            return list(range(len(widths))), widths, total
    for count in range(min(len(names) - 1, room // (wide + GAP)) + 1, 0, -1):
        columns = kept_lines(len(names), count, grid.must)
        widths = [
            1 if column is None else max(wide, min(names[column], NAME)) for column in columns
        ]  # an ellipsis is narrow
        if sum(widths) + GAP * len(widths) <= room:
            break
    excess = max(0, sum(widths) + GAP * len(widths) - room)  # if one column is left, its name is shortened
    return (
        columns,
        [1 if column is None else max(wide, w - excess) for column, w in zip(columns, widths, strict=True)],
        sums,
    )


def cropped_line(line: Text, width: int) -> Text:
    """Return the line cut to `width` cells: never wrapped, without spaces at its end."""
    line.truncate(width)
    line.rstrip()
    line.no_wrap = True
    return line


def safe_text(text: str, style: str | Style = "") -> Text:
    """Return text in one line, without characters that control a terminal."""
    return Text(text if text.isprintable() else harmless_line(text), style, no_wrap=True, overflow="ellipsis")


class _Fitted:
    """A text in one line that fits its column, `gap` cells after the one before.

    `right`: aligned to the right; `bare`: the spaces that align it have none of its colours.
    A rich Text in its place would be measured, wrapped, justified and cut once more: half of a table's time.
    """

    def __init__(self, text: str, style: Style, gap: int = 0, *, right: bool, bare: bool = False) -> None:
        self.text, self.style, self.gap, self.right = text, style, gap, right
        self.bare = bare and bool(style)
        self.width = gap + cell_len(text)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Return its width, which is the least and the greatest."""
        return Measurement(self.width, self.width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield one line of the column's width; in a column that a narrow terminal made narrower it ends in an ellipsis."""
        if self.width > options.max_width:
            yield _after(self.gap, safe_text(self.text, self.style))
            return
        gap, space = " " * self.gap, " " * (options.max_width - self.width)
        text = self.text if self.bare else space + self.text if self.right else self.text + space
        if start := gap + space * self.bare:
            yield Segment(start)
        yield Segment(text, self.style)


class Unpadded:
    """A renderable at most `width` cells wide, indented by `indent` cells, without spaces at the ends of its lines.

    `above_foot` holds lines that are written above its last line.
    """

    def __init__(self, content: RenderableType, width: int, indent: int = 0, above_foot: Sequence[Text] = ()) -> None:
        self.content, self.width, self.indent, self.above_foot = content, width, indent, above_foot

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield its lines."""
        lines = console.render_lines(self.content, options.update(width=self.width), pad=False)
        for number, line in enumerate(lines):
            if number == len(lines) - 1:
                yield from self.above_foot
            while line and _is_blank(line[-1]):
                line.pop()
            if line and not _has_background(line[-1]):
                line[-1] = Segment(line[-1].text.rstrip(" "), line[-1].style)
            yield from [Segment(" " * self.indent)] * (self.indent > 0 < len(line)) + line
            yield Segment.line()


def _has_background(segment: Segment) -> bool:
    return segment.style is not None and segment.style.bgcolor is not None and not segment.style.bgcolor.is_default


def _is_blank(segment: Segment) -> bool:
    return not segment.text.strip(" ") and not _has_background(segment)


def _plain_table(headed: bool, footed: bool = False) -> RichTable:
    """Return a table without lines and gaps."""
    return RichTable(
        show_header=headed, show_footer=footed, box=None, padding=0, pad_edge=False, header_style=DIM, footer_style=DIM
    )


# --- forms as lines ---

LEAST_TEXT, LEAST_BAR = 12, 4  # cells: the smallest width of a text that may be cut, and of a bar
LEAST_BESIDE = 22  # cells: a text with fewer beside its mark begins on the next line


class Shown:
    """Forms as a rich renderable, no line wider than the console."""

    def __init__(self, forms: Iterable[Form]) -> None:
        self.forms = list(forms)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines of each form."""
        width = options.max_width
        for form in self.forms:
            if isinstance(form, Grid):
                yield from grid_lines(form, width - form.indent)
                continue
            if isinstance(form, Table):
                yield from table_lines(form, WIDEST if form.in_full and not console.is_terminal else width, width)
                continue
            line = form if isinstance(form, Line) else Line(form)
            if console.no_color or console.color_system is None:
                if line.shaded:
                    continue
                line = replace(line, content=list(line.uncoloured)) if line.uncoloured else line
            yield from text_lines(line, width)


def _styled(piece: Piece) -> Text:
    text, tone, _ = piece_parts(piece)
    kind, _, share = tone.partition(" ")
    return Text(text, SHADES[kind](float(share)) if kind in SHADES else tone.replace("accent", ACCENT))


def _fitting_line(line: Line, width: int) -> Line:
    """Return the line with the pieces that fit in `width` cells; pieces of the lowest rank are left out first.

    Pieces of a sentence (not of a list) are independent: one of a lower rank is kept if it fits although a higher does not.
    """
    ranks = sorted({rank for *_, rank in line.pieces if rank is not None}, reverse=True)

    def is_wide(count: int) -> bool:
        return cell_len(_with_ranks(line, ranks[:count]).text) > width

    # bisection needs a width that grows with the count: the text about left-out pieces is missing only for all of them
    count = bisect_left(range(1, len(ranks)), True, key=is_wide) if is_wide(len(ranks)) else len(ranks)
    kept_ranks = ranks[:count]
    for rank in () if line.omission or line.between else ranks[len(kept_ranks) :]:
        if cell_len(_with_ranks(line, [*kept_ranks, rank]).text) <= width:
            kept_ranks.append(rank)
    return _with_ranks(line, kept_ranks)


def _with_ranks(line: Line, ranks: Collection[int]) -> Line:
    """Return the line with only the ranked pieces of these ranks, and with its text in place of the others."""
    pieces: list[Piece] = [piece for piece in line.pieces if piece[2] is None or piece[2] in ranks]
    if line.omission and len(pieces) < len(line.pieces):
        index = next(index for index, piece in enumerate(line.pieces) if piece not in pieces)
        pieces.insert(index, line.omission[index == 0].format(len(line.pieces) - len(pieces)))
    return replace(line, content=pieces)


def _joined(line: Line) -> Text:
    return Text(line.between or "").join(map(_styled, line.pieces))


def text_lines(line: Line, width: int) -> list[Text]:
    """Return a line of text as lines of at most `width` cells."""
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
    fitted = _fitting_line(line, room)
    if line.cut:
        if cell_len(fitted.text) > room:
            widest = max(cell_len(text) for text, *_ in fitted.pieces)
            # the widest pieces are cut, all to the same width
            fitting_width = bisect_left(
                range(1, widest), True, key=lambda limit: cell_len(_with_cut(fitted, limit).text) > room
            )
            fitted = _with_cut(fitted, max(fitting_width, 1))
        return [cropped_line(first.append_text(_joined(fitted)), width)]
    fitted = fitted if cell_len(fitted.text) <= room else line
    whole = _joined(fitted)
    plain, start, end, is_cut = whole.plain, 0, 0, False
    spans: list[tuple[Text, int, int]] = []  # of the lines: how each begins, and which characters follow
    for begin, after, begins_line in _unbroken_parts(fitted, width - below):
        if end > start and (begins_line or first.cell_len + cell_len(plain[start:after]) > edge):
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


def _with_cut(line: Line, limit: int) -> Line:
    """Return the line with each of its pieces in at most `limit` cells."""
    return replace(line, content=[(label_fit(text, limit), tone, rank) for text, tone, rank in line.pieces])


def _unbroken_parts(line: Line, room: int) -> Iterator[tuple[int, int, bool]]:
    """Yield start and end of each word, or of each piece that is not broken, and whether it must begin a new line."""
    offset = 0
    for text, *_ in [(line.text,)] if line.between is None else line.pieces:
        long = line.between is None or cell_len(text) > room
        parts = [word.span() for word in re.finditer(r"\S+", text)] if long else [(0, len(text))]
        for number, (start, end) in enumerate(parts):
            yield offset + start, offset + end, long and not number
        offset += len(text) + len(line.between or "")


class _ColumnWidths(NamedTuple):
    """A column of a table with its foot, its best and its least width in cells, and the gap before it."""

    column: Column
    foot: str
    natural: int
    minimum: int
    gap: int


def _column_widths(column: Column, foot: str, gap: int) -> _ColumnWidths:
    gap *= not column.joined
    if column.kind == "bar":
        return _ColumnWidths(column, foot, column.max_width, min(column.max_width, LEAST_BAR), gap)
    widest = max(map(cell_len, (column.heading, foot, *map(column.cell_text, column.values))))
    natural = min(widest, column.max_width or widest)
    return _ColumnWidths(
        column, foot, natural, min(natural, max(LEAST_TEXT, column.min_width)) if column.cut else natural, gap
    )


def _columns_that_fit(columns: Sequence[_ColumnWidths], room: int) -> list[_ColumnWidths]:
    """Return the columns that fit; if there is too little room, columns of the lowest rank are left out first."""
    fitting = list(columns)
    for widths in sorted(
        (widths for widths in columns if widths.column.rank is not None),
        key=lambda widths: widths.column.rank or 0,
    ):
        if sum(remaining.minimum + remaining.gap for remaining in fitting) - fitting[0].gap > room:
            fitting.remove(widths)
    return fitting


def table_lines(table: Table, room: int, width: int) -> Iterator[RenderableType]:
    """Yield a table in lines of at most `room` cells, then in lines of `width` cells its legend and what was left out."""
    visible = [
        column for column in table.columns if not column.hidden and any(value is not None for value in column.values)
    ]
    if not visible:
        return
    feet = [*table.foot, *[""] * len(visible)]
    all_widths = [_column_widths(column, foot, table.gap) for column, foot in zip(visible, feet, strict=False)]
    all_widths = [widths for widths in all_widths if widths.natural]  # rich gives an empty column a cell
    fitting = _columns_that_fit(all_widths, room - table.indent)
    rich_table = _plain_table(any(widths.column.heading for widths in fitting), bool(table.foot))
    total = sum(widths.natural + widths.gap for widths in fitting) - fitting[0].gap
    cells = []
    for number, widths in enumerate(fitting):
        gap, column = widths.gap if number else 0, widths.column
        is_left = column.kind in ("text", "bar") and column.cut != "start"
        flexible = bool(column.cut) or column.kind == "bar"
        rich_table.add_column(
            _after(gap, safe_text(column.heading)), _after(gap, safe_text(widths.foot)), overflow="ellipsis",
            justify="left" if is_left else "right", no_wrap=not flexible, max_width=widths.natural + gap,
        )  # fmt: skip
        # the cells that remain if each other column has its natural width
        cell_width = max(widths.minimum, widths.natural + room - table.indent - total)
        cells.append([_table_cell(column, row, cell_width, gap, not is_left) for row in range(len(column.values))])
    for row, parts in enumerate(zip(*cells, strict=True)):
        rich_table.add_row(*parts, style="bold" if row < len(table.strong) and table.strong[row] else None)
    omitted = text_lines(Line(table.omission, DIM, table.indent), width) if table.omission else []
    yield Unpadded(rich_table, room - table.indent, table.indent, omitted if table.foot else ())
    yield from () if table.foot else omitted
    if out := [widths.column.heading for widths in all_widths if widths not in fitting and widths.column.heading]:
        yield from text_lines(Line(f"left out for width: {', '.join(out)}{table.elsewhere}", DIM, table.indent), width)
    if table.legend:
        about = "; ".join(widths.column.about for widths in fitting if widths.column.about)
        yield from text_lines(Line(table.legend.replace("{}", about), DIM, table.indent), width)


def _after(gap: int, cell: RenderableType) -> RenderableType:
    return Padding(cell, (0, 0, 0, gap)) if gap else cell


def _table_cell(column: Column, row: int, room: int, gap: int, right: bool) -> RenderableType:
    """Return a value as a cell of its column, `gap` cells after the one before; a line has the pieces that fit in `room`."""
    value, style = column.values[row], Style.parse(column.tone.replace("accent", ACCENT))
    if column.kind == "bar":
        share = abs(value or 0.0)
        colour = style.color or heat_style(share).bgcolor or "default"
        # rich cuts eighths off: this rounds
        return _after(gap, Bar(1.0, 0.0, share + 1 / (16 * column.max_width), color=colour))
    if isinstance(value, Line):
        line = _joined(_fitting_line(value, room))
        return _after(gap, Text("", style, no_wrap=True, overflow="ellipsis").append_text(line))
    text = column.cell_text(value)
    if (shade := column.shade_at(row)) is not None:
        style += (change_style if column.kind == "change" else heat_style)(shade)
    if not column.cut:
        return _Fitted(text if text.isprintable() else harmless_line(text), style, gap, right=right)
    if column.cut == "start":
        return _after(gap, _End(text, style))
    cell = safe_text(text, style)
    if column.cut == "below":
        cell.no_wrap, cell.overflow = False, "fold"
    return _after(gap, cell)


class _End:
    """The end of a text, after an ellipsis if its beginning is cut off."""

    def __init__(self, text: str, style: Style) -> None:
        self.text = safe_text(text, style)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Return the range of its width: from 1 to the width of the text."""
        return Measurement(1, self.text.cell_len)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield one line."""
        excess = self.text.cell_len - options.max_width
        yield safe_text(f"…{split_text(self.text.plain, excess + 1)[1]}", self.text.style) if excess > 0 else self.text
