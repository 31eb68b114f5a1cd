"""Start-up, as ratios of whole processes: `python tests/tools/benchmarks/bench_startup.py [pairs]`.

Prints medians of paired runs, one after the other, so that a machine that slows down slows both. Asserts nothing.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

TEXT = "Alice will eat pizza"
PEER = [sys.executable, "-c", "import torch"]
MEASURED = {
    "attnctl explain (budget 0.20)": ["-m", "attnctl", "explain", TEXT],
    "attnctl explain --json": ["-m", "attnctl", "explain", TEXT, "--json"],
    "attnctl --help (budget 0.13)": ["-m", "attnctl", "--help"],
}


def seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env=os.environ | {"COLUMNS": "80"})
    return time.perf_counter() - start


def main(pairs: int = 9) -> None:
    for name, arguments in MEASURED.items():
        command = [sys.executable, *arguments]
        seconds(command), seconds(PEER)  # warm the caches
        times = [(seconds(command), seconds(PEER)) for _ in range(pairs)]
        ratio = statistics.median(ours / theirs for ours, theirs in times)
        ours, theirs = (statistics.median(side) for side in zip(*times, strict=True))
        print(f"{name:32} {ours:6.3f} s   import torch {theirs:6.3f} s   ratio {ratio:.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 9)
