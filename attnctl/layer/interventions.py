"""Change a model's attention while it runs: heads ablated, edges cut, values zeroed. For any array library."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from attnctl import attention
from attnctl.attention import Array, Call
from attnctl.checks.argument_types import named_value
from attnctl.checks.selection import chosen_indices
from attnctl.errors import UsageError
from attnctl.runtime.arrays import Bools, as_numpy, place_array
from attnctl.text import spoken_heads

HOW = ("zero", "mean", "resample")
SENTENCES = {
    "zero": "each head's output is set to 0",
    "mean": "each head's output is replaced by its mean over positions",
    "resample": "each head's output is replaced by the one it has on another text of the same length",
}


@dataclass(frozen=True)
class Cut:
    """Keys hidden from queries before the softmax, so that the other keys of each row share its weight.

    Indices are positions in the text; negative indices count from the end of the text at each forward call. `queries`
    None: every query after the last key of `keys`; with `apart`, every query that is not one of `keys`. `layers` or
    `heads` None: all; empty: none. A query never loses its last visible key: if all would be cut, it sees itself.
    """

    keys: tuple[int, ...]
    queries: tuple[int, ...] | None = None
    layers: frozenset[int] | None = None
    heads: frozenset[int] | None = None
    apart: bool = False

    def in_layer(self, layer: int) -> bool:
        """Return whether this cuts anything in a layer."""
        return self.layers is None or layer in self.layers


@dataclass(frozen=True, eq=False)
class Intervention:
    """Heads ablated and edges cut, together; without either, nothing changes.

    `heads` maps a layer to the heads whose context (as the output projection reads it) is replaced: by 0, by its mean
    over positions, or by the context in another text. `reference` holds the replacement: layer → (heads, d_v) for mean,
    or (heads, n, d_v) for resample. Without a reference, the mean is over the positions of the text itself.
    """

    heads: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    cuts: tuple[Cut, ...] = ()
    how: str = "zero"
    reference: Mapping[int, Array] | None = None

    def __post_init__(self) -> None:
        if self.how not in HOW:
            raise UsageError(f"it is {', '.join(HOW)}", option="how", value=self.how)
        if self.how == "resample" and self.reference is None and self.heads:
            raise UsageError("resample takes each head's output from another text: name one as reference")

    @property
    def changes_nothing(self) -> bool:
        """Return whether there is nothing to change."""
        return not self.heads and not self.cuts

    def in_layer(self, layer: int) -> bool:
        """Return whether this changes anything in a layer."""
        return bool(self.heads.get(layer)) or any(cut.in_layer(layer) for cut in self.cuts)

    def first_layer(self) -> int:
        """Return the lowest layer with a change; 0 if nothing changes."""
        cut = [0 if cut.layers is None else min(cut.layers) for cut in self.cuts if cut.layers is None or cut.layers]
        return min([*(layer for layer, heads in self.heads.items() if heads), *cut], default=0)

    def with_head(self, layer: int, head: int) -> Intervention:
        """Return this intervention with one more head ablated."""
        off = dict(self.heads)
        off[layer] = tuple(sorted({*off.get(layer, ()), head}))
        return Intervention(off, self.cuts, self.how, self.reference)

    @property
    def note(self) -> str:
        """Return what a reader of the trace must know about it."""
        heads = spoken_heads(self.heads)
        return f"Off (layer.head): {heads}. What these heads compute is shown, but the model does not use it."

    def with_cuts(self, *cuts: Cut) -> Intervention:
        """Return this intervention with more edges cut."""
        return Intervention(self.heads, (*self.cuts, *cuts), self.how, self.reference)


# --- at work on a layer ----------------------------------------------------------------------------------------------


def seen_keys(call: Call) -> Array:
    """Return which keys each query sees: (n_q, n_k), or (batch, n_q, n_k) if the texts of a batch differ."""
    mask = attention.visible_keys(call)
    if mask is None:
        return place_array(np.ones((call.n_q, call.n_k), bool), call.queries)  # (n_q, n_k)
    return mask


def cut_edges(call: Call, interventions: Sequence[Intervention], layer: int, past: int = 0) -> Call:
    """Return the call with the edges of a layer cut: one intervention for all texts of the batch, or one for each text.

    `past` tokens were read before the first query, in earlier forwards. A query that would lose its only key sees
    itself. Keys that an outer intervention, or the model itself, hides from a head stay hidden.
    """
    cuts = [cut for intervention in interventions for cut in intervention.cuts if cut.in_layer(layer)]
    if not cuts:
        return call
    xp, n_q, n_k = attention.array_namespace(call.queries), call.n_q, call.n_k
    before = max(0, past + n_q - n_k)  # keys that a sliding cache has dropped
    by_head = call.bias is not None or any(cut.heads is not None for cut in cuts)
    shape = (call.queries.shape[-3] if by_head else 1, n_q, n_k)
    hidden = np.stack([hidden_edges(intervention, layer, shape, past, before) for intervention in interventions])
    positions = np.clip(np.arange(n_q) + past - before, 0, n_k - 1)  # (n_q,)
    diagonal = place_array(positions[:, None] == np.arange(n_k), call.queries)  # (n_q, n_k)
    hidden = place_array(hidden if call.queries.ndim == 4 else hidden[0], call.queries)  # (…, heads or 1, n_q, n_k)
    visible = xp.expand_dims(seen_keys(call), axis=-3)  # (…, 1, n_q, n_k)
    seen_by_head = visible if call.bias is None else visible & ~_hidden_by(call.bias)  # (…, heads or 1, n_q, n_k)
    remaining = seen_by_head & ~hidden  # (…, heads or 1, n_q, n_k)
    sees_nothing = ~xp.any(seen_by_head, axis=-1, keepdims=True)  # (…, heads or 1, n_q, 1)
    loses_all = ~sees_nothing & ~xp.any(remaining, axis=-1, keepdims=True)
    remaining = remaining | (loses_all & diagonal)
    if not bool(xp.any(remaining != seen_by_head)):
        return call
    # a row of padding without visible keys stays as the model computes it
    mask = xp.any(remaining | (sees_nothing & visible), axis=-3)  # (…, n_q, n_k)
    bias = _bias_of_heads(call.bias, remaining, call.queries) if by_head else None
    return replace(call, mask=mask, bias=bias, causal=False, window=None, offset=None)


def _hidden_by(bias: Array) -> Array:
    """Return where a bias hides a key from a head: where it is as low as its type allows."""
    return bias < attention.array_namespace(bias).finfo(bias.dtype).min / 2


def _bias_of_heads(bias: Array | None, visible: Array, queries: Array) -> Array:
    """Return a bias that hides every key that is not `visible` to a head; the others keep their bias, or 0."""
    xp = attention.array_namespace(queries)
    bias = xp.zeros_like(visible, dtype=queries.dtype) if bias is None else bias
    number = partial(xp.asarray, dtype=bias.dtype, device=attention.device_of(bias))
    plain = xp.where(_hidden_by(bias), number(0.0), bias)
    # the lowest number of the type: infinity would give NaN in a row without visible keys
    return xp.where(visible, plain, number(xp.finfo(bias.dtype).min))


def hidden_edges(intervention: Intervention, layer: int, shape: tuple[int, int, int], past: int, before: int) -> Bools:
    """Return true where an intervention hides a key from a query: (heads, n_q, n_k), or one head for all."""
    hidden, total = np.zeros(shape, bool), past + shape[1]  # (heads, n_q, n_k)
    for cut in intervention.cuts:
        if cut.in_layer(layer):
            keys = [key + total if key < 0 else key for key in cut.keys]
            default_queries = set(range(total)).difference(keys) if cut.apart else range(max(keys) + 1, total)
            queries = default_queries if cut.queries is None else cut.queries
            cut_queries = [query + total if query < 0 else query for query in queries]
            rows = [query - past for query in cut_queries if past <= query < total]
            heads = range(shape[0]) if cut.heads is None else _heads_of_layer(cut.heads, shape[0], layer)
            hidden[np.ix_(heads, rows, [key - before for key in keys if 0 <= key - before < shape[2]])] = True
    return hidden


def replaced_heads(
    context: Array, intervention: Intervention, layer: int, past: int = 0, own_mean: Array | None = None
) -> Array:
    """Return the context (…, heads, n_q, d_v) with a layer's ablated heads replaced; arguments of `context_instead`."""
    if not (heads := intervention.heads.get(layer, ())):
        return context
    numbers = _heads_of_layer(heads, context.shape[-3], layer)
    chosen = place_array(np.isin(np.arange(context.shape[-3]), numbers)[:, None, None], context)  # (heads, 1, 1)
    instead = context_instead(context, intervention, layer, past, own_mean)
    return attention.array_namespace(context).where(chosen, instead, context)


def context_instead(
    context: Array, intervention: Intervention, layer: int, past: int = 0, own_mean: Array | None = None
) -> Array:
    """Return the replacement for every head's context (…, heads, n_q, d_v); it may have one row for all queries.

    `own_mean` (…, heads, 1, d_v) is the mean over the whole text, if the context holds a part of it. Raises UsageError
    if the reference does not fit.
    """
    xp = attention.array_namespace(context)
    if intervention.how == "zero":
        return xp.zeros_like(context)
    if intervention.reference is None:
        return xp.mean(context, axis=-2, keepdims=True) if own_mean is None else own_mean  # (…, heads, 1, d_v)
    if layer not in intervention.reference:
        raise UsageError(f"the reference has no layer {layer}: give its heads' contexts")
    if not hasattr(intervention.reference[layer], "shape"):
        raise TypeError(
            f"intervene(): reference[{layer}] is an array, not {named_value(intervention.reference[layer])}"
        )
    reference = as_numpy(intervention.reference[layer])  # (heads, d_v) or (heads, n, d_v)
    heads, n_q, d_v = context.shape[-3:]
    if reference.shape != ((heads, d_v) if intervention.how == "mean" else (heads, *reference.shape[1:2], d_v)):
        expected = f"({heads}, {'' if intervention.how == 'mean' else 'n, '}{d_v})"
        raise UsageError(
            f"the reference of layer {layer} has shape {tuple(reference.shape)}: {intervention.how} needs {expected}"
        )
    if intervention.how == "mean":
        reference = reference[:, None]  # (heads, 1, d_v)
    elif reference.shape[1] < past + n_q:
        raise UsageError(
            f"the reference has {reference.shape[1]} tokens, this text {past + n_q}: resample needs as many"
        )
    else:
        reference = reference[:, past : past + n_q]  # (heads, n_q, d_v)
    return xp.astype(place_array(reference, context), context.dtype)


def zeroed_values(values: Array, keys: Sequence[int | None]) -> Array:
    """Return the values (kv_heads, n_k, d_v) for each of `keys`, with that key's value zeroed (None: no value).

    → (keys, kv_heads, n_k, d_v).
    """
    unchanged = np.arange(values.shape[-2]) != np.array([-1 if key is None else key for key in keys])[:, None]
    factors = place_array(unchanged[:, None, :, None], values)  # (keys, 1, n_k, 1)
    return values * attention.array_namespace(values).astype(factors, values.dtype)


def _heads_of_layer(heads: Iterable[int], count: int, layer: int) -> tuple[int, ...]:
    """Return heads of a layer, negative ones counted from its `count`. Raises UsageError for one that does not exist."""
    return chosen_indices(tuple(heads), count, "head", f"layer {layer}", "heads")
