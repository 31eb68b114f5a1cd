"""How large a model's attention is, from its configuration alone: no weights are read."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from attnctl.errors import AttnctlError, UsageError, in_one_line
from attnctl.models.huggingface.files.hub import KNOWN, find_checkpoint, is_checkpoint
from attnctl.models.huggingface.files.layer_sizes import (
    FULL,
    WINDOWED,
    LayerGroup,
    checked_size,
    distinct_layers,
    layer_counts,
    layer_groups,
    size_unless_0,
    stored_latents,
    window_of,
)

if TYPE_CHECKING:
    from attnctl.text import Document

# the names under which configurations keep one thing
NAMES = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers"),
    "heads": ("num_attention_heads", "n_head", "num_heads", "n_heads", "encoder_attention_heads"),
    "d_model": ("hidden_size", "n_embd", "d_model", "dim"),
    "kv_heads": ("kv_n_heads", "num_key_value_heads", "num_kv_heads"),
    "d_k": ("head_dim", "d_kv", "attention_head_dim"),
    "d_v": ("v_head_dim",),
    "vocabulary": ("vocab_size",),
    "context": ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
    "decoder_layers": ("num_decoder_layers", "decoder_layers"),
}

# architectures that keep no cache: they read a text all at once, or compute it anew (the first GPT)
ENCODERS = frozenset(
    {"albert", "bert", "bert-generation", "big_bird", "camembert", "convbert", "data2vec-text", "deberta"}
    | {"deberta-v2", "distilbert", "electra", "ernie", "esm", "esmc", "eurobert", "flaubert", "fnet", "funnel"}
    | {"gte", "ibert", "jina_embeddings_v3", "layoutlm", "longformer", "luke", "megatron-bert", "mobilebert"}
    | {"modernbert", "modernvbert", "mpnet", "mra", "neomme", "nomic_bert", "nystromformer", "perceiver", "rembert"}
    | {"roberta", "roberta-prelayernorm", "roc_bert", "roformer", "squeezebert", "tapas", "ultrabert", "ultravbert"}
    | {"xlm", "xlm-roberta", "xlm-roberta-xl", "xmod", "yoso", "vit", "clip", "openai-gpt"}
)


@dataclass(frozen=True)
class ModelSizes:
    """The sizes of a model's attention, and what follows from them; parameters without biases."""

    name: str
    architecture: str
    layers: int  # calls of attention, one on another; a decoder layer that also reads an encoder counts as two
    cached_layers: int  # those whose keys and values a cache keeps as a text grows: none in an encoder
    heads: int
    kv_heads: int
    d_model: int
    d_k: int
    d_v: int
    vocabulary: int | None = None
    context: int | None = None
    window: int | None = None
    latent: int | None = (
        None  # numbers a token and layer that the cache keeps instead of keys and values (DeepSeek's MLA)
    )
    source: str = ""
    windowed_layers: int = 0  # of the cached ones, those that keep a window of keys and values alone
    gated: bool = False  # queries come with a gate of the same size, which closes the context
    counted: bool = False  # this family's sizes were held against those of built networks, and are equal
    groups: tuple[LayerGroup, ...] = ()  # where layers differ in size
    stored_layer: int | None = None  # parameters of a layer as they are stored, where that is less (DeepSeek's MLA)
    built: int | None = None  # parameters in all as transformers builds them, where there are more matrices than four
    distinct_layers: int | None = None  # that have parameters of their own, where several share them (ALBERT)

    def per_head(self) -> dict[str, int]:
        """Parameters of one head: W_Q, W_K, W_V (d_model × d), W_O (d_v × d_model)."""
        d = self.d_model
        return {
            "W_Q": d * self.d_k * (2 if self.gated else 1),
            "W_K": d * self.d_k,
            "W_V": d * self.d_v,
            "W_O": d * self.d_v,
        }

    def per_layer(self) -> dict[str, int]:
        """Parameters of one layer: query heads have their own W_Q and W_O, key/value heads share W_K and W_V."""
        count = {"W_Q": self.heads, "W_K": self.kv_heads, "W_V": self.kv_heads, "W_O": self.heads}
        return {name: size * count[name] for name, size in self.per_head().items()}

    def in_all(self) -> dict[str, int]:
        """Parameters of all layers; those that several layers share count once."""
        if self.groups:
            parts = [group.parameters(self.d_model) for group in self.groups]
            return {name: sum(part[name] for part in parts) for name in parts[0]}
        layers = self.layers if self.distinct_layers is None else self.distinct_layers
        return {name: size * layers for name, size in self.per_layer().items()}

    def stored_in_all(self) -> int:
        """Parameters of all layers together, as they are stored."""
        return sum(self.in_all().values()) if self.stored_layer is None else self.stored_layer * self.layers

    def embedding_parameters(self) -> int | None:
        """Parameters of the embedding table."""
        return None if self.vocabulary is None else self.vocabulary * self.d_model

    def cache_per_token(self) -> int:
        """Bytes that the key/value cache grows by with each token, 16 bits a number."""
        if self.groups and self.cached_layers:
            return sum(group.cache_bytes(1) for group in self.groups)
        kept = self.latent if self.latent is not None else self.kv_heads * (self.d_k + self.d_v)
        return 2 * self.cached_layers * kept

    def bytes_of_cache(self, n: int) -> int:
        """Bytes of the key/value cache of n tokens: layers with a window keep no more than that."""
        if not self.cached_layers:
            return 0
        if self.groups:
            return sum(group.cache_bytes(n) for group in self.groups)
        once = self.cache_per_token() // self.cached_layers
        short = min(n, self.window) if self.window is not None else n
        return once * ((self.cached_layers - self.windowed_layers) * n + self.windowed_layers * short)

    def bytes_of_grid(self, n: int) -> int:
        """Bytes of one n × n, 32 bits a number."""
        return 4 * n * n

    def bytes_of_grids(self, n: int) -> int:
        """Bytes of every layer's and head's n × n."""
        return self.bytes_of_grid(n) * self.layers * self.heads

    def bytes_unfactored(self, n: int) -> int:
        """Bytes of n × n × d_model × d_model: a matrix of its own for every two tokens, which queries and keys spare us."""
        return self.bytes_of_grid(n) * self.d_model * self.d_model


@cache
def known_configurations() -> dict[str, Document]:
    """The configurations that come with attnctl, by name."""
    table: dict[str, Document] = json.loads(
        files("attnctl.models.huggingface.files").joinpath("known.json").read_text("utf-8")
    )
    return table


def model_sizes(name: str) -> ModelSizes:
    """The sizes of a model by a known name, a hub id, a checkpoint's folder or its GGUF file.

    Raises UsageError where there is no such model, AttnctlError where its configuration does not say enough.
    """
    from attnctl.models import REGISTRY

    table = known_configurations()
    by_id = {str(entry.get("hub_id", "")).lower(): key for key, entry in table.items()}
    key = name.lower() if name.lower() in table else by_id.get(name.lower())
    if key is not None and not Path(name).exists():
        return of_configuration(table[key], str(table[key]["title"]), "a configuration that comes with attnctl")
    if is_checkpoint(name):
        from attnctl.models.huggingface.files.built_sizes import built_parameters
        from attnctl.models.huggingface.text.tokenizer import read_json

        path = find_checkpoint(name, weights=False)
        if path.suffix.lower() == ".gguf":
            return of_configuration(_gguf_settings(path), path.stem, str(path))
        settings = read_json(path / "config.json")
        found = of_configuration(settings, path.name if Path(name).exists() else name, str(path))
        return found if found.counted else replace(found, built=built_parameters(settings))
    if name in REGISTRY or Path(name).exists():
        raise UsageError(f"{name} has no configuration to read: attnctl explain --model {name} shows all there is")
    near = difflib.get_close_matches(name.lower(), [*table, *KNOWN], n=1)
    hint = (
        f"did you mean {near[0]}?" if near else "`attnctl model` lists the known ones, or give a folder, or owner/name"
    )
    raise UsageError(f"no model {name!r}: {hint}")


def of_configuration(settings: Document, name: str, source: str) -> ModelSizes:
    """The sizes that a config.json states, or that its architecture takes for granted.

    Raises AttnctlError where it does not state them, or states what cannot be.
    """
    try:
        return _of_configuration(settings, name, source)
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        what = f"it lacks {error}" if isinstance(error, KeyError) else in_one_line(error)
        raise AttnctlError(f"the configuration of {name} cannot be read: {what}") from error


def _of_configuration(settings: Document, name: str, source: str) -> ModelSizes:
    settings = _text_settings(settings)
    if any(_stated_size(settings, what) is None for what in ("layers", "heads", "d_model")):
        settings = _text_settings(_with_defaults(settings, name))
    layers, heads, d_model = (_stated_size(settings, what) for what in ("layers", "heads", "d_model"))
    if layers is None or heads is None or d_model is None:
        raise AttnctlError(f"the configuration of {name} does not say its layers, heads and d_model")
    inner = settings.get("attn_config")  # DBRX
    said = inner if isinstance(inner, dict) and "kv_n_heads" in inner else settings
    kv_heads = 1 if settings.get("multi_query") else _stated_size(said, "kv_heads") or heads
    d_k, latent = _stated_size(settings, "d_k"), size_unless_0(settings, "kv_lora_rank")
    if latent is not None:  # keys are a part from the latent and a part turned by position, shared by all heads
        turned = checked_size("qk_rope_head_dim", settings["qk_rope_head_dim"])
        d_k = checked_size("qk_nope_head_dim", settings["qk_nope_head_dim"]) + turned
        latent, kv_heads = latent + turned, heads
    if d_k is None and d_model % heads:
        raise ValueError(f"d_model {d_model} does not divide by {heads} heads, and no head_dim is given")
    if heads % kv_heads:
        raise ValueError(f"{heads} heads cannot share {kv_heads} key/value heads evenly")
    d_k = d_k or d_model // heads
    kind = settings.get("model_type", "unknown")
    window = window_of(settings)
    counts = layer_counts(settings, layers)
    layers = counts[FULL] + counts[WINDOWED]
    if not layers or kind in NO_ATTENTION:
        raise AttnctlError(f"{name} has no layers of softmax attention, by its configuration")
    cached = 0 if kind in ENCODERS and not settings.get("is_decoder") else layers
    if settings.get("is_encoder_decoder"):
        cached = _stated_size(settings, "decoder_layers") or layers
        layers += 2 * cached
    return ModelSizes(
        name,
        kind,
        layers,
        cached,
        heads,
        kv_heads,
        d_model,
        d_k,
        _stated_size(settings, "d_v") or d_k,
        _stated_size(settings, "vocabulary"),
        _stated_size(settings, "context"),
        window,
        latent,
        source,
        counts[WINDOWED] if window is not None and cached else 0,
        bool(settings.get("attn_output_gate", kind in GATED)),
        kind in counted_families(),
        layer_groups(settings, heads, kv_heads, d_k),
        stored_latents(settings, d_model, heads, _stated_size(settings, "d_v") or d_k),
        distinct_layers=distinct_layers(settings),
    )


NO_ATTENTION = frozenset({"falcon_mamba", "fnet", "mamba", "mamba2", "rwkv", "xlstm"})


@cache
def counted_families() -> frozenset[str]:
    """The families, by model_type, whose parameters were held against built networks: made by tests/sweep/counted.py."""
    return frozenset(json.loads(files("attnctl.models.huggingface.files").joinpath("counted.json").read_text("utf-8")))


# families whose queries come with a gate
GATED = frozenset(
    {"afmoe", "beam", "qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"}
    | {"qwen4_exp", "qwen4_exp_text"}
)


def _text_settings(settings: Document) -> Document:
    """The part of a configuration that is about text, where it has several."""
    inner = settings.get("text_config") or settings.get("llm_config")
    return settings | inner if isinstance(inner, dict) else settings


def _stated_size(settings: Document, what: str) -> int | None:
    return next((checked_size(key, settings[key]) for key in NAMES[what] if settings.get(key) is not None), None)


def _with_defaults(settings: Document, name: str) -> Document:
    """What the architecture takes for granted filled in, by transformers' own configuration class."""
    from attnctl.models.huggingface.files.hub import import_extra

    kind = settings.get("model_type")
    try:
        filled: Document = import_extra("transformers").AutoConfig.for_model(kind).to_dict()
    except (ValueError, KeyError) as error:
        raise AttnctlError(f"the configuration of {name} does not say its layers, heads and d_model") from error
    return filled | settings


def _gguf_settings(path: Path) -> Document:
    """What a GGUF file's metadata says, under the names of a config.json."""
    from attnctl.models.huggingface.files.gguf_header import read_header

    header = read_header(path)
    kind = header.entries.get("general.architecture")
    if not isinstance(kind, str):
        raise AttnctlError(f"cannot read {path}: it does not say its architecture")
    names = {
        "num_hidden_layers": "block_count",
        "num_attention_heads": "attention.head_count",
        "num_key_value_heads": "attention.head_count_kv",
        "hidden_size": "embedding_length",
        "head_dim": "attention.key_length",
        "v_head_dim": "attention.value_length",
        "max_position_embeddings": "context_length",
        "vocab_size": "vocab_size",
        "sliding_window": "attention.sliding_window",
    }
    said = {to: value for to, name in names.items() if (value := header.entries.get(f"{kind}.{name}")) is not None}
    if "vocab_size" not in said and "tokenizer.ggml.tokens" in header.lengths:
        said["vocab_size"] = header.lengths["tokenizer.ggml.tokens"]
    return {"model_type": kind} | said
