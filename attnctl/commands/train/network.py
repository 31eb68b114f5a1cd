"""The network that is trained: embeddings, the layers of `attnctl.models.builtin.stack`, a residual stream, an unembedding.

The arrays decide the library: NumPy to inspect the network, torch to train it. Attention is in `attnctl.attention`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnctl import attention
from attnctl.attention import Array, Attended
from attnctl.models.builtin import Parameters, layers_of, mix_heads, project_rows, random_parameters, row_angles

if TYPE_CHECKING:
    from attnctl.commands.train.recipe import Recipe
    from attnctl.runtime.arrays import Floats


def initial(recipe: Recipe, vocabulary: int, length: int) -> dict[str, Floats]:
    """Return the initial parameters of this recipe, for this many words and learned positions up to `length`."""
    learned = None if recipe.rope_theta is not None else length
    return random_parameters(
        recipe.seed, vocabulary, learned, layers=recipe.layers, heads=recipe.heads, d_model=recipe.d_model, d_k=recipe.d_k,
        bias=recipe.bias, tied=recipe.tied, pieces=recipe.pieces,
    )  # fmt: skip


def residual(p: Parameters, rows: Array, recipe: Recipe, real: Array | None = None) -> tuple[Array, list[Attended]]:
    """Return the residual stream after the last layer (..., n, d_model), and each layer's attention.

    `rows` (..., n, d_model) are the words' embeddings, `real` (..., n) is false at padding.
    """
    x = rows + p["positions"][: rows.shape[-2]] if "positions" in p else rows  # (..., n, d_model)
    mask = None if real is None else real[..., None, :]  # (..., 1, n)
    angles: Array | None = None
    steps: list[Attended] = []
    for parameters in layers_of(p):
        q, k, v = project_rows(x, parameters, 1)  # (..., heads, n, d_k)
        if recipe.rope_theta is not None:
            angles = row_angles(x, q.shape[-1], recipe.rope_theta) if angles is None else angles  # (n, d_k / 2)
            q, k = attention.rotate_positions(q, angles), attention.rotate_positions(k, angles)  # (..., heads, n, d_k)
        near = recipe.first_window if not steps else None
        steps.append(attention.attend(q, k, v, causal=recipe.causal, mask=mask, window=near))
        x = x + mix_heads(steps[-1].context, parameters)  # (..., n, d_model)
    return x, steps


def output_of_words(p: Parameters, rows: Array, weights: Array, head: int) -> Array:
    """Return the output of one head of the last layer with values of the word embeddings alone: (..., n, d_model).

    `weights` (..., heads, n, n) are that layer's, `rows` (..., n, d_model) the embeddings. Information
    that earlier layers moved between words is excluded, so it holds an answer only if the head looks at the answering word.
    """
    last = layers_of(p)[-1]
    values = rows @ last["W_V"][head]  # (..., n, d_v)
    d_v = last["W_V"].shape[-1]
    return weights[..., head, :, :] @ values @ last["W_O"][head * d_v : (head + 1) * d_v]  # (..., n, d_model)
