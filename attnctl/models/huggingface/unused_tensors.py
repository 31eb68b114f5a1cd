"""Judge the tensors of a checkpoint's file that its network has no place for: harmless, worth a note, or needed.

A tensor is needed if it belongs to a module that runs before a later attention: the bias of a projection that the network
builds without one, the norm of queries, a low-rank adapter beside a weight.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnctl.models.huggingface.stored_tensors import StoredTensor
from attnctl.text import shortened

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# what changes no attention: tables that a network computes itself, masks, counters, scales of activations and of a cache,
# blocks and heads for other tasks
HARMLESS = re.compile(
    r"rotary_emb|rotary_pos_emb|inv_freq|(position|token_type)_ids$|relative_position_index"
    r"|num_batches_tracked|_float_tensor$|(encoder|decoder)\.version$|final_logits_bias|_extra_state$|causal_mask|attn_mask$"
    r"|masked_bias$|(input|output|activation|[qkv]|kv|prob)_scale(_inv)?$|scale_(input|output)$|scaled_fp8$|alibi|triangular_mask"
    r"|(^|\.)(pooler|mtp|mtp_\w+|nextn\w*|\w*lm_head|cls|heads?|classifier|score|qa_outputs|contact_head|[vq]_head|value_head)(\.|$)"
)
# parts of a block for multi-token prediction, which may be saved as one more layer
PREDICTS_MORE = re.compile(r"^(.*\.\d+)\.(enorm|hnorm|eh_proj|shared_head)\.")
# what a library for fine-tuning adds beside a weight, which changes it
ADAPTER = re.compile(r"lora_|hada_|lokr_|ia3_|oft_|boft_|vera_lambda|adapter")
SHOWN = 3  # names in a sentence


@dataclass(frozen=True)
class UnusedTensors:
    """The names of tensors that a network has no place for, and that are not harmless."""

    needed: tuple[str, ...] = ()  # they would change the attention
    elsewhere: tuple[str, ...] = ()  # in parts that the network does not have

    @property
    def is_adapter(self) -> bool:
        """Return whether tensors are those of an adapter beside its weights."""
        return any(ADAPTER.search(name) for name in self.needed)


def judge_unused(
    network: PreTrainedModel, unused: Collection[str], stored: Mapping[str, StoredTensor]
) -> UnusedTensors:
    """Return which of the `unused` names of tensors matter to a network; only tensors of a few numbers are read."""
    modules = {name for name, _ in network.named_modules()}
    buffers = {name for name, _ in network.named_buffers()}
    prefix = network.base_model_prefix
    uses_prefix = any(name.startswith(f"{prefix}.") for name in stored)
    predicts_more = {f"{match[1]}." for name in unused if (match := PREDICTS_MORE.match(name))}
    needed, elsewhere = list[str](), list[str]()
    for name in sorted(unused):
        spellings = (name, f"{prefix}.{name}", name.removeprefix(f"{prefix}."))
        tensor = next((stored[key] for key in spellings if key in stored), None)
        if not buffers.isdisjoint(spellings) or _is_harmless(name, tensor) or name.startswith(tuple(predicts_more)):
            continue
        if _is_inside(_nearest_module(spellings, modules)):
            if tensor is None or not _changes_nothing(tensor, stored):
                needed.append(name)
        elif not uses_prefix or (name if tensor is None else tensor.name).startswith(f"{prefix}."):
            # without the prefix, where others have it, a tensor belongs to a head for another task
            elsewhere.append(name)
    return UnusedTensors(tuple(needed), tuple(elsewhere))


def _is_harmless(name: str, tensor: StoredTensor | None) -> bool:
    """Return whether a tensor changes no attention by its name, or as a mask: "attn.bias" of GPT-2, of true and false."""
    if ADAPTER.search(name):
        return False
    if HARMLESS.search(name):
        return True
    return tensor is not None and name.endswith(".bias") and len(tensor.shape) == 4 and tensor.shape[:2] == (1, 1)


def _nearest_module(spellings: Iterable[str], modules: Collection[str]) -> str:
    """Return the longest part of a tensor's name that is a module of the network; "" if there is none."""
    best = ""
    for path in spellings:
        while path and path not in modules:
            path = path.rpartition(".")[0]
        best = max(best, path, key=len)
    return best


def _is_inside(path: str) -> bool:
    """Return whether a module runs before an attention: in a layer, or in the embeddings."""
    return re.search(r"\.\d+(\.|$)|embed|(^|\.)w[tp]e(\.|$)", path) is not None


def _changes_nothing(tensor: StoredTensor, stored: Mapping[str, StoredTensor]) -> bool:
    """Return whether a tensor changes nothing by its numbers: a bias of zeros, an adapter whose second matrix is zero."""
    if tensor.name.endswith("bias"):
        return not bool(tensor.values.any())
    partner = stored.get(tensor.name.replace("lora_A", "lora_B"))
    # as at the start of a training
    return "lora_" in tensor.name and partner is not None and not bool(partner.values.any())


def named(names: Iterable[str]) -> str:
    """Return the first of some names, and how many more there are."""
    listed = list(names)
    more = len(listed) - SHOWN
    return ", ".join(shortened(name, 100) for name in listed[:SHOWN]) + (f" and {more:,} more" if more > 0 else "")
