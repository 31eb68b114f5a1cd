"""Keys that stand for several tokens at once, as DeepSeek-V4 compresses them: columns of their own, named by what they hold.

Source: DeepSeek-V4 2026, compressed sparse attention (slots that overlap by half) and heavily compressed attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attnctl.attention import Array, Call
from attnctl.errors import AttnctlError
from attnctl.models.huggingface.attention_session import names_of_modules
from attnctl.text import number_list
from attnctl.tokens import Token

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from attnctl.models.huggingface.module_outputs import ShownLayer


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
        columns = self.columns(layer)
        if call.n_k != len(columns):
            raise AttnctlError(
                f"layer {layer} has {call.n_k} keys for {self.n} tokens and {len(columns) - self.n} compressed slots"
            )
        there = call.queries.new_zeros(self.n + len(self.every_span)).bool()  # (n + slots,)
        there[columns] = True
        mask = there.expand(1, call.n_q, -1)  # (1, n_q, n + slots)
        if call.mask is not None:
            mask = self._widened_keys(layer, call.mask, axis=-1)  # (..., n_q, n + slots)
        bias = None if call.bias is None else self._widened_keys(layer, call.bias, axis=-1)
        keys, values = (self._widened_keys(layer, part, axis=-2) for part in (call.keys, call.values))
        return replace(call, keys=keys, values=values, mask=mask, bias=bias, offset=0)

    def widened_weights(self, layer: int, weights: Array) -> Array:
        """Weights (heads, n_q, n_k) of a layer, as NumPy, with a column of zeros for every slot that it lacks."""
        if not self.every_span:
            return weights
        wide = np.zeros((*weights.shape[:-1], self.n + len(self.every_span)), weights.dtype)  # (heads, n_q, n + slots)
        wide[..., self.columns(layer)] = weights
        return wide

    def narrowed_layer(self, layer: int, shown: ShownLayer) -> ShownLayer:
        """What is shown of a layer, without the slots that it lacks."""
        if not self.every_span:
            return shown
        columns = self.columns(layer)
        values = None if shown.values is None else shown.values[:, columns]
        return replace(shown, weights=shown.weights[..., columns], values=values)

    def widened_index(self, layer: int, scores: Array | None) -> Array | None:
        """An indexer's scores of the slots (n_q, slots of the layer) with a column for every key; 0 for all others."""
        slots = self.columns(layer)[self.n :]
        if scores is None or not slots or scores.shape[-1] != len(slots):
            return None
        wide = scores.new_zeros((scores.shape[0], self.n + len(self.every_span)))  # (n_q, n + slots)
        wide[:, slots] = scores
        return wide

    def _widened_keys(self, layer: int, array: Array, axis: int) -> Array:
        """An array with zeros (false) along `axis` for the slots that a layer lacks; an axis of 1 stays."""
        if array.shape[axis] == 1:
            return array
        shape = list(array.shape)
        shape[axis] = self.n + len(self.every_span)
        wide = array.new_zeros(shape)
        where: list[slice | list[int]] = [slice(None)] * array.ndim
        where[axis] = self.columns(layer)
        wide[tuple(where)] = array
        return wide


def slots_of_text(network: PreTrainedModel, kind: str, n: int) -> KeySlots:
    """The compressed slots of a text of n tokens that is read in one forward, without a cache."""
    names = names_of_modules(network)
    found: dict[int, tuple[Span, ...]] = {}
    for module in network.modules():
        rate = getattr(module, "compress_rate", None)
        if isinstance(rate, int) and rate > 0 and type(module).__name__.endswith("Compressor"):
            site = names[id(module)].site_of_occurrence(0)
            if site.kind == kind:
                part: Any = module  # each token is compressed twice: for its own window's slot, and for the next
                twice = bool(part.kv_proj.out_features == 2 * part.head_dim)
                found[site.layer] = slot_spans(n, rate, overlaps=twice)
    return KeySlots(n, found)


def slot_spans(n: int, rate: int, overlaps: bool) -> tuple[Span, ...]:
    """The slots of n tokens, one for each whole window of `rate`; where windows overlap, it holds the one before too."""
    return tuple((max(0, (at - overlaps) * rate), (at + 1) * rate - 1) for at in range(n // rate))


def tokens_of_call_keys(
    n_k: int, tokens: Sequence[Token], source: Sequence[Token] | None, known: tuple[Token, ...] | None
) -> tuple[Token, ...] | None:
    """The tokens that n_k keys stand for; None: the queries' own. Raises AttnctlError where they stand for others."""
    if n_k == len(tokens if known is None else known):
        return known
    if source is not None and n_k == len(tokens) + len(source):  # decoder and cross attention in one
        return (*tokens, *source)
    raise AttnctlError(
        f"{n_k} keys for {len(tokens)} tokens: this architecture makes keys of its own, which have no tokens to stand for"
    )
