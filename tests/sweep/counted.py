"""Do parameters and cache that `attnctl model` tells equal those of the built network? `python -m tests.sweep.counted` writes the list.

attnctl/models/huggingface/counted.json names the families whose four matrices and cache they are, in every head that
can be built; and of the others, whose layers are built, those of which a cache keeps what the built layers say.
"""

from __future__ import annotations

import json
import textwrap
import warnings
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import attnctl.models.huggingface.configured_sizes as module
from attnctl.errors import AttnctlError
from attnctl.models.huggingface.built_sizes import BuiltLayers, built_layers
from attnctl.models.huggingface.configured_sizes import of_configuration, sizes_of_layers
from attnctl.models.huggingface.sizes import ModelSizes
from tests.sweep.families import Family, build, families
from tests.sweep.modes import TARGET, N, given

LIST = Path(module.__file__).parent / "counted.json"


def attention_parameters(network: Any) -> int:
    """Parameters of every attention of a network that reads text, its biases and norms left out; shared ones once."""
    return sum(group.parameter_count() * group.distinct for group in built_layers(network))


def agrees(family: Family, network: Any) -> bool | None:
    """Whether parameters and cache told by four matrices a layer are those built; None where it cannot be run."""
    try:
        told = of_configuration(network.config.to_dict(), family.kind, "")
    except AttnctlError:
        return False
    table = getattr(network.get_input_embeddings(), "weight", None)
    if told.stored_in_all() != attention_parameters(network) or (
        table is not None and table.numel() != told.embedding_parameters()
    ):
        return False
    return cache_agrees(family, network, told)


def built_cache_agrees(family: Family, network: Any) -> bool | None:
    """Whether the built layers tell what a cache keeps; None where it cannot be run."""
    groups = built_layers(network)
    if not groups:
        return None
    return cache_agrees(family, network, sizes_of_layers(groups, network, family.kind, ""))


def cache_agrees(family: Family, network: Any, told: ModelSizes) -> bool | None:
    """Whether the bytes of the cache told equal those that the network keeps after a text longer than its window.

    transformers keeps one less than the window: the next token is the last of it. None where it does not run so.
    """
    if family.head not in ("causal", "seq2seq"):
        return True
    try:
        cache = cache_of(network, given(family, network))
    except Exception:  # it does not run alone
        return None
    own, source = getattr(cache, "self_attention_cache", cache), getattr(cache, "cross_attention_cache", None)
    if family.kind == "blt":  # the second is of its decoder of bytes
        own, source = [own, source], None
    kept, crossed = bytes_kept(own), bytes_kept(source)
    if not kept:
        return told.cached_layers == 0
    shorter = _as_transformers_keeps(told)
    n = TARGET if source is not None else N
    return shorter.bytes_of_cache(n) == kept and (source is None or told.bytes_of_source(N) == crossed)


def cache_of(network: Any, inputs: dict[str, Any]) -> Any:
    """What the network keeps of a text; None where it keeps no keys and values, and no states that they are made of."""
    with torch.no_grad():
        try:
            output = network(**inputs, use_cache=True)
        except (TypeError, ValueError):  # some refuse to be told
            output = network(**inputs)
    names = ("past_key_values", "mems", "past_buckets_states")
    return next((kept for name in names if (kept := getattr(output, name, None)) is not None), None)


def told_of_cache(network: Any) -> ModelSizes:
    """What the built layers of a network tell of its cache, a window one token shorter."""
    return _as_transformers_keeps(sizes_of_layers(built_layers(network), network, network.config.model_type, ""))


def _as_transformers_keeps(told: ModelSizes) -> ModelSizes:
    parts = {name: tuple(map(_one_less, getattr(told, name))) for name in ("groups", "built")}
    return replace(told, window=None if told.window is None else told.window - 1, **parts)


def _one_less(part: Any) -> Any:
    hidden = isinstance(part, BuiltLayers) and part.states.hidden  # XLNet keeps all of its window
    return part if part.window is None or hidden else replace(part, window=part.window - 1)


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


def counted(every: Iterable[Family]) -> dict[str, list[str]]:
    """The families, by model_type, of which every head agrees; of those that read and write, the whole is what counts."""
    four: dict[str, list[bool]] = {}
    caches: dict[str, list[bool]] = {}
    kinds = list(every)
    two = {family.kind for family in kinds if family.head == "seq2seq"}
    for family in kinds:
        if family.kind in two and family.head in ("causal", "masked"):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                network = build(family)
            except Exception:
                continue
            for table, found in ((four, agrees(family, network)), (caches, built_cache_agrees(family, network))):
                if found is not None:
                    table.setdefault(family.kind, []).append(found)
    families_counted = {kind for kind, does in four.items() if all(does)}
    return {
        "families": sorted(families_counted),
        "caches": sorted({kind for kind, does in caches.items() if all(does)} - families_counted),
    }


if __name__ == "__main__":
    parts = [
        f"{json.dumps(name)}: [\n"
        + textwrap.fill(", ".join(map(json.dumps, kinds)), 118, break_on_hyphens=False)
        + "\n]"
        for name, kinds in counted(families()).items()
    ]
    LIST.write_text("{" + ",\n".join(parts) + "}\n", "utf-8")
