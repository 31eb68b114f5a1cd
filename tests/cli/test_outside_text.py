"""Text from outside: whatever a text, a name or a note holds, nothing that is written steers a terminal or a page."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import typer.main
from safetensors.numpy import load_file, save_file

from attnctl.cli import app
from attnctl.cli.command_table import COMMANDS
from attnctl.models.builtin.weights import path_of
from attnctl.text import as_json, harmless_text
from tests.conftest import Run

STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069\ud800-\udfff]")
TEXTS = (
    "\x1b]0;x\x07\u202e\x9b2J",
    "\udcff\u2066",
    "a\rb\x7f\u2028c",
    "",
    " ",
    "x" * 5000,
    "$\\frac{$ [bold] {{data}} <b>",
)

HOSTILE = "\x1b]0;x\x07\u202e\x9b2J\r\x7f\u2028 {{data}} [bold]"

# what each command works with, where nothing is wrong, if that is not a text
ARGUMENTS = {
    "compare": ["Alice will eat", "Bob will eat"], "batch": ["in.txt"], "train": ["in.txt"], "evaluate": ["random"],
    "model": ["demo"], "softmax": ["1", "2"], "schema": ["trace"], "config": [], "help": [], "docs": ["lesson"], "needle": [],
}  # fmt: skip
NEEDED = {"view": ["-o", "-"], "train": ["--explain"]}


def texts_of_commands() -> Iterator[tuple[str, Any]]:
    group: Any = typer.main.get_command(app)
    for name in COMMANDS:
        for parameter in group.get_command(None, name).params:
            if parameter.type.name == "str":
                yield name, parameter


def clean(*told: str) -> None:
    for text in told:
        assert not (found := STEERING.findall(text)), (found, text[-300:])
        assert "Traceback" not in text and "Warning" not in text


@pytest.mark.parametrize(
    ("name", "parameter"), list(texts_of_commands()), ids=lambda x: x if isinstance(x, str) else x.name
)
def test_no_argument_of_any_command_steers(
    name: str, parameter: Any, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("attnctl.cli.commands.view.show_in_browser", lambda page: None)
    Path("in.txt").write_text("Alice will eat\nBob will eat\n")
    long = ("x" * 5000,) if parameter.param_type_name == "argument" else ("9" * 5000, "0-" + "9" * 5000)
    for text in (HOSTILE, "\udcff\u2066", "", *long):
        arguments = list(ARGUMENTS.get(name, ["Alice will eat"]))
        if parameter.param_type_name == "argument":
            own = [part.name for part in typer_arguments(name)]
            arguments += ["x"] * (own.index(parameter.name) + 1 - len(arguments))
            arguments[own.index(parameter.name)] = text
        else:
            arguments.append(f"{parameter.opts[-1]}={text}")
        needed = NEEDED.get(name, []) if parameter.name != "output" or name == "train" else []
        result = run(name, *needed, *arguments)
        assert result.code in (0, 1, 2, 3), result
        clean(result.out, result.err)
        assert all(len(line) < 1200 for line in result.err.splitlines())


def typer_arguments(name: str) -> list[Any]:
    group: Any = typer.main.get_command(app)
    return [part for part in group.get_command(None, name).params if part.param_type_name == "argument"]


NAMES = ("\x1b]0;x\x07", "a\u202eb", os.fsdecode(b"\xff\xfe"), "line\nend\r", "\x9b2J")


@pytest.fixture(params=NAMES, ids=ascii)
def named(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A name that may stand on a disk, in a folder of its own name, where everything bears it."""
    folder = tmp_path / request.param
    folder.mkdir()
    monkeypatch.chdir(folder)
    return str(request.param)


@pytest.fixture
def model(named: str) -> str:
    """Weights in a file of that name, which say it in all their metadata too."""
    path = f"{named}.safetensors"
    shutil.copy(path_of("demo"), path)
    return path


OUTPUTS = {
    "explain": ("json", "txt", "svg", "npz"),
    "heatmap": ("png", "svg", "pdf", "html"),
    "heads": ("json", "csv", "svg"),
    "compare": ("json", "txt", "svg", "png"),
    "view": ("html",),
}


@pytest.mark.parametrize("command", OUTPUTS)
def test_files_of_any_name(command: str, model: str, named: str, run: Run) -> None:
    other = ["Bob will eat"] if command == "compare" else []
    forms = ("json",) if command in ("explain", "heads", "compare") else ()
    for more in ([], *(["--json"] for _ in forms)):
        quiet = ["-o", "-"] if command == "view" else []
        result = run(command, "Alice will eat", *other, "-m", model, *quiet, *more)
        assert result.code == 0, result
        clean(result.out, result.err)
        if more:
            json.loads(result.out)
    for form in OUTPUTS[command]:
        path = Path(f"{named}.{form}")
        quiet = ["--no-open"] if command == "view" else []
        result = run(command, "Alice will eat", *other, "-m", model, "-o", str(path), *quiet)
        assert result.code == 0 and path.stat().st_size, result
        clean(result.out, result.err)
        if form not in ("png", "pdf", "npz"):
            clean(path.read_text(encoding="utf-8"))


def test_readers_and_writers_of_any_name(model: str, named: str, run: Run) -> None:
    Path(named).write_text("Alice will eat\nBob likes tea\n")
    np.save(f"{named}.npy", np.eye(3, dtype=np.float32))
    rows = f"{named}.csv"
    Path(rows).write_text("name,start,end\n\x1b[31mwho\u202e,0,5\n")
    forms = "json,png,svg,npz,statistics"
    assert run("explain", "Alice will eat", "-o", f"{named}.json").code == 0
    for arguments in (
        ["explain", "--file", named],
        ["explain", "Alice will eat", "-m", "dot", "--embeddings", f"{named}.npy"],
        ["explain", "Alice will eat pizza", "-m", "dot", "--embeddings", f"{named}.npy"],
        ["explain", "Alice", "--tokenizer", f"{named}.json"],
        ["explain", "Alice", "--qkv", f"{named}.npy"],
        ["heatmap", f"{named}.npy"],
        ["heatmap", f"{named}.npy", "-o", f"{named}.svg"],
        ["heatmap", f"{named}.json", "--layer", "7"],
        ["heatmap", "Alice will eat", "--spans", rows],
        ["view", f"{named}.npy", f"{named}.json", "-o", "-"],
        ["compare", f"{named}.json", f"{named}.json"],
        ["compare", "demo", model, "Alice will eat", "--json"],
        ["batch", named, "--input", "text"],
        *[["batch", named, "--input", "text", "-o", f"{named}-out", "-m", model, "--format", forms]] * 2,
        ["batch", "..", "-o", f"{named}-all"],
        ["batch", rows, "--column", named],
        ["evaluate", model, "--sentences", "20", "--json"],
        ["model", model],
        ["model", model, "--json"],
        ["model", named],
        ["train", named, "-o", f"{named}-run", "--max-steps", "1", "--batch-size", "2", "--watch", "Alice will eat"],
        ["heatmap", "--run", f"{named}-run", "Alice will eat", "-o", "x.svg"],
        ["quiz", "Alice will eat", "-m", model],
    ):
        result = run(*arguments)
        assert result.code in (0, 1, 2, 3), (arguments, result)
        clean(result.out, result.err)
    for path in (*Path.cwd().rglob("*.svg"), *Path.cwd().rglob("*.jsonl")):
        clean(path.read_text(encoding="utf-8"))


def test_metadata_of_weights(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "w.safetensors"
    tensors = load_file(path_of("demo"))
    for value in ("\x1b]0;x\x07\u202e", '{"a": "\\ud800"}', "[" * 5000, "5", "null", '["\x1b[2J"]'):
        for key in ("objective", "recipe", "figures", "tokens", "unknown", "made_by", "step", "scale", "corpus"):
            save_file(tensors, path, {"n_heads": "4", key: value})
            for arguments in (["model", path], ["model", path, "--json"], ["explain", "Alice eats", "-m", path]):
                result = run(*map(str, arguments))
                assert result.code in (0, 1), result
                clean(result.out, result.err)


def test_a_trace_that_says_what_it_should_not(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "t.json"
    document = json.loads(run("explain", "Alice will eat", "--json").out)
    document["text"] = document["model"]["name"] = "\x1b]0;x\x07\u202e"
    document["notes"] = ["\x1b]0;x\x07\u202e"]
    document["tokens"][0]["text"] = "=\x9b2J"
    document["predictions"] = [{"position": 2, "text": "\x1b[2J", "id": 0, "probability": 0.5}]
    path.write_text(json.dumps(document))
    for arguments in (["heatmap", path], ["heatmap", path, "-o", tmp_path / "t.svg"], ["view", path, "-o", "-"]):
        result = run(*map(str, arguments))
        assert result.code == 0
        clean(result.out, result.err)
    clean((tmp_path / "t.svg").read_text())


@pytest.mark.parametrize("char", ["\ufffe", "\uffff", "\ufdd0", "\U0001fffe", "\U0010ffff", "\ue000"])
def test_svg_is_sound_whatever_the_characters(char: str, tmp_path: Path, run: Run) -> None:
    """U+FFFE is a character that no XML may hold: a browser showed nothing of the file."""
    for command in ("explain", "heatmap"):
        for more in ([], ["--title", f"a{char}b"] if command == "heatmap" else []):
            path = tmp_path / "x.svg"
            assert run(command, f"Alice {char} will eat{char}", "-o", path, *more).code == 0
            ElementTree.parse(path)


# --- the door itself ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [*TEXTS, "é 🍕 \u200d זה", "a\tb\nc", "\U000e0041\ufeff\xad"])
def test_json_reads_back_as_it_was(text: str) -> None:
    data = as_json({"a": [text], text: np.ones(2, np.float32)})
    clean(data.decode())
    loaded = json.loads(data)
    assert loaded["a"] == [text] or "\udcff" in text and loaded["a"] == [text.replace("\udcff", "\\udcff")]
    clean(harmless_text(text))


PACKAGE = Path(__file__).parents[2] / "attnctl"
DOORS = {
    "cli/output.py",
    "errors.py",
    "render/terminal/console.py",
    "__main__.py",
    "models/huggingface/template_process.py",  # JSON, to the process that asked it
}


def test_nothing_is_written_past_the_door() -> None:
    writers = ("print", "Console", "sys.stdout.write", "sys.stderr.write", "sys.stdout.buffer.write")
    past = [
        (path, node.lineno)
        for path in PACKAGE.rglob("*.py")
        if str(path.relative_to(PACKAGE)) not in DOORS
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in writers
    ]
    assert not past, "it writes past cli/output.py"


@pytest.mark.parametrize("title", ["$\\frac{$", "a\tb", "\U0001fae8 \u0f3a \ue000", "\udcff", "{{data}}", "\\$x^2$"])
def test_titles_are_drawn_as_they_are(title: str, tmp_path: Path, run: Run) -> None:
    for form in ("png", "svg"):
        result = run("heatmap", "Alice will eat", "--title", title, "-o", str(tmp_path / f"t.{form}"))
        assert result.code == 0, result
        clean(result.out, result.err)
