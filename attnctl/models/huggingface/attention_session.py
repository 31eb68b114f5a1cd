"""One watched forward: which modules of a model attend, and what is asked of each call of theirs."""

from __future__ import annotations

import inspect
import re
import sys
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from attnctl.attention import Array, Call

if TYPE_CHECKING:
    from torch.nn import Module
    from transformers import PreTrainedConfig, PreTrainedModel

    from attnctl.models.huggingface.family_traits import ContextReaders
    from attnctl.models.huggingface.intervention import Applied


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


def calls_interface(module: Module) -> bool:
    """Whether a method of a module's class names the interface's functions."""
    methods = (inspect.unwrap(own) for kind in type(module).__mro__ for own in vars(kind).values() if callable(own))
    return any(
        "ALL_ATTENTION_FUNCTIONS" in method.__code__.co_names for method in methods if inspect.isfunction(method)
    )


def reads_text(name: str) -> bool:
    """Whether a module is on the way of the text, not of pictures or sound."""
    return not re.search("vision|visual|image|audio", name)


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


def blocks_of(network: PreTrainedModel) -> list[Module]:
    """The modules of the network's outermost lists of layers that hold an attention."""
    from torch.nn import ModuleList

    lists = [(name, module) for name, module in network.named_modules() if isinstance(module, ModuleList)]
    outermost: list[str] = []
    found = []
    for name, several in lists:
        if any(name.startswith(other + ".") for other in outermost):
            continue
        if any(_module_attends(part) for part in several.modules()):
            outermost.append(name)
            found += list(several)
    return found


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


Visit = Callable[[Site, Call], Array | None]
ShowOwn = Callable[[Site, Array, Array | None], None]


@dataclass(frozen=True)
class WatchOptions:
    """What a visitor does beside looking on.

    `change` alters the call before any visitor sees it, and the context before the model goes on. With `replaces` the model
    goes on with what the visitor answers. `own` is shown what the model's own function answers: context (batch, n_q, heads,
    d_v) and weights; `after` what a module goes on with. `trusted`: the model's fused kernel was held against calls of this
    length in a forward before, and is not run where nobody else watches: the model goes on with what the visitor answers.
    """

    change: Applied | None = None
    replaces: bool = False
    own: ShowOwn | None = None
    after: ContextReaders | None = None
    trusted: bool = False


LOOKING_ON = WatchOptions()


@dataclass(eq=False)
class WatchSession:
    """One model being watched: the names of its modules, who wants which, who is shown what, and what was seen."""

    architecture: str
    model: PreTrainedModel
    names: dict[int, Names]
    visit: Visit
    wants: Callable[[Site], bool]
    options: WatchOptions
    shares_layers: bool = False  # one module stands for several layers, as in ALBERT: its calls count them
    modules: list[Module] = field(init=False)  # kept: one that another takes the place of would leave that its id
    thread: int = field(default_factory=threading.get_ident)
    seen: dict[Site, None] = field(default_factory=dict)
    silent_modules: dict[Site, str] = field(default_factory=dict)  # those that ended without a call: their class
    done: bool = False  # the visitor has seen all it wants
    depth: int = 0  # of the model's parts that are running now
    forwards: int = 0
    occurrences: dict[int, int] = field(default_factory=dict)  # of each module, in this forward
    steps: dict[int, tuple[int, int]] = field(default_factory=dict)  # of each module: its last forward, how many before
    layers_met: dict[str, int] = field(default_factory=dict)  # of each kind in this forward, where layers are shared

    def __post_init__(self) -> None:
        self.modules = list(self.model.modules())

    @property
    def silent(self) -> dict[Site, str]:
        """Who attends in code of its own: its class; with those that took another's place as the model ran (BigBird)."""
        if not self.forwards:
            return {}
        came = {name: part for name, part in attention_modules(self.model).items() if id(part) not in self.names}
        names = names_of_modules(self.model) if came else {}
        return self.silent_modules | {
            names[id(part)].site_of_occurrence(0): type(part).__name__ for part in came.values()
        }

    def site_of_call(self, module: Module) -> Site:
        """The site of this call of a module."""
        names, key = self.names[id(module)], id(module)
        occurrence = self.occurrences.get(key, 0)
        self.occurrences[key] = occurrence + 1
        last, step = self.steps.get(key, (self.forwards, 0))
        self.steps[key] = (self.forwards, step + (last != self.forwards))
        site = names.site_of_occurrence(occurrence)
        if self.shares_layers:
            layer = self.layers_met.get(site.kind, 0)
            self.layers_met[site.kind] = layer + 1
            site = replace(site, layer=layer, recurrence=0)
        self.seen[site] = None
        return site

    def sites_of_model(self, model: PreTrainedModel) -> set[Site]:
        """The sites that are known to call in each forward: of the modules that say whether they are causal.

        Empty where layers are shared or repeated (HRM), whose calls cannot be told beforehand.
        """
        if self.shares_layers or layers_recur(model):
            return set()
        return {
            self.names[id(module)].site_of_occurrence(0)
            for module in model.modules()
            if isinstance(getattr(module, "is_causal", None), bool) and follows_interface(module)
        }


# --- what is held while anybody watches, in any thread ----------------------------------------------------------------

lock = threading.RLock()
_held: dict[Hashable, tuple[int, ExitStack]] = {}  # how often each thing is held, and how it is put back


@contextmanager
def held(name: Hashable, hold: Callable[[ExitStack], object]) -> Iterator[None]:
    """Within this, a thing is held: `hold` begins it for the first who asks, its stack puts it back with the last."""
    with lock:
        count, stack = _held.get(name, (0, ExitStack()))
        if not count:
            hold(stack)
        _held[name] = (count + 1, stack)
    try:
        yield
    finally:
        with lock:
            count, stack = _held.pop(name)
            if count > 1:
                _held[name] = (count - 1, stack)
            else:
                stack.close()


def uncompiled() -> AbstractContextManager[None]:
    """Within this, what torch.compile made runs as it is written: compiled code calls nobody who looks on.

    Where nobody has imported the compiler, nothing was compiled.
    """

    def hold(stack: ExitStack) -> None:
        if (compiler := sys.modules.get("torch._dynamo")) is not None:
            stack.enter_context(compiler.set_stance("force_eager"))

    return held("compiler", hold)


def enter_readable(model: PreTrainedModel, stack: ExitStack) -> None:
    """Flash and flex attention hide keys by other means than masks: such a model runs on torch's fused kernel here."""
    if any(not _is_readable(name) for _, name in attention_configurations(model)):
        stack.enter_context(attention_set_to(model, "sdpa" if model._supports_sdpa else "eager", _is_readable))


def _is_readable(name: str | None) -> bool:
    return not any(other in (name or "") for other in ("flash", "flex", "paged"))


@contextmanager
def attention_set_to(
    model: PreTrainedModel, name: str, spare: Callable[[str | None], bool] = lambda name: False
) -> Iterator[None]:
    """Every configuration within `model` set to attention `name`, but those `spare` is true of, and put back afterwards."""
    with ExitStack() as stack:
        for config, before in attention_configurations(model):
            key, own = ("configuration", id(config)), partial(setattr, config, "_attn_implementation_internal", before)
            if not spare(before) or key in _held:
                stack.enter_context(held(key, lambda back, own=own: back.callback(own)))  # type: ignore[misc]
                config._attn_implementation_internal = name
        yield


def attention_configurations(model: PreTrainedModel) -> list[tuple[PreTrainedConfig, str | None]]:
    """Every configuration within `model`, those without a module of their own too, and its attention."""
    found: dict[int, PreTrainedConfig] = {}
    waiting: list[Any] = [part.config for part in model.modules() if hasattr(part, "config")]
    while waiting:
        config = waiting.pop()
        if id(config) not in found and hasattr(config, "_attn_implementation_internal"):
            found[id(config)] = config
            waiting += list(vars(config).values())
    return [(config, config._attn_implementation_internal) for config in found.values()]
