"""Value zeroing (Mohebbi et al. 2023): how far a layer's output at each row turns if one token's value is zeroed."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from attnctl.layer import LayerAttention, LayerTrace, layer_of_weights
from attnctl.measures import Measure
from attnctl.runtime.arrays import Floats


def value_zeroing(layer: LayerAttention, output: Floats, zeroed: Iterable[Floats]) -> LayerTrace:
    """Return 1 − cosine of a layer's output (n_q, d_model) and its output with one value zeroed, as a share of its row.

    `zeroed` are the outputs with each key's value zeroed in every head, some keys at a time, in order: (keys, n_q,
    d_model).
    """
    turned = [_turned_by(output, part) for part in zeroed]  # (keys, n_q) each
    queries, keys = np.arange(layer.n_q), np.arange(layer.n_k)
    visible = layer.visible_at(queries[None], keys[None])[0]  # (n_q, n_k)
    distances = np.where(visible, np.concatenate(turned).T, 0.0)  # (n_q, n_k)
    sums = distances.sum(-1, keepdims=True)  # (n_q, 1)
    weights = (distances / np.where(sums > 0, sums, 1)).astype(np.float32)  # (n_q, n_k)
    return layer_of_weights(layer.layer, weights[None], None if visible.all() else visible)


def _turned_by(a: Floats, b: Floats) -> Floats:
    """Return 1 − cosine of vectors (…, d) → (…,), in float64: 1 if only one of the two is 0, 0 if both are."""
    exact = a.astype(np.float64), b.astype(np.float64)  # (…, d) each
    lengths = [np.linalg.norm(part, axis=-1, keepdims=True) for part in exact]  # (…, 1) each
    unit_a, unit_b = (
        part / np.where(length > 0, length, 1) for part, length in zip(exact, lengths, strict=True)
    )  # (…, d) each
    # ‖a - b‖² / 2 of vectors of length 1 is 1 - cos, without the digits that 1 - cos loses where it is small
    distance: Floats = ((unit_a - unit_b) ** 2).sum(-1) / 2  # (…,)
    return np.where((lengths[0] > 0) == (lengths[1] > 0), distance[..., None], 1.0)[..., 0]  # (…,)


MEASURE = Measure(
    name="value-zeroing",
    title="Value zeroing",
    note="This shows value zeroing (Mohebbi et al. 2023): 1 − the cosine of the layer's output at a row and its output "
    "with the column's value zeroed in every head, as a share of its row, for each layer alone.",
    unit="share of 1 − cosine",
    formula="(1 − cos(output, output with value zeroed)) ÷ Σ",
    sentence="How far the layer's output turns where a token's value is zeroed in every head, as a share of its row "
    "(Mohebbi et al. 2023).",
    needs="network",
    function=value_zeroing,
    joins_heads=True,
)
