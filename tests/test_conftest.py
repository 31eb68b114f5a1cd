"""What the tests share."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parent / "conftest.py"

IGNORED = "import signal; print(*(signal.getsignal(one) == signal.SIG_IGN for one in (signal.SIGINT, signal.SIGHUP)))"
OF_A_CHILD = f"import tests.conftest, subprocess, sys; subprocess.run([sys.executable, '-c', {IGNORED!r}], check=True)"


def test_children_listen_to_signals_that_the_tests_ignore() -> None:
    """Under nohup, and as a background job, five tests waited for a child that heard no Ctrl-C."""
    for program, expected in ((IGNORED, "True True"), (OF_A_CHILD, "False False")):
        command = ["sh", "-c", "trap '' INT HUP; exec \"$@\"", "sh", sys.executable, "-c", program]
        done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == expected


def test_the_whole_suite_takes_a_third_of_a_grid_and_named_tests_all(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST.read_text(encoding="utf-8"))
    pytester.makeini(f"[pytest]\ntestpaths = .\nmarkers = grid\npythonpath = {CONFTEST.parents[1]}")
    name = pytester.makepyfile(
        """
        import pytest

        @pytest.mark.grid
        @pytest.mark.parametrize("a", range(30))
        @pytest.mark.parametrize("b", range(3))  # of each row of three, not always the same cell
        def test_cell(a, b): pass

        @pytest.mark.grid
        @pytest.mark.parametrize("a", [1])
        def test_small(a): pass

        def test_walk(takes): print(sum(takes(str(number)) for number in range(900)), "cells")
        """
    ).name
    whole = {"passed": 90 + 1 + 1}
    for words in ([name], ["--whole"], ["-k", "test"]):
        done = pytester.runpytest_inprocess("-rP", *words)
        assert done.parseoutcomes() == whole and "900 cells" in done.stdout.str(), words
    share = pytester.runpytest_inprocess("-rP", "-v")
    outcomes = share.parseoutcomes()
    assert outcomes["passed"] + outcomes["deselected"] == 92 and 20 <= outcomes["passed"] <= 42
    assert {int(b) for b in re.findall(r"test_cell\[(\d)-\d+\] PASSED", share.stdout.str())} == {0, 1, 2}
    assert "test_small[1] PASSED" in share.stdout.str()
    (walked,) = re.findall(r"(\d+) cells", share.stdout.str())
    assert 250 < int(walked) < 350
