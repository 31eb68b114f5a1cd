"""How true the bars' time left is: `python -m tests.tools.benchmarks.bench_estimates [WORDS of a command]`.

Each command runs on a terminal of its own. From a tenth of its work on, every time left that its bar tells is held against
the time that it then took: the median and the largest factor between the two, either way (wanted: 1.5), but for the last
two seconds, since bars tell whole ones. Asserts nothing.
"""

from __future__ import annotations

import json
import os
import pty
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

WATCHED = """
import json, sys, time
import rich.progress
updated = rich.progress.Progress.update
told = []

def update(self, task_id, **fields):
    updated(self, task_id, **fields)
    task = self.tasks[0]
    told.append((time.monotonic(), task.completed / (task.total or 1), task.time_remaining))

rich.progress.Progress.update = update
from attnctl.cli.app import run_command
try:
    run_command(sys.argv[2:])
finally:
    open(sys.argv[1], "w").write(json.dumps(told))
"""
LONG = "Alice will eat some warm pizza in the garden while Bob reads a book about the river. " * 700
COMMANDS = (
    "heads --file LONG",
    "heatmap --file LONG --pool mean",
    "heads --file SHORTER --model smollm2",
    "ablate 'The capital of France is Paris and the capital of Italy is' --model smollm2",
    "sources --file DOCUMENTS --model smollm2 --spans paragraphs",
    "needle --model smollm2 --lengths 256,1024",
    "batch LINES -o OUT --format json --steps weights",
)


def factors(arguments: list[str], folder: str) -> list[float]:
    """Time left as told against as it was, the larger over the smaller, from a tenth of the work to the last two seconds."""
    told = Path(folder, "told.json")
    theirs, ours = pty.openpty()
    command, nowhere = [sys.executable, "-c", WATCHED, str(told), *arguments], subprocess.DEVNULL
    run = subprocess.Popen(command, stdin=nowhere, stdout=nowhere, stderr=ours)
    os.close(ours)
    try:
        while os.read(theirs, 4096):
            pass
    except OSError:  # the terminal's other end is closed
        pass
    run.wait()
    moments = json.loads(told.read_text())
    end = moments[-1][0] if moments else 0
    found = []
    for when, share, left in moments:
        if share < 0.1 or end - when < 2 or left is None:
            continue
        estimate = max(left, 0.5)
        found.append(max(estimate / (end - when), (end - when) / estimate))
    return found


def main(commands: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = {
            "LONG": LONG,
            "SHORTER": LONG[: len(LONG) // 8],
            "LINES": "\n".join(LONG[at : at + 60 + at % 90] for at in range(8000)),
            "DOCUMENTS": "".join(f"Document {at}. In house {at} lives a baker called Ann{at}.\n\n" for at in range(24)),
        }
        for name, text in files.items():
            Path(folder, name).write_text(text)
        for command in commands:
            words = [str(Path(folder, word)) if word in (*files, "OUT") else word for word in shlex.split(command)]
            found = factors(words, folder)
            said = (
                f"median {statistics.median(found):.2f}, largest {max(found):.2f}" if found else "no time left was told"
            )
            print(f"{command:90} {said} of {len(found)}", flush=True)


if __name__ == "__main__":
    main([shlex.join(sys.argv[1:])] if sys.argv[1:] else list(COMMANDS))
