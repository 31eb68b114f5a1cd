"""Value norms: the length of each weighted value, ‖weight × value‖ (Kobayashi et al. 2020)."""

from __future__ import annotations

import numpy as np

from attnctl.attention import Array, swap_last
from attnctl.errors import UsageError
from attnctl.layer import LayerAttention
from attnctl.measures import Measure
from attnctl.runtime.arrays import Floats, as_numpy

BLOCK = 2048  # keys whose values are in memory in double precision


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
    values, w_o = layer.values, layer.output_matrix  # (heads, n_k, d_v), (heads · d_v, d_out)
    if w_o is None:
        return np.asarray(np.linalg.norm(as_numpy(values), axis=-1))
    parts = w_o.reshape(-1, values.shape[-1], w_o.shape[-1])  # (every head, d_v, d_out)
    parts = parts if layer.heads == tuple(range(len(parts))) else parts[list(layer.heads)]  # (heads, d_v, d_out)
    blocks = [values[:, lo : lo + BLOCK] for lo in range(0, values.shape[1], BLOCK)]  # (heads, keys, d_v) each
    if isinstance(values, np.ndarray):
        parts = parts.astype(np.float64)
        return np.concatenate([_lengths_through(block, parts) for block in blocks], -1)
    # not by NumPy: its BLAS would start threads beside those of torch, and both wait for each other
    import torch

    from attnctl.blockwise.products import products_of

    with products_of(values.numel() * values.shape[-1]):
        through = torch.from_numpy(parts).double()  # (heads, d_v, d_out)
        lengths = [_lengths_through(block.detach().cpu().double(), through) for block in blocks]  # (heads, keys) each
        return torch.cat(lengths, -1).numpy()


def _lengths_through(values: Array, parts: Array) -> Array:
    """Return the length of each value (heads, n_k, d_v) times its head's part of W_O (heads, d_v, d_out) → (heads, n_k)."""
    # ‖v W‖² = v W Wᵀ vᵀ, without a row of d_out for each key
    grams = parts @ swap_last(parts)  # (heads, d_v, d_v)
    squares = ((values @ grams) * values).sum(-1)  # (heads, n_k)
    return squares.clip(0) ** 0.5


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
