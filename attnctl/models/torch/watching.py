"""Watch any torch module while it runs: each function of torch passes a `TorchFunctionMode`; the model is not changed.

`scaled_dot_product_attention` and `flex_attention` are recomputed and held against the kernel's own result (`fused`); what a
model writes out itself is recognised (`traced`). What cannot be seen is reported, by name.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import torch
from torch.overrides import TorchFunctionMode

from attnctl.attention import Array
from attnctl.errors import AttnctlError
from attnctl.models.torch.contractions import PRODUCTS
from attnctl.models.torch.fused import Arguments, Changed, FlexCall, FusedCall, arguments_of, blocks_matter
from attnctl.models.torch.layouts import fresh_axis
from attnctl.models.torch.other_threads import watch_new_threads
from attnctl.models.torch.sites import NESTED, Place, Sites
from attnctl.models.torch.tensors import Chunk
from attnctl.models.torch.traced import Tracer
from attnctl.models.torch.traced_call import TracedCall
from attnctl.models.torch.unseen_operators import (
    ATTENDS,
    LOOKS_FUSED,
    Below,
    called_by_itself,
    is_foreign,
    scripted_functions_attend,
)

if TYPE_CHECKING:
    from torch.nn import Module

AnyCall: TypeAlias = FusedCall | TracedCall

MULTI_HEAD = torch.nn.functional.multi_head_attention_forward
# The function hands itself to the mode whole. A copy of its code that takes no notice of modes runs function by function.
PLAIN_MULTI_HEAD = FunctionType(
    MULTI_HEAD.__code__,
    {**vars(torch.nn.functional), "has_torch_function": lambda _: False},
    MULTI_HEAD.__name__,
    MULTI_HEAD.__defaults__,
    MULTI_HEAD.__closure__,
)
SOFTMAX = frozenset(
    ["softmax", "_softmax", "special_softmax", "log_softmax", "_log_softmax", "special_log_softmax", "softmin"]
)


class Visitor(Protocol):
    """What looks at the attention of a model, and may change it."""

    def see(self, place: Place, call: AnyCall) -> Changed | None:
        """Look at a call. Return what the model goes on with, or None."""


@dataclass(eq=False)
class Watched:
    """One model that is watched: its sites, its visitor, what was seen of it, and what could not be."""

    model: Module
    visitor: Visitor
    sites: Sites
    ways: dict[str, int] = field(default_factory=dict)  # how calls were read → their number
    unknown: dict[str, str] = field(default_factory=dict)  # operator → module
    refused: dict[tuple[str, str], None] = field(default_factory=dict)
    softmaxes: int = 0
    filled: set[int] = field(default_factory=set)  # forwards in which attention had queries
    empty: dict[int, tuple[int, ...]] = field(default_factory=dict)  # forward → shape of a result without numbers
    in_threads: dict[tuple[str, str], int] = field(default_factory=dict)  # function, place of its call → thread
    below: dict[str, None] = field(
        default_factory=dict
    )  # modules in which a function in TorchScript computes a softmax

    @property
    def name(self) -> str:
        """Return the class of the model."""
        return type(getattr(self.model, "_orig_mod", self.model)).__name__

    @property
    def count(self) -> int:
        """Return how many calls of attention were seen."""
        return sum(self.ways.values())

    def problems(self) -> list[str]:
        """Return a sentence for each attention that cannot be shown, or that may have been missed."""
        lines = [f"in {module or 'the root'}: {sentence}" for module, sentence in self.refused]
        lines += [
            f"the operator {operator} in {module or 'the root'} looks like attention, and attnctl does not know it"
            for operator, module in self.unknown.items()
        ]
        lines += [
            f"forward {step} ran over zero tokens (a result of shape {shape}): there is no attention to show"
            for step, shape in self.empty.items()
            if step not in self.filled
        ]
        if self.sites.other_threads:
            lines.append(in_threads_sentence(self.sites.other_threads))
        lines += [
            f"{place} called {name} in a thread of its own, which is not watched"
            for (name, place), thread in self.in_threads.items()
            if thread not in self.sites.threads
        ]
        return lines

    def nothing_seen(self) -> str:
        """Return the error of a model in which no attention was seen: what was looked for, and what stood in the way."""
        looked = (
            f"no attention of {self.name} was seen: no call of scaled_dot_product_attention or flex_attention, and no "
            "softmax of a product of queries and keys that multiplies values"
        )
        if self.empty and self.sites.step <= 0:
            shape = next(iter(self.empty.values()))
            return f"{self.name} ran over zero tokens (a result of shape {shape}): give it at least one token, and one text"
        problems = self.problems()
        if not problems and self.softmaxes:
            problems = [
                f"{self.softmaxes} softmax over other things (experts, classes, a loss, or scores without a product)"
            ]
        return f"{looked} ({'; '.join(problems)})" if problems else looked


def in_threads_sentence(names: Mapping[str, object]) -> str:
    """Return a sentence that names modules that ran in threads without a context."""
    first = [name or "the root" for name in names][:3]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(first)}{more} ran in other threads (DataParallel?), which are not watched"


class _Mode(TorchFunctionMode):
    """Show each function of torch to the models that are watched in this thread."""

    def __init__(self) -> None:
        super().__init__()
        self.models: list[Watched] = []
        self.looks_below = False  # a dispatch mode shows what runs in TorchScript
        self.raised: BaseException | None = None  # by a visitor: TorchScript makes a RuntimeError of it
        self.tracer = Tracer(see=self._show, module=self._module)

    def _running(self) -> list[Watched]:
        return [watched for watched in self.models if watched.sites.is_running]

    def _module(self) -> str:
        running = self._running()
        return running[-1].sites.module if running else ""

    def _show(self, call: AnyCall, is_cross: bool, chunk: Chunk | None) -> Array | None:
        """Show a call to each visitor; return the output that the model goes on with, if one of them changed it."""
        other = None
        if not call.output.numel():  # no text, or no query
            self._note_empty(call.output)
            return None
        for watched in self._running():
            watched.filled.add(watched.sites.step)
            place = watched.sites.next_place("cross" if is_cross else "self", chunk, call.shape)
            watched.ways[call.way] = watched.ways.get(call.way, 0) + 1
            try:
                changed = watched.visitor.see(place, call)
            except BaseException as error:
                self.raised = error
                raise
            if changed is not None:
                other = changed.output
                call = _with_change(call, changed)
        return other

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        keywords = kwargs or {}
        if torch._C._current_graph_task_id() != -1:  # a checkpointed forward runs again in the backward pass
            return func(*args, **keywords)
        if func is MULTI_HEAD:
            with self:
                return PLAIN_MULTI_HEAD(*args, **keywords)
        running = self._running()
        if not running:
            return func(*args, **keywords)
        name = function_name(func)
        if torch._C._functorch.peek_interpreter_stack() is not None:  # its tensors tell no numbers, and no batch
            if ATTENDS.search(name):
                self.tracer.refuse(
                    "it attends under torch.vmap or another transform of torch.func, which hides the batch"
                )
            return self._and_refusals(func(*args, **keywords), running)
        if name == "scaled_dot_product_attention":
            return self._fused(func, args, keywords)
        if name in ("flex_attention", "flex_attention_hop") and len(args) >= 6:
            return self._flex(func, args, keywords)
        if is_foreign(func):
            out, attends = called_by_itself(func, args, keywords)
            if attends:
                self._note_unknown(func, running)
            return self._and_refusals(self.tracer.follow(name, args, keywords, out), running)
        if isinstance(func, torch._ops.OperatorBase | torch._ops.OpOverloadPacket) and LOOKS_FUSED.search(str(func)):
            self._note_unknown(func, running)
        if name in PRODUCTS:
            return self._and_refusals(self.tracer.product(name, args, keywords, func), running)
        if name in SOFTMAX:
            out = func(*args, **keywords)
            self.tracer.softmax(name.removeprefix("special").lstrip("_"), args, keywords, out)
            for watched in running:
                watched.softmaxes += 1
            if isinstance(out, torch.Tensor) and not out.numel():
                self._note_empty(out)
            return self._and_refusals(out, running)
        out = func(*args, **keywords)
        return self._and_refusals(self.tracer.follow(name, args, keywords, out), running)

    def note_thread(self, name: str, place: str) -> None:
        """Note that a function attends in another thread, which has no context, while a model runs here."""
        if getattr(_modes, "mode", None) is None:
            for watched in self._running():
                watched.in_threads.setdefault((name, place), threading.get_ident())

    def _note_empty(self, out: Array) -> None:
        for watched in self._running():
            watched.empty.setdefault(watched.sites.step, tuple(out.shape))

    def _note_unknown(self, func: object, running: list[Watched]) -> None:
        for watched in running:
            watched.unknown.setdefault(str(func).removesuffix(".default"), watched.sites.module)

    def _and_refusals(self, out: Any, running: list[Watched]) -> Any:
        if self.tracer.refused:
            for watched in running:
                watched.refused |= self.tracer.refused
            self.tracer.refused = {}
        return out

    def _fused(self, func: Callable[..., Any], args: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
        out = func(*args, **keywords)
        given = arguments_of(args, keywords)
        if given.query.is_nested:
            self.tracer.refuse(f"it {NESTED}")
            return self._and_refusals(out, self._running())
        return self._show_fused(FusedCall(given, out, self._layout(given)), out)

    def _flex(self, func: Callable[..., Any], args: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
        result = func(*args, **keywords)
        out = result[0] if isinstance(result, tuple) else result
        given = Arguments(args[0], args[1], args[2], enable_gqa=True)
        if blocks_matter(args[4], args[0].shape[-2], args[1].shape[-2]):
            self.tracer.refuse(BLOCKS)
            return self._and_refusals(result, self._running())
        call = FlexCall(given, out, self._layout(given), "flex", how=tuple(args[3:]), keywords=keywords)
        other = self._show_fused(call, out)
        return (other, *result[1:]) if isinstance(result, tuple) else other

    def _layout(self, given: Arguments) -> Any:
        return self.tracer.layouts.get(given.query) or self.tracer.layouts.get(given.key)

    def _show_fused(self, call: FusedCall, out: Array) -> Array:
        query, key = call.arguments.query, call.arguments.key
        constant = self.tracer.is_constant(query)
        if constant and self.tracer.is_constant(key):
            return out
        is_cross = constant or self.tracer.origin(query) != self.tracer.origin(key)
        sides = [(self.tracer.layouts.get(side) or ((), ()))[-2] for side in (query, key)]
        call.unnamed, is_cross = self.tracer.unnamed(sides[0], sides[1], is_cross)
        call.extra = self.tracer.extra_keys(key, call.shape, is_cross)
        chunk = self.tracer.part_of(query, call.shape[1])
        is_cross = is_cross or self.tracer.differs(call.shape, chunk, key)
        if (layout := self.tracer.layouts.get(query)) is not None and query.shape[:-1] == out.shape[:-1]:
            self.tracer.layouts[out] = (*layout[:-1], fresh_axis(out.shape[-1], feature=True))
        other = self._show(call, is_cross, chunk)
        return out if other is None else other


def _with_change(call: AnyCall, changed: Changed) -> AnyCall:
    """Return a call as an outer visitor changed it."""
    other = copy(call)
    if changed.weights is None and call.changed is not None:
        changed = Changed(changed.output, call.changed.weights)
    other.output, other.changed = changed.output, changed
    return other


def function_name(func: Any) -> str:
    """Return the name of a function of torch: of an operator without its overload, of a property its own."""
    name = str(getattr(func, "__name__", func))
    if name == "__get__":
        return str(getattr(getattr(func, "__self__", None), "__name__", name))
    return name.partition(".")[0]


BLOCKS = (
    "the blocks of its block mask show other keys than its mask_mod: a compiled flex_attention goes by the blocks, an "
    "uncompiled one, as here, by mask_mod alone: give it the mask_mod of these blocks"
)
_modes = threading.local()


def _is_watched_here(model: Module) -> bool:
    """Return whether a context of this thread watches the model."""
    mode = getattr(_modes, "mode", None)
    return mode is not None and any(watched.model is model for watched in mode.models)


@contextmanager
def watch_module(model: Module, visitor: Visitor, without: frozenset[int] = frozenset()) -> Iterator[Watched]:
    """Show each attention of `model` to a visitor within this context; the parts `without` are left to others.

    Compiled modules run uncompiled. Contexts nest: an outer one's change is seen by an inner one.
    """
    watched = Watched(model, visitor, Sites(model, without, is_watched_here=lambda: _is_watched_here(model)))
    with ExitStack() as stack:
        if "torch._dynamo" in sys.modules or "torch.nn.attention.flex_attention" in sys.modules:
            from torch.compiler import set_stance

            stack.enter_context(set_stance("force_eager"))
        stack.enter_context(watched.sites.hooks())
        mode = getattr(_modes, "mode", None)
        if mode is None:
            mode = _modes.mode = _Mode()
            stack.callback(setattr, _modes, "mode", None)
            stack.enter_context(mode)
            stack.enter_context(watch_new_threads(mode.note_thread))
        if not mode.looks_below and (watched.sites.is_scripted() or scripted_functions_attend()):
            mode.looks_below = True
            stack.callback(setattr, mode, "looks_below", False)
            stack.enter_context(torch.jit._fuser.optimized_execution(False))  # nothing is fused
            stack.enter_context(Below())
        watched.sites.begun = partial(note_parameters, model, mode.tracer)
        mode.models.append(watched)
        stack.callback(mode.models.remove, watched)
        try:
            yield watched
        except RuntimeError:
            if mode.raised is None:
                raise
            raise mode.raised from None
        finally:
            mode.raised = None
            watched.refused |= mode.tracer.lost()


def note_parameters(model: Module, tracer: Tracer) -> None:
    """Note the parameters and buffers of a model as constants; torch.func.functional_call puts others in their place."""
    for part in (*model.parameters(), *model.buffers()):
        tracer.constants[part] = True


def check_seen(watched: Watched) -> str:
    """Return the sentence about what could not be shown, "" if all was. Raises AttnctlError if nothing was seen of a run."""
    if watched.sites.step < 0 and not watched.sites.other_threads:
        return ""
    if not watched.count:
        raise AttnctlError(watched.nothing_seen())
    return "; ".join(watched.problems())
