"""Long texts and capture on a GPU: `python -m tests.tools.benchmarks.bench_gpu [TOKENS …]`. Needs a CUDA device.

Overview and the statistics of every head over 32 heads, d 128, bfloat16, causal, against one fused attention (torch's
FlashAttention kernel) of the same call: time (goal ≤ 3) and peak memory (goal ≤ 2); then one forward under capture of one
head against the same network under eager with `output_attentions=True`. The median of five after a warm-up; ratios are of
one run.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from attnctl.attention import Call
from attnctl.blockwise import even_edges, even_parts
from attnctl.blockwise.sweep import measure_rows, pool_between_parts

HEADS, D = 32, 128
RUNS = 5


def measured(run: Callable[[], Any]) -> tuple[float, float]:
    """Median seconds, and peak bytes beyond what was there before."""
    run()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(RUNS):
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds), float(torch.cuda.max_memory_allocated() - before)


def long_texts(n: int) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(HEADS, n, D, device="cuda", dtype=torch.bfloat16) for _ in range(3))  # (heads, n, d)
    call = Call(q, k, v, causal=True)
    cells, edges = even_parts(0, n, 256), even_edges(n, 64)
    first = np.arange(n)[None] == 0  # (marks, n)
    runs = {
        "fused attention": lambda: torch.nn.functional.scaled_dot_product_attention(
            q[None], k[None], v[None], is_causal=True
        ),
        "overview": lambda: pool_between_parts(call, cells, cells),
        "head statistics": lambda: measure_rows(call, key_edges=edges, row_edges=edges, marks=first, rows=True),
    }
    inputs = 3 * q.nbytes
    base = None
    for name, run in runs.items():
        seconds, memory = measured(run)
        base = base or (seconds, memory + inputs)
        ratios = f"time {seconds / base[0]:6.2f}, memory {(memory + inputs) / base[1]:5.2f}"
        print(f"{n:7} tokens  {name:16} {1000 * seconds:9.1f} ms  {memory / 2**20:8.0f} MiB  {ratios}", flush=True)


def capturing(n: int = 4096) -> None:
    import transformers

    import attnctl

    config = transformers.LlamaConfig(
        hidden_size=2048, intermediate_size=5504, num_hidden_layers=8, num_attention_heads=16, num_key_value_heads=4
    )
    torch.manual_seed(0)
    network = transformers.LlamaForCausalLM(config).to(torch.bfloat16).to("cuda").eval()
    ids = torch.randint(5, 30_000, (1, n), device="cuda")  # (1, n)

    def eager() -> None:
        network.set_attn_implementation("eager")
        network(ids, output_attentions=True)

    def captured() -> None:
        network.set_attn_implementation("sdpa")
        with attnctl.capture(network, layer=[4], head=[3]):
            network(ids)

    with torch.inference_mode():
        (a, b), (c, d) = measured(eager), measured(captured)
    print(f"{n:7} tokens  eager, every head {1000 * a:9.1f} ms  {b / 2**20:8.0f} MiB")
    print(
        f"{n:7} tokens  capture, one head {1000 * c:9.1f} ms  {d / 2**20:8.0f} MiB  time {c / a:6.2f}, memory {d / b:5.2f}"
    )


if __name__ == "__main__":
    if not torch.cuda.is_available():
        raise SystemExit("torch sees no CUDA device here: this benchmark needs one")
    for count in map(int, sys.argv[1:] or (16_384, 65_536, 131_072)):
        long_texts(count)
    capturing()
