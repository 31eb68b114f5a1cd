"""Read fields that only some classes of transformers have: of a configuration, a forward's output, a module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attnctl.attention import Array

if TYPE_CHECKING:
    from torch.nn import Module
    from transformers import Cache, GenerationConfig, PreTrainedModel


def config_value(config: object, *names: str) -> Any:
    """Return the first of these settings of a configuration that has a value; None if none has one.

    A setting that differs between layers counts as missing.
    """
    for name in names:
        try:
            value = getattr(config, name, None)
        except Exception:  # transformers raises: "is a per-layer attribute"
            continue
        if value is not None:
            return value
    return None


def generation_config(network: PreTrainedModel) -> GenerationConfig | None:
    """Return the settings that `generate` uses; None for a network that generates nothing."""
    return getattr(network, "generation_config", None)


def output_value(output: object, *names: str) -> Array | None:
    """Return the first of these fields of a forward's output that has a value; None if none has one."""
    return next((value for name in names if (value := getattr(output, name, None)) is not None), None)


def tensor_of(module: Module, name: str) -> Array | None:
    """Return the parameter or buffer of this name of a module, such as its "bias"; None if it has none."""
    import torch

    value = getattr(module, name, None)
    return value if isinstance(value, torch.Tensor) else None


def cache_of_output(output: object) -> Cache | None:
    """Return the cache that a forward put out; None for another kind of memory, or for none."""
    from transformers import Cache

    # the second is the name before transformers 5.24, which then warns of it
    cache = getattr(output, "cache" if hasattr(output, "cache") else "past_key_values", None)
    return cache if isinstance(cache, Cache) else None


def keys_and_values(layers: Sequence[object]) -> list[tuple[Array | None, Array | None]]:
    """Return the keys and values of each layer of a cache; None and None for a recurrent state, or another layer's keys."""
    from transformers.cache_utils import CacheLayerMixin

    return [(layer.keys, layer.values) if isinstance(layer, CacheLayerMixin) else (None, None) for layer in layers]
