"""Read a batch of token ids as a collator makes it: its entries, its segments, other tokens in their place."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from attnctl.attention import Array
from attnctl.errors import AttnctlError, UsageError
from attnctl.models.huggingface.attention_interface import architecture_name
from attnctl.models.huggingface.optional_fields import config_value

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BOUNDARIES = ("cu_seq_lens_q", "cu_seqlens")  # transformers has no keyword of the second name
PER_TOKEN = ("segments", "attention_mask", "position_ids", "token_type_ids", "labels", "seq_idx")


def as_tensor(name: str, value: Any) -> Any:
    """Return an entry of a batch as a tensor, or as a bool or a number. Raises UsageError for anything else."""
    try:
        tensor = value if isinstance(value, torch.Tensor) else torch.as_tensor(np.asarray(value))
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name} does not hold numbers in rows of equal length") from error
    if name == "use_cache" and tensor.numel() != 1:
        raise UsageError("use_cache is true or false")
    return tensor if tensor.ndim else tensor.item()


def checked_ids(ids: object, network: PreTrainedModel, name: str, why: str) -> Array:
    """Return input_ids as (batch, n). Raises UsageError for ids that the network has no embeddings for.

    `why` says what the ids are needed for.
    """
    if not isinstance(ids, torch.Tensor) or ids.ndim not in (1, 2) or ids.numel() == 0:
        raise UsageError(f"the batch has no input_ids of shape (batch, tokens): {why}")
    vocabulary = vocabulary_of(network)
    if not torch.can_cast(ids.dtype, torch.int64) or int(ids.min()) < 0 or int(ids.max()) >= vocabulary:
        raise UsageError(f"input_ids are integers from 0 to {vocabulary - 1}, the tokens of {name}")
    return ids.reshape(-1, ids.shape[-1])


def vocabulary_of(network: PreTrainedModel) -> int:
    """Return how many tokens the network has embeddings for. Raises AttnctlError for a network without one table of them."""
    table = _token_embeddings(network)
    if not isinstance(weight := getattr(table, "weight", None), torch.Tensor):
        raise AttnctlError(
            f"{architecture_name(network)} has no table of token embeddings: its tokens cannot be exchanged"
        )
    return len(weight)


def _token_embeddings(network: PreTrainedModel) -> Any:
    """Return the table of a network, or of its part that reads text (CLIP), by its name at last; None without one."""
    reading = [part for part in network.modules() if getattr(part, "main_input_name", None) == "input_ids"]
    for part in (network, *reading):
        with suppress(NotImplementedError, AttributeError):
            table = part.get_input_embeddings()  # type: ignore[operator]
            if hasattr(table, "weight"):
                return table
    tables = {name: part for name, part in network.named_modules() if isinstance(part, torch.nn.Embedding)}
    return next(
        (table for name, table in tables.items() if re.search("token_embed|word_embed|embed_tokens", name)), None
    )


def check_names(names: Iterable[str], known: Container[str], architecture: str) -> None:
    """Raise UsageError for an entry of a batch that a network does not take; one that numbers documents has a name here."""
    for name in sorted(names):
        if name not in known:
            what = "leave it out of the batch"
            if re.search("doc|seq_?(len|id)|segment|sample|pack", name):
                what = "if it says which tokens are one document, number the document of each token in segments"
            raise UsageError(f"{architecture} takes no {name!r}: {what}")


def checked_entry(name: str, value: Any, ids: Array) -> Any:
    """Return an entry of a batch on the device of `ids` (batch, n). Raises UsageError for an impossible shape or number."""
    (batch, n), shape = ids.shape, tuple(value.shape) if isinstance(value, torch.Tensor) else ()
    if name == "attention_mask" and len(shape) > 2:
        if len(shape) != 4 or shape[-2:] != (n, n) or shape[0] not in (1, batch):
            raise UsageError(f"attention_mask has shape {shape}: it is ({batch}, {n}) or ({batch}, 1, {n}, {n})")
        check_added_mask(value)
    elif name in PER_TOKEN:
        three = name == "position_ids" and shape[1:] == (batch, n)  # time, height and width of each token
        if not three and (shape[-1:] != (n,) or shape[:-1] not in ((), (1,), (batch,))):
            raise UsageError(f"{name} has shape {shape}, and input_ids {batch, n}: a number for each token")
        value = value.expand(*shape[:-2], batch, n)
    if not isinstance(value, torch.Tensor):
        return value
    if bool(value.isnan().any()):
        raise UsageError(f"{name} holds NaN")
    if value.is_complex() or (name in PER_TOKEN and name != "attention_mask" and value.is_floating_point()):
        raise UsageError(f"{name} holds numbers that are not integers")
    return value.to(ids.device)


def check_added_mask(mask: Array) -> None:
    """Raise UsageError for a mask of four dimensions in numbers that hide nothing when they are added to the scores."""
    if mask.dtype == torch.bool:
        return
    is_flag = bool(((mask == 0) | (mask == 1)).all()) and bool(mask.any())
    if is_flag or not mask.is_floating_point():
        holds = "0 and 1" if is_flag else "integers"
        raise UsageError(
            f"attention_mask of shape {tuple(mask.shape)} holds {holds}, but the model adds it to the scores: give 0 and a "
            "large negative number as floats, or booleans with attn_implementation='sdpa'"
        )


def segment_numbers(
    network: PreTrainedModel, ids: Array, entries: Mapping[str, Any], segment_ids: Array | None = None
) -> tuple[Array, Array]:
    """Return the number of each token's segment, and whether the token is real, not padding: (batch, n) each, on the CPU.

    The numbers come from `segment_ids` (-1 is padding), an attention_mask of numbers, position_ids that restart,
    cu_seq_lens_q or seq_idx; without any of them a row is one segment. Raises UsageError for boundaries that do not fit
    the row.
    """
    (batch, n), mask, positions = ids.shape, entries.get("attention_mask"), entries.get("position_ids")
    flat = mask if mask is not None and mask.ndim == 2 else torch.ones_like(ids)
    real = flat != 0  # (batch, n)
    numbers = torch.zeros_like(ids)  # (batch, n)
    ends = entries.get(BOUNDARIES[0], entries.get(BOUNDARIES[1]))
    if segment_ids is not None:
        numbers, real = segment_ids, real & (segment_ids >= 0)
        first, pad = segment_ids == 0, config_value(network.config, "pad_token_id")
        if bool((segment_ids > 0).any()) and pad is not None and bool((ids[first] == pad).all()):
            real = real & ~first  # T5X numbers documents from 1, and padding 0
    elif bool((flat > 1).any()):
        numbers = flat
    elif positions is not None and bool((begins := segment_begins(positions)).any()):
        numbers[:, 1:] = (begins | (real[:, 1:] != real[:, :-1])).cumsum(1)
    elif ends is not None:
        ends = torch.as_tensor(ends)
        if batch > 1 or ends.ndim != 1 or ends[0] != 0 or ends[-1] != n or bool((ends.diff() < 0).any()):
            raise UsageError(f"cu_seq_lens_q are the boundaries of one row's segments: from 0 up to its {n} tokens")
        numbers[0] = torch.bucketize(torch.arange(n), ends[1:].cpu().contiguous(), right=True)
    elif "seq_idx" in entries:
        numbers = entries["seq_idx"]
    return numbers.cpu(), real.cpu()


def segment_begins(positions: Array) -> Array:
    """Return where a new document begins, (batch, n - 1), by position_ids (batch, n) or (planes, batch, n).

    The first of three planes is time, which stands still in a picture and goes back only where a document begins.
    """
    steps = (positions if positions.ndim == 2 else positions[0]).diff()
    return steps < 0 if len(positions) == 3 and positions.ndim == 3 else steps != 1


def positions_of_tokens(network: PreTrainedModel, ids: Array) -> Array | None:
    """Return the positions that a network computes from its tokens (RoBERTa), to keep them when tokens change; else None."""
    for part in network.modules():
        if hasattr(part, "create_position_ids_from_input_ids"):
            return part.create_position_ids_from_input_ids(ids, part.padding_idx)  # type: ignore[operator]
    return None


def other_ids(network: PreTrainedModel, ids: Array) -> Array:
    """Return another, ordinary token for each of `ids`, (batch, n); the same ones in each call.

    Raises AttnctlError if the vocabulary has no two ordinary tokens.
    """
    special = special_ids(network)
    free = torch.tensor([token for token in range(vocabulary_of(network)) if token not in special])
    if len(free) < 2:
        raise AttnctlError(
            f"the vocabulary of {architecture_name(network)} has no other tokens to put in place of a segment's tokens"
        )
    picked = torch.randint(len(free), ids.shape, generator=torch.Generator().manual_seed(0))
    picked = torch.where(free[picked] == ids.cpu(), (picked + 1) % len(free), picked)
    return free[picked].to(ids.device)


def special_ids(network: PreTrainedModel) -> set[int]:
    """Return the ids of the tokens with a meaning of their own by the configuration: ends, padding, pictures."""
    settings = vars(network.config).items()
    values = [value for name, value in settings if re.search(r"_token_(id|index)s?$", name)]
    return {int(token) for value in values for token in np.ravel(value if value is not None else []).tolist()}
