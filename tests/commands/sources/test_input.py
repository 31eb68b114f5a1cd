"""Conversations and documents that `sources` reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="attnctl[hf] is not installed")

from tests.conftest import Run

USER = {"role": "user", "content": "Who?"}


@pytest.fixture
def folder(room: Path) -> Path:
    return room / "llama"


def test_a_document_of_nothing_but_its_marker_is_a_part(run: Run, folder: Path) -> None:
    made = run("sources", "[one]\n[two] Rome is old.", "--model", folder, "--answer", "Rome", "--json")
    assert made.code == 0 and {part["name"] for part in made.json["parts"]} == {"one", "two"}


def test_a_tools_json_is_read_as_it_is(run: Run, folder: Path) -> None:
    found = {"name": "Rome", "facts": ["old", {"hills": 7}]}
    said = [USER, {"role": "assistant", "tool_calls": [{"type": "function"}]}, {"role": "tool", "content": found}]
    Path("chat.json").write_text(json.dumps(said))
    made = run("sources", "--chat", "chat.json", "--model", folder, "--answer", "7", "--json")
    assert made.code == 0, made.err
    (part,) = [part for part in made.json["parts"] if part.get("message") == "tool 2"]
    assert json.loads(made.json["prompt"][part["start"] : part["end"]]) == found
