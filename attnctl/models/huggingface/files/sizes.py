"""How large a model's attention is, from its configuration alone: no weights are read."""

from __future__ import annotations

import difflib
import json
from collections import Counter
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from attnctl.errors import AttnctlError, UsageError, in_one_line
from attnctl.models.huggingface.files.hub import KNOWN, find_checkpoint, is_checkpoint

if TYPE_CHECKING:
    from attnctl.text import Document

# the names under which configurations keep one thing
NAMES = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers"),
    "heads": ("num_attention_heads", "n_head", "num_heads", "n_heads", "encoder_attention_heads"),
    "d_model": ("hidden_size", "n_embd", "d_model", "dim"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "d_k": ("head_dim", "d_kv", "attention_head_dim"),
    "d_v": ("v_head_dim",),
    "vocabulary": ("vocab_size",),
    "context": ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
    "decoder_layers": ("num_decoder_layers", "decoder_layers"),
}

LARGEST = 10**9  # of any size in a configuration

# architectures that read a text all at once, and keep no cache
ENCODERS = frozenset(
    {"albert", "bert", "camembert", "deberta", "deberta-v2", "distilbert", "electra", "mpnet", "modernbert", "roberta"}
    | {"nomic_bert", "xlm-roberta", "vit", "clip"}
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
    counted: bool = False  # this family's parameters were held against those of built networks, and are equal

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
        """Parameters of all layers."""
        return {name: size * self.layers for name, size in self.per_layer().items()}

    def embedding_parameters(self) -> int | None:
        """Parameters of the embedding table."""
        return None if self.vocabulary is None else self.vocabulary * self.d_model

    def cache_per_token(self) -> int:
        """Bytes that the key/value cache grows by with each token, 16 bits a number."""
        kept = self.latent if self.latent is not None else self.kv_heads * (self.d_k + self.d_v)
        return 2 * self.cached_layers * kept

    def bytes_of_cache(self, n: int) -> int:
        """Bytes of the key/value cache of n tokens: layers with a window keep no more than that."""
        if not self.cached_layers:
            return 0
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
        path = find_checkpoint(name, weights=False)
        if path.suffix.lower() == ".gguf":
            return of_configuration(_gguf_settings(path), path.stem, str(path))
        from attnctl.models.huggingface.text.tokenizer import read_json

        return of_configuration(read_json(path / "config.json"), path.name if Path(name).exists() else name, str(path))
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
    kv_heads = 1 if settings.get("multi_query") else _stated_size(settings, "kv_heads") or heads
    d_k, latent = _stated_size(settings, "d_k"), _unless_0(settings, "kv_lora_rank")
    if latent is not None:  # keys are a part from the latent and a part turned by position, shared by all heads
        turned = _checked_size("qk_rope_head_dim", settings["qk_rope_head_dim"])
        d_k = _checked_size("qk_nope_head_dim", settings["qk_nope_head_dim"]) + turned
        latent, kv_heads = latent + turned, heads
    if d_k is None and d_model % heads:
        raise ValueError(f"d_model {d_model} does not divide by {heads} heads, and no head_dim is given")
    if heads % kv_heads:
        raise ValueError(f"{heads} heads cannot share {kv_heads} key/value heads evenly")
    d_k = d_k or d_model // heads
    kind = settings.get("model_type", "unknown")
    window = _unless_0(settings, "sliding_window") if settings.get("use_sliding_window", True) else None
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
    )


NO_ATTENTION = frozenset({"falcon_mamba", "fnet", "mamba", "mamba2", "rwkv", "xlstm"})


@cache
def counted_families() -> frozenset[str]:
    """The families, by model_type, whose parameters were held against built networks: made by tests/sweep/counted.py."""
    return frozenset(json.loads(files("attnctl.models.huggingface.files").joinpath("counted.json").read_text("utf-8")))


WINDOWED, FULL, OTHER = "window", "full", "other"
# families whose queries come with a gate, and those whose layers with a window follow a pattern that older files do not say
GATED = frozenset(
    {"qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "qwen4_exp", "qwen4_exp_text"}
)
PATTERNS = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4}


def layer_counts(settings: Document, layers: int) -> Counter[str]:
    """How many layers attend to a window, to all, or do something else (convolution, recurrence, linear attention)."""
    for name in ("layer_types", "layers_block_type"):
        said = settings.get(name)
        if isinstance(said, list) and said:
            return Counter(_layer_type(str(kind)) for kind in said)
    if isinstance(period := settings.get("attn_layer_period"), int) and period > 0:
        offset = settings.get("attn_layer_offset", 0)
        full = len(range(offset, layers, period)) if 0 <= offset < period else 0
        return Counter({FULL: full, OTHER: layers - full})
    if isinstance(blocks := settings.get("block_types"), list) and blocks:
        whole, rest = divmod(layers, len(blocks))
        kinds = Counter({kind: whole * count for kind, count in Counter(map(_layer_type, map(str, blocks))).items()})
        return kinds + Counter(_layer_type(str(kind)) for kind in blocks[:rest])
    if isinstance(places := settings.get("attn_layer_indices"), list) and places:
        full = sum(1 for at in set(places) if 0 <= at < layers)
        return Counter({FULL: full, OTHER: layers - full})
    if _unless_0(settings, "sliding_window") is None or not settings.get("use_sliding_window", True):
        return Counter({FULL: layers})
    pattern = settings.get("sliding_window_pattern") or PATTERNS.get(str(settings.get("model_type")))
    if isinstance(pattern, int) and pattern > 0:
        return Counter({FULL: layers // pattern, WINDOWED: layers - layers // pattern})
    first = min(settings.get("max_window_layers") or 0, layers)  # Qwen 2: the layers below have none
    return Counter({FULL: first, WINDOWED: layers - first})


def _layer_type(kind: str) -> str:
    """A layer's type as configurations name it, as one of three."""
    if any(word in kind for word in ("linear", "conv", "mamba", "recurrent", "mlp", "moe")):
        return OTHER
    return WINDOWED if "sliding" in kind else FULL


def _text_settings(settings: Document) -> Document:
    """The part of a configuration that is about text, where it has several."""
    inner = settings.get("text_config") or settings.get("llm_config")
    return settings | inner if isinstance(inner, dict) else settings


def _stated_size(settings: Document, what: str) -> int | None:
    return next((_checked_size(key, settings[key]) for key in NAMES[what] if settings.get(key) is not None), None)


def _unless_0(settings: Document, key: str) -> int | None:
    """A size that some configurations give as 0 where there is no such thing."""
    value = settings.get(key)
    return None if value is None or (value == 0 and value is not False) else _checked_size(key, value)


def _checked_size(key: str, value: object) -> int:
    """A number of a configuration that counts something. Raises ValueError where it cannot."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= LARGEST:
        raise ValueError(f"{key} is {json.dumps(value)[:40]}, not a whole number from 1 to {LARGEST:,}")
    return value


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
