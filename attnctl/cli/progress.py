"""The bars of long work, on a terminal alone."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any

from attnctl.cli import output
from attnctl.cli.output import safe_console
from attnctl.interrupts import tidied_up
from attnctl.text import counted

if TYPE_CHECKING:
    from attnctl.source import Prepared

SHOWN = 0.5  # seconds, after which there is a bar
LUMP = 0.05  # seconds between two pieces of work that are told together
SILENT = 1.0  # seconds without a word, after which there is one


@contextmanager
def waiting_told() -> Iterator[None]:
    """From SILENT seconds on "working …" stands on standard error, a terminal, until anything else is written."""
    out, err, lock, told = sys.stdout, sys.stderr, threading.Lock(), False

    def tell() -> None:
        nonlocal told
        with lock:
            if not output.quiet and not timer.finished.is_set():
                told = True
                err.write("attnctl: working …")
                err.flush()

    def end() -> None:
        nonlocal told
        with lock:
            timer.cancel()
            if told:
                told = False
                err.write("\r\x1b[K")
                err.flush()

    class Heard:
        """A stream that says, before anything is written to it, that there is something to write."""

        def __init__(self, stream: Any) -> None:
            self._stream = stream

        def __getattr__(self, name: str) -> Any:
            if name in ("write", "writelines", "buffer"):
                end()
            return getattr(self._stream, name)

    timer = threading.Timer(SILENT, tell)
    timer.daemon = True
    timer.start()
    heard: Any = (Heard(out), Heard(err))
    sys.stdout, sys.stderr = heard
    try:
        yield
    finally:
        end()
        sys.stdout, sys.stderr = out, err


def time_left(elapsed: float, share: float | None) -> str:
    """Hours, minutes and seconds that are left after so many seconds and this share of the work, 0 to 1.

    At the mean speed since the beginning: that of the last moments jumps where the work comes in lumps.
    """
    if not share or elapsed < SHOWN:
        return "-:--:--"
    seconds = round(elapsed * (1 - min(share, 1)) / share)
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"


@contextmanager
def items_progress(share: Callable[[], float | None]) -> Iterator[Callable[[int], None]]:
    """A bar on stderr, moved on by calling it with how many are done; `share` says how much of the input was read.

    It answers None where nobody knows: then the bar counts alone.
    """
    if output.quiet or not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        BarColumn(),
        TextColumn("{task.fields[done]:,} done · {task.fields[rate]} a second ·"),
        TimeElapsedColumn(),
        TextColumn("· left {task.fields[left]}"),
    )
    page = safe_console(stderr=True)
    with (
        tidied_up(),
        Progress(*columns, console=page, transient=True, redirect_stderr=True, redirect_stdout=False) as bar,
    ):
        task = bar.add_task("", total=None, done=0, rate="…", left="-:--:--")
        done = 0

        def move_on(count: int) -> None:
            nonlocal done
            done += count
            elapsed = bar.tasks[0].elapsed or 0
            rate = done / elapsed if elapsed > 0.5 else None
            read = share()
            bar.update(
                task,
                total=None if read is None else 1.0,
                completed=0 if read is None else read,
                done=done,
                rate="…" if rate is None else f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}",
                left=time_left(elapsed, read),
            )

        yield move_on


def heads_over_tokens(given: Prepared) -> str:
    """What a bar says of the heads and the tokens of what was prepared."""
    return f"{len(given.source.tokens):,} tokens, {counted(given.head_count, 'head')}"


@contextmanager
def cost_progress(what: str) -> Iterator[Callable[[float], None] | None]:
    """A bar on stderr where that is a terminal, and nothing in a pipe."""
    if output.quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, Progress, TextColumn

    columns: Any = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TextColumn("{task.fields[left]}"),
    )
    bar = Progress(*columns, console=safe_console(stderr=True), transient=True)
    task = bar.add_task(what, total=1.0, left="-:--:--")
    start, done = monotonic(), 0.0
    first: tuple[float, float] | None = None  # when the first lump of work was done, and what share of all it was

    def move_on(share: float) -> None:
        nonlocal done, first
        done, now = done + share, monotonic()
        if first is None or now - first[0] < LUMP:
            first = first[0] if first else now, done
            left = time_left(now - start, done)
        else:  # what came before the first lump, as opening a model does, does not come again
            left = time_left(now - first[0], (done - first[1]) / (1 - first[1]) if first[1] < 1 else 1.0)
        bar.update(task, completed=done, left=left)
        if now - start > SHOWN:
            bar.start()

    with tidied_up():
        try:
            yield move_on
        finally:
            bar.stop()
