"""Messages: one line each, short enough to read, their end is there, and they name options as whoever reads them writes them."""

from __future__ import annotations

import ast
import pickle
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import attnctl
from attnctl.batching.engines import as_they_come, chunks_of_items, run_in_processes
from attnctl.batching.texts import numbered, of_row
from attnctl.batching.work import Work
from attnctl.cli.command_form import _origin_of
from attnctl.errors import (
    LONGEST,
    AttnctlError,
    UsageError,
    about_value,
    current_flags,
    option_name,
    options_as_flags,
    print_complaint,
)
from tests.conftest import Refused, Run

FLAGS = {"layer": "--layer", "as_json": "--json", "text": "TEXT"}  # of a command


@pytest.mark.parametrize("value", ["9" * 5000, "x y " * 3000, "9" * 299, "\u202e" * 5000, ""])
def test_a_long_value_leaves_room_for_what_to_do(value: str, capsys: Any) -> None:
    """The value took all the room, and the sentence on what is wanted was cut off."""
    print_complaint(f"--size {value!r}: it is WIDTHxHEIGHT in inches, like 6x4")
    said = capsys.readouterr().err
    assert said.startswith("attnctl: --size") and said.endswith(": it is WIDTHxHEIGHT in inches, like 6x4\n")
    assert said.count("\n") == 1 and len(said) < 7 * LONGEST


@pytest.mark.parametrize(
    ("error", "flag", "argument"),
    [
        (UsageError("it has layers 0 to 3", option="layer", value=7), "--layer 7: it", "layer=7: it"),
        (UsageError("it reads 3", option="layer", value="x"), "--layer x: it", "layer='x': it"),
        (UsageError("it reads 3", option="layer", value="a b"), "--layer 'a b': it", "layer='a b': it"),
        (UsageError("it reads 3", option="layer", value=""), "--layer '': it", "layer='': it"),
        (UsageError("is a number", option="d_k", value=10**400), "--d-k of 401 digits: is", "d_k=of 401 digits: is"),
        (UsageError("it has none", option="bos", value=True), "--bos: it", "bos=True: it"),
        (UsageError("it has none", option="bos", value=False), "--no-bos: it", "bos=False: it"),
        (AttnctlError("cannot be read", option="text", value="a.txt"), "TEXT a.txt: cannot", "text='a.txt': cannot"),
        (UsageError("has no effect", option="story"), "--story has no effect", "story has no effect"),
        (UsageError("has no effect", option="as_json"), "--json has no effect", "as_json has no effect"),
        (UsageError("no token 'x'", value="x"), "no token 'x'", "no token 'x'"),
        (UsageError("say --layer"), "say --layer", "say --layer"),
    ],
)
def test_an_error_names_its_option_for_who_reads_it(error: AttnctlError, flag: str, argument: str) -> None:
    assert str(error).startswith(argument)
    with options_as_flags(FLAGS):
        assert str(error).startswith(flag)
        with options_as_flags(None):
            assert str(error).startswith(argument)
    copy = pickle.loads(pickle.dumps(error))  # as it comes from a worker process
    assert (type(copy), str(copy), copy.option, copy.value) == (type(error), str(error), error.option, error.value)


def test_a_sentence_names_another_option_for_who_reads_it() -> None:
    assert (option_name("n_heads"), option_name("head", 3), option_name("log", True)) == (
        "n_heads=",
        "head=3",
        "log=True",
    )
    assert option_name("attention", "cross") == "attention='cross'" and current_flags() is None
    with options_as_flags(FLAGS):
        assert (option_name("n_heads"), option_name("head", 3), option_name("log", True)) == (
            "--n-heads",
            "--head 3",
            "--log",
        )
        assert option_name("attention", "cross") == "--attention cross" and current_flags() == FLAGS
    assert current_flags() is None


def test_a_command_and_a_function_say_the_same_of_their_own_options(run: Run, refused: Refused) -> None:
    for more, options in (
        ("--layer 7", {"layer": 7}),
        ("--device abacus", {"device": "abacus"}),
        ("--off 0", {"off": "0"}),
    ):
        shown = refused("explain", "a b", "--model", "random", *more.split(), code=2)
        with pytest.raises(UsageError) as error:
            attnctl.attend("a b", "random", **options)
        assert error.value.option is not None and re.match(rf"{error.value.option}=", str(error.value))
        flag = f"--{error.value.option.replace('_', '-')} "
        with options_as_flags({}):
            assert shown == str(error.value) and shown.startswith(flag)
    assert current_flags() is None  # when the command has ended


@pytest.mark.parametrize(("flags", "name"), [({}, "--max-tokens 2"), (None, "max_tokens=2")])
def test_another_process_names_options_as_this_one(flags: dict[str, str] | None, name: str) -> None:
    work, items = Work({"name": "demo"}, max_tokens=2), numbered([of_row("text", {"text": "a b c"})])
    with options_as_flags(flags):
        [[result]] = run_in_processes(work, chunks_of_items(items, 4), 1)
    assert result.error == f"3 tokens: more than {name}"


def test_texts_are_read_in_another_thread_and_name_options_as_here() -> None:
    def items() -> Any:
        yield from numbered([of_row("text", {"text": option_name("column")})])

    with options_as_flags({}):
        chunk = next(chunk for chunk in as_they_come(items(), 4) if chunk)
    assert chunk[0].text == "--column"


def test_a_default_is_to_blame_by_the_option_or_the_value_of_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"layer": "1", "drop": ["cow", "first"], "chat": "a.json", "head": "2"}
    context: Any = SimpleNamespace(params=values)
    monkeypatch.setattr("attnctl.cli.command_form.default_origin", lambda _, name: "" if name == "head" else f"${name}")
    damaged = AttnctlError("a.json is damaged")
    with pytest.raises(AttnctlError), about_value("a.json"):
        raise damaged
    assert _origin_of(UsageError("it is", option="layer", value=1), context) == "$layer"
    assert _origin_of(UsageError("no token 'cow'", value="cow"), context) == "$drop"
    assert _origin_of(damaged, context) == "$chat"
    # neither another option with the same value, nor a message that only speaks of one, nor what was typed
    for other in (
        UsageError("it is", option="head", value=2), UsageError("no cow"), UsageError("--layer 1: it is"),
        UsageError("it is", option="query", value="1"),
    ):  # fmt: skip
        assert _origin_of(other, context) == ""


def test_a_command_names_the_option_that_is_wrong_as_data() -> None:
    """Only so a default of the user's own is to blame: `option="by", value=by`, not a message that begins with --by."""
    package = Path(attnctl.__file__).parent
    spelled = [
        f"{path.relative_to(package)}:{call.lineno}"
        for folder in ("cli", "commands")
        for path in (package / folder).rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id.endswith("Error")
        and call.args
        if re.match(r"f?['\"]--", ast.unparse(call.args[0]))
    ]
    assert spelled == []


# flags of pip, of the converters that a line names
OF_OTHER_PROGRAMS = {
    "--upgrade", "--hf-path", "--mlx-path", "--dequantize", "--safe_serialization", "--alignment", "--n-best"
}  # fmt: skip


def test_the_core_spells_no_flags() -> None:
    """Python users read its messages too: `option_name` names an option for who reads it.

    `registry.py` lists old spellings of commands, which the command line prints; `Option` declares a flag.
    """
    package = Path(attnctl.__file__).parent
    spelled = []
    for path in package.rglob("*.py"):
        if path.relative_to(package).parts[0] in ("cli", "commands", "docs", "registry.py"):
            continue
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        calls = [node for node in nodes if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Option"]
        declared = {id(argument) for call in calls for argument in call.args}
        spelled += [
            f"{path.relative_to(package)}:{node.lineno}"
            for node in nodes
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and set(re.findall("--[a-z][a-z_-]+", node.value)) - OF_OTHER_PROGRAMS
            if id(node) not in declared
        ]
    assert spelled == []
