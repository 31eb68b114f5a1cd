"""Many texts: pictures against seaborn's, traces a second, MiniLM and a census against loops over transformers, memory."""

from __future__ import annotations

import cProfile
import io
import os
import random
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.tools.benchmarks.measuring import (
    WORDS,
    Row,
    attnctl,
    benchmark,
    in_turn,
    linear_rate,
    linear_weights,
    python,
    seconds_of,
)


def texts(count: int, words: int) -> list[str]:
    """Return texts of so many words."""
    draw = random.Random(0)
    return [" ".join(draw.choice(WORDS) for _ in range(words)) for _ in range(count)]


@benchmark()
def pictures() -> Iterator[Row]:
    """Yield heatmaps of ten tokens with numbers, as PNG, against seaborn's."""
    import matplotlib

    matplotlib.use("Agg")
    import seaborn
    from matplotlib import pyplot

    from attnctl.formats.pictures import Look
    from attnctl.models import open_model
    from attnctl.render.figure.raster import heatmap_png
    from attnctl.source import record_trace
    from attnctl.source.zoom import read_heatmap

    model = open_model("random")
    traces = [record_trace(model, text) for text in texts(10, 10)]

    def draw_theirs(dpi: int) -> None:
        for trace in traces[:2]:
            names = [token.text for token in trace.tokens]
            figure, axes = pyplot.subplots()
            weights = trace.layers[0].weights[0]
            seaborn.heatmap(weights, annot=True, fmt=".2f", xticklabels=names, yticklabels=names, ax=axes)
            figure.savefig(io.BytesIO(), dpi=dpi)
            pyplot.close(figure)

    def draw_ours(dpi: int) -> None:
        for trace in traces:
            heatmap_png(read_heatmap(trace), Look(dpi=dpi))

    for dpi, least in ((100, 25), (200, 12)):
        pair = in_turn(lambda dpi=dpi: draw_ours(dpi), lambda dpi=dpi: draw_theirs(dpi), 5)
        ours, theirs = pair.ours / 10, pair.theirs / 2  # seconds a picture
        profile = cProfile.Profile(time.process_time)
        profile.runcall(draw_ours, dpi)
        drawing = sum(
            entry.inlinetime
            for entry in profile.getstats()
            if isinstance(entry.code, str) and any(name in entry.code for name in ("Imaging", "zlib", "backend_agg"))
        )
        yield Row(
            f"heatmap of 10 tokens, {dpi} dpi", "seaborn", theirs / ours, "× as fast", least=least,
            ours=f"{1e3 * ours:.1f} ms", theirs=f"{1e3 * theirs:.0f} ms",
            limit=f"{100 * drawing:.1f} ms in Agg, Pillow and zlib",
        )  # fmt: skip


@benchmark()
def traces() -> Iterator[Row]:
    """Yield JSON traces a second of one core."""
    from attnctl.batching.engines import LINES, LOCAL, chunks_of_items
    from attnctl.batching.texts import TextStream
    from attnctl.batching.work import Work

    def write(file: str, steps: tuple[str, ...] | None) -> None:
        chunks = chunks_of_items(TextStream(file), LINES)  # as the command takes them
        for chunk in LOCAL.results(Work({"name": "demo"}, steps=steps), chunks, None, None):
            assert all(result.outputs["json"] for result in chunk)

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "in.txt")
        file.write_text("\n".join(texts(4000, 5)))
        for what, steps, least in (("--steps weights", ("weights",), 4000), ("every step", None, None)):
            best = min(seconds_of(lambda steps=steps: write(str(file), steps)) for _ in range(3))
            yield Row(f"batch, demo, JSON of {what}", "one core", 4000 / best, "a second", least=least)


EARLIER = "2103bd1f"  # the last commit in which a batch had a path of its own through a model


def write_weights(build: Path, file: Path) -> None:
    """Let the attnctl of a folder write the weights of a file of texts."""
    with tempfile.TemporaryDirectory() as out:
        options = "--steps", "weights", "--format", "json", "--jobs", "1", "-o", out
        python("-P", "-m", "attnctl", "batch", file, *options, PYTHONPATH=str(build))()


@benchmark(quick=False)
def earlier_build() -> Iterator[Row]:
    """Yield JSON of the weights against an earlier build: whole commands in turn, by the processor; none without git."""
    repository = Path(__file__).parents[3]
    archive = subprocess.run(
        ["git", "-C", str(repository), "archive", EARLIER, "attnctl"], capture_output=True, check=False
    ).stdout
    if not archive:
        return
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(folder, filter="data")
        by_length = [texts(2000, words) for words in range(3, 10)]
        mixed = [text for several in zip(*by_length, strict=True) for text in several]
        for what, lines, least in (("3 to 9 words", mixed, 2), ("5 words each", texts(14_000, 5), None)):
            file = Path(folder, "in.txt")
            file.write_text("\n".join(lines))
            ours, theirs = (partial(write_weights, build, file) for build in (repository, Path(folder)))
            pair = in_turn(ours, theirs, 5, lambda: sum(os.times()[2:4]))
            yield pair.row_of_speed(f"batch, demo, JSON of --steps weights, {what}", f"commit {EARLIER}", least=least)


def mixed_texts() -> list[str]:
    """Return texts of 3 to 40 words in no order."""
    mixed = [text for n in range(3, 41) for text in texts(5, n)]
    random.Random(0).shuffle(mixed)
    return mixed


def read_padded(network: Any, ids: Sequence[list[int]]) -> None:
    """Run a network over padded passes of 32 texts of like length, and record nothing."""
    import torch

    rows = [torch.tensor(own) for own in sorted(ids, key=len)]
    with torch.inference_mode():
        for start in range(0, len(rows), 32):
            several = torch.nn.utils.rnn.pad_sequence(rows[start : start + 32], batch_first=True)  # by 0, [PAD]
            network(input_ids=several, attention_mask=several != 0)


@benchmark()
def minilm() -> Iterator[Row]:
    """Yield texts of mixed lengths through MiniLM against transformers sentence by sentence."""
    import torch

    import attnctl as package
    from attnctl.models import open_model

    torch.set_num_threads(1)
    model: Any = open_model("minilm")
    many, network = mixed_texts(), open_model("minilm").network  # type: ignore[attr-defined]
    network.set_attn_implementation("eager")
    ids = [[token.id for token in model.tokenize(text)] for text in many]

    @torch.inference_mode()
    def theirs() -> None:
        for own in ids:
            rows = torch.tensor([own])
            out = network(input_ids=rows, attention_mask=torch.ones_like(rows), output_attentions=True)
            [weights.numpy() for weights in out.attentions]

    pair = in_turn(lambda: list(package.batch(many, model, batch_size=32)), theirs)
    products = linear_weights(network.encoder) * sum(map(len, ids))
    limit = (
        f"{1 / in_turn(lambda: read_padded(model.network, ids), theirs).ratio:.1f} × by padded forwards that record nothing, "
        f"{pair.theirs / products * linear_rate():.1f} × by their linear layers alone"
    )
    yield pair.row_of_speed("batch, MiniLM, 3 to 40 words", "transformers, one at a time", least=2.3, limit=limit)


@benchmark()
def census() -> Iterator[Row]:
    """Yield a census of sentences that share a pass against transformers' eager loop that counts the same."""
    import torch

    from attnctl.batching import TreebankStream, sentence_of
    from attnctl.batching.engines import LOCAL
    from attnctl.batching.items import Item
    from attnctl.commands.evaluate.compute import CensusWork, census_chunks
    from attnctl.commands.evaluate.counting import Census, tally_shape
    from attnctl.commands.evaluate.tally import CensusTally
    from attnctl.commands.evaluate.words import align_words
    from attnctl.models import open_model

    torch.set_num_threads(1)
    model: Any = open_model("minilm")
    items: Sequence[Item] = list(TreebankStream(["samples/sentences.conllu"])) * 4

    def ours() -> None:
        tally = CensusTally(tally_shape(model))
        work = CensusWork({"name": "minilm"}, batch_size=32)
        for chunk in LOCAL.results(work, census_chunks(items), None, model):
            for result in chunk:
                tally.merge_tally(result.outputs["census"])

    @torch.inference_mode()
    def theirs() -> None:
        for item in items:
            aligned = align_words(sentence_of(item), model.tokenize(sentence_of(item).text))
            counted = Census([aligned], (model.info.n_layers, model.info.n_heads))
            ids = torch.tensor([[token.id for token in aligned.tokens]])
            for layer, own in enumerate(network(input_ids=ids, output_attentions=True).attentions):
                counted.count_layer(layer, own)
            counted.tallies()

    network: Any = open_model("minilm").network  # type: ignore[attr-defined]
    network.set_attn_implementation("eager")
    pair = in_turn(ours, theirs)
    ids = [[token.id for token in model.tokenize(sentence_of(item).text)] for item in items]
    limit = f"{1 / in_turn(lambda: read_padded(model.network, ids), theirs).ratio:.1f} × by padded forwards that count nothing"
    what = f"census of {len(items)} sentences, MiniLM"
    yield pair.row_of_speed(what, "transformers' eager loop, counted", least=3, limit=limit)


@benchmark(quick=False)
def processes() -> Iterator[Row]:
    """Yield a command over many lines: pictures a second with two workers, and memory."""
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder, "in.txt"), Path(folder, "out")
        file.write_text("\n".join(texts(10_000, 5)))
        cost = attnctl("batch", file, "-o", out, "--format", "png", "-j", "2")()
        each = f"{cost.processor / 10:.1f} ms of a core each"
        yield Row("batch of 10,000 pictures", "two workers", 1e4 / cost.wall, "a second", least=60, ours=each)
        memory = {}
        for count in (1000, 100_000):
            file.write_text("\n".join(texts(count, 4)))
            memory[count] = attnctl("batch", file, "-o", Path(folder, f"out{count}"), "-j", "1")().memory
        ours, theirs = (f"{memory[count]:,.0f} MiB" for count in (100_000, 1000))
        ratio = memory[100_000] / memory[1000]
        yield Row("memory of a batch of 100,000 lines", "1,000 lines", ratio, most=1.1, ours=ours, theirs=theirs)
