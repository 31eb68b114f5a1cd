"""No weights at all: the embeddings are queries, keys and values at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from attnctl.arrays import Floats
from attnctl.errors import UsageError
from attnctl.formats.arrays import given_rows
from attnctl.models.builtin.random import random_rows
from attnctl.models.builtin.stack import Stack, chosen_settings, stack_info
from attnctl.tokens import Token, open_tokenizer

NOTE = "no weights, random embeddings: give --embeddings FILE for vectors that mean something"


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
        embed, notes = partial(random_rows, seed, d_model), (NOTE,)
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
