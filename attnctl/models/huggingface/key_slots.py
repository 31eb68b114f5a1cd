"""Keys that stand for several tokens at once, as DeepSeek-V4 compresses them: columns of their own, named by what they hold.

Source: DeepSeek-V4 2026, compressed sparse attention (slots that overlap by half) and heavily compressed attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from attnctl.attention import Array, Call
from attnctl.errors import AttnctlError
from attnctl.models.huggingface.attention_sites import sites_of_modules
from attnctl.text import number_list
from attnctl.tokens import Token

if TYPE_CHECKING:
    from transformers import PreTrainedModel


Span = tuple[int, int]  # the first and the last token that a slot holds


@dataclass(frozen=True)
class KeySlots:
    """The compressed slots of one text: those of each layer that has any, and all of them, which follow the text's keys."""

    n: int  # tokens of the text
    of_layer: dict[int, tuple[Span, ...]]

    @property
    def every_span(self) -> tuple[Span, ...]:
        """Every slot that some layer has, in the order of the columns."""
        return tuple(sorted({span for spans in self.of_layer.values() for span in spans}))

    def tokens_of_slots(self, tokens: Sequence[Token]) -> tuple[Token, ...] | None:
        """The tokens and after them the slots, as "0–3 compressed"; None where there are no slots."""
        slots = (Token(f"{first}–{last} compressed", special=True) for first, last in self.every_span)
        return (*tokens, *slots) if self.every_span else None

    def slots_sentence(self) -> str:
        """What the slots are, for a reader of the table."""
        first, last = self.every_span[0]
        layers = sorted(layer for layer, spans in self.of_layer.items() if spans)
        whose = f"Layer {layers[0]} has" if len(layers) == 1 else f"Layers {number_list(layers)} have"
        return (
            f"{whose} compressed slots beside the tokens: the key “{first}–{last} compressed” holds tokens {first}–{last} "
            "compressed into one; a slot that a layer lacks is masked there."
        )

    def columns(self, layer: int) -> list[int]:
        """The column of each key of a layer."""
        places = {span: self.n + at for at, span in enumerate(self.every_span)}
        return [*range(self.n), *(places[span] for span in self.of_layer.get(layer, ()))]

    def widened_call(self, layer: int, call: Call) -> Call:
        """The call (batch first) with a key for every slot: those that the layer lacks are hidden.

        Raises AttnctlError where its keys are not the tokens and the slots that are known of the layer.
        """
        if not self.every_span:
            return call
        if call.n_k != len(self.columns(layer)):
            raise AttnctlError(
                f"layer {layer} has {call.n_k} keys for {self.n} tokens and {len(self.columns(layer)) - self.n} "
                "compressed slots"
            )
        mask = call.queries.new_ones(1, call.n_q, call.n_k).bool() if call.mask is None else call.mask
        parts = {"keys": (call.keys, -2), "values": (call.values, -2), "mask": (mask, -1), "bias": (call.bias, -1)}
        wide = {name: self.widened(layer, part, axis) for name, (part, axis) in parts.items() if part is not None}
        return replace(call, **wide, offset=0)

    def widened(self, layer: int, array: Array, axis: int = -1) -> Array:
        """A tensor with zeros (false) along its axis of keys for every slot that a layer lacks; an axis of 1 stays."""
        if not self.every_span or array.shape[axis] == 1:
            return array
        columns = torch.tensor(self.columns(layer), device=array.device)
        wide = array.new_zeros([*array.shape[:axis], self.n + len(self.every_span), *array.shape[axis:][1:]])
        return wide.index_copy_(axis, columns, array)

    def widened_index(self, layer: int, scores: Array) -> Array | None:
        """An indexer's scores of the slots (n_q, slots of the layer) with a column for every key; 0 for all others."""
        if scores.shape[-1] != len(self.of_layer.get(layer, ())):
            return None
        tokens = scores.new_zeros(scores.shape[0], self.n)
        return self.widened(layer, torch.cat([tokens, scores], dim=-1))  # (n_q, n + slots)


def compressors(network: PreTrainedModel, kind: str) -> dict[int, tuple[int, bool]]:
    """Layer → how many tokens one slot of its compressor stands for, and whether each window holds the one before too."""
    found: dict[int, tuple[int, bool]] = {}
    parts: list[Any] = [part for part in network.modules() if type(part).__name__.endswith("Compressor")]
    sites = sites_of_modules(network) if parts else {}
    for part in parts:
        rate, site = getattr(part, "compress_rate", None), sites[id(part)][0]
        if isinstance(rate, int) and rate > 0 and site.kind == kind:
            # each token is compressed twice: for its own window's slot, and for the next
            found[site.layer] = rate, bool(part.kv_proj.out_features == 2 * part.head_dim)
    return found


def slot_spans(n: int, rate: int, overlaps: bool) -> tuple[Span, ...]:
    """The slots of n tokens, one for each whole window of `rate`; where windows overlap, it holds the one before too."""
    return tuple((max(0, (at - overlaps) * rate), (at + 1) * rate - 1) for at in range(n // rate))
