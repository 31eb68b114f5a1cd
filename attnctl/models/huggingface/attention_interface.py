"""Watch and change the attention of any transformers model, call by call.

Every architecture that follows transformers' attention interface asks `AttentionInterface.get_interface` for its
attention function: its own eager function, torch's fused kernel, or another one. While a model is watched, it gets the
same function, wrapped in ours: queries (after RoPE), keys, values, mask, scale and all else that changes a score become a
`Call`, which is passed to a visitor. The model keeps its configuration, its masks and its kernel.
"""

from __future__ import annotations

import re
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from attnctl.attention import Array, Call
from attnctl.checks.argument_types import uncompiled
from attnctl.errors import AttnctlError
from attnctl.models.huggingface.attention_call import (
    Answer,
    added_mask,
    call_of,
    changed_context,
    context_disagreement,
    joined_calls,
)
from attnctl.models.huggingface.attention_sites import (
    Site,
    attends_over_depth,
    attention_modules,
    configurations_within,
    is_differential,
    model_follows_interface,
    shares_modules,
    sites_of_modules,
)
from attnctl.models.huggingface.blockwise_modules import OWN_CODE, attends_in_blocks, hear_module
from attnctl.runtime.shared_changes import LOCK, is_held, shared_change
from attnctl.runtime.two_at_once import works_beside
from attnctl.trace.run import StopForward

if TYPE_CHECKING:
    from torch.nn import Module
    from transformers import AttentionInterface, PreTrainedConfig, PreTrainedModel

AttentionFunction = Callable[..., Answer]  # called by a module; returns context and weights
Visit = Callable[[Site, Call], Array | None]


@dataclass(frozen=True)
class WatchOptions:
    """What a visitor does besides watching.

    `change_call` changes the call before any visitor sees it; `change_context` changes the context (batch, heads, n_q, d_v)
    before the model continues. With `replaces` the model continues with the context that the visitor returns. `own` is
    called with the call that the model's own function computed, before interventions, and its result: context (batch, n_q,
    heads, d_v) and weights. `after` is called with the context that the module continues with; the forward is then left at
    the end of the module, not before. `trusted`: the model's fused kernel agreed with calls of this length in an earlier
    forward, so it is not run if nobody else watches: the model continues with the visitor's context. With `differentiable`
    it also does, whoever else watches, and a model in training mode is allowed: the visitor applies the `dropout` of the
    call.
    """

    change_call: Callable[[Site, Call], Call] | None = None
    change_context: Callable[[Site, Array], Array] | None = None
    replaces: bool = False
    own: Callable[[Site, Call, Array, Array | None], None] | None = None
    after: Callable[[Site, Array], None] | None = None
    trusted: bool = False
    differentiable: bool = False


LOOKING_ON = WatchOptions()
ADDED_MASK = (
    "eager attention adds the attention_mask of true and false to the scores as 1 and 0, so that it hides nothing: give 0 "
    "and the lowest number, or attn_implementation='sdpa'"
)


@dataclass(eq=False)
class WatchSession:
    """One watched model: its visitor, the sites of its modules, and which calls were seen."""

    model: PreTrainedModel
    visit: Visit
    wants: Callable[[Site], bool]
    options: WatchOptions
    architecture: str = field(init=False)
    sites: Mapping[int, tuple[Site, ...]] = field(init=False)  # id of a module → its sites
    modules: list[Module] = field(init=False)  # kept alive, so that no new module gets the id of a replaced one
    thread: int = field(default_factory=threading.get_ident)
    called: set[Site] = field(default_factory=set)
    silent_modules: dict[Site, str] = field(default_factory=dict)  # site of a module that ended without a call → class
    is_done: bool = False  # the visitor raised StopForward
    ran: bool = False
    depth: int = 0  # how many nested models are running now
    calls: Counter[int] = field(default_factory=Counter)  # id of a module → its calls in this forward
    forwards: Counter[int] = field(default_factory=Counter)  # id of a module → the forwards in which it attended
    blockwise_ids: set[int] = field(default_factory=set)  # ids of modules that go block by block

    def __post_init__(self) -> None:
        self.architecture = architecture_name(self.model)
        self.sites, self.modules = sites_of_modules(self.model), list(self.model.modules())

    @property
    def silent(self) -> dict[Site, str]:
        """Return site → class of the modules that attend in code of their own, without the parts of modules that called."""
        if not self.ran:
            return {}
        called = {f"{site.name}." for site in self.called}
        silent = self.silent_modules.items()
        return {site: name for site, name in silent if not any(map(site.name.startswith, called))}

    def hears(self, module: Module) -> bool:
        """Return whether a call of a module of this model, in this thread, is one for this session."""
        return self in _sessions_of(module)

    def site_of_call(self, module: Module) -> Site:
        """Return the site of this call of a module, and count the call."""
        key, sites = id(module), self.sites[id(module)]
        recurrence, index = divmod(self.calls[key], len(sites))
        self.forwards[key] += not self.calls[key]
        site = replace(sites[index], recurrence=recurrence, step=self.forwards[key] - 1)
        if shares_modules(self.model):
            site = replace(site, layer=self.calls.total(), recurrence=0)
        self.calls[key] += 1
        self.called.add(site)
        return site

    # --- the model runs: it, or a part of it that is called alone, as an encoder in generation ---

    def begin_part(self, part: Module, *_: object) -> None:
        """Count the start of a model or of a model within it; the outermost one begins a new forward."""
        if self.hears(part):
            if part is self.model or not self.depth:
                self.ran, self.depth = True, 0
                self.calls.clear()
            self.depth += 1

    def end_part(self, part: Module, *_: object) -> None:
        """Count the end of a model, whether it returned or raised."""
        if self.hears(part):
            self.depth = max(0, self.depth - 1)

    def watch_blocks(self, stack: ExitStack, *_: object) -> None:
        """Hear the modules that go block by block, also those that a model takes for others as it runs (BigBird Pegasus)."""
        for part in filter(attends_in_blocks, self.model.modules()):
            if id(part) not in self.blockwise_ids:
                self.blockwise_ids.add(id(part))
                hear = partial(hear_module, self.model, part, _attend_call)
                stack.enter_context(shared_change(("blocks", id(part)), hear))  # once, however many watch
        if any(id(part) not in self.sites for part in attention_modules(self.model).values()):
            self.sites = {**sites_of_modules(self.model), **self.sites}
            self.modules += self.model.modules()

    def end_attention(self, module: Module, *_: object) -> None:
        """Note a module of attention that ends without a call as silent; leave the forward if all visitors are done."""
        sessions = _sessions_of(module)
        if self in sessions:
            if not self.calls[id(module)]:
                self.silent_modules[self.sites[id(module)][0]] = type(module).__name__
            _leave_where_done(sessions)


@contextmanager
def watch_attention(
    model: PreTrainedModel,
    visit: Visit,
    wants: Callable[[Site], bool] = lambda site: True,
    options: WatchOptions = LOOKING_ON,
) -> Iterator[WatchSession]:
    """Pass every call of attention in `model` that `wants` accepts to `visit`, within this context.

    `visit(site, call)` gets queries (batch, heads, n_q, d_k), keys, values and so on, and returns the context (batch, heads,
    n_q, d_v), or None. The model continues with its own context, except if `options` say otherwise, or if a fused kernel
    computed it, which rounds otherwise than the weights that are shown. If every visitor that watches the model in this
    thread has raised StopForward, the forward ends with it. A forward in a thread without visitors is seen by all visitors.

    Raises AttnctlError in training mode (dropout would show as weights above 1), for an architecture outside the interface,
    for an unknown keyword that may change a score, and if the model's own function gives another result than the Call.
    """
    from transformers.modeling_utils import PreTrainedModel

    if not options.differentiable:
        check_inference(model)
    if not model_follows_interface(model):
        raise AttnctlError(
            f"{architecture_name(model)} computes its attention in code of its own: only its weights can be read"
        )
    session = WatchSession(model, visit, wants, options)
    with ExitStack() as stack:
        # flash and flex attention hide keys without masks: such a model runs on torch's fused kernel here
        fused = "sdpa" if model._supports_sdpa else "eager"
        stack.enter_context(attention_set_to(model, fused, only=re.compile("flash|flex|paged").search))
        stack.enter_context(watching())
        for part in model.modules():
            if part is model or isinstance(part, PreTrainedModel):
                stack.callback(part.register_forward_pre_hook(session.begin_part).remove)
                stack.callback(part.register_forward_hook(session.end_part, always_call=True).remove)
        session.watch_blocks(stack)
        for part in model.modules():
            if hasattr(part, "set_attention_type"):
                stack.callback(part.register_forward_pre_hook(partial(session.watch_blocks, stack)).remove)
        for part in attention_modules(model).values():
            stack.callback(part.register_forward_hook(session.end_attention).remove)
        _sessions.append(session)
        stack.callback(_sessions.remove, session)
        yield session


def may_run_at_once(model: PreTrainedModel) -> bool:
    """Return whether two threads may run `model` at once: no module keeps anything of a forward.

    Those that attend block by block do, in what is heard of them, and so do positions that are scaled by the text's length,
    and parts whose weights accelerate fetches for each forward and takes away after it.
    """
    return model.device.type == "cpu" and not any(
        attends_in_blocks(part)
        or hasattr(part, "set_attention_type")
        or hasattr(part, "_hf_hook")
        or re.search("dynamic|longrope", str(getattr(part, "rope_type", "")))
        for part in model.modules()
    )


def architecture_name(model: Module) -> str:
    """Return the architecture's name for messages: "GPT2LMHeadModel"."""
    return type(uncompiled(model)).__name__


def check_inference(model: Module) -> None:
    """Raise AttnctlError if `model` is in training mode and gives other results in that mode."""
    if model.training and _is_random_in_training(model):
        raise AttnctlError(
            f"{architecture_name(model)} is in training mode, where dropout changes the weights: call model.eval()"
        )


# names of settings with which training drops or changes numbers
RANDOM = re.compile("drop|jitter|noise|mask_(time|feature)_prob")


def _is_random_in_training(model: Module) -> bool:
    """Return whether a module or the configuration has dropout or noise above 0, or a batch norm."""
    import torch

    if any(isinstance(part, torch.nn.modules.batchnorm._BatchNorm) for part in model.modules()):
        return True
    parts = [*model.modules(), *attention_configurations(model)]
    shares = [value for part in parts for name, value in vars(part).items() if RANDOM.search(name)]
    shares += [vars(part).get("p", 0) for part in model.modules() if "dropout" in type(part).__name__.lower()]
    return any(isinstance(share, int | float) and share > 0 for share in shares)


# --- around the function that a model attends with -----------------------------------------------------------------

_sessions: list[WatchSession] = []


def _sessions_of(module: Module) -> list[WatchSession]:
    """Return the sessions of this thread that watch this module; if it has no such session, the sessions of all threads.

    A thread that works beside another one has forwards of its own: the other's sessions do not change them.
    """
    watching = [session for session in list(_sessions) if id(module) in session.sites]
    own = [session for session in watching if session.thread == threading.get_ident()]
    return own or [session for session in watching if not works_beside(session.thread)]


def watching() -> AbstractContextManager[None]:
    """Wrap the attention functions that modules ask for, and run modules without torch.compile, within this context.

    Compiled code does not call the visitors; if nobody has imported the compiler, nothing is compiled.
    """
    return shared_change("watching", _wrap_interface)


def _wrap_interface(stack: ExitStack) -> None:
    from transformers.modeling_utils import AttentionInterface

    original = AttentionInterface.get_interface

    def get_interface(
        interface: AttentionInterface, implementation: str, default: AttentionFunction
    ) -> AttentionFunction:
        return partial(_attend_call, original(interface, implementation, default), implementation)

    AttentionInterface.get_interface = get_interface  # type: ignore[assignment, method-assign]
    stack.callback(setattr, AttentionInterface, "get_interface", original)
    if (compiler := sys.modules.get("torch._dynamo")) is not None:
        stack.enter_context(compiler.set_stance("force_eager"))


def _attend_call(
    attend: AttentionFunction,
    implementation: str,
    module: Module,
    query: Array,
    key: Array,
    value: Array,
    attention_mask: Array | None = None,
    *args: object,
    **options: object,
) -> Answer:
    """Attend for a module: query (batch, heads, n_q, d_k) → context (batch, n_q, heads, d_v), and weights or None.

    `attend` is the function that the module would call, `implementation` its name in transformers.
    """
    run = partial(attend, module, query, key, value, attention_mask, *args, **options)
    if attends_over_depth(module):
        return run()
    own_answer, joined_answer, half = None, None, 0
    sessions = _sessions_of(module)
    if sessions and is_differential(module):
        own_answer = run()
        half, value, joined_answer = joined_calls(module, query, value, own_answer)
        if joined_answer is None:
            return own_answer
    watchers = [(session, session.site_of_call(module)) for session in sessions]
    watchers = [(session, site) for session, site in watchers if session.wants(site) and not session.is_done]
    if not watchers:
        _leave_where_done(sessions)
        return own_answer or run()
    session, site = watchers[0]
    keywords = dict(zip(("scaling", "dropout"), args, strict=False)) | options
    if module.training and not all(watcher.options.differentiable for watcher, _ in watchers):
        check_inference(module)
    arrays = query, key, value, attention_mask
    call = call_of(
        module, arrays, keywords, fused=implementation not in ("eager", OWN_CODE), architecture=session.architecture
    )
    trusted = session.options.trusted and len(sessions) == 1 and own_answer is None and implementation == "sdpa"
    if not trusted or shares_modules(session.model):
        if call.dropout:  # the call is compared before dropout, which the visitor applies
            run = partial(attend, module, *arrays, **(keywords | {"dropout": 0.0}))
        own_answer = own_answer or run()
        joined_answer = joined_answer or own_answer
        gap = context_disagreement(call, *joined_answer)
        if (
            gap is not None
            and implementation == "eager"
            and (added := added_mask(attention_mask, query.dtype)) is not None
        ):
            arrays = query, key, value, added
            call = call_of(module, arrays, keywords, fused=False, architecture=session.architecture)
            gap = context_disagreement(call, *joined_answer)
            if gap is None:
                warnings.warn(f"{session.architecture}: {ADDED_MASK}", stacklevel=2)
        if gap is not None:
            raise AttnctlError(
                f"layer {site.layer} of {session.architecture} does not attend by the softmax of its scores "
                f"(difference {gap:.1e}): nothing is shown rather than something wrong"
            )
    rounds = joined_answer is None or (joined_answer[1] is None and implementation != OWN_CODE)
    context = _show_call(watchers, call, joined_answer, half, rounds)
    after = [(watcher.options.after, site) for watcher, site in watchers if watcher.options.after is not None]
    if not after:
        _leave_where_done(sessions)
    if context is None:
        answer = own_answer or run()
    else:
        answer = context[..., half:].transpose(1, 2).contiguous(), None if own_answer is None else own_answer[1]
    for see_context, site in after:
        see_context(site, answer[0])
    return answer


def in_this_thread(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return a hook of a module that is called for forwards in this thread alone."""
    thread = threading.get_ident()

    def called(*arguments: Any, **keywords: Any) -> Any:
        return hook(*arguments, **keywords) if threading.get_ident() == thread else None

    return called


def _leave_where_done(sessions: list[WatchSession]) -> None:
    """Raise StopForward if every visitor that watches a module, in this thread, is done."""
    if sessions and all(session.is_done and session.thread == threading.get_ident() for session in sessions):
        raise StopForward


def _show_call(
    watchers: list[tuple[WatchSession, Site]], original: Call, own_answer: Answer | None, half: int, rounds: bool
) -> Array | None:
    """Pass the call, changed by interventions, to each visitor; return the context that replaces the model's own.

    The context is (batch, heads, n_q, d_v); None if the model continues with its own, which is not so if its kernel
    `rounds` otherwise.
    """
    changing = any(session.options.change_call or session.options.change_context for session, _ in watchers)
    differentiable = [session for session, _ in watchers if session.options.differentiable]
    if len(differentiable) > 1:
        raise AttnctlError(
            f"two contexts of capture(grad=True) record one layer of {differentiable[0].architecture}, whose context comes "
            "from the weights of one: choose other layers in one of them"
        )
    if half and (changing or differentiable or any(session.options.replaces for session, _ in watchers)):
        raise AttnctlError(
            f"{watchers[0][0].architecture} makes two calls of attention a layer, which are shown as one: its context "
            "cannot be changed"
        )
    call, context = original, None
    for session, site in watchers:
        if session.options.change_call is not None:
            call = session.options.change_call(site, call)
    for session, site in watchers:
        if session.options.own is not None and own_answer is not None:
            session.options.own(site, original, *own_answer)
        try:
            answer = session.visit(site, call)
        except StopForward:  # the forward ends when all visitors are done
            session.is_done, answer = True, None
        if context is None and (session.options.replaces or rounds or call is not original):
            context = answer
        if session.options.differentiable:
            context = answer
    if context is None and call is not original:
        context = changed_context(call)  # (batch, heads, n_q, d_v)
    for session, site in watchers:
        if session.options.change_context is not None:
            context = own_answer[0].transpose(1, 2) if context is None and own_answer is not None else context
            context = session.options.change_context(site, context)
    return context


# --- the name of the attention that a model attends with ------------------------------------------------------------------


@contextmanager
def attention_set_to(
    model: PreTrainedModel, name: str, only: Callable[[str], object] = lambda name: True
) -> Iterator[None]:
    """Set all configurations within `model` whose attention `only` accepts to attention `name`, and restore them."""
    with ExitStack() as stack:
        for config in attention_configurations(model):
            key = "configuration", id(config)
            with LOCK:  # another thread may restore it between the question and the change
                before = config._attn_implementation_internal
                restore = partial(setattr, config, "_attn_implementation_internal", before)
                if only(before or "") or is_held(key):
                    stack.enter_context(shared_change(key, lambda back, restore=restore: back.callback(restore)))  # type: ignore[misc]
                if only(before or ""):
                    config._attn_implementation_internal = name
        yield


def attention_configurations(model: Module) -> list[PreTrainedConfig]:
    """Return every configuration within `model` that names an attention, also those without a module."""
    return configurations_within(*(part.config for part in model.modules() if hasattr(part, "config")))
