"""README, samples and documentation cannot drift: every example is run, and what a page shows is what comes out."""

from __future__ import annotations

import doctest
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from attnctl import __version__
from attnctl.cli.app import load_command
from attnctl.commands.docs.references import command_page
from attnctl.commands.docs.site import all_topics
from attnctl.registry import COMMANDS
from tests.conftest import SAMPLES, Run
from tests.tools import whisper
from tests.tools.documentation.__main__ import with_heads
from tests.tools.documentation.examples import (
    ALL,
    PAGES,
    ROOT,
    Example,
    Ran,
    Section,
    agrees,
    fill_room,
    missing,
    run_command,
    run_doctest,
    sections_of,
)


def runs_elsewhere(section: Section, example: Example) -> bool:
    """Whether an earlier section begins as this one does, and shows the same."""
    begun = [earlier.examples[0] for earlier in ALL[: ALL.index(section)]]
    same = any((other.source, other.output) == (example.source, example.output) for other in begun)
    return same and example is section.examples[0] and bool(example.output.strip())


PRINTED: dict[str, Ran] = {}  # of a command that begins a section, in a folder of samples alone, and wrote no file


def ran(section: Section, example: Example, room: Path) -> Ran:
    """Run an example; one that begins several sections, of which each shows another part of its output, once."""
    if example is not section.examples[0]:
        return run_command(example.source, room)
    if example.source not in PRINTED:
        before = set(room.rglob("*"))
        done = run_command(example.source, room)
        if set(room.rglob("*")) != before:
            return done
        PRINTED[example.source] = done
    return PRINTED[example.source]


@pytest.mark.parametrize("section", ALL, ids=lambda section: section.name)
def test_section(section: Section, tmp_path: Path) -> None:
    fill_room(tmp_path)
    names: dict[str, object] = {}
    skipped = [reason for example in section.examples if (reason := missing(example))]
    for example in section.examples:
        if missing(example) or runs_elsewhere(section, example):
            continue
        if example.kind == "pycon":
            assert not (failed := run_doctest(example.source, tmp_path, names)), failed
            continue
        done = ran(section, example, tmp_path)
        assert done.code == 0, (example.source, done.err)
        if example.output.strip():
            assert agrees(example.output, done.out), f"{example.source}\n{done.out}"
    if skipped:
        pytest.skip("; ".join(skipped))


# what other libraries type, which attnctl imports, takes nine tenths of mypy's time, and no example asks for it
TYPING = """[mypy]
strict = True
follow_imports = silent
[mypy-PIL.*,conllu.*,gguf.*,matplotlib.*,pyarrow.*,rich.*,safetensors.*,tokenizers.*,tomlkit.*,torch.*,transformers.*,typer.*]
follow_imports = skip
"""


def test_python_examples_are_typed(tmp_path: Path) -> None:
    """Those of attnctl alone: of torch and transformers not every function is."""
    pytest.importorskip("mypy")
    examples = {
        section.name: "\n".join(example.source for example in section.examples if example.kind == "pycon")
        for section in ALL
    }
    files = []
    for name, source in examples.items():
        if source and "transformers" not in source:
            files.append(tmp_path / f"example_{len(files)}.py")
            files[-1].write_text(f"# {name}\n{doctest.script_from_examples(source)}")
    assert len(files) >= 3 and len(ALL) >= 30
    (tmp_path / "mypy.ini").write_text(TYPING)
    settings = ("--config-file", tmp_path / "mypy.ini", "--cache-dir", os.devnull)  # nobody would read the cache
    command = [sys.executable, "-m", "mypy", *settings, *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("page", PAGES)
def test_a_page(page: str) -> None:
    """Its blocks are run, its heads are those measured, its links and files are there, its commands fit a terminal."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for kind, body in re.findall(r"^ *```(\w*)\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE):
        assert kind in ("console", "pycon", "text"), f"a block of {kind or 'no language'} is run by no test"
        assert kind != "text" or not re.search(r"^ *(\$|>>>) ", body, re.MULTILINE)
    assert with_heads(text) == text, "python -m tests.tools.documentation writes them anew"
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        made = link.removesuffix(".md") in all_topics() and page.startswith("attnctl/docs")
        assert "://" in link or made or ((ROOT / page).parent / link).exists(), link
    for named in re.findall(r"`((?:attnctl|tests|samples)/[\w./-]+)`", text):
        assert (ROOT / named).exists(), named
    before, used, _ = text.partition(" samples/")
    assert not used or "$ attnctl docs --samples samples\n" in before or not page.startswith("attnctl/")
    for example in (example for section in sections_of(page) for example in section.examples):
        source = f"$ {example.source}" if example.kind == "console" else example.source
        assert max(map(len, source.splitlines())) <= 76, example.source


def test_every_sample_and_picture_is_used() -> None:
    told = "".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
    for sample in (ROOT / "samples").iterdir():
        assert sample.name in told or sample.stem in tests or sample.name == "README.md", sample.name
    for picture in (ROOT / "attnctl/docs/pictures").iterdir():
        assert f"pictures/{picture.name}" in told, picture.name


def test_the_version_is_the_same_everywhere() -> None:
    assert f"version = {{{__version__}}}" in (ROOT / "README.md").read_text(encoding="utf-8")
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## ([\d.]+)", changes, re.MULTILINE)[0] == __version__


def test_a_tag_of_this_version_is_released_and_no_other() -> None:
    workflow = (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")
    (line,) = re.findall(r"run: (test .*)", workflow)
    for tag, expected in ((f"v{__version__}", 0), ("v0.0.0", 1), ("v", 1)):
        done = subprocess.run(["bash", "-c", line], cwd=ROOT, env={**os.environ, "GITHUB_REF_NAME": tag})
        assert done.returncode == expected, tag


# --- the example on each command's generated page, checkpoints being tiny ones of the same kind --------------------------


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    pytest.importorskip("transformers", reason="attnctl[hf] is not installed")
    from tests.tools import folders

    made = folders.write(tmp_path_factory.mktemp("tiny"), "llama", max_position_embeddings=8192)
    (made / "chat_template.jinja").write_text("{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}")
    return str(made)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_example_of_a_command(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run, request: pytest.FixtureRequest
) -> None:
    samples = {"corpus.conllu": "sentences.conllu", "messages.json": "messages.json", "prompt.txt": "mat.txt"}
    for name, sample in samples.items():
        shutil.copy(SAMPLES / sample, tmp_path / name)
    for name in ("sentences.txt", "mytext.txt"):
        (tmp_path / name).write_text("Alice will eat pizza\nBob likes some tea\nthe cat ran home\n" * 8)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name, value in {"MAX_STEPS": "3", "DEPTHS": "50", "ANSWER": "Rome"}.items():  # they keep the examples short
        monkeypatch.setenv(f"ATTNCTL_{name}", value)
    monkeypatch.setattr("webbrowser.open", lambda *_, **__: True)
    example = load_command(command).example
    assert example in command_page(command)
    words = shlex.split(example)
    assert words[:2] == ["attnctl", command]
    if command == "film":
        assert run("train", "sentences.txt", "-o", "run", "--d-model", "8", "--layers", "1", "--heads", "1").code == 0
    if "minilm" in words or "smollm2" in words:
        tiny = request.getfixturevalue("checkpoint")
        words = [tiny if word in ("minilm", "smollm2") else word for word in words]
    if command == "leaks":
        save_file({"input_ids": np.arange(20, 30)[None], "segments": np.zeros((1, 10), int)}, "batch.safetensors")
        words += ["--expect", "causal"]
    if "whisper" in example:
        whisper.write_tiny(tmp_path / "whisper")
        whisper.write_wave(tmp_path / "speech.wav", whisper.sine(1.0))
        words = ["whisper" if "whisper" in word else word for word in words] + ["--target", "One two"]
    made = run(*words[1:], stdin=b"explain\n" if command == "shell" else b"")
    untrained = command == "needle" and "answers none of the" in made.err  # as a tiny random model does
    assert made.code == untrained, made.err
    assert made.out or made.err or "-o" in words
    assert "-o" not in words or (tmp_path / words[words.index("-o") + 1]).exists()
