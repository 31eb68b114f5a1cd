"""Several texts through a checkpoint at once: padded to one length, and recorded as if each were alone."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast
from weakref import WeakKeyDictionary

import numpy as np

from attnctl import attention, limits
from attnctl.arrays import as_numpy
from attnctl.attention import Array, Call
from attnctl.errors import AttnctlError
from attnctl.layer import LayerAttention, Run, StopForward
from attnctl.layer.computed import ComputedLayer
from attnctl.models.huggingface.attention_session import attention_modules
from attnctl.models.huggingface.checkpoint import Checkpoint
from attnctl.models.huggingface.packed_linear import packed_products, packing_mode
from attnctl.models.huggingface.run_notes import RunNotes
from attnctl.tokens import Token

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from attnctl.models.huggingface.attention_session import Output, Site
    from attnctl.source import Model


Visit = Callable[[LayerAttention], None]

CLOSE = {"float32": 1e-4}  # how near a text's weights must be to those it has alone; of other dtypes:
ROUGH = 5e-2


def can_batch(model: Model) -> bool:
    """Whether texts may share a forward pass: a checkpoint that reads one text, and lets its attention be seen."""
    if not isinstance(model, Checkpoint) or model.kind != "self" or model.generate:
        return False
    if model.predict is not None or model.intervention is not None:
        return False
    from attnctl.models.huggingface.attention_interface import model_follows_interface

    return model_follows_interface(model.network) and not picks_keys(model.network)


def picks_keys(network: PreTrainedModel) -> bool:
    """Whether attention takes the best so many keys (DeepSeek-V3.2, Doge): others beside padding.

    Told by the code of the modules that attend, and of what they hold.
    """
    kinds = {type(part) for module in attention_modules(network).values() for part in module.modules()}
    return any("topk(" in _source_of_class(kind) for kind in cast(set[Hashable], kinds))


@cache
def _source_of_class(kind: Hashable) -> str:
    try:
        return inspect.getsource(cast(type, kind))
    except (OSError, TypeError):
        return ""


class SharedPasses:
    """How many texts share each pass through a model: at most `most`, and limits.PASS_TOKENS tokens, padding and all.

    Padding is tried wherever a pass is longer than those tried before: where it changes weights, as no architecture
    should let it, only texts of one length go together.
    """

    def __init__(self, model: Model, most: int) -> None:
        self.model, self.most = model, most if most > 1 and can_batch(model) else 1
        self._sound_to, self._changed_from = 0, math.inf  # lengths of passes, in tokens

    def next_size(self, texts: Sequence[Sequence[Token]]) -> int:
        """How many of the texts, the shortest first, go through the model next."""
        sizes = [len(tokens) for tokens in texts[: self.most]]
        fitting = sum(count * size <= limits.PASS_TOKENS for count, size in enumerate(sizes, 1)) or 1
        return fitting if self._keeps_weights(texts[:fitting]) else sizes.count(sizes[0])

    def _keeps_weights(self, texts: Sequence[Sequence[Token]]) -> bool:
        """Whether padding to the last text's length leaves the weights of the others as they are."""
        long = texts[-1]
        # one token has a weight of 1 in any company
        padded = [tokens for tokens in texts if 1 < len(tokens) < len(long)]
        if padded and self._sound_to < len(long) < self._changed_from:
            try:
                changed = padding_changes_weights(cast(Checkpoint, self.model), padded[0], long)
            except AttnctlError:  # of one of them: which, it says when it is alone
                return False
            if changed:
                self._changed_from = len(long)
            else:
                self._sound_to = len(long)
        return not padded or len(long) <= self._sound_to


def padding_changes_weights(model: Checkpoint, short: Sequence[Token], long: Sequence[Token]) -> bool:
    """Whether a text's weights change when it is padded to another's length."""
    alone, beside = _last_weights(model, [tuple(short)]), _last_weights(model, [tuple(short), tuple(long)])
    return bool(np.abs(alone - beside).max() > CLOSE.get(model.info.dtype, ROUGH))


def _last_weights(model: Checkpoint, texts: Sequence[tuple[Token, ...]]) -> Array:
    """The first text's weights in the last layer that attends: (heads, n, n)."""
    seen: list[LayerAttention] = []
    run_padded(model, texts, [seen.append, *[lambda _: None] * (len(texts) - 1)])
    return seen[-1].weights()


def run_padded(model: Checkpoint, texts: Sequence[tuple[Token, ...]], visits: Sequence[Visit]) -> list[Run]:
    """One pass; each text's visitor sees each layer's call cut to that text. Raises AttnctlError of one of them."""
    from attnctl.models.huggingface.attention_interface import watch_attention
    from attnctl.models.huggingface.attention_session import WatchOptions
    from attnctl.models.huggingface.family_traits import FamilyTraits
    from attnctl.models.huggingface.network import running_network
    from attnctl.models.huggingface.packed_linear import packed_products, packing_mode

    for tokens in texts:
        model.check_tokens(tokens)
    inputs, at = padded_inputs(model, texts)
    traits = FamilyTraits(model.network, model.kind)
    told = RunNotes(type(model.network).__name__, padded=True, traits=traits)
    over: set[int] = set()  # the texts of which all is seen

    def see_padded(site: Site, call: Call) -> Array | None:
        told.note_call(site, call)
        known = traits.traits_of_call(site, call)
        contexts: list[Array | None] = []
        for b, visit in enumerate(visits):
            layer = ComputedLayer.of_call(site.layer, _text_part(call, b, len(texts[b])), **known)
            try:
                visit(layer)
            except StopForward:
                over.add(b)
            contexts.append(None if b in over else layer.forward.context_so_far)
        if len(over) == len(visits):
            raise StopForward
        if any(context is None for context in contexts):
            return None
        whole = call.queries.new_zeros((*call.queries.shape[:-1], call.values.shape[-1]))  # (batch, heads, n, d_v)
        for b, context in enumerate(contexts):
            whole[b, :, : len(texts[b])] = context
        return whole

    output = None
    with running_network(model.network, sum(map(len, texts)), model.info.name):
        with (
            suppress(StopForward),
            packed_products(packing_mode(model.network)),
            watch_attention(
                model.network, see_padded, lambda site: site.kind == model.kind, WatchOptions(after=traits.readers)
            ) as session,
            traits.watch_traits(),
        ):
            output = model.network(**inputs)
        embeddings = as_numpy(model.network.get_input_embeddings()(inputs["input_ids"]))  # (batch, n, d_model)
    runs = []
    for b, tokens in enumerate(texts):
        own = None if output is None else SimpleNamespace(logits=_text_logits(output, b, len(tokens), at))
        ran = Run(tokens, embeddings[b, : len(tokens)])
        ran.gates = traits.gates_of_text(b, len(tokens))
        model.told_by_run(ran, told, session.silent, own)
        runs.append(ran)
    return runs


def padded_inputs(model: Checkpoint, texts: Sequence[tuple[Token, ...]]) -> tuple[dict[str, Array], list[int] | None]:
    """What the network is called with, and the positions whose logits come back (None: all of them, if any)."""
    import torch

    n, device = max(map(len, texts)), model.network.device
    pad = model.network.config.get_text_config().pad_token_id or 0
    ids = [[token.id for token in tokens] + [pad] * (n - len(tokens)) for tokens in texts]
    inputs: dict[str, object] = {"input_ids": torch.tensor(ids, device=device)}  # (batch, n)
    if any(len(tokens) < n for tokens in texts):
        there = [[1] * len(tokens) + [0] * (n - len(tokens)) for tokens in texts]
        inputs["attention_mask"] = torch.tensor(there, device=device)  # (batch, n)
    if "use_cache" in model.forward_keywords:
        inputs["use_cache"] = False
    if "logits_to_keep" not in model.forward_keywords or any(model.mask_positions(tokens) for tokens in texts):
        return inputs, None
    at = sorted({len(tokens) - 1 for tokens in texts})  # only what follows the last token is told
    return inputs | {"logits_to_keep": torch.tensor(at, device=device)}, at


def _text_logits(output: Output, b: int, n: int, at: list[int] | None) -> Array | None:
    """A text's own logits (1, positions, vocabulary), the last that of its last token."""
    logits = getattr(output, "logits", None)
    if logits is None or logits.ndim != 3:
        return None
    if at is None:
        return logits[b : b + 1, :n]
    place = at.index(n - 1)
    return logits[b : b + 1, place : place + 1]


def _text_part(call: Call, b: int, n: int) -> Call:
    """Text b's part of a call: its n queries and keys, without the batch; a mask that hides nothing is none."""

    def own_mask(part: Array | None) -> Array | None:
        """(batch or 1, …, n_q, n_k) → (…, n, n)."""
        return None if part is None else part[b if part.shape[0] > 1 else 0][..., :n, :n]

    mask = call.mask
    mask = own_mask(mask) if mask is not None and mask.ndim == 3 else None if mask is None else mask[:n, :n]
    if mask is not None and bool(mask.all()):
        mask = None
    queries, keys, values = (part[b, :, :n] for part in (call.queries, call.keys, call.values))
    bias = own_mask(call.bias) if call.bias is not None and call.bias.ndim == 4 else call.bias
    if bias is not None and not bool(bias.any()):
        bias = None  # it was of padding alone
    sinks = call.sinks if call.sinks is None or call.sinks.ndim == 1 else call.sinks[b, :, :n]  # or (heads, n)
    return replace(
        call,
        sinks=sinks,
        queries=queries,
        keys=keys,
        values=values,
        mask=mask,
        bias=bias,
        causal=call.causal and n > 1,
        offset=call.offset if n > 1 else None,
    )


Take = Callable[[int, Array], None]  # called with a layer and its weights (batch, heads, n, n), padding at the end


# of each network, the longest pass in which its own kernel was held against ours: without padding, and with
_checked_lengths: WeakKeyDictionary[PreTrainedModel, dict[bool, int]] = WeakKeyDictionary()


class _LastLayerSeenError(Exception):
    """Leaves the network: nothing that follows is wanted."""


def weights_of_several(model: Checkpoint, texts: Sequence[Sequence[Token]], take: Take) -> None:
    """Hand each layer's weights to `take`, then leave the network. Raises AttnctlError where a text cannot be read."""
    from attnctl.models.huggingface.attention_interface import watch_attention
    from attnctl.models.huggingface.attention_session import WatchOptions
    from attnctl.models.huggingface.network import running_network

    whole = [tuple(tokens) for tokens in texts]
    for tokens in whole:
        model.check_tokens(tokens)
    inputs, _ = padded_inputs(model, whole)
    last = (model.info.n_layers or 0) - 1
    n, padded = inputs["input_ids"].shape[-1], "attention_mask" in inputs
    checked = _checked_lengths.setdefault(model.network, {})
    trusted = n <= checked.get(padded, 0)

    def see_layer(site: Site, call: Call) -> Array:
        steps = attention.run_call(call)
        take(site.layer, steps.weights)
        if site.layer == last:
            raise _LastLayerSeenError
        return steps.context

    with (
        running_network(model.network, sum(map(len, whole)), model.info.name),
        packed_products(packing_mode(model.network)),
        suppress(_LastLayerSeenError),
        watch_attention(model.network, see_layer, lambda site: site.kind == model.kind, WatchOptions(trusted=trusted)),
    ):
        model.network(**inputs)
    checked[padded] = max(n, checked.get(padded, 0))
