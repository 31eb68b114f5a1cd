"""Statistics of each head: as a table, and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from attnctl.readings.head_statistics import HeadStatistics
from attnctl.readings.statistic_table import LEAST_TOKENS, STATISTICS, Statistic
from attnctl.render.terminal.number_grid import DIM, heat_style, padded_text
from attnctl.render.terminal.tables import Column, fitting_columns, table_lines

DOUBT = f" ?: the text has fewer than {LEAST_TOKENS} tokens, too few to tell what a head does."


def ranked_by(heads: Sequence[HeadStatistics], measure: str | None) -> list[HeadStatistics]:
    """The heads, those with most of a measure first; None leaves them layer by layer."""
    if measure is None:
        return list(heads)

    def sort_key(head: HeadStatistics) -> tuple[float, int, int]:
        value = head[measure]
        return (float("inf") if value is None else -value, head.layer, head.head)

    return sorted(heads, key=sort_key)


class HeadTable:
    """Statistics of heads as a rich renderable: one line a head, the statistics that any head has; `measure` stands out.

    `more` are sentences that end the legend, each after a space.
    """

    def __init__(self, heads: Sequence[HeadStatistics], measure: str | None = None, more: str = "") -> None:
        self.heads, self.measure, self.more = heads, measure, more
        self.known = [one for one in STATISTICS.values() if any(head[one.name] is not None for head in heads)]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table, as wide as the terminal allows; in a pipe with every column."""
        coloured = console.color_system is not None and not console.no_color
        columns = [
            Column(Text("layer", DIM), [str(head.layer) for head in self.heads]),
            Column(Text("head", DIM), [str(head.head) for head in self.heads]),
            *(self._statistic_column(one, coloured) for one in self.known),
            Column(
                Text("looks like", DIM), [Text(", ".join(head.names), DIM) for head in self.heads], None, True, True
            ),
        ]
        width = options.max_width if console.is_terminal else None
        kept = columns if width is None else fitting_columns(columns, width)
        yield from table_lines(kept, width)
        if out := [str(one.heading).strip() for one in columns if one not in kept]:
            said = Text(f"left out for width: {', '.join(out)} (--csv has them all)", DIM)
            for line in said.wrap(console, options.max_width):
                line.rstrip()
                yield line
        shown = [one for one in self.known if any(str(column.heading).strip() == one.heading for column in kept)]
        doubted = any(name.endswith("?") for head in self.heads for name in head.names)
        for line in Text(legend_text(shown, self.measure) + DOUBT * doubted + self.more, DIM).wrap(
            console, options.max_width
        ):
            line.rstrip()
            yield line

    def _statistic_column(self, one: Statistic, coloured: bool) -> Column:
        own = one.name == self.measure
        shaded = coloured and one.is_share
        values = [head[one.name] for head in self.heads]
        cells = [
            Text(padded_text(_statistic_cell(one, value), 6), heat_style(value) if shaded and value is not None else "")
            for value in values
        ]
        return Column(Text(padded_text(one.heading, 6), "bold" if own else DIM), cells, None if own else one.rank)


def legend_text(shown: Sequence[Statistic], measure: str | None = None) -> str:
    """What the columns hold, from what on a head bears a statistic's label, and what the heads are sorted by."""
    told = [f"{one.heading}: {one.title_with_unit}{one.label_text}" for one in shown]
    by = "" if measure is None else f" Sorted by {STATISTICS[measure].heading}, the largest first."
    return f"Means over the queries. {'; '.join(told)}.{by}"


def _statistic_cell(one: Statistic, value: float | None) -> str:
    if value is None:
        return "·"
    if one.unit == "places":
        return f"{value:+.0f}" if value else "0"
    return f"{value:.3f}" if one.is_share else f"{value:.2f}" if value < 100 else f"{value:.0f}"


def heads_csv(heads: Sequence[HeadStatistics]) -> str:
    """One line a head, with a line of names above; what has no value is empty."""
    page = io.StringIO()
    writer = csv.writer(page, lineterminator="\n")
    writer.writerow(["layer", "head", *STATISTICS, "names"])
    for head in heads:
        values = ["" if (value := head[name]) is None else f"{value:.6g}" for name in STATISTICS]
        writer.writerow([head.layer, head.head, *values, "; ".join(head.names)])
    return page.getvalue()
