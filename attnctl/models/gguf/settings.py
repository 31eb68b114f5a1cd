"""Read the settings of a GGUF file's architecture, and account for each: used, without effect, or refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from attnctl.errors import AttnctlError
from attnctl.models.gguf.tensors import GgufFile

# settings that change no attention weight of llama.cpp in any architecture that is read, each with the reason
NO_EFFECT: Mapping[str, str] = {
    "vocab_size": "the vocabulary is as large as the matrix of embeddings",
    "tensor_data_layout": "it names the order of rows that the converter always writes",
    "pooling_type": "it says how embeddings of a whole text are made, after the last layer",
    "classifier.output_labels": "it names the outputs of a head for classes",
    "rope.scaling.yarn_attn_factor": "llama.cpp computes this factor from rope.scaling.factor",
    "attention.layer_norm_rms_epsilon": "an architecture has one kind of norm, whose own epsilon is read",
    "attention.layer_norm_epsilon": "an architecture has one kind of norm, whose own epsilon is read",
}
# settings that llama.cpp reads for some architectures alone: where attnctl does not read one, llama.cpp does not either. A
# note names it. Measured for each architecture with other values (tests/tools/gguf_table/accounting.py).
READ_BY_SOME = frozenset(
    [
        "attention.clamp_kqv",
        "attention.max_alibi_bias",
        "attention.scale",
        "attention.shared_kv_layers",
        "attention.sliding_window_pattern",
        "attention.temperature_length",
        "attn_logit_softcapping",
        "decoder_block_count",
        "decoder_start_token_id",
        "embedding_length_out",
        "embedding_scale",
        "expert_chunk_feed_forward_length",
        "expert_feed_forward_length",
        "expert_gating_func",
        "expert_group_scale",
        "expert_group_used_count",
        "expert_shared_count",
        "expert_used_count",
        "expert_weights_norm",
        "expert_weights_scale",
        "experts_per_group",
        "final_logit_softcapping",
        "interleave_moe_layer_step",
        "leading_dense_block_count",
        "logit_scale",
        "moe_every_n_layers",
        "n_deepstack_layers",
        "residual_scale",
        "rope.dimension_count",
        "rope.dimension_sections",
        "rope.freq_base",
        "rope.freq_base_swa",
        "rope.scale_linear",
        "rope.scaling.factor",
        "rope.scaling.finetuned",
        "rope.scaling.original_context_length",
        "rope.scaling.type",
        "rope.scaling.yarn_beta_fast",
        "rope.scaling.yarn_beta_slow",
        "rope.scaling.yarn_ext_factor",
        "rope.scaling.yarn_log_multiplier",
        "router_logit_softcapping",
        "use_parallel_residual",
        "attention.sliding_window",
    ]
)
WINDOWED = ("lfm2",)  # architectures whose windows llama.cpp has and attnctl does not read
# values with which a setting says nothing
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "expert_count": (0,), "nextn_predict_layers": (0,), "attention.causal": (True,), "expert_group_count": (0, 1),
    "attention.sliding_window": (0,), "attention.clamp_kqv": (0.0,), "attention.max_alibi_bias": (0.0,),
    "attn_logit_softcapping": (0.0,), "final_logit_softcapping": (0.0,), "expert_used_count": (0,),
    "expert_shared_count": (0,), "expert_group_used_count": (0, 1), "expert_weights_scale": (0.0, 1.0),
    "leading_dense_block_count": (0,), "rope.scaling.finetuned": (True, False), "rope.scaling.type": ("none",),
    "rope.scaling.attn_factor": (1.0,), "rope.scaling.yarn_beta_fast": (32.0,), "rope.scaling.yarn_beta_slow": (1.0,),
    "rope.scaling.yarn_ext_factor": (1.0, -1.0), "attention.shared_kv_layers": (0,),
}  # fmt: skip


@dataclass
class Settings:
    """The settings `<architecture>.*` of a file; `used` are the names of those that were read."""

    file: GgufFile
    architecture: str
    name: str  # of the file, for errors
    used: set[str] = field(default_factory=set)

    def get(self, key: str) -> Any:
        """Return the value of a setting; None if the file has none. A list of one value for all layers is that value."""
        self.used.add(key)
        return self._value(key)

    def _value(self, key: str) -> Any:
        name = f"{self.architecture}.{key}"
        value: Any = self.file.metadata.get(name)
        if value is None and name in self.file.header.lengths:
            value = self.file.header.array(name)
        if isinstance(value, tuple) and value and len(set(value)) == 1:
            return value[0]
        return value

    def whole(self, key: str, default: int | None = None) -> int:
        """Return a whole number. Raises AttnctlError if it is missing, or another one for each layer."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            says = (
                "is missing"
                if value is None
                else f"is {str(value)[:40]}, and attnctl reads one whole number for all layers"
            )
            raise AttnctlError(f"cannot read {self.name}: its setting {self.architecture}.{key} {says}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a number. Raises AttnctlError if it is missing and has no default."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            says = "is missing" if value is None else f"is {str(value)[:40]}, which is not a number"
            raise AttnctlError(f"cannot read {self.name}: its setting {self.architecture}.{key} {says}")
        return float(value)

    def has_tensor(self, suffix: str) -> bool:
        """Return whether a tensor of some layer, or of the file, ends with this name."""
        return any(name == suffix or name.endswith(f".{suffix}") for name in self.file.tensors)

    @property
    def layers(self) -> int:
        """Return the layers of the network, without those that predict several tokens at once."""
        return self.whole("block_count") - self.whole("nextn_predict_layers", 0)

    @property
    def heads(self) -> int:
        """Return the heads of a layer."""
        return self.whole("attention.head_count")

    @property
    def width(self) -> int:
        """Return the width of the model."""
        return self.whole("embedding_length")

    @property
    def head_width(self) -> int:
        """Return d_k: stated, or the model's width divided by the heads, as llama.cpp does."""
        return self.whole("attention.key_length", self.width // max(self.heads, 1))

    def refuse(self, key: str, why: str) -> AttnctlError:
        """Return the error for a setting that attnctl does not read."""
        value = str(self._value(key))[:40]
        return AttnctlError(f"cannot read {self.name}: its setting {self.architecture}.{key} is {value}, and {why}")

    def unread(self) -> dict[str, Any]:
        """Return the settings that llama.cpp does not read for this architecture, with values that would say something.

        Raises AttnctlError for the first setting that is not read and may have an effect.
        """
        prefix, unread = f"{self.architecture}.", {}
        names = sorted({*self.file.metadata, *self.file.header.lengths, *self.file.header.places})
        for name in names:
            key = name.removeprefix(prefix)
            if not name.startswith(prefix) or key in self.used or key in NO_EFFECT:
                continue
            value = self._value(key)
            if value in NEUTRAL.get(key, ()):
                continue
            if key not in READ_BY_SOME or (key == "attention.sliding_window" and self.architecture in WINDOWED):
                raise self.refuse(
                    key, f"attnctl does not read it for {self.architecture}: its attention may be another"
                )
            unread[name] = value
        return unread


def rope_parameters(
    settings: Settings, base_key: str = "rope.freq_base", base: float = 10000.0, *, scaled: bool = True
) -> dict[str, Any]:
    """Return transformers' `rope_parameters` for the rotary positions that llama.cpp computes.

    `base_key` names θ, which is `base` where the file has none (llama-model.cpp, load_hparams). Without `scaled` no scaling
    applies (the layers with windows of Gemma 3). A tensor rope_freqs.weight divides the frequencies: the type
    `longrope` takes any divisors.
    """
    parameters: dict[str, Any] = {"rope_type": "default", "rope_theta": settings.number(base_key, base)}
    rotary = settings.whole("rope.dimension_count", settings.head_width)
    if rotary != settings.head_width:
        parameters["partial_rotary_factor"] = rotary / settings.head_width
    kind = settings.get("rope.scaling.type") or "linear"
    factor = settings.number("rope.scaling.factor", settings.number("rope.scale_linear", 0.0)) or 1.0
    original = settings.whole("rope.scaling.original_context_length", settings.whole("context_length"))
    if kind not in ("none", "linear", "yarn", "longrope"):
        raise settings.refuse("rope.scaling.type", "attnctl reads none, linear, yarn and longrope")
    if not scaled:
        return parameters
    factor = 1.0 if kind == "none" else factor  # the divisors of a tensor apply with none, too
    tensors = settings.file.tensors
    if "rope_factors_long.weight" in tensors and "rope_factors_short.weight" in tensors:
        long, short = (tensors[f"rope_factors_{name}.weight"].array() * factor for name in ("long", "short"))
        attention = settings.number("rope.scaling.attn_factor", 1.0)
        return parameters | _long_rope(long.tolist(), short.tolist(), attention, original)
    if kind == "yarn" and factor > 1:
        return parameters | _yarn(settings, factor, original)
    if "rope_freqs.weight" in tensors:
        divisors = (tensors["rope_freqs.weight"].array() * factor).tolist()
        return parameters | _long_rope(divisors, divisors, 1.0, original)
    return parameters | ({"rope_type": "linear", "factor": factor} if factor != 1 else {})


BOUNDS_READ = ("mistral3",)  # architectures whose bounds of YaRN llama.cpp reads from the file


def _long_rope(long: list[float], short: list[float], attention: float, original: int) -> dict[str, Any]:
    factors = {"long_factor": long, "short_factor": short, "attention_factor": attention, "factor": 1.0}
    return {"rope_type": "longrope", "original_max_position_embeddings": original, **factors}


def _yarn(settings: Settings, factor: float, original: int) -> dict[str, Any]:
    parameters: dict[str, Any] = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
    parameters |= {"beta_fast": 32.0, "beta_slow": 1.0}
    if settings.architecture in BOUNDS_READ:
        parameters["beta_fast"] = settings.number("rope.scaling.yarn_beta_fast", 32.0)
        parameters["beta_slow"] = settings.number("rope.scaling.yarn_beta_slow", 1.0)
    parameters["truncate"] = True  # llama.cpp always rounds the bounds (ggml_rope_yarn_corr_dims)
    return parameters
