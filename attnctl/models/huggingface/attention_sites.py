"""Where in a model attention stands: the names, kinds and layer numbers of the modules that attend."""

from __future__ import annotations

import inspect
import re
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.nn import Module
    from transformers import PreTrainedModel


Output = Any  # what a network's forward returns: each class of transformers has its own fields
_CROSS = re.compile(r"cross|encoder_attn|encdec|enc_dec", re.IGNORECASE)
_ATTENTION = re.compile(r"Attention|Attn")
_NO_ATTENTION = re.compile(r"(Output|Norm|Pool|Pooling|PoolingHead|Embedding|Mask|Gate|Bias)$")


@dataclass(frozen=True)
class Site:
    """Where in the model a call of attention stands: its module's name, its kind, its layer."""

    name: str
    kind: str  # self, or for encoder-decoders: encoder, decoder, cross
    layer: int
    recurrence: int = 0  # how often the module has attended before in this forward, where a model repeats its layers
    module: int = field(default=0, compare=False, repr=False)  # id of the module


@dataclass(frozen=True)
class Names:
    """A module's names and, name by name, the layers they stand for: several where layers share the module."""

    module: int
    kind: str
    names: tuple[str, ...]
    layers: tuple[int, ...]

    def site_of_occurrence(self, occurrence: int) -> Site:
        """The site of the module's call, the how-manieth in this forward."""
        at, recurrence = occurrence % len(self.layers), occurrence // len(self.layers)
        return Site(self.names[at], self.kind, self.layers[at], recurrence, self.module)


def modules_named_attention(model: PreTrainedModel) -> dict[str, Module]:
    """The modules that attend by the names of their classes, with those that are within others: name → module."""
    return {name: module for name, module in model.named_modules() if _module_attends(module)}


def attention_modules(model: PreTrainedModel) -> dict[str, Module]:
    """The innermost modules that attend, by the names of their classes: name → module."""
    found = modules_named_attention(model)
    return {
        name: module
        for name, module in found.items()
        if not any(part is not module and _module_attends(part) for part in module.modules())
    }


def _module_attends(module: Module) -> bool:
    name = type(module).__name__
    named = bool(_ATTENTION.search(name)) or hasattr(module, "num_key_value_groups")
    return named and not _NO_ATTENTION.search(name)


def follows_interface(module: Module) -> bool:
    """Whether a module's code calls transformers' attention interface, so that another function can take its place.

    GPT-2 under eager does not where it is told to scale and upcast in another order, as many of its retrained kin are.
    """
    config = getattr(module, "config", None)
    if getattr(module, "reorder_and_upcast_attn", False) and getattr(config, "_attn_implementation", None) == "eager":
        return False
    files = (sys.modules.get(kind.__module__) for kind in type(module).__mro__)
    return any(hasattr(file, "ALL_ATTENTION_FUNCTIONS") for file in files)


def reads_text(name: str) -> bool:
    """Whether a module is on the way of the text, not of pictures or sound."""
    return not re.search("vision|visual|image|audio", name)


def calls_interface(module: Module) -> bool:
    """Whether a module's own code names the interface's functions, or its class has no code to be read."""
    kinds = [
        kind for kind in type(module).__mro__ if hasattr(sys.modules.get(kind.__module__), "ALL_ATTENTION_FUNCTIONS")
    ]
    try:
        return any("ALL_ATTENTION_FUNCTIONS" in inspect.getsource(kind) for kind in kinds)
    except (OSError, TypeError):
        return True


def names_of_modules(model: PreTrainedModel) -> dict[int, Names]:
    """The names of every module that could call attention: id of the module → Names."""
    two = bool(getattr(model.config, "is_encoder_decoder", False))
    found: dict[int, list[tuple[str, str, int]]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        entry = (name, _kind_of_attention(name.split("."), two), _layer_number(name, module))
        found.setdefault(id(module), []).append(entry)
    return {key: _names_of_module(key, entries) for key, entries in found.items()}


def _names_of_module(module: int, entries: list[tuple[str, str, int]]) -> Names:
    by_layer = {layer: name for name, _, layer in reversed(entries)}  # aliases of one layer count once
    layers = tuple(dict.fromkeys(layer for *_, layer in entries))
    return Names(module, entries[0][1], tuple(by_layer[layer] for layer in layers), layers)


def _kind_of_attention(parts: list[str], two: bool) -> str:
    if _CROSS.search(parts[-1]) or any(_CROSS.search(part) for part in parts[-3:-1]):
        return "cross"
    if not two:
        return "self"
    return "decoder" if any(part.endswith("decoder") for part in parts) else "encoder"


def _layer_number(name: str, module: Module) -> int:
    """The layer as the model counts it: the number in the name, or what the module says itself."""
    numbers = [int(part) for part in name.split(".") if part.isdigit()]
    said = getattr(module, "layer_idx", None)
    if isinstance(said, int) and said in numbers:
        return said
    return numbers[0] if numbers else said if isinstance(said, int) and said >= 0 else 0


def layer_count(model: PreTrainedModel, kind: str) -> int:
    """How many layers of a kind of attention a model has, as it counts them; those that do not attend count too."""
    if hasattr(model.config, "num_hidden_groups"):  # a few modules stand for all layers
        return int(model.config.num_hidden_layers) * int(getattr(model.config, "inner_group_num", 1))
    names = names_of_modules(model)
    layers = [
        layer
        for module in attention_modules(model).values()
        if names[id(module)].kind == kind
        for layer in names[id(module)].layers
    ]
    return max(layers, default=-1) + 1


def may_repeat_layers(model: PreTrainedModel, kind: str) -> bool:
    """Whether several modules of the text's way bear one layer's number (BLT's three stacks), or layers recur (HRM)."""
    names = names_of_modules(model)
    layers = [
        names[id(module)].site_of_occurrence(0).layer
        for name, module in attention_modules(model).items()
        if names[id(module)].kind == kind and reads_text(name)
    ]
    return len(set(layers)) < len(layers) or layers_recur(model)


def layers_recur(model: PreTrainedModel) -> bool:
    """Whether a model runs its layers in several cycles, by its configuration (HRM)."""
    cycles = [value for name, value in vars(model.config).items() if name.endswith("_cycles")]
    return any(isinstance(count, int) and count > 1 for count in cycles)


def unseen_sentence(silent: dict[Site, str]) -> str:
    """Who attends in code of its own, and is not shown, as a sentence; empty where nobody does."""
    parts = []
    for name in dict.fromkeys(silent.values()):
        there = [site for site in silent if silent[site] == name]
        kind = "" if there[0].kind == "self" else f"{there[0].kind} "
        layers = sorted({site.layer for site in there})
        parts.append(f"{kind}layer{'s' * (len(layers) > 1)} {', '.join(map(str, layers))} ({name})")
    one, several = (
        "attends in code of its own, and what it attends to",
        "attend in code of their own, and what they attend to",
    )
    return f"{' and '.join(parts)} {several if len(silent) > 1 else one} is not shown" if parts else ""


def merges_source(network: PreTrainedModel) -> bool:
    """Whether a decoder attends to itself and to the source in one softmax (T5Gemma 2)."""
    return any(type(part).__name__.endswith("MergedAttention") for part in network.modules())
