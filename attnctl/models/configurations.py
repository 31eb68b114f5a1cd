"""Find the sizes of a model's attention from a configuration alone: a config.json, or the header of a GGUF file.

The network is built without memory, and its parameters are counted. If that fails, four matrices a layer are computed
from the configuration, and the output says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from attnctl.checks import limits
from attnctl.errors import AttnctlError, in_one_line
from attnctl.models.gguf.facts import file_facts
from attnctl.models.gguf.header import read_header
from attnctl.models.huggingface.counted import built_network, sizes_of_network
from attnctl.models.huggingface.hub import find_checkpoint, import_extra, is_checkpoint, read_json, short_name
from attnctl.models.sizes import NAMES, AttentionLayers, ModelSizes
from attnctl.models.unread import check_runs
from attnctl.runtime.light_import import import_lightly
from attnctl.text import Document


def sizes_of_checkpoint(name: str) -> ModelSizes | None:
    """Return the sizes of a checkpoint's folder, its GGUF file or its hub id, by its configuration; None if it is none.

    Raises AttnctlError if the configuration lacks a size, and for a file of a model that attnctl does not run.
    """
    if not is_checkpoint(name):
        check_runs(name)
        return None
    path = find_checkpoint(name, weights=False)
    if path.is_file():
        from attnctl.models.gguf.ollama_layout import open_gguf

        sizes = sizes_of_settings(_gguf_settings(path), short_name(name), str(path))
        return replace(sizes, file_facts=file_facts(open_gguf(path)[0]))
    return sizes_of_settings(read_json(path / "config.json"), path.name if Path(name).exists() else name, str(path))


def _gguf_settings(path: Path) -> Document:
    """Return a GGUF file's metadata under the names of a config.json; of an architecture that is not read, its sizes."""
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
        "kv_lora_rank": "attention.kv_lora_rank",
        "max_position_embeddings": "context_length",
        "vocab_size": "vocab_size",
        "sliding_window": "attention.sliding_window",
    }
    settings = {to: value for to, name in names.items() if (value := header.entries.get(f"{kind}.{name}")) is not None}
    if "vocab_size" not in settings and "tokenizer.ggml.tokens" in header.lengths:
        settings["vocab_size"] = header.lengths["tokenizer.ggml.tokens"]
    with suppress(AttnctlError):  # another architecture, or transformers is not installed
        from attnctl.models.gguf.opening import opened_gguf
        from attnctl.models.huggingface.network import class_of

        fields = opened_gguf(path, path.name).configuration
        model_class = import_lightly(lambda: class_of(import_extra("transformers"), fields, path.name))
        return fields | {"model_type": model_class.config_class.model_type}
    return {"model_type": kind} | settings


MAY_BE_0 = ("sliding_window", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim")  # 0: the model has none
# keys of models whose layers differ, do not all attend, or have other matrices than W_Q, W_K, W_V, W_O
OTHERWISE = (
    *("layer_types", "layers_block_type", "block_types", "attn_layer_period", "attn_layer_indices"),
    *("kv_lora_rank", "num_kv_shared_layers", "num_hidden_groups", "per_layer_config", "state_size"),
)


def sizes_of_settings(settings: Document, name: str, source: str) -> ModelSizes:
    """Return the sizes of the network that a config.json describes; the network is built without memory if possible.

    Raises AttnctlError for impossible sizes, or if the network cannot be built and the configuration lacks a size.
    """
    with _errors_said(name):
        _check_sizes(settings)
        layers, experts = (
            _most_parts(settings, kind) for kind in ("(n_layer|layers|blocks|cycles|stages|depth)$", "experts$")
        )
        if layers > limits.LAYERS_BUILT or layers * experts > limits.EXPERTS_BUILT:
            return stated_sizes(settings, name, source)
        network = built_network(settings, name)
        return stated_sizes(settings, name, source) if network is None else sizes_of_network(network, name, source)


@contextmanager
def _errors_said(name: str) -> Iterator[None]:
    """Turn the errors of an impossible configuration into an AttnctlError."""
    try:
        yield
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else in_one_line(error)
        raise AttnctlError(f"the configuration of {name} cannot be read: {reason}") from error


def _check_sizes(settings: Document) -> None:
    """Raise ValueError for a size, here or in a part, that is not a positive number."""
    for key, value in settings.items():
        if isinstance(value, dict):
            _check_sizes(value)
        elif value is not None and key in MAY_BE_0:
            checked_size(key, value, smallest=1 if value is False or value else 0)
        elif value is not None and any(key in names for names in NAMES.values()):
            checked_size(key, value)
    heads, kv_heads = (
        next((settings[k] for k in NAMES[name] if settings.get(k)), None) for name in ("heads", "kv_heads")
    )
    if heads and kv_heads and heads % kv_heads:
        raise ValueError(f"{heads} heads cannot share {kv_heads} key/value heads evenly")


def checked_size(key: str, value: object, smallest: int = 1) -> int:
    """Return a count of a configuration as an integer; 1200.0 is 1200. Raises ValueError if it is not a whole number."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not smallest <= value <= limits.CONFIGURED_SIZE:
        span = f"from {smallest} to {limits.CONFIGURED_SIZE:,}"
        raise ValueError(f"{key} is {json.dumps(value)[:40]}, not a whole number {span}")
    return value


def _most_parts(settings: Document, kind: str) -> int:
    """Return the largest count under a key that matches this pattern: transformers would build that many modules."""
    several = [_most_parts(part, kind) for part in settings.values() if isinstance(part, dict)]
    stated = [value for key, value in settings.items() if isinstance(value, int) and re.search(kind, key)]
    return max([0, *several, *stated])


def stated_sizes(settings: Document, name: str, source: str) -> ModelSizes:
    """Return the sizes that a config.json states, with four matrices in each layer; the cache is not counted.

    Raises AttnctlError if it lacks layers, heads or d_model, or says that its layers have other matrices.
    """
    inner = settings.get("text_config")
    settings = settings | inner if isinstance(inner, dict) else settings
    stated = {
        size_name: next((settings[k] for k in keys if settings.get(k) is not None), None)
        for size_name, keys in NAMES.items()
    }
    layers, heads, d_model = (stated[size_name] for size_name in ("layers", "heads", "d_model"))
    if layers is None or heads is None or d_model is None:
        raise AttnctlError(f"the configuration of {name} does not say its layers, heads and d_model")
    if unlike := [key for key in OTHERWISE if settings.get(key)]:
        raise AttnctlError(
            f"the sizes of {name} cannot be computed: its {unlike[0]} needs a version of transformers that can build it"
        )
    kv_heads = stated["kv_heads"] or heads
    if stated["d_k"] is None and d_model % heads:
        raise ValueError(f"d_model {d_model} does not divide by {heads} heads, and no head_dim is given")
    d_k = stated["d_k"] or d_model // heads
    d_v = stated["d_v"] or d_k
    sizes = {"W_Q": heads * d_k, "W_K": kv_heads * d_k, "W_V": kv_heads * d_v, "W_O": heads * d_v}
    matrices = tuple((name, d_model * size) for name, size in sizes.items())
    counts = {"self": layers}
    if settings.get("is_encoder_decoder"):
        decoding = stated["decoder_layers"] or layers
        counts = {"encoder": layers, "decoder": decoding, "cross": decoding}
    groups = (
        AttentionLayers(range(count), kind, heads, kv_heads, d_k, d_v, matrices, count)
        for kind, count in counts.items()
    )
    vocabulary = stated["vocabulary"]
    return ModelSizes(
        name,
        str(settings.get("model_type") or "unknown"),
        tuple(groups),
        d_model,
        vocabulary,
        stated["context"],
        None if vocabulary is None else vocabulary * d_model,
        source=source,
    )
