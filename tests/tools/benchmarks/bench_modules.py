"""A module of one's own, of GPT-2's sizes with calls of SDPA: a capture against its own forward, in time and in memory."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from tests.tools.benchmarks.measuring import Row, benchmark, in_turn, peak_of

LAYERS, WIDTH, HEADS = 12, 768, 12


def own_module() -> Any:
    """Return a transformer of GPT-2 small's sizes, as people write it, without an embedding."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

        def forward(self, x: Any) -> Any:
            batch, n, _ = x.shape
            q, k, v = self.qkv(self.norms[0](x)).view(batch, n, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
            context = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(context.transpose(1, 2).reshape(batch, n, -1))
            return x + self.mlp(self.norms[1](x))

    torch.manual_seed(0)
    return nn.Sequential(*(Layer() for _ in range(LAYERS))).eval()


@benchmark()
def capture_own_module() -> Iterator[Row]:
    """Yield a capture of the last layer and of every layer, 512 tokens; and what every layer of 1,024 takes in memory."""
    import torch

    import attnctl

    torch.set_num_threads(1)
    model = own_module()

    @torch.inference_mode()
    def forward(x: Any) -> None:
        model(x)

    @torch.inference_mode()
    def captured(x: Any, layer: int | None = None) -> None:
        with attnctl.capture(model, layer=layer, keep=()):
            model(x)

    x = torch.randn(1, 512, WIDTH)
    for name, layer, most in (("last layer", LAYERS - 1, 1.15), ("every layer", None, 1.6)):
        pair = in_turn(partial(captured, x, layer), partial(forward, x), 5)
        yield pair.row(f"capture of a module, {name}", "its own forward", most=most)
    x = torch.randn(1, 1024, WIDTH)
    one_layer = 4 * HEADS * 1024**2 / 2**20  # MiB of weights
    kept = LAYERS * one_layer
    peak = peak_of(partial(captured, x)) - peak_of(partial(forward, x))
    yield Row(
        "memory of capture of a module, every layer", "the kept weights", peak / kept,
        most=round((kept + one_layer) / kept, 2), ours=f"{peak:,.0f} MiB", theirs=f"{kept:,.0f} MiB",
        limit=f"{(kept + one_layer) / kept:.2f}: a layer's scores are there beside its weights, {one_layer:.0f} MiB",
    )  # fmt: skip
