"""Numbers in files and in options that are no plain numbers: one line, before any work."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from attnctl.commands.train.recipe import DEFAULTS
from attnctl.commands.train.run import TrainingRun
from attnctl.errors import AttnctlError
from attnctl.models import open_model
from attnctl.readings.spans import parts_of
from attnctl.tokens import split_words
from tests.conftest import Refused


@pytest.mark.parametrize("how", [{"n_heads": True}, {"d_model": 8.5}], ids=str)
def test_a_number_of_another_type_is_named(how: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=rf"{next(iter(how))} is int, not"):
        open_model("random", **how)


@pytest.mark.parametrize(
    ("name", "value"),
    [("seed", -1), ("steps", 2**70), ("steps", "8000"), ("layers", 10**12), ("lr", None), ("bias", 5),
     ("objective", ["next-word"]), ("objective", "odd"), ("batch_size", 1.5), ("min_length", -4), ("corpus", 7)],
)  # fmt: skip
def test_a_recipe_of_other_types_is_damaged(name: str, value: Any, refused: Refused) -> None:
    TrainingRun(Path("run")).create(DEFAULTS["next-word"], None)
    recipe = Path("run/recipe.json")
    told = json.loads(recipe.read_text())
    recipe.write_text(json.dumps(told | {name: value}))
    assert "recipe.json is damaged: " in refused("train", "-o", "run", "--resume")
    recipe.write_text(json.dumps({key: told[key] for key in told if key != name}))
    assert refused("train", "-o", "run", "--resume").endswith(f"recipe.json is damaged: it says no {name}")


@pytest.mark.parametrize("line", [b"5", b'{"step": "x"}', b"[1]", b'{"step": null}', b"\xff", b"[" * 5000])
def test_a_line_that_is_no_report_takes_no_other_away(line: bytes) -> None:
    run = TrainingRun(Path())
    Path("metrics.jsonl").write_bytes(b'{"step": 1, "loss": 2.0}\n' + line + b'\n{"step": 3}\n')
    assert run.reports() == [{"step": 1, "loss": 2.0}, {"step": 3}]


@pytest.mark.parametrize("limit", [131_072, 1 << 26])  # of a field: batch raises it for its texts
def test_spans_with_bare_carriage_returns_and_a_name_as_long_as_a_text(limit: int) -> None:
    """What else is no list of spans stands in tests/refusals.txt."""
    text, path = "Alice will eat pizza", Path("spans.csv")
    path.write_bytes(b"name,start,end\rwho,0,5\rwhat,6,20\r")
    assert [part.name for part in parts_of(str(path), text, split_words(text))][:2] == ["who", "what"]
    path.write_bytes(b"name,start,end\n" + b"x" * 200_000 + b",0,5\n")
    before = csv.field_size_limit(limit)
    try:
        with pytest.raises(AttnctlError, match=r"\A.*\Z"):
            parts_of(str(path), text, split_words(text))
    finally:
        csv.field_size_limit(before)
