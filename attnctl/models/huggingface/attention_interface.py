"""Attention as any transformers model computes it, handed over call by call.

transformers lets a program register an attention function. Ours turns what the architecture gives it (queries after RoPE,
keys, values, mask, scale, soft cap, sinks, position bias) into a `Call`, shows it to a visitor, and goes on with the
visitor's context, or with the fused kernel's where the visitor has none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from attnctl import attention
from attnctl.attention import Array, Call
from attnctl.errors import AttnctlError

NAME = "attnctl"

# keywords that reach the attention function and leave the scores as they are; a window is already in the mask
HARMLESS = frozenset(
    {"cache_position", "deterministic", "encoder_hidden_states", "num_items_in_batch", "output_attentions"}
    | {"output_hidden_states", "output_router_logits", "position_embeddings", "position_ids", "return_dict"}
    | {"sliding_window", "use_cache"}
)

_CROSS = re.compile(r"cross|encoder_attn|encdec|enc_dec", re.IGNORECASE)


@dataclass(frozen=True)
class Site:
    """Where in the model a call of attention stands: its module's name, its kind, its layer."""

    name: str
    kind: str  # self, or for encoder-decoders: encoder, decoder, cross
    layer: int


class Change(Protocol):
    """What an intervention does to a call of attention, before anyone is shown it, and to its context afterwards."""

    def call(self, site: Site, call: Call) -> Call:
        """The call that takes this one's place; the same object where nothing is changed before the softmax."""

    def context(self, site: Site, context: Array) -> Array:
        """The context that the model goes on with: (batch, heads, n_q, d_v) → the same shape."""


@dataclass
class Session:
    """One model being watched: its modules' sites, who wants which, who is shown what, and what was seen."""

    architecture: str
    sites: dict[int, Site]
    wants: Callable[[Site], bool]
    visit: Callable[[Site, Call], Array | None]
    shares_layers: bool = False
    change: Change | None = None
    seen: dict[Site, None] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)  # of each kind, in this forward
    step: int = -1  # which forward this is

    def site(self, module: Any) -> Site:
        """The site of this call. Where layers share one module (ALBERT), the calls of one forward count them."""
        site = self.sites[id(module)]
        if self.shares_layers:
            count = self.calls.get(site.kind, 0)
            self.calls[site.kind] = count + 1
            site = replace(site, layer=count)
        self.seen[site] = None
        return site

    def attentions(self, model: Any) -> set[Site]:
        """The sites that are known to call in each forward: of the modules that say whether they are causal."""
        if self.shares_layers:
            return set()
        return {
            self.sites[id(module)] for module in model.modules() if isinstance(getattr(module, "is_causal", None), bool)
        }


_sessions: list[Session] = []


@contextmanager
def attending(
    model: Any,
    visit: Callable[[Site, Call], Array | None],
    wants: Callable[[Site], bool] = lambda site: True,
    change: Change | None = None,
) -> Iterator[Session]:
    """Within this context, every call of attention in `model` that `wants` accepts goes through `visit`.

    `visit(site, call)` sees queries (batch, heads, n_q, d_k) and the rest alike, and answers the context (batch, heads,
    n_q, d_v), or None to have it computed by the fused kernel. `change` alters the call before any visitor sees it, and the
    context before the model goes on. Raises AttnctlError in training mode (dropout would show as
    weights above 1), for an architecture outside the interface, and for a keyword that may change a score unknown to us.
    """
    check_inference(model)
    if not follows_interface(model):
        raise AttnctlError(
            f"{architecture(model)} computes its attention in code of its own: only its weights can be read"
        )
    _register()
    shared = hasattr(model.config, "num_hidden_groups")
    session = Session(architecture(model), _sites(model), wants, visit, shared, change)
    with ExitStack() as stack:
        stack.callback(model.register_forward_pre_hook(lambda *_: _start(session)).remove)
        stack.enter_context(implementation(model, NAME))
        _sessions.append(session)
        stack.callback(_sessions.remove, session)
        yield session


def _start(session: Session) -> None:
    session.calls.clear()
    session.step += 1


def architecture(model: Any) -> str:
    """The architecture's name, for messages: "GPT2LMHeadModel"."""
    return type(model).__name__


def check_inference(model: Any) -> None:
    """Raise AttnctlError where `model` is in training mode."""
    if model.training:
        raise AttnctlError(
            f"{architecture(model)} is in training mode, where dropout changes the weights: call model.eval()"
        )


def follows_interface(model: Any) -> bool:
    """Whether every part of `model` that attends can be given another attention function."""
    from transformers.modeling_utils import PreTrainedModel

    return all(
        type(part)._can_set_attn_implementation() for part in model.modules() if isinstance(part, PreTrainedModel)
    )


def _register() -> None:
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface.register(NAME, _attend)
    # true where a query may look; None where nothing is hidden but the future
    AttentionMaskInterface.register(NAME, sdpa_mask)


@contextmanager
def implementation(model: Any, name: str) -> Iterator[None]:
    """Every configuration within `model` set to attention `name`, and put back afterwards."""
    if not follows_interface(model):  # its attention was chosen when it was built
        yield
        return
    configs = {id(part.config): part.config for part in model.modules() if hasattr(part, "config")}
    before = [(config, config._attn_implementation_internal) for config in configs.values() if _has_choice(config)]
    try:
        model.set_attn_implementation(name)
        yield
    finally:
        for config, old in before:
            config._attn_implementation_internal = old


def _has_choice(config: Any) -> bool:
    return hasattr(config, "_attn_implementation_internal")


def _sites(model: Any) -> dict[int, Site]:
    """The site of every module that could call: id of the module → Site."""
    two = bool(getattr(model.config, "is_encoder_decoder", False))
    sites = {}
    for name, module in model.named_modules():
        parts = name.split(".")
        kind = "self"
        if _CROSS.search(parts[-1]) or any(_CROSS.search(part) for part in parts[-3:-1]):
            kind = "cross"
        elif two:
            kind = "decoder" if any(part.endswith("decoder") for part in parts) else "encoder"
        index = getattr(module, "layer_idx", None)
        if not isinstance(index, int):
            index = next((int(part) for part in parts if part.isdigit()), 0)
        sites[id(module)] = Site(name, kind, index)
    return sites


# --- the attention function --------------------------------------------------------------------------------------


def _attend(
    module: Any, query: Array, key: Array, value: Array, attention_mask: Array | None, **how: Any
) -> tuple[Array, Array | None]:
    """What transformers calls: query (batch, heads, n_q, d_k) → context (batch, n_q, heads, d_v), no weights."""
    watching = [session for session in _sessions if id(module) in session.sites]  # none, or several, nested
    asked = []
    for session in watching:
        _allowed(session.architecture, how)
        site = session.site(module)
        if session.wants(site):
            asked.append((session, site))
    given = call_of(module, query, key, value, attention_mask, **how) if asked else None
    call = given
    for session, site in asked:
        if session.change is not None and call is not None:
            call = session.change.call(site, call)
    context = None
    for session, site in asked:
        answer = None if call is None else session.visit(site, call)
        context = answer if context is None else context
    if context is None and call is not None and call is not given:
        context = attention.run(call).context  # (batch, heads, n_q, d_v)
    if context is None:
        context = fused(module, query, key, value, attention_mask, **how).transpose(1, 2)  # (batch, heads, n_q, d_v)
    for session, site in asked:
        if session.change is not None:
            context = session.change.context(site, context)
    return context.transpose(1, 2).contiguous(), None  # (batch, n_q, heads, d_v)


KNOWN = frozenset({"scaling", "dropout", "is_causal", "softcap", "s_aux", "sinks", "position_bias", "indices"})


def _allowed(name: str, how: dict[str, Any]) -> None:
    """Raise AttnctlError for a keyword that is given, and that nobody here knows the meaning of."""
    for keyword, value in how.items():
        if value is not None and keyword not in KNOWN and keyword not in HARMLESS:
            raise AttnctlError(
                f"{name} hands its attention the keyword {keyword!r}, which may change a score and which attnctl does not "
                "know: nothing is shown rather than something wrong"
            )


def call_of(
    module: Any,
    query: Array,
    key: Array,
    value: Array,
    attention_mask: Array | None,
    *,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Array | None = None,
    sinks: Array | None = None,
    position_bias: Array | None = None,
    indices: Array | None = None,
    **_: Any,
) -> Call:
    """The Call of what an architecture hands over; batch first, shapes as `attention.Call` has them.

    With no mask, the future is hidden as torch's fused kernel hides it: where the module is causal and there are several
    queries. Raises AttnctlError for a mask that differs from head to head.
    """
    n_q, n_k = query.shape[-2], key.shape[-2]
    mask, bias = _mask_and_bias(attention_mask, n_k)
    if indices is not None:  # sparse attention: the keys an indexer picked for each query, (batch, n_q, picked)
        picked = torch.zeros(indices.shape[0], n_q, n_k, dtype=torch.bool, device=query.device)  # (batch, n_q, n_k)
        picked = picked.scatter(-1, indices.long(), True)
        mask = picked if mask is None else mask & picked  # (batch, n_q, n_k)
    if position_bias is not None:
        position_bias = position_bias[..., :n_k]  # (1, heads, n_q, n_k)
    if position_bias is not None and bool(position_bias.any()):  # T5's cross attention is given one of zeros
        bias = position_bias if bias is None else position_bias + bias  # (batch, heads, n_q, n_k)
    sinks = s_aux if s_aux is not None else sinks
    if sinks is not None:
        sinks = sinks.reshape(-1)  # (heads,)
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    return Call(
        query,
        key,
        value,
        scale=None if scaling is None else float(scaling),
        soft_cap=softcap,
        bias=bias,
        causal=bool(is_causal) and attention_mask is None and n_q > 1,
        offset=0 if attention_mask is None and n_q > 1 else None,
        mask=mask,
        sinks=sinks,
    )


def _mask_and_bias(given: Array | None, n_k: int) -> tuple[Array | None, Array | None]:
    """A mask as models hand it over, (batch, 1 or heads, n_q, n_k), apart: what may be seen, and what is added."""
    if given is None:
        return None, None
    if given.ndim != 4:
        raise AttnctlError(
            f"a mask of {given.ndim} axes, {tuple(given.shape)}: attnctl reads (batch, 1, queries, keys)"
        )
    given = given[..., :n_k]  # a static cache's mask is longer than its keys
    shown, bias = given, None
    if given.dtype != torch.bool:
        shown = given > torch.finfo(given.dtype).min / 2  # (batch, 1 or heads, n_q, n_k)
        bias = torch.where(shown, given, torch.zeros_like(given))  # (batch, 1 or heads, n_q, n_k)
        bias = bias if bool(bias.any()) else None
    if shown.shape[1] > 1 and not bool((shown == shown[:, :1]).all()):
        raise AttnctlError(
            "this architecture hides different keys from different heads, which attnctl does not show yet"
        )
    return (None if bool(shown.all()) else shown[:, 0]), bias  # (batch, n_q, n_k)


def fused(module: Any, query: Array, key: Array, value: Array, attention_mask: Array | None, **how: Any) -> Array:
    """The context (batch, n_q, heads, d_v) by the fastest kernel that can; nothing is kept."""
    if any(how.get(name) is not None for name in ("softcap", "s_aux", "sinks", "indices")):
        call = call_of(module, query, key, value, attention_mask, **how)  # no fused kernel knows these
        return attention.run(call).context.transpose(1, 2).contiguous()  # (batch, n_q, heads, d_v)
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    passed = {name: how[name] for name in ("scaling", "is_causal", "position_bias") if name in how}
    context: Array = sdpa_attention_forward(module, query, key, value, attention_mask, **passed)[0]
    return context
