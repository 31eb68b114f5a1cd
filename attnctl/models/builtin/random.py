"""Random weights: seeded, so that the same word has the same vector in every sentence and on every machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from attnctl import limits
from attnctl.arrays import Floats
from attnctl.errors import UsageError
from attnctl.formats.arrays import given_rows
from attnctl.models.builtin.stack import Settings, Stack, chosen_settings, stack_info, uniform_numbers
from attnctl.tokens import Token, open_tokenizer

RANDOM_NOTE = "random weights: the numbers show how attention is computed, and mean nothing yet"


def random_rows(seed: int, d_model: int, tokens: Sequence[Token]) -> Floats:
    """One row a token, of variance 1, that depends on the seed and the token's text alone → (n, d_model)."""
    return np.stack([_random_row(seed, d_model, token.text) for token in tokens])  # (n, d_model)


@lru_cache(maxsize=10_000)  # a batch meets the same words again and again
def _random_row(seed: int, d_model: int, text: str) -> Floats:
    row: Floats = uniform_numbers(f"{seed}/embedding/{text}", (d_model,)) * np.float32(math.sqrt(3.0))  # (d_model,)
    return row


class AskedSizes(NamedTuple):
    """The sizes asked for, by the options of these names; None: as the others have it."""

    d_model: int | None = None
    d_k: int | None = None
    n_heads: int = 1
    n_kv_heads: int | None = None
    n_layers: int = 1
    output_projection: bool | None = None


def open_random(*, seed: int = 0, embeddings: str | None = None, tokenizer: str | None = None, **how: Any) -> Stack:
    """A stack of random layers; `how` are the fields of AskedSizes and of Settings.

    Raises UsageError for sizes that do not fit.
    """
    asked = AskedSizes(**{name: how.pop(name) for name in AskedSizes._fields if name in how})
    settings = chosen_settings(how | {"seed": seed})
    rows = None if embeddings is None else given_rows(embeddings)
    if rows is not None:
        if asked.d_model not in (None, rows.d_model):
            raise UsageError(
                f"--d-model {asked.d_model} against {embeddings} with {rows.d_model} columns: leave --d-model out"
            )
        asked = asked._replace(d_model=rows.d_model)
    sizes = _layer_sizes(asked, settings)
    parts = tuple(_random_layer(seed, at, sizes) for at in range(asked.n_layers))
    embed = rows if rows is not None else partial(random_rows, seed, sizes.d_model)
    return Stack(
        info=stack_info("random", "random", parts, settings, seed=seed),
        settings=settings,
        layers=parts,
        embed=embed,
        tokenize=open_tokenizer(tokenizer),
        residual=asked.n_layers > 1,
        notes=(RANDOM_NOTE,),
    )


def _large_number(number: int) -> str:
    return f"{number:,}" if number < 10**15 else "far too many"


def _layer_sizes(asked: AskedSizes, settings: Settings) -> LayerSizes:
    """The sizes of every layer. Raises UsageError where they do not fit each other, or would fill the memory."""
    heads, layers, d_k = asked.n_heads, asked.n_layers, asked.d_k
    d_model = 8 if asked.d_model is None else asked.d_model
    kv_heads = heads if asked.n_kv_heads is None else asked.n_kv_heads
    _check_room(layers * heads * d_model * (d_model // heads if d_k is None else d_k))
    if heads % kv_heads:
        raise UsageError(
            f"--n-heads {heads} cannot share --n-kv-heads {kv_heads} evenly: heads must be a multiple of it"
        )
    if d_k is None:
        if d_model % heads:
            raise UsageError(f"--d-model {d_model} does not divide into --n-heads {heads}: give --d-k as well")
        d_k = d_model // heads
    if settings.rope_theta is not None and d_k % 2:
        raise UsageError(f"--rope turns pairs of dimensions, but d_k is {d_k}: give an even --d-k")
    projection = heads > 1 or layers > 1 if asked.output_projection is None else asked.output_projection
    if layers > 1 and not projection and heads * d_k != d_model:
        raise UsageError(
            f"stacked layers without W_O need heads × d_k = d_model, not {heads} × {d_k} and {d_model}: see --d-k"
        )
    return LayerSizes(d_model, d_k, heads, kv_heads, projection)


def _check_room(numbers: int) -> None:
    """Raise UsageError where the matrices are too large; AttnctlError where they would fill the memory."""
    if numbers > limits.RANDOM_NUMBERS:
        raise UsageError(
            f"--n-layers, --n-heads, --d-model and --d-k ask for {_large_number(numbers)} numbers a matrix: ask for less"
        )
    limits.check_memory(
        8 * 4 * numbers,
        f"a random model of {_large_number(numbers)} numbers a matrix",
        "ask for less with --d-model or --n-layers",
    )


class LayerSizes(NamedTuple):
    """How large a layer's matrices are, and whether it has W_O."""

    d_model: int
    d_k: int
    heads: int
    kv_heads: int
    output_projection: bool


def _random_layer(seed: int, layer: int, sizes: LayerSizes) -> dict[str, Floats]:
    d_model, d_k, heads, kv_heads, output_projection = sizes

    def drawn_matrix(name: str, shape: tuple[int, ...], fan_in: int) -> Floats:
        return uniform_numbers(f"{seed}/layers.{layer}.{name}", shape) * np.float32(math.sqrt(3.0 / fan_in))

    parameters = {
        "W_Q": drawn_matrix("W_Q", (heads, d_model, d_k), d_model),
        "W_K": drawn_matrix("W_K", (kv_heads, d_model, d_k), d_model),
        "W_V": drawn_matrix("W_V", (kv_heads, d_model, d_k), d_model),
    }
    if output_projection:
        parameters["W_O"] = drawn_matrix("W_O", (heads * d_k, d_model), heads * d_k)
    return parameters


DOT_NOTE = "no weights, random embeddings: give --embeddings FILE for vectors that mean something"


def open_dot(
    *,
    seed: int = 0,
    d_model: int | None = None,
    n_heads: int = 1,
    n_layers: int = 1,
    embeddings: str | None = None,
    tokenizer: str | None = None,
    **how: Any,
) -> Stack:
    """A stack whose layers hold no parameters: scores are X Xᵀ. Raises UsageError for sizes that do not fit."""
    for name in ("d_k", "n_kv_heads", "output_projection"):
        if how.pop(name, None):
            raise UsageError(f"--{name.replace('_', '-')} needs weights, and the model dot has none")
    settings = chosen_settings(how | {"seed": seed})
    embed: Callable[[Sequence[Token]], Floats]
    notes: tuple[str, ...]
    if embeddings is not None:
        embed = rows = given_rows(embeddings)
        d_model, notes = rows.d_model, ()
    else:
        d_model = 8 if d_model is None else d_model
        embed, notes = partial(random_rows, seed, d_model), (DOT_NOTE,)
    if d_model % n_heads:
        raise UsageError(f"--n-heads {n_heads}: the {d_model} dimensions of the embeddings do not divide into them")
    d_k = d_model // n_heads
    if settings.rope_theta is not None and d_k % 2:
        raise UsageError(f"--rope turns pairs of dimensions, but each head has {d_k}")
    parts: tuple[dict[str, Floats], ...] = ({},) * n_layers
    sizes = {"d_model": d_model, "d_k": d_k, "d_v": d_k, "n_heads": n_heads, "n_kv_heads": n_heads}
    return Stack(
        info=stack_info("dot", "dot", parts, settings, seed=None if embeddings else seed, **sizes),
        settings=settings,
        layers=parts,
        embed=embed,
        tokenize=open_tokenizer(tokenizer),
        residual=n_layers > 1,
        notes=notes,
    )
