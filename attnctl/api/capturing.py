"""Define `attnctl.capture`: record the attention of any forward of a transformers model, and show it as a Trace."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from attnctl import attention
from attnctl.attention import Array, Attended, Call
from attnctl.checks.argument_types import check_network, check_types, checked_selection
from attnctl.checks.selection import chosen_indices
from attnctl.errors import AttnctlError, UsageError
from attnctl.layer import LayerTrace
from attnctl.layer.computed import share_of_sink
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
    layer_count,
    layers_recur,
    model_follows_interface,
    shares_modules,
    unseen_sentence,
)
from attnctl.models.huggingface.put_out import FIELDS, attentions_put_out, weights_put_out
from attnctl.runtime.arrays import as_numpy
from attnctl.text import number_list
from attnctl.text.tokens import Token, named_tokens
from attnctl.trace import Trace
from attnctl.trace.model_info import ModelInfo
from attnctl.trace.notes import SINK_NOTE, Note
from attnctl.trace.run import StopForward
from attnctl.trace.subject import Subject

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from attnctl.runtime.arrays import Bools


STEPS = ("queries", "keys", "values", "scores", "scaled_scores", "mask", "context")
NOTE = "Recorded from a model in the user's own code; the caller named the tokens."


@dataclass(frozen=True)
class Captured:
    """One call of attention as a model made it: torch tensors, batch first.

    `kind` is self, or for encoder-decoders encoder, decoder or cross; beside a text it is vision for pictures, audio
    for sound. `step` counts the forward calls (in generation one for each new token). An unknown field is None: a model
    outside transformers' attention interface gives only weights.
    """

    name: str
    kind: str
    layer: int
    heads: tuple[int, ...]
    step: int
    weights: Array  # (batch, heads, n_q, n_k)
    queries: Array | None = None  # (batch, heads, n_q, d_k), after RoPE
    keys: Array | None = None  # (batch, heads, n_k, d_k), as each head reads them
    values: Array | None = None  # (batch, heads, n_k, d_v)
    scores: Array | None = None  # (batch, heads, n_q, n_k)
    scaled_scores: Array | None = None  # (batch, heads, n_q, n_k)
    mask: Array | None = None  # (n_q, n_k) or (batch, n_q, n_k); None where every query sees every key
    context: Array | None = None  # (batch, heads, n_q, d_v)
    recurrence: int = 0  # how often the module has attended before in this forward, if a model repeats its layers
    model: str = ""  # the architecture
    rows: tuple[int, ...] | None = None  # the stored queries of the forward; None: all
    n_heads: int = 0  # of the layer
    n_queries: int = 0  # of the forward
    has_sink: bool = False  # a learned sink takes a part of each row

    def __repr__(self) -> str:
        steps = ", ".join(name for name in STEPS if getattr(self, name) is not None)
        where = f"{'' if self.kind == 'self' else f'{self.kind} '}layer {self.layer}, heads {number_list(self.heads)}"
        return f"Captured {where}, forward {self.step}: weights {tuple(self.weights.shape)}" + (
            f", {steps}" if steps else ""
        )

    def trace(
        self,
        tokens: Sequence[str] | None = None,
        *,
        key_tokens: Sequence[str] | None = None,
        attention_mask: Array | None = None,
        key_attention_mask: Array | None = None,
        item: int = 0,
    ) -> Trace:
        """Return this call as a Trace of one text of its batch: see `Captures.trace`."""
        masks = {"attention_mask": attention_mask, "key_attention_mask": key_attention_mask}
        return Captures([self]).trace(tokens, key_tokens=key_tokens, **masks, item=item, step=self.step)


class Captures(list[Captured]):
    """The list of calls that a capture recorded, with `trace()` to show them.

    After the context, `unseen` says which of the requested attention cannot be shown; it is empty if all can be shown.
    """

    unseen = ""

    def __repr__(self) -> str:
        if not self:
            return "Captures: nothing yet"
        layers = number_list(sorted({call.layer for call in self}))
        more = f"; {self.unseen}" if self.unseen else ""
        return f"Captures of {self[0].model or 'a model'}: {len(self)} calls, layers {layers}{more}"

    def trace(
        self,
        tokens: Sequence[str] | None = None,
        *,
        key_tokens: Sequence[str] | None = None,
        attention_mask: Array | None = None,
        key_attention_mask: Array | None = None,
        item: int = 0,
        step: int = 0,
        kind: str | None = None,
    ) -> Trace:
        """Return one text of the batch as a Trace, with `.figure()`, `.save()`, and its page in a notebook.

        `tokens` names every position (of cross attention the queries, `key_tokens` the keys); without names, tokens are
        numbered. An `attention_mask` (batch, n), 0 for padding, leaves the padding out; `key_attention_mask` does so for the
        keys of cross attention. Positions after the mask's are no padding.

        `item` is the index of the text in the batch, `step` the index of the forward; `kind` is required if several kinds
        of attention were recorded. Raises UsageError if no such call was recorded, or the names do not
        fit.
        """
        check_types("trace", int, item=item, step=step)
        check_types("trace", str | None, kind=kind)
        calls = _calls_of_step(self, step, kind, self.unseen)
        first = calls[0]
        batch, _, n_q, n_k = first.weights.shape
        if not -batch <= item < batch:
            raise UsageError(f"no text {item} in this batch: it has {batch}")
        for call in calls:
            if call.weights.shape[-2:] != (n_q, n_k):
                raise UsageError(
                    f"layer {call.layer} has {call.weights.shape[-2]} queries and {call.weights.shape[-1]} keys, layer "
                    f"{first.layer} {n_q} and {n_k}, and a trace has the same tokens in all layers: give one call"
                )
        cross = first.kind == "cross"
        query_rows = first.rows if first.rows is not None else tuple(range(n_q))
        start = 0 if cross else max(n_k - first.n_queries, 0)  # tokens read in earlier forwards
        rows = tuple(start + row for row in query_rows)
        named = _tokens_for("tokens", tokens, first.n_queries if cross else n_k)
        columns = _tokens_for("key_tokens", key_tokens, n_k) if cross else None
        whole = rows == tuple(range(len(named)))
        layers = tuple(_layer_of_call(call, item, None if whole else rows) for call in calls)
        real = _real_positions("attention_mask", attention_mask, item, len(named))
        real_keys = real
        if cross:
            real_keys = _real_positions("key_attention_mask", key_attention_mask, item, n_k)
        elif key_attention_mask is not None:
            raise UsageError("key_attention_mask is for cross attention, whose keys are another text's")
        if not (real.all() and real_keys.all()):
            layers = tuple(_without_padding(layer, real, real_keys) for layer in layers)
            named = tuple(named_tokens([token.text for token, keeps in zip(named, real, strict=True) if keeps]))
            if columns is not None:
                columns = tuple(token for token, keeps in zip(columns, real_keys, strict=True) if keeps)
        info = ModelInfo(
            first.model or "model",
            "checkpoint",
            n_heads=max(call.n_heads for call in calls),
            n_layers=max(call.layer for call in calls) + 1,
            dtype=str(first.weights.dtype).removeprefix("torch."),
        )
        text = " ".join(token.text for token in named)
        notes = (NOTE, *(SINK_NOTE,) * any(call.has_sink for call in calls))
        notes += _nan_notes(calls, item)
        notes += (f"{self.unseen[0].upper()}{self.unseen[1:]}.",) if self.unseen else ()
        return Trace(Subject(text, named, info, columns, notes=notes), layers)


def _calls_of_step(calls: Sequence[Captured], step: int, kind: str | None, unseen: str) -> list[Captured]:
    """Return one call for each layer, of one forward and kind. Raises UsageError if there is none, or several."""
    kinds = sorted({call.kind for call in calls})
    if not calls:
        raise UsageError("nothing was captured: run the model within the context")
    if kind is None and len(kinds) > 1:
        raise UsageError(f"several kinds of attention were captured: kind is one of {', '.join(kinds)}")
    if kind is not None and kind not in kinds:
        raise UsageError(f"no {kind} attention was captured: {unseen or 'there is ' + ', '.join(kinds)}")
    of_step = [call for call in calls if call.step == step and call.kind == (kind or kinds[0])]
    if not of_step:
        raise UsageError(f"no forward {step} was captured: there are {max(call.step for call in calls) + 1}")
    by_layer: dict[int, Captured] = {}
    for call in of_step:
        if call.layer in by_layer:
            raise UsageError(
                f"layer {call.layer} attended several times in one forward, and a trace holds one: give one call"
            )
        by_layer[call.layer] = call
    return [by_layer[layer] for layer in sorted(by_layer)]


def _tokens_for(name: str, names: Sequence[str] | None, count: int) -> tuple[Token, ...]:
    """Return tokens with these names, or numbered tokens without names.

    Raises TypeError for anything but names, UsageError if their number is not `count`.
    """
    if names is None:
        return tuple(named_tokens([str(index) for index in range(count)]))
    if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(item, str) for item in names):
        raise TypeError(f"trace(): {name} is a list of str, a name for each token, not {type(names).__name__}")
    if len(names) != count:
        raise UsageError(f"{name} has {len(names)} names for {count} positions")
    return tuple(named_tokens(names))


def _layer_of_call(call: Captured, item: int, rows: tuple[int, ...] | None) -> LayerTrace:
    """Return one text of a call as a layer of a trace."""
    arrays: dict[str, Array] = {
        name: as_numpy(value[item].float())
        for name in STEPS
        if name != "mask" and (value := getattr(call, name)) is not None
    }
    mask: Bools | None = None  # where every query sees every key
    if call.mask is not None:
        visible = (call.mask if call.mask.ndim == 2 else call.mask[item]).cpu().numpy().astype(bool)  # (1 or n_q, n_k)
        mask = None if visible.all() else np.broadcast_to(visible, call.weights.shape[-2:])  # (n_q, n_k)
    weights = as_numpy(call.weights[item].float())  # (heads, n_q, n_k)
    missing = np.isnan(weights).all(-1)  # (heads, n_q)
    if missing.any():
        arrays = {name: array for name, array in arrays.items() if name == "context" or np.isfinite(array).all()}
        weights = np.where(missing[..., None], np.float32(0), weights)
        if "context" in arrays:
            arrays["context"] = np.where(missing[..., None], np.float32(0), arrays["context"])
        seen = np.ones(weights.shape[-2:], bool) if mask is None else mask  # (n_q, n_k)
        mask = seen & ~missing.all(0)[:, None]
    if call.has_sink:
        arrays["sink_weights"] = share_of_sink(weights)
    return LayerTrace(call.layer, call.heads, call.heads, weights=weights, rows=rows, mask=mask, **arrays)


def _nan_notes(calls: Sequence[Captured], item: int) -> tuple[Note, ...]:
    """Return a note about the rows of one text of a batch that are NaN in the model; () without any."""
    layers = [call.layer for call in calls if bool(call.weights[item].isnan().any())]
    if not layers:
        return ()
    where = f"layer{'s' * (len(layers) > 1)} {number_list(layers)}"
    sentence = f"The model itself gave NaN in rows of {where}: they are shown as rows that see nothing."
    return (Note(sentence, "unseen"),)


def _real_positions(name: str, mask: Array | None, item: int, n: int) -> Bools:
    """Return which of n positions of a text of the batch are no padding → (n,).

    Raises TypeError for a mask that is no array (batch, positions), UsageError for one that has more than n positions, or
    marks none of them.
    """
    real = np.ones(n, bool)
    if mask is None:
        return real
    marks = np.asarray(mask.cpu() if isinstance(mask, torch.Tensor) else mask)
    if marks.ndim != 2 or marks.dtype.kind not in "biuf":
        raise TypeError(f"trace(): {name} is an array (batch, positions), not of shape {marks.shape}")
    if not -len(marks) <= item < len(marks) or marks.shape[1] > n:
        raise UsageError(f"{name} has shape {marks.shape}: this is text {item}, of {n} positions")
    real[: marks.shape[1]] = marks[item] != 0
    if not real.any():
        raise UsageError(f"{name} says that all {n} positions of text {item} are padding")
    return real


def _without_padding(layer: LayerTrace, queries: Bools, keys: Bools) -> LayerTrace:
    """Return a layer with some queries (n,) and some keys (n_k,) of its text alone."""
    rows = range(len(queries)) if layer.rows is None else layer.rows
    kept = {"rows": [place for place, row in enumerate(rows) if queries[row]], "keys": np.flatnonzero(keys).tolist()}
    arrays = {}
    for array, value in layer.field_arrays():
        first = 1 if array.level == "head" else 0  # axes of the heads
        for axis, name in enumerate(array.axes, first):
            value = value.take(kept[name], axis) if name in kept else value
        arrays[array.name] = value
    mask = arrays.get("mask")
    arrays |= {} if mask is None or not mask.all() else {"mask": None}
    numbers = np.cumsum(queries) - 1  # (n,), the number of each query among those that are kept
    numbered = None if layer.rows is None else tuple(int(numbers[row]) for row in rows if queries[row])
    return replace(layer, rows=numbered, **arrays)


@contextmanager
def capture(
    model: PreTrainedModel,
    layer: int | Sequence[int] | None = None,
    head: int | Sequence[int] | None = None,
    *,
    rows: int | Sequence[int] | None = None,
    attention: str | None = None,
    keep: Sequence[str] = STEPS,
    stop: bool = False,
    grad: bool = False,
) -> Iterator[Captures]:
    """Record the attention of any transformers model in every forward or generate call within the context.

    >>> with attnctl.capture(model, layer=13, head=8) as traces:  # doctest: +SKIP
    ...     model(**inputs)
    >>> traces[0].weights.shape  # doctest: +SKIP
    torch.Size([1, 1, 6, 6])
    >>> traces.trace(tokens).figure().savefig("grid.png")  # doctest: +SKIP

    `layer`, `head` and query `rows` select what is kept (None: all; negative counts from the end), `attention` picks
    encoder, decoder or cross, `keep` names the steps to keep beside the weights. Other layers run on torch's fused
    kernel. With `stop`, the forward and this context end after the last call that is needed, so the model computes
    nothing more. A model that shares its layers, or whose calls cannot be known in advance, runs to its end. An
    architecture outside transformers' attention interface must be loaded with attn_implementation="eager"; only its
    weights are kept. Each thread with a context records its own forwards; a forward in a thread without a context goes
    to all contexts. If some of the requested attention cannot be shown, a warning, `traces.unseen` and the trace's
    notes say so. Raises UsageError for a layer or head that does not exist, AttnctlError as `watch_attention` does.

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
    check_network("capture", model)
    check_types("capture", str | None, attention=attention)
    check_types("capture", bool, stop=stop, grad=grad)
    if isinstance(keep, str) or not isinstance(keep, Collection):
        raise TypeError(f"capture(): keep is a list of steps, not {type(keep).__name__}: {repr(keep)[:80]}")
    some_layers = checked_selection("capture", "layer", layer)
    some_heads = checked_selection("capture", "head", head)
    some_rows = checked_selection("capture", "rows", rows)
    if attention not in (None, "encoder", "decoder", "cross"):
        raise UsageError(f"no attention {attention!r}: it is encoder, decoder or cross")
    if unknown := sorted(str(name) for name in keep if name not in STEPS):
        raise UsageError(f"no step {unknown[0]!r} to keep: the steps are {', '.join(STEPS)}")
    inside = model_follows_interface(model)
    if grad and not inside and (head is not None or rows is not None):
        why = f"cannot be combined with grad=True for {architecture_name(model)}, whose weights are its output: choose later"
        raise UsageError(why, option="head" if head is not None else "rows")
    if not (grad and inside):
        check_inference(model)
    recording = _Recording(
        model, architecture_name(model), some_layers, some_heads, some_rows, attention, frozenset(keep), grad
    )
    with recording.record_calls(stop) if inside else recording.record_outputs():
        yield recording.traces
    if recording.traces.unseen:
        warnings.warn(f"{recording.name}: {recording.traces.unseen}", stacklevel=3)


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

    def see_own(self, site: Site, context: Array, weights: Array | None) -> None:
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
        fields |= {"recurrence": site.recurrence, "model": self.name, "rows": rows}
        fields |= {"n_heads": whole[0], "n_queries": whole[1]}
        self.traces.append(
            Captured(
                site.name, site.kind, site.layer, heads, site.step, weights if self.grad else weights.detach(), **fields
            ),
        )

    # --- outside it ---

    @contextmanager
    def record_outputs(self) -> Iterator[None]:
        """Keep the weights that the model itself puts out under eager, forward by forward, within the context."""
        if not attention_modules(self.model):
            raise AttnctlError(f"{self.name} has no attention: no part of it is named so")
        if any(config._attn_implementation_internal != "eager" for config in attention_configurations(self.model)):
            raise AttnctlError(
                f"{self.name} attends in code of its own, which shows its weights only under eager: load it with "
                'attn_implementation="eager"'
            )
        steps, keys = itertools.count(), dict[str, int]()  # kind → number of keys at the step before

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
            yield
        kinds = {kind for kind, count in self.layers_by_kind.items() if count and self.selects_kind(kind)}
        if keys and (lost := sorted(kinds - keys.keys())):
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
