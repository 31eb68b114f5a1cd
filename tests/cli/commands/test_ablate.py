"""`attnctl ablate`: tables, and JSON against its schema."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

import attnctl
from attnctl.formats.documents.schemas import SCHEMAS
from attnctl.readings.effects import kendall_tau
from attnctl.render.figure.charts import effects_drawing
from tests.conftest import Run

TEXT = "Alice will eat"
VALID = Draft202012Validator(SCHEMAS["effects"]())


def test_effects_of_the_demo_equal_the_arithmetic_by_hand() -> None:
    """Each head's context × its rows of W_O taken out of the last layer's output, and the softmax taken again."""
    model = attnctl.open_model("demo")
    trace = attnctl.attend(TEXT)
    last = trace.layers[-1]
    found = attnctl.effects("demo", TEXT)
    width = last.context.shape[-1]
    for one in found.heads:
        if one.layer != last.layer:
            continue
        lost = last.context[one.head] @ last.parameters["W_O"][one.head * width : (one.head + 1) * width]
        logits = (last.residual - lost)[-1] @ model.unembedding
        expected = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
        assert one.log_probability + found.baseline.log_probability == pytest.approx(
            expected[found.target.id], abs=1e-4
        )


def test_reference_texts(run: Run, tmp_path: Any) -> None:
    file = tmp_path / "others.txt"
    file.write_text("Bob will read books\nBob will drink\n")
    mean = run("ablate", TEXT, "--how", "mean", "--reference", str(file), "--json").json
    other = run("ablate", TEXT, "--how", "resample", "--reference", str(file), "--json").json
    zero = run("ablate", TEXT, "--json").json
    assert len({json.dumps(document["heads"]) for document in (mean, other, zero)}) == 3
    assert (mean["how"], other["how"]) == ("mean", "resample")


def test_top_means_edges_too(run: Run) -> None:
    every = run("ablate", TEXT, "--edges", "--json").json["edges"]
    two = run("ablate", TEXT, "--edges", "--top", "2", "--json").json["edges"]
    sizes = sorted((abs(edge["log_probability"]) for edge in every), reverse=True)
    assert [edge for edge in every if edge in two] == two  # in the order of the text
    assert sorted((abs(edge["log_probability"]) for edge in two), reverse=True) == sizes[:2]
    assert len(every) == 3 and "1 more does less" in run("ablate", TEXT, "--edges", "--top", "2").out


def test_edges_of_the_watched_query_and_what_it_loses(run: Run) -> None:
    edges = run("ablate", TEXT, "--edges", "--json").json["edges"]
    assert [edge["key"] for edge in edges] == [0, 1, 2]
    one = run("ablate", TEXT, "--edge", "eat→Alice", "--json").json["edges"]
    assert one[0] == edges[0]
    both = run("ablate", TEXT, "--edge", "eat→Alice", "--edge", "eat→will", "--json").json["edges"]
    assert both[:2] == edges[:2]
    assert both[2]["together"] is True
    assert both[2]["log_probability"] not in (edges[0]["log_probability"], edges[1]["log_probability"])
    elsewhere = run("ablate", TEXT, "--edge", "will→Alice", "--json").json["edges"][0]
    assert (elsewhere["query"], elsewhere["key"]) == (1, 0)


def test_what_is_told_of_several_edges_of_final_states_and_of_a_blank(run: Run, tmp_path: Any) -> None:
    both = run("ablate", TEXT, "--edge", "eat→Alice", "--edge", "eat→will").out
    assert "all of these together" in both
    assert "the final states turn furthest: cosine distance" in " ".join(
        run("ablate", TEXT, "-m", "random").out.split()
    )
    assert run("ablate", "Alice will ____ a pizza", "-o", tmp_path / "e.svg").code == 0
    drawn = (tmp_path / "e.svg").read_text()
    assert "at “____”, demo" in drawn and "after “____”" not in drawn


def test_kendall_tau_of_known_rankings() -> None:
    assert kendall_tau([1, 2, 3, 4], [1, 2, 3, 4]) == 1
    assert kendall_tau([1, 2, 3, 4], [4, 3, 2, 1]) == -1
    assert kendall_tau([1, 2, 3, 4], [2, 1, 4, 3]) == pytest.approx(1 / 3)
    assert kendall_tau([1, 1, 2], [1, 2, 3]) == pytest.approx(2 / np.sqrt(6))  # by hand: 2 concordant, one tie
    assert kendall_tau([1, 1], [1, 2]) is None
    assert kendall_tau([1], [1]) is None


def test_contributions_are_printed_as_a_sum_beside_the_models_own(run: Run) -> None:
    out = run("explain", TEXT, "--steps", "contributions").out
    total, own = (line.split()[-1] for line in out.splitlines() if line.startswith(("sum ", "the model's own")))
    assert float(total) == pytest.approx(float(own), rel=1e-4)
    document = run("explain", TEXT, "--steps", "contributions", "--json").json
    VALID.validate(document)
    parts = document["contributions"]["parts"]
    assert sum(part["value"] for part in parts) == pytest.approx(document["contributions"]["logit"], rel=1e-5)
    written = {(h["layer"], h["head"]): h["writes"] for h in run("ablate", TEXT, "--json").json["heads"]}
    assert written == {(p["layer"], p["head"]): pytest.approx(p["value"]) for p in parts if p["part"] == "head"}


def test_the_word_watched_is_named_alike_wherever_one_is_watched(run: Run, tmp_path: Any) -> None:
    named = ("--target", "pizza", "--against", "soup")
    wanted = run("ablate", TEXT, *named, "--json").json
    found = run("explain", TEXT, "--steps", "contributions", *named, "--json").json
    for one in ("target", "against", "baseline"):
        assert found[one] == wanted[one]
    parts = {(part["layer"], part["head"]): part["value"] for part in found["contributions"]["parts"] if "head" in part}
    assert parts == {(head["layer"], head["head"]): pytest.approx(head["writes"]) for head in wanted["heads"]}
    told = " ".join(run("explain", TEXT, "--steps", "contributions", *named).out.split())
    assert "above that of “soup”" in told and "the model's own difference" in told and "two words' rows" in told
    page = tmp_path / "page.html"
    assert run("view", TEXT, "--effects", *named, "-o", page, "--no-open").code == 0
    assert '"against":{"text":"soup"' in page.read_text()


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.8, "80 %"),
        (0.034, "3.4 %"),
        (0.0007, "0.070 %"),
        (2e-7, "2.0e-5 %"),
        (0.0996, "10 %"),
        (0.0, "0 %"),
        (None, "·"),
    ],
)
def test_shares_are_read_easily(share: float | None, text: str) -> None:
    from attnctl.text import sentence_percent

    assert sentence_percent(share) == text


@pytest.mark.parametrize("how", [{}, {"target": "eat", "against": "see"}])
def test_the_picture_of_a_small_model_names_its_colours_whole(how: dict[str, str]) -> None:
    drawing = effects_drawing(attnctl.effects("demo", "The cat will ____ it", **how))
    texts = [text.get_text() for text in drawing.figure.texts]
    assert any(text in texts for text in ("Δ log p (nats)", "Δ logits")) and not any("…" in text for text in texts)


def test_a_page_shades_the_text_by_all_that_was_cut_from_the_watched_token(run: Run, tmp_path: Path) -> None:
    def places(*asked: str) -> list[str]:
        path = tmp_path / "effects.html"
        assert run("ablate", "Alice will ____ it", *asked, "-o", path).code == 0
        page = path.read_text()
        assert len(re.findall(r"<td data-map=difference data-place=[\d.]+>[+-]", page)) == page.count("<tr>") - 1
        return re.findall(r"<span data-map=difference data-place=([\d.]+)", page)

    every = places("--edges")
    assert len(set(every)) == 4 and places("--edges", "--top", "1") == every  # --top shortens the table alone
    assert places("--edge", "will→Alice", "--edge", "it→Alice") == []  # of two queries: whose would it be?
