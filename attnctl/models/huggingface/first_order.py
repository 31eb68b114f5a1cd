"""First-order effects of heads and of edges on a prediction: one forward, one backward for each number.

The numbers are a log-probability and a difference of logits. Source: attribution patching (Nanda 2023; Kramár et al. 2024).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import torch

from attnctl import attention
from attnctl.arrays import as_numpy
from attnctl.attention import Array, Call
from attnctl.interventions import Intervention, context_instead
from attnctl.models.huggingface.attention_interface import WatchOptions, watch_attention
from attnctl.models.huggingface.attention_sites import Site
from attnctl.models.huggingface.family_traits import output_projections
from attnctl.models.huggingface.intervention import apply_interventions
from attnctl.watched.effects import Word
from attnctl.watched.measure import FirstOrder

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass
class _KeptLayer:
    """What one layer's attention made of one text, part of the graph."""

    context: Array  # (1, heads, n_q, d_v)
    weights: Array  # of the watched query: (heads, n_k)
    values: Array  # (heads, n_k, d_v)
    projected: Array | None = None  # what its projection reads of the context: (1, n_q, heads · d_v)


@dataclass
class GradientPass:
    """One forward of a network under `base`, its contexts of one kind kept with their graph; one query is watched."""

    network: PreTrainedModel
    kind: str
    query: int
    base: Intervention
    layers: dict[int, _KeptLayer] = field(default_factory=dict)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Within this, what each layer's attention makes is kept."""

        def visit_call(site: Site, call: Call) -> Array:
            steps = attention.run_call(call)
            context = steps.context if steps.context.requires_grad else steps.context.requires_grad_()
            values = attention.share_heads(call.values, call.queries.shape[-3])[0].detach()
            self.layers[site.layer] = _KeptLayer(context, steps.weights[0, :, self.query].detach(), values)
            return context

        def keep_projected(layer: int, _: object, args: tuple[Array, ...]) -> None:
            self.layers[layer].projected = args[0]

        with (
            ExitStack() as stack,
            apply_interventions(self.network, [self.base], self.kind),
            watch_attention(self.network, visit_call, lambda site: site.kind == self.kind, WatchOptions(replaces=True)),
        ):
            behind = self.base.how != "zero"  # 0 is the same before what a projection reads
            for site, projection in output_projections(self.network, own=True).values():
                if behind and site.kind == self.kind:
                    stack.callback(projection.register_forward_pre_hook(partial(keep_projected, site.layer)).remove)
            yield

    def effects(self, logits: Array, target: Word, against: Word | None) -> FirstOrder:
        """Return the effect of ablating each head as `base` says how, and of cutting each key from the query.

        `logits` are those from the watched position on: (1 + continuation, vocabulary).
        """
        numbers = {"log_probability": _sum_of_word(torch.log_softmax(logits, -1), target)}
        if against is not None and not against.ids:
            numbers["logit_difference"] = _sum_of_word(logits, target) - _sum_of_word(logits, against)
        kept, layers = self.layers, sorted(self.layers)
        behind = [layer for layer in layers if kept[layer].projected is not None]
        arrays = [*(kept[layer].context for layer in layers), *(kept[layer].projected for layer in behind)]
        found = FirstOrder()
        for name, number in numbers.items():
            slopes = torch.autograd.grad(number, arrays, retain_graph=True)
            projected = dict(zip(behind, slopes[len(layers) :], strict=True))
            for layer, slope in zip(layers, slopes[: len(layers)], strict=True):
                of_heads = _effect_of_heads(self.base, layer, kept[layer], projected.get(layer, slope))
                found.heads.setdefault(layer, {})[name] = as_numpy(of_heads)
                of_edges = _effect_of_edges(kept[layer], slope[0, :, self.query])  # (heads, n_k)
                found.edges.setdefault(layer, {})[name] = as_numpy(of_edges)
        return found


def _sum_of_word(said: Array, word: Word) -> Array:
    """The sum over a word's tokens of what is said of them: (1 + continuation, vocabulary) → ()."""
    return sum((said[at, number] for at, number in enumerate(word.all_ids)), torch.zeros((), device=said.device))


def _effect_of_heads(base: Intervention, layer: int, kept: _KeptLayer, slope: Array) -> Array:
    """(what takes the place of each head's context - the context) · gradient, over positions: (heads,).

    `slope` is of the context (1, heads, n_q, d_v), or of what its projection reads (1, n_q, heads · d_v).
    """
    context = kept.context.detach()  # (1, heads, n_q, d_v)
    if kept.projected is not None:
        heads, n_q = context.shape[1:3]
        context, slope = (part.reshape(1, n_q, heads, -1).transpose(1, 2) for part in (kept.projected.detach(), slope))
    instead = context_instead(context, base, layer)  # (1, heads, n_q or 1, d_v)
    return ((instead - context) * slope).sum((0, 2, 3))


def _effect_of_edges(kept: _KeptLayer, slope: Array) -> Array:
    """Each key cut from the query, its weight shared among the rest: (heads, n_k).

    The context then moves by w / (1 - w) · (context - value); a query never loses its only key.
    """
    weights, values = kept.weights, kept.values  # (heads, n_k), (heads, n_k, d_v)
    context = torch.einsum("hk,hkd->hd", weights, values)  # (heads, d_v)
    along = torch.einsum("hd,hd->h", context, slope)[:, None]  # (heads, 1)
    along = along - torch.einsum("hkd,hd->hk", values, slope)  # (heads, n_k)
    rest = 1 - weights  # (heads, n_k)
    odds = torch.where(rest > 1e-6, weights / rest.clamp(min=1e-6), torch.zeros_like(weights))  # (heads, n_k)
    return odds * along
