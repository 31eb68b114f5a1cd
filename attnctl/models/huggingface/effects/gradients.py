"""Every head's and every edge's effect at once, to first order: gradient × what the intervention would change.

One forward, one backward for each number (log-probability, logit difference). Source: attribution patching (Nanda 2023;
Kramár et al. 2024).
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import torch

from attnctl import attention
from attnctl.arrays import as_numpy
from attnctl.attention import Array, Call
from attnctl.interventions import Intervention
from attnctl.models.huggingface.attention_interface import watch_attention
from attnctl.models.huggingface.attention_session import WatchOptions
from attnctl.models.huggingface.attention_sites import Site
from attnctl.models.huggingface.effects.intervention import Applied, apply_interventions
from attnctl.models.huggingface.effects.replay import logits_of
from attnctl.models.huggingface.family_traits import gated_projections
from attnctl.models.huggingface.files.network import running_network
from attnctl.readings.effects.ablation import FirstOrder
from attnctl.readings.effects.effects import Word

if TYPE_CHECKING:
    from attnctl.models.huggingface.effects.watched import WatchedNetwork


@dataclass
class _Kept:
    """What each layer's attention made of one text, part of the graph."""

    contexts: dict[int, Array] = field(default_factory=dict)  # (1, heads, n_q, d_v)
    weights: dict[int, Array] = field(default_factory=dict)  # of the watched query: (heads, n_k)
    values: dict[int, Array] = field(default_factory=dict)  # (heads, n_k, d_v)
    sites: dict[int, Site] = field(default_factory=dict)
    gated: dict[int, Array] = field(default_factory=dict)  # what a gate let through: (1, n_q, heads · d_v)


def first_order(watched: WatchedNetwork, target: Word, against: Word | None) -> FirstOrder:
    """The first-order effect of ablating each head as `watched.base` says how, and of cutting each key from the query."""
    kept = _Kept()
    with (
        running_network(watched.network, len(watched.tokens), watched.info.name),
        torch.inference_mode(False),
        torch.enable_grad(),
    ):
        said = _watched_logits(watched, target, kept)
        numbers = {"log_probability": _sum_of_word(torch.log_softmax(said, -1), target)}
        if against is not None and len(against.ids) == 1:
            numbers["logit_difference"] = _sum_of_word(said, target) - _sum_of_word(said, against)
        layers, gated = sorted(kept.contexts), sorted(kept.gated)
        arrays = [*(kept.contexts[layer] for layer in layers), *(kept.gated[layer] for layer in gated)]
        found = FirstOrder()
        for name, number in numbers.items():
            slopes = torch.autograd.grad(number, arrays, retain_graph=True)
            behind = dict(zip(gated, slopes[len(layers) :], strict=True))
            for layer, slope in zip(layers, slopes[: len(layers)], strict=True):
                of_heads = _of_heads(watched.base, kept, layer, behind.get(layer, slope))
                found.heads.setdefault(layer, {})[name] = as_numpy(of_heads)
                of_edges = as_numpy(_of_edges(kept, layer, slope[0, :, watched.query]))  # (heads, n_k)
                found.edges.setdefault(layer, {})[name] = of_edges
    return found


def _watched_logits(watched: WatchedNetwork, target: Word, kept: _Kept) -> Array:
    """The logits from the watched position on: (1 + continuation, vocabulary)."""

    def visit_call(site: Site, call: Call) -> Array:
        steps = attention.run_call(call)
        context = steps.context if steps.context.requires_grad else steps.context.requires_grad_()
        kept.contexts[site.layer], kept.sites[site.layer] = context, site
        kept.weights[site.layer] = steps.weights[0, :, watched.query].detach()
        kept.values[site.layer] = attention.share_heads(call.values, call.queries.shape[-3])[0].detach()
        return context

    def keep_gated(layer: int, _: object, args: tuple[Array, ...]) -> None:
        kept.gated[layer] = args[0]

    more = len(target.ids) - 1
    with (
        ExitStack() as stack,
        apply_interventions(watched.network, [watched.base], watched.kind),
        watch_attention(
            watched.network, visit_call, lambda site: site.kind == watched.kind, WatchOptions(replaces=True)
        ),
    ):
        for site, projection in gated_projections(watched.network).values() if watched.base.how != "zero" else ():
            if site.kind == watched.kind:
                stack.callback(projection.register_forward_pre_hook(partial(keep_gated, site.layer)).remove)
        logits = logits_of(watched.network(**watched.inputs(target.ids[:-1])))[0]  # (positions, vocabulary)
    first = logits.shape[0] - more - watched.tail
    return logits[first : first + 1 + more]


def _sum_of_word(said: Array, word: Word) -> Array:
    """The sum over a word's tokens of what is said of them: (1 + continuation, vocabulary) → ()."""
    return sum((said[at, number] for at, number in enumerate(word.ids)), torch.zeros((), device=said.device))


def _of_heads(base: Intervention, kept: _Kept, layer: int, slope: Array) -> Array:
    """(what takes the place of each head's context - the context) · gradient, over positions: (heads,).

    `slope` is of the context (1, heads, n_q, d_v), or where a gate follows of what it let through (1, n_q, heads · d_v).
    """
    context = kept.contexts[layer].detach()  # (1, heads, n_q, d_v)
    if layer in kept.gated:
        heads, n_q = context.shape[1:3]
        context, slope = (
            part.reshape(1, n_q, heads, -1).transpose(1, 2) for part in (kept.gated[layer].detach(), slope)
        )
    instead = Applied([base]).context_instead(base, kept.sites[layer], context)  # (1, heads, n_q, d_v)
    return ((instead - context) * slope).sum((0, 2, 3))


def _of_edges(kept: _Kept, layer: int, slope: Array) -> Array:
    """Each key cut from the query, its weight shared among the rest: (heads, n_k).

    The context then moves by w / (1 - w) · (context - value); a query never loses its only key.
    """
    weights, values = kept.weights[layer], kept.values[layer]  # (heads, n_k), (heads, n_k, d_v)
    context = torch.einsum("hk,hkd->hd", weights, values)  # (heads, d_v)
    along = torch.einsum("hd,hd->h", context, slope)[:, None]  # (heads, 1)
    along = along - torch.einsum("hkd,hd->hk", values, slope)  # (heads, n_k)
    rest = 1 - weights  # (heads, n_k)
    odds = torch.where(rest > 1e-6, weights / rest.clamp(min=1e-6), torch.zeros_like(weights))  # (heads, n_k)
    return odds * along
