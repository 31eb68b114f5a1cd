"""Value norms: the length of each weighted value, ‖weight × value‖ (Kobayashi et al. 2020)."""

from __future__ import annotations

import numpy as np

from attnctl.errors import UsageError
from attnctl.layer import LayerAttention
from attnctl.measures import Measure
from attnctl.runtime.arrays import Floats, as_numpy


def value_norm(layer: LayerAttention) -> LayerAttention:
    """Return the layer with each weight times the length of its value, ‖weight_ij · value_j‖, as a share of its row.

    Raises UsageError if the values are unknown.
    """
    return layer.reweighted(value_lengths(layer))


def value_lengths(layer: LayerAttention) -> Floats:
    """Return the length of each key's value → (heads, n_k).

    If W_O of the layer is known, each value first goes through its head's part of W_O, as in Kobayashi et al. 2020.
    Raises UsageError if the values are unknown.
    """
    if layer.values is None:
        raise UsageError("it needs the values, and this source gives none", option="measure", value="value-norm")
    values, w_o = as_numpy(layer.values), layer.output_matrix  # (heads, n_k, d_v), (heads · d_v, d_out)
    if w_o is None:
        return np.asarray(np.linalg.norm(values, axis=-1))
    d_v = values.shape[-1]
    parts = np.stack([w_o[head * d_v : (head + 1) * d_v] for head in layer.heads]).astype(np.float64)
    # ‖v W‖² = v W Wᵀ vᵀ, without a row of d_out for each key
    grams = parts @ parts.transpose(0, 2, 1)  # (heads, d_v, d_v)
    squares = ((values @ grams) * values).sum(-1)  # (heads, n_k)
    return np.asarray(np.sqrt(np.maximum(squares, 0)))


NOTE = (
    "This shows the length of each weighted value, ‖weight × value‖, as a share of its row, instead of the weight "
    "(Kobayashi et al. 2020{w_o})."
)

MEASURE = Measure(
    name="value-norm",
    title="Value norms",
    note=NOTE.format(w_o=""),
    note_without_w_o=NOTE.format(w_o=", without W_O, which is unknown here"),
    unit="share of ‖weight × value‖",
    formula="‖weight × value‖ ÷ Σ",
    sentence="How long each weighted value is, as a share of its row (Kobayashi et al. 2020).",
    needs="values",
    function=value_norm,
)
