"""Tables of numbers for a terminal: as wide as their numbers, the least telling columns left out where there is no room."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from attnctl.render.terminal.console import SafeConsole

if TYPE_CHECKING:
    from attnctl.readings.traces.consistency import Finding

GAP = 2  # cells between columns
LEAST_WRAPPED = 14  # cells of a column whose text may go on below


@dataclass(frozen=True)
class Column:
    """One column: its heading, its cells, and what becomes of it where a table is too wide."""

    heading: Text | str
    cells: Sequence[Text | str]
    rank: int | None = None  # columns of the lowest rank are left out first; None: never
    left: bool = False  # words, not numbers
    wraps: bool = False  # its text may go on below

    @property
    def least_width(self) -> int:
        """Cells that it needs at least."""
        widest = max(cell_len(str(cell)) for cell in (self.heading, *self.cells))
        return min(widest, LEAST_WRAPPED) if self.wraps else widest


def fitting_columns(columns: Sequence[Column], width: int) -> list[Column]:
    """The columns that fit into `width` cells."""
    kept = list(columns)
    leaving = sorted((one for one in columns if one.rank is not None), key=lambda one: one.rank or 0)
    while leaving and sum(one.least_width for one in kept) + GAP * (len(kept) - 1) > width:
        kept.remove(leaving.pop(0))
    return kept


def table_lines(columns: Sequence[Column], width: int | None = None) -> list[Text]:
    """The columns beside each other, in lines of at most `width` cells (None: as many as they take) without padding."""
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="not bold")
    for one in columns:
        table.add_column(
            one.heading,
            justify="left" if one.left else "right",
            no_wrap=not one.wraps,
            overflow="fold" if one.wraps else "ellipsis",
        )
    for cells in zip(*(one.cells for one in columns), strict=True):
        table.add_row(*cells)
    console = SafeConsole(width=width or 10_000, file=io.StringIO())
    lines = []
    for segments in console.render_lines(table, pad=False):
        line = Text(no_wrap=True, end="")
        for segment in segments:
            line.append(segment.text, segment.style)
        line.rstrip()
        line.end = "\n"
        lines.append(line)
    return lines


MARKS = {True: "✓", False: "✗", None: "·"}


def finding_lines(findings: Sequence[Finding], width: int | None = None) -> list[str]:
    """A line for each finding of a check: whether it holds (· where it could not be checked), what, and what was found.

    Where what was found has no room in `width` cells (None: any number), it goes on below.
    """
    column = max((len(one.what) for one in findings), default=0)
    lines: list[str] = []
    for one in findings:
        line = f"{MARKS[one.holds]} {one.what:{column}}  {one.found}"
        if width is None or len(line) <= width:
            lines.append(line)
        else:
            lines += wrap(f"{MARKS[one.holds]} {one.what}", max(width, 20), subsequent_indent="  ")
            lines += wrap(one.found, max(width, 20), initial_indent="    ", subsequent_indent="    ")
    return lines
