"""`attnctl.effects`: what the heads and edges of any transformers model do for a prediction."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnctl.attention import Array
from attnctl.checks.argument_types import (
    check_network,
    check_tensors,
    check_types,
    checked_pairs,
    checked_selection,
    is_network,
)
from attnctl.checks.selection import chosen_indices
from attnctl.errors import AttnctlError, UsageError
from attnctl.layer.interventions import Intervention
from attnctl.models.huggingface.attention_interface import architecture_name
from attnctl.models.huggingface.checkpoint import labels_of_network, scale_of_labels
from attnctl.models.huggingface.network import network_info
from attnctl.models.huggingface.watched import WatchedNetwork, check_switchable
from attnctl.runtime.arrays import as_numpy
from attnctl.source.model import Model
from attnctl.text.tokens import Token, checked_text
from attnctl.watched.effects import Effects, Word, spelled_word
from attnctl.watched.measure import EffectRequest, measure_effects

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from attnctl.watched.measure import Watched


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
    _check_model(model, inputs)
    some_layers = checked_selection("effects", "layer", layer)
    some_heads = checked_selection("effects", "head", head)
    word, against_word = _as_text("target", target), _as_text("against", against)
    pairs = () if isinstance(edges, bool) else checked_pairs("effects", "edges", edges)
    if tokenizer is not None and not callable(getattr(type(tokenizer), "decode", None)):
        raise TypeError(f"effects(): tokenizer is a tokenizer, not {type(tokenizer).__name__}")
    base = Intervention(how=how, reference=reference)
    if isinstance(inputs, str):
        from attnctl.models import open_named_model
        from attnctl.watched.model import watched_text

        opened = open_named_model(os.fspath(model)) if isinstance(model, (str, os.PathLike)) else model
        token = None if query == -1 else str(query)
        watched: Watched = watched_text(opened, checked_text(inputs), token, base)
    else:
        watched = watch_given_network(model, inputs, query, base, attention, tokenizer)
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


def watch_given_network(
    model: PreTrainedModel,
    inputs: Mapping[str, Array],
    query: int,
    base: Intervention,
    attention: str | None,
    tokenizer: PreTrainedTokenizerBase | None,
) -> WatchedNetwork:
    """Return a transformers model as a watched prediction for one text; `inputs` are the tensors of its forward.

    Raises UsageError unless they hold exactly one text.
    """
    check_switchable(model)
    tensors = dict(inputs)
    two = bool(model.config.is_encoder_decoder)
    kind = (attention or "cross") if two else "self"
    query_input = "decoder_input_ids" if kind in ("decoder", "cross") else "input_ids"
    if query_input not in tensors or tensors[query_input].ndim != 2 or tensors[query_input].shape[0] != 1:
        raise UsageError(f"effects are of one text: give {query_input} of shape (1, n)")
    tokens = _tokens_of_ids(tensors[query_input], tokenizer)
    info = network_info(model, architecture_name(model), kind)
    position = chosen_indices([query], len(tokens), "token", "the text", "query")[0]
    spoken = tensors["decoder_input_ids"] if two else tensors["input_ids"]  # (1, n)
    tail = len(tokens) - position if kind != "encoder" else 1
    return WatchedNetwork(
        network=model,
        info=info,
        kind=kind,
        text=" ".join(token.text for token in tokens),
        tokens=tokens,
        query=position,
        tail=tail,
        inputs=lambda continuation: _continued_inputs(
            tensors, spoken, "decoder_input_ids" if two else "input_ids", continuation
        ),
        spell=lambda number: _spelled_id(tokenizer, number),
        read=lambda text: _word_of_text(tokenizer, text, model),
        classes=labels_of_network(model),
        scale=scale_of_labels(model),
        base=base,
        key_tokens=_tokens_of_ids(tensors["input_ids"], tokenizer) if kind == "cross" else None,
    )


def _tokens_of_ids(ids: Array, tokenizer: PreTrainedTokenizerBase | None) -> tuple[Token, ...]:
    return tuple(
        Token(_spelled_id(tokenizer, number).strip() or str(number), number) for number in as_numpy(ids)[0].tolist()
    )


def _spelled_id(tokenizer: PreTrainedTokenizerBase | None, number: int) -> str:
    return str(number) if tokenizer is None else str(tokenizer.decode([number]))


def _word_of_text(tokenizer: PreTrainedTokenizerBase | None, text: str, model: PreTrainedModel) -> Word:
    if text.startswith("\0"):
        ids = tuple(int(part) for part in text[1:].split(","))
        size = model.config.get_text_config().vocab_size
        if not ids or not all(0 <= number < size for number in ids):
            raise UsageError(f"no id {text[1:]}: the vocabulary of {architecture_name(model)} has 0 to {size - 1}")
        return spelled_word("".join(_spelled_id(tokenizer, number) for number in ids), ids)
    if tokenizer is None:
        raise UsageError(f"the target {text!r} is a text: give a tokenizer, or ids")
    ids = tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
    if not ids or getattr(tokenizer, "unk_token_id", None) in ids:
        raise AttnctlError(f"the vocabulary has no {text!r}")
    return spelled_word(text, ids)


def _continued_inputs(
    tensors: dict[str, Array], ids: Array, name: str, continuation: tuple[int, ...]
) -> dict[str, Array]:
    """Return the inputs, with ids appended to the sequence that the model continues."""
    import torch

    if not continuation:
        return tensors
    more = torch.tensor([continuation], device=ids.device, dtype=ids.dtype)  # (1, continuation)
    longer = tensors | {name: torch.cat([ids, more], dim=1)}  # (1, n + continuation)
    mask = "decoder_attention_mask" if name.startswith("decoder") else "attention_mask"
    if mask in tensors:
        longer[mask] = torch.cat([tensors[mask], torch.ones_like(more)], dim=1)  # (1, n + continuation)
    return longer
