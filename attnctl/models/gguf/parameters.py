"""Name the tensors of a GGUF file that each parameter of a network is made of, and undo what the converter did to them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attnctl.errors import AttnctlError
from attnctl.models.gguf.families import Family
from attnctl.models.gguf.settings import Settings
from attnctl.models.gguf.weights import (
    Interleaved,
    Joined,
    Reordered,
    Reshaped,
    Rows,
    Shifted,
    Source,
    Stacked,
    Turned,
    Weight,
    part_of,
    rotated_halves,
)  # fmt: skip
from attnctl.models.huggingface.hub import import_extra
from attnctl.runtime.arrays import Floats

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from attnctl.models.gguf.tensors import StoredTensor

# parameters of transformers that the gguf library has no name for → theirs; {b} is the number of the block
NAMES: Mapping[str, str] = {
    r".*\.word_embeddings_layernorm\.(weight|bias)": "token_embd_norm.{0}",
    r".*\.block_sparse_moe\.router\.weight": "blk.{b}.ffn_gate_inp.weight",
    r".*\.self_attn\.sinks": "blk.{b}.attn_sinks.weight",
    r".*e_score_correction_bias": "blk.{b}.exp_probs_b.bias",
}
BLOOM_NORM = r"transformer\.h\.\d+\.post_attention_layernorm\.(weight|bias)"
STORED_BUFFERS = ("e_score_correction_bias", ".act_fn.beta", ".act_fn.eps")  # buffers that are in a file
BLOCK = re.compile(r"\.(?:layers|h|blocks)\.(\d+)\.")
# tensors that are no parameters: settings read them, or they predict several tokens at once
READ_AS_SETTINGS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


@dataclass(frozen=True, eq=False)
class Constant(Weight):
    """A weight that no file stores as a tensor: zeros for a bias that is missing, or numbers of the metadata."""

    values: Floats

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """Return the shape."""
        return self.values.shape

    @property
    def sources(self) -> tuple[Source, ...]:
        """Return no tensors."""
        return ()

    def rows(self, which: Rows) -> Floats:
        """Return rows in float32."""
        return self.values[which]

    def array(self) -> Floats:
        """Return all numbers; there may be one without an axis."""
        return self.values


@dataclass
class Parameters:
    """The weights of a network by the names of its parameters."""

    network: PreTrainedModel
    settings: Settings
    family: Family

    def weights(self) -> dict[str, Weight]:
        """Return the weights. Raises AttnctlError for a tensor that is not accounted for."""
        holders: dict[str, Any] = dict(self.network.named_parameters())
        holders |= {name: value for name, value in self.network.named_buffers() if name.endswith(STORED_BUFFERS)}
        made = {name: self._weight(name, tuple(value.shape)) for name, value in holders.items()}
        weights = {name: weight for name, weight in made.items() if weight is not None}
        self._check_accounted(weights)
        return weights

    def _weight(self, name: str, shape: tuple[int, ...]) -> Weight | None:
        weight = (
            self._expert(name, shape)
            or self._low_rank(name)
            or self._plain(name, shape)
            or self._part_of_fused(name, shape)
        )
        weight = weight or self._setting(name, shape)
        if weight is None:
            return (
                Constant(np.zeros(shape, np.float32)) if name.endswith(".bias") and self._is_zero_bias(name) else None
            )
        numbers = np.prod(weight.shape)
        return weight if weight.shape == shape or numbers != np.prod(shape) else Reshaped(weight, shape)

    # --- names --------------------------------------------------------------------------------------------------

    def name_of(self, name: str) -> str | None:
        """Return the name of the tensor of a parameter; None if the gguf library has none."""
        block = BLOCK.search(name)
        number = block[1] if block else ""
        if self.settings.architecture == "bloom" and (norm := re.fullmatch(BLOOM_NORM, name)):
            return f"blk.{number}.ffn_norm.{norm[1]}"
        for pattern, theirs in NAMES.items():
            if match := re.fullmatch(pattern, name):
                return theirs.format(*match.groups(), b=number)
        stored: str | None = self._names.get_name(name, (".weight", ".bias"))
        return stored

    @property
    def _names(self) -> Any:
        if "_map" not in vars(self):
            kinds = {theirs: kind for kind, theirs in import_extra("gguf.constants").MODEL_ARCH_NAMES.items()}
            names = import_extra("gguf.tensor_mapping").get_tensor_name_map
            kind = kinds.get(self.settings.architecture)
            if kind is None:
                raise AttnctlError(
                    f"{self.settings.name} is of the architecture {self.settings.architecture}, which the installed gguf "
                    "library does not know: pip install --upgrade gguf"
                )
            vars(self)["_map"] = names(kind, self.settings.whole("block_count"))
        return vars(self)["_map"]

    def _tensor(self, name: str) -> StoredTensor | None:
        return self.settings.file.tensors.get(name)

    # --- how a parameter is made --------------------------------------------------------------------------------

    def _plain(self, name: str, shape: tuple[int, ...]) -> Weight | None:
        stored = self.name_of(name)
        tensor = None if stored is None else self._tensor(stored)
        if stored is None or tensor is None:
            return None
        weight: Weight = tensor
        if self.family.halves and (found := re.fullmatch(r"blk\.\d+\.attn_([qk])\.(weight|bias)", stored)):
            weight = rotated_halves(weight, self._heads(found[1]))
        if re.fullmatch(r"blk\.\d+\.attn_qkv\.(weight|bias)", stored) and self.family.layout:
            weight = self._unfused(weight)
        if self.family.norm_shift and stored.endswith("norm.weight"):
            weight = Shifted(weight, self.family.norm_shift)
        return Turned(weight) if self.family.turned and re.search(r"\.(c_attn|c_proj|c_fc)\.weight$", name) else weight

    def _heads(self, which: str) -> int:
        heads = self.settings.heads
        return heads if which == "q" else self.settings.whole("attention.head_count_kv", heads)

    def _unfused(self, weight: Weight) -> Weight:
        """Return the rows of a fused matrix in transformers' order; the converter has those of Q first, then K, then V."""
        heads, kv_heads, width = self.settings.heads, self._heads("k"), self.settings.head_width
        if self.family.layout == "interleaved":
            order = np.arange(3 * heads * width).reshape(3, heads, width).swapaxes(0, 1).reshape(-1)
            return Reordered(weight, order)
        q, k, v = np.split(np.arange(weight.shape[0]), [heads * width, (heads + kv_heads) * width])
        groups = [part.reshape(kv_heads, -1) for part in (q, k, v)]
        return Reordered(weight, np.concatenate(groups, axis=1).reshape(-1))

    def _part_of_fused(self, name: str, shape: tuple[int, ...]) -> Weight | None:
        """Return the rows of Q, K or V if the file has them in one matrix."""
        found = re.search(r"\.([qkv])_proj\.(weight|bias)$", name)
        block = BLOCK.search(name)
        fused = self._tensor(f"blk.{block[1]}.attn_qkv.{found[2]}") if found and block else None
        if found is None or fused is None:
            return None
        q, kv = self._heads("q") * self.settings.head_width, self._heads("k") * self.settings.head_width
        begin = {"q": 0, "k": q, "v": q + kv}[found[1]]
        weight: Weight = part_of(fused, begin, begin + shape[0])
        return rotated_halves(weight, self._heads(found[1])) if self.family.halves and found[1] != "v" else weight

    def _expert(self, name: str, shape: tuple[int, ...]) -> Weight | None:
        """Return the matrices of all experts of a layer, or those of the shared expert, which some files have in two."""
        found = re.search(
            r"\.(experts\.(?:mlp\.)?(?:gate_up_proj|down_proj|w1|v1|w2)(?:_bias)?|shared_mlp\.input_linear\.weight)$",
            name,
        )
        block = BLOCK.search(name)
        if found is None or block is None:
            return None
        part, b = found[1].removeprefix("experts.").removeprefix("mlp."), block[1]
        if part.startswith("shared_mlp"):
            return self._joined((f"blk.{b}.ffn_gate_shexp.weight", f"blk.{b}.ffn_up_shexp.weight"), 0)
        end = "bias" if part.endswith("_bias") else "weight"
        stored = {
            "gate_up_proj": ("gate", "up"), "gate_up_proj_bias": ("gate", "up"), "down_proj": ("down",),
            "down_proj_bias": ("down",), "w1": ("gate",), "v1": ("up",), "w2": ("down",),
        }[part]  # fmt: skip
        parts = [self._stack(b, kind, end) for kind in stored]
        weights = [weight for weight in parts if weight is not None]
        if not weights or len(weights) < len(parts):
            return self._tensor(f"blk.{b}.ffn_gate_up_exps.{end}") if len(parts) == 2 else None
        if self.settings.architecture == "gpt-oss":  # gate and up in turn; matrices transposed
            whole = Interleaved(tuple(weights), 1) if len(weights) == 2 else weights[0]
            return Turned(whole) if end == "weight" else whole
        if part == "w2":
            return Turned(weights[0])
        return Joined(tuple(weights), 1) if len(weights) == 2 else weights[0]

    def _stack(self, block: str, kind: str, end: str) -> Weight | None:
        """Return the experts of a layer in one weight; older files have them one by one."""
        together = self._tensor(f"blk.{block}.ffn_{kind}_exps.{end}")
        if together is not None:
            return together
        count = self.settings.whole("expert_count", 0)
        single = [self._tensor(f"blk.{block}.ffn_{kind}.{number}.{end}") for number in range(count)]
        present = tuple(tensor for tensor in single if tensor is not None)
        return Stacked(present) if count and len(present) == count else None

    def _joined(self, names: tuple[str, ...], axis: int) -> Weight | None:
        parts = [self._tensor(name) for name in names]
        present = tuple(part for part in parts if part is not None)
        return Joined(present, axis) if len(present) == len(names) else None

    def _low_rank(self, name: str) -> Weight | None:
        """Return the matrix that makes keys and values of their low rank: newer files have it in two, one transposed."""
        block = BLOCK.search(name)
        if block is None or not name.endswith("self_attn.kv_b_proj.weight"):
            return None
        keys, values = (self._tensor(f"blk.{block[1]}.attn_{kind}_b.weight") for kind in "kv")
        return None if keys is None or values is None else Joined((Turned(keys), values), 1)

    def _setting(self, name: str, shape: tuple[int, ...]) -> Weight | None:
        """Return a parameter that is a setting of the file: the four numbers of Apertus' activation in each layer."""
        found = re.search(r"\.layers\.(\d+)\.mlp\.act_fn\.(alpha_[np]|beta|eps)$", name)
        if found is None:
            return None
        values = self.settings.file.metadata.get(f"xielu.{found[2]}") or self.settings.file.header.array(
            f"xielu.{found[2]}"
        )
        if isinstance(values, tuple) and int(found[1]) < len(values):
            values = values[int(found[1])]
        return Constant(np.full(shape, values, np.float32)) if isinstance(values, float) else None

    def _is_zero_bias(self, name: str) -> bool:
        """Return whether the matrix of a bias is in the file, so that llama.cpp adds nothing to its product."""
        stored = self.name_of(name.removesuffix("bias") + "weight")
        return (stored is not None and self._tensor(stored) is not None) or re.search(
            r"\.[qkv]_proj\.bias$", name
        ) is not None

    # --- accounting ---------------------------------------------------------------------------------------------

    def _check_accounted(self, weights: Mapping[str, Weight]) -> None:
        """Raise AttnctlError for the first tensor that is not used and may have an effect."""
        used = {source.name for weight in weights.values() for source in weight.sources}
        for name in self.settings.file.tensors:
            if name in used or name in READ_AS_SETTINGS or self._predicts_more(name):
                continue
            raise AttnctlError(
                f"cannot read {self.settings.name}: attnctl does not use its tensor {name[:80]} for "
                f"{self.settings.architecture}: its attention may be another"
            )

    def _predicts_more(self, name: str) -> bool:
        """Return whether a tensor is of a layer behind the last one, which predicts several tokens at once."""
        found = re.match(r"blk\.(\d+)\.", name)
        return found is not None and self.settings.layers <= int(found[1]) < self.settings.whole("block_count")
