"""Ablate heads and cut edges in any torch module while it runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from attnctl.attention import Array
from attnctl.errors import AttnctlError, UsageError
from attnctl.layer.interventions import Intervention, hidden_edges, replaced_heads
from attnctl.models.torch.fused import Changed, softmax_or_zero
from attnctl.models.torch.traced_call import TracedCall
from attnctl.models.torch.watching import AnyCall, check_seen, watch_module

if TYPE_CHECKING:
    from torch.nn import Module

    from attnctl.models.torch.sites import Place


@contextmanager
def apply_to_module(model: Module, intervention: Intervention, kind: str | None = None) -> Iterator[Intervention]:
    """Apply an intervention in a module within this context; `kind` picks self or cross attention (None: both).

    Raises UsageError at the end of the context for a layer that did not attend, AttnctlError if no attention was seen.
    """
    changes = ModuleChanges(intervention, kind)
    with watch_module(model, changes) as watched:
        yield intervention
    check_seen(watched)
    if watched.count:
        changes.check_layers(watched.name)


@dataclass(eq=False)
class ModuleChanges:
    """An intervention at work in a module, and the layers that it has seen."""

    intervention: Intervention
    kind: str | None
    layers: set[int] = field(default_factory=set)

    def see(self, place: Place, call: AnyCall) -> Changed | None:
        """Return the output of a call with edges cut and heads replaced; None if nothing changes."""
        if self.kind not in (None, place.kind):
            return None
        self.layers.add(place.layer)
        if not self.intervention.in_layer(place.layer):
            return None
        changed = self.cut(place, call)
        if not self.intervention.heads.get(place.layer):
            return changed
        if place.chunk is not None and self.intervention.how != "zero":
            raise AttnctlError(
                f"{place.name} attends with a part of its queries at a time, where heads can only be replaced by 0"
            )
        context = call.context() if changed is None else call.arranged_output(changed.output)
        past = call.shape[2] - call.shape[1] if place.kind == "self" and place.chunk is None else 0
        output = call.with_context(replaced_heads(context, self.intervention, place.layer, past))
        return Changed(output, None if changed is None else changed.weights)

    def cut(self, place: Place, call: AnyCall) -> Changed | None:
        """Return the output of a call whose edges are cut before the softmax; None if none is."""
        cuts = [cut for cut in self.intervention.cuts if cut.in_layer(place.layer)]
        if not cuts:
            return None
        n_heads, n_q, n_k = call.shape
        start, total = place.chunk or (0, n_q)
        if place.kind == "cross":  # keys of another text, counted from its own end
            cuts = [
                replace(
                    cut,
                    keys=tuple(key % n_k if -n_k <= key < n_k else n_k for key in cut.keys),
                    queries=cut.queries and tuple(query + total if query < 0 else query for query in cut.queries),
                )
                for cut in cuts
            ]
        past = n_k - total if place.kind == "self" else 0
        hidden = hidden_edges(replace(self.intervention, cuts=tuple(cuts)), place.layer, (n_heads, total, n_k), past, 0)
        if not hidden[:, start : start + n_q].any():
            return None
        diagonal = torch.arange(start, start + n_q)[:, None] + past == torch.arange(n_k)  # (n_q, n_k)
        where = torch.as_tensor(hidden[:, start : start + n_q])  # (heads, n_q, n_k)
        weights = weights_without(call, where, diagonal)
        return Changed(call.with_weights(weights), weights)

    def check_layers(self, name: str) -> None:
        """Raise UsageError for a layer of the intervention that did not attend."""
        asked = set(self.intervention.heads)
        for cut in self.intervention.cuts:
            asked |= set(cut.layers or ())
        for layer in sorted(asked - self.layers):
            layers = sorted(self.layers)
            where = f"layers {layers[0]} to {layers[-1]}" if layers else f"no {self.kind} layer"
            raise UsageError(f"{name} attended in {where}", option="layer", value=layer)


def weights_without(call: AnyCall, hidden: Array, diagonal: Array) -> Array:
    """Return the weights (batch, heads, n_q, n_k) with keys hidden before the softmax; a query without keys sees itself.

    `hidden` (heads, n_q, n_k) and `diagonal` (n_q, n_k) are true at these keys, and at the key of the query itself.
    """
    scores, factor = call.masked_scores(), None
    if scores is None and isinstance(call, TracedCall) and call.is_scaled and call.changed is None:
        scores = call.read_by_softmax()
    if scores is not None and isinstance(call, TracedCall) and call.is_scaled:  # each weight keeps its gate
        shares = softmax_or_zero(scores)
        factor = torch.where(shares > 0, call.steps().weights / shares, 0.0)
    if scores is None:  # of weights that the model changed after the softmax: the others share what is freed
        weights = call.steps().weights
        rest = weights.masked_fill(hidden.to(weights.device), 0.0)
        sink = (1 - weights.double().sum(-1, keepdim=True)).clamp(min=0.0)
        sink = sink.where(sink > SINK, 0.0).to(weights)  # less is rounding
        mass = rest.sum(-1, keepdim=True) + sink
        shared = rest / mass.where(mass > 0, 1.0)
        lost = (weights.sum(-1, keepdim=True) > 0) & (mass == 0)
    else:
        hidden, lowest = hidden.to(scores.device), torch.finfo(scores.dtype).min / 2
        sees = (scores > lowest).any(-1, keepdim=True)
        shared_scores = scores.masked_fill(hidden & sees, -math.inf)
        lost = sees & ~(shared_scores > lowest).any(-1, keepdim=True)
        shared = softmax_or_zero(shared_scores)
    shared = torch.where(lost, diagonal.to(shared), shared)
    return shared if factor is None else shared * factor


SINK = 1e-5  # the smallest share of a row that is taken for a sink's


def check_layer_numbers(layers: Sequence[int]) -> None:
    """Raise UsageError for a layer that is counted from the end: their number is known only after the model ran."""
    if layers and min(layers) < 0:
        why = "the layers of a torch module are known only after they ran: count from 0"
        raise UsageError(why, option="layer", value=min(layers))
