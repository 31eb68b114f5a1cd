"""What stands on standard error while a command works: a spinner or a bar on a terminal, and lines in a pipe."""

from __future__ import annotations

import io
import os
import signal
import sys
import time

import pexpect
import pytest

from attnctl.cli import output, progress

CLEARED = "\n\x1b[?25h\r\x1b[1A\x1b[2K"


class Terminal(io.StringIO):
    """A page that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("quiet", "wait"), [(False, 0.3), (True, 0.3), (False, 0.0)])
def test_the_spinner_ends_before_anything_is_written(quiet: bool, wait: float, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()  # of both streams, as at a terminal
    monkeypatch.setattr(progress, "SILENT", 0.05)
    monkeypatch.setattr(output, "quiet", quiet)
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with progress.spinner_while_silent():
        time.sleep(wait)
        output.print_lines("a result")
        time.sleep(0.1)
        output.say_unless_quiet("a note")
    before, after = screen.getvalue().split("a result\n")
    assert after == ("" if quiet else "attnctl: a note\n")
    assert before.endswith(f"working …{CLEARED}") if wait and not quiet else before == ""
    assert sys.stdout is screen and sys.stderr is screen


SLOW = """
import importlib.util, sys, time
class Slow:
    def find_spec(self, name, *_):
        return importlib.util.spec_from_loader(name, self) if name == "attnctl.commands.explain" else None
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        time.sleep(20)
sys.meta_path.insert(0, Slow())
sys.argv = ["attnctl", "explain", "Alice will eat"]
from attnctl.__main__ import main
main()
"""


def test_an_interrupt_while_the_spinner_turns_leaves_a_cursor() -> None:
    """The process ends at once, in the midst of an import: the cursor stayed hidden, and the spinner where it was."""
    child = pexpect.spawn(
        sys.executable, ["-c", SLOW], env=os.environ | {"TERM": "xterm"}, encoding="utf-8", timeout=20
    )
    child.expect("working …")
    child.kill(signal.SIGINT)
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 130 and child.before.endswith("attnctl: interrupted\r\n")
    assert child.before.count("\x1b[?25h") == 1 and "Traceback" not in child.before


@pytest.mark.parametrize(
    ("seconds", "shares", "said"),
    [
        (1.0, [1], ["16%, 0:00:54 left", "31%, 0:00:44 left"]),  # 64 pieces, one a second: after 10, and after 20
        (8.0, [1] * 8, ["14%, 0:00:55 left"]),  # in lumps of 8: after 16 s, of the second lump its first piece
    ],
)
def test_in_a_pipe_long_work_has_a_line_every_ten_seconds(
    seconds: float, shares: list[int], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, page = 0.0, io.StringIO()
    monkeypatch.setattr(progress, "monotonic", lambda: clock)
    monkeypatch.setattr(sys, "stderr", page)
    monkeypatch.setattr(output, "quiet", False)
    with progress.cost_progress("8,192 tokens") as tick:
        while clock < 25 - seconds:
            clock += seconds
            for share in shares:
                tick(share / 64)
    assert page.getvalue() == "".join(f"attnctl: 8,192 tokens: {line}\n" for line in said)
    monkeypatch.setattr(output, "quiet", True)
    with progress.cost_progress("8,192 tokens") as tick:
        clock += 100
        tick(0.5)
    assert page.getvalue().count("\n") == len(said)


def test_items_of_unknown_number_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, page = 0.0, io.StringIO()
    monkeypatch.setattr(progress, "monotonic", lambda: clock)
    monkeypatch.setattr(sys, "stderr", page)
    monkeypatch.setattr(output, "quiet", False)
    with progress.items_progress(lambda: None) as tick:
        clock = 10.0
        tick(25)
    assert page.getvalue() == "attnctl: 25 done, 2.5 a second\n"
