"""Batches: pictures against seaborn's (budget: 10 times as many), JSON traces a second a core (budget: 2,000), MiniLM against
transformers sentence by sentence (budget: 3 times as many), memory over 100,000 lines (budget: flat). Asserts nothing."""

from __future__ import annotations

import io
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"  # one core for everyone

WORDS = (
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
)
WORDS += ("quickly", "Alice", "Bob", "teacher", "reads", "book")


def texts(count: int, words: int) -> list[str]:
    draw = random.Random(0)
    return [" ".join(draw.choice(WORDS) for _ in range(words)) for _ in range(count)]


def rate(work: Callable[[Any], Any], items: Sequence[Any], rounds: int = 3) -> float:
    """Items a second of this process's time, the best of some rounds."""
    best = float("inf")
    for _ in range(rounds):
        start = time.process_time()
        for item in items:
            work(item)
        best = min(best, time.process_time() - start)
    return len(items) / best


def pictures() -> None:
    try:
        import matplotlib

        matplotlib.use("Agg")
        import seaborn
        from matplotlib import pyplot
    except ImportError:
        print("pictures: seaborn is not installed")
        return
    from attnctl.formats.pictures import Look
    from attnctl.models import open_model
    from attnctl.render.figure.raster import heatmap_png
    from attnctl.source import record_trace
    from attnctl.source.cells import read_heatmap

    model = open_model("random")
    traces = [record_trace(model, text) for text in texts(60, 10)]

    def theirs(trace: Any, dpi: int) -> None:
        names = [token.text for token in trace.tokens]
        figure, axes = pyplot.subplots()
        seaborn.heatmap(
            trace.layers[0].weights[0], annot=True, fmt=".2f", xticklabels=names, yticklabels=names, ax=axes
        )
        figure.savefig(io.BytesIO(), dpi=dpi)
        pyplot.close(figure)

    for dpi in (100, 200):
        ours, seaborns = (
            rate(lambda t, d=dpi: heatmap_png(read_heatmap(t), Look(dpi=d)), traces),
            rate(lambda t, d=dpi: theirs(t, d), traces[:8], 2),
        )
        print(
            f"pictures, {dpi} dpi   {ours:.0f} a second   seaborn {seaborns:.1f}   ratio {ours / seaborns:.1f} (budget 10)"
        )


def lines() -> None:
    from attnctl.batching.engines import LOCAL, chunks_of_items
    from attnctl.batching.texts import TextStream
    from attnctl.batching.work import Work

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "in.txt")
        for name, words in (("demo", 5), ("demo", 10), ("random", 5)):
            file.write_text("\n".join(texts(4000, words)))
            start, size = time.process_time(), 0
            chunks = chunks_of_items(TextStream(str(file)), 16)
            for chunk in LOCAL.results(Work({"name": name}), chunks, None, None):
                size += sum(len(result.made["json"]) for result in chunk)
            took = time.process_time() - start
            print(
                f"JSON, {name}, {words} words   {4000 / took:,.0f} a second   {size / 4e6:.1f} kB each (budget 2,000)"
            )


def minilm() -> None:
    try:
        import torch

        import attnctl
        from attnctl.models import open_model

        model: Any = open_model("minilm")
    except Exception as error:
        print(f"MiniLM: {error}")
        return
    network, some = model.network, texts(200, 6)

    def theirs(text: str) -> None:
        ids = torch.tensor([[token.id for token in model.tokenize(text)]])
        with torch.inference_mode():
            out = network(input_ids=ids, attention_mask=torch.ones_like(ids), output_attentions=True)
        [weights.numpy() for weights in out.attentions]

    ours = rate(lambda many: list(attnctl.batch(many, model, batch_size=32)), [some]) * len(some)
    network.set_attn_implementation("eager")
    plain = rate(theirs, some)
    print(f"MiniLM   {ours:.0f} a second   transformers {plain:.0f}   ratio {ours / plain:.1f} (budget 3)")


def memory() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for count in (1000, 100_000):
            file = Path(folder, f"{count}.txt")
            file.write_text("\n".join(texts(count, 4)))
            command = [
                sys.executable,
                "-m",
                "attnctl",
                "batch",
                str(file),
                "-o",
                str(Path(folder, f"out{count}")),
                "-j",
                "1",
            ]
            start = time.perf_counter()
            with subprocess.Popen(command, stderr=subprocess.DEVNULL) as run:
                _, status, used = os.wait4(run.pid, 0)
                run.returncode = status
            took = time.perf_counter() - start
            print(f"{count:,} lines   {used.ru_maxrss / 1024:.0f} MB   {took:.1f} s")


if __name__ == "__main__":
    if sys.argv[1:] == ["memory"]:  # in a small process: a new one's peak begins at that of the one it came from
        memory()
    else:
        pictures()
        lines()
        minilm()
        subprocess.run([sys.executable, "-m", "tests.tools.benchmarks.bench_batch", "memory"], check=True)
