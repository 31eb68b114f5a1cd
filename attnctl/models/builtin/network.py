"""The network that is trained: embeddings, the layers of `attnctl.models.builtin.stack`, a residual stream, an unembedding.

The arrays decide the library: NumPy to look at it, torch to train it. Nothing about attention is written here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from attnctl import attention
from attnctl.attention import Array, Attended
from attnctl.models.builtin import stack
from attnctl.models.builtin.vocabulary import SHAPES, letter_pieces

if TYPE_CHECKING:
    from attnctl.arrays import Floats
    from attnctl.commands.train.recipe import Recipe

Parameters = Mapping[str, Array]


def initial(recipe: Recipe, vocabulary: int, length: int) -> dict[str, Floats]:
    """Random parameters before training, float32 in NumPy: the same for the same seed on every machine.

    `vocabulary` is the number of words, `length` that of learned positions.
    """
    random = np.random.default_rng(recipe.seed)
    d, heads, d_k = recipe.d_model, recipe.heads, recipe.d_k or recipe.d_model // recipe.heads

    def normal(*shape: int, spread: float) -> Floats:
        return (random.standard_normal(shape) * spread).astype(np.float32)

    parameters = {"embedding": normal(vocabulary, d, spread=0.3)}  # (vocabulary, d_model)
    if recipe.pieces:
        parameters["pieces"] = normal(recipe.pieces, d, spread=0.3)  # (pieces, d_model)
    if recipe.rope_theta is None:
        parameters["positions"] = normal(length, d, spread=0.1)  # (length, d_model)
    if not recipe.tied:
        parameters["unembedding"] = normal(d, vocabulary, spread=1 / math.sqrt(d))  # (d_model, vocabulary)
    for at in range(recipe.layers):
        for name in stack.PROJECTIONS:
            parameters[f"layers.{at}.{name}"] = normal(heads, d, d_k, spread=1 / math.sqrt(d))
        if recipe.bias:
            parameters[f"layers.{at}.b_Q"] = np.zeros((heads, d_k), dtype=np.float32)
        wide = heads * d_k
        parameters[f"layers.{at}.W_O"] = normal(wide, d, spread=1 / math.sqrt(wide))  # (heads · d_v, d_model)
    return parameters


def layers_of(p: Parameters) -> list[dict[str, Array]]:
    """Each layer's parameters by their short names."""
    found: list[dict[str, Array]] = []
    while f"layers.{len(found)}.W_Q" in p:
        start = f"layers.{len(found)}."
        found.append({name.removeprefix(start): array for name, array in p.items() if name.startswith(start)})
    return found


def sentence_rows(p: Parameters, ids: Sequence[int], words: Sequence[str]) -> Array:
    """What the network reads of a sentence: embeddings, and of unknown words what their letters add (n, d_model)."""
    table = p["embedding"]
    rows = []
    for at, word in zip(ids, words, strict=True):
        rows.append(table[at])  # (d_model,)
        if "pieces" in p and (at == 0 or 2 <= at < 2 + len(SHAPES)):  # the unknown word, or one read by its shape
            own = letter_pieces(word, len(p["pieces"]))
            rows[-1] = rows[-1] + p["pieces"][own].sum(0) / math.sqrt(len(own))
    return attention.array_namespace(table).stack(rows)  # (n, d_model)


def residual(p: Parameters, rows: Array, recipe: Recipe, real: Array | None = None) -> tuple[Array, list[Attended]]:
    """The residual stream after the last layer (..., n, d_model), and each layer's attention.

    `rows` (..., n, d_model) are the words' embeddings, `real` (..., n) is false at padding.
    """
    x = rows + p["positions"][: rows.shape[-2]] if "positions" in p else rows  # (..., n, d_model)
    mask = None if real is None else real[..., None, :]  # (..., 1, n)
    angles: Array | None = None
    steps: list[Attended] = []
    for parameters in layers_of(p):
        q, k, v = stack.project_rows(x, parameters, 1)  # (..., heads, n, d_k)
        if recipe.rope_theta is not None:
            angles = stack.row_angles(x, q.shape[-1], recipe.rope_theta) if angles is None else angles  # (n, d_k / 2)
            q, k = attention.rotate_positions(q, angles), attention.rotate_positions(k, angles)  # (..., heads, n, d_k)
        near = recipe.first_window if not steps else None
        steps.append(attention.attend(q, k, v, causal=recipe.causal, mask=mask, window=near))
        x = x + stack.mix_heads(steps[-1].context, parameters)  # (..., n, d_model)
    return x, steps


def output_of_words(p: Parameters, rows: Array, weights: Array, head: int) -> Array:
    """Output of one head of the last layer, its values read from the words' embeddings alone: (..., n, d_model).

    `weights` (..., heads, n, n) are that layer's, `rows` (..., n, d_model) the embeddings. What earlier layers gathered from
    other words is not in it, so it holds an answer only where the head looks at the word that answers.
    """
    last = layers_of(p)[-1]
    values = rows @ last["W_V"][head]  # (..., n, d_v)
    d_v = last["W_V"].shape[-1]
    return weights[..., head, :, :] @ values @ last["W_O"][head * d_v : (head + 1) * d_v]  # (..., n, d_model)
