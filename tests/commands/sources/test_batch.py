"""`batch --format sources`: where the answers to many prompts came from, a row a prompt, and means over the prompts."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="attnctl[hf] is not installed")


from attnctl.batching.formats import tally_csv
from attnctl.commands.sources.batch import tally_of_prompt
from tests.batching.test_groups import rows_of
from tests.conftest import Run, check_schema
from tests.formats.test_formulas import FORMULAS, check_cells

DOCUMENTS = ["[one] Paris is big.", "[two] Rome is old.", "[three] Oslo is cold."]


def prompt(order: tuple[int, ...]) -> str:
    return "\n".join(DOCUMENTS[at] for at in order) + "\n\nWhich is old?"


def test_a_row_a_prompt_and_means_over_them(run: Run, chatty: Path, tmp_path: Path) -> None:
    orders = [(0, 1, 2), (1, 2, 0), (2, 0, 1)]
    lines: list[Any] = [{"text": prompt(order), "answer": " Rome", "id": f"p{at}"} for at, order in enumerate(orders)]
    lines.append({"messages": [{"role": "user", "content": prompt(orders[0])}], "answer": "Rome", "id": "chat"})
    lines += [{"messages": [{"role": "boss", "content": "x"}]}, {"text": "x", "options": {"answer": 3}}]
    file, out = tmp_path / "in.jsonl", tmp_path / "out"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    made = run("batch", file, "-o", out, "--format", "sources", "--model", chatty)
    assert made.code == 3 and "has the role 'boss'" in made.err and "has no option 'answer'" in made.err
    documents = [json.loads(line) for line in (out / "sources.jsonl").read_text().splitlines()]
    assert [document["number"] for document in documents] == [0, 1, 2, 3, 4, 5] and "boss" in documents[4]["error"]
    del documents[4:]
    assert [document["id"] for document in documents] == ["p0", "p1", "p2", "chat"]
    for document, order in zip(documents, orders, strict=False):
        own = {key: value for key, value in document.items() if key not in ("number", "id")}
        assert check_schema(own) == "sources"
        alone = run("sources", prompt(order), "--answer", " Rome", "--model", chatty, "--json").json
        assert own == alone
    table = rows_of(out / "sources.csv")
    assert [row["id"] for row in table] == ["p0", "p1", "p2", "chat", "", ""]
    assert [row["number"] for row in table if row["error"]] == ["4", "5"]
    assert table[0]["first_source"] == documents[0]["parts"][0]["name"] and table[3]["answer"] == "Rome"
    means = {(row["by"], row["which"], row["column"]): row for row in rows_of(out / "sources-means.csv")}
    of_two = [part["matters"] for document in documents for part in document["parts"] if part["name"] == "two"]
    assert float(means["part", "two", "matters"]["mean"]) == pytest.approx(statistics.fmean(of_two), abs=1e-6)
    error = statistics.stdev(of_two) / 2
    assert float(means["part", "two", "matters"]["standard_error"]) == pytest.approx(error, rel=1e-4)
    firsts = [min(document["parts"], key=lambda part: part["start"])["looks"] for document in documents]
    assert float(means["place", "0", "looks"]["mean"]) == pytest.approx(statistics.fmean(firsts), abs=1e-6)
    again = run("batch", file, "-o", out, "--format", "sources", "--model", chatty)
    assert "6 finished before" in again.err


def test_means_leave_out_what_is_not_measured_whole() -> None:
    parts: list[dict[str, Any]] = [
        {"name": "a", "start": start, "alone": alone, "predicts_answer": predicts, "looks": 0.25, "matters": matters}
        for start, (alone, predicts, matters) in enumerate(
            [(True, False, -2.0), (False, False, 5.0), (True, True, 0.0)]
        )
    ]
    tally = tally_of_prompt({"parts": parts})
    assert tally["part", "a", "matters"] == (1, -2.0, 0.0) and tally["part", "a", "looks"] == (3, 0.25, 0.0)
    assert ("place", 2, "matters") not in tally


def test_names_of_documents() -> None:
    parts: list[dict[str, Any]] = [
        {"name": name, "start": 0, "alone": True, "predicts_answer": False, "looks": 0.25, "matters": 0.1}
        for name in FORMULAS
    ]
    table = tally_csv(tally_of_prompt({"parts": parts}), ["looks", "matters"], "standard_error")
    assert FORMULAS[0] in table
    check_cells(table, ",")
