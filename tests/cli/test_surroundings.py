"""What stands around a run: a terminal of one column, and variables of the environment that are another program's."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import SAMPLES, process

COMMANDS = (
    ["explain", "Alice will eat pizza"],
    ["explain", "日本 🍕 will", "--query", "2"],
    ["heatmap", "Alice will eat"],
    ["heads", "Alice will eat"],
    ["ablate", "Alice will eat", "--target", "pizza"],
    ["compare", "demo", "random", "Alice will eat"],
    ["softmax", "1", "2", "3"],
    ["model", "gpt2"],
    ["evaluate", str(SAMPLES / "sentences.conllu"), "--model", "random"],
    ["docs", "lesson"],
)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: "-".join(command[:2])[:30])
@pytest.mark.parametrize("columns", [1, 7, 1000])
def test_a_terminal_of_any_width_is_written_to(columns: int, command: list[str], run: Callable[..., Any]) -> None:
    """explain in one column was an error of ours."""
    done = run(*command, columns=columns)
    assert done.code == 0 and done.out, done


def test_the_backend_of_a_notebook_is_not_asked_for(tmp_path: Path) -> None:
    """A name that matplotlib does not know was a traceback of its own."""
    surroundings = os.environ | {"MPLBACKEND": "none.such"}
    done = process("heatmap", "Alice will eat", "-o", str(tmp_path / "x.png"), env=surroundings)
    assert (done.returncode, done.stderr) == (0, b"") and (tmp_path / "x.png").exists()


def test_a_home_that_cannot_be_written_to_goes_unmentioned(tmp_path: Path) -> None:
    """matplotlib told of its folders on two lines with every picture."""
    (tmp_path / "file").write_text("")
    nowhere = dict.fromkeys(("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"), str(tmp_path / "file"))
    done = process("heatmap", "Alice will eat", "-o", str(tmp_path / "x.png"), env=os.environ | nowhere)
    assert (done.returncode, done.stderr) == (0, b"") and (tmp_path / "x.png").exists()


@pytest.mark.parametrize(
    "command",
    [
        ["heatmap", "t.json", "-o", "t.json"],
        ["explain", "t.json", "--head", "0", "-o", "link.json"],
        ["explain", "--file", "in.txt", "-o", "in.txt"],
        ["compare", "t.json", "random", "-o", "./t.json"],
        ["evaluate", "x.conllu", "--model", "random", "-o", "c.html", "-o", "x.conllu"],
    ],
)
def test_what_is_read_is_not_written_over(
    command: list[str], tmp_path: Path, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A grid took the place of the trace that it was drawn from, and a walk that of its text."""
    monkeypatch.chdir(tmp_path)
    Path("in.txt").write_text("Alice will eat")
    Path("x.conllu").write_text("")
    assert run("explain", "Alice will eat", "-o", "t.json").code == 0
    Path("link.json").symlink_to("t.json")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    done = run(*command)
    assert done.code == 2 and "is the file that is read, which would be lost: name another" in done.err, done
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert run("heatmap", "t.json", "--title", "new.png", "-o", "new.png").code == 0
    assert run("heatmap", "t.json", "--title", "new.png", "-o", "new.png").code == 0
