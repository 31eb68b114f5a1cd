"""The tables of a batch: each text's headline, and a row for each weight; the same as the commands for one text give."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from tests.conftest import Refused, Run

TEXTS = ["Alice will eat pizza", "Mary thanked Tom because he likes tea", 'The dog chased the "old, grey" cat']


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


@pytest.fixture
def texts(tmp_path: Path) -> str:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join([TEXTS[0], "", *TEXTS[1:]]) + "\n")
    return str(path)


@pytest.mark.parametrize("chosen", [[], ["--layer", "0"], ["--query", "2"], ["--words", "--drop", "first"]])
def test_every_text_has_the_headline_that_explain_gives_it(chosen: list[str], texts: str, run: Run) -> None:
    """As JSON in its record, and as a row of a table in which the number of a key is its place in the text."""
    wanted = [run("explain", text, *chosen, "--json").json for text in TEXTS]
    lines = [json.loads(line) for line in run("batch", texts, *chosen).out.splitlines()]
    assert [line["headline"] for line in lines if "error" not in line] == [one["headline"] for one in wanted]
    table = rows_of(run("batch", texts, "--format", "csv", *chosen).out)
    assert [row["number"] for row in table] == ["0", "1", "2", "3"] and table[1]["error"] == "the text is empty"
    for row, one, text in zip([table[0], *table[2:]], wanted, TEXTS, strict=True):
        line, keys = one["headline"], one.get("key_tokens", one["tokens"])
        assert (row["layer"], row["head"], row["query"]) == tuple(
            str(line[name]) for name in ("layer", "head", "query")
        )
        assert row["key_text"] == keys[line["key"]]["text"] == one["tokens"][int(row["key"])]["text"]
        assert row["query_text"] == one["tokens"][line["query"]]["text"] and row["text"] == text
        assert float(row["weight"]) == pytest.approx(line["weight"], abs=1e-7)
        assert row["role"].replace("→", "->") == line.get("role", "") and row["certainty"] == line.get("certainty", "")


def test_json_of_chosen_steps_has_the_headline_if_summary_is_one(texts: str, run: Run) -> None:
    whole, weights, both, alone = (
        [json.loads(line) for line in run("batch", texts, *steps).out.splitlines()]
        for steps in ([], *(["--steps", steps] for steps in ("weights", "weights,summary", "summary")))
    )
    assert all("headline" not in line for line in weights)
    for line, first, second in zip(whole, both, alone, strict=True):
        assert line.get("headline") == first.get("headline") == second.get("headline")
        assert "scores" not in str(first.get("layers")) and not second.get("layers")


def test_weights_are_tidy_as_those_of_one_text(texts: str, run: Run, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    import pyarrow.parquet

    wanted = []
    for number, text in zip(("0", "2", "3"), TEXTS, strict=True):
        run("heatmap", text, "--causal", "--model", "random", "-o", tmp_path / "w.csv")
        wanted += [{"number": number, "id": "", **row} for row in rows_of((tmp_path / "w.csv").read_text())]
    asked = ("batch", texts, "--causal", "--model", "random", "--steps", "weights")
    assert rows_of(run(*asked, "--format", "csv").out) == wanted
    assert run(*asked, "--format", "csv,parquet", "-o", tmp_path / "out").code == 3
    assert rows_of((tmp_path / "out" / "weights.csv").read_text()) == wanted
    stored = pyarrow.parquet.read_table(tmp_path / "out" / "weights.parquet").to_pylist()
    assert [row["weight"] for row in stored] == [
        pytest.approx(float(row["weight"])) if row["weight"] else None for row in wanted
    ]
    names = ("layer", "head", "query", "key", "query_text", "key_text")
    assert [[str(row[name]) for name in names] for row in stored] == [[row[name] for name in names] for row in wanted]


def test_a_table_continues_where_it_stopped(texts: str, run: Run, tmp_path: Path) -> None:
    asked = ("batch", texts, "--format", "csv", "-o", tmp_path / "out")
    run(*asked)
    whole = (tmp_path / "out" / "headlines.csv").read_text()
    (part,) = (tmp_path / "out" / ".headlines").iterdir()
    part.write_bytes(part.read_bytes()[:-9])
    again = run(*asked)
    assert "damaged or gone, and made again" in again.err and (tmp_path / "out" / "headlines.csv").read_text() == whole
    assert run("batch", texts, "--format", "csv").out == whole


def test_a_table_of_other_steps_is_refused(texts: str, refused: Refused) -> None:
    told = refused("batch", texts, "--format", "csv", "--steps", "scores", code=2)
    assert "--steps scores" in told and "headline of each text" in told
