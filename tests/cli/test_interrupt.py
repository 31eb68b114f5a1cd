"""Ctrl-C at any moment of a start: one line at most, and never a line of Python."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

# says when it begins to read the program, and sleeps where the program would import something
PROGRAM = """
import sys, time
class Slow:
    def find_spec(self, name, *_):
        if name == {name!r}:
            print("now", flush=True)
            time.sleep(20)
sys.meta_path.insert(0, Slow())
sys.argv = ["attnctl", "explain", "Alice will eat"]
from attnctl.__main__ import main
main()
"""


@pytest.mark.parametrize("name", ["attnctl.cli", "typer", "attnctl.cli.commands.show.explain", "numpy"])
def test_an_interrupt_of_the_start_is_one_line(name: str) -> None:
    """It was a traceback for the first tenth of a second."""
    command = [sys.executable, "-c", PROGRAM.format(name=name)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "now\n"
        time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=20)
    assert (process.returncode, told) == (130, "attnctl: interrupted\n")
