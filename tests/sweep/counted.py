"""Do parameters and cache that `attnctl model` tells equal those of the built network? `python -m tests.sweep.counted` writes the list.

attnctl/models/huggingface/files/counted.json names the families of which they do, in every head that can be built.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import attnctl.models.huggingface.files.sizes as module
from attnctl.errors import AttnctlError
from attnctl.models.huggingface.files.built_sizes import attention_parameters
from attnctl.models.huggingface.files.sizes import ModelSizes, of_configuration
from tests.sweep.families import Family, build, families
from tests.sweep.modes import N, ids

LIST = Path(module.__file__).parent / "counted.json"


def agrees(family: Family) -> bool | None:
    """Whether parameters and cache told are those built; None where it cannot be built or run, or nothing is told."""
    try:
        with torch.device("meta"):
            model = build(family)
    except Exception:
        try:
            model = build(family)
        except Exception:
            return None
    try:
        told = of_configuration(model.config.to_dict(), family.kind, "")
    except AttnctlError:
        return None
    if told.stored_in_all() != attention_parameters(model):
        return False
    try:
        return family.head != "causal" or cache_agrees(family, told)
    except Exception:  # it does not run alone
        return None


def cache_agrees(family: Family, told: ModelSizes) -> bool:
    """Whether the bytes of the cache told equal those that the network keeps after a text longer than its window.

    transformers keeps one less than the window: the next token is the last of it.
    """
    model = build(family)
    with torch.no_grad():
        cache = getattr(model(input_ids=ids(), use_cache=True), "past_key_values", None)
    kept = [part for layer in getattr(cache, "layers", ()) for part in (layer_states(layer)) if part is not None]
    if not kept:
        return told.cached_layers == 0
    groups = tuple(replace(one, window=None if one.window is None else one.window - 1) for one in told.groups)
    shorter = replace(told, window=None if told.window is None else told.window - 1, groups=groups)
    return shorter.bytes_of_cache(N) == 2 * sum(part.numel() for part in kept)


def layer_states(layer: Any) -> list[torch.Tensor | None]:
    """Keys and values of a layer of a cache."""
    states = [getattr(layer, name, None) for name in ("keys", "values")]
    return [state if isinstance(state, torch.Tensor) else None for state in states]


def counted(every: Iterable[Family]) -> list[str]:
    """The families, by model_type, of which every head agrees; of those that read and write, the whole is what counts."""
    found: dict[str, list[bool]] = {}
    kinds = [family for family in every if family.head != "base"]
    two = {family.kind for family in kinds if family.head == "seq2seq"}
    for family in kinds:
        if family.kind in two and family.head != "seq2seq":
            continue
        if (does := agrees(family)) is not None:
            found.setdefault(family.kind, []).append(does)
    return sorted(kind for kind, does in found.items() if all(does))


if __name__ == "__main__":
    names = ", ".join(json.dumps(kind) for kind in counted(families()))
    LIST.write_text("[\n" + textwrap.fill(names, 118, break_on_hyphens=False) + "\n]\n", "utf-8")
