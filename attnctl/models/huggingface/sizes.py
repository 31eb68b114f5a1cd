"""How large a model's attention is: its layers, its parameters, the n × n, and what it keeps of a text, by families."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from attnctl import __version__, limits
from attnctl.text import counted

if TYPE_CHECKING:
    from torch.nn import Module
    from transformers import PreTrainedConfig

    from attnctl.models.huggingface.built_sizes import BuiltLayers
    from attnctl.text import Document


@dataclass(frozen=True)
class CompressedKeys:
    """Keys that stand for `rate` tokens each (DeepSeek-V4), and the projections that wait to be compressed."""

    rate: int
    size: int  # numbers of a compressed key
    projected: int  # numbers of a token's projection, and of its gate; twice the size where keys overlap

    def numbers_kept(self, n: int) -> int:
        """Numbers kept of n tokens."""
        whole, waiting = divmod(n, self.rate)
        overlap = 2 * self.rate * self.size if self.projected == 2 * self.size and whole else 0
        return whole * self.size + 2 * waiting * self.projected + overlap


@dataclass(frozen=True)
class KeptStates:
    """How the cache of a layer differs from one of its tokens' keys and values."""

    cycles: int = 1  # how often the layer attends in a forward, each time with a cache of its own (HRM)
    added: int = 0  # tokens of the model's own before the text (CPM-Ant)
    hidden: bool = False  # hidden states are kept, of which keys and values are made anew (XLNet, Reformer)
    bucket: int = 0  # numbers of 16 bits for each token's buckets (Reformer), in texts of more than `chunk` tokens
    chunk: int = 0
    compressed: tuple[CompressedKeys, ...] = ()
    reads_source: bool = False  # the keys and values of the text that an encoder read are kept as well (T5Gemma 2)

    def numbers_beside(self, n: int) -> int:
        """Numbers of 16 bits kept of n tokens beside those of each token."""
        return sum(part.numbers_kept(n) for part in self.compressed) + (self.bucket * n if n > self.chunk else 0)

    def growth(self) -> int:
        """Numbers of 16 bits by which that grows with a token, in the long run."""
        return sum(part.size // part.rate for part in self.compressed) + self.bucket

    def beside_sentence(self) -> str:
        """What is kept, for a table: " and for every 4 tokens 512"; empty where there is nothing to say."""
        parts = [f" in each of {self.cycles} cycles"] * (self.cycles > 1)
        parts += [f", and of {self.added} tokens of its own"] * (self.added > 0)
        parts += [f", {self.bucket} for buckets"] * (self.bucket > 0)
        parts += [f", {part.size} for every {part.rate} tokens" for part in self.compressed]
        return "".join(parts)


def kept_states(module: Module, name: str, config: PreTrainedConfig) -> KeptStates:
    """What the attention `module`, named `name` in a network of this configuration, keeps otherwise."""
    kind = str(config.model_type)
    if kind == "hrm_text":
        high = bool(re.search(r"(^|\.)H_module\.", name))
        return KeptStates(cycles=config.H_cycles * (1 if high else config.L_cycles))
    if kind == "cpmant":
        return KeptStates(added=config.prompt_length)
    if kind == "xlnet":
        return KeptStates(hidden=True)
    if kind == "reformer":
        hashes = config.num_hashes if "LSH" in type(module).__name__ else 0
        buckets = 4 * config.num_attention_heads * (hashes or 0)  # 64 bits each
        return KeptStates(hidden=True, bucket=buckets, chunk=config.lsh_attn_chunk_length if buckets else 0)
    if kind.startswith("t5gemma2"):
        return KeptStates(reads_source=type(module).__name__.endswith("MergedAttention"))
    parts: list[Any] = [part for part in module.modules() if _compresses(part)]
    sizes = ((part.compress_rate, part.head_dim, part.kv_proj.out_features) for part in parts)
    return KeptStates(compressed=tuple(CompressedKeys(*size) for size in sizes))


def numbers_of_token(name: str, config: PreTrainedConfig, projected: int) -> int:
    """Numbers kept of each token in this layer; `projected` are those that its matrices make keys and values of."""
    kind = str(config.model_type)
    if kind == "xlnet":
        return int(config.d_model) if config.use_mems_eval else 0
    if kind == "reformer":
        return int(config.hidden_size)
    if kind == "blt" and re.search("global_transformer|patcher|cross", name):
        return 0  # what bytes are read as patches is read anew
    return projected


def kept_window(module: Module, config: PreTrainedConfig) -> int | None:
    """The window of a layer that keeps no more tokens, of a family that does not say so in its layers' types."""
    if str(config.model_type) == "xlnet":
        return config.mem_len or None
    compresses = any(_compresses(part) for part in module.modules())
    return int(config.sliding_window) if compresses else None


def _compresses(part: Any) -> bool:
    return isinstance(getattr(part, "compress_rate", None), int) and hasattr(part, "kv_proj")


WINDOWED, FULL, OTHER = "window", "full", "other"
# families whose layers with a window follow a pattern that older files do not say
PATTERNS = {"gemma2": 2, "gpt_oss": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4}


@dataclass(frozen=True)
class LayerGroup:
    """So many layers of the same size; parameters without biases."""

    layers: int
    heads: int
    kv_heads: int
    d_k: int
    window: int | None = None  # tokens whose keys and values are kept; None: all of them
    own_keys: bool = True  # else the layer reads those of another, and has neither their matrices nor a cache
    own_values: bool = True  # else its values are its keys

    def parameter_counts(self, d_model: int) -> dict[str, int]:
        """Parameters of all layers of the group."""
        once = {
            "W_Q": self.heads,
            "W_K": self.kv_heads * self.own_keys,
            "W_V": self.kv_heads * (self.own_keys and self.own_values),
            "W_O": self.heads,
        }
        return {name: self.layers * d_model * self.d_k * count for name, count in once.items()}

    def cache_bytes(self, n: int) -> int:
        """Bytes of the group's keys and values of n tokens, 16 bits a number."""
        kept = n if self.window is None else min(n, self.window)
        return 2 * 2 * self.layers * self.kv_heads * self.d_k * kept * self.own_keys

    def cache_sentence(self) -> str:
        """The group for the table: "20 × 2 heads × (256 + 256)"."""
        return f"{counted(self.layers, 'layer')} × {counted(self.kv_heads, 'head')} × ({self.d_k} + {self.d_k})"


def layer_groups(settings: Document, heads: int, kv_heads: int, d_k: int) -> tuple[LayerGroup, ...]:
    """The layers of a configuration that says for each what it is, by what they are; none where all are the same.

    Raises TypeError, ValueError and KeyError for what cannot be.
    """
    types = settings.get("layer_types")
    shared = settings.get("num_kv_shared_layers") or 0
    if not isinstance(types, list) or not (shared or settings.get("per_layer_config") or "global_head_dim" in settings):
        return ()
    overrides = _per_layer(settings, types)
    found: Counter[LayerGroup] = Counter()
    for at, kind in enumerate(types):
        own = overrides.get(at, {})
        sliding = "sliding" in str(kind)
        group = LayerGroup(
            1,
            checked_size("num_attention_heads", own.get("num_attention_heads", heads)),
            checked_size("num_key_value_heads", own.get("num_key_value_heads") or kv_heads),
            checked_size("head_dim", own.get("head_dim", d_k)),
            checked_size("sliding_window", settings["sliding_window"]) if sliding else None,
            at < len(types) - checked_size("num_kv_shared_layers", shared, least=0),
            sliding or not settings.get("attention_k_eq_v"),
        )
        found[group] += 1
    return tuple(replace(one, layers=count) for one, count in found.items())


def _per_layer(settings: Document, types: list[Any]) -> dict[int, dict[str, Any]]:
    """What a configuration says of single layers: layer → settings."""
    said = settings.get("per_layer_config")
    if isinstance(said, dict):
        return {int(at): own for at, own in said.items() if isinstance(own, dict)}
    if "global_head_dim" not in settings:
        return {}
    own = {"head_dim": settings["global_head_dim"]}
    if settings.get("attention_k_eq_v") and settings.get("num_global_key_value_heads"):
        own["num_key_value_heads"] = settings["num_global_key_value_heads"]
    return {at: own for at, kind in enumerate(types) if "sliding" not in str(kind)}


def stored_latents(settings: Document, d_model: int, heads: int, d_v: int) -> int | None:
    """Parameters of one layer of latent attention as they are stored (DeepSeek's MLA); None for any other.

    Queries by way of a latent of their own where there is one; keys and values from one latent, a part of the keys turned
    by position.
    """
    rank, turned = settings.get("kv_lora_rank"), settings.get("qk_rope_head_dim")
    if not rank or turned is None:
        return None
    straight, queries = checked_size("qk_nope_head_dim", settings["qk_nope_head_dim"]), settings.get("q_lora_rank")
    rank, turned = checked_size("kv_lora_rank", rank), checked_size("qk_rope_head_dim", turned, least=0)
    d_k = straight + turned
    asking = d_model * heads * d_k if not queries else checked_size("q_lora_rank", queries) * (d_model + heads * d_k)
    return asking + d_model * (rank + turned) + rank * heads * (straight + d_v) + heads * d_v * d_model


def size_unless_0(settings: Document, key: str) -> int | None:
    """A size that some configurations give as 0 where there is no such thing."""
    value = settings.get(key)
    return None if value is None or (value == 0 and value is not False) else checked_size(key, value)


def checked_size(key: str, value: object, least: int = 1) -> int:
    """A number of a configuration that counts something; 1200.0 is 1200. Raises ValueError where it cannot."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= limits.CONFIGURED_SIZE:
        span = f"from {least} to {limits.CONFIGURED_SIZE:,}"
        raise ValueError(f"{key} is {json.dumps(value)[:40]}, not a whole number {span}")
    return value


# families whose positions begin after the padding token's id
AFTER_PADDING = frozenset(
    {"camembert", "data2vec-text", "esm", "ibert", "longformer", "luke", "mpnet", "prophetnet", "roberta"}
    | {"roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod"}
)


def usable_positions(settings: Document, longest: int) -> int:
    """How many tokens a table of `longest` positions is for."""
    kind = settings.get("model_type")
    if kind not in AFTER_PADDING or (settings.get("position_embedding_type") or "absolute") != "absolute":
        return longest
    padding = settings.get("pad_token_id")
    first = (padding if isinstance(padding, int) and padding >= 0 else 1) + 1
    ahead = 1 if kind == "prophetnet" else 0  # it looks one position ahead
    return max(longest - first - ahead, 1)


def window_of(settings: Document) -> int | None:
    """The window of the layers that have one: so many tokens back, or a chunk of the text (Llama 4)."""
    if not settings.get("use_sliding_window", True):
        return None
    window = size_unless_0(settings, "sliding_window")
    chunked = "chunked_attention" in (settings.get("layer_types") or ())
    return size_unless_0(settings, "attention_chunk_size") if window is None and chunked else window


def distinct_layers(settings: Document) -> int | None:
    """How many layers have parameters of their own, where others share them (ALBERT); None where all have."""
    groups = size_unless_0(settings, "num_hidden_groups")
    return None if groups is None else groups * (size_unless_0(settings, "inner_group_num") or 1)


def layer_counts(settings: Document, layers: int) -> Counter[str]:
    """How many layers attend to a window, to all, or do something else (convolution, recurrence, linear attention)."""
    for name in ("layer_types", "layers_block_type"):
        said = settings.get(name)
        if isinstance(said, list) and said:
            return Counter(layer_type(str(kind)) for kind in said)
    if isinstance(period := settings.get("attn_layer_period"), int) and period > 0:
        offset = settings.get("attn_layer_offset", 0)
        full = len(range(offset, layers, period)) if 0 <= offset < period else 0
        return Counter({FULL: full, OTHER: layers - full})
    if isinstance(blocks := settings.get("block_types"), list) and blocks:
        whole, rest = divmod(layers, len(blocks))
        kinds = Counter({kind: whole * count for kind, count in Counter(map(layer_type, map(str, blocks))).items()})
        return kinds + Counter(layer_type(str(kind)) for kind in blocks[:rest])
    if isinstance(places := settings.get("attn_layer_indices"), list) and places:
        full = sum(1 for at in set(places) if 0 <= at < layers)
        return Counter({FULL: full, OTHER: layers - full})
    if size_unless_0(settings, "sliding_window") is None or not settings.get("use_sliding_window", True):
        return Counter({FULL: layers})
    pattern = settings.get("sliding_window_pattern") or PATTERNS.get(str(settings.get("model_type")))
    if isinstance(pattern, int) and pattern > 0:
        return Counter({FULL: layers // pattern, WINDOWED: layers - layers // pattern})
    first = min(settings.get("max_window_layers") or 0, layers)  # Qwen 2: the layers below have none
    return Counter({FULL: first, WINDOWED: layers - first})


def layer_type(kind: str) -> str:
    """A layer's type as configurations name it, as one of three."""
    if any(word in kind for word in ("linear", "conv", "mamba", "recurrent", "mlp", "moe")):
        return OTHER
    return WINDOWED if "sliding" in kind or "chunked" in kind else FULL


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
    # numbers a token and layer that the cache keeps instead of keys and values (DeepSeek's MLA)
    latent: int | None = None
    source: str = ""
    windowed_layers: int = 0  # of the cached ones, those that keep a window of keys and values alone
    gated: bool = False  # queries come with a gate of the same size, which closes the context
    counted: bool = False  # this family's parameters and cache were held against built networks, and are equal
    groups: tuple[LayerGroup, ...] = ()  # where layers differ in size
    stored_layer: int | None = None  # parameters of a layer as they are stored, where that is less (DeepSeek's MLA)
    built: tuple[BuiltLayers, ...] = ()  # as transformers builds them, of a family with other matrices than the four
    embedding: int | None = None  # parameters of the table, where it is not vocabulary × d_model
    cache_told: bool = True  # else the cache is of a kind that is not known here
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
        if self.built:
            counts: Counter[str] = Counter()
            for part in self.built:
                counts.update({name: size * part.distinct for name, size in part.matrices})
            return dict(counts)
        if self.groups:
            parts = [group.parameter_counts(self.d_model) for group in self.groups]
            return {name: sum(part[name] for part in parts) for name in parts[0]}
        layers = self.layers if self.distinct_layers is None else self.distinct_layers
        return {name: size * layers for name, size in self.per_layer().items()}

    def stored_in_all(self) -> int:
        """Parameters of all layers together, as they are stored."""
        if self.stored_layer is None or self.built:
            return sum(self.in_all().values())
        return self.stored_layer * self.layers

    def embedding_parameters(self) -> int | None:
        """Parameters of the embedding table."""
        if self.embedding is not None:
            return self.embedding
        return None if self.vocabulary is None else self.vocabulary * self.d_model

    def cache_per_token(self) -> int:
        """Bytes that the key/value cache grows by with each token, 16 bits a number."""
        if self.cached_layers and self.built:
            return sum(part.bytes_per_token() for part in self.built if part.kind in ("self", "decoder"))
        if self.cached_layers and self.groups:
            return self.bytes_of_cache(1)
        kept = self.latent if self.latent is not None else self.kv_heads * (self.d_k + self.d_v)
        return 2 * self.cached_layers * kept

    def bytes_of_cache(self, n: int) -> int:
        """Bytes of the key/value cache of n tokens: layers with a window keep no more than that.

        Of an encoder-decoder, what its decoder keeps of n tokens of its own.
        """
        if not self.cached_layers:
            return 0
        if self.built:
            return sum(part.cache_bytes(n) for part in self.built if part.kind in ("self", "decoder"))
        if self.groups:
            return sum(group.cache_bytes(n) for group in self.groups)
        once = self.cache_per_token() // self.cached_layers
        short = min(n, self.window) if self.window is not None else n
        return once * ((self.cached_layers - self.windowed_layers) * n + self.windowed_layers * short)

    def bytes_of_source(self, n: int) -> int:
        """Bytes that the cross attention of an encoder-decoder keeps of a text of n tokens, from its first step on."""
        if not self.cached_layers or not self.reads_source:
            return 0
        if self.built:
            return sum(part.source_bytes(n) for part in self.built)
        return self.cached_layers * 2 * n * self.kv_heads * (self.d_k + self.d_v)

    @property
    def reads_source(self) -> bool:
        """Whether there is an encoder, whose output every layer of the decoder attends to."""
        return self.layers > self.cached_layers > 0

    def bytes_of_grid(self, n: int) -> int:
        """Bytes of one n × n, 32 bits a number."""
        return 4 * n * n

    def bytes_of_grids(self, n: int) -> int:
        """Bytes of every layer's and head's n × n."""
        if self.built:
            return self.bytes_of_grid(n) * sum(len(part.layers) * (part.heads or 0) for part in self.built)
        return self.bytes_of_grid(n) * self.layers * self.heads

    def bytes_unfactored(self, n: int) -> int:
        """Bytes of n × n × d_model × d_model: a matrix of its own for every two tokens, which queries and keys spare us."""
        return self.bytes_of_grid(n) * self.d_model * self.d_model

    def sizes_document(self, n: int) -> Document:
        """The sizes as JSON, and what follows from them for a text of n tokens; bytes are integers, beyond 64 bits, too."""
        told = {key: value for key, value in asdict(self).items() if value not in (None, "", ())}
        if self.built:
            told["built"] = [asdict(group) | {"matrices": dict(group.matrices)} for group in self.built]
        single = {} if self.built else {"head": self.per_head(), "layer": self.per_layer()}
        follows = {
            "parameters": {"all": self.in_all()} | single,
            "embedding": self.embedding_parameters(),
            "cache_bytes_per_token": self.cache_per_token() if self.cache_told else None,
            "tokens": n,
            "cache_bytes": self.bytes_of_cache(n) if self.cache_told else None,
            "cross_cache_bytes": self.bytes_of_source(n) or None if self.cache_told else None,
            "grid_bytes": self.bytes_of_grid(n),
            "grids_bytes": self.bytes_of_grids(n),
            "unfactored_bytes": self.bytes_unfactored(n),
        }
        known = {key: value for key, value in follows.items() if value is not None}
        return {"schema": "attnctl.sizes/1", "attnctl": __version__} | told | known
