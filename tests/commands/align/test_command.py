"""`attnctl align` at a terminal: the links of a target with its source."""

from __future__ import annotations

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
