"""Text from outside: whatever a text, a name or a note holds, nothing that is written steers a terminal or a page."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import typer.main
from safetensors.numpy import load_file, save_file

import attnctl
from attnctl.cli.app import app
from attnctl.models.builtin.weights import path_of
from attnctl.registry import COMMANDS
from attnctl.text import as_json, harmless_text
from tests.conftest import Run

STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069\ud800-\udfff]")
HOSTILE = "\x1b]0;x\x07\u202e\x9b2J\r\x7f\u2028 {{data}} [bold]"

# what each command works with, where nothing is wrong, if that is not a text
ARGUMENTS = {
    "compare": ["Alice will eat", "Bob will eat"], "batch": ["in.txt"], "train": ["in.txt"], "evaluate": ["random"],
    "model": ["demo"], "softmax": ["1", "2"], "schema": ["trace"], "config": [], "docs": ["lesson"], "needle": [],
}  # fmt: skip
NEEDED = {"view": ["-o", "-"], "train": ["--explain"]}


def texts_of_commands() -> Iterator[Any]:
    """(command, argument or option): every argument that is a text, and every option in the first command that has it."""
    group: Any = typer.main.get_command(app)
    met = set()
    for name in COMMANDS:
        arguments = [one for one in group.get_command(None, name).params if one.param_type_name == "argument"]
        for parameter in group.get_command(None, name).params:
            if parameter.type.name == "str" and (parameter in arguments or parameter.name not in met):
                at = arguments.index(parameter) if parameter in arguments else None
                yield pytest.param(name, at, parameter.opts[-1], id=f"{name}-{parameter.name}")
                met.add(parameter.name)


def clean(*told: str) -> None:
    for text in told:
        assert not (found := STEERING.findall(text)), (found, text[-300:])
        assert "Traceback" not in text and "Warning" not in text


NAME = "it's;$(touch${IFS}stolen)`x`"  # what a shell would run, in quotes of either kind too


@pytest.mark.parametrize(
    ("command", "before", "word"),
    [
        (("explain", f"./{NAME}"), "printf %s ", f"./{NAME}"),
        (("explain", f"{NAME}.txt"), "--file ", f"{NAME}.txt"),
        (("explain", f"{NAME}.d/."), "attnctl batch ", f"{NAME}.d/."),
        (("heatmap", f"{NAME}.txt"), "--file ", f"{NAME}.txt"),
        (("heatmap", f"{NAME}.safetensors"), "--model ", f"{NAME}.safetensors"),
        (("heatmap", f"{NAME}.jsonl"), "sed -n 1p ", f"{NAME}.jsonl"),
        (("compare", f"./{NAME}.d", "demo"), "attnctl compare ", f"./{NAME}.d"),
        (("compare", f"./{NAME}.d", f"a {NAME}", "b c"), "attnctl compare ", f"a {NAME}"),
        (("compare", f"./{NAME}.d", "a b", "b c"), "--model ", f"./{NAME}.d"),
        (("model", f"{NAME}.npz"), "attnctl explain --model ", f"{NAME}.npz"),
        ((f"say {NAME}",), "attnctl explain ", f"say {NAME}"),
        (("config",), "attnctl config --unset ", NAME),
        (("explain", "the cat sat", "--model", f"{NAME}.d"), "' ", f"{NAME}.d"),
    ],
)
def test_what_users_are_to_paste_is_quoted(
    command: tuple[str, ...], before: str, word: str, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(f"{NAME}.txt").write_text("the cat sat")
    Path(f"{NAME}.safetensors").touch()
    Path(f"{NAME}.npz").touch()
    Path(f"{NAME}.jsonl").write_text('{"schema": "attnctl.trace/1"}\n' * 2)
    folder = Path(f"{NAME}.d")
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "pytorch_model.bin").touch()
    if command[0] == "config":
        Path("own.toml").write_text(f"{json.dumps(NAME)} = 1\n")
        monkeypatch.setenv("ATTNCTL_CONFIG", "own.toml")
        command = ("explain", "the cat sat")
    refused = run(*command)
    assert refused.code in (1, 2) and refused.err.count("\n") == 1
    assert before + quote(word) in refused.err


def test_a_training_is_gone_on_with_by_what_is_printed(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.txt").write_text(f"the cat {NAME}\n" * 30)
    small = ("--max-steps", "1", "--layers", "1", "--heads", "1", "--batch-size", "2")
    trained = run("train", "in.txt", "-o", f"a {NAME}", "--watch", f"the cat {NAME}", *small)
    assert (
        trained.code == 0 and f"attnctl explain {quote(f'the cat {NAME}')} --model {quote(f'a {NAME}')}" in trained.err
    )


@pytest.mark.parametrize(("name", "at", "flag"), list(texts_of_commands()))
def test_no_argument_of_any_command_steers(
    name: str, at: int | None, flag: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written goes through one door (below), and an option is the same in every command (test_one_word.py)."""
    monkeypatch.setattr("attnctl.commands.view.command.show_in_browser", lambda page: None)
    Path("in.txt").write_text("Alice will eat\nBob will eat\n")
    long = ("x" * 5000,) if at is not None else ("9" * 5000, "0-" + "9" * 5000)
    for text in (HOSTILE, "\udcff\u2066", "", *long):
        arguments = list(ARGUMENTS.get(name, ["Alice will eat"]))
        if at is not None:
            arguments += ["x"] * (at + 1 - len(arguments))
            arguments[at] = text
        else:
            arguments.append(f"{flag}={text}")
        result = run(name, *(NEEDED.get(name, []) if flag != "--output" else []), *arguments)
        assert result.code in (0, 1, 2, 3), result
        clean(result.out, result.err)
        assert all(len(line) < 1200 for line in result.err.splitlines())


NAMES = ("\x1b]0;x\x07a\u202eb\x9b2Jline\nend\r", os.fsdecode(b"\xff\xfe"))


@pytest.fixture(params=NAMES, ids=ascii)
def named(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A name that may stand on a disk, in a folder of its own name, where everything bears it: weights, too."""
    Path(request.param).mkdir()
    monkeypatch.chdir(request.param)
    shutil.copy(path_of("demo"), f"{request.param}.safetensors")
    return str(request.param)


@pytest.mark.grid
@pytest.mark.parametrize(
    ("command", "forms"),
    [
        ("explain", "json txt svg npz"), ("heatmap", "png svg pdf"), ("heads", "json csv svg"),
        ("compare", "json txt svg png"), ("view", "html"),
    ],
)  # fmt: skip
def test_files_of_any_name(command: str, forms: str, named: str, run: Run) -> None:
    other = {"compare": ["Bob will eat"], "heatmap": ["--head", "0"]}.get(
        command, []
    )  # the name stands beside any head
    outputs = [["-o", f"{named}.{form}"] for form in forms.split()]
    if command == "view":
        outputs = [["-o", "-"], *(output + ["--no-open"] for output in outputs)]
    else:
        outputs += [[], *([["--json"]] if "json" in forms else [])]
    for output in outputs:
        result = run(command, "Alice will eat", *other, "-m", f"{named}.safetensors", *output)
        assert result.code == 0, result
        clean(result.out, result.err)
        if output == ["--json"]:
            json.loads(result.out)
    for form in forms.split():
        data = Path(f"{named}.{form}").read_bytes()
        assert data
        if form not in ("png", "pdf", "npz"):
            clean(data.decode())


def test_readers_and_writers_of_any_name(named: str, run: Run) -> None:
    model = f"{named}.safetensors"
    Path(named).write_text("Alice will eat\nBob likes tea\n")
    np.save(f"{named}.npy", np.eye(3, dtype=np.float32))
    rows = f"{named}.csv"
    Path(rows).write_text("name,start,end\n\x1b[31mwho\u202e,0,5\n")
    forms = "json,png,svg,npz,statistics"
    assert run("explain", "Alice will eat", "-o", f"{named}.json").code == 0
    for arguments in (
        ["explain", "--file", named],
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
        ["film", f"{named}-run", "Alice will eat", "-o", "x.svg"],
        ["quiz", "Alice will eat", "-m", model],
    ):
        result = run(*arguments)
        assert result.code in (0, 1, 2, 3), (arguments, result)
        clean(result.out, result.err)
    for path in (*Path.cwd().rglob("*.svg"), *Path.cwd().rglob("*.jsonl")):
        clean(path.read_text(encoding="utf-8"))


def test_metadata_of_weights(run: Run) -> None:
    tensors = load_file(path_of("demo"))
    for value in ("\x1b]0;x\x07\u202e", '{"a": "\\ud800"}', "[" * 5000, "5", "null", '["\x1b[2J"]'):
        for key in ("objective", "recipe", "figures", "tokens", "unknown", "made_by", "step", "scale", "corpus"):
            save_file(tensors, "w.safetensors", {"n_heads": "4", key: value})
            for arguments in (["model"], ["model", "--json"], ["explain", "Alice eats", "-m"]):
                result = run(*arguments, "w.safetensors")
                assert result.code in (0, 1), result
                clean(result.out, result.err)


def test_a_trace_that_says_what_it_should_not(run: Run) -> None:
    document = json.loads(run("explain", "Alice will eat", "--json").out)
    document["text"] = document["model"]["name"] = "\x1b]0;x\x07\u202e"
    document["notes"] = ["\x1b]0;x\x07\u202e"]
    document["tokens"][0]["text"] = "=\x9b2J"
    document["predictions"] = [{"position": 2, "text": "\x1b[2J", "id": 0, "probability": 0.5}]
    Path("t.json").write_text(json.dumps(document))
    for arguments in (["heatmap", "t.json"], ["heatmap", "t.json", "-o", "t.svg"], ["view", "t.json", "-o", "-"]):
        result = run(*arguments)
        assert result.code == 0
        clean(result.out, result.err)
    clean(Path("t.svg").read_text())


def test_svg_is_sound_whatever_the_characters(run: Run) -> None:
    """U+FFFE is a character that no XML may hold: a browser showed nothing of the file."""
    chars = "\ufffe \uffff \ufdd0 \U0001fffe \U0010ffff \ue000"
    for command in (["explain"], ["heatmap"], ["heatmap", "--title", f"a{chars}b"]):
        assert run(command[0], f"Alice {chars} will eat", "-o", "x.svg", *command[1:]).code == 0
        ElementTree.parse("x.svg")


# --- the door itself ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", [HOSTILE, "\udcff\u2066", "", "x" * 5000, "$\\frac{$ <b>", "é 🍕 \u200d זה", "a\tb\nc", "\U000e0041\ufeff"]
)
def test_json_reads_back_as_it_was(text: str) -> None:
    data = as_json({"a": [text], text: np.ones(2, np.float32)})
    clean(data.decode())
    loaded = json.loads(data)
    assert loaded["a"] == [text] or "\udcff" in text and loaded["a"] == [text.replace("\udcff", "\\udcff")]
    clean(harmless_text(text))


DOORS = ("cli/output.py", "errors.py", "template_program.py", "render/terminal/console.py", "__main__.py")


def test_nothing_is_written_past_the_door() -> None:
    writers = ("print", "Console", "sys.stdout.write", "sys.stderr.write", "sys.stdout.buffer.write")
    past = [
        (path, node.lineno)
        for path in Path(attnctl.__file__).parent.rglob("*.py")
        if not str(path).endswith(DOORS)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in writers
    ]
    assert not past, "it writes past cli/output.py"
