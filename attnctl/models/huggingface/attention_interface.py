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
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from attnctl import attention
from attnctl.attention import Array, Call
from attnctl.errors import AttnctlError
from attnctl.layer import StopForward
from attnctl.models.huggingface import attention_sites as sites
from attnctl.models.huggingface.attention_call import call_of, changed_context, check_keywords
from attnctl.models.huggingface.attention_sites import Names, Site

if TYPE_CHECKING:
    from torch.nn import Module
    from transformers import PreTrainedConfig, PreTrainedModel

AttentionFunction = Callable[..., tuple[Array, Array | None]]  # as a module calls it: its context, its weights
Visit = Callable[[Site, Call], Array | None]
ShowOwn = Callable[[Site, Array, Array | None], None]

CHECKED_ROWS = 8  # of each call, as attnctl computes them, are held against what the model's own function answers
# how far apart the two may lie: weights, and context as a share of its largest number
ROUNDING = {torch.float64: 1e-5, torch.float32: 1e-4, torch.bfloat16: 4e-2, torch.float16: 5e-3}


class Change(Protocol):
    """What an intervention does to a call of attention, before anyone is shown it, and to its context afterwards."""

    def call(self, site: Site, call: Call) -> Call:
        """The call that takes this one's place; the same object where nothing is changed before the softmax."""

    def context(self, site: Site, context: Array) -> Array:
        """The context that the model goes on with: (batch, heads, n_q, d_v) → the same shape."""


class AfterAttention(Protocol):
    """Watches what some modules do with the context that their attention hands them."""

    modules: frozenset[int]  # ids of the modules: the forward is not left before they have ended

    def handed(self, module: int, context: Array) -> None:
        """The context (batch, n_q, heads, d_v) that a module goes on with."""


@dataclass
class Session:
    """One model being watched: the names of its modules, who wants which, who is shown what, and what was seen."""

    architecture: str
    names: dict[int, Names]
    visit: Visit
    wants: Callable[[Site], bool]
    change: Change | None = None
    replaces: bool = False  # the model is to go on with the visitor's context, not with its own
    own: ShowOwn | None = None  # shown what the model's own function answers: context (batch, n_q, heads, d_v), weights
    after: AfterAttention | None = None
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

    def begin_forward(self) -> None:
        """A forward of the whole model, or of the part of it that was called, begins."""
        self.forwards += 1
        self.occurrences.clear()
        self.layers_met.clear()

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

    def step_of_site(self, site: Site) -> int:
        """How many forwards called the module of this site before this one: one a new token in generation."""
        return self.steps[site.module][1]

    def sites_of_model(self, model: PreTrainedModel) -> set[Site]:
        """The sites that are known to call in each forward: of the modules that say whether they are causal.

        Empty where layers are shared or repeated (HRM), whose calls cannot be told beforehand.
        """
        cycles = [value for name, value in vars(model.config).items() if name.endswith("_cycles")]
        if self.shares_layers or any(isinstance(count, int) and count > 1 for count in cycles):
            return set()
        return {
            self.names[id(module)].site_of_occurrence(0)
            for module in model.modules()
            if isinstance(getattr(module, "is_causal", None), bool) and sites.follows_interface(module)
        }


_sessions: list[Session] = []
_lock = threading.RLock()


@contextmanager
def watch_attention(
    model: PreTrainedModel,
    visit: Visit,
    wants: Callable[[Site], bool] = lambda site: True,
    change: Change | None = None,
    *,
    replaces: bool = False,
    own: ShowOwn | None = None,
    after: AfterAttention | None = None,
) -> Iterator[Session]:
    """Within this context, every call of attention in `model` that `wants` accepts goes through `visit`.

    `visit(site, call)` sees queries (batch, heads, n_q, d_k) and the rest alike, and answers the context (batch, heads,
    n_q, d_v), or None. With `replaces` the model goes on with what is answered; without, it goes on with its own context,
    but where a fused kernel made that, which rounds otherwise than the weights that are shown. `change` alters the call
    before any visitor sees it, and the context before the model goes on. `own` is shown what the model's own function
    answers, `after` what a module goes on with. Where every visitor that watches the model in this thread has raised
    StopForward, the forward is left with it. A forward in a thread that watches nothing is seen by all.

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
    session = Session(
        architecture_name(model), sites.names_of_modules(model), visit, wants, change, replaces, own, after, shares
    )
    with ExitStack() as stack:
        _enter_readable(model, stack)
        _watch_forwards(model, session, stack)
        _watch_silence(model, session, stack)
        stack.enter_context(_session_listed(session))
        yield session


def architecture_name(model: Module) -> str:
    """The architecture's name, for messages: "GPT2LMHeadModel"."""
    return type(model).__name__


def check_inference(model: Module) -> None:
    """Raise AttnctlError where `model` is in training mode."""
    if model.training:
        raise AttnctlError(
            f"{architecture_name(model)} is in training mode, where dropout changes the weights: call model.eval()"
        )


def model_follows_interface(model: PreTrainedModel) -> bool:
    """Whether any part of `model` that attends asks transformers' interface for its function."""
    modules = list(sites.attention_modules(model).values())
    return any(sites.follows_interface(module) for module in modules)


# --- around the function that a model attends with -----------------------------------------------------------------


@contextmanager
def _session_listed(session: Session) -> Iterator[None]:
    """The session in the list; with the first of all, our function around transformers', and gone with the last."""
    from transformers.modeling_utils import AttentionInterface

    with _lock:
        if not _sessions:
            _originals.append(AttentionInterface.get_interface)
            AttentionInterface.get_interface = _get_interface  # type: ignore[assignment, method-assign]
        _sessions.append(session)
    try:
        yield
    finally:
        with _lock:
            _sessions.remove(session)
            if not _sessions:
                AttentionInterface.get_interface = _originals.pop()  # type: ignore[method-assign]


_originals: list[Callable[..., AttentionFunction]] = []


def _get_interface(interface: Any, implementation: str, default: AttentionFunction) -> AttentionFunction:
    """The function that a model attends with, ours around it."""
    originals = list(_originals)
    if not originals:  # the last session has just ended, in another thread
        return type(interface).get_interface(interface, implementation, default)  # type: ignore[no-any-return]
    return partial(_attend_call, originals[0](interface, implementation, default), implementation)


def _attend_call(
    kernel: AttentionFunction,
    implementation: str,
    module: Module,
    query: Array,
    key: Array,
    value: Array,
    attention_mask: Array | None = None,
    *args: object,
    **how: object,
) -> tuple[Array, Array | None]:
    """What a module calls: query (batch, heads, n_q, d_k) → context (batch, n_q, heads, d_v), weights or None."""
    own: tuple[Array, Array | None] = kernel(module, query, key, value, attention_mask, *args, **how)
    sessions = _sessions_of(module)
    if not sessions:
        return own
    given = dict(zip(("scaling", "dropout"), args, strict=False)) | how
    half, whole = _joined_calls(module, query, value, own)
    if whole is None:
        return own
    value, made = whole
    asked = [
        (session, site)
        for session in sessions
        if session.wants(site := session.site_of_call(module)) and not session.done
    ]
    context = None
    if asked:
        handed = HandedCall(module, (query, key, value, attention_mask), given, implementation)
        call = _checked_call(*asked[0], handed, made)
        context = _show_call(asked, call, made, half)
    answer = own if context is None else (context[..., half:].transpose(1, 2).contiguous(), own[1])
    afters = [
        session.after for session, _ in asked if session.after is not None and id(module) in session.after.modules
    ]
    for after in afters:
        after.handed(id(module), answer[0])
    if not afters:
        leave_where_done(module)
    return answer


def leave_where_done(module: Module) -> None:
    """Raise StopForward where every visitor that watches this module, in this thread, has seen all it wants."""
    sessions = _sessions_of(module)
    if sessions and all(session.done and session.thread == threading.get_ident() for session in sessions):
        for session in sessions:
            session.depth = 0
        raise StopForward


def _show_call(
    asked: list[tuple[Session, Site]], given: Call, own: tuple[Array, Array | None], half: int
) -> Array | None:
    """The call, changed where an intervention says so, shown to each visitor; the context in place of the model's own.

    (batch, heads, n_q, d_v), or None where the model goes on with its own.
    """
    if half and any(session.change is not None or session.replaces for session, _ in asked):
        raise AttnctlError(
            f"{asked[0][0].architecture} makes two calls of attention a layer, which are shown as one: its context cannot "
            "be changed"
        )
    call, context = given, None
    for session, site in asked:
        call = call if session.change is None else session.change.call(site, call)
    for session, site in asked:
        if session.own is not None:
            session.own(site, *own)
        answer = _visitor_answer(session, site, call)
        if context is None and (session.replaces or own[1] is None or call is not given):
            context = answer
    if context is None and call is not given:
        context = changed_context(call)  # (batch, heads, n_q, d_v)
    for session, site in asked:
        if session.change is not None:
            context = session.change.context(site, own[0].transpose(1, 2) if context is None else context)
    return context


def _joined_calls(
    module: Module, query: Array, value: Array, own: tuple[Array, Array | None]
) -> tuple[int, tuple[Array, tuple[Array, Array | None]] | None]:
    """The values of a call and what came of it; of differential attention (Ye et al. 2024), of its two calls as one.

    There a module attends twice with the same queries and keys, to one half of each value at a time: nothing is shown
    until the second (None), whose own half begins at the index that comes first.
    """
    if not hasattr(module, "lambda_init"):
        return 0, (value, own)
    place = (threading.get_ident(), id(module))
    first = _halves.pop(place, None)
    if first is None or first[0] is not query:
        _halves[place] = (query, value, own[0])
        return 0, None
    values = torch.cat([first[1], value], dim=-1)  # (batch, kv_heads, n_k, d_v)
    context = torch.cat([first[2], own[0]], dim=-1)  # (batch, n_q, heads, d_v)
    return first[1].shape[-1], (values, (context, own[1]))


_halves: dict[tuple[int, int], tuple[Array, Array, Array]] = {}


def _sessions_of(module: Module) -> list[Session]:
    """Who watches this module: those of this thread; where it has none, those of any."""
    watching = [session for session in list(_sessions) if id(module) in session.names]
    mine = [session for session in watching if session.thread == threading.get_ident()]
    return mine or watching


def _session_sees(session: Session, module: Module) -> bool:
    """Whether a forward of this module, in this thread, is one that the session watches."""
    return any(session is other for other in _sessions_of(module))


def _visitor_answer(session: Session, site: Site, call: Call) -> Array | None:
    """What the visitor answers to a call; StopForward is kept until all have had enough."""
    try:
        return session.visit(site, call)
    except StopForward:
        session.done = True
        return None


class HandedCall(NamedTuple):
    """What a module hands to the function it attends with, and by which name it asked for that."""

    module: Module
    arrays: tuple[Array, Array, Array, Array | None]  # queries, keys, values, mask
    keywords: dict[str, Any]
    implementation: str


def _checked_call(session: Session, site: Site, handed: HandedCall, own: tuple[Array, Array | None]) -> Call:
    """The Call of what a module hands over, if the model's own function answers what it says."""
    if handed.module.training:
        check_inference(handed.module)
    check_keywords(session.architecture, handed.keywords)
    call = call_of(handed.module, *handed.arrays, fused=handed.implementation != "eager", **handed.keywords)
    gap = context_disagreement(call, *own)
    if gap is not None:
        raise AttnctlError(
            f"layer {site.layer} of {session.architecture} attends otherwise than by the softmax of its scores (off by "
            f"{gap:.1e}): nothing is shown rather than something wrong"
        )
    return call


@torch.no_grad()
def context_disagreement(call: Call, context: Array, weights: Array | None) -> float | None:
    """By how much a model's own context (batch, n_q, heads, d_v) and weights, if any, differ from the Call's; None: not.

    A few rows are compared, which costs n_k numbers each. Of half precision only weights are: fused kernels round otherwise.
    """
    n_q = call.queries.shape[-2]
    rows = sorted({at * (n_q - 1) // max(1, min(n_q, CHECKED_ROWS) - 1) for at in range(min(n_q, CHECKED_ROWS))})
    with torch.no_grad():
        steps = attention.run_call(attention.select_call(call, rows=rows))
    limit = ROUNDING.get(call.queries.dtype, 1e-4)
    gaps = [0.0]
    if isinstance(weights, torch.Tensor) and weights.ndim == 4 and weights.shape[-2] == n_q:
        ours, theirs = steps.weights.float(), weights[:, :, rows].float()  # (batch, heads, rows, n_k)
        if ours.shape != theirs.shape:
            return float("inf")
        if call.sinks is not None:  # some put out the tokens' shares without the sink's
            theirs = torch.where(ours.sum(-1, keepdim=True) > 1e-6, theirs, torch.zeros_like(theirs))
            ours, theirs = _shares_of_row(ours), _shares_of_row(theirs)
        gaps.append(float((ours - theirs).detach().abs().nan_to_num(0.0).max()))
    if call.queries.dtype in (torch.float32, torch.float64):
        ours, theirs = steps.context.transpose(1, 2), context[:, rows]  # (batch, rows, heads, d_v)
        if ours.shape != theirs.shape:
            return float("inf")
        largest = call.values.abs().max().clamp(min=1e-6)
        gaps.append(float((ours - theirs).detach().abs().nan_to_num(0.0).max() / largest.detach()))
    return max(gaps) if max(gaps) > limit else None


def _shares_of_row(weights: Array) -> Array:
    """Rows (..., n_k) as shares of what their keys have together."""
    return weights / weights.sum(-1, keepdim=True).clamp(min=1e-12)  # (..., n_k)


# --- what else is seen of a forward --------------------------------------------------------------------------------


def _watch_forwards(model: PreTrainedModel, session: Session, stack: ExitStack) -> None:
    """Count the forwards: of the model, or of a part of it that is called alone, as an encoder in generation."""
    from transformers.modeling_utils import PreTrainedModel

    def enter_part(part: Module, *_: object) -> None:
        if not _session_sees(session, part):
            return
        if part is model:
            session.depth = 0
        if session.depth == 0:
            session.begin_forward()
        session.depth += 1

    def leave_part(part: Module, *_: object) -> None:
        if _session_sees(session, part):
            session.depth = max(0, session.depth - 1)

    for part in model.modules():
        if part is model or isinstance(part, PreTrainedModel):
            stack.callback(part.register_forward_pre_hook(enter_part).remove)
            stack.callback(part.register_forward_hook(leave_part, always_call=True).remove)


def _watch_silence(model: PreTrainedModel, session: Session, stack: ExitStack) -> None:
    """Note the modules that attend without a call of the interface."""

    def leave_part(module: Module, *_: object) -> None:
        if _session_sees(session, module) and not session.occurrences.get(id(module)):
            session.silent[session.names[id(module)].site_of_occurrence(0)] = type(module).__name__

    for module in sites.attention_modules(model).values():
        stack.callback(module.register_forward_hook(leave_part).remove)


# --- configurations ------------------------------------------------------------------------------------------------


def _enter_readable(model: PreTrainedModel, stack: ExitStack) -> None:
    """Flash and flex attention hide keys by other means than masks: such a model runs on torch's fused kernel here."""
    if any(not _is_readable(name) for _, name in _attention_configurations(model)):
        stack.enter_context(attention_set_to(model, "sdpa" if type(model)._supports_sdpa else "eager", _is_readable))


def attention_implementations(model: PreTrainedModel) -> list[str | None]:
    """The attention that each configuration within `model` names."""
    return [name for _, name in _attention_configurations(model)]


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
        for config, before in _attention_configurations(model):
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


def _attention_configurations(model: PreTrainedModel) -> list[tuple[PreTrainedConfig, str | None]]:
    """Every configuration within `model`, those without a module of their own too, and its attention."""
    found: dict[int, PreTrainedConfig] = {}
    waiting: list[Any] = [part.config for part in model.modules() if hasattr(part, "config")]
    while waiting:
        config = waiting.pop()
        if id(config) not in found and hasattr(config, "_attn_implementation_internal"):
            found[id(config)] = config
            waiting += list(vars(config).values())
    return [(config, config._attn_implementation_internal) for config in found.values()]
