"""What stands on standard error while a command works: a spinner or a bar on a terminal, and lines in a pipe."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time

import pexpect
import pytest
import rich.progress

from attnctl.cli import output, progress
from attnctl.cli.opening import model_of
from attnctl.errors import until_end

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


def piped(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Standard error as a pipe; not as a fixture, since pytest sets it again before the test."""
    page = io.StringIO()
    monkeypatch.setattr(sys, "stderr", page)
    monkeypatch.setattr(output, "quiet", False)
    return page


@pytest.mark.parametrize(
    ("share", "moved", "now", "line"),
    [
        (None, 0.0, 12.0, "8,192 tokens: 12 s so far"),
        (1.0, 9.0, 12.0, "8,192 tokens: 12 s so far"),  # something follows the last piece
        (0.25, 10.0, 10.0, "8,192 tokens: 25%, about 30 s left"),
        (0.25, 10.0, 14.0, "8,192 tokens: 25%, about 26 s left"),  # the time runs on between two pieces
        (0.9, 9.0, 20.0, "8,192 tokens: 90%, about 2 s left"),  # the last piece takes longer than the others
    ],
)
def test_the_time_left_comes_from_the_pieces_that_are_done(
    share: float | None, moved: float, now: float, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "monotonic", lambda: 100 + now)
    assert progress.Work("8,192 tokens", 100.0, share, moved).line() == line


@pytest.mark.parametrize(
    ("pieces", "left", "shown"),
    [
        ([], None, ""),
        ([(3.0, 0.01)], None, "-:--:--"),  # one small piece is no measure
        ([(3.0, 0.2)], 12.0, "0:00:12"),
        ([(3.0, 0.1), (4.0, 0.2), (5.0, 0.3)], 7.0, "0:00:07"),  # 0.1 a second after the slow first piece
        ([(3.0, 0.1), (3.1, 0.2), (6.0, 0.3), (6.1, 0.4)], 9.0, "0:00:09"),  # two at once: 0.2 in three seconds
        ([(3.0, 0.5), (6.0, 1.0)], None, "-:--:--"),  # over, but something follows
    ],
)
def test_the_first_piece_is_no_measure_of_the_time_left(
    pieces: list[tuple[float, float]], left: float | None, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, work = 0.0, progress.Work("work", 0.0)
    monkeypatch.setattr(progress, "monotonic", lambda: clock)
    for clock, share in pieces:  # noqa: B007  # the lambda reads it
        work.move_on(share, "work")
    assert work.left() == (None if left is None else pytest.approx(left)) and work.clock == shown


def test_in_a_pipe_silent_work_has_a_line_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also before its first piece is done; of works within each other the innermost has the lines."""
    page = piped(monkeypatch)
    monkeypatch.setattr(progress, "EVERY", 0.05)
    with progress.cost_progress("outer"), progress.cost_progress("inner"):
        time.sleep(0.3)
    lines = page.getvalue().splitlines()
    assert len(lines) >= 2 and set(lines[:-1]) == {"attnctl: inner: 0 s so far"}  # the last may be of the outer work
    monkeypatch.setattr(output, "quiet", True)
    with progress.cost_progress("quiet"):
        time.sleep(0.2)
    assert page.getvalue().splitlines() == lines


@pytest.mark.parametrize(("seconds", "said"), [(4.0, True), (0.2, False)])
def test_long_work_says_what_it_takes_after_its_first_piece(
    seconds: float, said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, page = 0.0, piped(monkeypatch)
    monkeypatch.setattr(progress, "monotonic", lambda: clock)
    with progress.cost_progress("30 passes", "fewer heads take less") as tick:
        for _ in range(30):
            clock += seconds
            tick(1 / 30)
    assert page.getvalue() == said * "attnctl: 30 passes: about 2 min in all (fewer heads take less)\n"


def test_a_command_says_that_it_works_from_the_opening_of_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(**_: object) -> str:
        time.sleep(0.3)
        return "opened"

    page = piped(monkeypatch)
    monkeypatch.setattr(progress, "EVERY", 0.05)
    monkeypatch.setattr("attnctl.models.open_named_model", slow)
    assert model_of({"model": "demo"}) == "opened"
    until_end.close()  # as at the end of the command
    lines = page.getvalue().splitlines()
    assert lines and set(lines) == {"attnctl: working: 0 s so far"}
    time.sleep(0.1)
    assert page.getvalue().splitlines() == lines


def test_a_command_that_opens_several_models_has_one_line_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each model of a film had lines of its own."""
    page = piped(monkeypatch)
    monkeypatch.setattr(progress, "EVERY", 0.2)
    for _ in range(8):
        model_of({"model": "random"})
    time.sleep(0.5)
    until_end.close()
    assert 1 <= len(page.getvalue().splitlines()) <= 6


SLOW_PASS = """
import sys, time
from attnctl.render.page import sources as pages
from attnctl.cli import progress
from attnctl.commands.ablate import compute
from attnctl.errors import AttnctlError
def slow(*_, **__):
    time.sleep(0.5)
    raise AttnctlError("long enough")
progress.EVERY, compute.watched_text, pages.page_of_sources = 0.1, slow, slow
from attnctl.__main__ import main
main()
"""


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["ablate"], "the unchanged text"),
        (["view"], "reading the text"),
        (["view", "--effects"], "the text, and the effects of its edges"),
    ],
)
def test_lines_in_a_pipe_name_what_is_done(command: list[str], words: str) -> None:
    command = [sys.executable, "-c", SLOW_PASS, *command, "Alice will eat"]
    lines = subprocess.run(command, capture_output=True, text=True, timeout=60).stderr.splitlines()
    assert lines[-2].startswith(f"attnctl: {words}: ") and lines[-1] == "attnctl: long enough", lines


def test_the_spinner_names_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(progress, "SILENT", 0.01)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with progress.spinner_while_silent():
        time.sleep(0.2)
        progress.say_stage("the unchanged text")
        time.sleep(0.3)
    assert "the unchanged text …" in screen.getvalue()


def test_a_quiz_that_waits_for_its_user_writes_no_lines() -> None:
    """In a pipe: standard error goes into a file, and the answers come late."""
    code = "from attnctl.cli import progress; progress.EVERY = 0.1; from attnctl.__main__ import main; main()"
    command = [sys.executable, "-c", code, "quiz", "Alice will eat pizza", "-n", "1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as quiz:
        assert quiz.stdout is not None and quiz.stdin is not None and quiz.stderr is not None
        while b"1/1" not in quiz.stdout.readline():
            pass
        time.sleep(1.0)
        quiz.stdin.close()
        quiz.stdout.read()
        lines = quiz.stderr.read().splitlines()
    # while the model was opened, which takes longer on a busy machine; ten more if it wrote while it waits
    assert len([line for line in lines if b"so far" in line]) <= 6, lines


def test_a_small_first_piece_is_no_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    """It loads a library: of 3,977 tokens the first tile of the first head said that all take 11 hours."""
    clock, page = 0.0, piped(monkeypatch)
    monkeypatch.setattr(progress, "monotonic", lambda: clock)
    with progress.cost_progress("work") as tick:
        clock = 5.0
        tick(0.0001)
        for _ in range(10):
            clock += 1.0
            tick(0.01)
    assert page.getvalue() == "attnctl: work: about 2 min in all\n"  # 5 s, and 100 s more


def test_a_bar_that_is_full_claims_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stood at 100 %, 0:00:00 left, while the answer behind a prompt was written for eight seconds."""
    clock, totals = 0.0, []
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(progress, "monotonic", lambda: clock)
    monkeypatch.setattr(rich.progress.Progress, "update", lambda self, number, *, total, **_: totals.append(total))
    with progress.cost_progress("reading the prompt and its answer") as tick:
        for _ in range(2):
            clock += 5.0
            tick(0.5)
    assert totals == [1.0, None]


@pytest.mark.parametrize(
    ("pieces", "line"),
    [
        ([(1.1, 0.03), *[(0.03, 0.03)] * 30], ""),  # the first calls of libraries: 34 s were announced, it took 2 s
        ([(5.0, 0.1), *[(0.5, 0.1)] * 9], ""),  # a large first piece is no measure either
        ([(60.0, 0.25)], "attnctl: work: about 4 min in all\n"),  # another does not follow soon
        ([(5.0, 0.04), (4.0, 0.04)], ""),  # too small a share
        ([(5.0, 0.04), (4.0, 0.04), (4.0, 0.04)], "attnctl: work: about 2 min in all\n"),
        ([(15.0, 0.5), (15.0, 0.5)], ""),  # the work is over
    ],
)
def test_a_total_is_announced_once_it_is_measured(
    pieces: list[tuple[float, float]], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, page = 0.0, piped(monkeypatch)
    monkeypatch.setattr(progress, "monotonic", lambda: clock)
    with progress.cost_progress("work") as tick:
        for seconds, share in pieces:
            clock += seconds
            tick(share)
    assert page.getvalue() == line


def test_items_of_unknown_number_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, page = 0.0, piped(monkeypatch)
    monkeypatch.setattr(progress, "monotonic", lambda: clock)
    monkeypatch.setattr(progress, "EVERY", 0.05)
    with progress.items_progress(lambda: None) as tick:
        clock = 10.0
        tick(25)
        time.sleep(0.2)
    assert page.getvalue().splitlines()[0] == "attnctl: 25 done, 2.5 a second: 10 s so far"
