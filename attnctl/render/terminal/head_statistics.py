"""Statistics of each head: as a table, and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.style import Style
from rich.text import Text

from attnctl.readings.head_statistics import STATISTICS, HeadStatistics
from attnctl.render.terminal.number_grid import DIM, heat, padded


def by(facts: Sequence[HeadStatistics], measure: str | None) -> list[HeadStatistics]:
    """The heads, those with most of a measure first; None leaves them layer by layer."""
    if measure is None:
        return list(facts)

    def key(fact: HeadStatistics) -> tuple[float, int, int]:
        value = fact[measure]
        return (float("inf") if value is None else -value, fact.layer, fact.head)

    return sorted(facts, key=key)


class Table:
    """Facts of heads as a rich renderable: one line a head, the measures that any head has."""

    def __init__(self, facts: Sequence[HeadStatistics], measure: str | None = None) -> None:
        self.facts, self.measure = facts, measure
        self.measures = [name for name in STATISTICS if any(fact[name] is not None for fact in facts)]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Headings, the heads."""
        coloured = console.color_system is not None and not console.no_color
        shown = self._fitting(options.max_width) if console.is_terminal else self.measures
        header = Text("layer head", style=DIM, no_wrap=True)
        for name in shown:
            header.append(padded(STATISTICS[name].heading, 8), style="bold" if name == self.measure else "")
        yield header.append("  looks like")
        for fact in self.facts:
            line = Text(f"{fact.layer:>5} {fact.head:>4}", no_wrap=True)
            for name in shown:
                value = fact[name]
                style = heat(value) if coloured and value is not None and STATISTICS[name].is_share else Style()
                line.append("  ").append(padded(_written(name, value), 6), style=style)
            yield line.append(f"  {', '.join(fact.names)}".rstrip(), style=DIM)
        if len(shown) < len(self.measures):
            out = ", ".join(STATISTICS[name].heading for name in self.measures if name not in shown)
            yield Text(f"left out for width: {out} (--csv has them all)", style=DIM)

    def _fitting(self, width: int) -> list[str]:
        """The measures that a terminal has room for beside the names, the least telling left out first."""
        longest = max((len(", ".join(fact.names)) for fact in self.facts), default=0)
        room = max(3, (width - 10 - 2 - max(longest, 10)) // 8)
        least = sorted((name for name in self.measures if name != self.measure), key=lambda name: STATISTICS[name].rank)
        out = least[: max(0, len(self.measures) - room)]
        return [name for name in self.measures if name not in out]


def _written(name: str, value: float | None) -> str:
    if value is None:
        return "·"
    return f"{value:.3f}" if STATISTICS[name].is_share else f"{value:.2f}" if value < 100 else f"{value:.0f}"


def as_csv(facts: Sequence[HeadStatistics]) -> str:
    """One line a head, with a line of names above; what has no value is empty."""
    page = io.StringIO()
    writer = csv.writer(page, lineterminator="\n")
    writer.writerow(["layer", "head", *STATISTICS, "names"])
    for fact in facts:
        values = ["" if (value := fact[name]) is None else f"{value:.6g}" for name in STATISTICS]
        writer.writerow([fact.layer, fact.head, *values, "; ".join(fact.names)])
    return page.getvalue()
