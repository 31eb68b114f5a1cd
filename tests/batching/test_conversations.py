"""A batch of conversations: each is read by the checkpoint's chat template, as one alone is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="attnctl[hf] is not installed")

from tests.conftest import Run


def test_conversations_are_read_by_every_format(run: Run, chatty: Path, tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "Which is old?"}]
    (tmp_path / "in.jsonl").write_text(json.dumps(messages) + "\n" + json.dumps({"messages": messages}) + "\n")
    made = run("batch", "--chat", tmp_path / "in.jsonl", "--model", chatty, "--layer", "0")
    assert made.code == 0, made.err
    first, second = (json.loads(line) for line in made.out.splitlines())
    assert first["text"] == second["text"] == "<|user|>Which is old?\n<|assistant|>"
    chat = tmp_path / "chat.json"
    chat.write_text(json.dumps(messages))
    alone = run("explain", "--chat", chat, "--model", chatty, "--layer", "0", "--json").json
    assert alone["layers"][0]["heads"][0]["weights"] == first["layers"][0]["heads"][0]["weights"]
