"""Run the tests of a copy of the checkout in which a command is deleted: `python -m tests.tools.delete_room NAME [PYTEST ARGUMENT…]`.

Deleted are the command's folder or file, its entry in the list of commands, its guides and its tests. A test that runs the
command, or calls a function of it, is skipped in that run. Every other test must pass.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
VARIABLE = "DELETED_COMMAND"  # not ATTNCTL_…: those are defaults of the command line


def delete_command(package: Path, name: str) -> None:
    """Delete a command of this copy of the package: its folder or file, its guides, and its entry in the list of commands."""
    from attnctl.registry import COMMANDS

    for topic in COMMANDS[name].guides:
        delete_page(package / "docs", topic)
    place = package / "commands" / name
    shutil.rmtree(place) if place.is_dir() else place.with_suffix(".py").unlink()
    register = package / "registry.py"
    text = register.read_text(encoding="utf-8")
    [(first, last)] = [
        (key.lineno, value.end_lineno)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant) and key.value == name and isinstance(value, ast.Call)
    ]
    lines = text.splitlines(keepends=True)
    register.write_text("".join(lines[: first - 1] + lines[last:]), encoding="utf-8")


def delete_page(pages: Path, topic: str) -> None:
    """Delete a page, the links to it, and the pictures that it alone shows."""
    deleted = (pages / f"{topic}.md").read_text(encoding="utf-8")
    (pages / f"{topic}.md").unlink()
    left = ""
    for page in (*pages.glob("*.md"), *pages.parents[1].glob("README.md")):
        text = page.read_text(encoding="utf-8")
        unlinked = re.sub(rf"\[([^]]+)\]\([\w/]*\b{topic}\.md[^)]*\)", r"\1", text)
        page.write_text(unlinked, encoding="utf-8")
        left += text
    for picture in set(re.findall(r"\(pictures/([^)]+)\)", deleted)) - set(re.findall(r"pictures/([^)\s\"]+)", left)):
        (pages / "pictures" / picture).unlink()


def copy_checkout(folder: Path) -> None:
    """Copy the files of the checkout that git lists."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)


def pytest_configure() -> None:
    """Skip each test that runs the deleted command or calls a function of it: this file is a plug-in of pytest then."""
    import attnctl
    from attnctl.cli import app

    name, *functions = os.environ[VARIABLE].split()

    def skipping(function: Callable[..., Any], deleted: Callable[..., bool]) -> Callable[..., Any]:
        @wraps(function)
        def skip_or_call(*arguments: Any, **options: Any) -> Any:
            if deleted(*arguments):
                pytest.skip(f"{name} is deleted")
            return function(*arguments, **options)

        return skip_or_call

    def runs_it(argv: list[str] | None = None, *_: object) -> bool:
        words = sys.argv[1:] if argv is None else argv
        return next((word for word in words if not word.startswith("-")), "") == name

    app.run_command = skipping(app.run_command, runs_it)
    app.load_command = skipping(app.load_command, lambda wanted: wanted == name)
    attnctl.__getattr__ = skipping(attnctl.__getattr__, lambda wanted: wanted in functions)


def main(name: str, *arguments: str) -> int:
    """Make the copy, delete the command there, and run its tests; return pytest's exit code."""
    from attnctl.registry import COMMANDS

    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        copy_checkout(folder)
        delete_command(folder / "attnctl", name)
        shutil.rmtree(folder / "tests" / "commands" / name, ignore_errors=True)
        environment = os.environ | {"PYTHONPATH": made, VARIABLE: " ".join([name, *COMMANDS[name].functions])}
        for made_anew in ("shown help", "documentation python"):  # what lists the commands or their functions
            words = [sys.executable, "-m", *f"tests.tools.{made_anew}".split()]
            subprocess.run(words, cwd=folder, env=environment, stdout=subprocess.DEVNULL, check=True)
        command = [sys.executable, "-m", "pytest", "-p", "tests.tools.delete_room", *arguments]
        return subprocess.run(command, cwd=folder, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
