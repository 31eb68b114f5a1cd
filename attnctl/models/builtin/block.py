"""One layer of a built-in model, for any array library: what training learns and what `explain` shows are these lines."""

from __future__ import annotations

from collections.abc import Mapping

from attnctl import attention
from attnctl.attention import Array

PROJECTIONS = ("W_Q", "W_K", "W_V")


def project_rows(x: Array, parameters: Mapping[str, Array], n_heads: int) -> tuple[Array, Array, Array]:
    """Queries, keys and values of rows x (..., n, d_model) → (..., heads, n, d_k), (..., kv_heads, n, d_k | d_v).

    A layer without W_Q reads its rows as all three, cut into `n_heads`.
    """
    if "W_Q" not in parameters:
        whole = attention.split_heads(x, n_heads)  # (..., heads, n, d_model / heads)
        return whole, whole, whole
    q, k, v = (attention.project_heads(x, parameters[name], parameters.get(f"b_{name[-1]}")) for name in PROJECTIONS)
    return q, k, v


def row_angles(x: Array, d_k: int, theta: float) -> Array:
    """RoPE's angle for each row of x (..., n, d_model), and each pair of dimensions → (n, d_k / 2)."""
    at = attention.array_namespace(x).arange(x.shape[-2], dtype=x.dtype, device=attention.device_of(x))  # (n,)
    return attention.rope_angles(at, d_k, theta)


def mix_heads(context: Array, parameters: Mapping[str, Array]) -> Array:
    """What a layer gives back: contexts (..., heads, n, d_v) side by side, through W_O → (..., n, d_out)."""
    return attention.project_output(attention.concatenate_heads(context), parameters.get("W_O"), parameters.get("b_O"))


def unembed_rows(x: Array, parameters: Mapping[str, Array]) -> Array:
    """Scores of every word: rows x (..., n, d_model) by the unembedding, or by the embedding where they share one table."""
    table = parameters.get("unembedding")
    if table is None:
        table = attention.swap_last(parameters["embedding"])  # (d_model, vocabulary)
    return x @ table  # (..., n, vocabulary)
