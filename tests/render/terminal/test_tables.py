"""Tables: as wide as what is in them, the least telling columns left out."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from rich.padding import Padding
from rich.text import Text

from attnctl.render.forms import Column, Grid, Line, Table, label_fit, shaded_tokens, sum_columns
from attnctl.render.page.reading_pages import form_html
from attnctl.render.terminal import console
from attnctl.render.terminal.console import SafeConsole, Shown, as_text
from attnctl.text.tokens import split_words

TABLE = Table([
    Column("name", ["a", "bb"], "text"),
    Column("one", [1.5, 10.5], format=".1f", rank=2),
    Column("two", [None, 3], rank=1),
    Column("three", [None, None]),
])  # fmt: skip


def lines(table: Table, width: int) -> list[str]:
    return as_text(Shown([table]), width).splitlines()


def test_the_least_telling_column_goes_first_and_is_named() -> None:
    assert lines(TABLE, 80) == ["name   one  two", "a      1.5    ·", "bb    10.5    3"]
    wide = Table([*TABLE.columns, Column("wide", ["x" * 10] * 2, "text")])
    assert lines(wide, 24)[0] == "name   one  wide" and lines(wide, 24)[3:] == ["left out for width: two"]
    assert lines(wide, 20)[0] == "name  wide" and lines(wide, 20)[3:] == ["left out for width:", "one, two"]


def test_a_text_gives_way_before_it_is_cut_at_the_edge() -> None:
    name = "a name of many words that is long"
    for cut, shown in (
        ("end", ["name               n", "a name of many w…  1"]),
        ("start", ["             name  n", "…rds that is long  1"]),
        ("below", ["name               n", "a name of many     1", "words that is", "long"]),
    ):
        assert lines(Table([Column("name", [name], "text", cut=cut), Column("n", [1])]), 20) == shown


def test_bars_take_what_is_left_and_numbers_stand_in_files_as_they_are() -> None:
    table = Table(
        [
            Column("n", ["=x", 'y"'], "text"),
            Column("", [0.5, 1.0], "bar", max_width=20, name=""),
            Column("s", [0.123456789, None], "share"),
        ]
    )
    assert lines(table, 80)[1:] == ["=x  ██████████            12.3 %", 'y"  ████████████████████       ·']
    assert lines(table, 20)[2] == 'y"  ████████       ·'
    assert table.as_csv() == 'n,s\n\'=x,0.123457\n"y""",\n'


LINE = Line(
    [("a <b>", "bold"), "(first)", ("second", "", -1), ("third", "", -2)],
    mark="1",
    right=("2 × 3", "dim"),
    between="   ",
)


def told(html: str) -> str:
    return " ".join(re.sub("<[^>]*>", " ", html).split())


def test_a_line_tells_its_ranked_pieces_where_there_is_room() -> None:
    said = [lines_of_form(LINE, width)[0].split() for width in (60, 34, 26)]
    assert said[0] == ["1a", "<b>", "(first)", "second", "third", "2", "×", "3"]
    assert "third" not in said[1] and "second" in said[1] and "second" not in said[2] and "(first)" in said[2]
    rest = ("{} more", "{} numbers")
    short = Line([*(f"{at} " for at in range(3)), *((f"{at}, ", "", -at) for at in range(9))], omission=rest, cut=True)
    assert lines_of_form(short, 20) == ["0 1 2 0, 1, 7 more"]
    alone = Line([*((f"{at} thousand millions, ", "", -at) for at in range(1, 9)), " = 36"], omission=rest)
    assert lines_of_form(alone, 20) == ["8 numbers = 36"]
    assert lines_of_form(Line("word " * 9, lines=2), 20) == ["word word word word", "word word word word…"]
    assert lines_of_form(Line(["abcdefghijklmnop", " is ", "xyz"], cut=True), 20) == ["abcdefghijkl… is xyz"]


def test_a_word_of_thousands_of_letters_takes_a_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    word, steps = "x" * 20_000, list[str]()
    monkeypatch.setattr(console, "label_fit", lambda text, width: steps.append(text) or label_fit(text, width))
    cut = Line(["before ", word, " and ", word, " after"], cut=True)
    assert lines_of_form(cut, 40) == [f"before {'x' * 10}… and {'x' * 10}… after"]
    assert len(steps) < 100  # one cell after the other it would be 20,000 for each
    divided = list[int]()
    divide = Text.divide
    monkeypatch.setattr(Text, "divide", lambda self, at: divided.append(len(self)) or divide(self, at))
    lines = lines_of_form(Line(f"a {word} b", indent=2, hanging=2), 42)
    assert lines == ["  a", *["    " + "x" * 38] * 526, f"    {'x' * 12} b"]
    assert sum(divided) < 3 * len(word)
    assert lines_of_form(Line(f"a {word} b", lines=3), 20) == ["a", "x" * 20, "x" * 19 + "…"]


def lines_of_form(form: Line | Grid, width: int) -> list[str]:
    return as_text(Shown([form]), width).splitlines()


def test_sums_keep_their_results_and_a_page_has_all_that_a_terminal_leaves_out() -> None:
    sums = Table(
        sum_columns(["q ="], [["1×2", " + 3×4", " + 5×6"]], ["44"]), omission="… 2 more rows", foot=["Σ", "", "", "44"]
    )
    assert lines(sums, 80) == ["q =  1×2 + 3×4 + 5×6 = 44", "… 2 more rows", "Σ" + " " * 22 + "44"]
    assert lines(sums, 24)[0] == "q =  1×2 + … 2 more = 44"
    assert told(form_html(sums)) == "q = 1×2 + 3×4 + 5×6 = 44 Σ 44 … 2 more rows"
    assert told(form_html(LINE)) == "1 a &lt;b&gt; (first) second third 2 × 3" and form_html("") == ""
    mask = Grid(np.array([[True, False]]), ["row"], ["x", "y"], strong=(0,))
    assert told(form_html(mask)) == "x y row ✓ ·" == " ".join(" ".join(lines_of_form(mask, 40)).split())


def test_a_shaded_text_is_shown_where_there_are_colours() -> None:
    texts = Shown(["before", *shaded_tokens(split_words("less 0 more"), [-1.0, 0.0, 1.0], "change")])
    assert as_text(texts).splitlines() == ["before"]
    page = io.StringIO()
    console = SafeConsole(file=page, width=40, force_terminal=True, color_system="truecolor", no_color=False)
    console.print(texts)
    less, none, more = page.getvalue().splitlines()[1].split(" ")
    assert "48;2;58;111;184" in less and none == "0" and "48;2;230;97;1" in more
    assert shaded_tokens(split_words("w " * 61), [0.0] * 61) == []


def test_a_table_without_values_is_no_table() -> None:
    assert lines(Table([Column("n", []), Column("s", [None, None])]), 80) == []


@pytest.mark.parametrize("width", [24, 40, 200])
@pytest.mark.parametrize("colours", [None, "truecolor"])
def test_cells_that_are_never_cut_look_like_rich_texts(
    width: int, colours: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(
        [
            Column("layer", [0, 1, 10]),
            Column("word", ["é 🍕", "\x1b[31mred", "none"], "text"),
            Column("mass", [0.25, None, 1.0], "heat", "{:.3f}".format),
            Column("a long heading", [-3, 4, 5], rank=1, tone="bold"),
        ],
        strong=(False, True, False),
    )

    def shown() -> str:
        page = io.StringIO()
        SafeConsole(file=page, width=width, color_system=colours, force_terminal=bool(colours)).print(Shown([table]))
        return page.getvalue()

    ours = shown()

    def as_rich_text(cell: Any, *_: object) -> Iterator[Padding]:
        yield Padding(console.safe_text(cell.text, cell.style), (0, 0, 0, cell.gap))

    monkeypatch.setattr(console._Fitted, "__rich_console__", as_rich_text)
    assert ours == shown() and "é 🍕" in ours
