"""`attnctl align` at a terminal: the links of a target with its source."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="attnctl[hf] is not installed")

from tests.conftest import Run
from tests.tools.screen import rows_below


def test_links_of_an_alignment_are_those_of_the_json(at_terminal: Run) -> None:
    asked = ("align", "a will eat", "--model", "t5", "--target", "at will", "--words")
    made, document = at_terminal(*asked), at_terminal(*asked, "--json").json
    table = rows_below(made.out, ["target", "source", "weight"])[:2]
    assert table == [[link["text"], link["source_text"], f"{link['weight']:.2f}"] for link in document["links"]]
    for row, link in zip(document["weights"], document["links"], strict=True):
        assert max(row) == row[link["source"]] == pytest.approx(link["weight"], rel=1e-6)
    assert "the target is given" in made.out and "Pieces are merged into words" in made.err
    best = " ".join(f"{one['layer']}.{one['head']} ({one['score']:.2f})" for one in document["found_heads"])
    assert best in " ".join(made.out.split())


def test_a_narrow_terminal_shows_a_score_whole(at_terminal: Run, tmp_path: Path) -> None:
    """Three links, of which two are right, and one sure link is missed; the shares were cut to "0.6…"."""
    (tmp_path / "links").write_text("0-0 1-1 2-1\n")
    (tmp_path / "gold").write_text("0-0 1-1 2-2 3-3\n")
    shares = [f"{share:.3f}" for share in (2 / 3, 2 / 4, 1 - (2 + 2) / (3 + 4))]  # Och and Ney 2003
    for columns in (30, 40, 80):
        shown = at_terminal("align", str(tmp_path / "links"), "--gold", str(tmp_path / "gold"), columns=columns).out
        lines = [line.split() for line in shown.splitlines()]
        heading = next(number for number, line in enumerate(lines) if line[-1:] == ["AER"] and "precision" in line)
        assert lines[heading][-3:] == ["precision", "recall", "AER"] and lines[heading + 1][-3:] == shares
        assert len(lines[heading]) == len(lines[heading + 1]) == {30: 3, 40: 5, 80: 7}[columns]
