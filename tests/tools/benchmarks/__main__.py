"""Run the benchmarks and print one table."""

from __future__ import annotations

import argparse
import json
import os
import pkgutil
import platform
import subprocess
import sys
import time
from dataclasses import asdict
from importlib import import_module

from rich import box
from rich.console import Console
from rich.table import Table

from tests.tools import benchmarks
from tests.tools.benchmarks.measuring import BENCHMARKS, Row

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def run_alone(name: str, seconds: float) -> list[Row]:
    """Run a benchmark in a process of its own; a row says so where it fails or takes too long."""
    command = [sys.executable, "-m", "tests.tools.benchmarks", "--rows", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | ONE_THREAD, timeout=seconds)
        why = (done.stderr.strip().splitlines() or ["no reason"])[-1][:200] if done.returncode else ""
        said = done.stdout
    except subprocess.TimeoutExpired as over:
        why, said = f"stopped after {seconds:.0f} s", (over.stdout or b"").decode()
    rows = [Row(**json.loads(line)) for line in said.splitlines() if line.startswith("{")]
    return [*rows, *([Row(name, "", float("nan"), limit=f"not measured: {why}")] if why else [])]


def table_of(rows: list[Row]) -> Table:
    """Return the rows as a table."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("what", "peer", "ours", "peer's", "ratio", "budget", "reached", "limit"):
        table.add_column(heading, justify="right" if heading in ("ours", "peer's", "ratio") else "left")
    for row in rows:
        value = "" if row.value != row.value else f"{row.value:,.3g} {row.unit}"
        reached = {None: "", True: "yes", False: "NO"}[row.is_reached if value else None]
        table.add_row(row.what, row.peer, row.ours, row.theirs, value, row.budget, reached, row.limit)
    return table


def main() -> None:
    """Run every benchmark, or those whose name begins with one of the words."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.benchmarks", description=benchmarks.__doc__)
    parser.add_argument("names", nargs="*", help="the names of benchmarks, or how they begin (all)")
    parser.add_argument(
        "--quick", action="store_true", help="only those that take seconds: all of them in five minutes"
    )
    parser.add_argument("--list", action="store_true", help="print the names")
    parser.add_argument("--rows", metavar="NAME", help="run one here, and print its rows as JSON")
    given = parser.parse_args()
    for module in pkgutil.iter_modules(benchmarks.__path__):
        if module.name.startswith("bench_"):
            import_module(f"tests.tools.benchmarks.{module.name}")
    if given.rows:
        for row in BENCHMARKS[given.rows].function():
            print(json.dumps(asdict(row)), flush=True)
        return
    names = [
        name
        for name, one in BENCHMARKS.items()
        if name.startswith(tuple(given.names or [""])) and (one.is_quick or not given.quick)
    ]
    if given.list:
        print("\n".join(names))
        return
    started, rows = time.monotonic(), []
    for name in names:
        print(f"{name} …", file=sys.stderr, flush=True)
        rows += run_alone(name, 120 if given.quick else 3600)
    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(table_of(rows), markup=False)
    missed = [row.what for row in rows if row.is_reached is False]
    took = time.monotonic() - started
    print(f"{len(rows)} rows in {took:.0f} s, {len(missed)} beyond their budget: {', '.join(missed) or 'none'}")
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
