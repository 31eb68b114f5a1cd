"""A tidy table: a row for each number, the same as CSV, as Parquet and as records; its texts as they are in the trace."""

from __future__ import annotations

import csv
import io
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnctl
from attnctl.checks import limits
from attnctl.formats.tables import records_of, table_writer
from attnctl.source import TextSource, prepare
from attnctl.source.zoom import Zoom, cells_to_read
from tests.conftest import Run

TEXT = 'Alice, "=1+1"\n🍕 שלום'
COLUMNS = ["layer", "head", "query", "key", "query_text", "key_text", "weight"]
SMALL = ("--model", "random", "--layers", "2", "--heads", "2", "--causal")
OPTIONS: dict[str, Any] = {"model": "random", "n_layers": 2, "n_heads": 2, "causal": True}


def rows_of_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def rows_of_parquet(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pytest.importorskip("pyarrow.parquet").read_table(path).to_pylist()
    return rows


def test_each_weight_is_a_row(run: Run, tmp_path: Path) -> None:
    trace = attnctl.attend(TEXT, **OPTIONS)
    n = len(trace.tokens)
    wanted = {
        (layer.layer, head, query, key): float(weights[query, key]) if key <= query else None
        for layer in trace.layers
        for head, weights in zip(layer.heads, np.asarray(layer.weights), strict=True)
        for query in range(n)
        for key in range(n)
    }
    records = trace.to_records()
    for form in ("csv", "parquet"):
        assert run("heatmap", TEXT, *SMALL, "-o", tmp_path / f"w.{form}").code == 0
    table, typed = rows_of_csv(tmp_path / "w.csv"), rows_of_parquet(tmp_path / "w.parquet")
    assert list(table[0]) == list(typed[0]) == list(records[0]) == COLUMNS
    for place, row, same, record in zip(wanted, table, typed, records, strict=True):
        layer, head, query, key = place
        texts = trace.tokens[query].text, trace.tokens[key].text
        assert (row["query_text"], row["key_text"]) == texts
        assert [row[name] for name in COLUMNS[:4]] == [str(number) for number in place]
        numbers = {
            "layer": layer,
            "head": head,
            "query": query,
            "key": key,
            "query_text": texts[0],
            "key_text": texts[1],
        }
        assert {name: same[name] for name in COLUMNS[:6]} == {name: record[name] for name in COLUMNS[:6]} == numbers
        weight = wanted[place]
        assert same["weight"] == weight and (row["weight"] == "") == (weight is None) == (record["weight"] is None)
        if weight is not None:
            assert np.float32(row["weight"]) == np.float32(record["weight"]) == np.float32(weight)
            assert row["weight"] == repr(record["weight"]) == str(np.float32(weight))


def test_texts_stay_as_they_are() -> None:
    texts = ["a\rb", "c\nd", 'e"f', "=1+1", "g,h", " i ", "🍕", "", "\t"]
    page = io.BytesIO()
    table_writer([{"number": np.arange(len(texts)), "text": texts}], "csv")(page)
    rows = list(csv.reader(io.StringIO(page.getvalue().decode(), newline="")))
    assert [row[1] for row in rows[1:]] == texts
    assert b'\n0,"a\rb"\n' in page.getvalue()  # else readers end the line there


def test_a_long_text_is_not_pooled_unless_asked(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("sources", "zoom"):  # else a text is long from 513 tokens on
        monkeypatch.setattr(f"attnctl.source.{module}.LONG", 256)
    file, out = tmp_path / "long.txt", tmp_path / "w.csv"
    file.write_text(" ".join(f"w{number}" for number in range(300)))
    assert run("heatmap", "--file", file, "--model", "random", "-o", out).code == 0
    rows = rows_of_csv(out)
    assert len(rows) == 300 * 300 and list(rows[0]) == COLUMNS
    sums = np.zeros(300)
    np.add.at(sums, [int(row["query"]) for row in rows], [float(row["weight"]) for row in rows])
    np.testing.assert_allclose(sums, 1, atol=1e-5)
    assert rows[301] | {"weight": ""} == dict(zip(COLUMNS, ["0", "0", "1", "1", "w1", "w1", ""], strict=True))
    zoomed = ("--rows", "290-299", "--columns", "3-4")
    assert run("heatmap", "--file", file, "--model", "random", "-o", out, *zoomed).code == 0
    part = rows_of_csv(out)
    assert [(row["query"], row["key"]) for row in part] == [(str(q), str(k)) for q in range(290, 300) for k in (3, 4)]
    whole = {(row["query"], row["key"]): row for row in rows}
    assert [float(row["weight"]) for row in part] == pytest.approx(
        [float(whole[row["query"], row["key"]]["weight"]) for row in part], rel=1e-4
    )
    assert run("heatmap", "--file", file, "--model", "random", "-o", out, "--pool", "max").code == 0
    pooled = rows_of_csv(out)
    assert list(pooled[0]) == [*COLUMNS, "query_tokens", "key_tokens", "pool"] and {row["pool"] for row in pooled} == {
        "max"
    }
    for row in pooled[:: len(pooled) // 40]:
        (a, b), (c, d) = ([int(end) for end in row[name].split("-")] for name in ("query_tokens", "key_tokens"))
        assert (row["query"], row["key"]) == (str(a), str(c))
        cells = [float(whole[str(q), str(k)]["weight"]) for q in range(a, b + 1) for k in range(c, d + 1)]
        assert float(row["weight"]) == pytest.approx(max(cells), rel=1e-4)


def test_names_of_parts_are_whole_in_data(run: Run, tmp_path: Path) -> None:
    paragraphs = ["Alice will eat pizza " + " ".join(f"with friend {number}" for number in range(30)), "Bob sleeps."]
    (tmp_path / "text.txt").write_text("\n\n".join(paragraphs))
    asked = ("heatmap", "--file", tmp_path / "text.txt", *SMALL, "--spans", "paragraphs", "-o")
    for form in ("csv", "parquet", "json"):
        assert run(*asked, tmp_path / f"w.{form}").code == 0
    names = [f"{number} {text}" for number, text in enumerate(paragraphs)]
    for rows in (rows_of_csv(tmp_path / "w.csv"), rows_of_parquet(tmp_path / "w.parquet")):
        assert [row["key_text"] for row in rows[:2]] == [row["query_text"] for row in rows[:3:2]] == names
    assert all(name in (tmp_path / "w.json").read_text() for name in names)
    effects = run("ablate", *asked[1:3], "--model", "demo", *asked[-3:], tmp_path / "e.csv")
    assert effects.code == 0 and [row["name"] for row in rows_of_csv(tmp_path / "e.csv")] == names


def test_changes_hold_for_a_table(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "w.csv"
    assert run("heatmap", "a b c", *SMALL, "--drop", "b", "--renormalise", "--head", "0", "-o", out).code == 0
    rows = rows_of_csv(out)
    assert {(row["key"], row["key_text"]) for row in rows} == {("0", "a"), ("2", "c")}
    assert sum(float(row["weight"] or 0) for row in rows if row["query"] == "2") == pytest.approx(2, abs=1e-6)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--log", "-o", "w.csv"), "--log has no effect here: numbers are written, without colours"),
        (("--rows", "9-99", "-o", "w.csv"), "--rows 9-99: "),
        (("-o", "w.tsv"), "-o w.tsv: a picture is written as .png, .svg or .pdf"),
    ],
)
def test_what_a_table_refuses(arguments: tuple[str, ...], why: str, run: Run) -> None:
    refused = run("heatmap", "a b c", *arguments)
    assert refused.code == 2 and refused.err.startswith(f"attnctl: {why}") and refused.err.count("\n") == 1


def test_the_size_of_a_large_table_is_said_before_the_work(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = " ".join(f"word{number % 9} eats" for number in range(60))
    quiet = [run("heatmap", text, *SMALL, "-o", tmp_path / f"w.{form}").err for form in ("csv", "parquet")]
    assert "a row for each" not in "".join(quiet)
    monkeypatch.setattr("attnctl.cli.cost.NOTED_TABLE", 1000)
    monkeypatch.setattr("attnctl.commands.heatmap.write_table", lambda *_: print("written", file=sys.stderr))
    for form, said in (("csv", "up to (.*) MB of CSV"), ("parquet", "up to (.*) kB of Parquet")):
        size = (tmp_path / f"w.{form}").stat().st_size
        errors = run("heatmap", text, *SMALL, "-o", tmp_path / f"again.{form}").err
        noted = re.search(rf"{said}, a row for each of 57,600 weights: ", errors)
        assert noted is not None and noted.start() < errors.index("written")
        largest = float(noted[1]) * (1e6 if form == "csv" else 1e3)
        assert largest > 0.99 * size and (form == "parquet" or largest < 1.5 * size)


def test_a_table_that_is_too_large(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TABLE_WEIGHTS", 8)
    source = TextSource(attnctl.open_model("random"), "a b c", attnctl.open_model("random").tokenize("a b c"))
    with pytest.raises(
        attnctl.AttnctlError, match="a table of 9 weights has more than 8 rows: choose layers and heads"
    ):
        cells_to_read(prepare(source), Zoom(), each_token=True)


@pytest.mark.parametrize("command", ["heatmap", "heads"])
def test_parquet_needs_pyarrow(command: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    refused = run(command, "a b c", "-o", "w.parquet")
    assert (refused.code, refused.err) == (
        1,
        "attnctl: -o w.parquet: Parquet needs pyarrow: pip install 'attnctl[batch]'\n",
    )
    assert not Path("w.parquet").exists() and run(command, "a b c", "-o", "w.csv").code == 0


def test_a_row_a_head(run: Run, tmp_path: Path) -> None:
    measured = attnctl.heads("Alice will eat pizza")
    records = measured.to_records()
    for form in ("csv", "parquet"):
        assert run("heads", "Alice will eat pizza", "-o", tmp_path / f"h.{form}").code == 0
    assert rows_of_parquet(tmp_path / "h.parquet") == records
    assert run("heads", "Alice will eat pizza", "--csv").out == (tmp_path / "h.csv").read_text()
    for row, head in zip(rows_of_csv(tmp_path / "h.csv"), measured, strict=True):
        assert (row["layer"], row["head"], row["names"]) == (str(head.layer), str(head.head), "; ".join(head.names))
        assert {name: float(row[name]) if row[name] else None for name in head.values} == head.values


def test_records_of_other_values() -> None:
    effects = attnctl.ablate("Alice will eat", target="pizza")
    assert [(row["layer"], row["log_probability"]) for row in effects.to_records()] == [
        (head.layer, head.log_probability) for head in effects.heads
    ]
    pair = attnctl.compare(attnctl.attend("Alice eats", "random"), attnctl.attend("So Alice eats", "random"))
    for row in pair.to_records():
        a = float(pair.a.layer(0).head_weights(0)[row["query"], row["key"]])
        b = float(pair.b.layer(0).head_weights(0)[row["query"] + 1, row["key"] + 1])
        assert (row["a"], row["b"], row["difference"]) == pytest.approx((a, b, b - a), abs=1e-6)
    spans = attnctl.spans("One line.\nAnother line.", "lines", model="random")
    assert [row["weight"] for row in spans.to_records()] == pytest.approx(spans.grid.weights[0, 0].ravel().tolist())  # type: ignore[union-attr]
    assert [row["query_tokens"] for row in spans.to_records()] == ["0-2", "0-2", "3-5", "3-5"]
    for value in (effects, pair, spans, attnctl.attend("a b"), attnctl.heads("a b")):
        rows = value.to_records()  # type: ignore[attr-defined]
        assert len({tuple(row) for row in rows}) == 1
        assert all(isinstance(cell, (str, int, float, type(None))) for row in rows for cell in row.values())


def test_records_of_a_comparison_in_a_file_are_those_of_python(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    traces = [attnctl.attend(text, "random") for text in ("Alice eats", "So Alice eats")]
    for number, trace in enumerate(traces):
        trace.save(f"{number}.json")
    pair, other = attnctl.compare(*traces), attnctl.compare(traces[0], traces[0])
    for file, value in (("1.json", pair), ("0.json", other)):
        assert run("compare", "0.json", file, "-o", "c.json").code == 0
        loaded: Any = attnctl.load("c.json")
        assert loaded.to_records() == value.to_records()
        assert repr(loaded) == repr(value).replace("random and random", f"0.json and {file}")


def test_no_rows_is_no_error() -> None:
    page = io.BytesIO()
    table_writer([], "csv")(page)
    assert page.getvalue() == b"" and records_of([]) == []
