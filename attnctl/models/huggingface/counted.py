"""Count the attention of a network on torch's meta device, without memory.

`stated_number` asks objects of transformers, whose attributes differ from family to family.
"""

from __future__ import annotations

import inspect
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from msgspec import structs

from attnctl.errors import AttnctlError, in_one_line
from attnctl.models.huggingface.hub import check_extra, import_extra
from attnctl.models.huggingface.network import quiet_library, usable_positions
from attnctl.models.huggingface.optional_fields import cache_of_output, config_value, keys_and_values, tensor_of
from attnctl.models.sizes import NAMES, AttentionLayers, CachedLayers, ModelSizes
from attnctl.runtime.light_import import complete_torch, import_lightly, without_compiler

if TYPE_CHECKING:
    from torch.nn import Module
    from transformers import Cache, PreTrainedConfig, PreTrainedModel

    from attnctl.text import Document


OTHER_INPUT = re.compile(r"vision|visual|image|audio|speech|vqmodel", re.IGNORECASE)  # encoders of other inputs
OTHER_ATTENTION = re.compile(r"Delta|Lightning|^(?!KimiLinear).*Linear|Rwkv|AttentionResidual|AttentionStructure")
NO_MATRIX = re.compile(r"norm|bias", re.IGNORECASE)
WHOLE = re.compile(r"(Attention|Attn|AttentionLayer)$")  # classes of one attention with its output projection
HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "kv_heads")
SIZES = ("qk_head_dim", "head_dim", "attention_head_size", "d_head", "dim_head", "head_size", "key_value_proj_dim")


def built_network(settings: Document, name: str) -> PreTrainedModel | None:
    """Build the network that a config.json describes, on the meta device.

    Return None if transformers is not installed or does not know the family.

    Raises AttnctlError if transformers cannot build it.
    """

    def lay_out_network() -> PreTrainedModel | None:
        transformers = import_extra("transformers")
        import torch

        complete_torch()
        families, kind = transformers.CONFIG_MAPPING, str(settings.get("model_type"))
        if kind not in families:
            return None
        with quiet_library(), torch.device("meta"):
            config = families[kind].from_dict(_with_floats(settings))
            text = config.get_text_config()
            if text is not config and "num_hidden_layers" in settings:  # only the text model's sizes (Gemma 3 in GGUF)
                config = text = type(text).from_dict(settings | {"model_type": text.model_type})
            chosen = {"attn_implementation": "eager", "dtype": torch.bfloat16}  # most families can be built with these
            try:
                network: Any = _class_of(transformers, settings, config)._from_config(config, **chosen)
            except ImportError:  # a library for its other inputs: build the text model alone
                network = _class_of(transformers, {}, text)._from_config(text, **chosen)
            laid_out: PreTrainedModel = network.eval()
            return laid_out

    try:
        check_extra()
        return import_lightly(lay_out_network)
    except AttnctlError:  # transformers or torch is not installed
        return None
    except Exception as error:  # a class of transformers may raise anything
        for key in re.findall(r'"(\w+)": null', json.dumps(settings)):  # some keys may be null, as a window
            if f"'{key}'" in str(error):
                raise AttnctlError(f"the configuration of {name} cannot be read: {key} is null") from error
        raise AttnctlError(f"transformers cannot build the network of {name}: {in_one_line(error)}") from error


def _with_floats(value: Any) -> Any:
    """Return a value of a config.json with the numbers that JSON cannot hold, which transformers writes as objects."""
    if isinstance(value, dict) and value.keys() == {"__float__"}:
        return float(value["__float__"])
    if isinstance(value, dict):
        return {key: _with_floats(part) for key, part in value.items()}
    return [_with_floats(part) for part in value] if isinstance(value, list) else value


def _class_of(transformers: Any, settings: Document, config: PreTrainedConfig) -> Any:
    """Return the class that a configuration names, else the base class of its family."""
    from transformers import PreTrainedModel
    from transformers.models.auto.modeling_auto import MODEL_MAPPING

    names = settings.get("architectures")
    named = getattr(transformers, str(names[0]), None) if isinstance(names, list) and names else None
    if isinstance(named, type) and issubclass(named, PreTrainedModel) and named.config_class is not None:
        return named if isinstance(config, named.config_class) else MODEL_MAPPING[type(config)]
    return MODEL_MAPPING[type(config)]


def sizes_of_network(network: PreTrainedModel, name: str, source: str) -> ModelSizes:
    """Return the sizes of a network on the meta device. Raises AttnctlError if it has no layer of softmax attention."""
    groups = attention_layers(network)
    if not groups:
        raise AttnctlError(f"{name} has no layers of softmax attention, by its configuration")
    config = network.config
    text = config.get_text_config(decoder=True)
    d_model = stated_number(text, NAMES["d_model"])
    if d_model is None:  # each part has a configuration (BLT): take the widest
        d_model = max((stated_number(part, NAMES["d_model"]) or 0 for part in vars(config).values()), default=0)
    reads_text: Any = getattr(network, "text_model", network)  # CLIP has a text and an image tower
    table = None
    with suppress(NotImplementedError):  # DETR has no embedding
        table = tensor_of(reads_text.get_input_embeddings(), "weight")
    return ModelSizes(
        name,
        str(config.model_type),
        groups,
        d_model,
        stated_number(text, NAMES["vocabulary"]),
        usable_positions(network, stated_number(text, NAMES["context"])),
        None if table is None else table.numel(),
        cached_layers(network),
        built=True,
        source=source,
    )


def attention_layers(network: PreTrainedModel) -> tuple[AttentionLayers, ...]:
    """Return the layers of a network that attend to text, in its order; layers of the same sizes are one entry."""
    from attnctl.models.huggingface.attention_sites import layer_count, sites_of_modules

    sites, layers_by_size = sites_of_modules(network), dict[AttentionLayers, AttentionLayers]()
    counted_before: set[int] = set()  # ids of parameters: modules may be copies that share them (Zamba)
    sizes = network.config.get_text_config()
    for module, whole in _text_attentions(network):
        module_sites = sites[id(module)]
        matrices = {key: p for key, p in whole.named_parameters() if p.ndim >= 2 and not NO_MATRIX.search(key)}
        named = tuple((key.removesuffix(".weight"), p.numel()) for key, p in matrices.items())
        ids = set(map(id, matrices.values()))
        alike = AttentionLayers((), module_sites[0].kind, *_sizes_of_heads(module, sizes), named, 0)
        before = layers_by_size.get(alike, alike)
        layers_by_size[alike] = replace(
            alike,
            layers=(*before.layers, *(site.layer for site in module_sites)),
            distinct=before.distinct + (not ids <= counted_before),
        )
        counted_before |= ids
    if stated_number(network.config, ("num_hidden_groups",)):  # ALBERT uses a few modules for all layers
        return tuple(
            replace(group, layers=range(layer_count(network, group.kind))) for group in layers_by_size.values()
        )
    return tuple(layers_by_size.values())


def _text_parts(network: PreTrainedModel) -> list[Any]:
    """Return the modules of a network that its text configuration describes, or the network if there are none."""
    text = config_value(network.config, "text_config") or network.config
    return [part for part in network.modules() if getattr(part, "config", None) is text] or [network]


def _text_attentions(network: PreTrainedModel) -> Iterator[tuple[Module, Module]]:
    """Yield each module that attends to text, with the module that also holds its output projection."""
    from attnctl.models.huggingface.attention_sites import attention_modules

    inside = {id(part) for root in _text_parts(network) for part in root.modules()}
    for name, part in attention_modules(network).items():
        if id(part) in inside and not OTHER_INPUT.search(name) and not OTHER_ATTENTION.search(type(part).__name__):
            yield part, _with_projection(network, name)


def _with_projection(network: PreTrainedModel, name: str) -> Module:
    """Return the module `name`, or the module around it if that holds the output projection (BERT, Reformer)."""
    module = network.get_submodule(name)
    while "." in name:
        name = name.rpartition(".")[0]
        holder = network.get_submodule(name)
        if not WHOLE.search(type(holder).__name__) or re.search("Cross.*Decoder|Layer$", type(holder).__name__):
            break
        module = holder
    return module


def _sizes_of_heads(module: Module, sizes: PreTrainedConfig) -> tuple[int, int, int, int]:
    """Return heads, key/value heads, d_k and d_v of a module, from its attributes or its configuration."""
    config = getattr(module, "config", sizes)
    heads = stated_number(module, HEADS) or stated_number(config, HEADS) or 0
    group_size = stated_number(module, ("num_key_value_groups",))
    kv_heads = heads // group_size if group_size else stated_number(module, KV_HEADS)
    d_k = stated_number(module, SIZES) or stated_number(config, SIZES)
    d_k = d_k or (stated_number(config, NAMES["d_model"]) or 0) // max(heads, 1)
    return heads, kv_heads or heads, d_k, stated_number(module, ("v_head_dim",)) or d_k


def stated_number(holder: object, names: tuple[str, ...]) -> int | None:
    """Return the first of these attributes that is a number above 0; skip one that differs from layer to layer."""
    values = (config_value(holder, name) for name in names)
    return next((value for value in values if isinstance(value, int) and value > 0), None)


def cached_layers(network: PreTrainedModel) -> tuple[CachedLayers, ...] | None:
    """Return what the network caches of a text, found by a forward of one token; None if it cannot be counted.

    Counts keys, values and an indexer's keys, in the layers of transformers' own cache, which keeps all tokens or those of
    a window. States of recurrent layers do not grow with the text, and are not counted.
    """
    import torch

    part = _text_parts(network)[0]
    parameters = inspect.signature(part.forward).parameters
    takes_cache = "cache" in parameters and "Cache" in str(parameters["cache"].annotation)  # from transformers 5.24 on
    if not takes_cache and not {"past_key_values", "use_cache", "use_mems"} & parameters.keys():
        return ()
    token = torch.ones(1, 1, dtype=torch.long, device="meta")
    inputs = {"input_ids": token} | ({"decoder_input_ids": token} if part.config.is_encoder_decoder else {})
    # a mask with four axes is used as it is: no code reads its numbers, which a meta tensor does not have
    mask = torch.ones(1, 1, 1, 1, dtype=torch.bfloat16, device="meta")  # (batch, heads, n, n)
    for more in ({"attention_mask": mask, "use_cache": True}, {"use_cache": True}, {}):
        try:
            with torch.no_grad(), quiet_library(), without_compiler():
                output = part(**inputs, **more)
        except Exception:  # a forward without numbers may raise anything
            continue
        if (cache := cache_of_output(output)) is None:  # BERT and its relatives cache only as decoders
            return () if config_value(part.config, "is_decoder") is False else None
        return _layers_of_cache(cache)
    return None


def _layers_of_cache(cache: Cache) -> tuple[CachedLayers, ...] | None:
    """Return the layers of a cache that has read one token, equal ones together; None if a layer has an unknown class."""
    from transformers.cache_utils import EncoderDecoderCache

    cross_layers: Sequence[object] = ()
    if isinstance(cache, EncoderDecoderCache):
        cross_layers = cache.cross_attention_cache.layers
        cache = cache.self_attention_cache
    layers = [*cache.layers, *cross_layers]
    counts: Counter[CachedLayers] = Counter()
    for index, (layer, (keys, values)) in enumerate(zip(layers, keys_and_values(layers), strict=True)):
        if type(layer).__module__ != "transformers.cache_utils":
            return None
        if keys is None or values is None:  # a recurrent state, or another layer's keys
            continue
        (batch, heads, tokens, d_k), d_v = keys.shape, values.shape[-1]
        if (batch, tokens) != (1, 1) or values.shape[:3] != keys.shape[:3]:  # the model adds tokens (CPM-Ant)
            return None
        indexer = getattr(layer, "indexer_keys", None)
        window = getattr(layer, "sliding_window", None)
        of_source = index >= len(cache.layers)
        counts[CachedLayers(1, heads, d_k, d_v, 0 if indexer is None else indexer.numel(), window, of_source)] += 1
    return tuple(structs.replace(cached, layers=count) for cached, count in counts.items())
