"""What explain prints: its numbers and words, and lines that never run over."""

from __future__ import annotations

import difflib
import io
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

import attnctl
from attnctl.layer import LayerTrace
from attnctl.readings.questions.head_roles import measured_checkpoints
from attnctl.readings.questions.headline import NOTHING, headline
from attnctl.render.form_builders.explanation import Explanation
from attnctl.render.form_builders.first_screen import FirstScreen
from attnctl.render.forms import Column, Grid, Table, label_fit, token_label
from attnctl.render.terminal.console import SafeConsole, Shown, as_text, kept_lines
from attnctl.text import number_text
from attnctl.text.tokens import Token
from attnctl.trace import Headline, Trace
from attnctl.trace.model_info import ModelInfo
from attnctl.trace.subject import Subject
from tests.conftest import attend


def printed(trace: attnctl.Trace, width: int = 80, color: bool = False, **how: Any) -> str:
    page = io.StringIO()
    how_shown = {"force_terminal": color, "color_system": "truecolor" if color else None}
    console = SafeConsole(file=page, width=width, legacy_windows=False, **how_shown)
    console.print(Shown(Explanation(trace, [*filter(None, [headline(trace)])], **how).forms()))
    return page.getvalue()


def test_the_scaling_is_measured_on_the_scores_shown() -> None:
    trace = attend("Alice will eat pizza", model="demo", layer=1, head=0, query="eat")
    text = " ".join(printed(trace, only=("scaled",), heads={1: [0]}).split())
    scores = trace.layer(1).scores
    row = scores[0, 0].astype(np.float64)  # (n,)
    assert f"and {np.exp(row.max() - np.log(np.exp(row).sum())):.2f} without the scaling" in text


HOSTILE = "Alice مرحبا \x1b[31m will\teat [bold]pizza[/bold] <b>比萨饼</b> 👩‍👩‍👧 e\u0301 supercalifragilisticexpialidocious :smile:"


def test_no_line_is_wider_than_the_terminal() -> None:
    trace = attend(HOSTILE, n_heads=2, d_model=16, n_layers=2, rope_theta=1e4, causal=True)
    for width in (32, 80, 133):
        text = printed(trace, width, story=True)
        for line in text.splitlines():
            assert cell_len(line) <= width, line
            assert line == line.rstrip()
            assert not line or line.strip(" ▏▎▍▌▋▊▉█"), "a bar on a line of its own"
        assert "\x1b" not in text


def first_screen(info: ModelInfo, **line: Any) -> str:
    """The first screen of four words, whose only head has one weight in each row."""
    weights = np.eye(4, dtype=np.float32)[None, [0, 0, 1, 2]]
    layer = LayerTrace(layer=2, heads=(0,), kv_heads=(0,), weights=weights)
    tokens = tuple(Token(word) for word in ["a", "b", "c", "d"])
    return as_text(
        Shown(FirstScreen(Trace(Subject("a b c d", tokens, info), (layer,)), Headline(2, 0, 3, 2, 1.0, **line)).forms())
    )


def test_the_first_screen_says_that_no_head_stands_out_or_what_was_measured_of_it() -> None:
    info = ModelInfo("some-model", "checkpoint", n_layers=6, n_heads=12)
    text = " ".join(first_screen(info, reason=NOTHING, stands_out=False).split())
    assert "No head stands out in this text" in text and NOTHING in text and "█" not in text
    assert "attnctl heads" in text and "attnctl ablate" in text
    digest, minilm = next((digest, one) for digest, one in measured_checkpoints().items() if one.name == "minilm")
    figure = next(row for row in minilm.roles if row[:2] == (2, 0))
    text = " ".join(first_screen(replace(info, sha256=digest), role=figure.role).split())
    assert "“d” looks at “c”: 100 % of its attention" in text
    assert "usually links an object to its verb (74 % of them" in text and "by distance alone 36 %)" in text
    assert "(74 %" not in first_screen(info, role=figure.role)


def test_a_bar_that_does_not_fit_is_left_out() -> None:
    words = "Mary thanked Tom because he likes tea"
    scaled = attend(words, model="random", query=4).layer(0).scaled_scores
    trace = attend(words, model="random", query=4, temperature=float(scaled.max()) / 7.3)  # exp(7.3) has four digits
    lines = printed(trace, 40).splitlines()
    assert any(re.search(r"\d{3,}[.]\d\d", line) for line in lines) and all(
        line.strip(" ▏▎▍▌▋▊▉█") for line in lines if line
    )


def test_what_is_isolated_stays_whole_and_nothing_else_is_isolated() -> None:
    trace = attend("I ❤️ 👩‍👩‍👧 مرحبا שלום supercalifragilistic مرحبامرحبامرحبامرحبامرحبا", tokenizer="words")
    for width in (32, 80):
        text = printed(trace, width)
        assert "\\u20" not in text  # no isolate shown as an escape
        assert text.count("\u2068") > 5 and "\u2068❤" not in text
        assert all(line.count("\u2068") == line.count("\u2069") for line in text.splitlines())


def grid_lines(grid: Grid, width: int) -> list[str]:
    return as_text(Shown([grid]), width).splitlines()


def test_columns_line_up_in_any_script() -> None:
    tokens = ["Alice", "比萨", "👩‍👩‍👧", "e\u0301", "مرحبا"]
    lines = grid_lines(Grid(np.eye(5), [token_label(t) for t in tokens], [token_label(t) for t in tokens]), 80)
    assert len(lines) == 6 and len({cell_len(line) for line in lines}) == 1


def test_the_heat_is_behind_the_numbers_and_never_instead_of_them() -> None:
    colored = printed(attend("a b c"), color=True)
    assert "\x1b[" in colored and "48;2;" in colored
    plain = re.sub(r"\x1b\[[0-9;]*m", "", colored)
    bare = printed(attend("a b c")).splitlines()
    # but for the sentence, once more, in the shades of the row that the summary tells of
    more = [line for line in difflib.ndiff(bare, plain.splitlines()) if line[0] in "+-"]
    assert [line.split() for line in more] == [["+", "a", "b", "c"]]


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 300), st.integers(1, 60), st.lists(st.integers(0, 299), max_size=2))
def test_kept_is_honest(count: int, room: int, must: list[int]) -> None:
    chosen = kept_lines(count, room, must)
    indices = [at for at in chosen if at is not None]
    assert indices == sorted(set(indices)) and indices
    if count <= room:
        assert indices == list(range(count))
    else:
        # every gap has its ellipsis
        gaps = sum(b > a + 1 for a, b in zip(indices, indices[1:], strict=False)) + (indices[0] > 0)
        assert sum(at is None for at in chosen) == gaps + (indices[-1] < count - 1)
        first = list(dict.fromkeys(at for at in must if at < count))[: max(room - 1, 1)]
        assert len(indices) <= max(room - 1, 1) and set(first) <= set(indices)


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 60), st.integers(1, 60), st.integers(40, 120))
def test_grids_fit(rows: int, columns: int, width: int) -> None:
    array = np.random.default_rng(0).standard_normal((rows, columns)) * 100
    grid = Grid(array, [f"row{r}" for r in range(rows)], [f"column{c}" for c in range(columns)], sums=True)
    lines = grid_lines(grid, width)
    assert all(cell_len(line) <= width for line in lines)
    told = [line.split()[1:] for line in lines if line.startswith("  row")]
    assert len(told) == min(rows, 23 if rows > 24 else 24)
    assert all(re.fullmatch(r"-?\d+[.]\d\d|…", number) for numbers in told for number in numbers)  # whole, or left out
    sums = {f"{row.sum():.2f}" for row in array} if lines[0].endswith("Σ") else set()
    assert all(numbers[-1] in sums for numbers in told) if sums else all(len(numbers) >= 1 for numbers in told)


def test_numbers() -> None:
    assert number_text(-0.001, 2) == "0.00"
    assert number_text(-1.005, 1) == "-1.0"
    assert number_text(12345678.0, 2) == "1.23e+07"


def test_bars_are_exact_to_an_eighth_of_a_cell() -> None:
    bars = as_text(Shown([Table([Column("", [1.0, 0.0, 0.5, 0.26, 0.998], "bar", max_width=4)])]), 40).splitlines()
    assert bars == ["████", "", "██", "█", "████"]
    assert as_text(Shown([Table([Column("", [0.5], "bar", max_width=1)])]), 40) == "▌\n"


def test_a_wide_label_does_not_push_the_sum_below() -> None:
    """The one column that had room was as wide as its name, and "1.00" stood on a line of its own."""
    grid = Grid(np.full((7, 7), 1 / 7), ["Donaudampfschiff†"] * 7, ["السلام†abc"] * 7, sums=True, heat=True, must=(5,))
    for width in range(34, 45, 2):
        lines = grid_lines(grid, width)
        assert all(cell_len(line) <= width for line in lines)
        assert [line.split()[-1] for line in lines[:8]] == ["Σ"] + ["1.00"] * 7


def test_a_cut_label_keeps_its_mark() -> None:
    cut = {10: "whispered†", 8: "whispe…†", 4: "wh…†", 3: "wh…", 1: "…"}
    assert {width: label_fit("whispered†", width) for width in cut} == cut
    assert [token_label(Token("whispered", unknown=unknown), 6) for unknown in (True, False)] == ["whis…†", "whisp…"]


def test_a_long_name_hides_no_column() -> None:
    names = ["<|im_start|>", "Le", "chat", "d", "ort", "😺₁", "😺₂"]
    grid = Grid(np.full((7, 7), 0.14), names, names, heat=True, sums=True)
    shown = grid_lines(grid, 75)
    assert len(shown) == 8 and "…  " not in shown[0].replace("<|im_st…  ", "") and max(map(cell_len, shown)) <= 75


@pytest.mark.parametrize(
    ("row", "kind", "finds", "says"),
    [
        ([0.9, 0.1, 0, 0, 0, 0], "matrix", None, "Most words look at the first token here: attention is parked there"),
        ([0.9, 0.1, 0, 0, 0, 0], "random", None, None),  # no training, no place to park
        ([0.4, 0.3, 0.3, 0, 0, 0], "matrix", None, None),  # the strongest link, but not where most words look
        ([0, 0, 0.2, 0, 0, 0.8], "demo", ((0, 0, "verb → subject"),), "What it keeps for itself is parked there"),
        ([0, 0, 0.2, 0, 0, 0.8], "checkpoint", None, "on the token itself is often parked there"),
        ([0, 0, 0.2, 0, 0, 0.8], "dot", None, None),  # a row is its own best match where queries are keys
        ([0, 0, 0.3, 0.3, 0, 0.4], "matrix", None, None),
    ],
)
def test_attention_is_called_parked_where_that_was_measured(
    row: list[float], kind: str, finds: Any, says: str | None
) -> None:
    weights = np.tile(np.array(row, np.float32), (1, 6, 1))  # (1, 6, 6)
    layer = LayerTrace(0, (0,), (0,), weights=weights)
    trace = Trace(
        Subject("a b c d e f", tuple(map(Token, "abcdef")), ModelInfo("x", kind, n_heads=1, finds=finds)), (layer,)
    )
    found = headline(trace, query=5)
    assert found is not None
    said = as_text(Shown(Explanation(trace, [found], only=["summary"]).forms()), 160)
    assert (says in said) if says else ("parked" not in said)
