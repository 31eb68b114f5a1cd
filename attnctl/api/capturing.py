"""Define `attnctl.capture`: record the attention of any forward of a torch model, and show it as a Trace."""

from __future__ import annotations

import inspect
import itertools
import math
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import torch

from attnctl import attention
from attnctl.api.captures import STEPS, Captured, Captures
from attnctl.api.generation import watch_cache
from attnctl.api.module_recording import ModuleRecording, Selection
from attnctl.attention import Array, Attended, Call
from attnctl.checks.argument_types import check_module, check_types, checked_selection, is_network
from attnctl.checks.selection import chosen_indices
from attnctl.errors import AttnctlError, UsageError
from attnctl.models.huggingface.attention_call import Answer
from attnctl.models.huggingface.attention_interface import (
    WatchOptions,
    architecture_name,
    attention_configurations,
    check_inference,
    watch_attention,
    watching,
)
from attnctl.models.huggingface.attention_sites import (
    Output,
    Site,
    attention_modules,
    attention_sites,
    follows_interface,
    is_wrapped,
    layer_count,
    layers_recur,
    model_follows_interface,
    shares_modules,
    sites_of_modules,
    transformers_parts,
    unseen_sentence,
)
from attnctl.models.huggingface.put_out import FIELDS, attentions_put_out, weights_put_out
from attnctl.trace.run import StopForward

if TYPE_CHECKING:
    from torch.nn import Module
    from transformers import PreTrainedModel


@contextmanager
def capture(
    model: Module,
    layer: int | Sequence[int] | None = None,
    head: int | Sequence[int] | None = None,
    *,
    rows: int | Sequence[int] | None = None,
    attention: str | None = None,
    keep: Sequence[str] = STEPS,
    stop: bool = False,
    grad: bool = False,
) -> Iterator[Captures]:
    """Record the attention of any torch module in every forward or generate call within the context.

    >>> with attnctl.capture(model, layer=13, head=8) as traces:  # doctest: +SKIP
    ...     model(**inputs)
    >>> traces[0].weights.shape  # doctest: +SKIP
    torch.Size([1, 1, 6, 6])
    >>> traces.trace(tokens).figure().savefig("grid.png")  # doctest: +SKIP

    A transformers model is read through transformers' attention interface. Of any other module each function of torch is
    seen while it runs: the weights of `scaled_dot_product_attention` and `flex_attention` are computed again and held
    against the kernel's own result, a softmax that the model writes out is the model's own tensor. Its `layer` is the n-th
    attention of its kind (self, or cross where the keys come from another tensor) in the order of first calls, `name` its
    module, `way` says how it was read, and `traces.report` sums that up. If none is seen, the error says what was looked
    for.

    `layer`, `head` and query `rows` select what is kept (None: all; negative counts from the end), `attention` picks
    self, encoder, decoder or cross, `keep` names the steps to keep beside the weights. Other layers run on torch's fused
    kernel. With `stop`, the forward and this context end after the last call that is needed, so the model computes
    nothing more. A model that shares its layers, or whose calls cannot be known in advance, runs to its end. An
    architecture outside transformers' attention interface gives only its weights under attn_implementation="eager"; under
    another one it is read as any torch module. Each thread with a context records its own forwards; a forward in a thread
    without a context goes to all contexts. If some of the requested attention cannot be shown, a warning, `traces.unseen`
    and the trace's notes say so. A four-dimensional mask of true and false, which eager attention adds to the scores as 1
    and 0, is shown as it is added, with a warning that it hides nothing. Raises UsageError for a layer or head that does
    not exist, AttnctlError as `watch_attention` does.

    With `grad`, gradients flow through what is kept, for a loss on the attention. The model computes its context from the
    kept weights, so after `backward()` `weights.grad` is the gradient of the loss (gradient × attention), also in a frozen
    model. Output and gradients stay those of eager attention. In training mode the weights are those before dropout, which
    follows as in eager attention, from the same random numbers. Refused are torch.no_grad, gradient checkpointing, and
    outside the interface dropout, `head` and `rows`. A model that torch.compile compiled runs uncompiled in the context.
    This trains a head to look at the token before:

    >>> import torch
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=100))
    >>> optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    >>> ids = torch.randint(100, (4, 12))
    >>> for step in range(50):
    ...     with attnctl.capture(model, layer=1, head=0, grad=True) as traces:
    ...         output = model(ids, labels=ids)
    ...     before = traces[0].weights.diagonal(-1, dim1=-2, dim2=-1)  # of each query on the token before it
    ...     loss = output.loss - before.clamp_min(1e-9).log().mean()
    ...     loss.backward()
    ...     optimizer.step()
    ...     optimizer.zero_grad()
    >>> bool(before.mean() > 0.8)
    True
    """
    check_module("capture", model)
    check_types("capture", str | None, attention=attention)
    check_types("capture", bool, stop=stop, grad=grad)
    if isinstance(keep, str) or not isinstance(keep, Collection):
        raise TypeError(f"capture(): keep is a list of steps, not {type(keep).__name__}: {repr(keep)[:80]}")
    some_layers = checked_selection("capture", "layer", layer)
    some_heads = checked_selection("capture", "head", head)
    some_rows = checked_selection("capture", "rows", rows)
    if attention not in (None, "self", "encoder", "decoder", "cross"):
        raise UsageError(f"no attention {attention!r}: it is self, encoder, decoder or cross")
    if unknown := sorted(str(name) for name in keep if name not in STEPS):
        raise UsageError(f"no step {unknown[0]!r} to keep: the steps are {', '.join(STEPS)}")
    chosen = Selection(some_layers, some_heads, some_rows, attention, frozenset(keep), grad, stop)
    traces = Captures()
    parts = transformers_parts(model)
    if parts and is_network(model) and _shows_itself(model) and not is_wrapped(model):
        recorded = _record_network(model, chosen, traces)
    else:
        recorded = _record_module(model, parts, chosen, traces)
    with recorded, watch_cache(model, traces.beginnings):
        yield traces
    if traces.unseen:
        warnings.warn(f"{architecture_name(model)}: {traces.unseen}", stacklevel=3)


def _shows_itself(model: PreTrainedModel) -> bool:
    """Return whether a transformers model follows the interface, or puts out its weights because it runs under eager.

    A model of another library that inherits from transformers' classes may take no `output_attentions`, or no `return_dict`,
    which a decorator of transformers takes in a forward's place.
    """
    if model_follows_interface(model):
        return True
    eager = all(config._attn_implementation_internal == "eager" for config in attention_configurations(model))
    return (
        eager
        and _takes("output_attentions", inspect.signature(model.forward))
        and _takes("return_dict", inspect.signature(model.forward, follow_wrapped=False))
    )


def _takes(keyword: str, signature: inspect.Signature) -> bool:
    parameters = signature.parameters
    return keyword in parameters or any(part.kind is part.VAR_KEYWORD for part in parameters.values())


def _record_network(model: PreTrainedModel, chosen: Selection, traces: Captures) -> AbstractContextManager[None]:
    """Return a context that records the calls of a transformers model."""
    inside = model_follows_interface(model)
    if chosen.grad and not inside and (chosen.heads is not None or chosen.rows is not None):
        why = f"cannot be combined with grad=True for {architecture_name(model)}, whose weights are its output: choose later"
        raise UsageError(why, option="head" if chosen.heads is not None else "rows")
    if not (chosen.grad and inside):
        check_inference(model)
    recording = _recording_of(model, chosen, traces)
    return recording.record_calls(chosen.stop) if inside else recording.record_outputs()


@contextmanager
def _record_module(
    model: Module, parts: dict[str, PreTrainedModel], chosen: Selection, traces: Captures
) -> Iterator[None]:
    """Record the calls of a module; transformers models within it are read through transformers' interface.

    Their layers come first; those of the module's other parts are numbered after them. Modules of other packages that wrap
    attention within a transformers model are other parts, too.
    """
    if chosen.stop and min(chosen.layers or (0,)) < 0:
        why = "the layers of a torch module are known only after they ran: count from 0 with stop=True"
        raise UsageError(why, option="layer", value=min(chosen.layers or ()))
    following = {name: part for name, part in parts.items() if model_follows_interface(part)}
    offsets: dict[str, int] = {}
    for part in following.values():
        for kind in FIELDS:
            offsets[kind] = offsets.get(kind, 0) + layer_count(part, kind)
    module = ModuleRecording(model, chosen, traces, offsets)
    with ExitStack() as stack:
        for name, part in following.items():
            recording = replace(
                _recording_of(part, chosen, traces), prefix=name and f"{name}.", whole=architecture_name(model)
            )
            stack.enter_context(recording.record_calls(stop=False))
        seen = [
            module
            for part in following.values()
            for module in (attention_modules(part).values() if is_wrapped(part) else [part])
        ]
        with module.record(frozenset(map(id, seen))) as watched:
            yield
    traces.unseen = module.finish(watched, others=any(call.way == "interface" for call in traces))


def _recording_of(model: PreTrainedModel, chosen: Selection, traces: Captures) -> _Recording:
    name, kind = architecture_name(model), None if chosen.attention == "self" else chosen.attention
    return _Recording(model, name, chosen.layers, chosen.heads, chosen.rows, kind, chosen.keep, chosen.grad, traces)


@dataclass
class _Recording:
    """What a capture selects, and what it has recorded."""

    model: PreTrainedModel
    name: str
    layers: Sequence[int] | None
    heads: Sequence[int] | None
    rows: Sequence[int] | None
    attention: str | None
    keep: frozenset[str]
    grad: bool
    traces: Captures = field(default_factory=Captures)
    prefix: str = ""  # of the modules' names, if the model is a part of another module
    whole: str = ""  # that other module
    own: Answer | None = None  # what the model's own function gave for the call that is seen

    def selects_kind(self, kind: str) -> bool:
        return self.attention is None or kind == self.attention

    def selects_layer(self, index: int, count: int) -> bool:
        return self.layers is None or index in self.layers or (index < count and index - count in self.layers)

    def selects_site(self, site: Site) -> bool:
        return self.selects_kind(site.kind) and self.selects_layer(site.layer, self.layers_by_kind[site.kind])

    @cached_property
    def layers_by_kind(self) -> dict[str, int]:
        """Return the number of layers of each kind."""
        return {kind: layer_count(self.model, kind) for kind in FIELDS}

    def check_layers(self, layers: set[int], silent: Sequence[str] = ()) -> None:
        """Raise an error if no attention was seen, or a requested layer was not."""
        if self.whole:
            return  # other parts may have it
        if not layers:
            kind = f"{self.attention} attention" if self.attention else "attention"
            why = f"{silent[0]} attends in code of its own" if silent else "it has none, or calls it in its own way"
            raise AttnctlError(f"no {kind} of {self.name} was recorded: {why}")
        for index in self.layers or ():
            if index not in layers and (index >= 0 or index < -1 - max(layers)):
                why = f"the attention of {self.name} was recorded in layers {min(layers)} to {max(layers)}"
                raise UsageError(why, option="layer", value=index)

    def selected_parts(self, layer: int, n_heads: int, n_q: int) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
        """Return the heads and queries of a call to keep (None: all queries). Raises UsageError if one does not exist."""
        heads = chosen_indices(self.heads, n_heads, "head", f"layer {layer} of {self.name}")
        return heads, None if self.rows is None else chosen_indices(self.rows, n_q, "row", "this call", "rows")

    # --- inside transformers' interface ---

    @contextmanager
    def record_calls(self, stop: bool) -> Iterator[None]:
        """Record the calls of attention within the context; with `stop`, leave the forward after the last one needed."""
        missing: set[Site] = set()
        if stop and not (shares_modules(self.model) or layers_recur(self.model)):  # the order of calls is known
            sites = [site for kind in FIELDS for site in attention_sites(self.model, kind).items()]
            missing = {site for site, module in sites if self.selects_site(site) and follows_interface(module)}
        stop = bool(missing)

        def see_call(site: Site, call: Call) -> Array | None:
            context = self.keep_call(site, call)
            missing.discard(site)
            if stop and not missing:
                raise StopForward
            return context

        options = WatchOptions(differentiable=True) if self.grad else WatchOptions(own=self.see_own)
        with watch_attention(self.model, see_call, self.selects_site, options) as session:
            with suppress(StopForward):
                yield
            if session.ran or session.called:
                silent = {site: name for site, name in session.silent.items() if self.selects_kind(site.kind)}
                self.check_layers({s.layer for s in session.called if self.selects_kind(s.kind)}, list(silent.values()))
                self.traces.unseen = unseen_sentence({s: name for s, name in silent.items() if self.selects_site(s)})

    def see_own(self, site: Site, call: Call, context: Array, weights: Array | None) -> None:
        """Note what the model's own function gave: context (batch, n_q, heads, d_v), and weights if it returns them."""
        self.own = context, weights

    def missing_rows(self, heads: tuple[int, ...], rows: tuple[int, ...] | None) -> Array | None:
        """Return which rows of the call are NaN in the model → (batch, chosen heads, rows, 1); None if none is."""
        if self.own is None or bool(self.own[0].isfinite().all()):
            return None
        context, weights = self.own
        is_whole = isinstance(weights, torch.Tensor) and weights.ndim == 4 and weights.shape[2] == context.shape[1]
        missing = (
            (weights if is_whole and weights is not None else context.transpose(1, 2)).isnan().all(-1, keepdim=True)
        )
        missing = missing[:, list(heads)]  # (batch, chosen, n_q, 1)
        return missing if rows is None else missing[:, :, list(rows)]

    def keep_call(self, site: Site, call: Call) -> Array | None:
        """Compute and keep one call; return its context if all heads and queries were computed, else None."""
        n_heads = call.queries.shape[-3]
        heads, rows = self.selected_parts(site.layer, n_heads, call.n_q)
        whole = rows is None and len(heads) == n_heads
        narrow = call if whole else attention.select_call(call, list(heads), None if rows is None else list(rows))
        if self.grad:
            self.check_gradients()
            steps, context = attend_by_kept_weights(call, narrow, heads, rows)
        else:
            steps = attention.run_call(narrow)
            if (missing := self.missing_rows(heads, rows)) is not None:  # (batch, chosen, rows, 1)
                weights, context = (part.masked_fill(missing, math.nan) for part in (steps.weights, steps.context))
                steps = steps._replace(weights=weights, context=context)
            context = steps.context if whole else None
        arrays = {name: getattr(steps, name) for name in ("scores", "scaled_scores", "mask", "context")}
        arrays["queries"] = narrow.queries
        # copies, because the cache is overwritten when a text grows
        for name in {"keys", "values"} & self.keep:
            cached = getattr(narrow, name)
            shared = attention.share_heads(cached, len(heads))  # (batch, heads, n_k, d)
            arrays[name] = shared.clone() if shared is cached else shared
        selected = {name: array for name, array in arrays.items() if array is not None and name in self.keep}
        if not self.grad:
            selected = {name: array.detach() for name, array in selected.items()}
        self.keep_weights(
            site, heads, rows, steps.weights, (n_heads, call.n_q), has_sink=call.sinks is not None, **selected
        )
        return context

    def check_gradients(self) -> None:
        """Raise AttnctlError if no gradients flow through the forward, or if it runs layers again in the backward pass."""
        if not torch.is_grad_enabled():
            raise AttnctlError(
                f"{self.name} runs without gradients (torch.no_grad, or generate), and grad=True keeps them: call the model "
                "with gradients, or leave out grad=True"
            )
        if self.model.training and self.model.is_gradient_checkpointing:
            raise AttnctlError(
                f"{self.name} uses gradient checkpointing, which computes other weights in the backward pass: call "
                "model.gradient_checkpointing_disable()"
            )

    def keep_weights(
        self,
        site: Site,
        heads: tuple[int, ...],
        rows: tuple[int, ...] | None,
        weights: Array,
        whole: tuple[int, int],
        **fields: Array,
    ) -> None:
        """Keep the weights of the chosen heads and queries of a call, with the other `fields` that are known.

        `whole` is the number of heads and of queries in the whole call.
        """
        fields |= {"recurrence": site.recurrence, "model": self.whole or self.name, "rows": rows}
        fields |= {"n_heads": whole[0], "n_queries": whole[1]}
        self.traces.append(
            Captured(
                f"{self.prefix}{site.name}",
                site.kind,
                site.layer,
                heads,
                site.step,
                weights if self.grad else weights.detach(),
                **fields,
            ),
        )

    # --- outside it ---

    @contextmanager
    def record_outputs(self) -> Iterator[None]:
        """Keep the weights that the model itself puts out under eager, forward by forward, within the context."""
        if not attention_modules(self.model):
            raise AttnctlError(f"{self.name} has no attention: no part of it is named so")
        steps, keys = itertools.count(), dict[str, int]()  # kind → number of keys at the step before
        ran: set[str] = set()  # kinds: a decoder without an encoder's output leaves its cross attention out

        def ask_for_weights(
            _: object, args: tuple[object, ...], keywords: dict[str, object]
        ) -> tuple[tuple[object, ...], dict[str, object]]:
            check_inference(self.model)
            if self.grad:
                self.check_gradients()
            return args, keywords | {"output_attentions": True, "return_dict": True}

        with ExitStack() as stack:
            stack.enter_context(watching())
            stack.callback(self.model.register_forward_pre_hook(ask_for_weights, with_kwargs=True).remove)
            hook = self.model.register_forward_hook(lambda _, __, output: self.keep_output(output, next(steps), keys))
            stack.callback(hook.remove)
            sites = sites_of_modules(self.model)
            for module in attention_modules(self.model).values():
                kinds = {site.kind for site in sites.get(id(module), ())}
                stack.callback(module.register_forward_pre_hook(lambda _, __, kinds=kinds: ran.update(kinds)).remove)
            yield
        if keys and (lost := sorted(kind for kind in ran - keys.keys() if self.selects_kind(kind))):
            self.traces.unseen = f"its {' and '.join(lost)} attention is not shown: no forward put out its weights"

    def keep_output(self, output: Output, step: int, keys: dict[str, int]) -> None:
        """Keep the weights in a model's output. Raises AttnctlError if it has none, or something else in their place."""
        counts = {kind: len(attentions_put_out(output, kind)) for kind in FIELDS if self.selects_kind(kind)}
        if not any(counts.values()):
            raise AttnctlError(f"{self.name} puts out no attention weights: it attends in a way that tells none")
        for kind, count in counts.items():
            if not count:
                continue
            self.check_layers(set(range(count)))
            selects, cached = partial(self.selects_layer, count=count), keys.get(kind, 0)
            by_layer = weights_put_out(self.model, output, kind, self.name, cached, selects)
            keys[kind] = max((min(part.shape[3], cached + part.shape[2]) for part in by_layer.values()), default=0)
            for layer, weights in by_layer.items():
                n_heads, n_q = weights.shape[1:3]
                heads, rows = self.selected_parts(layer, n_heads, n_q)
                if self.grad:
                    self.check_path(weights, attentions_put_out(output, kind)[layer])
                    weights.retain_grad()
                whole = heads == tuple(range(n_heads))  # then the tensor itself, which holds its gradient
                part = weights if whole else weights[:, list(heads)]
                part = part if rows is None else part[:, :, list(rows)]
                self.keep_weights(Site("", kind, layer, step=step), heads, rows, part, (n_heads, n_q))

    def check_path(self, weights: Array, put_out: Array | None) -> None:
        """Raise AttnctlError if the gradients of the output do not reach these weights of a model outside the interface."""
        if not weights.requires_grad:
            raise AttnctlError(
                f"no gradients flow to the weights of {self.name}: its parameters are frozen, or it computes them without"
            )
        if weights is not put_out:
            raise AttnctlError(
                f"{self.name} puts out other numbers, from which its weights follow: no gradient of its output reaches them"
            )


def attend_by_kept_weights(
    call: Call, narrow: Call, heads: tuple[int, ...], rows: tuple[int, ...] | None
) -> tuple[Attended, Array]:
    """Compute a call with a context from the kept weights, which are the weights of some `heads` and query `rows`.

    Return the steps of these (`narrow` is their call; rows None: all), and the context (batch, heads, n_q, d_v) of the whole
    call, after its dropout. The weights keep their gradient in `.grad`, even if nothing before them needs one.
    """
    n_heads, device = call.queries.shape[-3], call.queries.device
    steps = attention.run_call(replace(call, values=call.values[..., :0]))  # the context comes later
    in_heads = torch.tensor(heads, device=device)[:, None]  # (chosen, 1)
    in_rows = torch.tensor(range(call.n_q) if rows is None else rows, device=device)  # (rows,)
    weights = steps.weights  # (batch, heads, n_q, n_k)
    kept = weights if narrow is call else weights[:, in_heads, in_rows]  # (batch, chosen, rows, n_k)
    if kept.requires_grad:
        kept.retain_grad()
    else:
        kept.requires_grad_()
    if narrow is not call:
        weights = weights.clone()
        weights[:, in_heads, in_rows] = kept
    used = torch.nn.functional.dropout(weights, call.dropout) if call.dropout else weights  # as eager attention does
    context = attention.context(used, attention.share_heads(call.values, n_heads))  # (batch, heads, n_q, d_v)
    scores, scaled_scores, of_rows = (
        array if narrow is call else array[:, in_heads, in_rows]
        for array in (steps.scores, steps.scaled_scores, context)
    )
    return Attended(scores, scaled_scores, attention.visible_keys(narrow), kept, None, of_rows), context
