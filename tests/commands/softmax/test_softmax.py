"""`attnctl softmax` from outside, against float64 by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from attnctl.commands.softmax.compute import work_out_softmax
from attnctl.commands.softmax.show import softmax_forms
from attnctl.render.terminal.console import Shown, as_text
from tests.conftest import Run
from tests.tools.screen import cells, marked, rows_below, told


def by_hand(scores: list[float]) -> np.ndarray:
    e = [math.exp(x) for x in scores]
    return np.array([x / sum(e) for x in e])


def test_the_json_is_exact(run: Run) -> None:
    scores = [8.1, 1.2, 3.0, 6.5]
    document = run("softmax", *map(str, scores), "--scale", "1/8", "--temperature", "2", "--json").json
    assert document["schema"] == "attnctl.softmax/1" and document["scale"] == 0.125
    assert np.allclose(document["weights"], by_hand([x / 16 for x in scores]), rtol=1e-12)
    assert np.allclose(np.divide(document["exponentials"], document["sum"]), document["weights"], rtol=1e-12)
    assert np.allclose(document["divided_by_sum"], np.array(scores) / 18.8, rtol=1e-12)
    for entry in document["scales"]:
        assert np.allclose(entry["weights"], by_hand([x * entry["scale"] / 2 for x in scores]), rtol=1e-12)
    entropy = -sum(w * math.log(w) for w in document["weights"])
    assert math.isclose(document["entropy"], entropy, rel_tol=1e-12)


def test_a_scale_can_be_written_in_several_ways(run: Run) -> None:
    ways = (["--scale", "0.125"], ["--scale", "1/8"], ["--scale", "1/√64"], ["--d-k", "64"])
    assert len({run("softmax", "3", "-1", *way, "--json").out for way in ways}) == 1


def test_negative_masked_and_large_scores(run: Run) -> None:
    document = run("softmax", "-1", "2.5", "-inf", "--json").json
    assert document["scores"] == [-1, 2.5, None] and document["weights"][2] == 0
    assert np.allclose(document["weights"][:2], by_hand([-1, 2.5]), rtol=1e-12)
    assert "not shares" in run("softmax", "-1", "2.5", "-inf").out
    assert run("softmax", "1e4", "-1e4", "--json").json["weights"] == [1, 0]
    assert "add up to 0" in run("softmax", "1", "-1").out
    assert run("softmax", "0", "--json").json["weights"] == [1]
    lead = run("softmax", "1001", "1000", "--json").json["weights"]
    assert np.allclose(lead, by_hand([1, 0]), rtol=1e-9)


@pytest.mark.parametrize("written", [["1 2 -3"], ["1,2,-3"], ["[1, 2, -3]"], ["1,", "2,", "-3"]])
def test_scores_in_one_word_or_in_a_pipe_are_several(written: list[str], run: Run) -> None:
    result = run("softmax", "-", "--tokens", "Alice will eat", stdin="\n".join(written).encode())
    assert result.code == 0 and "eat" in result.out and "will takes" in result.out
    for given, stdin in ((written, b""), (["-"], "\n".join(written).encode())):
        assert run("softmax", *given, "--json", stdin=stdin).json["scores"] == [1, 2, -3]


def test_it_fits_any_width() -> None:
    worked = work_out_softmax(np.linspace(-3, 4, 40), tuple(f"a long name {at} 日本語" for at in range(40)), 0.3, 1.5)
    for width in (30, 80, 200):
        lines = as_text(Shown(softmax_forms(worked, 4)), width).splitlines()
        assert len(lines) > 100 and max(map(len, lines)) <= width


def test_no_end_of_a_line_is_lost(run: Run) -> None:
    for columns in range(60, 90):
        told = " ".join(run("softmax", "1", "2", "--temperature", "0.01", columns=columns).out.split())
        assert "is taken off each score before exp, so that none overflows: the shares stay the same." in told


@pytest.mark.parametrize(
    ("asked", "scores", "scale", "temperature"),
    [
        ("2 1 0.1 -3", [2, 1, 0.1, -3], 1, 1),
        ("5 5", [5, 5], 1, 1),
        ("1000 1001", [1000, 1001], 1, 1),
        ("-20 -30", [-20, -30], 1, 1),
        ("8.1 1.2 3.0 6.5 --scale 8 --temperature 2", [8.1, 1.2, 3, 6.5], 8, 2),
        ("20 11 0.1 --temperature 2 --d-k 64", [20, 11, 0.1], 1 / 8, 2),
    ],
)
def test_the_table_is_the_arithmetic_by_hand(
    asked: str, scores: list[float], scale: float, temperature: float, run: Run
) -> None:
    screen = run("softmax", *asked.split()).out
    scaled = [x * scale / temperature for x in scores]
    off = max(scaled) if abs(max(scaled)) > 9 else 0
    raised, weights, names = (
        [math.exp(x - off) for x in scaled],
        by_hand([x - off for x in scaled]),
        [f"{x:g}" for x in scores],
    )
    between = [told([x * scale, x * scale / temperature]) if temperature != 1 else [] for x in scores]
    lines = cells(screen)
    wanted = [[name, *steps, *told([e, w])] for name, steps, e, w in zip(names, between, raised, weights, strict=True)]
    assert [line for line in lines if line in wanted] == wanted
    assert ["Σ", *told([sum(raised), 1])] in lines and (
        f"exp(· {'-' if off > 0 else '+'} {abs(off):.2f})" in screen
    ) == bool(off)
    factors = {f"÷ {n}": 1 / n for n in (8, 4, 2)} | {f"× {n}": n for n in (1, 2, 4, 8)}
    table = rows_below(screen, names)[:7]
    assert [line[0] for line in table] == list(factors)
    for name, *row in table:
        at = [x * factors[name] / temperature for x in scores]
        assert row == told(by_hand([x - max(at) for x in at])), name
    assert marked(screen) == [{8: "× 8", 1: "× 1", 1 / 8: "÷ 8"}[scale]]
    assert [f"÷ {sum(scores):.2f}"] == [line[1] for line in lines if line[0] == "score" and line[1][0] == "÷"][-1:]
    shares = [[name, *told([x / sum(scores)])] for name, x in zip(names, scores, strict=True)]
    assert [line for line in lines if line in shares] == shares
