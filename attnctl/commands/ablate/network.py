"""`attnctl.effects`: what the heads and edges of any transformers model do for a prediction."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnctl.attention import Array
from attnctl.checks import limits
from attnctl.checks.argument_types import (
    check_network,
    check_tensors,
    check_types,
    checked_pairs,
    checked_selection,
    is_network,
)
from attnctl.checks.selection import chosen_indices
from attnctl.errors import UsageError
from attnctl.layer.interventions import Intervention
from attnctl.models import open_named_model, watched_tensors
from attnctl.source import Model
from attnctl.text.tokens import checked_text
from attnctl.watched import EffectRequest, Effects, measure_effects, watched_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from attnctl.watched import Watched


Target = str | int | Sequence[int]


def effects(
    model: Any,
    inputs: str | Mapping[str, Array],
    *,
    target: Target | None = None,
    against: Target | None = None,
    query: int = -1,
    layer: int | Sequence[int] | None = None,
    head: int | Sequence[int] | None = None,
    edges: Sequence[tuple[int, int]] | bool = False,
    how: str = "zero",
    reference: Mapping[int, Array] | None = None,
    attention: str | None = None,
    approximate: bool = False,
    batch_size: int | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> Effects:
    """Return what every head does for a prediction; with `edges`, every key of the query, or the (query, key) pairs.

    `model` is any transformers model, and `inputs` are its tensors for one text: input_ids (1, n), and decoder_input_ids
    (1, n) for an encoder-decoder. Or `model` is a name or an opened model of attnctl, and `inputs` is the text. `target`
    and `against` are ids, or texts if there is a tokenizer; None is the likeliest word. Δ is after minus before, in nats.

    >>> attnctl.effects("demo", "Alice will eat").strongest(1)[0].head  # doctest: +SKIP
    3
    """
    check_types("effects", str | Mapping, inputs=inputs)
    check_types("effects", int, query=query)
    check_types("effects", Sequence | bool, edges=edges)
    check_types("effects", str, how=how)
    check_types("effects", str | None, attention=attention)
    check_types("effects", Mapping | None, reference=reference)
    check_types("effects", bool, approximate=approximate)
    check_types("effects", int | None, batch_size=batch_size)
    if batch_size is not None:
        limits.BATCH_SIZE.check_value("batch_size", batch_size)
    _check_model(model, inputs)
    some_layers = checked_selection("effects", "layer", layer)
    some_heads = checked_selection("effects", "head", head)
    word, against_word = _as_text("target", target), _as_text("against", against)
    pairs = () if isinstance(edges, bool) else checked_pairs("effects", "edges", edges)
    if tokenizer is not None and not callable(getattr(type(tokenizer), "decode", None)):
        raise TypeError(f"effects(): tokenizer is a tokenizer, not {type(tokenizer).__name__}")
    base = Intervention(how=how, reference=reference)
    if isinstance(inputs, str):
        opened = open_named_model(os.fspath(model)) if isinstance(model, (str, os.PathLike)) else model
        token = None if query == -1 else str(query)
        watched: Watched = watched_text(opened, checked_text(inputs), token, base)
    else:
        watched = watched_tensors(model, inputs, query, base, attention, tokenizer)
    info = watched.info
    ask = EffectRequest(
        target=word,
        against=against_word,
        how=how,
        sweep_heads=not edges,
        layers=None if some_layers is None else chosen_indices(some_layers, info.n_layers or 1, "layer", info.name),
        heads=None if some_heads is None else chosen_indices(some_heads, info.n_heads or 1, "head", info.name),
        every_edge=edges is True,
        edges=tuple(_edge_of_pair(watched, pair) for pair in pairs),
        approximate=approximate,
        batch_size=batch_size,
    )
    return measure_effects(watched, ask)


def _check_model(model: object, inputs: str | Mapping[str, Array]) -> None:
    """Raise TypeError unless the model can read a text, or is a network that can be called with tensors."""
    if not isinstance(inputs, str):
        check_network("effects", model)
        check_tensors("effects", "inputs", inputs)
    elif not isinstance(model, (str, os.PathLike, Model)):
        expected = "a transformers model reads what it is called with" if is_network(model) else "a model or its name"
        raise TypeError(
            f"effects(): with a text, model is one of attnctl or its name, not {type(model).__name__}: {expected}"
        )


def _edge_of_pair(watched: Watched, pair: tuple[int, int]) -> tuple[int, int]:
    n_q, n_k = len(watched.tokens), len(watched.key_tokens or watched.tokens)
    query, key = pair
    if not -n_q <= query < n_q or not -n_k <= key < n_k:
        raise UsageError(f"no edge {pair}: there are {n_q} queries and {n_k} keys")
    return query % n_q, key % n_k


def _as_text(name: str, target: Target | None) -> str | None:
    """Return the target as a text that `watched.word` reads; ids are written after a mark that no text begins with.

    Raises TypeError with the argument's name if it is neither a text nor ids, UsageError for a text with that mark.
    """
    if target is None or isinstance(target, str):
        if target is not None and target.startswith("\0"):
            raise UsageError(f"effects(): {name} begins with a NUL: no vocabulary has such a word")
        return target
    return "\0" + ",".join(map(str, checked_selection("effects", name, target) or ()))
