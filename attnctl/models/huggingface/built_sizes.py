"""A configuration as transformers' own classes read it: what it leaves out filled in, and its attention built and counted.

Nothing has weights: networks are built on torch's meta device, without memory.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from attnctl.light_import import complete_torch, import_lightly
from attnctl.models.huggingface.hub import import_extra
from attnctl.models.huggingface.sizes import (
    WINDOWED,
    KeptStates,
    kept_states,
    kept_window,
    layer_type,
    numbers_of_token,
)
from attnctl.text import number_list

if TYPE_CHECKING:
    from torch.nn import Module
    from transformers import PreTrainedConfig, PreTrainedModel

    from attnctl.models.huggingface.attention_session import Names
    from attnctl.text import Document


OTHER_INPUT = re.compile(r"vision|visual|image|audio|speech|vqmodel", re.IGNORECASE)  # encoders of other inputs
OTHER_ATTENTION = re.compile(r"Delta|Lightning|^(?!KimiLinear).*Linear|Rwkv|AttentionResidual|AttentionStructure")
NO_MATRIX = re.compile(r"norm|bias", re.IGNORECASE)
WHOLE = re.compile(r"(Attention|Attn|AttentionLayer)$")  # classes of one attention with its output projection
# what a layer adds to its cache for each token: the rows of these matrices
KEPT = re.compile(
    r"^((?!indexer|compressor)\w+\.)?(k|key|k_proj|key_proj|k_lin|project_k|v|value|v_proj|value_proj|v_lin|project_v|"
    r"v_proj_current|v_proj_delayed|kv_proj|kv_a_proj_with_mqa)\.weight$"
)
HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "kv_heads")
SIZES = ("qk_head_dim", "head_dim", "attention_head_size", "d_head", "dim_head", "head_size", "key_value_proj_dim")


@dataclass(frozen=True)
class BuiltLayers:
    """Layers of a built network that are of the same sizes; parameters without biases and norms."""

    layers: tuple[int, ...]
    kind: str  # self, or of an encoder-decoder encoder, decoder, cross
    heads: int | None
    kv_heads: int | None
    d_k: int | None
    d_v: int | None
    matrices: tuple[tuple[str, int], ...]  # of one layer: a matrix by transformers' name for it, its parameters
    distinct: int  # how many layers have parameters of their own
    kept: int  # numbers that a cache keeps of each token in each layer, where a layer keeps keys and values
    window: int | None = None
    states: KeptStates = KeptStates()  # what it keeps otherwise

    def parameter_count(self) -> int:
        """Parameters of one layer."""
        return sum(count for _, count in self.matrices)

    def layers_sentence(self) -> str:
        """The layers for a table: "2: 8 heads, 2 of keys, d_k 64, a window of 128; 1,024 parameters each"."""
        kind = "" if self.kind == "self" else f"{self.kind} "
        shared = f", {self.kv_heads} of keys" if self.kv_heads != self.heads else ""
        sizes = f", d_k {self.d_k}" + (f", d_v {self.d_v}" if self.d_v != self.d_k else "")
        window = f", a window of {self.window:,}" if self.window is not None else ""
        each = f"{self.parameter_count():,} parameters" + (" each" if len(self.layers) > 1 else "")
        return f"{kind}{number_list(self.layers)}: {self.heads} head{'s' * (self.heads != 1)}{shared}{sizes}{window}; {each}"

    def cache_bytes(self, n: int) -> int:
        """Bytes that the layers keep of n tokens, 16 bits a number."""
        tokens = n + self.states.added
        each = self.kept * (tokens if self.window is None else min(tokens, self.window)) + self.states.numbers_beside(n)
        return 2 * len(self.layers) * self.states.cycles * each

    def bytes_per_token(self) -> int:
        """Bytes by which that grows with a token."""
        return 2 * len(self.layers) * self.states.cycles * (self.kept + self.states.growth())

    def source_bytes(self, n: int) -> int:
        """Bytes that the layers keep of n tokens that an encoder read, 16 bits a number."""
        reads = self.kind == "cross" or self.states.reads_source
        return 2 * len(self.layers) * self.kept * n if reads else 0

    def kept_sentence(self) -> str:
        """What the layers keep, for a table: "2 layers × 64 numbers"."""
        hidden = " of hidden states" if self.states.hidden else ""
        window = "" if self.window is None else f" of the last {self.window:,} tokens"
        layers = f"{len(self.layers)} layer{'s' * (len(self.layers) > 1)}"
        return f"{layers} × {self.kept:,} numbers{hidden}{window}{self.states.beside_sentence()}"


def filled_settings(settings: Document) -> Document | None:
    """A config.json with all that transformers' class takes for granted or computes; None where there is no such class.

    The names under which every architecture's sizes can be asked for (`num_hidden_layers`, …) are among it.
    """
    config = configuration_of(settings)
    if config is None:
        return None
    names = ("num_hidden_layers", "num_attention_heads", "hidden_size")
    asked = {name: value for name in names if isinstance(value := _attribute(config, name), int)}
    return {**asked, **config.to_dict()}


def configuration_of(settings: Document) -> PreTrainedConfig | None:
    """The configuration of a config.json, by its own class; None where transformers lacks one, or the class refuses it."""
    try:
        mapping = import_extra("transformers").CONFIG_MAPPING
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            config: PreTrainedConfig = mapping[str(settings.get("model_type"))].from_dict(_with_floats(settings))
            return config
    except Exception:  # whatever a configuration of any kind makes of its class
        return None


def _with_floats(value: Any) -> Any:
    """A value of a config.json with the numbers that JSON has none for, which transformers writes as objects."""
    if isinstance(value, dict):
        return (
            float(value["__float__"])
            if value.keys() == {"__float__"}
            else {k: _with_floats(v) for k, v in value.items()}
        )
    return [_with_floats(part) for part in value] if isinstance(value, list) else value


def built_network(settings: Document) -> PreTrainedModel | None:
    """The network that a config.json describes, built without memory; None where it cannot be."""
    config = configuration_of(settings)
    if config is None:
        return None

    def lay_out_network() -> PreTrainedModel:
        transformers = import_extra("transformers")
        import torch

        complete_torch()
        with warnings.catch_warnings(), torch.device("meta"):
            warnings.simplefilter("ignore")
            network: PreTrainedModel = _class_of(transformers, settings, config)._from_config(config)
            return network

    try:
        return import_lightly(lay_out_network)
    except Exception:  # as above
        return None


def _class_of(transformers: Any, settings: Document, config: PreTrainedConfig) -> Any:
    """The class that a configuration names, else the plain one of its family."""
    from transformers.models.auto.modeling_auto import MODEL_MAPPING

    named = settings.get("architectures")
    known = getattr(transformers, str(named[0]), None) if isinstance(named, list) and named else None
    if hasattr(known, "_can_set_attn_implementation") and known is not None and isinstance(config, known.config_class):
        return known
    return MODEL_MAPPING[type(config)]


def built_layers(network: PreTrainedModel) -> tuple[BuiltLayers, ...]:
    """The layers of a network that attend to text, those of the same sizes together, in the order of the network."""
    from attnctl.models.huggingface.attention_session import names_of_modules

    names, found = names_of_modules(network), dict[BuiltLayers, BuiltLayers]()
    for module, whole in text_attentions(network):
        one = _built_layer(network, names[id(module)], module, whole)
        alike = replace(one, layers=(), distinct=0)
        before = found.get(alike, alike)
        found[alike] = replace(one, layers=before.layers + one.layers, distinct=before.distinct + 1)
    return tuple(found.values())


def _built_layer(network: PreTrainedModel, names: Names, module: Module, whole: Module) -> BuiltLayers:
    """The layers that one module stands for."""
    sizes = network.config.get_text_config()
    heads, kv_heads, d_k, d_v = _sizes_of_heads(module, sizes)
    matrices = {own: p for own, p in whole.named_parameters() if p.ndim >= 2 and not NO_MATRIX.search(own)}
    projected = sum(p.shape[0] for own, p in matrices.items() if KEPT.match(own))
    # the key by which an indexer finds a token is kept beside the others
    indexer = getattr(module, "indexer", None)
    projected += stated_number(indexer, ("head_dim", "index_head_dim", "indexer_head_dim")) or 0
    window = kept_window(module, network.config) or _window(module, sizes, names.layers[0])
    return BuiltLayers(
        names.layers,
        names.kind,
        heads,
        kv_heads,
        d_k,
        d_v,
        tuple((own.removesuffix(".weight"), p.numel()) for own, p in matrices.items()),
        1,
        numbers_of_token(names.names[0], network.config, projected),
        None if names.kind == "cross" else window,
        kept_states(module, names.names[0], network.config),
    )


def text_attentions(network: PreTrainedModel) -> Iterator[tuple[Module, Module]]:
    """Each module that attends to text, and the one that holds it with its output projection."""
    from attnctl.models.huggingface.attention_session import attention_modules

    # the parts that its text configuration describes; all of it where it has none for text alone
    text = getattr(network.config, "text_config", network.config)
    roots = [part for part in network.modules() if getattr(part, "config", None) is text] or [network]
    inside = {id(part) for root in roots for part in root.modules()}
    for name, part in attention_modules(network).items():
        if id(part) in inside and not OTHER_INPUT.search(name) and not OTHER_ATTENTION.search(type(part).__name__):
            yield part, _with_projection(network, name)


def _with_projection(network: PreTrainedModel, name: str) -> Module:
    """The module itself, or the one around it that holds its output projection beside (BERT's, Reformer's)."""
    module = network.get_submodule(name)
    while "." in name:
        name = name.rpartition(".")[0]
        holder = network.get_submodule(name)
        if not WHOLE.search(type(holder).__name__) or re.search("Cross.*Decoder|Layer$", type(holder).__name__):
            break
        module = holder
    return module


def _sizes_of_heads(module: Module, sizes: PreTrainedConfig) -> tuple[int | None, int | None, int | None, int | None]:
    """Heads, key/value heads, d_k and d_v of a module, as it says them itself, or its configuration does."""
    own = getattr(module, "config", sizes)
    heads = stated_number(module, HEADS) or stated_number(own, HEADS)
    shared = getattr(module, "num_key_value_groups", None)
    kv_heads = heads // shared if heads and isinstance(shared, int) and shared > 0 else stated_number(module, KV_HEADS)
    d_k = stated_number(module, SIZES) or stated_number(own, SIZES)
    return heads, kv_heads or heads, d_k, stated_number(module, ("v_head_dim",)) or d_k


def stated_number(whose: object, names: tuple[str, ...]) -> int | None:
    """The first of these attributes that is a number above 0; one that differs from layer to layer is none."""
    return next((value for name in names if isinstance(value := _attribute(whose, name), int) and value > 0), None)


def _attribute(whose: object, name: str) -> Any:
    try:
        return getattr(whose, name, None)
    except Exception:  # of transformers' own: "is a per-layer attribute"
        return None


def _window(module: Module, sizes: PreTrainedConfig, layer: int) -> int | None:
    """The window of a layer that has one."""
    types = _attribute(sizes, "layer_types")
    if not isinstance(types, list) or not layer < len(types) or layer_type(str(types[layer])) != WINDOWED:
        return None
    own = stated_number(module, ("sliding_window",)) or stated_number(sizes, ("sliding_window",))
    return own or stated_number(sizes, ("attention_chunk_size",))
