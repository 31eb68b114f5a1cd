"""A CUDA device: long texts and capture in bfloat16: medians after a warm-up."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.tools.benchmarks.measuring import Row, benchmark

HEADS, D, RUNS = 32, 128, 5


def measured(run: Callable[[], Any]) -> tuple[float, float]:
    """Return the median of seconds, and the peak of bytes beyond what was there before."""
    import torch

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


def require_cuda() -> None:
    """Stop where torch sees no device."""
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("torch sees no CUDA device here")


def compared(
    what: str, peer: str, ours: Callable[[], Any], theirs: Callable[[], Any], inputs: int = 0
) -> Iterator[Row]:
    """Yield the ratios of time and of peak memory with the inputs."""
    (seconds, memory), (other, others) = measured(ours), measured(theirs)
    times = {"ours": f"{1000 * seconds:.1f} ms", "theirs": f"{1000 * other:.1f} ms"}
    yield Row(what, peer, seconds / other, most=3, **times)
    sizes = {"ours": f"{memory / 2**20:,.0f} MiB", "theirs": f"{others / 2**20:,.0f} MiB"}
    yield Row(f"memory of {what}", peer, (memory + inputs) / (others + inputs), most=2, **sizes)


@benchmark()
def long_texts() -> Iterator[Row]:
    """Yield an overview and the statistics of every head over 32 causal heads against torch's fused kernel."""
    require_cuda()
    import torch

    from attnctl.attention import Call
    from attnctl.blockwise import even_edges, even_parts
    from attnctl.blockwise.sweep import measure_rows, pool_between_parts

    for n in (16_384, 65_536, 131_072):
        torch.manual_seed(0)
        q, k, v = (torch.randn(HEADS, n, D, device="cuda", dtype=torch.bfloat16) for _ in range(3))  # (heads, n, d)
        call = Call(q, k, v, causal=True)
        cells, edges = even_parts(0, n, 256), even_edges(n, 64)
        wanted = {"key_edges": edges, "row_edges": edges, "marks": np.arange(n)[None] == 0, "rows": True}

        def fused(q: Any = q, k: Any = k, v: Any = v) -> None:
            torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)

        for what, run in (
            ("overview", lambda call=call, cells=cells: pool_between_parts(call, cells, cells)),
            ("statistics of heads", lambda call=call, wanted=wanted: measure_rows(call, **wanted)),
        ):
            yield from compared(f"{what}, {n:,} tokens, CUDA", "one fused attention", run, fused, 3 * q.nbytes)


@benchmark()
def capture() -> Iterator[Row]:
    """Yield one forward under capture of one head against the same network under eager with `output_attentions=True`."""
    require_cuda()
    import torch
    import transformers

    import attnctl

    config = transformers.LlamaConfig(
        hidden_size=2048, intermediate_size=5504, num_hidden_layers=8, num_attention_heads=16, num_key_value_heads=4
    )
    torch.manual_seed(0)
    network = transformers.LlamaForCausalLM(config).to(torch.bfloat16).to("cuda").eval()
    ids = torch.randint(5, 30_000, (1, 4096), device="cuda")  # (1, n)

    def eager() -> None:
        network.set_attn_implementation("eager")
        network(ids, output_attentions=True)

    def captured() -> None:
        network.set_attn_implementation("sdpa")
        with attnctl.capture(network, layer=[4], head=[3]):
            network(ids)

    with torch.inference_mode():
        yield from compared("capture of one head, 4,096 tokens, CUDA", "eager, output_attentions", captured, eager)
