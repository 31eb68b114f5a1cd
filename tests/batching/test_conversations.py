"""A batch of conversations: each is read by the checkpoint's chat template, as one alone is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="attnctl[hf] is not installed")

from tests.conftest import Run
from tests.tools import folders

CHATML = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = folders.write(tmp_path_factory.mktemp("chatty"), "llama", max_position_embeddings=512)
    (made / "chat_template.jinja").write_text(CHATML)
    return made


def test_conversations_are_read_by_every_format(run: Run, folder: Path, tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "Which is old?"}]
    (tmp_path / "in.jsonl").write_text(json.dumps(messages) + "\n" + json.dumps({"messages": messages}) + "\n")
    made = run("batch", "--chat", tmp_path / "in.jsonl", "--model", folder, "--layer", "0")
    assert made.code == 0, made.err
    first, second = (json.loads(line) for line in made.out.splitlines())
    assert first["text"] == second["text"] == "<|user|>Which is old?\n<|assistant|>"
    chat = tmp_path / "chat.json"
    chat.write_text(json.dumps(messages))
    alone = run("explain", "--chat", chat, "--model", folder, "--layer", "0", "--json").json
    assert alone["layers"][0]["heads"][0]["weights"] == first["layers"][0]["heads"][0]["weights"]
