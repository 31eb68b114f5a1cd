"""Watch a prediction of a transformers network that a user calls with tensors, without a reader of its inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from attnctl.attention import Array
from attnctl.checks.selection import chosen_indices
from attnctl.errors import AttnctlError, UsageError
from attnctl.layer.interventions import Intervention
from attnctl.models.huggingface.attention_interface import architecture_name
from attnctl.models.huggingface.checkpoint import labels_of_network, scale_of_labels
from attnctl.models.huggingface.network import network_info
from attnctl.models.huggingface.watched import WatchedNetwork, check_switchable
from attnctl.runtime.arrays import as_numpy
from attnctl.text.tokens import Token
from attnctl.watched.effects import Word, spelled_word

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def watch_tensors(
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
