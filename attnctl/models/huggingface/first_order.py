"""First-order effects of heads and edges on a prediction: one forward, and one backward for each number.

The numbers are a log-probability and a difference of logits. Source: attribution patching (Nanda 2023; Kramár et al. 2024).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from attnctl import attention
from attnctl.attention import Array, Call
from attnctl.layer.interventions import Intervention, context_instead
from attnctl.models.huggingface.attention_interface import WatchOptions, watch_attention
from attnctl.models.huggingface.attention_sites import Site
from attnctl.models.huggingface.intervention import apply_interventions
from attnctl.models.huggingface.output_projections import projections_watched
from attnctl.runtime.arrays import as_numpy
from attnctl.watched.effects import Word
from attnctl.watched.measure import FirstOrder

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass
class _KeptLayer:
    """The attention of one layer over one text, as part of the graph for gradients."""

    context: Array  # (1, heads, n_q, d_v)
    weights: Array  # of the watched query: (heads, n_k)
    values: Array  # (heads, n_k, d_v)
    projected: Array | None = None  # input of the output projection: (1, n_q, heads · d_v)


def first_order_effects(
    network: PreTrainedModel,
    kind: str,
    base: Intervention,
    query: int,
    run: Callable[[], Array],
    target: Word,
    against: Word | None,
) -> FirstOrder:
    """Return the effect of ablating each head as `base.how` says, and of cutting the edge from the query to each key.

    `run` runs the network over one text with gradients, and returns the logits from the watched position on: (1 +
    continuation, vocabulary).
    """
    kept_layers: dict[int, _KeptLayer] = {}

    def visit_call(site: Site, call: Call) -> Array:
        steps = attention.run_call(call)
        context = steps.context if steps.context.requires_grad else steps.context.requires_grad_()
        values = attention.share_heads(call.values, call.queries.shape[-3])[0].detach()
        kept_layers[site.layer] = _KeptLayer(context, steps.weights[0, :, query].detach(), values)
        return context

    def keep_projected(site: Site, rows: Array) -> None:
        kept_layers[site.layer].projected = rows

    with ExitStack() as stack:
        stack.enter_context(apply_interventions(network, [base], kind))
        options = WatchOptions(replaces=True)
        stack.enter_context(watch_attention(network, visit_call, lambda site: site.kind == kind, options))
        if base.how != "zero":  # a replaced head is 0 before and after a gate
            stack.enter_context(projections_watched(network, keep_projected, kind))
        logits = run()
    numbers = {"log_probability": _sum_of_word(torch.log_softmax(logits, -1), target)}
    if against is not None and not against.ids:
        numbers["logit_difference"] = _sum_of_word(logits, target) - _sum_of_word(logits, against)
    head_inputs = {
        layer: part.context if part.projected is None else part.projected for layer, part in kept_layers.items()
    }
    effects = FirstOrder()
    for name, number in numbers.items():
        slopes = torch.autograd.grad(
            number, [*(part.context for part in kept_layers.values()), *head_inputs.values()], retain_graph=True
        )
        for index, (layer, part) in enumerate(kept_layers.items()):
            of_heads = _effect_of_heads(base, layer, part, slopes[len(kept_layers) + index])
            effects.heads.setdefault(layer, {})[name] = as_numpy(of_heads)
            of_edges = _effect_of_edges(part, slopes[index][0, :, query])  # (heads, n_k)
            effects.edges.setdefault(layer, {})[name] = as_numpy(of_edges)
    return effects


def _sum_of_word(numbers: Array, word: Word) -> Array:
    """Return the sum of the numbers of a word's tokens: (1 + continuation, vocabulary) → ()."""
    return sum(
        (numbers[position, number] for position, number in enumerate(word.all_ids)),
        torch.zeros((), device=numbers.device),
    )


def _effect_of_heads(base: Intervention, layer: int, kept_layer: _KeptLayer, slope: Array) -> Array:
    """Return (replacement - context) · gradient of each head, summed over positions: (heads,).

    `slope` is the gradient of the context (1, heads, n_q, d_v), or of the projection's input (1, n_q, heads · d_v).
    """
    context = kept_layer.context.detach()  # (1, heads, n_q, d_v)
    if kept_layer.projected is not None:
        heads, n_q = context.shape[1:3]
        context, slope = (
            part.reshape(1, n_q, heads, -1).transpose(1, 2) for part in (kept_layer.projected.detach(), slope)
        )
    replacement = context_instead(context, base, layer)  # (1, heads, n_q or 1, d_v)
    return ((replacement - context) * slope).sum((0, 2, 3))


def _effect_of_edges(kept_layer: _KeptLayer, slope: Array) -> Array:
    """Return the effect of cutting the edge from the query to each key; the other keys share its weight: (heads, n_k).

    The context then moves by w / (1 - w) · (context - value); a query never loses its only key.
    """
    weights, values = kept_layer.weights, kept_layer.values  # (heads, n_k), (heads, n_k, d_v)
    context = torch.einsum("hk,hkd->hd", weights, values)  # (heads, d_v)
    along = torch.einsum("hd,hd->h", context, slope)[:, None]  # (heads, 1)
    along = along - torch.einsum("hkd,hd->hk", values, slope)  # (heads, n_k)
    other_weights = 1 - weights  # (heads, n_k)
    odds = torch.where(
        other_weights > 1e-6, weights / other_weights.clamp(min=1e-6), torch.zeros_like(weights)
    )  # (heads, n_k)
    return odds * along
