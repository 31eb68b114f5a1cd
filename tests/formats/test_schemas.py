"""Every JSON document of every command, with every option, is what the printed schema says, and nothing beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from attnctl.cli import Command
from attnctl.cli.command_table import COMMANDS
from attnctl.cli.options import MODEL_OPTIONS
from attnctl.formats.documents.schemas import SCHEMAS
from attnctl.models.huggingface.configured_sizes import known_configurations
from tests.cli.test_pairs import VALUES
from tests.conftest import SAMPLES, Run
from tests.tools import folders

TEXT = "Alice will eat pizza\n\nBob likes tea"
SMALL = ["--model", "random", "--layers", "2", "--heads", "2", "--d-model", "8"]
OTHER = "Alice will eat soup\n\nBob likes tea"
LONG = ["--file", "long.txt", *SMALL]
CHECKPOINT = ["--model", "checkpoint"]
TINY = ["--max-steps", "2", "--batch-size", "4", "--d-model", "8", "--layers", "1", "--heads", "1"]
NEEDLE = ["--needle", "The cat is red.", "--question", "What is the cat?", "--expect", "red", "--lengths", "300", "--depths", "0"]  # fmt: skip

# command → ways to have it write JSON, each put after its name; the first two, where they are short, with every option too
WRITING: dict[str, tuple[list[str], ...]] = {
    "explain": (
        [TEXT, *SMALL, "--json"], ["run.json", "--json"], [TEXT, *SMALL, "--top", "2", "--json"], ["links.json", "--json"],
        [*LONG, "--json"], [*LONG, "--json", "--query", "3,9"], [*LONG, "--json", "--top", "2", "--head", "0"],
        ["Alice will eat", "--steps", "contributions", "--json"],
        ["Alice will eat", "--steps", "contributions", "--query", "2", "--json"],
        ["Alice will eat", "--predict", "all", "--json"], ["Alice will eat", *CHECKPOINT, "--predict", "2", "--json"],
        ["a will eat", *CHECKPOINT, "--generate", "2", "--words", "--measure", "rollout", "--json"],
        ["a will eat", "--model", "t5", "--attention", "cross", "--target", "at", "--json"],
        ["a will eat", *CHECKPOINT, "--steps", "contributions", "--json"], ["w.npy", "--json"],
    ),
    "heatmap": (
        [TEXT, *SMALL, "-o", "out.json"], ["run.json", "-o", "out.json"], ["w.npy", "-o", "out.json"],
        [*LONG, "-o", "out.json"], [*LONG, "-o", "out.json", "--spans", "paragraphs"],
    ),
    "heads": ([TEXT, *SMALL, "--json"], ["run.json", "--json"], ["--probe", "random", "--json"], [*LONG, "--json"]),
    "ablate": (
        ["Alice will eat", "--target", "pizza", "--json"], [TEXT, "--model", "random", "--json"],
        [TEXT, *CHECKPOINT, "--approximate", "--json"], [TEXT, *CHECKPOINT, "--spans", "paragraphs", "--json"],
        [TEXT, *CHECKPOINT, "--edges", "--target", "at", "--against", "lic", "--json", "--layer", "1"],
    ),
    "compare": ([TEXT, OTHER, *SMALL, "--json"], ["demo", "random", "Alice will eat", "--json"], ["run.json", "run.json", "--json"]),
    "sources": (["--chat", "chat.json", *CHECKPOINT, "--answer", "the cat", "--json"],),
    "needle": ([*CHECKPOINT, *NEEDLE, "--json"], [*CHECKPOINT, *NEEDLE, "-o", "out.jsonl"]),
    "batch": (["in.txt", *SMALL], ["in.txt", *SMALL, "-o", "batch"]),
    "model": (["demo", "--json"], *([name, "--json"] for name in known_configurations())),
    "train": (["in.txt", "-o", "out", *TINY, "--json"], ["in.txt", "--explain", "--json"]),
    "evaluate": (
        [str(SAMPLES / "sentences.conllu"), *SMALL, "--json"], [str(SAMPLES / "documents.conllu"), "--json"],
        ["--sentences", "200", "--json"],
    ),
    "softmax": (["8.1", "1.2", "-inf", "--json"], ["1", "-1", "--tokens", "a b", "--json"]),
    "quiz": ([TEXT, *SMALL, "--json"], ["Alice will eat pizza", "--json"], ["run.json", "--json"]),
}  # fmt: skip
# options that the first way of each takes, where it has them
TAKEN = {"--layer", "--head", "--seed", "--window", "--causal", "--scale", "--temperature", "--top", "--off"}
# what they come to
DOCUMENTS = {
    "explain": {"trace", "overview", "effects"}, "heatmap": {"overview"}, "heads": {"overview"}, "ablate": {"effects"},
    "compare": {"comparison"}, "sources": {"sources"}, "needle": {"needle", "needles"},
    "batch": {"trace", "batch", "manifest"}, "model": {"card", "sizes"}, "train": {"report", "lesson"},
    "evaluate": {"census", "relation"}, "softmax": {"softmax"}, "quiz": {"quiz"},
}  # fmt: skip
# a checkpoint's run takes its time: of the shared options these
SLOW = ("sources", "needle", "train", "evaluate", "model")
WITH_CHECKPOINT = {"generate", "bos", "dtype", "off", "predict", "seed", "truncate"}
# options with which there is nothing to see here: they choose where to write, or take long and change no document
LEFT_OUT = {"help", "json", "output", "file", "quiet", "no_pager", "no_open", "engine", "address", "jobs", "site", "man", "csv", "resume", "probe", "write_corpus"}  # fmt: skip
OWN_VALUES = {
    "haystack": "long.txt", "reference": "in.txt", "edge": "0:1", "off": "1.0", "against": "soup", "how": "mean",
    "relations": "labels.csv", "watch": "Alice will eat pizza", "objective": "next-word", "drop": "first",
    "switch_off": "2", "answer": "the dog", "chat": "chat.json", "format": "json", "census": "census.json",
    "column": "text", "input_form": "text", "count": "3", "length": "100", "layer": "0", "head": "0", "query": "2",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import numpy as np

    path = tmp_path_factory.mktemp("documents")
    np.save(path / "w.npy", np.full((2, 7, 7), 1 / 7, np.float32))
    np.save(path / "rows.npy", np.ones((7, 8), np.float32))
    (path / "chat.json").write_text(json.dumps([{"role": "user", "content": "A cat sat.\n\nA dog ran. Who sat?"}]))
    (path / "in.txt").write_text("Alice will eat pizza\nBob likes tea\n\n")
    (path / "long.txt").write_text("\n\n".join(" ".join(f"w{(at + k) % 37}" for at in range(60)) for k in range(9)))
    (path / "labels.csv").write_text("nsubj,subject\n")
    folders.write(path / "t5", "t5, bias", decoder_start_token_id=0)
    folders.write(path / "checkpoint", "llama", max_position_embeddings=1024)
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "
    (path / "checkpoint" / "chat_template.jinja").write_text(template)
    return path


@cache
def validator(name: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(SCHEMAS[name]())


def documents(out: str, folder: Path) -> Iterator[tuple[str, Any]]:
    """(schema, document) of all JSON on standard output, and in the files that -o named; those are taken away."""
    for line in out.splitlines() if out.startswith("{") else ():
        yield "", json.loads(line)
    for path in (folder / "out.json", folder / "out.jsonl", folder / "batch", folder / "out"):
        for file in sorted(path.iterdir()) if path.is_dir() else [path] if path.exists() else []:
            if file.suffix in (".json", ".jsonl") and file.name != "recipe.json":
                lines = [file.read_text()] if file.suffix == ".json" else file.read_text().splitlines()
                for line in lines:
                    yield "manifest" if file.name == "manifest.jsonl" else "", json.loads(line)
            file.unlink()
        if path.is_dir():
            path.rmdir()


def check_documents(out: str, folder: Path, asked: list[str]) -> set[str]:
    """The schemas of what was written, each held against its own."""
    found = set()
    for name, document in documents(out, folder):
        name = name or document["schema"].removeprefix("attnctl.").partition("/")[0]
        wrong = [f"{error.json_path}: {error.message[:200]}" for error in validator(name).iter_errors(document)]
        assert not wrong, (asked, wrong[:3])
        found.add(name)
    return found


@pytest.mark.parametrize("command", WRITING)
def test_every_document_is_what_its_schema_says(
    command: str, run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    for name, made in (("run.json", ["explain", TEXT]), ("links.json", ["explain", "--file", "long.txt"])):
        if not Path(name).exists():
            assert run(*made, *SMALL, "-o", name).code == 0
    if not Path("census.json").exists():
        assert run("evaluate", SAMPLES / "sentences.conllu", *SMALL, "-o", "census.json").code == 0
    written: set[str] = set()
    for at, arguments in enumerate(WRITING[command]):
        plain = run(command, *arguments)
        assert plain.code in (0, 3) or command == "needle", plain  # a network of random weights finds none
        seen = check_documents(plain.out, folder, [command, *arguments])
        assert seen, (command, arguments)
        written |= seen
        for option in options_of(command) if at < (1 if command in SLOW else 2) else ():
            asked = [command, *arguments, *option]
            done = run(*asked)
            assert done.code in (0, 1, 2, 3), (asked, done)
            one_head = command == "compare" and option[0] in ("--layer", "--head")  # its JSON holds every head
            assert done.code in (0, 3) or at or command in SLOW or option[0] not in TAKEN or one_head, (asked, done)
            check_documents(done.out, folder, asked)
    assert written == DOCUMENTS[command]


def options_of(command: str) -> Iterator[list[str]]:
    """Every option of a command, with a value that it could have."""
    known = Command(command)
    numbers = {name for name, option in known.options.items() if option.range}
    for parameter in known.params:
        name = str(parameter.name)
        if parameter.param_type_name != "option" or name in LEFT_OUT:
            continue
        if command in SLOW and name in MODEL_OPTIONS and name not in WITH_CHECKPOINT:
            continue
        value = OWN_VALUES.get(name) or VALUES.get(name, "1" if name in numbers else "x")
        for option in [next(one for one in parameter.opts if one.startswith("--")), *parameter.secondary_opts]:
            yield [option] if parameter.is_flag else [option, value]


def test_every_command_that_can_write_json_is_here() -> None:
    for name in COMMANDS:
        takes = {parameter.name for parameter in Command(name).params}
        if "json" in takes or name in ("heatmap", "batch"):
            assert name in WRITING, name


def test_every_schema_is_written_by_a_command() -> None:
    assert set().union(*DOCUMENTS.values()) == set(SCHEMAS)


@pytest.mark.parametrize("name", SCHEMAS)
def test_no_object_may_hold_what_is_not_described(name: str, run: Run) -> None:
    schema = run("schema", name).json
    jsonschema.Draft202012Validator.check_schema(schema)

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
