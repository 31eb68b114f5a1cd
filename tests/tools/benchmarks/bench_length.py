"""Long texts: facts about a matrix that is never built, against one fused attention of the same call."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np

from tests.tools.benchmarks.measuring import STEADY, Row, attnctl, benchmark, best_of, in_turn, python

HEADS, D = 12, 64
FUSED = """
import sys, torch
q, k, v = torch.randn(3, 1, 12, int(sys.argv[1]), 16)
torch.nn.functional.scaled_dot_product_attention(q, k, v)
"""
OVERVIEW = """
import sys, torch
from attnctl.attention import Call
from attnctl.blockwise import even_parts
from attnctl.blockwise.sweep import pool_between_parts
from tests.tools.benchmarks.measuring import peak_of
def overview(n):
    cells = even_parts(0, n, 256)
    pool_between_parts(Call(*torch.randn(3, 12, n, 64), causal=True), cells, cells)
overview(256)
print(peak_of(lambda: overview(int(sys.argv[1]))))
"""
ONE_LAYER = """
import sys, torch
from attnctl.models import open_model
model = open_model("smollm2")
ids = torch.tensor([[token.id for token in model.tokenize(open(sys.argv[1]).read())]])
model.network.config.num_hidden_layers = 1
with torch.inference_mode():
    model.network.model(ids, use_cache=False)
"""


def products(queries: Any, keys: Any) -> None:
    """Compute causal products of queries and keys (heads, n, d) and their exponentials, in blocks of 256 keys."""
    import torch

    n = queries.shape[1]
    block = torch.empty(n, 256)
    for q, k in zip(queries, keys, strict=True):
        for a in range(0, n, 256):
            torch.mm(q[a:], k[a : a + 256].T, out=block[: n - a, : min(256, n - a)]).exp2_()  # (n - a, 256)


@benchmark()
def overview() -> Iterator[Row]:
    """Yield an overview, and every fact of `heads`, against one fused attention: time and memory."""
    import torch

    from attnctl.attention import Call
    from attnctl.blockwise import effective_rank, even_parts
    from attnctl.blockwise.sweep import pool_between_parts
    from attnctl.layer.computed import ComputedLayer

    torch.set_num_threads(1)

    def inputs(n: int) -> Any:
        torch.manual_seed(0)
        return torch.randn(3, HEADS, n, D)  # (3, heads, n, d)

    def fused(n: int) -> None:
        q, k, v = qkv[n]
        torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)

    def widened(n: int) -> None:
        """Fuse what is linear in the weights with the values: keys, offsets, their squares, masses, and columns of a grid."""
        extra = D + 3 + 64
        q, k, v = (torch.nn.functional.pad(part, (0, extra))[None] for part in qkv[n])
        torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=D**-0.5)

    def pooled(n: int) -> None:
        cells = even_parts(0, n, 256)
        pool_between_parts(Call(*qkv[n], causal=True), cells, cells)

    def facts_of_heads(n: int) -> None:
        share = 1 / np.arange(1, 20001)  # words as in any language: Zipf
        ids = np.random.default_rng(0).choice(20000, n, p=share / share.sum())  # (n,)
        layer = ComputedLayer.of_call(0, Call(*qkv[n], causal=True))
        statistics = layer.statistics([np.arange(n) == 0, ids % 10 == 0], 64)
        for offset in (0, -1, 1):
            layer.at_offset(offset)
        for shift in (0, 1):
            layer.on_copies(ids, shift)
        effective_rank(statistics.pooled)

    def matrix(n: int) -> None:
        q, k, _ = qkv[n]
        hidden = torch.ones(n, n, dtype=torch.bool).triu_(1)  # (n, n)
        weights = (q @ k.mT * D**-0.5).masked_fill_(hidden, -torch.inf).softmax(-1)  # (heads, n, n)
        weights.view(HEADS, 256, n // 256, 256, n // 256).mean((2, 4))

    qkv = {n: inputs(n) for n in (4096, 8192)}
    one, least = "one fused attention", {n: best_of(partial(products, *qkv[n][:2])) for n in qkv}
    pair = in_turn(partial(pooled, 8192), partial(fused, 8192))
    limit = f"{least[8192] / pair.theirs:.2f} by products of queries and keys and exponentials alone"
    yield pair.row("overview, 8,192 tokens", one, most=1.5, limit=limit)
    pair, wide = (in_turn(partial(work, 8192), partial(fused, 8192)) for work in (facts_of_heads, widened))
    limit = f"{wide.ratio:.1f} by values widened by what is linear in the weights"
    yield pair.row("facts of heads, 8,192 tokens", one, most=2.6, limit=limit)
    pair = in_turn(partial(pooled, 4096), partial(matrix, 4096))
    limit = f"{pair.theirs / least[4096]:.1f} × by products and exponentials alone"
    yield pair.row_of_speed("overview, 4,096 tokens", "the whole matrix", least=5, limit=limit)


@benchmark()
def overview_memory() -> Iterator[Row]:
    """Yield the memory of an overview with its inputs, in processes that begin small."""

    def memory(n: int) -> float:
        return float(subprocess.check_output([sys.executable, "-c", OVERVIEW, str(n)], env=os.environ | STEADY))  # MiB

    long, short = memory(16384), memory(8192)
    sizes = {"ours": f"{long:,.0f} MiB", "theirs": f"{short:,.0f} MiB"}
    what = "memory of an overview, 16,384 tokens"
    yield Row(what, "8,192 tokens", long / short, most=2.1, limit="2 × by inputs", **sizes)


@benchmark(quick=False)
def smollm2() -> Iterator[Row]:
    """Yield the overviews of all 270 heads of SmolLM2 over 4,096 tokens against its plain forward."""
    import torch

    from attnctl.blockwise import even_parts
    from attnctl.models import open_model
    from attnctl.readings.heatmap import GridReading
    from attnctl.readings.overview import TextPart
    from attnctl.source import TextSource, prepare

    torch.set_num_threads(1)
    model: Any = open_model("smollm2")
    text = " ".join(f"In {year} the {year % 97}th ship sailed from port {year % 13}." for year in range(1200, 1600))
    tokens = model.tokenize(text)[:4096]
    cells = tuple(TextPart("", part) for part in even_parts(0, len(tokens), 256))

    @torch.inference_mode()
    def plain() -> None:
        model.network(torch.tensor([[token.id for token in tokens]]), logits_to_keep=1, use_cache=False)

    pair = in_turn(lambda: prepare(TextSource(model, text, tokens)).read(GridReading(cells, cells)), plain, 1)
    yield pair.row(f"every overview of SmolLM2, {len(tokens):,} tokens", "plain forward", most=3)


@benchmark(quick=False)
def commands() -> Iterator[Row]:
    """Yield whole processes on long texts, by time of the processor."""
    import torch

    torch.set_num_threads(1)
    least = best_of(partial(products, *torch.randn(2, 12, 13_816, 16)), 3)
    sentences = "The cat that sat on the mat saw a dog . Alice will eat pizza with Bob in the garden ."
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "text.txt")
        text.write_text(" ".join(islice(cycle(sentences.split()), 13_816)))
        given = ("--file", text)
        heads = attnctl("heads", *given)().processor
        fused = python("-c", FUSED, "13816")().processor - python("-c", FUSED, "600")().processor
        view = attnctl("view", "--no-open", "-o", Path(folder, "page.html"), *given)().processor
        limit = f"{least / fused:.2f} by products of queries and keys and exponentials alone"
        yield Row("heads, demo, 13,816 tokens", "one fused attention of 12 heads", heads / fused, most=3, limit=limit)
        yield Row("view, demo, 13,816 tokens", "heads", view / heads, most=1.3, ours=f"{view:.1f} s")
        text.write_text(" word" * 8_192)
        chosen = ("--layer", "0", "--head", "0", "-o", Path(folder, "one.png"), "--model", "smollm2")
        heatmap, plain = attnctl("heatmap", *chosen, *given)().processor, python("-c", ONE_LAYER, text)().processor
        what = "heatmap of layer 0, SmolLM2, 8,192 tokens"
        yield Row(what, "plain forward of it", heatmap / plain, most=1.15, ours=f"{heatmap:.1f} s")


@benchmark()
def explain() -> Iterator[Row]:
    """Yield 1,000 tokens, 8 heads, explained into an .npz, against the bare NumPy arithmetic."""
    from attnctl.models import open_model
    from attnctl.source import record_trace

    n = 1000
    model: Any = open_model("random", n_heads=8, d_model=512)
    text = " ".join(f"word{at}" for at in range(n))
    x, layer = model.embed(model.tokenize(text)), model.layers[0]

    def bare() -> Any:
        q, k, v = (x[None] @ layer[name] for name in ("W_Q", "W_K", "W_V"))  # (heads, n, d)
        scaled = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1], dtype=np.float32)  # (heads, n, n)
        e = np.exp(scaled - scaled.max(-1, keepdims=True))  # (heads, n, n)
        contexts = e / e.sum(-1, keepdims=True) @ v  # (heads, n, d_v)
        return contexts.transpose(1, 0, 2).reshape(n, -1) @ layer["W_O"]  # (n, d_model)

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "run.npz")
        pair = in_turn(lambda: record_trace(model, text).save(file), bare, 5)
        arrays = dict(np.load(file))
        writing = best_of(lambda: np.savez(file, **arrays))
    limit = f"{1 + writing / pair.theirs:.1f} × by numpy.savez of the same arrays"
    yield pair.row("explain 1,000 tokens into .npz", "bare NumPy arithmetic", most=2.6, limit=limit)
