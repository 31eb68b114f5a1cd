"""Show on standard error that a command works: a spinner, then a bar; in a pipe a line every 10 seconds."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

from attnctl import interrupts
from attnctl.cli import output
from attnctl.cli.output import safe_console, say_unless_quiet
from attnctl.errors import waiting
from attnctl.text import counted

if TYPE_CHECKING:
    from rich.live import Live
    from rich.progress import Progress

    from attnctl.source import Prepared

SILENT = 1.0  # seconds without output before a spinner appears
SHOWN = 0.5  # seconds before a bar appears
LUMP = 0.05  # seconds between two updates of the bar
EVERY = 10.0  # seconds between two lines in a pipe
WHOLE_RUN = 1e9  # seconds: the time left comes from the mean speed of the whole run, since recent speeds jump


@contextmanager
def spinner_while_silent() -> Iterator[None]:
    """Show a spinner on the terminal after SILENT seconds, until the command writes a line or reads one.

    This is `Console.status` without redirection: `Console.status` would send standard output to the console of the spinner,
    which is standard error.
    """
    waiting.close()
    live: Live | None = None

    def start() -> None:
        nonlocal live
        if output.quiet:
            return
        from rich.live import Live
        from rich.spinner import Spinner

        from attnctl.render.terminal.console import SafeConsole

        console, spinner = SafeConsole(stderr=True), Spinner("dots", "working …")
        live = Live(spinner, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
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


@contextmanager
def _bar() -> Iterator[Callable[[float | None, str], None]]:
    """Show progress: a bar on a terminal, after SHOWN seconds; a line every EVERY seconds in a pipe.

    Yield a function that takes the finished share, from 0 to 1 (None if unknown), and the words beside the bar.
    """
    begun = moved = printed = monotonic()
    progress: Progress | None = None

    def move_on(share: float | None, words: str) -> None:
        nonlocal moved, printed, progress
        now = monotonic()
        if output.quiet or now - begun < SHOWN or now - moved < LUMP:
            return
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        time_left = TimeRemainingColumn()
        if progress is None:
            columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), time_left)
            progress = Progress(
                *columns,
                console=safe_console(stderr=True),
                transient=True,
                redirect_stdout=False,
                speed_estimate_period=WHOLE_RUN,
                get_time=monotonic,
                disable=not sys.stderr.isatty(),
            )
            progress.add_task(words, total=None)
            waiting.close()
            progress.start()
        moved = now
        task = progress.tasks[0]
        progress.update(task.id, total=None if share is None else 1.0, completed=share or 0.0, description=words)
        if progress.disable and now - printed >= EVERY:
            printed = now
            progress_text = "" if share is None else f": {share:.0%}, {time_left.render(task)} left"
            say_unless_quiet(f"{words}{progress_text}")

    with interrupts.tidied_up():
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

    with _bar() as move_bar:
        yield move_on


def heads_over_tokens(prepared: Prepared) -> str:
    """Return the heads and tokens of a prepared source, for a bar: "12 tokens, 6 heads"."""
    return f"{len(prepared.source.tokens):,} tokens, {counted(prepared.head_count, 'head')}"


@contextmanager
def cost_progress(work: str) -> Iterator[Callable[[float], None]]:
    """Show a bar on stderr; yield a function that takes the share of the work that was done since its last call."""
    share_done = 0.0

    def move_on(share: float) -> None:
        nonlocal share_done
        share_done += share
        move_bar(share_done, work)

    with _bar() as move_bar:
        yield move_on
