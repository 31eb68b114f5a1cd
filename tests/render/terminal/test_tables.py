"""Tables of numbers: as wide as their numbers, the least telling columns left out."""

from __future__ import annotations

import pytest
from rich.text import Text

from attnctl.readings.head_statistics import STATISTICS, HeadStatistics
from attnctl.render.terminal.console import Column, SafeConsole, fitting_columns, table_lines
from attnctl.render.terminal.head_tables import HeadTable

COLUMNS = (
    Column("name", ["a", "bb"], left=True),
    Column("one", ["1.5", "10.5"], rank=2),
    Column("two", [Text("x", "bold"), "y"], rank=1),
)


def test_the_least_telling_column_goes_first() -> None:
    assert fitting_columns(COLUMNS, 80) == [*COLUMNS]
    assert [str(one.heading) for one in fitting_columns(COLUMNS, 14)] == ["name", "one"]
    assert [str(one.heading) for one in fitting_columns(COLUMNS, 1)] == ["name"]


def test_numbers_are_aligned_and_lines_end_where_they_end() -> None:
    lines = [line.plain for line in table_lines(COLUMNS)]
    assert lines == ["name   one  two", "a      1.5    x", "bb    10.5    y"]
    assert [line.plain for line in table_lines(COLUMNS[:1])] == ["name", "a", "bb"]


@pytest.mark.parametrize("width", [40, 80, 200])
def test_statistics_of_heads_fit(width: int) -> None:
    values = dict.fromkeys(STATISTICS, 0.123)
    heads = [HeadStatistics(11, at, values, ("duplicate token", "induction", "sink")) for at in range(3)]
    console = SafeConsole(width=width, force_terminal=True, color_system=None)
    with console.capture() as shown:
        console.print(HeadTable(heads, "rank"))
    lines = shown.get().splitlines()
    assert max(map(len, lines)) <= width and not any(line != line.rstrip() for line in lines)
    assert "rank" in lines[0] and "induction" in shown.get()
    assert ("left out for" in shown.get()) == (width < 200)
    legend = " ".join(shown.get().split("Means over the queries. ")[1].split())
    assert ("duplicate token: 0.4 or more" in legend) == (width == 200) and "Sorted by rank" in legend
    assert all(one.heading not in lines[0] or f"{one.heading}: " in legend for one in STATISTICS.values())
