"""A batch is joined to its input by `number`: the place of each text in the input, in every format, of texts that fail too."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import attnctl
from tests.conftest import Run, check_schema

TEXTS = ["Alice eats", "", "🍕 or 🍣?", 'say "=1+1", Bob', " \t", "Bob sleeps"]
DONE = [number for number, text in enumerate(TEXTS) if text.strip()]
SMALL = ("--model", "random", "--layers", "1", "--heads", "2")


def as_text(_: Path) -> bytes:
    return "".join(f"{text}\n" for text in TEXTS).encode()


def as_lines(_: Path) -> bytes:
    return b"".join((json.dumps({"text": text}) if text.strip() else text).encode() + b"\n" for text in TEXTS)


def as_csv(_: Path) -> bytes:
    page = io.StringIO()
    csv.writer(page, quoting=csv.QUOTE_ALL).writerows([["text"], *([text] for text in TEXTS)])
    return page.getvalue().encode()


def as_parquet(path: Path) -> bytes:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"text": TEXTS}), path)
    return path.read_bytes()


@pytest.mark.parametrize(
    ("name", "make"), [("t.txt", as_text), ("t.jsonl", as_lines), ("t.csv", as_csv), ("t.parquet", as_parquet)]
)
def test_each_text_has_its_number_in_every_format(
    name: str, make: Callable[[Path], bytes], run: Run, tmp_path: Path
) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    file, out = tmp_path / name, tmp_path / "out"
    file.write_bytes(make(file))

    def check(lines: str) -> None:
        documents = [json.loads(line) for line in lines.splitlines()]
        assert [line["number"] for line in documents] == list(range(len(TEXTS)))
        assert {line["number"]: line["text"] for line in documents if "error" not in line} == {
            number: TEXTS[number] for number in DONE
        }
        for line in documents:
            check_schema(line, "failed" if "error" in line else "trace")

    check(run("batch", file, *SMALL).out)
    asked = (
        "batch",
        file,
        *SMALL,
        "-o",
        out,
        "--format",
        "json,npz,parquet",
        "--steps",
        "weights,summary",
        "--jobs",
        "1",
    )
    made = run(*asked)
    assert made.code == 3 and "4 done, 2 failed" in made.err
    check((out / "traces.jsonl").read_text())
    rows = pq.read_table(out / "traces.parquet").to_pylist()
    assert {row["number"]: row["text"] for row in rows if not row["error"]} == {at: TEXTS[at] for at in DONE}
    assert [row["number"] for row in rows if row["error"]] == [1, 4] and len(rows) == 2 * len(DONE) + 2
    assert all(row["scores"] is None and (row["weights"] is None) == bool(row["error"]) for row in rows)
    traces = [attnctl.load(path) for path in out.glob("*.npz")]
    assert {trace.number: trace.text for trace in traces} == {at: TEXTS[at] for at in DONE}  # type: ignore[union-attr]
    before = {path: path.read_bytes() for path in (out / "traces.jsonl", *out.glob("traces.parquet/*"))}
    next(iter(out.glob("traces.parquet/*"))).unlink()
    assert "6 done" not in run(*asked).err
    assert before == {path: path.read_bytes() for path in before}, "made again as it was"


def test_weights_without_arrays_keep_a_row_a_text(run: Run, tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    file, out = tmp_path / "t.txt", tmp_path / "out"
    file.write_bytes(as_text(file))
    run("batch", file, *SMALL, "-o", out, "--format", "parquet", "--steps", "summary", "--jobs", "1")
    rows = pq.read_table(out / "traces.parquet").to_pylist()
    assert [(row["number"], row["layer"]) for row in rows] == [(number, None) for number in range(len(TEXTS))]


def test_processes_number_as_one_does(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "t.txt"
    file.write_bytes(as_text(file) * 200)  # more than are worth one process alone
    documents = [
        json.loads(line) for line in run("batch", file, *SMALL, "--steps", "tokens", "--jobs", "2").out.splitlines()
    ]
    texts = [document.get("text", "") for document in documents]
    assert [document["number"] for document in documents] == list(range(6 * 200))
    assert texts == [text if text.strip() else "" for text in TEXTS] * 200


@pytest.mark.parametrize("command", [("explain", "-"), ("heatmap", "-"), ("view", "-")])
def test_a_line_that_failed_is_no_trace(command: tuple[str, ...], run: Run, tmp_path: Path) -> None:
    file = tmp_path / "t.txt"
    file.write_bytes(as_text(file))
    lines = run("batch", file, *SMALL).out
    (tmp_path / "t.jsonl").write_text(lines)
    refused = run(*command, stdin=lines.splitlines()[1].encode())
    assert (refused.code, refused.err) == (
        1,
        "attnctl: standard input is a text of a batch that failed: the text is empty\n",
    )
    again = run("batch", tmp_path / "t.jsonl")
    assert again.code == 3 and "item 1" in again.err and "a text of a batch that failed: the text is empty" in again.err


def test_columns_name_the_word_that_is_watched(run: Run, tmp_path: Path) -> None:
    """The columns are those options of `ablate`; a format without a prediction does not read them."""
    rows = [("Alice will eat", "pizza", "cake"), ("Bob will drink", "", ""), ("Bob will eat", "quux", "")]
    for name, make in {
        "t.csv": lambda: "text,target,against\n" + "".join(",".join(row) + "\n" for row in rows),
        "t.jsonl": lambda: "".join(
            json.dumps(dict(zip(("text", "target", "against"), row, strict=True))) + "\n" for row in rows
        ),
    }.items():
        file, out = tmp_path / name, tmp_path / f"{name}.out"
        file.write_text(make())
        result = run("batch", file, "-o", out, "--format", "effects", "--jobs", "1")
        assert result.code == 3 and result.err.count("has no such word") == 1
        with (out / "effects.csv").open() as lines:
            found: list[Any] = [row for row in csv.DictReader(lines) if row["measure"] == "log_probability"]
        known = [attnctl.effects("demo", "Alice will eat", target="pizza", against="cake")]
        known.append(attnctl.effects("demo", "Bob will drink"))
        changes = [{(str(head.layer), str(head.head)): head.log_probability for head in one.heads} for one in known]
        for row in found:
            place = row["layer"], row["head"]
            assert float(row["mean"]) == pytest.approx((changes[0][place] + changes[1][place]) / 2, rel=1e-5)  # type: ignore[operator]
        assert run("batch", file, *SMALL).code == 0
