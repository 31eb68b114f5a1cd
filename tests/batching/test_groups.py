"""Files that hold many texts: tables that others read, statistics, effects; the same however often interrupted."""

from __future__ import annotations

import csv
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnctl
from attnctl.batching.formats import merge_means, tally_of_values
from attnctl.formats.storage import from_json
from attnctl.layer import HEAD_FIELD_ARRAYS
from tests.batching.test_resume import contents, sentences
from tests.conftest import Run


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open() as table:
        return list(csv.DictReader(table))


def check_mean(row: dict[str, str], values: list[float], error: str) -> None:
    """Hold a row to the values of its texts: how many, their mean, and their spread or the error of the mean."""
    assert (int(row["n"]), float(row["mean"])) == (len(values), pytest.approx(statistics.fmean(values), rel=1e-5))
    spread = statistics.stdev(values) / (len(values) ** 0.5 if error == "standard_error" else 1)
    assert float(row[error] or 0) == pytest.approx(spread, rel=1e-4, abs=1e-6)


def test_parquet_holds_every_array_of_every_head(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr("attnctl.batching.folder.GROUP", 2)
    file = sentences(tmp_path / "in.txt", 4)
    args = ("--format", "json,parquet", "--jobs", "1", "--model", "random", "--layers", "2", "--heads", "2", "--causal")
    assert run("batch", file, "-o", tmp_path / "out", *args).code == 3
    assert len(list((tmp_path / "out" / "traces.parquet").iterdir())) == 2
    rows = pq.read_table(tmp_path / "out" / "traces.parquet").to_pylist()
    rows = [row for row in rows if row["error"] is None]
    lines = (tmp_path / "out" / "traces.jsonl").read_bytes().splitlines()
    traces = [from_json(line) for line in lines if b'"error"' not in line]
    assert len(traces) == 3 and len(rows) == 4 * 3
    for at, row in enumerate(rows):
        trace, (layer, head) = traces[at // 4], divmod(at % 4, 2)
        assert (row["text"], row["layer"], row["head"]) == (trace.text, layer, head)
        assert row["tokens"] == [token.text for token in trace.tokens]
        for name in (*(array.name for array in HEAD_FIELD_ARRAYS), "mask"):
            array = getattr(trace.layers[layer], name)
            assert (row[name] is None) == (array is None)
            if array is not None:
                wanted = array if name == "mask" else array[head]
                np.testing.assert_array_equal(np.asarray(row[name], array.dtype), wanted)


def test_statistics_are_those_of_the_texts_one_by_one(run: Run, tmp_path: Path) -> None:
    file = sentences(tmp_path / "in.txt", 9)
    run("batch", file, "-o", tmp_path / "out", "--format", "statistics", "--jobs", "1")
    known = [attnctl.heads(text, "demo") for text in file.read_text(encoding="utf-8").splitlines() if text]
    found = rows_of(tmp_path / "out" / "statistics.csv")
    measures = {row["measure"] for row in found}
    assert measures >= {"entropy", "previous", "distance", "rank", "at_offset", "max_logit"}
    assert not measures & {"offset", "max_logit_query", "max_logit_key"}  # names of places, whose mean is no place
    for row in found:
        heads = [heads[6 * int(row["layer"]) + int(row["head"])] for heads in known]
        check_mean(row, [head[row["measure"]] for head in heads if head[row["measure"]] is not None], "spread")


EFFECTS = {
    "weight": lambda head: head.looks.weight,
    "writes": lambda head: head.writes,
    "log_probability": lambda head: head.log_probability,
}


def test_effects_are_those_of_the_texts_one_by_one(run: Run, tmp_path: Path) -> None:
    file, texts = tmp_path / "in.txt", ["Alice will eat", "Bob will drink", "Alice thanked Bob because he likes"]
    file.write_text("\n".join(texts) + "\n")
    assert run("batch", file, "-o", tmp_path / "out", "--format", "effects", "--jobs", "1").code == 0
    known = [{(head.layer, head.head): head for head in attnctl.effects("demo", text).heads} for text in texts]
    found = rows_of(tmp_path / "out" / "effects.csv")
    assert {row["measure"] for row in found} == EFFECTS.keys()
    for row in found:
        heads = [heads[int(row["layer"]), int(row["head"])] for heads in known]
        check_mean(row, [EFFECTS[row["measure"]](head) for head in heads], "standard_error")


def test_an_item_names_its_own_words(run: Run, tmp_path: Path) -> None:
    words = {"word": "pizza", "against": "cake"}
    items = [{"text": "Alice will eat", "options": words}, {"text": "Bob will drink", "options": {"word": "quux"}}]
    file = tmp_path / "in.jsonl"
    file.write_text("".join(json.dumps(item) + "\n" for item in items))
    result = run("batch", file, "-o", tmp_path / "out", "--format", "effects", "--jobs", "1")
    assert result.code == 3 and "has no such word" in result.err
    expected = attnctl.effects("demo", "Alice will eat", target="pizza", against="cake")
    wanted = {(str(head.layer), str(head.head)): head.logit_difference for head in expected.heads}
    rows = [row for row in rows_of(tmp_path / "out" / "effects.csv") if row["measure"] == "logit_difference"]
    assert {(row["layer"], row["head"]): float(row["mean"]) for row in rows} == pytest.approx(wanted, rel=1e-5)
    assert {row["standard_error"] for row in rows} == {""}


def test_tallies_add_up_in_any_split() -> None:
    values = np.random.default_rng(1).normal(3, 2, 50).tolist()
    for cut in (0, 1, 20, 50):
        one: Any = {}
        other: Any = {}
        for at, value in enumerate(values):
            merge_means(one if at < cut else other, tally_of_values([(0, 0, "entropy", value)]))
        merge_means(one, other)
        n, mean, squares = one[0, 0, "entropy"]
        assert (n, mean) == (50, pytest.approx(statistics.fmean(values)))
        assert squares / 49 == pytest.approx(statistics.variance(values))


def test_a_model_without_queries_has_no_statistics(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text('{"text": "a b c", "options": {"query": "b"}}\n')
    result = run("batch", file, "-o", tmp_path / "out", "--format", "statistics", "--jobs", "1")
    assert result.code == 3 and "statistics need every query" in result.err


def test_texts_that_come_later_are_a_group_of_their_own(run: Run, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    file, out, fresh = sentences(tmp_path / "in.txt", 6), tmp_path / "out", tmp_path / "fresh"
    args = ("batch", file, "--format", "json,parquet,statistics", "--head", "0", "--jobs", "1")
    run(*args, "-o", out)
    before = contents(out)
    file.write_text("One more.\n" + file.read_text(encoding="utf-8"), encoding="utf-8")
    assert "1 done, 6 finished before" in run(*args, "-o", out).err
    after = contents(out)
    parts = [name for name in before if "/" in name]
    assert parts and all(after[name] == before[name] for name in parts) and after["manifest"][:6] == before["manifest"]
    run(*args, "-o", fresh)
    tables = [parquet.read_table(folder / "traces.parquet") for folder in (out, fresh)]
    assert sorted(map(str, tables[0]["text"])) == sorted(map(str, tables[1]["text"]))
    rows = [(folder / "statistics.csv").read_text().splitlines() for folder in (out, fresh)]
    assert all(mine.rpartition(",")[2] == theirs.rpartition(",")[2] for mine, theirs in zip(*rows, strict=True))  # n
    (out / "traces.parquet" / "0000000.parquet").write_bytes(b"")
    said = run(*args, "-o", out).err
    assert "5 done, 1 failed, 1 finished before, 7 with another number" in said
    assert "traces.parquet/0000000.parquet damaged or gone" in said
    damaged = contents(out)
    for entry in (*damaged["manifest"], *after["manifest"]):
        del entry["where"]  # a line further down now
    assert damaged == after
