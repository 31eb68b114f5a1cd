"""Each command can be deleted: its folder or file, its guides, and its entry in the list. Nothing else breaks.

`explain` and `schema` are not deleted here: what other commands say points to them, and so does the reference of formats.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import attnctl
from attnctl.registry import COMMANDS
from tests.tools.delete_room import delete_command

PACKAGE = Path(attnctl.__file__).parent
TEXT = "Alice will eat"
LINES = (
    ["--help"],
    ["explain", TEXT],
    ["heatmap", TEXT, "--layer", "0", "--head", "0"],
    ["batch", "two.txt", "--model", "random"],
    ["docs"],
)
RUN = """
import contextlib, io, json, os, sys

def answers(lines):
    "Run lines of words: the package that was imported, its public names, and (code, out, err) of each line."
    import attnctl
    from attnctl.cli.app import run_command
    answers = []
    for words in lines:
        out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run_command(words)
        out.flush()
        answers.append([code, out.buffer.getvalue().decode(), err.getvalue()])
    return attnctl.__file__, attnctl.__all__, answers

copies = json.loads(sys.argv[1])
sys.path.insert(0, sys.argv[2])
answers(copies[0][1][:-1])  # imports other packages once: a child has them, and imports its own copy of attnctl
for folder, lines in copies:
    sys.stdout.flush()
    child = os.fork()
    if not child:
        for name in [name for name in sys.modules if name.partition(".")[0] == "attnctl"]:
            del sys.modules[name]
        sys.path[0] = folder
        os.chdir(folder)
        print(json.dumps(answers(lines)), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, folder
"""
DELETED = [name for name in COMMANDS if name not in ("explain", "schema")]


def run_python(folder: Path, *words: str) -> str:
    """Run Python on the copy of the package in this folder; return what it prints."""
    command = [sys.executable, "-c", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    return done.stdout


def lines_without(name: str) -> list[list[str]]:
    """Return the lines that work without a command; the last one asks for it."""
    return [*(words for words in LINES if words[0] != name), [name, "--help"]]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="each copy is imported in a fork of one process")
def test_each_command_can_be_deleted(tmp_path: Path) -> None:
    for name in DELETED:
        package = tmp_path / name / "attnctl"
        shutil.copytree(PACKAGE, package)
        delete_command(package, name)
        # the package's public names are for type checkers there: the program looks them up in the list
        sources = [path for path in package.rglob("*.py") if path != package / "__init__.py"]
        assert not [path for path in sources if re.search(rf"attnctl\.commands\.{name}\b", path.read_text("utf-8"))]
        for topic in COMMANDS[name].guides:
            assert not [page for page in package.rglob("*.md") if f"({topic}.md" in page.read_text("utf-8")]
            assert not (package / "docs" / f"{topic}.md").exists()
        (tmp_path / name / "two.txt").write_text(f"{TEXT}\nBob ran home\n", encoding="utf-8")
    (tmp_path / "two.txt").write_text(TEXT, encoding="utf-8")

    copies = [(str(tmp_path / name), lines_without(name)) for name in DELETED]
    printed = run_python(tmp_path, RUN, json.dumps(copies), str(PACKAGE.parent)).splitlines()
    for name, line in zip(DELETED, printed, strict=True):
        file, public, (*done, (code, _, complaint)) = json.loads(line)
        assert Path(file) == tmp_path / name / "attnctl" / "__init__.py"
        assert set(public) == set(attnctl.__all__) - set(COMMANDS[name].functions), name
        for words, (exit_code, out, err) in zip(lines_without(name)[:-1], done, strict=True):
            assert exit_code == 0 and out and "Traceback" not in err, (name, words, out, err)
        assert not re.search(rf"^│ {name} ", done[0][1], re.MULTILINE)
        assert not [topic for topic in COMMANDS[name].guides if topic in done[-1][1]]
        assert code == 2 and complaint.startswith(f"attnctl: no such command '{name}'"), complaint
        assert complaint.count("\n") == 1


def test_all_names_of_the_package_can_be_imported_without_the_commands_that_have_functions(tmp_path: Path) -> None:
    pytest.importorskip("transformers")  # of which AttentionLog is a class
    shutil.copytree(PACKAGE, tmp_path / "attnctl")
    for name, command in COMMANDS.items():
        if command.functions:
            delete_command(tmp_path / "attnctl", name)
    names = run_python(tmp_path, "from attnctl import *; print(*dir())").split()
    functions = {name for command in COMMANDS.values() for name in command.functions}
    assert {name for name in names if not name.startswith("__")} == set(attnctl.__all__) - functions - {"__version__"}
