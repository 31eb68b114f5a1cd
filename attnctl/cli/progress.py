"""What long work will cost, checked and told before it begins; and its bar, on a terminal alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any

from attnctl import limits
from attnctl.cli import output
from attnctl.cli.output import safe_console, say_unless_quiet
from attnctl.interrupts import tidied_up
from attnctl.text import counted

if TYPE_CHECKING:
    from attnctl.readings.traces.trace import ModelInfo
    from attnctl.source import Source


@contextmanager
def items_progress(share: Callable[[], float | None]) -> Iterator[Callable[[int], None]]:
    """A bar on stderr, moved on by calling it with how many are done; `share` says how much of the input was read.

    It answers None where nobody knows: then the bar counts alone.
    """
    if output.quiet or not sys.stderr.isatty():
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
    with (
        tidied_up(),
        Progress(*columns, console=page, transient=True, redirect_stderr=True, redirect_stdout=False) as bar,
    ):
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


PAIRS_A_SECOND = 2e8  # weights swept by one thread
PRODUCTS_A_SECOND = 2e10  # multiplications with an addition in the other layers of a network, by one thread
SAID = 20.0  # seconds, from which the cost is told beforehand
CUT_BYTES = 12  # a pair of tokens, of a pass with cut edges: its mask and what is made of it
LESS_HEADS = "--layer and --head take fewer"
SHOWN = 0.5  # seconds, after which there is a bar
SIZE = 256  # cells a side of an overview


def check_cost(source: Source, heads: int, sweeps: int = 1) -> None:
    """Say on stderr what so many heads of a text through a model will take, in so many sweeps, where that is much.

    Raises AttnctlError where memory will not do.
    """
    if not hasattr(source, "model"):
        return
    info, n = source.info, len(source.tokens)
    threads = os.cpu_count() or 1
    d_k, d_model = info.d_k or 64, info.d_model or 64
    every = info.n_heads or 1
    # queries, keys, values and their copies; the stream with its layers; each thread's masses
    need = 4.0 * n * (8 * every * d_k + 12 * d_model + 2 * threads * SIZE)
    limits.check_memory(need, f"a text of {n:,} tokens", "shorten it, or cut it into parts")
    seconds = _sweep_seconds(info, n, sweeps * heads) + _network_seconds(info, n)
    _say_cost(f"{counted(heads, 'head')} over {n:,} tokens", seconds, info, need, LESS_HEADS)


def check_sweep_cost(info: ModelInfo, n: int, passes: int, *, cuts: bool, fewer: str = LESS_HEADS) -> None:
    """Say on stderr what so many passes over n tokens will take, where that is much; a pass with `cuts` holds its mask.

    `fewer` says what takes fewer. Raises AttnctlError where memory will not do.
    """
    need = CUT_BYTES * float(n) ** 2 if cuts else 0.0
    limits.check_memory(need, f"cutting edges of {n:,} tokens", "shorten the text")
    seconds = _sweep_seconds(info, n, (info.n_layers or 1) * (info.n_heads or 1)) + _network_seconds(info, n)
    _say_cost(f"{passes:,} passes over {n:,} tokens", passes * seconds, info, need, fewer)


def _sweep_seconds(info: ModelInfo, n: int, heads: int) -> float:
    """What sweeping n × n weights of so many heads takes on the CPU."""
    return heads * float(n) ** 2 * (0.5 if info.causal else 1.0) / (PAIRS_A_SECOND * (os.cpu_count() or 1))


def _network_seconds(info: ModelInfo, n: int) -> float:
    """What one pass takes beside its attention: a layer has about 12 d_model² weights, 4 in W_Q to W_O, 8 in an MLP."""
    products = 12.0 * (info.d_model or 64) ** 2 * (info.n_layers or 1) * n
    return products / (PRODUCTS_A_SECOND * (os.cpu_count() or 1))


def _say_cost(what: str, seconds: float, info: ModelInfo, need: float, fewer: str) -> None:
    """Say what takes more than SAID seconds on the CPU."""
    if info.device == "cpu" and seconds > SAID:
        memory = f" and {limits.bytes_text(need)}" if need else ""
        say_unless_quiet(f"{what}: about {duration_text(seconds)}{memory} on the CPU ({fewer})")


def duration_text(seconds: float) -> str:
    """A duration as people say it: 40 s, 12 min, 2 h 5 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if minutes < 600 else f"{seconds / 3600:,.0f} h"


def heads_over_tokens(n: int, heads: int) -> str:
    """What a bar says of so many heads over a text of n tokens."""
    return f"{n:,} tokens, {counted(heads, 'head')}"


@contextmanager
def cost_progress(what: str) -> Iterator[Callable[[float], None] | None]:
    """A bar on stderr where that is a terminal, and nothing in a pipe."""
    if output.quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns: Any = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=safe_console(stderr=True), transient=True)
    task = bar.add_task(what, total=1.0)
    start = monotonic()

    def move_on(share: float) -> None:
        bar.update(task, advance=share)
        if monotonic() - start > SHOWN:
            bar.start()

    with tidied_up():
        try:
            yield move_on
        finally:
            bar.stop()
