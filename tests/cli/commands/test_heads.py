"""`attnctl heads` from outside: which heads --top keeps, and what the table says of its order."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnctl.models import open_model
from attnctl.models.watching import ProbeReading, probe_text
from tests.conftest import Run


@pytest.mark.parametrize(("by", "heading"), [(None, "confid"), ("rank", "rank")])
def test_top_keeps_the_first_of_an_order_that_is_said(by: str | None, heading: str, run: Run) -> None:
    options = () if by is None else ("--by", by)
    every = run("heads", "Alice will eat pizza", "--json").json["heads"]
    kept = run("heads", "Alice will eat pizza", "--top", "3", "--json", *options).json["heads"]
    largest = sorted((one[by or "confidence"] for one in every), reverse=True)[:3]
    assert [one[by or "confidence"] for one in kept] == largest
    shown = run("heads", "Alice will eat pizza", "--top", "3", *options).out
    assert f"Sorted by {heading}, the largest first." in shown.replace("\n", " ")


def test_rollout_is_named_after_no_single_head(run: Run) -> None:
    named = run("heads", "Alice will eat pizza", "--json").json["heads"]
    assert any("verb → subject" in one["names"] for one in named)
    rolled = run("heads", "Alice will eat pizza", "--measure", "rollout", "--json").json
    assert "finds" not in rolled["model"] and not any("→" in name for one in rolled["heads"] for name in one["names"])
    assert "→" not in run("heads", "Alice will eat pizza", "--measure", "rollout").out
    run("explain", "Alice will eat pizza", "--measure", "rollout", "-o", "rolled.json")
    assert "→" not in run("heads", "rolled.json", "--csv").out


def test_the_probe_needs_no_text(run: Run) -> None:
    alone = run("heads", "--probe", "--model", "demo-causal", "--json")
    scores = probe_text(open_model("demo-causal")).read(ProbeReading())
    found = {(one["layer"], one["head"]): (one["induction"], one["duplicate"]) for one in alone.json["heads"]}
    assert found.keys() == scores.keys() and all(found[at] == pytest.approx(scores[at], abs=1e-6) for at in scores)
    tokens = [token["text"] for token in alone.json["tokens"]]
    assert len(tokens) == 200 and tokens[:100] == tokens[100:] and "random tokens said twice" in alone.err
    assert run("heads", "--json").code == 2


def test_the_table_as_a_page(run: Run) -> None:
    """What a page holds is what the terminal shows; a text is escaped."""
    made = run("heads", "a <b> & c", "--by", "first", "-o", "heads.html")
    page = Path("heads.html").read_text()
    assert made.code == 0 and not made.out and "Sorted by first" in page and "<th>entropy" in page
    assert page.count("<tr>") == 13 and "Content-Security-Policy" in page
