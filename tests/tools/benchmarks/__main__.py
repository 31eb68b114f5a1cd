"""Run the benchmarks, print one table, and write it as the page docs/speed.md."""

from __future__ import annotations

import argparse
import json
import os
import pkgutil
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from subprocess import PIPE

from rich import box
from rich.console import Console
from rich.table import Table

from tests.tools import benchmarks
from tests.tools.benchmarks.measuring import BENCHMARKS, Row

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def run_alone(name: str, seconds: float) -> Iterator[Row]:
    """Run a benchmark in a process of its own and yield its rows as they come; one says so if it fails or takes too long."""
    command = [sys.executable, "-m", "tests.tools.benchmarks", "--rows", name]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, stdout=PIPE, stderr=errors, text=True, env=os.environ | ONE_THREAD) as run,
    ):
        late = threading.Timer(seconds, run.kill)
        late.start()
        assert run.stdout is not None
        yield from (Row(**json.loads(line)) for line in run.stdout if line.startswith("{"))
        run.wait()
        is_late = not late.is_alive()
        late.cancel()
        errors.seek(0)
        reason = (errors.read().strip().splitlines() or ["no reason"])[-1][:200] if run.returncode else ""
    if reason:
        why = f"stopped after {seconds:.0f} s" if is_late else f"not measured: {reason}"
        yield Row(name, "", float("nan"), limit=why)


TIME = (
    "--quick takes about five minutes on two free cores, all of them more than an hour, and several times as long beside other "
    "work. Each row is printed as soon as it is measured, with the seconds of its benchmark after it; the table comes at the end."
)
HEADINGS = ("what", "peer", "ours", "peer's", "ratio", "budget", "reached", "limit")
NUMBERS = ("ours", "peer's", "ratio")


def number(value: float) -> str:
    """Return three digits of a number without an exponent: 0.192, 4,660, < 0.001; empty for NaN."""
    if value != value:
        return ""
    return f"{value:,.0f}" if value >= 1000 else "< 0.001" if value < 0.001 else f"{value:#.3g}".rstrip(".")


def cells_of(row: Row) -> tuple[str, ...]:
    """Return a row as text, a cell for each heading; what was not measured stays empty."""
    value = f"{number(row.value)} {row.unit}" if number(row.value) else ""
    reached = {None: "", True: "yes", False: "NO"}[row.is_reached]
    return row.what, row.peer, row.ours, row.theirs, value, row.budget, reached, row.limit


def table_of(rows: list[Row]) -> Table:
    """Return the rows as a table for a terminal."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in HEADINGS:
        table.add_column(heading, justify="right" if heading in NUMBERS else "left")
    for row in rows:
        table.add_row(*cells_of(row))
    return table


def line_of(row: Row) -> str:
    """Return a row in one line: "batch, MiniLM: 2.31 × as fast as transformers, one at a time (0.9 s, 2.1 s), ≥ 2.3: yes"."""
    what, peer, ours, theirs, value, budget, reached, limit = cells_of(row)
    against = f", against {peer}" if peer else ""
    both = " and ".join(side for side in (ours, theirs) if side)
    return (
        f"{what}: {value or limit}{against}{f' ({both})' if both else ''}{f', {budget}: {reached}' if reached else ''}"
    )


def machine() -> str:
    """Return the processor, its cores, the load and the versions that matter, in a sentence."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    processor = names[0] if names else platform.processor() or platform.machine()
    packages = ", ".join(f"{name} {version(name)}" for name in ("numpy", "torch", "transformers", "matplotlib", "rich"))
    cores = f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    return f"{processor}, {cores}, Python {platform.python_version()}, {packages}"


def page_of(rows_by_part: dict[str, list[Row]], command: str) -> Iterator[str]:
    """Yield the lines of docs/speed.md, a table for each part."""
    rows = [row for part in rows_by_part.values() for row in part]
    missed = [row.what for row in rows if row.is_reached is False]
    budgets = sum(row.is_reached is not None for row in rows)
    yield "# Speed\n"
    yield f"`{command}` made this page on {datetime.now(UTC):%d %B %Y}, on one machine:"
    yield f"{machine()}.\n"
    yield "Each row compares attnctl with a named peer, both measured in turn in one run on one thread. Times are of the processor where"
    yield "that is possible. The limit names a bound that no faster program can pass, or a fact about the row. Your machine gives"
    yield "other times. The ratios should stay near these.\n"
    yield f"Of {budgets} budgets {budgets - len(missed)} are reached. Missed: {'; '.join(missed) or 'none'}."
    for part, part_rows in rows_by_part.items():
        yield f"\n## {part}\n"
        yield f"| {' | '.join(HEADINGS)} |"
        yield f"| {' | '.join('---:' if heading in NUMBERS else '---' for heading in HEADINGS)} |"
        for row in part_rows:
            yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells_of(row))} |"


def part_of(name: str) -> str:
    """Return what the benchmarks of a file are about, by its docstring: "Long texts"."""
    return (sys.modules[BENCHMARKS[name].function.__module__].__doc__ or name).partition(":")[0]


def main() -> None:
    """Run every benchmark, or those whose name begins with one of the words."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.tools.benchmarks", description=f"{(benchmarks.__doc__ or '').strip()} {TIME}"
    )
    parser.add_argument("names", nargs="*", help="the names of benchmarks, or how they begin (all)")
    parser.add_argument("--quick", action="store_true", help="only those that take seconds")
    parser.add_argument("--list", action="store_true", help="print the names")
    parser.add_argument("--rows", metavar="NAME", help="run one here, and print its rows as JSON")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the table as a page of the documentation")
    options = parser.parse_args()
    for module in pkgutil.iter_modules(benchmarks.__path__):
        if module.name.startswith("bench_"):
            import_module(f"tests.tools.benchmarks.{module.name}")
    if options.rows:
        for row in BENCHMARKS[options.rows].function():
            print(json.dumps(asdict(row)), flush=True)
        return
    names = [
        name
        for name, registered in BENCHMARKS.items()
        if name.startswith(tuple(options.names or [""])) and (registered.is_quick or not options.quick)
    ]
    if options.list:
        print("\n".join(names))
        return
    started = time.monotonic()
    rows_by_part: dict[str, list[Row]] = {}
    for name in names:
        print(f"{name} …", file=sys.stderr, flush=True)
        begun = time.monotonic()
        for row in run_alone(name, 120 if options.quick else 3600):
            print(line_of(row), flush=True)
            rows_by_part.setdefault(part_of(name), []).append(row)
        print(f"{name}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    rows = [row for part in rows_by_part.values() for row in part]
    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(table_of(rows), markup=False)
    missed = [row.what for row in rows if row.is_reached is False]
    seconds = time.monotonic() - started
    print(f"{len(rows)} rows in {seconds:.0f} s, {len(missed)} beyond their budget: {', '.join(missed) or 'none'}")
    print(machine())
    if options.page:
        words = [*options.names, *(["--quick"] if options.quick else [])]
        lines = page_of(rows_by_part, " ".join(["python -m tests.tools.benchmarks", *words]))
        options.page.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
