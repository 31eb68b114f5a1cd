"""The first minutes: help, words without quotes, what options are called and have as their default."""

from __future__ import annotations

from typing import Any

import pytest

from attnctl.cli.app import load_command
from attnctl.registry import COMMANDS
from tests.conftest import Refused, Run


def options_of(name: str) -> dict[str, Any]:
    return {p.name: p for p in load_command(name).params if p.param_type_name == "option"}


@pytest.mark.parametrize("columns", [80, 40])
def test_help(run: Run, columns: int) -> None:
    bare = run(columns=columns)
    assert bare.code == 0 and bare.err == ""
    assert bare.out == run("--help", columns=columns).out
    assert max(map(len, bare.out.splitlines())) <= columns
    for name in COMMANDS:
        command = load_command(name)
        assert f"\n│ {name} " in bare.out
        shown = run(name, "--help", columns=columns)
        assert (shown.code, shown.err) == (0, "")
        assert command.example in " ".join(shown.out.split()) and command.example.split()[:2] == ["attnctl", name]
        assert max(len(line) for line in shown.out.splitlines() if command.example not in line) <= columns
        if command.more:
            assert columns < 60 or not any(f"─ {panel} ─" in shown.out for panel in command.more)
            shown = run(name, "--help-all", columns=columns)
            assert (shown.code, shown.err) == (0, "") and max(map(len, shown.out.splitlines())) <= columns
        for option in options_of(name).values():
            assert all(opt in shown.out for opt in option.opts) and option.help


@pytest.mark.parametrize(
    ("command", "defaults"),
    [
        ("quiz", {"questions": 5}),
        ("softmax", {"temperature": 1.0, "precision": 2}),
        ("sources", {"budget": 20}),
        ("needle", {"lengths": "512,1024,2048", "depths": "0,25,50,75,100"}),
        ("batch", {"max_tokens": 2048, "batch_size": 32, "budget": 20, "format": "json", "gpus_per_worker": 0.0, "cmap": "heat", "dpi": 100}),
        ("evaluate", {"sentences": 1000, "least": 20, "max_tokens": 512, "batch_size": 32, "jobs": 1, "gpus_per_worker": 0.0, "cmap": "heat", "dpi": 200}),
        ("ablate", {"how": "zero"}),
        ("explain", {}),
    ],
)  # fmt: skip
def test_defaults_are_told(command: str, defaults: dict[str, Any], run: Run) -> None:
    own = {name: one.default for name, one in options_of(command).items()}
    told_of = {
        name: value for name, value in own.items() if value is not None and not isinstance(value, bool) and value != []
    }
    assert told_of == defaults
    told = " ".join(run(command, "--help-all" if load_command(command).more else "--help").out.split())
    assert all(f"[default: {value}]" in told for value in defaults.values())


def test_the_help_of_the_first_command_is_a_page(run: Run) -> None:
    assert len(run("explain", "--help", columns=80).out.splitlines()) <= 60
    every = run("explain", "--help-all", columns=80).out
    assert all(flag in every for flag in ("--drop", "--qkv", "--window", "--d-model", "--target-language"))


def test_words_without_quotes(run: Run) -> None:
    quoted = run("explain", "Alice will eat pizza", "--model", "random", "--json").json
    assert run("explain", "Alice", "will", "eat", "pizza", "--model", "random", "--json").json == quoted
    assert run("-V").out == run("--version").out


@pytest.mark.parametrize("command", ["explain", "heads", "ablate"])
def test_a_pipe_is_read_where_no_text_is_given(command: str, run: Run, refused: Refused) -> None:
    piped = run(command, "--json", "--quiet", pipe=b"Alice will eat")
    assert piped.code == 0, piped
    assert piped.out == run(command, "--json", "--quiet", "Alice will eat").out
    assert refused(command, pipe=b"").startswith("the text is empty")
    assert "there is no text" in refused(command, code=2)
