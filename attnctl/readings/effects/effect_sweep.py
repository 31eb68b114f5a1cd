"""The effects that are asked for, all of one text: heads ablated in turn, edges and spans cut, or all to first order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attnctl.errors import UsageError
from attnctl.interventions import Cut, Intervention
from attnctl.readings.effects.ablation import EffectRequest, Gauge, Tick, Watched, baseline_of, chosen_heads, with_heads
from attnctl.readings.effects.approximation import approximate_effects
from attnctl.readings.effects.effects import EdgeEffect, Effect, Effects, SpanEffect
from attnctl.readings.traces.trace import reads_itself
from attnctl.text import number_list


def measure_effects(watched: Watched, ask: EffectRequest, tick: Tick = lambda done, of: None) -> Effects:
    """Everything asked for, over one text. Raises UsageError and AttnctlError in one line for what cannot be."""
    gauge = Gauge.of_request(watched, ask)
    found = baseline_of(watched, ask, gauge)
    if ask.approximate:
        return approximate_effects(found, watched, ask, gauge, tick)
    jobs = chosen_heads(watched, ask) if ask.sweep_heads else []
    edges, spans = _edges_to_cut(watched, ask), _spans_to_cut(watched, ask)
    changes = [
        *(watched.base.with_head(*place) for place in jobs),
        *(cuts for *_, cuts in edges),
        *(c for *_, c in spans),
    ]
    effects: list[Effect] = []
    for effect in gauge.effects_of_changes(changes):
        effects.append(effect)
        tick(len(effects), len(changes))
    if jobs:
        found = with_heads(found, watched, jobs, effects[: len(jobs)])
    rest = effects[len(jobs) :]
    places = (("layer", ask.layers), ("head", ask.heads))
    named = [f"{name}{'s' * (len(some) > 1)} {number_list(some)}" for name, some in places if some is not None]
    note = (f"Cut in {', '.join(named)} alone: elsewhere the key is seen.",) if named and rest else ()
    return replace(
        found,
        notes=(*found.notes, *note),
        edges=tuple(EdgeEffect(query, key, effect) for (query, key, _), effect in zip(edges, rest, strict=False)),
        spans=tuple(
            SpanEffect(name, start, end, effect)
            for (name, start, end, _), effect in zip(spans, rest[len(edges) :], strict=True)
        ),
    )


def _edges_to_cut(watched: Watched, ask: EffectRequest) -> list[tuple[int, int | None, Intervention]]:
    """(query, key, what to cut): each edge by itself, and all those that are named together."""
    pairs, square = list(ask.edges), reads_itself(watched.tokens, watched.key_tokens, watched.info)
    if ask.every_edge:
        row = np.max([weights.max(axis=0) for weights in watched.query_weights().values()], axis=0)  # (n_k,)
        row = row[: len(watched.tokens)] if square else row
        pairs += [(watched.query, key) for key in range(len(row)) if row[key] > 0]
    for query, key in pairs:
        if square and key >= len(watched.tokens):
            name = (watched.key_tokens or watched.tokens)[key].text
            raise UsageError(f"no edge to {name!r}: it is no token, but several in one")
        if square and watched.info.causal and key > query:
            one, other = watched.tokens[query].text, watched.tokens[key].text
            raise UsageError(f"no edge {one!r} → {other!r}: it looks into the future, which {watched.info.name} hides")
    cuts = [(query, key, _cut_of(ask, (key,), (query,))) for query, key in pairs]
    found: list[tuple[int, int | None, Intervention]] = [(q, k, watched.base.with_cuts(cut)) for q, k, cut in cuts]
    if len(ask.edges) > 1:
        together = [cut for *_, cut in cuts[: len(ask.edges)]]
        found.append((ask.edges[0][0], None, watched.base.with_cuts(*together)))
    return found


def _spans_to_cut(watched: Watched, ask: EffectRequest) -> list[tuple[str, int, int, Intervention]]:
    square = reads_itself(watched.tokens, watched.key_tokens, watched.info)
    queries = None if square else (watched.query,)
    return [
        (name, tokens[0], tokens[-1] + 1, watched.base.with_cuts(_cut_of(ask, tokens, queries)))
        for name, tokens in ask.spans
    ]


def _cut_of(ask: EffectRequest, keys: tuple[int, ...], queries: tuple[int, ...] | None) -> Cut:
    layers = None if ask.layers is None else frozenset(ask.layers)
    return Cut(keys, queries, layers, None if ask.heads is None else frozenset(ask.heads))
