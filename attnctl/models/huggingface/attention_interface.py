"""Attention as any transformers model computes it, handed over call by call.

Every architecture that follows transformers' attention interface asks `AttentionInterface.get_interface` for the function
that attends: its own eager one, torch's fused kernel, or any other. While a model is watched, what it gets is that very
function with ours around it: queries (after RoPE), keys, values, mask, scale and what else changes a score become a `Call`,
which a visitor is shown. The model keeps its configuration, its masks and its kernel, so there is nothing to put back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from attnctl.attention import Array, Call
from attnctl.errors import AttnctlError
from attnctl.layer import StopForward
from attnctl.models.huggingface import attention_session as sites
from attnctl.models.huggingface.attention_call import (
    HandedCall,
    call_of,
    changed_context,
    check_keywords,
    context_disagreement,
    joined_calls,
)
from attnctl.models.huggingface.attention_session import (
    LOOKING_ON,
    Site,
    Visit,
    WatchOptions,
    WatchSession,
    enter_readable,
    held,
    lock,
    uncompiled,
)

if TYPE_CHECKING:
    from torch.nn import Module
    from transformers import PreTrainedModel

AttentionFunction = Callable[..., tuple[Array, Array | None]]  # as a module calls it: its context, its weights


_sessions: list[WatchSession] = []


@contextmanager
def watch_attention(
    model: PreTrainedModel,
    visit: Visit,
    wants: Callable[[Site], bool] = lambda site: True,
    options: WatchOptions = LOOKING_ON,
) -> Iterator[WatchSession]:
    """Within this context, every call of attention in `model` that `wants` accepts goes through `visit`.

    `visit(site, call)` sees queries (batch, heads, n_q, d_k) and the rest alike, and answers the context (batch, heads,
    n_q, d_v), or None. The model goes on with its own context, but where a fused kernel made that, which rounds otherwise
    than the weights that are shown, and where `options` say so. Where every visitor that watches the model in this thread
    has raised StopForward, the forward is left with it. A forward in a thread that watches nothing is seen by all.

    Raises AttnctlError in training mode (dropout would show as weights above 1), for an architecture outside the
    interface, for a keyword that may change a score unknown to us, and where the model's own function answers otherwise
    than the Call says.
    """
    check_inference(model)
    if not model_follows_interface(model):
        raise AttnctlError(
            f"{architecture_name(model)} computes its attention in code of its own: only its weights can be read"
        )
    shares = hasattr(model.config, "num_hidden_groups")
    names = sites.names_of_modules(model)
    session = WatchSession(architecture_name(model), model, names, visit, wants, options, shares)
    with ExitStack() as stack:
        enter_readable(model, stack)
        stack.enter_context(uncompiled())
        _watch_forwards(model, session, stack)
        _watch_silence(model, session, stack)
        stack.enter_context(_session_listed(session))
        yield session


def architecture_name(model: Module) -> str:
    """The architecture's name, for messages: "GPT2LMHeadModel"."""
    return type(getattr(model, "_orig_mod", model)).__name__  # what torch.compile answers holds the model


def check_inference(model: Module) -> None:
    """Raise AttnctlError where `model` is in training mode."""
    if model.training:
        raise AttnctlError(
            f"{architecture_name(model)} is in training mode, where dropout changes the weights: call model.eval()"
        )


def model_follows_interface(model: PreTrainedModel) -> bool:
    """Whether any part of `model` that attends asks transformers' interface for its function."""
    modules = sites.attention_modules(model)
    text = [module for name, module in modules.items() if sites.reads_text(name)]
    following = [module for module in text or modules.values() if sites.follows_interface(module)]
    if following and len(text) < len(modules):  # its encoder of pictures may, in the same file, and it may not (GIT)
        return any(sites.calls_interface(module) for module in following)
    return bool(following)


# --- around the function that a model attends with -----------------------------------------------------------------


@contextmanager
def _session_listed(session: WatchSession) -> Iterator[None]:
    """The session in the list; with the first of all, our function around transformers', and gone with the last."""
    with held("interface", _wrap_interface):
        with lock:
            _sessions.append(session)
        try:
            yield
        finally:
            with lock:
                _sessions.remove(session)


def _wrap_interface(stack: ExitStack) -> None:
    """Hand out the functions that modules attend with, ours around each."""
    from transformers.modeling_utils import AttentionInterface

    original = AttentionInterface.get_interface

    def get_interface(interface: Any, implementation: str, default: AttentionFunction) -> AttentionFunction:
        return partial(_attend_call, original(interface, implementation, default), implementation)

    AttentionInterface.get_interface = get_interface  # type: ignore[assignment, method-assign]
    stack.callback(setattr, AttentionInterface, "get_interface", original)


def _attend_call(
    attend: AttentionFunction,
    implementation: str,
    module: Module,
    query: Array,
    key: Array,
    value: Array,
    attention_mask: Array | None = None,
    *args: object,
    **how: object,
) -> tuple[Array, Array | None]:
    """What a module calls: query (batch, heads, n_q, d_k) → context (batch, n_q, heads, d_v), weights or None.

    `attend` is the function that it would attend with, `implementation` the name by which transformers lists that.
    """
    sessions = _sessions_of(module)
    afters = [session.options.after for session in sessions if session.options.after is not None]
    if tried := [context for after in afters if (context := after.trial_context()) is not None]:
        return tried[0], None
    given = dict(zip(("scaling", "dropout"), args, strict=False)) | how
    handed = HandedCall(module, (query, key, value, attention_mask), given, implementation)
    if len(sessions) == 1 and sessions[0].options.trusted and _may_trust(sessions[0], handed):
        context = _visitor_answer(sessions[0], sessions[0].site_of_call(module), _call_handed(sessions[0], handed))
        leave_where_done(module)
        assert context is not None, "the visitor of a trusted session answers the context"
        return context.transpose(1, 2).contiguous(), None
    own: tuple[Array, Array | None] = attend(module, query, key, value, attention_mask, *args, **how)
    half, whole = joined_calls(module, query, value, own) if sessions else (0, None)
    if whole is None:
        return own
    handed = handed._replace(arrays=(query, key, whole[0], attention_mask))
    asked = [
        (session, site)
        for session in sessions
        if session.wants(site := session.site_of_call(module)) and not session.done
    ]
    context = None
    if asked:
        call = _call_handed(asked[0][0], handed)
        if (gap := context_disagreement(call, *whole[1])) is not None:
            raise AttnctlError(
                f"layer {asked[0][1].layer} of {asked[0][0].architecture} attends otherwise than by the softmax of its "
                f"scores (off by {gap:.1e}): nothing is shown rather than something wrong"
            )
        context = _show_call(asked, call, whole[1], half)
    answer = own if context is None else (context[..., half:].transpose(1, 2).contiguous(), own[1])
    options = (session.options for session, _ in asked)
    reading = [one.after for one in options if one.after is not None and id(module) in one.after.modules]
    for after in reading:
        after.see_context(id(module), answer[0])
    if not reading:
        leave_where_done(module)
    return answer


def _may_trust(session: WatchSession, handed: HandedCall) -> bool:
    """Whether a trusted visitor's answer stands for a call: of the fused kernel, one a layer, at a site that it wants."""
    if (
        handed.implementation != "sdpa"
        or hasattr(handed.module, "lambda_init")
        or session.shares_layers
        or session.done
    ):
        return False
    occurrence = session.occurrences.get(id(handed.module), 0)
    return session.wants(session.names[id(handed.module)].site_of_occurrence(occurrence))


def leave_where_done(module: Module) -> None:
    """Raise StopForward where every visitor that watches this module, in this thread, has seen all it wants."""
    sessions = _sessions_of(module)
    if sessions and all(session.done and session.thread == threading.get_ident() for session in sessions):
        for session in sessions:
            session.depth = 0
        raise StopForward


def _show_call(
    asked: list[tuple[WatchSession, Site]], given: Call, own: tuple[Array, Array | None], half: int
) -> Array | None:
    """The call, changed where an intervention says so, shown to each visitor; the context in place of the model's own.

    (batch, heads, n_q, d_v), or None where the model goes on with its own.
    """
    changes = [(session.options.change, site) for session, site in asked if session.options.change is not None]
    if half and (changes or any(session.options.replaces for session, _ in asked)):
        raise AttnctlError(
            f"{asked[0][0].architecture} makes two calls of attention a layer, which are shown as one: its context cannot "
            "be changed"
        )
    call, context = given, None
    for change, site in changes:
        call = change.change_call(site, call)
    for session, site in asked:
        if session.options.own is not None:
            session.options.own(site, *own)
        answer = _visitor_answer(session, site, call)
        if context is None and (session.options.replaces or own[1] is None or call is not given):
            context = answer
    if context is None and call is not given:
        context = changed_context(call)  # (batch, heads, n_q, d_v)
    for change, site in changes:
        context = change.change_context(site, own[0].transpose(1, 2) if context is None else context)
    return context


def _sessions_of(module: Module) -> list[WatchSession]:
    """Who watches this module: those of this thread; where it has none, those of any."""
    watching = [session for session in list(_sessions) if id(module) in session.names]
    mine = [session for session in watching if session.thread == threading.get_ident()]
    return mine or watching


def _visitor_answer(session: WatchSession, site: Site, call: Call) -> Array | None:
    """What the visitor answers to a call; StopForward is kept until all have had enough."""
    try:
        return session.visit(site, call)
    except StopForward:
        session.done = True
        return None


def _call_handed(session: WatchSession, handed: HandedCall) -> Call:
    """The Call of what a module hands over."""
    if handed.module.training:
        check_inference(handed.module)
    check_keywords(session.architecture, handed.keywords)
    return call_of(handed)


# --- what else is seen of a forward --------------------------------------------------------------------------------


def _watch_forwards(model: PreTrainedModel, session: WatchSession, stack: ExitStack) -> None:
    """Count the forwards: of the model, or of a part of it that is called alone, as an encoder in generation."""
    from transformers.modeling_utils import PreTrainedModel

    def enter_part(part: Module, *_: object) -> None:
        if session not in _sessions_of(part):
            return
        if part is model:
            session.depth = 0
        if session.depth == 0:
            session.forwards += 1
            session.occurrences.clear()
            session.layers_met.clear()
        session.depth += 1

    def leave_part(part: Module, *_: object) -> None:
        if session in _sessions_of(part):
            session.depth = max(0, session.depth - 1)

    for part in model.modules():
        if part is model or isinstance(part, PreTrainedModel):
            stack.callback(part.register_forward_pre_hook(enter_part).remove)
            stack.callback(part.register_forward_hook(leave_part, always_call=True).remove)


def _watch_silence(model: PreTrainedModel, session: WatchSession, stack: ExitStack) -> None:
    """Note the modules that attend without a call of the interface."""

    def leave_part(module: Module, *_: object) -> None:
        if session in _sessions_of(module) and not session.occurrences.get(id(module)):
            session.silent_modules[session.names[id(module)].site_of_occurrence(0)] = type(module).__name__

    for module in sites.attention_modules(model).values():
        stack.callback(module.register_forward_hook(leave_part).remove)
