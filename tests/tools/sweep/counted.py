"""Do parameters and cache that `attnctl model` tells equal those of the built network? `python -m tests.tools.sweep.counted` lists them.

Each family is saved as its config.json, as small as the sweep builds it. Its parameters, counted on the meta device, are to
be those of the network on the CPU; what is told of its cache is to be what that network keeps of a text, or "not counted".
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Iterable
from typing import Any

import torch
from msgspec.structs import replace

from attnctl.commands.model.compute import model_sizes
from attnctl.models.huggingface.counted import NO_MATRIX, _text_attentions, attention_layers
from attnctl.models.sizes import ModelSizes
from tests.tools.sweep.families import Family, build, families
from tests.tools.sweep.modes import N, given


def told_sizes(network: Any) -> ModelSizes:
    """What `attnctl model` tells of the network's configuration."""
    with tempfile.TemporaryDirectory() as folder:
        network.config.architectures = [type(network).__name__]
        network.config.save_pretrained(folder)
        return model_sizes(folder)


def attention_parameters(network: Any) -> int:
    """Parameters of every attention of a network that reads text, its biases and norms left out; shared ones once."""
    parts = [named for _, whole in _text_attentions(network) for named in whole.named_parameters()]
    matrices = {id(part): part.numel() for name, part in parts if part.ndim >= 2 and not NO_MATRIX.search(name)}
    return sum(matrices.values())


def parameters_agree(network: Any, told: ModelSizes) -> bool:
    """Whether the parameters told are those of the network."""
    table = getattr(network.get_input_embeddings(), "weight", None)
    return sum(told.in_all().values()) == attention_parameters(network) and (
        told.embedding == (None if table is None else table.numel())
    )


def cache_agrees(network: Any, told: ModelSizes, inputs: dict[str, Any]) -> bool | None:
    """Whether the bytes told equal what the network keeps after a text longer than its window; None where it does not run.

    transformers keeps one less than the window: the next token is the last of it.
    """
    try:
        cache = cache_of(network, inputs)
    except Exception:  # it does not run alone
        return None
    shorter = [replace(part, window=None if part.window is None else part.window - 1) for part in told.cache or ()]
    own, source = getattr(cache, "self_attention_cache", cache), getattr(cache, "cross_attention_cache", None)
    n = inputs.get("decoder_input_ids", inputs["input_ids"]).shape[1] if source is not None else N
    of_source = sum(part.cache_bytes(inputs["input_ids"].shape[1]) for part in shorter if part.of_source)
    return sum(part.cache_bytes(n) for part in shorter if not part.of_source) == bytes_kept(own) and (
        of_source == bytes_kept(source)
    )


def cache_of(network: Any, inputs: dict[str, Any]) -> Any:
    """What the network keeps of a text; None where it keeps no keys and values, and no states that they are made of."""
    with torch.no_grad():
        try:
            output = network(**inputs, use_cache=True)
        except (TypeError, ValueError):  # some refuse to be told
            output = network(**inputs)
    names = ("past_key_values", "mems", "past_buckets_states")
    return next((kept for name in names if (kept := getattr(output, name, None)) is not None), None)


STATES = ("keys", "values", "indexer_keys", "idx_keys", "states_cache", "buckets_cache")
COMPRESSED = ("compressed_kv", "buffer_kv", "buffer_gate", "overlap_kv", "overlap_gate")


def bytes_kept(cache: Any) -> int:
    """Bytes of what is in a cache, 16 bits a number; what two names stand for counts once."""
    if isinstance(cache, list | tuple):
        return sum(map(bytes_kept, cache))
    if isinstance(cache, torch.Tensor):
        return cache.numel() * (8 if cache.dtype == torch.int64 else 2)
    found = [bytes_kept(layer) for layer in getattr(cache, "layers", ())]
    states = {id(state): state for name in STATES if (state := getattr(cache, name, None)) is not None}
    parts = [part for name in COMPRESSED for part in getattr(cache, name, {}).values() if part is not None]
    return sum(found) + bytes_kept([*states.values(), *parts])


def verdicts(every: Iterable[Family]) -> dict[str, str]:
    """Of each family with a head that can be built: "exact", "cache not counted", or what is wrong."""
    found = {}
    for family in every:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                network = build(family)
            except Exception:
                continue
            if not attention_layers(network):
                continue
            told = told_sizes(network)
            if not told.built or not parameters_agree(network, told):
                found[str(family)] = "wrong parameters"
            elif told.cache is None:
                found[str(family)] = "cache not counted"
            else:
                wrong = cache_agrees(network, told, given(family, network)) is False
                found[str(family)] = "wrong cache" if wrong else "exact"
    return found


if __name__ == "__main__":
    found = verdicts(families())
    for family, verdict in found.items():
        print(f"{family:40} {verdict}")
    sys.exit(any("wrong" in verdict for verdict in found.values()))
