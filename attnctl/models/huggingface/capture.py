"""`capture`: the attention of any forward of a transformers model, recorded as its layers compute it, and as a Trace."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from attnctl import attention
from attnctl.argument_types import check_network, checked, checked_selection, chosen_indices
from attnctl.attention import Array, Call
from attnctl.errors import AttnctlError, UsageError
from attnctl.layer import LayerTrace, StopForward
from attnctl.layer.computed import share_of_sink
from attnctl.models.huggingface.attention_call import check_weights, key_counts, weights_of_layers
from attnctl.models.huggingface.attention_interface import (
    architecture_name,
    check_inference,
    model_follows_interface,
    watch_attention,
)
from attnctl.models.huggingface.attention_session import (
    Site,
    WatchSession,
    attention_configurations,
    attention_modules,
    layer_count,
    uncompiled,
    unseen_sentence,
)
from attnctl.readings.traces.trace import SINK_NOTE, ModelInfo, Trace
from attnctl.text import number_list
from attnctl.tokens import Token, named_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from attnctl.arrays import Bools, Floats
    from attnctl.models.huggingface.attention_session import Output


STEPS = ("queries", "keys", "values", "scores", "scaled_scores", "mask", "context")
NOTE = "Recorded from a model in code of its own; the tokens are named by the caller."


@dataclass(frozen=True)
class Captured:
    """One call of attention, as a model made it; torch tensors where the model has them, batch first.

    `kind` is self, or for encoder-decoders encoder, decoder or cross; `step` counts the forward calls (one a new token
    in generation). What is not known is None: a model outside transformers' attention interface gives only weights.
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
    recurrence: int = 0  # how often the module has attended before in this forward, where a model repeats its layers
    model: str = ""  # the architecture
    rows: tuple[int, ...] | None = None  # which of the forward's queries were kept; None: all
    n_heads: int = 0  # of the layer
    n_queries: int = 0  # of the forward
    has_sink: bool = False  # a learned sink takes a part of each row

    def __repr__(self) -> str:
        kept = ", ".join(name for name in STEPS if getattr(self, name) is not None)
        where = f"{'' if self.kind == 'self' else f'{self.kind} '}layer {self.layer}, heads {number_list(self.heads)}"
        return f"Captured {where}, forward {self.step}: weights {tuple(self.weights.shape)}" + (
            f", {kept}" if kept else ""
        )

    def trace(self, tokens: Sequence[str] | None = None, **how: Any) -> Trace:
        """This call as a Trace of one text of its batch: see `Captures.trace`."""
        return Captures([self]).trace(tokens, **({"step": self.step} | how))


class Captures(list[Captured]):
    """What a capture recorded: a list of its calls, and `trace()` of them.

    `unseen` says, once the context is left, which of the attention asked for cannot be shown; empty where all was.
    """

    unseen = ""

    def __repr__(self) -> str:
        if not self:
            return "Captures: nothing yet"
        layers = number_list(sorted({call.layer for call in self}))
        more = f"; {self.unseen}" if self.unseen else ""
        return f"Captures of {self[0].model or 'a model'}: {len(self)} calls, layers {layers}{more}"

    @checked
    def trace(
        self,
        tokens: Sequence[str] | None = None,
        *,
        key_tokens: Sequence[str] | None = None,
        item: int = 0,
        step: int = 0,
        kind: str | None = None,
    ) -> Trace:
        """One text of the batch as a Trace, with `.figure()`, `.save()`, and its page in a notebook; tokens without names
        are numbered.

        `tokens` names every position (of cross attention the queries, `key_tokens` the keys), `item` counts the texts of
        the batch, `step` the forwards, `kind` is needed where several kinds of attention were recorded. Raises UsageError
        where no such call was recorded, or the names do not fit.
        """
        found = _calls_of_step(self, step, kind, self.unseen)
        first = found[0]
        batch, _, n_q, n_k = first.weights.shape
        if not -batch <= item < batch:
            raise UsageError(f"no text {item} in this batch: it has {batch}")
        for call in found:
            if call.weights.shape[-2:] != (n_q, n_k):
                raise UsageError(
                    f"layer {call.layer} has {call.weights.shape[-2]} queries and {call.weights.shape[-1]} keys, layer "
                    f"{first.layer} {n_q} and {n_k}, and a trace has the same tokens in all layers: give one call"
                )
        cross = first.kind == "cross"
        here = first.rows if first.rows is not None else tuple(range(n_q))
        start = 0 if cross else max(n_k - first.n_queries, 0)  # tokens read in earlier forwards
        rows = tuple(start + at for at in here)
        named = _tokens_for("tokens", tokens, first.n_queries if cross else n_k)
        columns = _tokens_for("key_tokens", key_tokens, n_k) if cross else None
        whole = rows == tuple(range(len(named)))
        layers = tuple(_layer_of_call(call, item, None if whole else rows) for call in found)
        info = ModelInfo(
            first.model or "model",
            "checkpoint",
            n_heads=max(call.n_heads for call in found),
            n_layers=max(call.layer for call in found) + 1,
            dtype=str(first.weights.dtype).removeprefix("torch."),
        )
        text = " ".join(token.text for token in named)
        notes = (NOTE, *(SINK_NOTE,) * any(call.has_sink for call in found))
        notes += (f"{self.unseen[0].upper()}{self.unseen[1:]}.",) if self.unseen else ()
        return Trace(text=text, tokens=named, key_tokens=columns, model=info, layers=layers, notes=notes)


def _calls_of_step(calls: Sequence[Captured], step: int, kind: str | None, unseen: str) -> list[Captured]:
    """One call a layer, of one forward and kind."""
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
    """Tokens of these names; numbered where there are none."""
    if names is None:
        return tuple(named_tokens([str(at) for at in range(count)]))
    if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(one, str) for one in names):
        raise TypeError(f"trace(): {name} is a list of str, a name for each token, not {type(names).__name__}")
    if len(names) != count:
        raise UsageError(f"{name} has {len(names)} names for {count} positions")
    return tuple(named_tokens(names))


def _layer_of_call(call: Captured, item: int, rows: tuple[int, ...] | None) -> LayerTrace:
    """One text of a call as a layer of a trace."""
    arrays: dict[str, Array] = {
        name: _as_floats(there[item]) for name in STEPS if name != "mask" and (there := getattr(call, name)) is not None
    }
    mask: Bools | None = None  # where every query sees every key
    if call.mask is not None:
        seen = (call.mask if call.mask.ndim == 2 else call.mask[item]).cpu().numpy().astype(bool)  # (1 or n_q, n_k)
        mask = None if seen.all() else np.broadcast_to(seen, call.weights.shape[-2:])  # (n_q, n_k)
    weights = _as_floats(call.weights[item])  # (heads, n_q, n_k)
    if call.has_sink:
        arrays["sink_weights"] = share_of_sink(weights)
    return LayerTrace(call.layer, call.heads, call.heads, weights=weights, rows=rows, mask=mask, **arrays)


def _as_floats(array: Array) -> Floats:
    """A tensor as float32 of NumPy."""
    floats: Floats = array.detach().float().cpu().numpy()
    return floats


@checked
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
) -> Iterator[Captures]:
    """Record the attention of any transformers model, for any forward or generate call within the context.

    >>> with attnctl.capture(model, layer=13, head=8) as traces:  # doctest: +SKIP
    ...     model(**inputs)
    >>> traces[0].weights.shape  # doctest: +SKIP
    torch.Size([1, 1, 6, 6])
    >>> traces.trace(tokens).figure().savefig("grid.png")  # doctest: +SKIP

    `layer`, `head` and query `rows` narrow what is kept (None: all; negative counts from the end), `attention` picks
    encoder, decoder or cross, `keep` names the steps to keep beside the weights. Layers not asked for run on torch's fused
    kernel. With `stop` the forward is left, and this context with it, once every call asked for was seen: nothing is
    computed that nobody reads. A model that shares its layers, or whose calls cannot be told beforehand, runs to its end.
    An architecture outside transformers' attention interface must have been loaded with attn_implementation="eager"; of it
    only weights are kept. Threads with a context each record their own forwards; one of a thread without any goes to all of
    them. What cannot be shown of the attention asked for is warned of, and said in `traces.unseen` and in a trace's notes.
    Raises UsageError for a layer or head that is not there, AttnctlError as `watch_attention`.
    """
    _check_arguments(model, keep)
    some_layers = checked_selection("capture", "layer", layer)
    some_heads = checked_selection("capture", "head", head)
    some_rows = checked_selection("capture", "rows", rows)
    if attention not in (None, "encoder", "decoder", "cross"):
        raise UsageError(f"no attention {attention!r}: it is encoder, decoder or cross")
    unknown = set(keep) - set(STEPS)
    if unknown:
        raise UsageError(f"no step {sorted(unknown)[0]!r} to keep: the steps are {', '.join(STEPS)}")
    wanted = _Wanted(model, some_layers, some_heads, some_rows, attention, tuple(keep))
    traces = Captures()
    check_inference(model)
    if not model_follows_interface(model):
        with _take_outputs(model, wanted, traces):
            yield traces
        if traces.unseen:
            warnings.warn(f"{architecture_name(model)}: {traces.unseen}", stacklevel=3)
        return

    def see_call(site: Site, call: Call) -> Array | None:
        context = _keep_call(wanted, session, traces, site, call)
        missing.discard(site)
        if stop and not missing:
            raise StopForward
        return context

    with watch_attention(model, see_call, wanted.wants_site) as session:
        missing = {site for site in session.sites_of_model(model) if wanted.wants_site(site)}
        stop = stop and bool(missing)
        with suppress(StopForward):
            yield traces
        if session.forwards or session.seen:
            silent = {site: name for site, name in session.silent.items() if wanted.of_kind(site.kind)}
            met = {site.layer for site in session.seen if wanted.of_kind(site.kind)}
            wanted.check_seen(met, session.architecture, list(silent.values()))
            traces.unseen = unseen_sentence({site: name for site, name in silent.items() if wanted.wants_site(site)})
            if traces.unseen:
                warnings.warn(f"{session.architecture}: {traces.unseen}", stacklevel=3)


def _check_arguments(model: object, keep: object) -> None:
    """Raise TypeError naming an argument of another type."""
    check_network("capture", model)
    if (
        isinstance(keep, str)
        or not isinstance(keep, Sequence | set | frozenset)
        or not all(isinstance(n, str) for n in keep)
    ):
        raise TypeError(f"capture(): keep is a list of steps, not {type(keep).__name__}: {repr(keep)[:80]}")


@dataclass(frozen=True)
class _Wanted:
    """What a capture was asked for."""

    model: PreTrainedModel
    layers: Sequence[int] | None
    heads: Sequence[int] | None
    rows: Sequence[int] | None
    attention: str | None
    keep: tuple[str, ...]

    def of_kind(self, kind: str) -> bool:
        return self.attention is None or kind == self.attention

    def wants_index(self, index: int, count: int) -> bool:
        return self.layers is None or index in self.layers or (index < count and index - count in self.layers)

    def wants_site(self, site: Site) -> bool:
        return self.of_kind(site.kind) and self.wants_index(site.layer, self.layers_by_kind[site.kind])

    @cached_property
    def layers_by_kind(self) -> dict[str, int]:
        """How many layers of each kind there are."""
        return {kind: layer_count(self.model, kind) for kind in ("self", "encoder", "decoder", "cross")}

    def check_seen(self, seen: set[int], name: str, silent: Sequence[str] = ()) -> None:
        """Raise where nothing went by, or a layer asked for did not."""
        if not seen:
            kind = f"{self.attention} attention" if self.attention else "attention"
            why = (
                f"{silent[0]} attends in code of its own" if silent else "it has none, or calls it in a way of its own"
            )
            raise AttnctlError(f"no {kind} of {name} went by: {why}")
        for index in self.layers or ():
            if index not in seen and (index >= 0 or index < -1 - max(seen)):
                raise UsageError(f"no layer {index} in {name}: attention went by in layers {min(seen)} to {max(seen)}")


def _keep_call(wanted: _Wanted, session: WatchSession, traces: list[Captured], site: Site, call: Call) -> Array | None:
    """Compute and keep one call; the context where all of it was computed."""
    n_heads = call.queries.shape[-3]
    heads = chosen_indices(wanted.heads, n_heads, "head", f"layer {site.layer} of {session.architecture}")
    whole = wanted.rows is None and len(heads) == n_heads
    rows = None if wanted.rows is None else list(chosen_indices(wanted.rows, call.n_q, "row", "this call"))
    narrow = call if whole else attention.select_call(call, list(heads), rows)
    steps = attention.run_call(narrow)
    arrays = {
        "queries": narrow.queries,
        "keys": _copied_cache(narrow.keys, len(heads)) if "keys" in wanted.keep else None,
        "values": _copied_cache(narrow.values, len(heads)) if "values" in wanted.keep else None,
        "scores": steps.scores,
        "scaled_scores": steps.scaled_scores,
        "mask": steps.mask,
        "context": steps.context,
    }
    kept = {name: array.detach() for name, array in arrays.items() if array is not None and name in wanted.keep}
    step = session.steps[site.module][1]  # how many forwards called this module before: one a new token in generation
    traces.append(
        Captured(
            site.name,
            site.kind,
            site.layer,
            heads,
            step,
            steps.weights.detach(),
            recurrence=site.recurrence,
            model=session.architecture,
            rows=None if rows is None else tuple(rows),
            n_heads=n_heads,
            n_queries=call.queries.shape[-2],
            has_sink=call.sinks is not None,
            **kept,
        )
    )
    return steps.context if whole else None


def _copied_cache(cached: Array, n_heads: int) -> Array:
    """Keys or values for every head; a copy, since the cache they lie in is written over as a text grows."""
    shared = attention.share_heads(cached, n_heads)  # (batch, heads, n_k, d)
    return shared.clone() if shared is cached else shared


# --- architectures outside the interface -------------------------------------------------------------------------

_OUTPUTS = (
    ("attentions", "self"),
    ("encoder_attentions", "encoder"),
    ("decoder_attentions", "decoder"),
    ("cross_attentions", "cross"),
)


@contextmanager
def _take_outputs(model: PreTrainedModel, wanted: _Wanted, traces: Captures) -> Iterator[None]:
    """Take the weights that `model` itself puts out under eager, forward by forward."""
    if not attention_modules(model):
        raise AttnctlError(f"{architecture_name(model)} has no attention: no part of it is named so")
    if any(name != "eager" for _, name in attention_configurations(model)):
        raise AttnctlError(
            f"{architecture_name(model)} attends in code of its own, which tells its weights under eager only: load it with "
            'attn_implementation="eager"'
        )
    steps = iter(range(1 << 62))
    known: dict[str, int] = {}

    def ask_for_weights(
        _: object, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        check_inference(model)
        return args, kwargs | {"output_attentions": True, "return_dict": True}

    def take_output(_: object, args: object, kwargs: dict[str, object], output: Output) -> None:
        step = next(steps)
        traces.extend(weights_of_output(output, wanted, step, architecture_name(model), known))

    with ExitStack() as stack:
        stack.enter_context(uncompiled())
        stack.callback(model.register_forward_pre_hook(ask_for_weights, with_kwargs=True).remove)
        stack.callback(model.register_forward_hook(take_output, with_kwargs=True).remove)
        yield
    there = {kind for kind, count in wanted.layers_by_kind.items() if count and wanted.of_kind(kind)}
    if known and (lost := sorted(there - known.keys())):
        traces.unseen = f"its {' and '.join(lost)} attention is not shown: no forward put out its weights"


def weights_of_output(
    output: Output, wanted: _Wanted, step: int, name: str, known: dict[str, int] | None = None
) -> Iterator[Captured]:
    """The weights in a model's output. Raises AttnctlError where it has none, or puts out something else.

    `known` holds, for each kind, how many keys there were at the step before, and is brought up to date.
    """
    known = {} if known is None else known
    found = [
        (kind, weights_of_layers(wanted.model, kind, tuple(getattr(output, key, None) or ()))) for key, kind in _OUTPUTS
    ]
    found = [(kind, weights) for kind, weights in found if wanted.of_kind(kind) and any(w is not None for w in weights)]
    if not found:
        raise AttnctlError(f"{name} puts out no attention weights: it attends in a way that tells none")
    for kind, layers in found:
        wanted.check_seen(set(range(len(layers))), name)
        lengths = None if kind == "cross" else key_counts(layers, known.get(kind, 0))
        longest = max((w.shape[-1] for w in layers if w is not None and getattr(w, "ndim", 0) == 4), default=0)
        known[kind] = min(longest, max(lengths)) if lengths else longest
        for layer, weights in enumerate(layers):
            if weights is not None and wanted.wants_index(layer, len(layers)):
                check_weights(weights, f"{kind if kind != 'self' else ''} layer {layer} of {name}".strip(), lengths)
                heads = chosen_indices(wanted.heads, weights.shape[1], "head", f"layer {layer} of {name}")
                part = weights[:, list(heads)]  # (batch, heads, n_q, n_k)
                rows = None if wanted.rows is None else chosen_indices(wanted.rows, part.shape[2], "row", "this call")
                yield Captured(
                    "",
                    kind,
                    layer,
                    heads,
                    step,
                    (part if rows is None else part[:, :, list(rows)]).detach(),
                    model=name,
                    rows=rows,
                    n_heads=weights.shape[1],
                    n_queries=weights.shape[2],
                )
