"""What the terminal shows, stored: `python -m tests.tools.shown [WORDS …]` writes tests/shown/*.txt anew; then read `git diff`.

A file is a case: its first line is the command, below it stands what comes out at a terminal of 80 columns. Stored are the
screens that people know attnctl by, and no more: other tests assert numbers, columns and order. Commands run in a folder that
holds `samples/`, small checkpoints and the files of `read_back.made_files`.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import re
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

from tests.tools import folders, read_back, whisper

ROOT = Path(__file__).parents[2]
CASES = sorted((ROOT / "tests" / "shown").glob("*.txt"))
TIME = re.compile(r"\d[\d.,]* (?:ms|s|min|a second)\b")
ROUNDING = re.compile(r"\b\d\.\de-0[678]\b")  # what one processor rounds otherwise than another
STYLE = re.compile(r"\x1b\[[\d;]*m")


class Terminal(io.TextIOWrapper):
    """A page of bytes that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def fill_room(room: Path) -> None:
    """Put everything that the cases read into a folder."""
    for name, data in read_back.made_files().items():
        (room / name).parent.mkdir(parents=True, exist_ok=True)
        (room / name).write_bytes(data)
    shutil.copytree(ROOT / "samples", room / "samples")
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "
    with contextlib.suppress(ImportError):
        (folders.write(room / "llama", "llama", max_position_embeddings=512) / "chat_template.jinja").write_text(
            template
        )
        folders.write(room / "bert", "bert")
        folders.write(room / "t5", "t5, bias")
        whisper.write_tiny(room / "whisper", heads=[[1, 0]])
    packed = {"input_ids": [[*range(20, 31)]], "position_ids": [[*range(4), *range(7)]], "attention_mask": [[1] * 11]}
    (room / "packed.json").write_text(json.dumps(packed))
    padded = {"input_ids": [[0, 0, 20, 21, 22], [*range(30, 35)]], "attention_mask": [[0, 0, 1, 1, 1], [1] * 5]}
    (room / "padded.json").write_text(json.dumps(padded))
    whisper.write_wave(room / "tone.wav", whisper.sine(1.0))
    (room / "answers.txt").write_text("a\n0.5\n\n")


def shown(case: Path, room: Path) -> str:
    """The text of a case as it is now: its command and what comes out."""
    line = case.read_text(encoding="utf-8").splitlines()[0]
    code, out, err = run_line(line.removeprefix("$ "), room, 80)
    parts = [line, *([out.rstrip("\n")] if out else []), *(["--- standard error", err.rstrip("\n")] if err else [])]
    return "\n".join([*parts, *([f"--- exit code {code}"] if code else [])]) + "\n"


def run_line(line: str, room: Path, columns: int) -> tuple[int, str, str]:
    """Run a command line in this process, at a terminal of that width: its code, output, complaints."""
    from attnctl.cli.app import run_command_line

    words, _, stdin = line.partition(" < ")
    given = io.TextIOWrapper(io.BytesIO((room / stdin).read_bytes() if stdin else b""), "utf-8")
    out, err = Terminal(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8")
    env = {name: value for name, value in os.environ.items() if not name.startswith(("ATTNCTL_", "FORCE_COLOR"))}
    env |= {"COLUMNS": str(columns), "NO_COLOR": "1", "TERM": "xterm", "XDG_CONFIG_HOME": "/nowhere"}
    unhurried = patch("attnctl.cli.progress.EVERY", math.inf)  # however busy the machine, no line of long work
    streams = patch.multiple(sys, argv=shlex.split(words), stdin=given, stdout=out, stderr=err)
    nameless = patch.object(sys.modules["__main__"], "__package__", None)  # of `python -m`, which help would name
    with contextlib.chdir(room), patch.dict(os.environ, env, clear=True), streams, nameless, unhurried:
        try:
            run_command_line()
        except SystemExit as end:
            code = int(end.code or 0)
    texts = []
    for page in (out, err):
        page.flush()
        texts.append(STYLE.sub("", ROUNDING.sub("ROUNDING", TIME.sub("TIME", page.buffer.getvalue().decode()))))  # type: ignore[attr-defined]
    return code, texts[0], texts[1]


def main() -> None:
    """Write every case anew, or those whose name holds one of the words."""
    with tempfile.TemporaryDirectory() as folder:
        room = Path(folder)
        fill_room(room)
        for case in CASES:
            if len(sys.argv) == 1 or any(word in case.name for word in sys.argv[1:]):
                case.write_text(shown(case, room), encoding="utf-8")
                print(case.name, flush=True)


if __name__ == "__main__":
    main()
