"""What benchmarks are made of: rows of the table, and ways to measure time and memory."""

from __future__ import annotations

import ctypes
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

WORDS = [
    "the",
    "cat",
    "dog",
    "bird",
    "will",
    "eat",
    "some",
    "warm",
    "pizza",
    "in",
    "garden",
    "house",
    "river",
    "mountain",
    "quickly",
    "Alice",
    "Bob",
    "teacher",
    "reads",
    "book",
]
# With a fixed threshold glibc returns large arrays to the system when they are freed. Otherwise it keeps some of them, and
# the peak of memory differs by a fifth from run to run.
STEADY = {"MALLOC_MMAP_THRESHOLD_": "131072"}


@dataclass(frozen=True)
class Row:
    """A line of the table: a measured value, and what it is wanted to be."""

    what: str
    peer: str
    value: float
    unit: str = "×"
    most: float | None = None  # the budget: at most
    least: float | None = None  # or at least
    ours: str = ""
    theirs: str = ""
    limit: str = ""  # what it cannot be better than, and why

    @property
    def budget(self) -> str:
        """Return the budget in words."""
        bounds = ((self.most, "≤"), (self.least, "≥"))
        return " ".join(f"{sign} {bound:,g}" for bound, sign in bounds if bound is not None)

    @property
    def is_reached(self) -> bool | None:
        """Return whether the value is within its budget; None without a budget, or for a value too small to measure."""
        if (self.most is None and self.least is None) or self.value != self.value:
            return None
        return (self.most is None or self.value <= self.most) and (self.least is None or self.value >= self.least)


class Benchmark(NamedTuple):
    """A function that yields rows; `is_quick` if it takes less than a minute on a laptop."""

    function: Callable[[], Iterator[Row]]
    is_quick: bool


BENCHMARKS: dict[str, Benchmark] = {}


def benchmark(*, quick: bool = True) -> Callable[[Callable[[], Iterator[Row]]], Callable[[], Iterator[Row]]]:
    """Register a benchmark under the name of its file and function."""

    def register(function: Callable[[], Iterator[Row]]) -> Callable[[], Iterator[Row]]:
        file = function.__module__.rpartition(".bench_")[2]
        BENCHMARKS[f"{file}.{function.__name__}"] = Benchmark(function, quick)
        return function

    return register


class Pair(NamedTuple):
    """Medians of what was measured in turn."""

    ours: float
    theirs: float
    ratio: float  # ours ÷ theirs, the median of the rounds

    def row(self, what: str, peer: str, **more: Any) -> Row:
        """Return the ratio as a row, with both times."""
        times = {"ours": f"{self.ours:.3g} s", "theirs": f"{self.theirs:.3g} s"}
        return Row(what, peer, self.ratio, **times | more)

    def row_of_speed(self, what: str, peer: str, **more: Any) -> Row:
        """Return how many times as fast as the peer it is, as a row."""
        return replace(self.row(what, peer, **more), value=1 / self.ratio, unit="× as fast")


def seconds_of(work: Callable[[], object], clock: Callable[[], float] = time.process_time) -> float:
    """Return the seconds that a call takes: of the processor, since wall time swings with what else the machine does."""
    start = clock()
    work()
    return clock() - start


def best_of(work: Callable[[], object], rounds: int = 5) -> float:
    """Return the seconds of the fastest of several calls."""
    return min(seconds_of(work) for _ in range(rounds))


def in_turn(
    ours: Callable[[], object],
    theirs: Callable[[], object],
    rounds: int = 3,
    clock: Callable[[], float] = time.process_time,
) -> Pair:
    """Measure two calls in turn, so that a machine which slows down slows both. Each is called once before, to warm up."""
    ours(), theirs()
    times = [(seconds_of(ours, clock), seconds_of(theirs, clock)) for _ in range(rounds)]
    mine, other = (statistics.median(side) for side in zip(*times, strict=True))
    return Pair(mine, other, statistics.median(a / b for a, b in times))


def python(*arguments: str | Path, **variables: str) -> Callable[[], ProcessCost]:
    """Return a call that runs Python with these arguments and returns what that took; what it prints is dropped.

    `variables` are added to the environment.
    """
    environment = os.environ | {"COLUMNS": "80", "HF_HUB_OFFLINE": "1"} | variables

    def run() -> ProcessCost:
        start = time.perf_counter()
        with subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
        ) as process:
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"exit code {process.returncode}: {' '.join(map(str, arguments))[:300]}")
        return ProcessCost(time.perf_counter() - start, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)

    return run


def attnctl(*arguments: str | Path, **variables: str) -> Callable[[], ProcessCost]:
    """Return a call that runs `attnctl ARGUMENTS…` as a process, with `variables` in its environment."""
    return python("-m", "attnctl", *arguments, **variables)


class ProcessCost(NamedTuple):
    """What a process took."""

    wall: float  # seconds
    processor: float  # seconds, with those of its children that it waited for
    memory: float  # MiB resident, at most


def resident(field: str) -> float:
    """Return this process's memory in MiB: now (VmRSS), or at its peak (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1024


M_MMAP_THRESHOLD = -3  # of malloc.h


def peak_of(work: Callable[[], object]) -> float:
    """Return the MiB that a call takes at most beyond what was there before, of which glibc keeps nothing that is free."""
    glibc = ctypes.CDLL(None)
    glibc.mallopt(M_MMAP_THRESHOLD, int(STEADY["MALLOC_MMAP_THRESHOLD_"]))
    glibc.malloc_trim(0)
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    work()
    glibc.mallopt(M_MMAP_THRESHOLD, 32 << 20)  # the most that glibc sets by itself
    return max(0.0, resident("VmHWM") - before)


def linear_rate() -> float:
    """Return how many multiplications a second torch's linear layers do on this core."""
    import torch

    layer, rows = torch.nn.Linear(384, 1536), torch.randn(512, 384)
    with torch.inference_mode():
        best = best_of(lambda: [layer(rows) for _ in range(200)])
    return 200 * rows.numel() * layer.out_features / best


def linear_weights(network: Any) -> int:
    """Return how many weights of a network each token is multiplied with."""
    import torch

    return sum(part.weight.numel() for part in network.modules() if isinstance(part, torch.nn.Linear))
