"""A plain install without torch: what does not need it works, and what does says so in one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from attnctl.registry import COMMANDS
from tests.conftest import SAMPLES

WORKS = (
    ["explain", "Alice will eat pizza"], ["explain", "Alice will eat", "--json", "-o", "run.json"],
    ["heatmap", "Alice will eat", "-o", "a.svg"], ["heatmap", "run.json"], ["heads", "Alice will eat"],
    ["ablate", "Alice will eat"], ["compare", "demo", "random", "Alice will eat"], ["view", "Alice will eat", "-o", "a.html", "--no-open"],
    ["batch", "in.txt"], ["softmax", "1", "2"], ["model", "gpt2"], ["model", "demo"], ["config"], ["schema"], ["docs", "python"],
    ["docs", "lesson"], ["quiz", "Alice will eat"], ["evaluate", "demo", "--sentences", "20"], ["shell", "Alice will eat"],
    ["compare", "Alice will eat", "Bob will run"], ["explain", "Alice will eat", "--model", "random", "--causal", "--positions", "rope"],
)  # fmt: skip
NEEDS = (
    ["heads", "--file", str(SAMPLES / "story.txt")], ["train", "--explain"],
    ["explain", "Alice will eat", "--device", "cuda"], ["train", "-o", "run"],
)  # fmt: skip
RUN = """
import sys
for name in ("torch", "transformers", "tokenizers", "accelerate", "gguf"):
    sys.modules[name] = None
import contextlib, io, json
from attnctl.cli.app import run_command_line
answers = []
for words in json.loads(sys.argv[1]):
    sys.argv = ["attnctl", *words]
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            run_command_line()
        except SystemExit as end:
            code = end.code
    err.flush()
    answers.append([code, err.buffer.getvalue().decode()])
print(json.dumps(answers))
"""


def answers(lines: tuple[list[str], ...]) -> list[tuple[list[str], int, str]]:
    """Run those of the lines whose command there is; return each with its exit code and what it complains of."""
    lines = tuple(words for words in lines if words[0] in COMMANDS)
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(lines)],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    return [(words, *answer) for words, answer in zip(lines, json.loads(done.stdout), strict=True)]


def test_what_works_without_torch() -> None:
    Path("in.txt").write_text("Alice will eat\n")
    for command, code, err in answers(WORKS):
        assert code == 0 and "torch" not in err, (command, err)


def test_what_needs_torch_says_so_in_one_line() -> None:
    for command, code, err in answers(NEEDS):
        said = [line for line in err.splitlines() if "note:" not in line]
        assert code == 1 and len(said) == 1 and "pip install torch" in said[0], (command, err)
        # while torch is imported there is something to read
        assert command[:2] != ["train", "-o"] or err.startswith("attnctl: note: reading")
