"""What the tests share."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

IGNORED = "import signal; print(*(signal.getsignal(one) == signal.SIG_IGN for one in (signal.SIGINT, signal.SIGHUP)))"
OF_A_CHILD = f"import tests.conftest, subprocess, sys; subprocess.run([sys.executable, '-c', {IGNORED!r}], check=True)"


def test_children_listen_to_signals_that_the_tests_ignore() -> None:
    """Under nohup, and as a background job, five tests waited for a child that heard no Ctrl-C."""
    for program, expected in ((IGNORED, "True True"), (OF_A_CHILD, "False False")):
        command = ["sh", "-c", "trap '' INT HUP; exec \"$@\"", "sh", sys.executable, "-c", program]
        done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == expected
