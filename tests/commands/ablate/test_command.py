"""`attnctl ablate`: tables, and JSON against its schema."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnctl
from attnctl.commands.ablate.figure import effects_drawing
from attnctl.readings.rank_correlation import kendall_tau
from attnctl.text import sentence_percent
from tests.conftest import Run, check_schema
from tests.tools.screen import cells, rows_below

TEXT = "Alice will eat"


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


@pytest.mark.parametrize("model", ["demo", "llama"])
def test_reference_texts(model: str, run: Run, room: Path) -> None:
    if model == "llama":
        pytest.importorskip("transformers", reason="attnctl[hf] is not installed")
    Path("others.txt").write_text("Clara will read books\nAlive will eat\n")
    asked = ("ablate", TEXT, "--model", room / model if model == "llama" else model, "--json")
    referred = [run(*asked, "--how", how, "--reference", "others.txt").json for how in ("mean", "resample")]
    assert [document["how"] for document in referred] == ["mean", "resample"]
    assert len({json.dumps(document["heads"]) for document in (*referred, run(*asked).json)}) == 3


def test_edges_of_the_watched_query_and_what_it_loses(run: Run) -> None:
    def edges(*asked: str) -> Any:
        return run("ablate", TEXT, *asked, "--json").json["edges"]

    every, two = edges("--edges"), edges("--edges", "--top", "2")
    assert [edge["key"] for edge in every] == [0, 1, 2]
    by_size = sorted(every, key=lambda edge: -abs(edge["log_probability"]))
    assert two == by_size[:2]
    cut = [line[0] for line in cells(run("ablate", TEXT, "--edges", "--top", "2").out) if " → " in line[0]]
    assert [name.rpartition("(")[2].rstrip(")") for name in cut] == [str(edge["key"]) for edge in two]
    sizes = sorted((abs(edge["log_probability"]) for edge in every), reverse=True)
    assert sorted((abs(edge["log_probability"]) for edge in two), reverse=True) == sizes[:2]
    assert "1 more does less" in run("ablate", TEXT, "--edges", "--top", "2").out
    both = ("--edge", "eat→Alice", "--edge", "eat→will")
    *single, together = edges(*both)
    assert single == every[:2] and edges(*both[:2])[0] == every[0]
    assert together["together"] is True and "all of these together" in run("ablate", TEXT, *both).out
    assert together["log_probability"] not in [edge["log_probability"] for edge in single]
    (elsewhere,) = edges("--edge", "will→Alice")
    assert (elsewhere["query"], elsewhere["key"]) == (1, 0)


def test_what_is_told_of_final_states_and_of_a_blank(run: Run) -> None:
    told = " ".join(run("ablate", TEXT, "-m", "random").out.split())
    assert "the final states turn furthest: cosine distance" in told
    assert run("ablate", "Alice will ____ a pizza", "-o", "e.svg").code == 0
    drawn = Path("e.svg").read_text()
    assert "at “____”, demo" in drawn and "after “____”" not in drawn


def test_kendall_tau_of_known_rankings() -> None:
    assert kendall_tau([1, 2, 3, 4], [1, 2, 3, 4]) == 1
    assert kendall_tau([1, 2, 3, 4], [4, 3, 2, 1]) == -1
    assert kendall_tau([1, 2, 3, 4], [2, 1, 4, 3]) == pytest.approx(1 / 3)
    assert kendall_tau([1, 1, 2], [1, 2, 3]) == pytest.approx(2 / np.sqrt(6))  # by hand: 2 concordant, one tie
    assert kendall_tau([1, 1], [1, 2]) is None
    assert kendall_tau([1], [1]) is None


def test_contributions_are_printed_as_a_sum_beside_the_models_own(run: Run) -> None:
    out = run("contributions", TEXT).out
    total, own = (line.split()[-1] for line in out.splitlines() if line.startswith(("sum ", "the model's own")))
    assert float(total) == pytest.approx(float(own), rel=1e-4)
    document = run("contributions", TEXT, "--json").json
    assert check_schema(document) == "effects"
    parts = document["contributions"]["parts"]
    assert sum(part["value"] for part in parts) == pytest.approx(document["contributions"]["logit"], rel=1e-5)
    written = {(h["layer"], h["head"]): h["writes"] for h in run("ablate", TEXT, "--json").json["heads"]}
    assert written == {(p["layer"], p["head"]): pytest.approx(p["value"]) for p in parts if p["part"] == "head"}


def test_the_word_watched_is_named_alike_wherever_one_is_watched(run: Run) -> None:
    named = ("--target", "pizza", "--against", "soup")
    wanted = run("ablate", TEXT, *named, "--json").json
    found = run("contributions", TEXT, *named, "--json").json
    for one in ("target", "against", "baseline"):
        assert found[one] == wanted[one]
    parts = {(part["layer"], part["head"]): part["value"] for part in found["contributions"]["parts"] if "head" in part}
    assert parts == {(head["layer"], head["head"]): pytest.approx(head["writes"]) for head in wanted["heads"]}
    told = " ".join(run("contributions", TEXT, *named).out.split())
    assert "above that of “soup”" in told and "the model's own difference" in told and "two words' rows" in told
    assert run("view", TEXT, "--effects", *named, "-o", "page.html", "--no-open").code == 0
    assert '"against":{"text":"soup"' in Path("page.html").read_text()


def test_shares_are_read_easily() -> None:
    told = {0.8: "80 %", 0.034: "3.4 %", 0.0007: "0.070 %", 2e-7: "2.0e-5 %", 0.0996: "10 %", 0.0: "0 %", None: "·"}
    assert {share: sentence_percent(share) for share in told} == told


@pytest.mark.parametrize("how", [{}, {"target": "eat", "against": "see"}])
def test_the_picture_of_a_small_model_names_its_colours_whole(how: dict[str, str]) -> None:
    drawing = effects_drawing(attnctl.effects("demo", "The cat will ____ it", **how))
    texts = [text.get_text() for text in drawing.figure.texts]
    assert any(text in texts for text in ("Δ log p (nats)", "Δ logits")) and not any("…" in text for text in texts)


def test_a_page_shades_the_text_by_all_that_was_cut_from_the_watched_token(run: Run) -> None:
    def places(*asked: str) -> list[str]:
        assert run("ablate", "Alice will ____ it", *asked, "-o", "effects.html").code == 0
        page = Path("effects.html").read_text()
        assert len(re.findall(r"<td data-map=difference data-place=[\d.]+>[+-]", page)) == page.count("<tr>") - 1
        return re.findall(r"<span data-map=difference data-place=([\d.]+)", page)

    every = places("--edges")
    assert len(set(every)) == 4 and places("--edges", "--top", "1") == every  # --top shortens the table alone
    assert places("--edge", "will→Alice", "--edge", "it→Alice") == []  # of two queries: whose would it be?


MASKED = ("The dog chased the [MASK] because it was hungry",)


def percent(text: str) -> float:
    return float(text.removesuffix(" %"))


@pytest.mark.parametrize(
    ("asked", "columns"),
    [
        (MASKED, ("looks at", "writes", "Δ log p", "p without")),
        ((*MASKED, "--top", "3", "--how", "mean"), ("looks at", "writes", "Δ log p", "p without")),
        (("w9 w17", "-m", "llama", "--target", "w7", "--against", "w9"), ("looks at", "Δ log p", "Δ logits", "p without")),
        (("w9 w17", "-m", "llama", "--approximate"), ("looks at", "writes", "Δ log p")),
        (("w9 w17", "-m", "bert"), ("looks at", "distance")),
    ],
)  # fmt: skip
def test_heads_stand_by_the_size_of_their_effect(
    asked: tuple[str, ...], columns: tuple[str, ...], run: Run, room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if asked[-1] != "mean" and asked != MASKED:
        pytest.importorskip("transformers", reason="attnctl[hf] is not installed")
    monkeypatch.chdir(room)
    screen, document = run("ablate", *asked, columns=120).out, run("ablate", *asked, "--json").json
    tokens = [token["text"].replace(" ", "␣") for token in document["tokens"]]
    key = "logit_difference" if "--against" in asked else "distance" if "bert" in asked else "log_probability"
    sizes = [abs(head[key]) for head in document["heads"]]
    assert sizes == sorted(sizes, reverse=True)
    lines = rows_below(screen, ["layer", "head", *columns])
    for head, line in zip(document["heads"][:10], lines, strict=False):
        looks = head["looks"]
        wanted = [
            str(head["layer"]),
            str(head["head"]),
            f"{looks['weight']:.2f} {tokens[looks['key']]} ({looks['key']})",
        ]
        for name, key in (("writes", "writes"), ("Δ log p", "log_probability"), ("Δ logits", "logit_difference")):
            wanted += [f"{head[key]:+.2f}"] if name in columns else []
        wanted += [f"{head['distance']:.4f}"] if "distance" in columns else []
        assert line[: len(wanted)] == wanted
        if "p without" in columns:
            assert percent(line[len(wanted)]) == pytest.approx(100 * head["probability"], rel=0.06)
            says = line[len(wanted) + 1 :]
            assert bool(says) == (head["best"]["text"] != document["baseline"]["best"]["text"])
            assert not says or says[0].startswith(f"says {head['best']['text']} (") or "llama" in asked
    hidden = 12 - (3 if "--top" in asked else 10)
    assert (f"{hidden} more heads do less" in screen) == ("demo" in screen)


def test_edges_and_parts_stand_in_the_order_of_the_text(run: Run, room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "Mary thanked Tom because he likes tea"
    edges = run("ablate", text, "--edges", "--json").json["edges"]
    wanted = [[f"tea (6) → {word} ({at})", f"{edge['log_probability']:+.2f}"] for at, (word, edge) in enumerate(zip(text.split(), edges, strict=True))]  # fmt: skip
    lines = rows_below(run("ablate", text, "--edges").out, ["cut", "Δ log p", "p without"])[:7]
    assert [line[:2] for line in lines] == wanted
    assert [percent(line[2]) for line in lines] == pytest.approx(
        [100 * edge["probability"] for edge in edges], rel=0.06
    )
    monkeypatch.chdir(room)
    asked = ("ablate", "--file", "samples/story.txt", "--spans", "lines")
    screen, spans = run(*asked).out, run(*asked, "--json").json["spans"]
    lines = rows_below(screen, ["part cut", "looked at", "Δ log p", "p without"])[: len(spans)]
    for line, span in zip(lines, spans, strict=True):
        assert span["name"].startswith(line[0].rstrip("…")) and line[2] == f"{span['log_probability']:+.2f}"
        assert percent(line[1]) == pytest.approx(100 * span["looked_at"], rel=0.06)
    assert sum(percent(line[1]) for line in lines) == pytest.approx(100, abs=1)  # the parts are the whole text


@pytest.mark.parametrize(
    ("asked", "note"),
    [
        ((TEXT, "--edges", "--layer", "1", "--head", "0,2"), "Cut in layer 1, heads 0, 2 alone: elsewhere the key is seen"),
        (("w9 w17", "-m", "llama", "--target", "w7"), "The target 'w7' is 2 tokens ('w', '7'): numbers are sums over them"),
        ((TEXT,), "is visible to the model: put ____"),
    ],
)  # fmt: skip
def test_what_limits_a_number_is_noted(
    asked: tuple[str, ...], note: str, run: Run, room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "llama" in asked:
        pytest.importorskip("transformers", reason="attnctl[hf] is not installed")
    monkeypatch.chdir(room)
    made = run("ablate", *asked)
    assert made.code == 0 and note in " ".join((made.out + made.err).split())


@pytest.mark.parametrize(
    "more", [[], ["--edges"], ["--spans", "words"], ["--top", "2"], ["--approximate", "--model", "llama"]]
)
def test_table_has_a_row_for_what_was_taken_away(
    more: list[str], run: Run, tmp_path: Path, room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow", reason="attnctl[data] is not installed")
    if "llama" in more:
        pytest.importorskip("transformers", reason="attnctl[hf] is not installed")
    import pyarrow.csv
    import pyarrow.parquet

    monkeypatch.chdir(room)
    document = run("ablate", "Alice will eat", *more, "--json").json
    effects = document.get("heads") or document.get("edges") or document["spans"]
    tables = []
    for suffix, read in (("csv", pyarrow.csv.read_csv), ("parquet", pyarrow.parquet.read_table)):
        path = tmp_path / f"effects.{suffix}"
        made = run("ablate", "Alice will eat", *more, "-o", str(path))
        assert made.code == 0 and ("JSON has the edges, too" in made.err) == ("--approximate" in more)
        tables.append(read(path).to_pylist())
    for table in tables:
        assert len(table) == len(effects)
        for row, effect in zip(table, effects, strict=True):
            assert row["log_probability"] == pytest.approx(effect["log_probability"], rel=1e-6)
