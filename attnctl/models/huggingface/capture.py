"""Recording the attention of any transformers model: `with attnctl.capture(model) as traces: model(**inputs)`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, fields
from typing import Any

from attnctl import attention
from attnctl.attention import Array, Call
from attnctl.errors import AttnctlError, UsageError
from attnctl.layer import StopForward
from attnctl.models.huggingface.attention_interface import (
    Session,
    Site,
    architecture,
    attending,
    check_inference,
    follows_interface,
)
from attnctl.selection import chosen


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


STEPS = tuple(f.name for f in fields(Captured))[6:]


@contextmanager
def capture(
    model: Any,
    layers: int | Sequence[int] | None = None,
    heads: int | Sequence[int] | None = None,
    *,
    rows: int | Sequence[int] | None = None,
    attention: str | None = None,
    keep: Sequence[str] = STEPS,
    stop: bool = False,
) -> Iterator[list[Captured]]:
    """Record the attention of any transformers model, for any forward or generate call within the context.

    >>> with attnctl.capture(model, layers=[13], heads=[8]) as traces:  # doctest: +SKIP
    ...     model(**inputs)
    >>> traces[0].weights.shape  # doctest: +SKIP
    torch.Size([1, 1, 6, 6])

    `layers`, `heads` and query `rows` narrow what is kept (None: all; negative counts from the end), `attention` picks
    encoder, decoder or cross, `keep` names the steps to keep beside the weights. Layers not asked for run on torch's fused
    kernel. With `stop` the forward is left, and this context with it, once every call asked for was seen: nothing is
    computed that nobody reads. A model that shares its layers, or whose calls cannot be told beforehand, runs to its end.
    An architecture outside transformers' attention interface must have been loaded with attn_implementation="eager"; of it
    only weights are kept. Raises UsageError for a layer or head that is not there, AttnctlError as `attending`.
    """
    if attention not in (None, "encoder", "decoder", "cross"):
        raise UsageError(f"no attention {attention!r}: it is encoder, decoder or cross")
    unknown = set(keep) - set(STEPS)
    if unknown:
        raise UsageError(f"no step {sorted(unknown)[0]!r} to keep: the steps are {', '.join(STEPS)}")
    some = _several("layers", layers), _several("heads", heads), _several("rows", rows)
    wanted = _Wanted(model, *some, attention, tuple(keep))
    traces: list[Captured] = []
    check_inference(model)
    if not follows_interface(model):
        with _outputs(model, wanted, traces):
            yield traces
        return

    def seen(site: Site, call: Call) -> Array | None:
        context = _keep(wanted, session, traces, site, call)
        missing.discard(site)
        if stop and not missing:
            raise StopForward
        return context

    with attending(model, seen, wanted.site) as session:
        missing = {site for site in session.attentions(model) if wanted.site(site)}
        stop = stop and bool(missing)
        with suppress(StopForward):
            yield traces
        if session.step >= 0 or session.seen:
            wanted.check({site.layer for site in session.seen if wanted.of_kind(site.kind)}, session.architecture)


def _several(name: str, given: int | Sequence[int] | None) -> Sequence[int] | None:
    several = [given] if isinstance(given, int) else given
    if several is not None and not several:
        raise UsageError(f"no {name} asked for: None takes all of them")
    return several


@dataclass(frozen=True)
class _Wanted:
    """What a capture was asked for."""

    model: Any
    layers: Sequence[int] | None
    heads: Sequence[int] | None
    rows: Sequence[int] | None
    attention: str | None
    keep: tuple[str, ...]

    def of_kind(self, kind: str) -> bool:
        return self.attention is None or kind == self.attention

    def layer(self, index: int) -> bool:
        if self.layers is None:
            return True
        count = getattr(self.model.config.get_text_config(), "num_hidden_layers", None)
        return index in self.layers or (count is not None and index - count in self.layers)

    def site(self, site: Site) -> bool:
        return self.of_kind(site.kind) and self.layer(site.layer)

    def check(self, seen: set[int], name: str) -> None:
        """Raise where nothing went by, or a layer asked for did not."""
        if not seen:
            kind = f"{self.attention} attention" if self.attention else "attention"
            raise AttnctlError(
                f"no {kind} of {name} went by: it has none, or calls it in a way that attnctl does not see"
            )
        for index in self.layers or ():
            if index >= 0 and index not in seen:
                raise UsageError(f"no layer {index} in {name}: attention went by in layers {min(seen)} to {max(seen)}")


def _keep(wanted: _Wanted, session: Session, traces: list[Captured], site: Site, call: Call) -> Array | None:
    """Compute and keep one call; the context where all of it was computed."""
    n_heads = call.queries.shape[-3]
    heads = chosen(wanted.heads, n_heads, "head", f"layer {site.layer} of {session.architecture}")
    whole = wanted.rows is None and len(heads) == n_heads
    rows = None if wanted.rows is None else list(chosen(wanted.rows, call.queries.shape[-2], "row", "this call"))
    narrow = call if whole else attention.select(call, list(heads), rows)
    steps = attention.run(narrow)
    arrays = {
        "queries": narrow.queries,
        "keys": attention.share_heads(narrow.keys, len(heads)) if "keys" in wanted.keep else None,
        "values": attention.share_heads(narrow.values, len(heads)) if "values" in wanted.keep else None,
        "scores": steps.scores,
        "scaled_scores": steps.scaled_scores,
        "mask": steps.mask,
        "context": steps.context,
    }
    kept = {name: array.detach() for name, array in arrays.items() if array is not None and name in wanted.keep}
    traces.append(Captured(site.name, site.kind, site.layer, heads, session.step, steps.weights.detach(), **kept))
    return steps.context if whole else None


# --- architectures outside the interface -------------------------------------------------------------------------

_OUTPUTS = (
    ("attentions", "self"),
    ("encoder_attentions", "encoder"),
    ("decoder_attentions", "decoder"),
    ("cross_attentions", "cross"),
)


@contextmanager
def _outputs(model: Any, wanted: _Wanted, traces: list[Captured]) -> Iterator[None]:
    """Take the weights that `model` itself puts out under eager, forward by forward."""
    steps = iter(range(1 << 62))

    def ask(_: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, kwargs | {"output_attentions": True, "return_dict": True}

    def take(_: Any, __: Any, ___: Any, output: Any) -> None:
        step = next(steps)
        traces.extend(weights_of(output, wanted, step, architecture(model)))

    with ExitStack() as stack:
        stack.callback(model.register_forward_pre_hook(ask, with_kwargs=True).remove)
        stack.callback(model.register_forward_hook(take, with_kwargs=True).remove)
        yield


def weights_of(output: Any, wanted: _Wanted, step: int, name: str) -> Iterator[Captured]:
    """The weights in a model's output. Raises AttnctlError where it has none: its kernel never builds them."""
    found = [(kind, getattr(output, key, None) or ()) for key, kind in _OUTPUTS]
    found = [(kind, weights) for kind, weights in found if wanted.of_kind(kind) and any(w is not None for w in weights)]
    if not found:
        raise AttnctlError(f'{name} put out no attention weights: load it with attn_implementation="eager"')
    for kind, layers in found:
        wanted.check(set(range(len(layers))), name)
        for layer, weights in enumerate(layers):
            if wanted.layer(layer):
                heads = chosen(wanted.heads, weights.shape[1], "head", f"layer {layer} of {name}")
                part = (
                    weights[:, list(heads)] if wanted.rows is None else weights[:, list(heads)][:, :, list(wanted.rows)]
                )
                yield Captured("", kind, layer, heads, step, part.detach())
