"""The attention weights of several texts in one pass through a checkpoint, a layer at a time, on the model's device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from attnctl import attention
from attnctl.attention import Array, Call
from attnctl.models.huggingface.batches.packed_linear import packed_products, packing_mode
from attnctl.models.huggingface.batches.padded_batch import padded_inputs
from attnctl.models.huggingface.checkpoint import Checkpoint
from attnctl.tokens import Token

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from attnctl.models.huggingface.attention_sites import Site

Take = Callable[[int, Array], None]  # called with a layer and its weights (batch, heads, n, n), padding at the end


# of each network, the longest pass in which its own kernel was held against ours: without padding, and with
_checked_lengths: WeakKeyDictionary[PreTrainedModel, dict[bool, int]] = WeakKeyDictionary()


class _LastLayerSeenError(Exception):
    """Leaves the network: nothing that follows is wanted."""


def weights_of_several(model: Checkpoint, texts: Sequence[Sequence[Token]], take: Take) -> None:
    """Hand each layer's weights to `take`, then leave the network. Raises AttnctlError where a text cannot be read."""
    from attnctl.models.huggingface.attention_interface import watch_attention
    from attnctl.models.huggingface.attention_session import WatchOptions
    from attnctl.models.huggingface.files.network import running_network

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
