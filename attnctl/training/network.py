"""The network that is trained: embeddings, layers of `attnctl.attention`, a residual stream, and an unembedding.

The arrays decide the library: NumPy to look at it, torch to train it. Nothing about attention is written here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnctl import attention
from attnctl.attention import Array, Attended
from attnctl.training.corpus import UNKNOWN

Parameters = Mapping[str, Array]


NAMES = (("W_Q", "b_Q"), ("W_K", "b_K"), ("W_V", "b_V"))


@dataclass(frozen=True)
class Sizes:
    """How large the network is."""

    vocabulary: int
    length: int  # positions, the most words a text may have
    d_model: int
    heads: int
    layers: int
    bias: bool = False  # b_Q, which lets a head prefer some words whoever asks


def initial(sizes: Sizes, seed: int) -> dict[str, Any]:
    """Random parameters before training, float32 in NumPy: the same for the same seed on every machine."""
    random = np.random.default_rng(seed)
    d, d_k = sizes.d_model, sizes.d_model // sizes.heads

    def normal(*shape: int, spread: float) -> Any:
        return (random.standard_normal(shape) * spread).astype(np.float32)

    parameters = {
        "embedding": normal(sizes.vocabulary, d, spread=0.3),  # (vocabulary, d_model)
        "positions": normal(sizes.length, d, spread=0.1),  # (length, d_model)
        "unembedding": normal(d, sizes.vocabulary, spread=1 / math.sqrt(d)),  # (d_model, vocabulary)
    }
    for layer in range(sizes.layers):
        for name in ("W_Q", "W_K", "W_V"):
            parameters[f"layers.{layer}.{name}"] = normal(sizes.heads, d, d_k, spread=1 / math.sqrt(d))
        if sizes.bias:
            parameters[f"layers.{layer}.b_Q"] = np.zeros((sizes.heads, d_k), dtype=np.float32)
        parameters[f"layers.{layer}.W_O"] = normal(d, d, spread=1 / math.sqrt(d))  # (heads · d_v, d_model)
    return parameters


def forward(p: Parameters, rows: Array, *, causal: bool, real: Array | None = None) -> tuple[Array, list[Attended]]:
    """Scores of every word at every place, and each layer's attention.

    `rows` (..., n, d_model) are the words' embeddings, `real` (..., n) is false at padding. → (..., n, vocabulary).
    """
    x = rows + p["positions"][: rows.shape[-2]]  # (..., n, d_model)
    mask = None if real is None else real[..., None, :]  # (..., 1, n)
    layers: list[Attended] = []
    while f"layers.{len(layers)}.W_Q" in p:
        at = f"layers.{len(layers)}."
        q, k, v = (attention.project(x, p[at + w], p.get(at + b)) for w, b in NAMES)  # (..., heads, n, d_k)
        steps = attention.attend(q, k, v, causal=causal, mask=mask)
        x = x + attention.output(attention.concatenate(steps.context), p[at + "W_O"])  # (..., n, d_model)
        layers.append(steps)
    return x @ p["unembedding"], layers


def metadata(vocabulary: tuple[str, ...], heads: int, causal: bool, **provenance: Any) -> dict[str, str]:
    """What a weights file says beside its tensors: how to read them, and where they came from."""
    said = {
        "tokens": json.dumps(list(vocabulary), ensure_ascii=False),
        "unknown": UNKNOWN,
        "n_heads": str(heads),
        "causal": "true" if causal else "false",
        "scale": "auto",
        "residual": "true",
    }
    return said | {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in provenance.items()
    }
