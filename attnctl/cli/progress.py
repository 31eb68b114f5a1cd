"""A progress bar with rate and time left, on a terminal; nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from attnctl.cli import invocation
from attnctl.cli.output import safe_console


@contextmanager
def items_progress(share: Callable[[], float | None]) -> Iterator[Callable[[int], None]]:
    """A bar on stderr, moved on by calling it with how many are done; `share` says how much of the input was read.

    It answers None where nobody knows: then the bar counts alone.
    """
    if invocation.quiet or not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        SpinnerColumn(),
        BarColumn(),
        TextColumn("{task.fields[done]:,} done · {task.fields[rate]} a second ·"),
        TimeElapsedColumn(),
        TextColumn("· left"),
        TimeRemainingColumn(),
    )
    page = safe_console(stderr=True)
    with Progress(*columns, console=page, transient=True, redirect_stderr=True, redirect_stdout=False) as bar:
        task = bar.add_task("", total=None, done=0, rate="…")
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
            )

        yield move_on
