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
answers(copies[0][1])  # imports other packages once: a child has them, and imports its own copy of attnctl
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
RUN_IN_COPIES = [words[0] for words in LINES if words[0] in DELETED]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the package, of which no test changes a file."""
    return Path(shutil.copytree(PACKAGE, tmp_path_factory.mktemp("whole") / "attnctl"))


def copy_without(whole: Path, folder: Path, *names: str) -> Path:
    """Copy the package into the folder, and delete these commands there. Linked is what a deletion does not write."""

    def link_or_copy(source: str, copy: str) -> None:
        (shutil.copyfile if copy.endswith((".md", "registry.py")) else os.link)(source, copy)

    shutil.copytree(whole, folder / "attnctl", copy_function=link_or_copy)
    for name in names:
        delete_command(folder / "attnctl", name)
    (folder / "two.txt").write_text(f"{TEXT}\nBob ran home\n", encoding="utf-8")
    return folder / "attnctl"


def mentions(package: Path) -> dict[str, set[str]]:
    """Return the names of commands whose modules each source names. Public names are for type checkers: not `__init__`."""
    sources = {str(path.relative_to(package)): path.read_text("utf-8") for path in package.rglob("*.py")}
    del sources["__init__.py"]
    return {path: set(re.findall(r"attnctl\.commands\.(\w+)", text)) for path, text in sources.items()}


def run_python(folder: Path, *words: str) -> str:
    """Run Python on the copy of the package in this folder; return what it prints."""
    command = [sys.executable, "-c", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    return done.stdout


def lines_without(name: str) -> list[list[str]]:
    """Return the lines to run in a copy without this command, which the last one asks for.

    Where a command that a line runs is deleted, all others are. Else those that list the commands or the guides are: the
    rest are run without all other commands together.
    """
    listing = ("--help", "docs")
    lines = [words for words in LINES if words[0] != name and (name in RUN_IN_COPIES or words[0] in listing)]
    return [*lines, [name, "--help"]]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="each copy is imported in a fork of one process")
def test_each_command_can_be_deleted(tmp_path: Path, whole: Path) -> None:
    named = mentions(whole)
    for name in DELETED:
        package = copy_without(whole, tmp_path / name, name)
        left = [path for path, names in named.items() if name in names and (package / path).exists()]
        assert set(left) <= {"registry.py"}
        assert not re.search(rf"attnctl\.commands\.{name}\b", (package / "registry.py").read_text("utf-8"))
        for topic in COMMANDS[name].guides:
            assert not [page for page in package.glob("docs/*.md") if f"({topic}.md" in page.read_text("utf-8")]
            assert not (package / "docs" / f"{topic}.md").exists()
    others = [name for name in DELETED if name not in RUN_IN_COPIES]
    copy_without(whole, tmp_path / "others", *others)
    (tmp_path / "two.txt").write_text(TEXT, encoding="utf-8")

    copies = {str(tmp_path / "others"): list(LINES)} | {str(tmp_path / name): lines_without(name) for name in DELETED}
    printed = run_python(tmp_path, RUN, json.dumps(list(copies.items())), str(PACKAGE.parent)).splitlines()
    answers = {}
    for (folder, lines), line in zip(copies.items(), printed, strict=True):
        file, public, answered = json.loads(line)
        answers[Path(folder).name] = set(public), answered
        assert Path(file) == Path(folder, "attnctl", "__init__.py")
        for words, (code, out, err) in zip(lines, answered, strict=True):
            if words[1:] != ["--help"]:
                assert code == 0 and out and "Traceback" not in err, (folder, words, out, err)
    for name in DELETED:
        public, (help_page, *_, guides, (code, _, complaint)) = answers[name]
        assert public == set(attnctl.__all__) - set(COMMANDS[name].functions), name
        assert not re.search(rf"^│ {name} ", help_page[1], re.MULTILINE)
        assert not [topic for topic in COMMANDS[name].guides if topic in guides[1]]
        assert code == 2 and complaint.startswith(f"attnctl: no such command '{name}'"), complaint
        assert complaint.count("\n") == 1


def test_all_names_of_the_package_can_be_imported_without_the_commands_that_have_functions(
    tmp_path: Path, whole: Path
) -> None:
    pytest.importorskip("transformers")  # of which AttentionLog is a class
    copy_without(whole, tmp_path, *(name for name, command in COMMANDS.items() if command.functions))
    names = run_python(tmp_path, "from attnctl import *; print(*dir())").split()
    functions = {name for command in COMMANDS.values() for name in command.functions}
    assert {name for name in names if not name.startswith("__")} == set(attnctl.__all__) - functions - {"__version__"}
