"""`batch --format effects`: the mean effect of each head's removal over many texts, with its standard error."""

from __future__ import annotations

import csv
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import attnctl

TEXTS = ["Alice will eat", "Bob will drink", "Alice thanked Bob because he likes"]


def test_means_and_errors_are_those_of_the_texts_one_by_one(run: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "in.txt"
    file.write_text("\n".join(TEXTS) + "\n")
    assert run("batch", file, "-o", tmp_path / "out", "--format", "effects", "--jobs", "1").code == 0
    found = [{(h.layer, h.head): h for h in attnctl.effects("demo", text).heads} for text in TEXTS]
    with (tmp_path / "out" / "effects.csv").open() as table:
        rows = list(csv.DictReader(table))
    assert {row["measure"] for row in rows} == {"weight", "writes", "log_probability"}
    for row in rows:
        heads = [effects[int(row["layer"]), int(row["head"])] for effects in found]
        values = {
            "weight": [head.looks.weight for head in heads],
            "writes": [head.writes for head in heads],
            "log_probability": [head.log_probability for head in heads],
        }[row["measure"]]
        assert int(row["n"]) == 3
        assert float(row["mean"]) == pytest.approx(statistics.fmean(values), rel=1e-5)
        assert float(row["standard_error"]) == pytest.approx(statistics.stdev(values) / 3**0.5, rel=1e-4)


def test_an_item_names_its_own_words(run: Callable[..., Any], tmp_path: Path) -> None:
    target, against = (attnctl.effects("demo", TEXTS[0]).target, attnctl.effects("demo", TEXTS[1]).target)
    assert target and against and target != against
    items = [{"text": TEXTS[0], "options": {"word": target.text, "against": against.text}}]
    items.append({"text": TEXTS[1], "options": {"word": "quux"}})
    file = tmp_path / "in.jsonl"
    file.write_text("".join(json.dumps(item) + "\n" for item in items))
    result = run("batch", file, "-o", tmp_path / "out", "--format", "effects", "--jobs", "1")
    assert result.code == 3
    assert "has no such word" in result.err
    with (tmp_path / "out" / "effects.csv").open() as table:
        rows = [row for row in csv.DictReader(table) if row["measure"] == "logit_difference"]
    expected = attnctl.effects("demo", TEXTS[0], target=target.text, against=against.text)
    for row in rows:
        (one,) = (h for h in expected.heads if (h.layer, h.head) == (int(row["layer"]), int(row["head"])))
        assert float(row["mean"]) == pytest.approx(one.logit_difference, rel=1e-5)
        assert row["standard_error"] == ""
