"""One model being watched as it attends: who is shown which calls, and what was seen of its forwards."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from attnctl.attention import Array, Call
from attnctl.models.huggingface import attention_sites as sites
from attnctl.models.huggingface.attention_sites import Names, Site

if TYPE_CHECKING:
    from torch.nn import Module
    from transformers import PreTrainedConfig, PreTrainedModel

    from attnctl.models.huggingface.effects.intervention import Applied
    from attnctl.models.huggingface.family_traits import OutputGates


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
    after: OutputGates | None = None
    trusted: bool = False


LOOKING_ON = WatchOptions()


@dataclass
class WatchSession:
    """One model being watched: the names of its modules, who wants which, who is shown what, and what was seen."""

    architecture: str
    names: dict[int, Names]
    visit: Visit
    wants: Callable[[Site], bool]
    options: WatchOptions
    shares_layers: bool = False  # one module stands for several layers, as in ALBERT: its calls count them
    thread: int = field(default_factory=threading.get_ident)
    seen: dict[Site, None] = field(default_factory=dict)
    silent: dict[Site, str] = field(default_factory=dict)  # who attends in code of its own: its class
    done: bool = False  # the visitor has seen all it wants
    depth: int = 0  # of the model's parts that are running now
    forwards: int = 0
    occurrences: dict[int, int] = field(default_factory=dict)  # of each module, in this forward
    steps: dict[int, tuple[int, int]] = field(default_factory=dict)  # of each module: its last forward, how many before
    layers_met: dict[str, int] = field(default_factory=dict)  # of each kind in this forward, where layers are shared

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
        if self.shares_layers or sites.layers_recur(model):
            return set()
        return {
            self.names[id(module)].site_of_occurrence(0)
            for module in model.modules()
            if isinstance(getattr(module, "is_causal", None), bool) and sites.follows_interface(module)
        }


_lock = threading.RLock()


def enter_readable(model: PreTrainedModel, stack: ExitStack) -> None:
    """Flash and flex attention hide keys by other means than masks: such a model runs on torch's fused kernel here."""
    if any(not _is_readable(name) for _, name in attention_configurations(model)):
        stack.enter_context(attention_set_to(model, "sdpa" if model._supports_sdpa else "eager", _is_readable))


@contextmanager
def uncompiled() -> Iterator[None]:
    """Within this, what torch.compile made runs as it is written: compiled code calls nobody who looks on.

    Where two threads do so at once, the compiler is as it was once both have ended. Where nobody has imported it, nothing
    was compiled.
    """
    with _lock:
        if not _uncompiled and (compiler := sys.modules.get("torch._dynamo")) is not None:
            _compiler.enter_context(compiler.set_stance("force_eager"))
        _uncompiled.append(threading.get_ident())
    try:
        yield
    finally:
        with _lock:
            _uncompiled.pop()
            if not _uncompiled:
                _compiler.close()


_compiler = ExitStack()  # puts torch's compiler back
_uncompiled: list[int] = []  # the threads that need code to run as it is written


def _is_readable(name: str | None) -> bool:
    return not any(other in (name or "") for other in ("flash", "flex", "paged"))


@contextmanager
def attention_set_to(
    model: PreTrainedModel, name: str, spare: Callable[[str | None], bool] = lambda name: False
) -> Iterator[None]:
    """Every configuration within `model` set to attention `name`, but those `spare` is true of, and put back afterwards.

    Where two threads do so at once, what was there before the first is put back with the last.
    """
    changed = []
    with _lock:
        for config, before in attention_configurations(model):
            if not spare(before) or id(config) in _changed:
                count, first = _changed.get(id(config), (0, before))
                _changed[id(config)] = (count + 1, first)
                config._attn_implementation_internal = name
                changed.append(config)
    try:
        yield
    finally:
        with _lock:
            for config in changed:
                count, first = _changed.pop(id(config))
                if count > 1:
                    _changed[id(config)] = (count - 1, first)
                else:
                    config._attn_implementation_internal = first


_changed: dict[int, tuple[int, str | None]] = {}  # configurations set to another attention: how often, what it was


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
