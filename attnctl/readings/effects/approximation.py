"""Effects to first order: every head and edge at once, and how far that can be trusted."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnctl.arrays import Floats
from attnctl.errors import UsageError
from attnctl.readings.effects.ablation import EffectRequest, FirstOrder, Gauge, Tick, Watched, chosen_heads, with_heads
from attnctl.readings.effects.effects import EdgeEffect, Effect, Effects, Outcome
from attnctl.readings.effects.rank_correlation import spearman_rho

if TYPE_CHECKING:
    from attnctl.text import Document

CHECKED = 20  # heads that are ablated exactly as well


def approximate_effects(found: Effects, watched: Watched, ask: EffectRequest, gauge: Gauge, tick: Tick) -> Effects:
    """The effects of every head and every edge to first order, with their rank correlation to exact ablation.

    Raises UsageError where there is no prediction to take the gradient of.
    """
    if gauge.target is None:
        raise UsageError(f"--approximate follows a prediction back, and {watched.info.name} makes none")
    if gauge.against is not None and len(gauge.against.ids) > 1:
        raise UsageError("--approximate takes one token for --against: leave it out, or ablate exactly")
    jobs = chosen_heads(watched, ask)
    slopes = watched.gradients(gauge.target, gauge.against)
    effects = [
        _effect_of_values({name: values[head] for name, values in slopes.heads[layer].items()}) for layer, head in jobs
    ]
    found = with_heads(found, watched, jobs, effects)
    found = replace(found, edges=_edge_effects(found, ask, slopes))
    first = found.strongest(CHECKED)
    exact = []
    for effect in gauge.effects_of_changes(
        [watched.base.with_head(one.layer, one.head) for one in sorted(first, key=_head_place)]
    ):
        exact.append(effect.signed_size)
        tick(len(exact), len(first))
    rank = spearman_rho([one.effect.signed_size for one in sorted(first, key=_head_place)], exact)
    return replace(found, approximation=None if rank is None else (rank, len(first)))


def _head_place(one: Any) -> tuple[int, int]:
    return one.layer, one.head


def _effect_of_values(values: Document) -> Effect:
    difference = values.get("logit_difference")
    return Effect(float(values["log_probability"]), None if difference is None else float(difference), None, Outcome())


def _edge_effects(found: Effects, ask: EffectRequest, slopes: FirstOrder) -> tuple[EdgeEffect, ...]:
    """Each key of the watched query, in the layers and heads that were chosen."""
    sums: dict[str, Floats] = {}
    square = found.reads_itself
    for layer, numbers in slopes.edges.items():
        if ask.layers is not None and layer not in ask.layers:
            continue
        for name, values in numbers.items():
            chosen = values if ask.heads is None else values[[head for head in ask.heads if head < len(values)]]
            own = slice(len(found.tokens)) if square else slice(None)  # no slot is an edge to a token
            sums[name] = sums.get(name, 0) + chosen.sum(axis=0)[own]  # (n_k,)
    n_k = found.query + 1 if found.model.causal and square else len(found.tokens if square else found.key_axis)
    return tuple(
        EdgeEffect(found.query, key, _effect_of_values({name: values[key] for name, values in sums.items()}))
        for key in range(n_k)
    )
