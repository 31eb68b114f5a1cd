"""What cannot be is refused: tests/refusals.txt holds the command lines, their exit codes and a part of what is said."""

from __future__ import annotations

import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import Refused

ROWS = [
    line
    for line in Path(__file__).with_name("refusals.txt").read_text(encoding="utf-8").splitlines()
    if line[:1].isdigit()
]


@pytest.mark.parametrize("row", ROWS)
def test_one_line_and_nothing_written(row: str, refused: Refused, room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command, said = row[2:].split(" => ")
    if " llama" in command and find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    monkeypatch.chdir(room)
    before = sorted(room.rglob("*"))
    line = refused(*shlex.split(command), code=int(row[0]))
    assert said in line and len(line) < 500
    assert sorted(room.rglob("*")) == before
