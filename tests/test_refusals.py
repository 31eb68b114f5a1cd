"""What cannot be is refused: refusals.txt holds the command lines, their exit codes and a part of what is said.

One table is beside this file, others in the folders of tests/commands: each has what its command alone refuses.

NAME=VALUE before a command is a variable of its environment, `< FILE` after it its standard input. A line `file NAME VALUE` is
a file that they read: bytes as Python writes them, the numbers of an .npy file, or the metadata of small weights.
"""

from __future__ import annotations

import ast
import json
import os
import shlex
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.conftest import Refused

TESTS = Path(__file__).parent
TABLES = [TESTS / "refusals.txt", *sorted(TESTS.glob("commands/*/refusals.txt"))]
LINES = [line for table in TABLES for line in table.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="session")
def odd_room(room: Path) -> Path:
    """The room, and in it the files of the table."""
    for line in LINES:
        if line.startswith("file "):
            _, name, value = line.split(" ", 2)
            (room / name).parent.mkdir(exist_ok=True)
            if value.startswith("["):
                np.save(room / name, json.loads(value))
            elif value.startswith("{"):
                tensors = {part: np.ones((1, 8, 4), np.float32) for part in ("W_Q", "W_K", "W_V")}
                save_file(tensors, room / name, json.loads(value))
            else:
                (room / name).write_bytes(ast.literal_eval(value))
    return room


def files_in(folder: Path) -> dict[str, int]:
    """Every file and folder in a folder, and when it changed; of 700 rows, pathlib would take seconds."""
    found, left = {}, [str(folder)]
    while left:
        for entry in os.scandir(left.pop()):
            if not entry.name.endswith(".lock"):  # a lock beside a file holds nothing
                found[entry.path] = entry.stat(follow_symlinks=False).st_mtime_ns
                left += [entry.path] * entry.is_dir(follow_symlinks=False)
    return found


@pytest.mark.parametrize("row", [line for line in LINES if line[:1].isdigit()])
def test_one_line_and_nothing_written(
    row: str, refused: Refused, odd_room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, said = row[2:].split(" => ")
    if any(f" {name}" in command for name in ("llama", "bert", "t5")) and find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    monkeypatch.chdir(odd_room)
    before = files_in(odd_room)
    command, _, stdin = command.partition(" < ")
    words = shlex.split(command)
    while words and words[0].startswith(("ATTNCTL_", "SOURCE_DATE_EPOCH")):
        monkeypatch.setenv(*words.pop(0).split("=", 1))
    line = refused(*words, code=int(row[0]), stdin=(odd_room / stdin).read_bytes() if stdin else b"")
    assert said in line and len(line) < 500
    assert files_in(odd_room) == before
