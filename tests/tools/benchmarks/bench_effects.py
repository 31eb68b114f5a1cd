"""How fast effects are: every head of SmolLM2 on 15 tokens, against a loop of full forwards with hooks, in one run.

Ratios are taken within one run, alternating; nothing is asserted. `python -m tests.tools.benchmarks.bench_effects`
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from attnctl.models import open_model
from attnctl.models.watching import watched_text
from attnctl.readings.rank_correlation import spearman_rho
from attnctl.watched.measure import EffectRequest, measure_effects

TEXT = "<|endoftext|>When Mary and John went to the store, John gave a drink to"
TARGET, AGAINST = " Mary", " John"
LOOPED = 3  # of the heads of each layer, in each round of the loop: nine would take a minute
ROUNDS = 3


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    value = work()
    return time.perf_counter() - start, value


def loop(model: Any, ids: torch.Tensor, heads: range) -> dict[tuple[int, int], float]:
    """The plain way: one full forward a head, its slice zeroed by a hook before the output projection."""
    mary, john = (model.pieces.tokenize(word)[-1].id for word in (TARGET, AGAINST))
    found = {}
    with torch.inference_mode():
        for layer, block in enumerate(model.network.model.layers):
            for head in heads:

                def zero(_: Any, args: tuple[Any, ...], head: int = head) -> tuple[Any, ...]:
                    x = args[0].clone()
                    x[..., head * 64 : (head + 1) * 64] = 0
                    return (x,)

                handle = block.self_attn.o_proj.register_forward_pre_hook(zero)
                logits = model.network(ids).logits[0, -1]
                handle.remove()
                found[layer, head] = float(logits[mary] - logits[john])
    return found


def main() -> None:
    torch.set_num_threads(1)
    model = open_model("smollm2")
    ids = torch.tensor([[token.id for token in model.tokenize(TEXT)]])
    loop(model, ids, range(1))  # everything is read from the disk once

    def sweep(**how: Any) -> Any:
        watched = watched_text(model, TEXT)
        return measure_effects(watched, EffectRequest(TARGET, AGAINST, **how))

    def approximate() -> Any:
        watched = watched_text(model, TEXT)
        return watched.gradients(watched.target_word(TARGET), watched.target_word(AGAINST))

    exact, first, whole = [], [], []
    for number in range(ROUNDS):
        heads = range(number * LOOPED, (number + 1) * LOOPED)
        plain, reference = timed(lambda heads=heads: loop(model, ids, heads))
        plain *= 9 / LOOPED
        ours, found = timed(sweep)
        quick, slopes = timed(approximate)
        checked, _ = timed(lambda: sweep(approximate=True))
        base = found.baseline.logit_difference
        gap = max(
            abs(one.logit_difference - (reference[one.layer, one.head] - base))
            for one in found.heads
            if (one.layer, one.head) in reference
        )
        exact.append(plain / ours)
        first.append(plain / quick)
        whole.append(plain / checked)
        print(
            f"loop of 270 forwards {plain:5.1f} s · sweep {ours:5.2f} s, {plain / ours:.1f} × · largest difference {gap:.1e}"
            f" · to first order {quick:.2f} s, {plain / quick:.0f} × (with the check of 20 heads {plain / checked:.0f} ×)"
        )
    places = [(one.layer, one.head) for one in found.heads]
    rank = spearman_rho(
        [one.logit_difference for one in found.heads],
        [float(slopes.heads[layer]["logit_difference"][head]) for layer, head in places],
    )
    print(f"rank correlation of first order and exact over all heads: {rank:+.2f}")
    for name, ratios in (("sweep", exact), ("to first order", first), ("to first order, checked", whole)):
        print(f"{name}: {statistics.median(ratios):.1f} × faster than the loop (median of {ROUNDS})")


if __name__ == "__main__":
    main()
