"""Find the modules of a transformers model that attend, and the layer and kind of attention of each of their calls."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary, ref

from attnctl.models.huggingface.optional_fields import config_value

if TYPE_CHECKING:
    from torch.nn import Module
    from transformers import PreTrainedConfig, PreTrainedModel


Value = TypeVar("Value")
Output = Any  # the result of a network's forward: each class of transformers has its own fields
Keywords = dict[str, Any]  # the keyword arguments of a forward: tensors, switches, a cache
_CROSS = re.compile(r"cross|encoder_attn|encdec|enc_dec|encoder_decoder_att", re.IGNORECASE)
_ATTENTION = re.compile(r"Attention|Attn")
_OVER_DEPTH = re.compile(r"AttentionResidual$")  # each token over its own earlier states: Inkling 2
_NO_ATTENTION = re.compile(r"(Output|Norm|Pool|Pooling|PoolingHead|Embedding|Mask|Gate|Bias)$")


@dataclass(frozen=True)
class Site:
    """The place of a call of attention in the model: the name of its module, its kind, its layer."""

    name: str
    kind: str  # self; encoder, decoder, cross of an encoder-decoder; vision, audio next to a text
    layer: int
    recurrence: int = 0  # earlier calls of the module in this forward, if a model repeats its layers
    step: int = field(default=0, compare=False)  # earlier forwards that called the module: one per generated token
    module: int = field(default=0, compare=False, repr=False)  # id of the module


def unseen_sentence(silent: dict[Site, str]) -> str:
    """Return a sentence that names the modules that attend in code of their own; "" if there are none."""
    parts = []
    for name in dict.fromkeys(silent.values()):
        sites = [site for site in silent if silent[site] == name]
        kind = "" if sites[0].kind == "self" else f"{sites[0].kind} "
        layers = sorted({site.layer for site in sites})
        parts.append(f"{kind}layer{'s' * (len(layers) > 1)} {', '.join(map(str, layers))} ({name})")
    verb = "attend in code of their own, and what they attend to"
    verb = verb if len(silent) > 1 else "attends in code of its own, and what it attends to"
    return f"{' and '.join(parts)} {verb} is not shown" if parts else ""


def transformers_parts(model: Module) -> dict[str, PreTrainedModel]:
    """Return name → model for the outermost models of transformers in a module; {} if transformers is not installed."""
    parts: dict[str, PreTrainedModel] = {}
    for name, part in model.named_modules():
        kinds = {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(part).__mro__}
        is_inner = any(not outer or name.startswith(f"{outer}.") for outer in parts)
        if "transformers.PreTrainedModel" in kinds and not is_inner:
            parts[name] = part
    return parts


def named_parts(model: Module) -> list[tuple[str, Module]]:
    """Return (name, module) as `named_modules(remove_duplicate=False)` does, in a tenth of its time."""
    parts = [("", model)]

    def add_children(prefix: str, module: Module) -> None:
        for name, part in module._modules.items():
            if part is not None:
                parts.append((prefix + name, part))
                add_children(f"{prefix}{name}.", part)

    add_children("", model)
    return parts


_Places = list[tuple[str, "ref[Module]", object]]  # of modules: name, module, `layer_idx`
_known: WeakKeyDictionary[Module, tuple[_Places, dict[str, Any]]] = WeakKeyDictionary()  # model → question → answer


def _while_same_modules(ask: Callable[[Any], Value]) -> Callable[[Any], Value]:
    """Return `ask`, a question about a model's modules, whose answer is kept until a module, its name or number changes.

    An answer holds no module, which would keep the model alive, or a module that was replaced. Nobody changes an answer.
    """

    @functools.wraps(ask)
    def known_or_asked(model: Any) -> Value:
        places: _Places = [(name, ref(part), part.__dict__.get("layer_idx")) for name, part in named_parts(model)]
        before, answers = _known.get(model, (None, {}))
        if before != places:
            answers = {}
            _known[model] = places, answers
        if ask.__name__ not in answers:
            answers[ask.__name__] = ask(model)
        answer: Value = answers[ask.__name__]
        return answer

    return known_or_asked


def modules_named_attention(model: PreTrainedModel) -> dict[str, Module]:
    """Return name → module for all modules that attend, by the names of their classes, nested ones too."""
    return {name: module for name, module in model.named_modules() if _module_attends(module)}


def attention_modules(model: PreTrainedModel) -> dict[str, Module]:
    """Return name → module for the innermost modules that attend, by the names of their classes."""
    parts = {name: part() for name, part in _attention_parts(model)}
    return {name: part for name, part in parts.items() if part is not None}


@_while_same_modules
def _attention_parts(model: PreTrainedModel) -> tuple[tuple[str, ref[Module]], ...]:
    """Return the names of the innermost modules that attend, and references to these."""
    return tuple(
        (name, ref(module))
        for name, module in modules_named_attention(model).items()
        if not any(part is not module and _module_attends(part) for part in module.modules())
    )


def _module_attends(module: Module) -> bool:
    name = type(module).__name__
    named = bool(_ATTENTION.search(name)) or hasattr(module, "num_key_value_groups")
    return named and not _NO_ATTENTION.search(name) and not attends_over_depth(module)


def is_wrapped(model: PreTrainedModel) -> bool:
    """Return whether a module of another package wraps one that attends, and may attend itself (peft's adaption prompts)."""
    inner = attention_modules(model)
    return any(
        _package_of(outer) not in ("transformers", _package_of(inner[name]))
        for name_of_outer, outer in modules_named_attention(model).items()
        for name in inner
        if name.startswith(f"{name_of_outer}.")
    )


def _package_of(module: Module) -> str:
    return type(module).__module__.partition(".")[0]


def attends_over_depth(module: Module) -> bool:
    """Return whether a module attends over layers, for each token alone, and not over tokens."""
    return bool(_OVER_DEPTH.search(type(module).__name__))


def is_differential(module: Module) -> bool:
    """Return whether a module subtracts one softmax from another, λ times (Ye et al. 2024)."""
    return hasattr(module, "lambda_q1")


def model_follows_interface(model: PreTrainedModel) -> bool:
    """Return whether a part of `model` that attends asks transformers' interface for its attention function."""
    modules = attention_modules(model)
    if model.config.model_type == "vision-encoder-decoder":  # its encoder reads the picture, whatever its name
        modules = {name: module for name, module in modules.items() if name.startswith("decoder.")}
    text = [module for name, module in modules.items() if reads_text(name)]
    following = [module for module in text or modules.values() if follows_interface(module)]
    # the picture encoder in the same file may follow it while the text does not (GIT)
    if following and len(text) < len(modules):
        return any(_calls_interface(module) for module in following)
    return bool(following)


def follows_interface(module: Module) -> bool:
    """Return whether a module's code calls transformers' attention interface, so that its function can be replaced.

    Eager GPT-2 does not call it if its configuration asks to scale and upcast in another order.
    """
    if getattr(module, "reorder_and_upcast_attn", False) and module.config._attn_implementation == "eager":  # type: ignore[union-attr]
        return False
    files = (sys.modules.get(kind.__module__) for kind in type(module).__mro__)
    return any(hasattr(file, "ALL_ATTENTION_FUNCTIONS") for file in files)


def _calls_interface(module: Module) -> bool:
    """Return whether a method of a module's class uses the interface's functions."""
    methods = (
        inspect.unwrap(attribute)
        for kind in type(module).__mro__
        for attribute in vars(kind).values()
        if callable(attribute)
    )
    return any(
        "ALL_ATTENTION_FUNCTIONS" in method.__code__.co_names for method in methods if inspect.isfunction(method)
    )


def reads_text(name: str) -> bool:
    """Return whether the module of this name reads the text, not pictures or sound."""
    return not re.search("vision|visual|image|audio", name)


# --- layers and kinds ----------------------------------------------------------------------------------------------


@_while_same_modules
def sites_of_modules(model: PreTrainedModel) -> Mapping[int, tuple[Site, ...]]:
    """Return id of the module → its sites, one per layer, for every module that could attend."""
    is_encoder_decoder = bool(model.config.is_encoder_decoder)
    beside_text = any(config_value(model.config, f"{sense}_config") is not None for sense in ("vision", "audio"))
    sites: dict[int, dict[int, Site]] = {}
    for name, module in named_parts(model):
        layer = _layer_number(name, module)
        kind = _kind_of_attention(name.split("."), is_encoder_decoder)
        if beside_text and kind != "cross" and not reads_text(name):
            kind = "audio" if "audio" in name else "vision"
        site = Site(name, kind, layer, module=id(module))
        sites.setdefault(id(module), {}).setdefault(layer, site)  # aliases of one layer count once
    return MappingProxyType({key: tuple(by_layer.values()) for key, by_layer in sites.items()})


def attention_sites(model: PreTrainedModel, kind: str) -> dict[Site, Module]:
    """Return site → module for one kind of attention; a module that serves several layers has a site for each."""
    sites = sites_of_modules(model)
    return {
        site: module for module in attention_modules(model).values() for site in sites[id(module)] if site.kind == kind
    }


def _kind_of_attention(parts: list[str], is_encoder_decoder: bool) -> str:
    if any(_CROSS.search(part) for part in parts[-3:]):
        return "cross"
    if not is_encoder_decoder:
        return "self"
    return "decoder" if any(part.endswith("decoder") for part in parts) else "encoder"


def _layer_number(name: str, module: Module) -> int:
    """Return the number of the layer: the number in the name, or the module's `layer_idx`."""
    numbers = [int(part) for part in name.split(".") if part.isdigit()]
    layer_idx = getattr(module, "layer_idx", None)
    if isinstance(layer_idx, int) and layer_idx in numbers:
        return layer_idx
    return numbers[0] if numbers else layer_idx if isinstance(layer_idx, int) and layer_idx >= 0 else 0


def shares_modules(model: PreTrainedModel) -> bool:
    """Return whether a few modules serve all layers in turn (ALBERT): their calls are counted."""
    return config_value(model.config, "num_hidden_groups") is not None


def layer_count(model: PreTrainedModel, kind: str) -> int:
    """Return how many layers a model has for a kind of attention, in its own numbering; layers without attention count."""
    if shares_modules(model):
        return int(model.config.num_hidden_layers) * int(config_value(model.config, "inner_group_num") or 1)
    return max((site.layer for site in attention_sites(model, kind)), default=-1) + 1


def may_repeat_layers(model: PreTrainedModel, kind: str) -> bool:
    """Return whether some modules that read the text share a layer number (BLT), or layers run more than once (HRM)."""
    layers = [site.layer for site in attention_sites(model, kind) if reads_text(site.name)]
    return len(set(layers)) < len(layers) or layers_recur(model)


def layers_recur(model: PreTrainedModel) -> bool:
    """Return whether the configuration says that the layers run in several cycles (HRM)."""
    cycles = [value for name, value in vars(model.config).items() if name.endswith("_cycles")]
    return any(isinstance(count, int) and count > 1 for count in cycles)


def blocks_of(network: PreTrainedModel, every_list: bool = False) -> list[Module]:
    """Return the modules of the network's outermost lists of layers that contain attention, or of every outermost list."""
    from torch.nn import ModuleList

    outermost: list[str] = []
    blocks = []
    for name, layers in network.named_modules():
        is_inner = any(name.startswith(outer + ".") for outer in outermost)
        if (
            isinstance(layers, ModuleList)
            and not is_inner
            and (every_list or any(map(_module_attends, layers.modules())))
        ):
            outermost.append(name)
            blocks += list(layers)
    return blocks


def merges_source(network: PreTrainedModel) -> bool:
    """Return whether a decoder attends to itself and to the source in one softmax (T5Gemma 2)."""
    return any(type(part).__name__.endswith("MergedAttention") for part in network.modules())


def configurations_within(*configs: object) -> list[PreTrainedConfig]:
    """Return these configurations and all nested ones, each once."""
    from transformers import PreTrainedConfig

    configurations: dict[int, PreTrainedConfig] = {}
    waiting = list(configs)
    while waiting:
        config = waiting.pop()
        if isinstance(config, PreTrainedConfig) and id(config) not in configurations:
            configurations[id(config)] = config
            waiting += list(vars(config).values())
    return list(configurations.values())
