"""Random weights from a seed, so that a word has the same vector in every sentence and on every machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from attnctl.checks import limits
from attnctl.errors import UsageError, option_name
from attnctl.formats.arrays import given_rows
from attnctl.models.builtin.opened import OpenedStack
from attnctl.models.builtin.stack import Settings, Stack, chosen_settings, stack_info, uniform_numbers
from attnctl.runtime.arrays import Floats
from attnctl.text.tokens import Token, open_tokenizer

RANDOM_NOTE = "random weights: the numbers show how attention is computed, and mean nothing yet"


def random_rows(seed: int, d_model: int, tokens: Sequence[Token]) -> Floats:
    """Return one row for each token, of variance 1, that depends only on the seed and the text → (n, d_model)."""
    return np.stack([_random_row(seed, d_model, token.text) for token in tokens])  # (n, d_model)


@lru_cache(maxsize=10_000)  # a batch has the same words many times
def _random_row(seed: int, d_model: int, text: str) -> Floats:
    row: Floats = uniform_numbers(f"{seed}/embedding/{text}", (d_model,)) * np.float32(math.sqrt(3.0))  # (d_model,)
    return row


def _row_source(
    embeddings: str | None, d_model: int | None, seed: int
) -> tuple[Callable[[Sequence[Token]], Floats], int]:
    """Return the function that makes the rows of tokens, and their width: rows of a file, or seeded rows.

    Raises UsageError if the file has another width than `d_model`.
    """
    if embeddings is None:
        d_model = 8 if d_model is None else d_model
        return partial(random_rows, seed, d_model), d_model
    rows = given_rows(embeddings)
    if d_model not in (None, rows.d_model):
        raise UsageError(f"{embeddings} has {rows.d_model} columns: leave it out", option="d_model", value=d_model)
    return rows, rows.d_model


def _dimensions_of_heads(d_model: int, heads: int, d_k: int | None, settings: Settings, instead: str = "") -> int:
    """Return the number of dimensions of each head.

    Raises UsageError if they do not divide, or cannot be rotated in pairs; `instead` is the advice if `d_k` is no
    option.
    """
    if d_k is None and d_model % heads:
        why = f"it does not divide into {option_name('n_heads', heads)}"
        advice = instead or f"give {option_name('d_k')} as well"
        raise UsageError(f"{why}: {advice}", option="d_model", value=d_model)
    d_k = d_model // heads if d_k is None else d_k
    if settings.rope_theta is not None and d_k % 2:
        advice = instead or f"give an even {option_name('d_k')}"
        raise UsageError(f"rotary positions turn pairs of dimensions, but d_k is {d_k}: {advice}")
    return d_k


def open_random(
    *,
    seed: int = 0,
    d_model: int | None = None,
    d_k: int | None = None,
    n_heads: int = 1,
    n_kv_heads: int | None = None,
    n_layers: int = 1,
    output_projection: bool | None = None,
    embeddings: str | None = None,
    tokenizer: str | None = None,
    **how: Any,
) -> Stack:
    """Return a stack of random layers; `how` are the fields of Settings. Raises UsageError for sizes that do not fit."""
    settings = chosen_settings(how | {"seed": seed})
    embed, d_model = _row_source(embeddings, d_model, seed)
    kv_heads = n_heads if n_kv_heads is None else n_kv_heads
    _check_room(n_layers * n_heads * d_model * (d_model // n_heads if d_k is None else d_k))
    if n_heads % kv_heads:
        shared = option_name("n_kv_heads", kv_heads)
        why = f"it cannot share {shared} evenly: heads must be a multiple of it"
        raise UsageError(why, option="n_heads", value=n_heads)
    d_k = _dimensions_of_heads(d_model, n_heads, d_k, settings)
    projection = n_heads > 1 or n_layers > 1 if output_projection is None else output_projection
    if n_layers > 1 and not projection and n_heads * d_k != d_model:
        sizes = f"{n_heads} × {d_k} and {d_model}: see {option_name('d_k')}"
        raise UsageError(f"stacked layers without W_O need heads × d_k = d_model, not {sizes}")
    shapes: dict[str, tuple[int, ...]]
    shapes = {"W_Q": (n_heads, d_model, d_k), "W_K": (kv_heads, d_model, d_k), "W_V": (kv_heads, d_model, d_k)}
    shapes |= {"W_O": (n_heads * d_k, d_model)} if projection else {}
    # each has the variance 1 / (number of summands)
    layers = tuple(
        {
            name: uniform_numbers(f"{seed}/layers.{layer}.{name}", shape) * np.float32(math.sqrt(3.0 / shape[-2]))
            for name, shape in shapes.items()
        }
        for layer in range(n_layers)
    )
    return OpenedStack(
        info=stack_info("random", "random", layers, settings, seed=seed),
        settings=settings,
        layers=layers,
        embed=embed,
        tokenize=open_tokenizer(tokenizer),
        residual=n_layers > 1,
        notes=(RANDOM_NOTE,),
    )


def _check_room(numbers: int) -> None:
    """Raise UsageError if the matrices are too large; AttnctlError if they would fill the memory."""
    size = f"{numbers:,} numbers a matrix" if numbers < 10**15 else "far too many numbers a matrix"
    if numbers > limits.RANDOM_NUMBERS:
        raise UsageError(f"layers, heads, d_model and d_k ask for {size}: ask for less")
    limits.check_memory(8 * 4 * numbers, f"a random model of {size}", "ask for a smaller d_model, or fewer layers")


DOT_NOTE = "no weights, random embeddings: give embeddings of your own for vectors that mean something"


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
    """Return a stack without parameters: scores are X Xᵀ. Raises UsageError for sizes that do not fit."""
    for name in ("d_k", "n_kv_heads", "output_projection"):
        if how.pop(name, None):
            raise UsageError("needs weights, and the model dot has none", option=name)
    settings = chosen_settings(how | {"seed": seed})
    embed, d_model = _row_source(embeddings, d_model, seed)
    d_k = _dimensions_of_heads(d_model, n_heads, None, settings, f"choose another {option_name('n_heads')}")
    layers: tuple[dict[str, Floats], ...] = ({},) * n_layers
    sizes = {"d_model": d_model, "d_k": d_k, "d_v": d_k, "n_heads": n_heads, "n_kv_heads": n_heads}
    return OpenedStack(
        info=stack_info("dot", "dot", layers, settings, seed=None if embeddings else seed, **sizes),
        settings=settings,
        layers=layers,
        embed=embed,
        tokenize=open_tokenizer(tokenizer),
        residual=n_layers > 1,
        notes=() if embeddings else (DOT_NOTE,),
    )
