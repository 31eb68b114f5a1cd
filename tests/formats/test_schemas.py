"""Every JSON document of every command is what the printed schema says; with every option: tests/cli/test_options.py."""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import numpy as np
import pytest
from msgspec import Struct

import attnctl
from attnctl.cli.app import load_command
from attnctl.commands.mask.result import MaskGroup
from attnctl.errors import AttnctlError
from attnctl.formats.documents.json_documents import read_as, write_json
from attnctl.formats.documents.schemas import SCHEMAS
from attnctl.registry import COMMANDS
from tests.conftest import Run, check_schema

TEXT = "Alice will eat pizza\n\nBob likes tea"
SMALL = ["--model", "random", "--layers", "2", "--heads", "2", "--d-model", "8"]
OTHER = "Alice will eat soup\n\nBob likes tea"
LONG = ["--file", "long.txt", *SMALL]
CHECKPOINT = ["--model", "llama"]
TINY = ["--max-steps", "2", "--batch-size", "4", "--d-model", "8", "--layers", "1", "--heads", "1"]
NEEDLE = ["--needle", "The cat is red.", "--question", "What is the cat?", "--expect", "red", "--lengths", "300", "--depths", "0"]  # fmt: skip
ROLLED = ["--measure", "rollout"]

# command → ways to have it write JSON, each put after its name
WRITING: dict[str, tuple[list[str], ...]] = {
    "explain": (
        [TEXT, *SMALL, "--json"], ["t.json", *ROLLED, "--json"], [TEXT, *SMALL, "--top", "2", "--json"],
        ["links.json", "--top", "2", "--json"], [*LONG, "--json"], [*LONG, "--json", "--query", "3,9"],
        [*LONG, "--json", "--top", "2", "--head", "0"],
        ["Alice will eat", "--predict", "all", "--json"], ["Alice will eat", *CHECKPOINT, "--predict", "2", "--json"],
        ["a will eat", *CHECKPOINT, "--generate", "2", *ROLLED, "--json"],
        ["a will eat", "--model", "t5", "--attention", "cross", "--target", "at", "--json"],
        ["w.npy", "--json"],
    ),
    "contributions": (
        ["Alice will eat", "--json"], ["Alice will eat", "--query", "2", "--json"], ["a will eat", *CHECKPOINT, "--json"],
    ),
    "heatmap": (
        [TEXT, *SMALL, "-o", "out/a.json"], ["t.json", "-o", "out/a.json"], ["w.npy", "-o", "out/a.json"],
        [*LONG, "-o", "out/a.json"], [*LONG, "-o", "out/a.json", "--spans", "paragraphs"],
    ),
    "heads": ([TEXT, *SMALL, "--json"], ["t.json", "--json"], ["--probe", "random", "--json"], [*LONG, "--json"]),
    "ablate": (
        ["Alice will eat", "--target", "pizza", "--json"], [TEXT, "--model", "random", "--json"],
        [TEXT, *CHECKPOINT, "--approximate", "--json"], [TEXT, *CHECKPOINT, "--spans", "paragraphs", "--json"],
        [TEXT, *CHECKPOINT, "--edges", "--target", "at", "--against", "lic", "--json", "--layer", "1"],
    ),
    "compare": ([TEXT, OTHER, *SMALL, "--json"], ["demo", "random", "Alice will eat", "--json"], ["t.json", "t.json", "--json"]),
    "drift": (["demo", "demo-causal", TEXT, "--json"], ["llama", "llama", TEXT, "--dtype-b", "bfloat16", "--json"]),
    "sources": (["--chat", "chat.json", *CHECKPOINT, "--answer", "the cat", "--spans", "spans.csv", "--json"],),
    "align": (
        ["tone.wav", "--model", "whisper", "--target", "One two", "--language", "en", "--json"],
        ["a will eat", "--model", "t5", "--target", "at", "--json"],
        ["links", "--gold", "gold", "--json"], ["a will eat", "--model", "t5", "--target", "at", "--gold", "links", "--json"],
    ),
    "leaks": (["padded.json", *CHECKPOINT, "--json"], [TEXT, OTHER, "--pack", *CHECKPOINT, "--json"]),
    "mask": ([TEXT, *CHECKPOINT, "--json"], [TEXT, "--model", "demo-causal", "--expect", "causal", "--json"]),
    "needle": ([*CHECKPOINT, *NEEDLE, "--json"], [*CHECKPOINT, *NEEDLE, "-o", "out/a.jsonl"]),
    "batch": (["in.txt", *SMALL, "--max-tokens", "1"], ["in.txt", *SMALL], ["in.txt", *SMALL, "-o", "out/batch"]),
    "model": (["demo", "--json"], *([name, "--json"] for name in ("gpt2", "t5-base", "gemma-2-2b", "deepseek-v3"))),
    "train": (["in.txt", "-o", "out/run", *TINY, "--json"], ["in.txt", "--explain", "--json"]),
    "evaluate": (
        ["samples/sentences.conllu", *SMALL, "--json"], ["samples/documents.conllu", "--json"],
        ["--sentences", "30", "--json"],
    ),
    "softmax": (["8.1", "1.2", "-inf", "--json"], ["1", "-1", "--tokens", "a b", "--json"]),
    "quiz": ([TEXT, *SMALL, "-n", "40", "--json"], ["Alice will eat pizza", "--json"], ["t.json", "--json"]),
}  # fmt: skip


SMALLEST: dict[str, Any] = {}  # schema → the smallest document of it that was checked


def check_document(document: Any, name: str = "") -> str:
    """Hold a document against its schema; `attnctl.load` reads it, and writes the same again. Answers the schema's name."""
    name = check_schema(document, name)
    if name not in ("manifest", "failed"):
        Path("again.json").write_text(json.dumps(document))
        if name not in SMALLEST or len(str(document)) < len(str(SMALLEST[name])):
            SMALLEST[name] = document
        value = attnctl.load("again.json")
        if name not in ("trace", "overview"):
            assert isinstance(value, Struct) and json.loads(write_json(value, name)) == document, name
    return name


DAMAGE = (None, "x", 7, [], [None], ["x"], [[None]], [["x", 0.5]], [0.5, 0.5], [[0.5, 0.5], [0.5]])


def lists_in(document: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The places of the lists in a document, those in the first entry of a list for those in all."""
    if isinstance(document, dict):
        for key, value in document.items():
            yield from lists_in(value, (*path, key))
    elif isinstance(document, list):
        yield path
        yield from lists_in(document[0] if document else None, (*path, 0))


def check_damaged_lists(document: Any, name: str) -> None:
    """Assert that a document with other things in the place of a list is refused in a line, or can be used."""
    for path in list(lists_in(document)):
        holder = functools.reduce(lambda part, key: part[key], path[:-1], document)
        whole = holder[path[-1]]
        for value in DAMAGE:
            holder[path[-1]] = value
            Path("damaged.json").write_text(json.dumps(document))
            with contextlib.suppress(AttnctlError):
                loaded: Any = attnctl.load("damaged.json")
                str(loaded)
                if name not in ("trace", "overview"):
                    json.loads(write_json(loaded, name))
                    getattr(loaded, "to_records", list)()
        holder[path[-1]] = whole


def schemas_written(out: str) -> Iterator[str]:
    """The schemas of all JSON on standard output and in the folder `out`, each held against its own; the folder goes."""
    for line in out.splitlines() if out.startswith("{") else ():
        yield check_document(json.loads(line))
    for file in Path("out").rglob("*.json*"):
        if file.name != "recipe.json":
            for line in [file.read_text()] if file.suffix == ".json" else file.read_text().splitlines():
                yield check_document(json.loads(line), "manifest" if file.name == "manifest.jsonl" else "")
    shutil.rmtree("out", ignore_errors=True)
    Path("out").mkdir()


def test_every_document_is_what_its_schema_says(
    run: Run, room: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(room, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    Path("links").write_text("0-0\n")
    Path("gold").write_text("0p0\n")
    assert set(WRITING) >= {name for name in COMMANDS if "json" in {one.name for one in load_command(name).params}}
    written: set[str] = set(schemas_written(""))
    for command, ways in WRITING.items():
        for arguments in ways:
            done = run(command, *arguments)
            assert done.code in (0, 3) or command == "needle", done  # a network of random weights finds none
            seen = set(schemas_written(done.out))
            assert seen, (command, arguments)
            written |= seen
    assert written == set(SCHEMAS)
    for name, document in SMALLEST.items():
        check_damaged_lists(document, name)


@pytest.mark.parametrize("name", SCHEMAS)
def test_no_object_may_hold_what_is_not_described(name: str, run: Run) -> None:
    schema = run("schema", name).json
    jsonschema_rs.meta.validate(schema)

    def open_objects(part: Any, path: str) -> Iterator[str]:
        if isinstance(part, dict):
            if part.get("type") == "object" and "additionalProperties" not in part:
                yield path
            for key, inner in part.items():
                yield from open_objects(inner, f"{path}.{key}")
        elif isinstance(part, list):
            for inner in part:
                yield from open_objects(inner, path)

    assert list(open_objects(schema, name)) == []
    assert schema["description"] and set(schema["required"]) <= set(schema["properties"])


@pytest.mark.parametrize(
    "field, value, says",
    [
        ("scores", None, "scores: the array is 'None', not a list of numbers"),
        ("scores", [1.0, "x"], "scores: the array: texts instead of numbers"),
        ("exponentials", [[1.0], [2.0]], "exponentials: the array has 2 axes, not 1"),
        ("scales", [{"scale": 1.0, "weights": [None]}], r"scales\[0\].weights: the array: nulls or other things"),
    ],
)
def test_a_damaged_array_is_refused(run: Run, tmp_path: Path, field: str, value: Any, says: str) -> None:
    document = run("softmax", "8.1", "-inf", "--json").json
    (tmp_path / "a.json").write_text(json.dumps(document))
    assert np.array_equal(attnctl.load(tmp_path / "a.json").scores, np.float32([8.1, -np.inf]).astype(float).round(5))
    (tmp_path / "a.json").write_text(json.dumps(document | {field: value}))
    with pytest.raises(AttnctlError, match=f"a.json is damaged: {says}"):
        attnctl.load(tmp_path / "a.json")


def test_a_mask_of_intervals_is_read_as_one() -> None:
    """Causal of three tokens, by hand; intervals that leave the mask are refused."""
    fields = {"kind": "self", "layers": [0], "rows": [0], "sentence": "causal"}
    intervals = {"shape": [3, 3], "query": [0, 1, 2], "first": [0, 0, 0], "last": [0, 1, 2]}
    group = read_as(MaskGroup, fields | {"mask": intervals})
    assert np.array_equal(np.asarray(group.mask), np.tri(3, dtype=bool))
    for damaged in ({"last": [0, 1, 3]}, {"query": [0, 1]}, {"query": [1, 0, 2]}, {"first": [0, 0, None]}):
        with pytest.raises(ValueError, match=r"its intervals|3 first keys|not a whole number"):
            read_as(MaskGroup, fields | {"mask": intervals | damaged})
