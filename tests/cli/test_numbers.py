"""Numbers in files and in options that are no plain numbers: one line, before any work."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from attnctl.errors import AttnctlError, UsageError
from attnctl.models import open_model
from attnctl.readings.spans import parts_of
from attnctl.tokens import split_words
from attnctl.training.run import DEFAULTS, TrainingRun, checked_recipe
from tests.conftest import Refused


@pytest.mark.parametrize("option", ["--rows", "--columns", "--layer", "--head", "--query", "--scale"])
@pytest.mark.parametrize("value", ["9" * 5000, "0-" + "9" * 5000, "\udcff"])
def test_what_is_too_long_or_no_text_is_named_and_cut(option: str, value: str, refused: Refused) -> None:
    """What else is no number stands in tests/refusals.txt."""
    command = "explain" if option in ("--query", "--scale") else "heatmap"
    said = refused(command, "Alice will eat pizza", f"{option}={value}", code=2)
    assert (option in said or said.startswith("no ")) and len(said) < 300, said


@pytest.mark.parametrize(
    "how",
    [
        {"n_layers": 10_000, "d_model": 10**6},
        {"n_heads": 10_000, "d_k": 10**6},
        {"d_model": 10**12},
        {"seed": -1},
        {"seed": 2**64},
    ],
    ids=str,
)
def test_a_model_beyond_reason_is_refused_before_it_is_built(how: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"^(n_layers, n_heads|n_heads|n_layers|d_model|seed)\b"):
        open_model("random", **how)


@pytest.mark.parametrize("how", [{"n_heads": True}, {"d_model": 8.5}], ids=str)
def test_a_number_of_another_type_is_named(how: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=rf"{next(iter(how))} is int, not"):
        open_model("random", **how)


def test_a_network_larger_than_the_memory_is_not_begun() -> None:
    with pytest.raises(AttnctlError, match="a network of .* weights needs .* of memory"):
        checked_recipe(DEFAULTS["next-word"].__class__(layers=1000, d_model=10**6))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seed", -1),
        ("seed", "x"),
        ("steps", 2**70),
        ("steps", "8000"),
        ("layers", 10**12),
        ("lr", None),
        ("lr", "high"),
        ("bias", 5),
        ("objective", ["next-word"]),
        ("objective", "odd"),
        ("batch_size", 1.5),
        ("min_length", -4),
        ("corpus", 7),
    ],
)
def test_a_recipe_of_other_types_is_damaged(name: str, value: Any, tmp_path: Path, refused: Refused) -> None:
    run = TrainingRun(tmp_path / "run")
    run.create(DEFAULTS["next-word"], None)
    recipe = tmp_path / "run/recipe.json"
    told = json.loads(recipe.read_text())
    recipe.write_text(json.dumps(told | {name: value}))
    assert "recipe.json is damaged: " in refused("train", "-o", tmp_path / "run", "--resume")
    recipe.write_text(json.dumps({key: told[key] for key in told if key != name}))
    assert refused("train", "-o", tmp_path / "run", "--resume").endswith(f"recipe.json is damaged: it says no {name}")


@pytest.mark.parametrize("line", [b"5", b'{"step": "x"}', b"[1]", b'{"step": null}', b"\xff", b"[" * 5000])
def test_a_line_that_is_no_report_takes_no_other_away(line: bytes, tmp_path: Path) -> None:
    run = TrainingRun(tmp_path)
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1, "loss": 2.0}\n' + line + b'\n{"step": 3}\n')
    assert run.reports() == [{"step": 1, "loss": 2.0}, {"step": 3}]


TEXT = "Alice will eat pizza"


def test_spans_with_bare_carriage_returns(tmp_path: Path) -> None:
    path = tmp_path / "spans.csv"
    path.write_bytes(b"name,start,end\rwho,0,5\rwhat,6,20\r")
    assert [part.name for part in parts_of(str(path), TEXT, split_words(TEXT))][:2] == ["who", "what"]


@pytest.mark.parametrize("limit", [131_072, 1 << 26])  # of a field: batch raises it for its texts
@pytest.mark.parametrize(
    "data",
    [
        b'name,start,end\n"a"b\rc,0,5\n"',
        b"name,start,end\nx," + b"9" * 5000 + b",5\n",
        b"name,start,end\n" + b"x" * 200_000 + b",0,5\n",
        b'[{"name": 5, "start": 1e400, "end": 2}]',
        b'[{"start": [0], "end": {}}]',
        b"name,start,end\nx,0\n",
        b"\x00,start,end\n",
    ],
)
def test_spans_that_are_none(data: bytes, limit: int, tmp_path: Path) -> None:
    path = tmp_path / "spans.csv"
    path.write_bytes(data)
    before = csv.field_size_limit(limit)
    try:
        with pytest.raises(AttnctlError) as error:
            parts_of(str(path), TEXT, split_words(TEXT))
    finally:
        csv.field_size_limit(before)
    assert "\n" not in str(error.value)
