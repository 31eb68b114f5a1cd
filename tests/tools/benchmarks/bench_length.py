"""Statistics of a long text against one fused attention: `python -m tests.tools.benchmarks.bench_length [TOKENS]`.

Each measurement runs in a process of its own and prints seconds (best of three) and the memory it took beyond its inputs.
Ratios are taken within one run; nothing is asserted. `python -m tests.tools.benchmarks.bench_length smollm2` measures the overview
of all 270 heads of SmolLM2 over 4,096 tokens against its plain forward pass; `commands` measures whole processes on long texts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from itertools import cycle, islice
from pathlib import Path

HEADS, D = 12, 64

CHILD = """
import json, resource, sys, time
import numpy as np, torch
from attnctl import attention, blockwise
from attnctl.blockwise import sweep
from attnctl.layer.computed import ComputedLayer
what, n, heads, d = sys.argv[1], *map(int, sys.argv[2:])
torch.manual_seed(0)
q, k, v = torch.randn(3, heads, n, d)
call = attention.Call(q, k, v, causal=True)
cells = blockwise.even_parts(0, n, 256)

def fused():
    torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)

def overview():
    sweep.pool_between_parts(call, cells, cells)

def heads_facts():
    share = 1 / np.arange(1, 20001)  # words as in any language: Zipf
    ids = np.random.default_rng(0).choice(20000, n, p=share / share.sum())
    layer = ComputedLayer.of_call(0, call)
    found = layer.statistics([np.arange(n) == 0, ids % 10 == 0], 64)
    for offset in (0, -1, 1):
        layer.at_offset(offset)
    for shift in (0, 1):
        layer.on_copies(ids, shift)
    blockwise.effective_rank(found.pooled)

def matrix():
    matrix = (q @ k.mT * d**-0.5).masked_fill_(torch.ones(n, n, dtype=torch.bool).triu_(1), -torch.inf).softmax(-1)
    matrix.view(heads, 256, n // 256, 256, n // 256).mean((2, 4))

run = {"fused": fused, "overview": overview, "heads": heads_facts, "matrix": matrix}[what]
if what != "matrix":  # the first call loads libraries
    short = call
    torch.nn.functional.scaled_dot_product_attention(q[None, :, :600], k[None, :, :600], v[None, :, :600])
    few = blockwise.even_parts(0, 600, 256)
    sweep.pool_between_parts(attention.Call(q[:1, :600], k[:1, :600], v[:1, :600], causal=True), few, few)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
best = 1e9
for _ in range(1 if what == "matrix" else 3):
    start = time.perf_counter()
    run()
    best = min(best, time.perf_counter() - start)
inputs = 3 * heads * n * d * 4
peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
print(json.dumps([best, peak + inputs, peak]))
"""


MODEL = """
import time, torch
from attnctl.models import open_model
from attnctl.readings.heatmap import GridReading
from attnctl.source import TextSource
from attnctl.readings.overview import TextPart
from attnctl.blockwise import even_parts
model = open_model("smollm2")
text = " ".join(f"In {year} the {year % 97}th ship of the line sailed from port {year % 13}." for year in range(1200, 1500))
tokens = model.tokenize(text)[:4096]
cells = tuple(TextPart("", part) for part in even_parts(0, len(tokens), 256))

def plain():
    with torch.inference_mode():
        model.network(torch.tensor([[token.id for token in tokens]]), logits_to_keep=1, use_cache=False)

def overview():
    return TextSource(model, text, tokens).read(GridReading(cells, cells))

times = {}
for name, run in (("plain forward", plain), ("with the overviews", overview)):
    model.network(torch.tensor([[1, 2, 3]]))
    start = time.perf_counter()
    run()
    times[name] = time.perf_counter() - start
    print(f"{name:20} {times[name]:7.2f} s, {len(tokens):,} tokens", flush=True)
print(f"  ratio {times['with the overviews'] / times['plain forward']:.2f} (budget 3)")
"""


PEER = """
import sys, time, torch
q, k, v = torch.randn(3, 1, 12, int(sys.argv[1]), 16)
torch.nn.functional.scaled_dot_product_attention(q[:, :, :600], k[:, :, :600], v[:, :, :600])
start = time.process_time()
torch.nn.functional.scaled_dot_product_attention(q, k, v)
print(time.process_time() - start)
"""
PLAIN = """
import sys, torch
from attnctl.models import open_model
model = open_model("smollm2")
ids = torch.tensor([[token.id for token in model.tokenize(open(sys.argv[1]).read())]])
model.network.config.num_hidden_layers = 1
with torch.inference_mode():
    model.network.model(ids, use_cache=False)
"""


def processor_seconds(*command: str) -> float:
    """What a process takes of the processor, user and system, with all that it imports."""
    before = os.times()
    subprocess.run([sys.executable, *command], capture_output=True, check=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def commands() -> None:
    """`heads` and `view` of 13,816 tokens through the demo model, a heatmap of 8,192 through SmolLM2, with their peers."""
    sentences = ("The cat that sat on the mat saw a dog .", "Alice will eat pizza with Bob in the garden .")
    with tempfile.TemporaryDirectory() as folder:
        text, page = Path(folder, "text.txt"), str(Path(folder, "page.html"))
        text.write_text(" ".join(islice(cycle(" ".join(sentences).split()), 13_816)))
        command, given = ("-m", "attnctl"), ("--file", str(text))
        peer = subprocess.run([sys.executable, "-c", PEER, "13816"], capture_output=True, text=True, check=True).stdout
        heads = processor_seconds(*command, "heads", *given)
        view = processor_seconds(*command, "view", "--no-open", "-o", page, *given)
        print(
            f"heads, demo: {heads:.2f} s of processor time, {heads / float(peer):.2f} x one fused attention of 12 heads (3)"
        )
        print(f"view, demo: {view:.2f} s, {view / heads:.2f} x heads (budget 1.3)")
        text.write_text(" word" * 8_192)
        chosen = ("--layer", "0", "--head", "0", "-o", str(Path(folder, "one.png")), "--model", "smollm2")
        heatmap, plain = (
            processor_seconds(*command, "heatmap", *chosen, *given),
            processor_seconds("-c", PLAIN, str(text)),
        )
        print(
            f"heatmap of layer 0, SmolLM2: {heatmap:.2f} s, {heatmap / plain:.2f} x a plain forward of it (budget 1.15)"
        )


def measured(what: str, n: int) -> tuple[float, float, float]:
    ran = subprocess.run(
        [sys.executable, "-c", CHILD, what, str(n), str(HEADS), str(D)], capture_output=True, text=True, check=True
    )
    seconds, memory, extra = json.loads(ran.stdout)
    print(
        f"{what:9} {n:6} tokens  {seconds:7.2f} s  {memory / 2**20:7.0f} MiB with its inputs, {extra / 2**20:6.0f} beyond"
    )
    return seconds, memory, extra


def main(n: int) -> None:
    half = n // 2
    fused, overview = measured("fused", n), measured("overview", n)
    print(
        f"  overview / fused: time {overview[0] / fused[0]:.2f} (budget 4), memory {overview[1] / fused[1]:.2f} (budget 2)"
    )
    fused, overview, heads = measured("fused", half), measured("overview", half), measured("heads", half)
    print(f"  every fact of `heads` / fused: time {heads[0] / fused[0]:.2f} (budget 4)")
    matrix = measured("matrix", half)
    print(
        f"  overview / matrix: {matrix[0] / overview[0]:.1f} times faster (budget 5), memory {overview[1] / matrix[1]:.3f} (budget 0.1)"
    )
    longer = measured("overview", 2 * n)
    print(f"  memory at {2 * n} / at {half}: {longer[1] / overview[1]:.2f} (linear: 4)")


if __name__ == "__main__":
    if sys.argv[1:] == ["smollm2"]:
        raise SystemExit(subprocess.run([sys.executable, "-c", MODEL], check=False).returncode)
    if sys.argv[1:] == ["commands"]:
        raise SystemExit(commands())
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 16384)
