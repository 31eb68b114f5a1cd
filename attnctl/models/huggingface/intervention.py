"""Ablate heads and cut edges inside any transformers model while it runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from attnctl.attention import Array, Call
from attnctl.errors import AttnctlError
from attnctl.layer.interventions import Intervention, cut_edges, replaced_heads, seen_keys
from attnctl.models.huggingface.attention_interface import (
    WatchOptions,
    WatchSession,
    architecture_name,
    watch_attention,
)
from attnctl.models.huggingface.attention_sites import Site, unseen_sentence
from attnctl.models.huggingface.output_projections import projections_watched

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@contextmanager
def apply_interventions(
    model: PreTrainedModel, interventions: Sequence[Intervention], kind: str | None = None
) -> Iterator[None]:
    """Apply `interventions` in `model` within this context: one for all rows of a batch, or one for each row."""
    if all(intervention.changes_nothing for intervention in interventions):
        yield
        return
    change = Applied(interventions)

    def wants(site: Site) -> bool:
        return kind in (None, site.kind) and any(intervention.in_layer(site.layer) for intervention in interventions)

    with (
        watch_attention(
            model, lambda *_: None, wants, WatchOptions(change.change_call, change.change_context)
        ) as session,
        _count_past(model, change, session),
        _replaced_in_projections(model, change, session),
    ):
        yield
        # an attention outside the layers (the pooling head of SigLIP) has none of these heads
        within = {site: name for site, name in session.silent.items() if any(map(str.isdigit, site.name.split(".")))}
        if silent := unseen_sentence({site: name for site, name in within.items() if wants(site)}):
            raise AttnctlError(f"{session.architecture}: {silent.replace('is not shown', 'cannot be changed')}")


@dataclass
class Applied:
    """Interventions at work: change each call and its context. The first `past` tokens are in the cache."""

    interventions: Sequence[Intervention]
    past: int = 0
    means: dict[Site, Array] = field(default_factory=dict)  # of the prompt: (batch, heads, 1, d_v)
    real: dict[Site, Array | None] = field(default_factory=dict)  # positions without padding in this forward
    # ids of modules whose context is replaced in the input of their projection
    projected: frozenset[int] = frozenset()
    # id of a module that attended → its site, its context's shape
    waiting: dict[int, tuple[Site, torch.Size]] = field(default_factory=dict)

    def change_call(self, site: Site, call: Call) -> Call:
        """Return the call with the edges of each intervention cut."""
        may_be_padded = call.mask is not None and call.mask.ndim == 3 and call.n_q == call.n_k
        self.real[site] = seen_keys(call).any(-2) if may_be_padded else None  # (batch, n)
        return cut_edges(call, self.interventions, site.layer, self.past)

    def change_context(self, site: Site, context: Array) -> Array:
        """Return the context with the heads that are off replaced, except if that is done in its projection: same shape."""
        if site.module in self.projected:
            self.waiting[site.module] = site, context.shape
            return context
        return self._replaced(site, context)

    def change_projected(self, module: Site, rows: Array) -> Array | None:
        """Return the input of a module's output projection with the heads that are off replaced: the same shape."""
        if module.module not in self.waiting:
            return None
        site, shape = self.waiting.pop(module.module)
        context = rows.reshape(shape[0], shape[2], shape[1], -1).transpose(1, 2)  # (batch, heads, n_q, d_v)
        changed: Array = self._replaced(site, context).transpose(1, 2).reshape(rows.shape)
        return changed

    def _replaced(self, site: Site, context: Array) -> Array:
        if not any(intervention.heads.get(site.layer) for intervention in self.interventions):
            return context
        mean = self.mean_of_text(site, context)  # (batch, heads, 1, d_v)
        if len(self.interventions) == 1:
            return replaced_heads(context, self.interventions[0], site.layer, self.past, mean)
        rows = (slice(row, row + 1) for row in range(len(self.interventions)))
        changed = [
            replaced_heads(context[row], intervention, site.layer, self.past, mean[row])
            for row, intervention in zip(rows, self.interventions, strict=True)
        ]
        return torch.cat(changed)  # (batch, heads, n_q, d_v)

    def mean_of_text(self, site: Site, context: Array) -> Array:
        """Return the mean context over the prompt's positions without padding: (batch, heads, 1, d_v)."""
        if self.past == 0 or site not in self.means:
            real = self.real.get(site)
            share = context.new_ones(1, 1, context.shape[2], 1) if real is None else real[:, None, :, None].to(context)
            self.means[site] = (context * share).sum(2, keepdim=True) / share.sum(2, keepdim=True).clamp(min=1)
        return self.means[site]


@contextmanager
def _count_past(model: PreTrainedModel, change: Applied, session: WatchSession) -> Iterator[None]:
    """Set `change.past` to the number of tokens in the cache when each forward begins, within this context."""

    def note_cache_length(_: object, __: object, keywords: dict[str, object]) -> None:
        if not session.hears(model):
            return
        # its names from transformers 5.24 on, and before
        cache = keywords.get("cache", keywords.get("past_key_values"))
        change.past = int(cache.get_seq_length()) if hasattr(cache, "get_seq_length") else 0
        change.real.clear()

    hook = model.register_forward_pre_hook(note_cache_length, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def _replaced_in_projections(model: PreTrainedModel, change: Applied, session: WatchSession) -> Iterator[None]:
    """Replace heads in the input of their output projection, after a gate; not for zeros, which a gate keeps."""
    if not any(intervention.how != "zero" and intervention.heads for intervention in change.interventions):
        yield
        return

    def change_projected(module: Site, rows: Array) -> Array | None:
        return change.change_projected(module, rows) if session.hears(model) else None

    with projections_watched(model, change_projected) as change.projected:
        yield
        if change.waiting:
            name = architecture_name(model)
            raise AttnctlError(
                f"{name} has heads that its output projection does not read: they can only be replaced by 0"
            )


@contextmanager
def projected_contexts_kept(model: PreTrainedModel, kind: str, contexts: dict[int, Array]) -> Iterator[None]:
    """Replace contexts, layer → (heads, n, d_v), by what their output projection reads, within this context."""

    def keep_projected(site: Site, rows: Array) -> None:
        heads, n, d_v = contexts[site.layer].shape
        contexts[site.layer] = rows.reshape(n, heads, d_v).transpose(0, 1)  # (heads, n, d_v)

    with projections_watched(model, keep_projected, kind):
        yield
