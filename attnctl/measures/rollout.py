"""Attention rollout (Abnar & Zuidema 2020): how much of each token has reached each row through the layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from attnctl.layer import LayerAttention, LayerTrace, layer_of_weights
from attnctl.measures import Measure


def attention_rollout(layers: Sequence[LayerAttention]) -> Iterator[LayerTrace]:
    """Yield one map for each layer, from layer 0 on: how much of each token has reached each row there.

    A layer counts as the average of its mean head and of the identity, which is the residual stream. The map of a layer is
    the product of the layers up to it.
    """
    identity = np.eye(layers[0].n_k)  # (n, n)
    reached, reachable = identity, identity > 0  # (n, n) each: `reachable` is true where something can have arrived
    every = np.arange(len(identity))[None]  # (1, n)
    for layer in layers:
        mean = layer.all_weights().astype(np.float64).mean(axis=0)  # (n, n)
        reached = (0.5 * mean + 0.5 * identity) @ reached  # (n, n)
        reached /= reached.sum(axis=-1, keepdims=True)  # a sink may have kept a part
        reachable = (layer.visible_at(every, every)[0] | (identity > 0)).astype(np.float32) @ reachable > 0  # (n, n)
        mask = None if reachable.all() else reachable
        yield layer_of_weights(layer.layer, reached[None].astype(np.float32), mask)


MEASURE = Measure(
    name="rollout",
    title="Rollout",
    note="This shows attention rollout (Abnar & Zuidema 2020): the heads' mean, half of it the token itself for the "
    "residual stream, multiplied through the layers up to this one.",
    unit="rollout",
    formula="Π (½ mean weights + ½ identity)",
    sentence="How much of each token has reached each row by this layer, all heads together (Abnar & Zuidema 2020).",
    needs="layers",
    function=attention_rollout,
    joins_heads=True,
)
