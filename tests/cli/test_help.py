"""The first minutes: help, misspelt names, words without quotes, defaults of a user's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from attnctl.cli import Command
from attnctl.cli.command_table import COMMANDS
from attnctl.cli.options import OPTIONS
from tests.conftest import Run


def options_of(name: str) -> dict[str, Any]:
    return {p.name: p for p in Command(name).params if p.param_type_name == "option"}


@pytest.mark.parametrize("columns", [80, 40])
def test_bare_attnctl_prints_its_help(run: Run, columns: int) -> None:
    bare = run(columns=columns)
    assert bare.code == 0 and bare.err == ""
    assert bare.out == run("--help", columns=columns).out == run("help", columns=columns).out
    assert all(f"\n  {name} " in bare.out for name in COMMANDS)
    assert max(map(len, bare.out.splitlines())) <= columns


@pytest.mark.parametrize("columns", [80, 40])
@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command(run: Run, name: str, columns: int) -> None:
    shown = run("help", name, columns=columns)
    assert (shown.code, shown.err) == (0, "")
    assert shown.out == run(name, "--help", columns=columns).out
    example = COMMANDS[name].example
    assert example in shown.out and example.split()[:2] == ["attnctl", name]
    assert max(len(line) for line in shown.out.splitlines() if example not in line) <= columns
    for option in options_of(name).values():
        assert all(opt in shown.out for opt in option.opts) and option.help


def test_every_option_of_the_table_is_taken_by_a_command() -> None:
    assert {option for name in COMMANDS for option in Command(name).options} == set(OPTIONS)


@pytest.mark.parametrize(
    ("name", "value"),
    [("pool", "mean|max"), ("engine", "local|ray"), ("how", "TEXT"), ("off", "TEXT"), ("file", "FILE"), ("top", "N"),
     ("lr", "X"), ("scale", "auto|none|X"), ("by", "STATISTIC")],
)  # fmt: skip
def test_what_the_value_of_an_option_is_called(name: str, value: str) -> None:
    assert OPTIONS[name].value_name == value


@pytest.mark.parametrize(
    ("command", "defaults"),
    [
        ("quiz", {"questions": 5}),
        ("softmax", {"temperature": 1.0, "precision": 2}),
        ("sources", {"budget": 20}),
        ("needle", {"switch_off": 10, "lengths": "512,1024,2048", "depths": "0,25,50,75,100"}),
        ("batch", {"max_tokens": 2048, "batch_size": 32, "budget": 20, "format": "json", "engine": "local", "gpus_per_worker": 0.0}),
        ("evaluate", {"sentences": 1000, "least": 20, "max_tokens": 512, "batch_size": 32, "jobs": 1, "engine": "local", "gpus_per_worker": 0.0}),
        ("ablate", {"how": "zero"}),
        ("explain", {}),
    ],
)  # fmt: skip
def test_defaults_are_told(command: str, defaults: dict[str, Any], run: Run) -> None:
    own = {
        name: one.default
        for name, one in options_of(command).items()
        if one.default is not None and one.default is not False
    }
    assert own == defaults
    told = " ".join(run("help", command).out.split())
    assert all(f"[default: {value}]" in told for value in defaults.values())


def test_the_version(run: Run) -> None:
    assert run("-V").out == run("--version").out


def test_words_without_quotes(run: Run) -> None:
    quoted = run("explain", "Alice will eat pizza", "--model", "random", "--json").json
    assert run("explain", "Alice", "will", "eat", "pizza", "--model", "random", "--json").json == quoted
    assert run("heatmap", "Alice", "will", "--model", "random").code == 0


def test_quiet_leaves_the_notes_out(run: Run) -> None:
    said = [
        run("explain", "word " * 600, "--model", "random", "--json", "--query", "3", *more).err
        for more in ((), ("--quiet",))
    ]
    assert said[1] == "" and "--quiet" in run("help", "explain").out


# --- defaults of a user's own ------------------------------------------------------------------------------------


@pytest.fixture
def config_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("ATTNCTL_CONFIG", str(tmp_path / "own" / "config.toml"))
    return tmp_path / "own" / "config.toml"


def name_of(run: Run, *args: str) -> str:
    return str(json.loads(run("explain", "a b", "--json", *args).out)["model"]["name"])


def test_defaults_of_the_file(run: Run, config_file: Path) -> None:
    assert "no defaults are set" in run("config").out and run("config", "--path").out.strip() == str(config_file)
    assert run("config", "--set", "model=random", "--set", "heatmap.cmap=magma", "--set", "seed=3").code == 0
    assert config_file.read_text() == 'model = "random"\nseed = 3\n\n[heatmap]\ncmap = "magma"\n'
    shown = run("config").out
    assert "model = random" in shown and "heatmap.cmap = magma" in shown and str(config_file) in shown
    assert name_of(run) == "random"
    assert run("explain", "a b", "--json").json["model"]["seed"] == 3
    assert name_of(run, "--model", "dot") == "dot"  # the seed of another model's default does not stand in the way
    assert run("config", "--unset", "model").code == 0 and "model" not in config_file.read_text()


def test_defaults_of_the_environment(run: Run, config_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("config", "--set", "model=dot")
    monkeypatch.setenv("ATTNCTL_MODEL", "random")
    assert name_of(run) == "random" and name_of(run, "--model", "demo") == "demo"
    assert "$ATTNCTL_MODEL" in run("config").out


def test_a_default_does_not_stand_in_the_way_of_a_trace(run: Run, config_file: Path, tmp_path: Path) -> None:
    trace = tmp_path / "run.json"
    run("explain", "a b", "--model", "random", "-o", trace)
    run("config", "--set", "model=dot")
    assert run("heatmap", trace).code == 0
