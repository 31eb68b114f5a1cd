"""What a capture recorded, as a Trace: for every table, picture and page that shows one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from attnctl.errors import UsageError
from attnctl.layer.step_arrays import share_of_sink
from attnctl.readings.traces.trace import SINK_NOTE, LayerTrace, ModelInfo, Trace
from attnctl.tokens import Token, named_tokens

if TYPE_CHECKING:
    from attnctl.arrays import Bools, Floats
    from attnctl.attention import Array
    from attnctl.models.huggingface.capture import Captured

KEPT = ("queries", "keys", "values", "scores", "scaled_scores", "context")
NOTE = "Recorded from a model in code of its own; the tokens are named by the caller."


def trace_of_calls(
    calls: Sequence[Captured],
    tokens: Sequence[str] | None = None,
    *,
    key_tokens: Sequence[str] | None = None,
    item: int = 0,
    step: int = 0,
    kind: str | None = None,
    unseen: str = "",
) -> Trace:
    """The calls of one forward as a Trace of one text of its batch; tokens without names are numbered.

    `tokens` names every position (of cross attention the queries, `key_tokens` the keys), `item` counts the texts of the
    batch, `step` the forwards, `kind` is needed where several kinds of attention were recorded, `unseen` says what could
    not be. Raises UsageError where no such call was recorded, or the names do not fit.
    """
    found = _calls_of_step(calls, step, kind, unseen)
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
    notes += (f"{unseen[0].upper()}{unseen[1:]}.",) if unseen else ()
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
        name: _as_floats(there[item]) for name in KEPT if (there := getattr(call, name)) is not None
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
