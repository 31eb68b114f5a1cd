"""What the commands share about long texts: when a text is one, what it will cost, and how far the work has come."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from attnctl.errors import AttnctlError, UsageError

if TYPE_CHECKING:
    from attnctl.overview import Part
    from attnctl.trace import ModelInfo, Token

LONG = 512  # tokens, from which a text has an overview instead of every weight
PAIRS_A_SECOND = 1e8  # weights swept by one thread
SAID = 20.0  # seconds, from which the cost is told beforehand
SIZE = 256  # cells a side of an overview


def stretch(spec: str | None, n: int, option: str) -> tuple[int, int]:
    """--rows and --columns: A:B, A:, :B; tokens [A, B) of n. Raises UsageError where there are none such."""
    if spec is None:
        return 0, n
    match = re.fullmatch(r"(-?\d*):(-?\d*)", spec.strip())
    if not match:
        raise UsageError(f"{option} {spec!r}: it is FIRST:LAST, like 3000:3100, LAST not included")
    a, b = int(match[1] or 0), int(match[2] or n)
    a, b = (a + n if a < 0 else a), (b + n if b < 0 else b)
    if not 0 <= a < b <= n:
        raise UsageError(f"{option} {spec}: the text has tokens 0 to {n - 1}, so it is within 0:{n}")
    return a, b


def cells(
    tokens: Sequence[Token], first: int, last: int, size: int, text: str, out: Sequence[int] = ()
) -> tuple[Part, ...]:
    """Tokens [first, last) in at most `size` even cells, those in `out` left out, named by position and snippet."""
    from attnctl.overview import Part, snippet
    from attnctl.statistics import even

    parts = []
    for ((a, b),) in even(first, last, size):
        edges = [a, *(at for token in out if a <= token < b for at in (token, token + 1)), b]
        ranges = tuple((x, y) for x, y in zip(edges[::2], edges[1::2], strict=True) if x < y)
        if ranges:
            parts.append(Part(snippet(tokens, a, b, text), ranges))
    return tuple(parts)


def check_cost(info: ModelInfo, n: int, layers: int, heads: int, size: int = SIZE) -> None:
    """Say on stderr what the work will take where that is much. Raises AttnctlError where memory will not do."""
    threads = os.cpu_count() or 1
    d_k, d_model = info.d_k or 64, info.d_model or 64
    every = info.n_heads or heads
    # queries, keys, values and their copies; the stream with its layers; each thread's masses
    need = 4.0 * n * (8 * every * d_k + 12 * d_model + 2 * threads * size)
    free = available()
    if free is not None and need > free:
        raise AttnctlError(
            f"{n:,} tokens need about {_bytes(need)} of memory, and {_bytes(free)} are free: shorten the text, or cut it "
            "into parts"
        )
    seconds = layers * heads * float(n) ** 2 * (0.5 if info.causal else 1.0) / (PAIRS_A_SECOND * threads)
    if info.device == "cpu" and seconds > SAID:
        print(
            f"attnctl: {layers * heads} heads over {n:,} tokens: about {_time(seconds)} and {_bytes(need)} on the CPU "
            "(--layer and --head take fewer)",
            file=sys.stderr,
        )


def available() -> float | None:
    """Bytes of memory that are free, where the system says so."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:  # noqa: PTH123
            return next(float(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return None


def _bytes(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


@contextmanager
def progress(what: str) -> Iterator[Callable[[float], None] | None]:
    """A bar on stderr where that is a terminal, and nothing in a pipe."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns: Any = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=1.0)
        yield lambda share: bar.update(task, advance=share)
