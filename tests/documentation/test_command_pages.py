"""The example on each command's generated page is run, checkpoints being tiny ones of the same kind. About 20 s in all."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from attnctl.cli.command_table import COMMANDS
from attnctl.docs.references import command_page
from tests.conftest import SAMPLES, Run

CHECKPOINTS = ("minilm", "smollm2")
CHATML = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("transformers", reason="attnctl[hf] is not installed")
    from tests.tools import folders

    made = folders.write(tmp_path_factory.mktemp("tiny"), "llama", max_position_embeddings=8192)
    (made / "chat_template.jinja").write_text(CHATML)
    return made


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the examples name, and defaults that keep them short."""
    for name, sample in {
        "corpus.conllu": "sentences.conllu",
        "messages.json": "messages.json",
        "prompt.txt": "mat.txt",
    }.items():
        shutil.copy(SAMPLES / sample, tmp_path / name)
    lines = ["Alice will eat pizza", "Bob likes some tea", "the cat ran home"]
    for name in ("sentences.txt", "mytext.txt"):
        (tmp_path / name).write_text("\n".join(lines * 8) + "\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name, value in {"MAX_STEPS": "3", "DEPTHS": "50", "ANSWER": "Rome"}.items():
        monkeypatch.setenv(f"ATTNCTL_{name}", value)
    monkeypatch.setattr("webbrowser.open", lambda *_, **__: True)
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
def test_the_example_of_a_command(command: str, room: Path, run: Run, request: pytest.FixtureRequest) -> None:
    example = COMMANDS[command].example
    assert example in command_page(command)
    words = shlex.split(example)
    assert words[:2] == ["attnctl", command]
    if re.search(rf"--model ({'|'.join(CHECKPOINTS)})", example):
        tiny = str(request.getfixturevalue("checkpoint"))
        words = [tiny if word in CHECKPOINTS else word for word in words]
    made = run(*words[1:], stdin=b"explain\n" if command == "shell" else b"")
    untrained = command == "needle" and "answers none of the" in made.err  # as a tiny random model does
    assert made.code == (1 if untrained else 0), made.err
    assert made.out or made.err or list(room.glob("*.png"))
    if "-o" in words:
        assert (room / words[words.index("-o") + 1]).exists()
