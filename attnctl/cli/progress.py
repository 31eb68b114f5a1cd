"""Show on standard error that a command works: a spinner, then a bar; in a pipe a line every 10 seconds.

Every time comes from the work that was done so far.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from math import ceil
from time import monotonic
from typing import TYPE_CHECKING

from attnctl.cli import output
from attnctl.cli.output import safe_console, say_unless_quiet
from attnctl.errors import waiting
from attnctl.runtime import interrupts
from attnctl.text import counted, duration_text

if TYPE_CHECKING:
    from rich.live import Live
    from rich.progress import Progress
    from rich.spinner import Spinner

    from attnctl.source import Prepared

WORKING = "working"  # before anything better can be said
SILENT = 1.0  # seconds without output before a spinner appears
SHOWN = 0.5  # seconds before a bar appears
LUMP = 0.05  # seconds between two updates of the bar
EVERY = 10.0  # seconds between two lines in a pipe
MEASURED = 3.0  # seconds of work before its time is estimated
PIECE = 0.05  # share of the work from which its time is estimated
LONG = 20.0  # seconds; longer work says once how long it takes in all
TOGETHER = 1.1  # pieces that end within this factor of the first piece's time ended with it, as two forwards at once do
FULL = 0.999  # sums of shares are not exact


@contextmanager
def spinner_while_silent() -> Iterator[None]:
    """Show a spinner on the terminal after SILENT seconds, until the command writes a line or reads one.

    This is `Console.status` without redirection: `Console.status` would send standard output to the console of the spinner,
    which is standard error.
    """
    waiting.close()
    whole_command.words = WORKING
    live: Live | None = None

    def start() -> None:
        nonlocal live
        if output.quiet:
            return
        from rich.live import Live
        from rich.spinner import Spinner

        from attnctl.render.terminal.console import SafeConsole

        global _spinner
        console, _spinner = SafeConsole(stderr=True), Spinner("dots", f"{whole_command.words} …")
        live = Live(_spinner, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
        interrupts.restoring = b"\r\x1b[K\x1b[?25h"
        live.start()

    def end() -> None:
        timer.cancel()
        if timer.is_alive():
            timer.join()
        if live is not None:
            live.stop()
            interrupts.restoring = b""

    timer = threading.Timer(SILENT, start)
    timer.daemon = True
    timer.start()
    waiting.callback(end)
    try:
        yield
    finally:
        waiting.close()
        end()  # Ctrl-C may have interrupted the first call


@dataclass
class Work:
    """Work that goes on: the words for it, and which share was finished when (seconds after its beginning).

    The speed is measured from `start` (seconds, share). The first piece is not a measure for the others, since the first
    calls of libraries are slow; it counts only if it took so long (LONG) that they mean little.
    """

    words: str
    begun: float
    share: float | None = None
    moved: float = 0.0
    start: tuple[float, float] = (0.0, 0.0)
    first: float | None = None  # the seconds that the first piece took

    def seconds(self) -> float:
        """Return the seconds since the work began."""
        return monotonic() - self.begun

    def move_on(self, share: float | None, words: str) -> None:
        """Note that this share, from 0 to 1, is finished now; None if it is unknown."""
        self.words, self.share, self.moved = words, share, self.seconds()
        if share:
            if self.first is None:
                self.first = self.moved
            is_measure = self.start == (0.0, 0.0) and share >= PIECE and self.moved >= LONG
            if self.moved <= self.first * TOGETHER and not is_measure:
                self.start = (self.moved, share)

    def seconds_in_all(self) -> float | None:
        """Return the seconds from beginning to end, by the speed so far; None if it is not measured."""
        if not self.share or self.share > FULL:
            return None
        (seconds, share), now = self.start, self.share
        if now <= share:  # nothing came after the first piece
            if now < PIECE:
                return None
            seconds, share = 0.0, 0.0
        return self.moved + (self.moved - seconds) * (1 - now) / (now - share)

    def left(self) -> float | None:
        """Return the seconds that are left; None if they are not known."""
        whole, seconds = self.seconds_in_all(), self.seconds()
        if whole is None or self.share is None:
            return None
        return whole - seconds if whole > seconds else seconds * (1 - self.share)  # this piece takes longer

    @property
    def clock(self) -> str:
        """Return the time left as hours, minutes and seconds, for a bar; "" while the share that is done is unknown."""
        left = self.left()
        if left is None:
            return "" if self.share is None else "-:--:--"
        return str(timedelta(seconds=ceil(round(left, 3))))

    def line(self) -> str:
        """Return the state in words: the share that is done and the time left, or only the time so far."""
        left = self.left()
        if self.share is None or left is None:
            return f"{self.words}: {duration_text(self.seconds())} so far"
        return f"{self.words}: {self.share:.0%}, about {duration_text(left)} left"


whole_command = Work(WORKING, 0.0)  # what a command does while no bar says more
_spinner: Spinner | None = None


def say_stage(words: str) -> None:
    """Name what the command does now: beside the spinner, and in the lines of a pipe, until a bar says more."""
    whole_command.words = words
    if _spinner is not None:
        _spinner.update(text=f"{words} …")


_works: list[Work] = []  # that write lines in a pipe: only the innermost writes


@contextmanager
def lines_in_pipe(work: Work) -> Iterator[None]:
    """Within this context, write a line on the state of `work` every EVERY seconds if standard error is a pipe.

    Work that writes its lines already, such as a command that opens a second model, writes no more of them.
    """
    if output.quiet or sys.stderr.isatty() or any(work is other for other in _works):
        yield
        return
    ended = threading.Event()

    def write_lines() -> None:
        while not ended.wait(min(EVERY, threading.TIMEOUT_MAX)):
            if _works and _works[-1] is work:
                say_unless_quiet(work.line())

    thread = threading.Thread(target=write_lines, daemon=True)
    _works.append(work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        _works.remove(work)
        thread.join()


@contextmanager
def _bar(words: str) -> Iterator[Callable[[float | None, str], Work]]:
    """Show progress: a bar on a terminal, after SHOWN seconds; a line every EVERY seconds in a pipe.

    Yield a function that takes the finished share, from 0 to 1 (None if unknown), and the words beside the bar, and returns
    the state.
    """
    begun = drawn = monotonic()
    work = Work(words, begun)
    progress: Progress | None = None

    def move_on(share: float | None, words: str) -> Work:
        nonlocal drawn, progress
        now = monotonic()
        work.move_on(share, words)
        if output.quiet or not sys.stderr.isatty() or now - begun < SHOWN or now - drawn < LUMP:
            return work
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

        if progress is None:
            progress = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TaskProgressColumn(),
                TextColumn("{task.fields[work].clock}", style="progress.remaining", markup=False),
                console=safe_console(stderr=True),
                transient=True,
                redirect_stdout=False,
                get_time=monotonic,
            )
            progress.add_task(words, total=None, work=work)
            waiting.close()
            progress.start()
        drawn = now
        progress.update(
            progress.tasks[0].id, total=None if share is None else 1.0, completed=share or 0.0, description=words
        )
        return work

    with interrupts.tidied_up() if sys.stderr.isatty() else nullcontext(), lines_in_pipe(work):
        try:
            yield move_on
        finally:
            if progress is not None:
                progress.stop()


@contextmanager
def items_progress(share: Callable[[], float | None]) -> Iterator[Callable[[int], None]]:
    """Show a bar on stderr; yield a function that takes how many more items are done.

    `share` returns the share of the input that was read, or None if it is unknown: then the bar only counts.
    """
    begun, count_done = monotonic(), 0

    def move_on(count: int) -> None:
        nonlocal count_done
        count_done += count
        rate = count_done / max(monotonic() - begun, LUMP)
        move_bar(share(), f"{count_done:,} done, {rate:,.{0 if rate >= 10 else 1}f} a second")

    with _bar("0 done") as move_bar:
        yield move_on


def heads_over_tokens(prepared: Prepared) -> str:
    """Return the heads and tokens of a prepared source, for a bar: "12 tokens, 6 heads"."""
    return f"{len(prepared.source.tokens):,} tokens, {counted(prepared.head_count, 'head')}"


@contextmanager
def cost_progress(work: str, fewer: str = "") -> Iterator[Callable[[float], None]]:
    """Show a bar on stderr; yield a function that takes the share of the work that was done since its last call.

    If the work will take longer than LONG seconds, a line says so once; `fewer` says how to lower the cost. The speed is
    that of MEASURED seconds, and of the share PIECE of the work.
    """
    share_done, is_noted = 0.0, False

    def move_on(share: float) -> None:
        nonlocal share_done, is_noted
        share_done += share
        is_over = share_done > FULL
        # work may follow whose length is unknown: after a prompt is read, its answer is generated
        state = move_bar(None if is_over else share_done, work)
        if is_noted or state.moved - state.start[0] < MEASURED or share_done - state.start[1] < PIECE:
            return
        if (seconds := state.seconds_in_all()) is not None:
            is_noted = True
            if seconds > LONG:
                say_unless_quiet(f"{work}: about {duration_text(seconds)} in all{f' ({fewer})' if fewer else ''}")

    with _bar(work) as move_bar:
        yield move_on
