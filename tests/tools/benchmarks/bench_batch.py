"""Batches: pictures against seaborn's (budget: 20 and 12 times as many), JSON traces a second a core (budget: 4,000 with
--steps weights), MiniLM over mixed lengths against transformers sentence by sentence (budget: 3 times as many), a process of
10,000 pictures (budget: 60 a second), memory over 100,000 lines (budget: flat). Asserts nothing."""

from __future__ import annotations

import cProfile
import io
import os
import random
import statistics
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
    from attnctl.zoom import read_heatmap

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

    def ours(trace: Any, dpi: int) -> None:
        heatmap_png(read_heatmap(trace), Look(dpi=dpi))

    for dpi, budget in ((100, 20), (200, 12)):
        found = []
        for at in range(0, len(traces), 10):  # in turn: a machine is not as quick at every moment
            some = traces[at : at + 10]
            found.append((rate(lambda t, d=dpi: ours(t, d), some, 2), rate(lambda t, d=dpi: theirs(t, d), some[:3], 2)))
        mine, seaborns = (statistics.median(column) for column in zip(*found, strict=True))
        ratio = statistics.median(one / other for one, other in found)
        print(
            f"pictures, {dpi} dpi   {mine:.0f} a second   seaborn {seaborns:.1f}   ratio {ratio:.1f} (budget {budget})"
        )
        profile = cProfile.Profile(builtins=True)
        for trace in traces[:20]:
            profile.runcall(ours, trace, dpi)
        inside = dict.fromkeys(("zlib", "backend_agg"), 0.0)
        for entry in profile.getstats():
            for name in inside:
                inside[name] += entry.inlinetime if isinstance(entry.code, str) and name in entry.code else 0.0
        said = ", ".join(f"{name} {1e3 * seconds / 20:.1f}" for name, seconds in inside.items())
        print(f"    of {1e3 / mine:.1f} ms a picture, inside the calls of {said}: less than these it cannot take")


def lines() -> None:
    from attnctl.batching.engines import LOCAL, chunks_of_items
    from attnctl.batching.texts import TextStream
    from attnctl.batching.work import Work

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "in.txt")
        for name, words, steps in (
            ("demo", 5, ("weights",)),
            ("demo", 5, None),
            ("demo", 10, None),
            ("random", 5, None),
        ):
            file.write_text("\n".join(texts(4000, words)))
            best, size = float("inf"), 0
            for _ in range(3):
                start, size = time.process_time(), 0
                chunks = chunks_of_items(TextStream(str(file)), 16)
                for chunk in LOCAL.results(Work({"name": name}, steps=steps), chunks, None, None):
                    size += sum(len(result.made["json"]) for result in chunk)
                best = min(best, time.process_time() - start)
            asked = "every step" if steps is None else "--steps weights (budget 4,000)"
            print(f"JSON, {name}, {words} words, {asked}   {4000 / best:,.0f} a second   {size / 4e6:.1f} kB each")


def padded_passes(network: Any, ids: Sequence[list[int]], together: int) -> None:
    """The forward passes of a batch alone, texts of like length padded to one, by transformers' own products."""
    import torch

    ordered = sorted(ids, key=len)
    for at in range(0, len(ordered), together):
        part = ordered[at : at + together]
        padded = torch.tensor([some + [0] * (len(part[-1]) - len(some)) for some in part])  # (texts, n)
        there = torch.tensor([[1] * len(some) + [0] * (len(part[-1]) - len(some)) for some in part])  # (texts, n)
        with torch.inference_mode():
            network(input_ids=padded, attention_mask=there, output_attentions=True)


def product_rate() -> float:
    """Multiplications and additions a second of this core, in products of float32 matrices that lie as its kernel likes."""
    import torch

    rows, matrix = torch.randn(512, 384), torch.ops.mkldnn._reorder_linear_weight(torch.randn(1536, 384), 512)
    product = torch.ops.mkldnn._linear_pointwise
    return rate(lambda _: product(rows, matrix, None, "none", [], ""), range(200), 5) * rows.numel() * len(matrix)


def minilm() -> None:
    try:
        import torch

        import attnctl
        from attnctl.models import open_model

        model: Any = open_model("minilm")
    except Exception as error:
        print(f"MiniLM: {error}")
        return
    torch.set_num_threads(1)
    network, some = model.network, [text for n in range(3, 41) for text in texts(5, n)]  # 3 to 40 words
    random.Random(0).shuffle(some)

    def theirs(text: str) -> None:
        ids = torch.tensor([[token.id for token in model.tokenize(text)]])
        with torch.inference_mode():
            out = network(input_ids=ids, attention_mask=torch.ones_like(ids), output_attentions=True)
        [weights.numpy() for weights in out.attentions]

    ours = rate(lambda many: list(attnctl.batch(many, model, batch_size=32)), [some]) * len(some)
    network.set_attn_implementation("eager")
    plain = rate(theirs, some)
    ids = [[token.id for token in model.tokenize(text)] for text in some]
    bare = rate(lambda all_ids: padded_passes(network, all_ids, 32), [ids]) * len(some)
    print(
        f"MiniLM, 3 to 40 words   {ours:.0f} a second   transformers {plain:.0f}   ratio {ours / plain:.1f} (budget 3)"
    )
    print(f"    padded passes of transformers alone, nothing recorded   {bare:.0f}   ratio {bare / plain:.1f}")
    weights = sum(
        part.weight.numel() for part in network.encoder.modules() if isinstance(part, torch.nn.Linear)
    )  # each is multiplied with every token
    floor = len(some) * product_rate() / (weights * sum(map(len, ids)))
    print(
        f"    more than {floor:.0f} it cannot be, by the matrix products at this core's best rate: {floor / plain:.1f}"
    )


def processes() -> None:
    """The whole command over 10,000 lines, a picture each, two workers: wall clock, and the processors' time of all."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "in.txt")
        file.write_text("\n".join(texts(10_000, 5)))
        command = [sys.executable, "-m", "attnctl", "batch", str(file), "-o", str(Path(folder, "out"))]
        start, before = time.perf_counter(), os.times()
        subprocess.run([*command, "--format", "png", "-j", "2"], check=True, stderr=subprocess.DEVNULL)
        took, used = time.perf_counter() - start, os.times()
        spent = used.children_user + used.children_system - before.children_user - before.children_system
        print(
            f"10,000 pictures, two workers   {1e4 / took:.0f} a second, {spent / 10:.1f} ms of a core each (budget 60)"
        )


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
        processes()
        subprocess.run([sys.executable, "-m", "tests.tools.benchmarks.bench_batch", "memory"], check=True)
