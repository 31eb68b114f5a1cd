"""The parameters of a built-in network before training, and its input for a sentence, in NumPy or torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from attnctl import attention
from attnctl.attention import Array
from attnctl.models.builtin import stack
from attnctl.models.builtin.vocabulary import SHAPES, letter_pieces

if TYPE_CHECKING:
    from attnctl.runtime.arrays import Floats
    from attnctl.source import Model

Parameters = Mapping[str, Array]


def random_parameters(
    seed: int,
    vocabulary: int,
    length: int | None,
    *,
    layers: int,
    heads: int,
    d_model: int,
    d_k: int | None,
    bias: bool,
    tied: bool,
    pieces: int | None,
) -> dict[str, Floats]:
    """Return random parameters before training, float32 in NumPy: the same for the same seed on every machine.

    `vocabulary` is the number of words, `length` the number of learned positions (None: RoPE), `pieces` the number of
    rows for letters.
    """
    random = np.random.default_rng(seed)
    d, d_k = d_model, d_k or d_model // heads

    def normal(*shape: int, spread: float) -> Floats:
        return (random.standard_normal(shape) * spread).astype(np.float32)

    parameters = {"embedding": normal(vocabulary, d, spread=0.3)}  # (vocabulary, d_model)
    if pieces:
        parameters["pieces"] = normal(pieces, d, spread=0.3)  # (pieces, d_model)
    if length is not None:
        parameters["positions"] = normal(length, d, spread=0.1)  # (length, d_model)
    if not tied:
        parameters["unembedding"] = normal(d, vocabulary, spread=1 / math.sqrt(d))  # (d_model, vocabulary)
    for layer in range(layers):
        for name in stack.PROJECTIONS:
            parameters[f"layers.{layer}.{name}"] = normal(heads, d, d_k, spread=1 / math.sqrt(d))
        if bias:
            parameters[f"layers.{layer}.b_Q"] = np.zeros((heads, d_k), dtype=np.float32)
        wide = heads * d_k
        parameters[f"layers.{layer}.W_O"] = normal(wide, d, spread=1 / math.sqrt(wide))  # (heads · d_v, d_model)
    return parameters


def layers_of(p: Parameters) -> list[dict[str, Array]]:
    """Return each layer's parameters by their short names."""
    layers: list[dict[str, Array]] = []
    while f"layers.{len(layers)}.W_Q" in p:
        start = f"layers.{len(layers)}."
        layers.append({name.removeprefix(start): array for name, array in p.items() if name.startswith(start)})
    return layers


def sentence_rows(p: Parameters, ids: Sequence[int], words: Sequence[str]) -> Array:
    """Return the network's input for a sentence: embeddings, and for unknown words their letters (n, d_model)."""
    table = p["embedding"]
    rows = []
    for number, word in zip(ids, words, strict=True):
        rows.append(table[number])  # (d_model,)
        if "pieces" in p and (
            number == 0 or 2 <= number < 2 + len(SHAPES)
        ):  # the unknown word, or one read by its shape
            piece_numbers = letter_pieces(word, len(p["pieces"]))
            rows[-1] = rows[-1] + p["pieces"][piece_numbers].sum(0) / math.sqrt(len(piece_numbers))
    return attention.array_namespace(table).stack(rows)  # (n, d_model)


def before_training(model: Model, seed: int) -> stack.Stack | None:
    """Return the same network with the random parameters at the start of training; None for another kind of model."""
    if not isinstance(model, stack.Stack) or model.unembedding is None:
        return None
    info, positions = model.info, model.positions
    parameters = random_parameters(
        seed,
        len(model.vocabulary),
        None if positions is None else len(positions),
        layers=len(model.layers),
        heads=info.n_heads or 1,
        d_model=info.d_model or 1,
        d_k=info.d_k,
        bias="b_Q" in model.layers[0],
        tied=model.tied,
        pieces=model.letter_rows,
    )
    return replace(
        model,
        layers=tuple(layers_of(parameters)),
        embed=lambda tokens: sentence_rows(
            parameters, [token.id or 0 for token in tokens], [token.text for token in tokens]
        ),
        positions=parameters.get("positions"),
        unembedding=None,
    )
