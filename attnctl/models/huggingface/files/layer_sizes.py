"""What the layers of a model are, from a configuration: with a window, of other sizes, without keys of their own."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from attnctl import limits
from attnctl.text import counted

if TYPE_CHECKING:
    from attnctl.text import Document


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
