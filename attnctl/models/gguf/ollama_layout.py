"""Open a GGUF file under llama.cpp's names, whichever program wrote it.

Ollama's own converter wrote some families with other keys and tensors than llama.cpp's. The rules are those by which
Ollama hands such files to llama.cpp today; their source is its repository, llama/compat/llama-ollama-compat.cpp. Its files
of a model that reads pictures or sounds hold those parts too, which are left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from attnctl.models.gguf.files import gguf_parts
from attnctl.models.gguf.header import Metadata, Value
from attnctl.models.gguf.tensors import GgufFile, StoredTensor

ARCHITECTURE = "general.architecture"
PRE = "tokenizer.ggml.pre"
# tensors, and settings of an architecture, of the parts that read pictures and sounds
OTHER_TENSORS = ("v.", "mm.", "a.", "model.vision_tower.")
OTHER_SETTINGS = ("vision.", "mm.", "audio.")
LAYER = re.compile(r"(?P<layer>blk\.\d+)\.(?P<part>\w+)(?P<end>(\.\w+)?)")
OF_TOKENS = ("tokens", "scores", "token_type")
LINEAR_FROM = 131_072  # context length from which Gemma 3's positions are scaled
END_OF_TURN, END_OF_TEXT = 128_009, 128_001  # of Llama 3


@dataclass
class RenamedMetadata(Metadata):
    """A header whose entries were renamed; `cut` are arrays of which only so many values count."""

    cut: dict[str, int] = field(default_factory=dict)

    def array(self, name: str) -> tuple[int | float | bool, ...] | tuple[str, ...]:
        """Return an array of numbers or of texts, however long; () if the file has none of this name."""
        values = super().array(name)
        return values[: self.cut[name]] if name in self.cut else values


@dataclass
class _Draft:
    """A file while it is changed. A setting is named without its architecture."""

    header: RenamedMetadata
    tensors: dict[str, StoredTensor]
    has_other_parts: bool = False  # that read pictures or sounds

    @property
    def architecture(self) -> str:
        return str(self.header.entries.get(ARCHITECTURE, ""))

    def setting(self, key: str) -> Value | None:
        return self.header.entries.get(f"{self.architecture}.{key}")

    def has(self, key: str) -> bool:
        name = f"{self.architecture}.{key}"
        return name in self.header.entries or name in self.header.places

    def default(self, key: str, value: Value) -> None:
        """Give a setting a value if the file has none."""
        if not self.has(key):
            self.header.entries[f"{self.architecture}.{key}"] = value

    def rename(self, names: Mapping[str, str]) -> None:
        """Give settings another name, unless the file has one of that name."""
        for old, new in names.items():
            if self.has(old) and not self.has(new):
                self._move(f"{self.architecture}.{old}", f"{self.architecture}.{new}")

    def rename_tensors(self, parts: Mapping[str, str]) -> None:
        """Give the weights of layers another name: blk.3.OLD.weight, or blk.3.OLD."""
        renamed = {}
        for name, tensor in self.tensors.items():
            layer = LAYER.fullmatch(name)
            new = parts.get(layer["part"]) if layer else None
            renamed[f"{layer['layer']}.{new}{layer['end']}" if layer and new else name] = tensor
        self.tensors = renamed

    def become(self, architecture: str) -> None:
        """Change the architecture, and the settings' names with it."""
        before = f"{self.architecture}."
        for name in [*self.header.entries, *self.header.places, *self.header.lengths]:
            if name.startswith(before):
                self._move(name, f"{architecture}.{name.removeprefix(before)}")
        self.header.entries[ARCHITECTURE] = architecture

    def leave_out_other_parts(self) -> None:
        """Leave out the parts that read pictures and sounds."""
        others = [name for name in self.tensors if name.startswith(OTHER_TENSORS)]
        for name in others:
            del self.tensors[name]
        prefixes = tuple(f"{self.architecture}.{prefix}" for prefix in OTHER_SETTINGS)
        for table in self._tables():
            for name in [name for name in table if name.startswith(prefixes)]:
                del table[name]
                self.has_other_parts = True
        self.has_other_parts |= bool(others)

    def cut_tokens(self) -> None:
        """Leave out tokens that the table of embeddings has no row for."""
        table = self.tensors.get("token_embd.weight")
        for key in OF_TOKENS if table is not None else ():
            name = f"tokenizer.ggml.{key}"
            if self.header.lengths.get(name, 0) > table.shape[0]:  # type: ignore[union-attr]
                self.header.cut[name] = self.header.lengths[name] = table.shape[0]  # type: ignore[union-attr]

    def lacks_pre_tokenizer(self) -> bool:
        """Return whether the file names no rules for splitting words."""
        return self.header.entries.get(PRE, "") in ("", "default")

    def _move(self, old: str, new: str) -> None:
        for table in self._tables():
            if old in table:
                table[new] = table.pop(old)

    def _tables(self) -> tuple[dict[str, Any], ...]:
        return (self.header.entries, self.header.lengths, self.header.places)


def open_gguf(path: Path) -> tuple[GgufFile, tuple[str, ...]]:
    """Return a GGUF file, all parts of a split one, under llama.cpp's names; and notes about what is left out of it.

    Raises AttnctlError for a damaged file, and for a missing part.
    """
    file = GgufFile.open(gguf_parts(path))
    draft = _Draft(RenamedMetadata(**_copied_tables(file.header)), dict(file.tensors))
    draft.leave_out_other_parts()
    if (change := CHANGES.get(draft.architecture)) is not None:
        change(draft)
    note = "The file also holds a part that reads pictures or sounds, which is not read: attnctl reads its texts."
    tensors = {name: replace(tensor, name=name) for name, tensor in draft.tensors.items()}
    return replace(file, header=draft.header, tensors=tensors), (note,) if draft.has_other_parts else ()


def _copied_tables(header: Metadata) -> dict[str, Any]:
    tables = {name: dict(getattr(header, name)) for name in ("entries", "lengths", "tensors", "places")}
    return {"path": header.path, **tables}


def _gemma3(draft: _Draft) -> None:
    """Rename the settings of Gemma 3's positions, and state those that Ollama's files leave out."""
    if "dense.0.weight" in draft.tensors:
        draft.become("gemma-embedding")
        return
    is_ollamas = draft.has_other_parts or draft.has("rope.global.freq_base")
    is_ollamas |= not draft.has("attention.layer_norm_rms_epsilon")
    draft.rename({"rope.global.freq_base": "rope.freq_base", "rope.local.freq_base": "rope.freq_base_swa"})
    draft.default("attention.layer_norm_rms_epsilon", 1e-6)
    draft.default("rope.freq_base", 1_000_000.0)
    draft.default("rope.freq_base_swa", 10_000.0)
    length = draft.setting("context_length")
    if is_ollamas and isinstance(length, int) and length >= LINEAR_FROM:
        draft.default("rope.scaling.type", "linear")
        draft.default("rope.scaling.factor", 8.0)
    draft.cut_tokens()


def _gpt_oss(draft: _Draft) -> None:
    """Rename the settings and tensors of gpt-oss."""
    draft.become("gpt-oss")
    experts = draft.tensors.get("blk.0.ffn_gate_exps.weight")
    if experts is not None:
        draft.default("expert_feed_forward_length", experts.shape[1])
    draft.default("rope.scaling.type", "yarn")
    draft.header.entries[PRE] = "gpt-4o"
    draft.rename_tensors({"attn_out": "attn_output", "ffn_norm": "post_attention_norm"})
    for name in [name for name in draft.tensors if name.endswith(".attn_sinks")]:
        draft.tensors[f"{name}.weight"] = draft.tensors.pop(name)


def _llama(draft: _Draft) -> None:
    """Name the rules for splitting words, and the end, of early files of Llama 3."""
    tokens = "tokenizer.ggml.tokens"
    if draft.header.lengths.get(tokens, 0) <= END_OF_TURN or draft.header.array(tokens)[END_OF_TURN] != "<|eot_id|>":
        return
    if draft.lacks_pre_tokenizer():
        draft.header.entries[PRE] = "llama-bpe"
    if draft.header.entries.get("tokenizer.ggml.eos_token_id") in (None, END_OF_TEXT):
        draft.header.entries["tokenizer.ggml.eos_token_id"] = END_OF_TURN


def _mistral3(draft: _Draft) -> None:
    """Rename the settings of Mistral 3's positions."""
    draft.rename(
        {
            "rope.scaling.beta_fast": "rope.scaling.yarn_beta_fast",
            "rope.scaling.beta_slow": "rope.scaling.yarn_beta_slow",
            "rope.scaling.mscale_all_dim": "rope.scaling.yarn_log_multiplier",
            "rope.scaling_beta": "attention.temperature_scale",
        }
    )
    if draft.lacks_pre_tokenizer():
        draft.header.entries[PRE] = "tekken"


def _lfm2(draft: _Draft) -> None:
    """Rename the last norm of LFM2."""
    if "output_norm.weight" in draft.tensors and "token_embd_norm.weight" not in draft.tensors:
        draft.tensors["token_embd_norm.weight"] = draft.tensors.pop("output_norm.weight")
        draft.header.entries[PRE] = "lfm2"
        if (gate := draft.tensors.get("blk.0.ffn_gate.weight")) is not None:
            draft.header.entries["lfm2.feed_forward_length"] = gate.shape[0]


def _olmo3(draft: _Draft) -> None:
    """Name Olmo 3 as llama.cpp does: an OLMo 2 with windows."""
    draft.become("olmo2")


def _qwen25vl(draft: _Draft) -> None:
    """Name Qwen2.5-VL as llama.cpp does."""
    draft.become("qwen2vl")


CHANGES: Mapping[str, Callable[[_Draft], None]] = {
    "gemma3": _gemma3,
    "gptoss": _gpt_oss,
    "lfm2": _lfm2,
    "llama": _llama,
    "mistral3": _mistral3,
    "olmo3": _olmo3,
    "qwen25vl": _qwen25vl,
}
