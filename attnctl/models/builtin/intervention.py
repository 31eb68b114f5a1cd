"""Heads ablated and edges cut in a built-in model: what an intervention does to a layer's call, and to its context."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from attnctl import attention
from attnctl.arrays import Bools, Floats, as_numpy, place_array
from attnctl.attention import Array, Call
from attnctl.errors import UsageError
from attnctl.interventions import Intervention, spoken_range
from attnctl.layer import LayerAttention
from attnctl.layer.computed import ComputedLayer, Forward

HIDDEN = np.float32(-1e30)  # added to a scaled score: its weight is then exactly 0, and a softmax over it never NaN

Visit = Callable[[LayerAttention], None]


def changed_visit(visit: Visit, intervention: Intervention) -> Visit:
    """The visitor, shown each layer with its edges cut; the model goes on with the heads that are off replaced."""

    def visit_changed(layer: LayerAttention) -> None:
        if intervention.in_layer(layer.layer):
            assert isinstance(layer, ComputedLayer)  # as every layer of a stack
            layer.forward = changed_forward(layer.forward, intervention, layer.layer)
        visit(layer)

    return visit_changed


def changed_forward(forward: Forward, intervention: Intervention, layer: int) -> Forward:
    """A layer's forward under an intervention."""
    after = forward.after
    call = with_edges_cut(forward.call, intervention, layer)
    if after is None:
        return replace(forward, call=call)
    return replace(forward, call=call, after=lambda context: after(with_heads_off(context, intervention, layer)))


def with_heads_off(context: Array, intervention: Intervention, layer: int) -> Array:
    """The context with the heads that are off replaced: (heads, n, d_v) → the same shape."""
    heads = list(intervention.heads.get(layer, ()))
    if not heads:
        return context
    check_stack_heads(heads, context.shape[0], layer)
    own = as_numpy(context)  # (heads, n, d_v)
    result = own.copy()  # (heads, n, d_v)
    result[heads] = _replacement(own, intervention, layer)[heads]
    return place_array(result, context)


def check_stack_heads(heads: Sequence[int], count: int, layer: int) -> None:
    """Raise UsageError for a head that is not there."""
    for head in heads:
        if not 0 <= head < count:
            raise UsageError(f"no head {head} in layer {layer}: it has {spoken_range('head', count)}")


def _replacement(own: Floats, intervention: Intervention, layer: int) -> Floats:
    """What takes the place of every head's context: (heads, n, d_v)."""
    if intervention.how == "zero":
        return np.zeros_like(own)  # (heads, n, d_v)
    if intervention.reference is None:
        return np.broadcast_to(own.mean(axis=1, keepdims=True), own.shape)  # (heads, n, d_v)
    given = as_numpy(intervention.reference[layer])  # (heads, d_v) or (heads, n, d_v)
    if intervention.how == "mean":
        return np.broadcast_to(given[:, None], own.shape)  # (heads, n, d_v)
    if given.shape[1] < own.shape[1]:
        raise UsageError(f"the reference has {given.shape[1]} tokens, this text {own.shape[1]}: resample needs as many")
    return given[:, : own.shape[1]]  # type: ignore[no-any-return]  # (heads, n, d_v)


def with_edges_cut(call: Call, intervention: Intervention, layer: int) -> Call:
    """The call with the edges that are cut in this layer hidden; a query that would lose its only key keeps itself."""
    n_q, n_k, n_heads = call.queries.shape[-2], call.keys.shape[-2], call.queries.shape[-3]
    for heads in {cut.heads for cut in intervention.cuts if cut.in_layer(layer)}:
        mask = attention.visible_keys(call)
        seen: Bools = np.ones((n_q, n_k), dtype=bool) if mask is None else as_numpy(mask)  # (n_q, n_k)
        left = seen & ~_hidden_edges(intervention, layer, heads, n_q, n_k)  # (n_q, n_k)
        only = seen.any(-1) & ~left.any(-1)  # (n_q,)
        left[only, np.arange(n_q)[only]] = True
        if heads is None:
            call = replace(call, mask=place_array(left, call.queries), causal=False, window=None, offset=None)
            continue
        check_stack_heads(sorted(heads), n_heads, layer)
        bias = np.zeros((n_heads, n_q, n_k), dtype=np.float32)  # (heads, n_q, n_k)
        bias[sorted(heads)] = HIDDEN * (seen & ~left)
        given = place_array(bias, call.queries)
        call = replace(call, bias=given if call.bias is None else call.bias + given)
    return call


def _hidden_edges(intervention: Intervention, layer: int, heads: frozenset[int] | None, n_q: int, n_k: int) -> Bools:
    """True where a key is hidden from a query: (n_q, n_k)."""
    lost = np.zeros((n_q, n_k), dtype=bool)  # (n_q, n_k)
    for cut in intervention.cuts:
        if cut.heads != heads or not cut.in_layer(layer):
            continue
        keys = [key + n_k if key < 0 else key for key in cut.keys]
        queries = range(max(keys) + 1, n_q) if cut.queries is None else [q + n_q if q < 0 else q for q in cut.queries]
        lost[np.ix_(list(queries), keys)] = True
    return lost
