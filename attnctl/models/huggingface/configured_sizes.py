"""How large a model's attention is, from its configuration alone: no weights are read."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from attnctl import limits
from attnctl.errors import AttnctlError, UsageError, in_one_line
from attnctl.models.huggingface.hub import KNOWN, find_checkpoint, is_checkpoint, read_json
from attnctl.models.huggingface.sizes import (
    FULL,
    WINDOWED,
    ModelSizes,
    checked_size,
    distinct_layers,
    layer_counts,
    layer_groups,
    size_unless_0,
    stored_latents,
    usable_positions,
    window_of,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from attnctl.models.huggingface.built_sizes import BuiltLayers
    from attnctl.text import Document


# the names under which configurations keep one thing
NAMES = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers"),
    "heads": ("num_attention_heads", "n_head", "num_heads", "n_heads", "encoder_attention_heads", "attention_heads"),
    "d_model": ("hidden_size", "n_embd", "d_model", "dim", "emb_dim"),
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


@cache
def known_configurations() -> dict[str, Document]:
    """The configurations that come with attnctl, by name.

    Each was held against a copy of its numbers, in November 2026. transformers' defaults: GPT-2 small, BERT base, RoBERTa,
    GPT-NeoX, Gemma 2 2B, gpt-oss 120B. The files of packages: all-MiniLM-L6-v2, SmolLM2. LitGPT's `config.py`: Falcon,
    Phi, Llama, Mixtral, Qwen, Gemma 2, OLMo 2. Google's gemma_pytorch: Gemma 3. DeepSeek's `config_671B.json`: DeepSeek-V3.
    nanoGPT: the other GPT-2s. Google's BERT README: BERT large. Copies of config.json: T5, BLOOM, Mistral, gpt-oss 20B, and
    the window of Phi-3. Brown et al. 2020, table 2.1: GPT-3.
    """
    table: dict[str, Document] = json.loads(
        files("attnctl.models.huggingface").joinpath("known.json").read_text("utf-8")
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
        return of_config_file(read_json(path / "config.json"), path.name if Path(name).exists() else name, str(path))
    if name in REGISTRY or (Path(name).suffix.lower() in (".safetensors", ".npz") and Path(name).exists()):
        raise UsageError(f"{name} has no configuration to read: attnctl explain --model {name} shows all there is")
    if Path(name).exists():
        raise UsageError(f"{name} is no model: it is a known name, a checkpoint's folder or .gguf file, or owner/name")
    near = difflib.get_close_matches(name.lower(), [*table, *KNOWN], n=1)
    hint = (
        f"did you mean {near[0]}?" if near else "`attnctl model` lists the known ones, or give a folder, or owner/name"
    )
    raise UsageError(f"no model {name!r}: {hint}")


def of_config_file(settings: Document, name: str, source: str) -> ModelSizes:
    """The sizes that the config.json of a checkpoint states; what it leaves out is filled in by transformers' class.

    Of a family with other matrices than four a layer, the layers are built, without memory. Where transformers is not
    installed, the file's own numbers are all there is. Raises AttnctlError where they do not say enough, or cannot be.
    """
    with _errors_said(name):
        for what in NAMES:
            _stated_size(settings, what)
    layers, experts = (
        _most_parts(settings, kind) for kind in ("(n_layer|layers|blocks|cycles|stages|depth)$", "experts$")
    )
    if layers > limits.LAYERS_BUILT or layers * experts > limits.EXPERTS_BUILT:
        return of_configuration(settings, name, source)
    from attnctl.models.huggingface.built_sizes import built_layers, built_network, filled_settings

    filled = filled_settings(settings)
    if filled is None:
        return of_configuration(settings, name, source)
    if _is_counted(_text_settings(filled)) or (network := built_network(settings)) is None:
        return of_configuration(filled, name, source)
    groups = built_layers(network)
    if not groups:
        raise AttnctlError(f"{name} has no layers of softmax attention, by its configuration")
    return sizes_of_layers(groups, network, name, source)


def _most_parts(settings: Document, kind: str) -> int:
    """The largest count that a configuration states under a key of this kind (a pattern): each part would be built."""
    several = [_most_parts(part, kind) for part in settings.values() if isinstance(part, dict)]
    stated = [value for key, value in settings.items() if isinstance(value, int) and re.search(kind, key)]
    return max([0, *several, *stated])


def sizes_of_layers(groups: tuple[BuiltLayers, ...], network: PreTrainedModel, name: str, source: str) -> ModelSizes:
    """The sizes of a network by its built layers: heads and d_k are those of most of them."""
    from attnctl.models.huggingface.built_sizes import stated_number

    most = max(groups, key=lambda group: len(group.layers))
    config = network.config
    kind, text = str(config.model_type), config.get_text_config(decoder=True)
    reads_alone = kind in ENCODERS and not getattr(config, "is_decoder", False)
    table = getattr(network.get_input_embeddings(), "weight", None)
    kept = sum(len(group.layers) for group in groups if group.kind in ("self", "decoder"))
    windows = {group.window for group in groups if group.window is not None}
    context, d_model = stated_number(text, NAMES["context"]), stated_number(text, NAMES["d_model"])
    if d_model is None:  # of parts that have configurations of their own (BLT) the widest
        d_model = max((stated_number(part, NAMES["d_model"]) or 0 for part in vars(config).values()), default=0)
    return ModelSizes(
        name,
        kind,
        sum(len(group.layers) for group in groups),
        0 if reads_alone else kept,
        most.heads or 0,
        most.kv_heads or most.heads or 0,
        d_model,
        most.d_k or 0,
        most.d_v or most.d_k or 0,
        stated_number(text, NAMES["vocabulary"]),
        context and usable_positions(config.to_dict(), context),
        max(windows, default=None),
        source=source,
        embedding=None if table is None else table.numel(),
        cache_told=kind in counted_caches() | counted_families(),
        built=groups,
    )


def of_configuration(settings: Document, name: str, source: str) -> ModelSizes:
    """The sizes that a config.json states, or that its architecture takes for granted.

    Raises AttnctlError where it does not state them, or states what cannot be.
    """
    with _errors_said(name):
        return _of_configuration(settings, name, source)


@contextmanager
def _errors_said(name: str) -> Iterator[None]:
    """Within this, a configuration that cannot be is an AttnctlError."""
    try:
        yield
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
    if distinct_layers(settings) is not None:  # of ALBERT each layer may attend several times
        layers *= size_unless_0(settings, "inner_group_num") or 1
    inner = settings.get("attn_config")  # DBRX
    said = inner if isinstance(inner, dict) and "kv_n_heads" in inner else settings
    one = settings.get("multi_query") and not settings.get("new_decoder_architecture")  # Falcon 7B; not 40B
    kv_heads = 1 if one else _stated_size(said, "kv_heads") or heads
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
    kind, context = settings.get("model_type", "unknown"), _stated_size(settings, "context")
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
        None if context is None else usable_positions(settings, context),
        window,
        latent,
        source,
        counts[WINDOWED] if window is not None and cached else 0,
        gated=bool(settings.get("attn_output_gate", kind in GATED)),
        counted=_is_counted(settings),
        groups=layer_groups(settings, heads, kv_heads, d_k),
        stored_layer=stored_latents(settings, d_model, heads, _stated_size(settings, "d_v") or d_k),
        distinct_layers=distinct_layers(settings),
    )


NO_ATTENTION = frozenset({"falcon_mamba", "fnet", "mamba", "mamba2", "rwkv", "xlstm"})


@cache
def _counted() -> dict[str, list[str]]:
    table: dict[str, list[str]] = json.loads(
        files("attnctl.models.huggingface").joinpath("counted.json").read_text("utf-8")
    )
    return table


def counted_families() -> frozenset[str]:
    """The families, by model_type, whose four matrices and cache are a built network's: made by tests/sweep/counted.py."""
    return frozenset(_counted()["families"])


def counted_caches() -> frozenset[str]:
    """The families with other matrices, by model_type, whose built layers tell what a cache keeps: made likewise."""
    return frozenset(_counted()["caches"])


def _is_counted(settings: Document) -> bool:
    """Whether four matrices a layer are all there is, by what was counted of its family.

    Not of a decoder or an encoder alone, nor of one with cross attention beside.
    """
    named = settings.get("architectures")
    said = str(named[0]) if isinstance(named, list) and named else ""
    decoder = "encoder_layers" in settings and (not settings.get("is_encoder_decoder") or said.endswith("ForCausalLM"))
    is_part = decoder or said.endswith("EncoderModel") or bool(settings.get("add_cross_attention"))
    return settings.get("model_type") in counted_families() and not is_part


# families whose queries come with a gate
GATED = frozenset(
    {"afmoe", "beam", "qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"}
    | {"qwen4_exp", "qwen4_exp_text"}
)


def _text_settings(settings: Document) -> Document:
    """The part of a configuration that is about text, where it has several."""
    inner = settings.get("text_config") or settings.get("llm_config")
    if not isinstance(inner, dict):
        return settings
    of_whole = {"is_encoder_decoder", *(name for names in NAMES.values() for name in names)}
    return {key: value for key, value in settings.items() if key not in of_whole} | inner


def _stated_size(settings: Document, what: str) -> int | None:
    return next((checked_size(key, settings[key]) for key in NAMES[what] if settings.get(key) is not None), None)


def _with_defaults(settings: Document, name: str) -> Document:
    """What the architecture takes for granted filled in, by transformers' own configuration class."""
    from attnctl.models.huggingface.hub import import_extra

    kind = settings.get("model_type")
    try:
        filled: Document = import_extra("transformers").AutoConfig.for_model(kind).to_dict()
    except (ValueError, KeyError) as error:
        raise AttnctlError(f"the configuration of {name} does not say its layers, heads and d_model") from error
    return filled | settings


def _gguf_settings(path: Path) -> Document:
    """What a GGUF file's metadata says, under the names of a config.json."""
    from attnctl.models.huggingface.gguf_header import read_header

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
