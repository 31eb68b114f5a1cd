"""Running a model and keeping what it did: the Trace."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attnctl import attention
from attnctl.arrays import LONG, as_numpy
from attnctl.attention import Array, Call
from attnctl.errors import AttnctlError, UsageError
from attnctl.readings.trace import LayerTrace, ModelInfo, Prediction, Trace
from attnctl.text import spoken
from attnctl.tokens import Token, checked

if TYPE_CHECKING:
    from attnctl.models import Model


MOST = 16e9  # bytes of weights and scores that are kept of one text


class Enough(BaseException):
    """Raised by a visitor that has seen all it wants: the model leaves out what would follow.

    No Exception, so that a network's own code cannot take it for an error and go on.
    """


@dataclass
class Run:
    """What a model tells of one run beside its attention; arrays are NumPy, one row a token.

    `extras` holds, per layer, the fields of LayerTrace that the model alone knows: input, output, parameters, …
    """

    tokens: tuple[Token, ...]
    embeddings: Any = None  # (n, d_model)
    key_tokens: tuple[Token, ...] | None = None
    extras: dict[int, dict[str, Any]] = field(default_factory=dict)
    weights: dict[int, Any] = field(default_factory=dict)  # (heads, n_q, n_k), where a source can give nothing else
    predictions: tuple[Prediction, ...] = ()
    model: ModelInfo | None = None  # where a run says more than could be known before it
    notes: tuple[str, ...] = ()


def chosen(wanted: Sequence[int] | None, count: int, what: str, of: str) -> tuple[int, ...]:
    """Selected layers or heads as indices from 0. Raises UsageError naming what there is."""
    if wanted is None:
        return tuple(range(count))
    for index in wanted:
        if not -count <= index < count:
            has = f"{what} 0 only" if count == 1 else f"{what}s 0 to {count - 1}"
            raise UsageError(f"no {what} {index} in {of}: it has {has}")
    return tuple(dict.fromkeys(index % count for index in wanted))


def selected(spec: str, count: int, what: str, of: str) -> list[int]:
    """Indices that `3`, `0-5`, `1,4,7` or `-1` select from `count`.

    Raises UsageError where it is no selection or one is not there.
    """
    wanted: list[int] = []
    for part in spec.split(","):
        part = part.strip()
        if match := re.fullmatch(r"([0-9]{1,18})-([0-9]{1,18})", part):
            first, last = int(match[1]), int(match[2])
            if last < first:
                raise UsageError(f"--{what} {part}: from {first} down to {last} is no range")
            wanted += range(first, min(last, first + count) + 1)
        elif re.fullmatch(r"-?[0-9]{1,18}", part):
            wanted.append(int(part))
        else:
            raise UsageError(f"--{what} {spec[:40]!r}: it reads 3, 0-5, 1,4,7, -1 or all")
    return list(chosen(wanted, count, what, of))


def record(
    model: Model,
    text: str,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    rows: Sequence[int] | None = None,
    tokens: Sequence[Token] | None = None,
    predictions: bool = True,
) -> Trace:
    """The trace of `text`, for the layers, heads and query rows asked for (None: all).

    `tokens` are those of the text where they are known already. Without `predictions` a checkpoint is left after the last
    layer asked for. Raises AttnctlError for an empty text, UsageError for a
    selection that is not there.
    """
    recording = Recording(model, text, layers=layers, heads=heads, rows=rows, tokens=tokens, predictions=predictions)
    with np.errstate(all="ignore"):  # what overflows is refused by name, not warned of
        return recording.trace(model.run(recording.tokens, recording.visit, text))


class Recording:
    """A trace in the making: `visit` is what the model is run with, `trace` takes what it told. Arguments as of `record`."""

    def __init__(
        self,
        model: Model,
        text: str,
        *,
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
        rows: Sequence[int] | None = None,
        tokens: Sequence[Token] | None = None,
        predictions: bool = True,
    ) -> None:
        self.text, self.info, self.rows = text, model.info, rows
        self.tokens = model.tokenize(checked(text)) if tokens is None else tuple(tokens)
        if not self.tokens:
            raise AttnctlError("the text has no tokens: give at least one word")
        info, n = self.info, len(self.tokens)
        self._named = layers is not None
        self._layers = set(chosen(layers, info.n_layers or 1, "layer", info.name))
        self._heads = chosen(heads, info.n_heads or 1, "head", info.name)
        self._last = None if predictions or info.kind != "checkpoint" else max(self._layers)
        _check_room(len(self._layers), len(self._heads), n if rows is None else len(rows), n)
        self._kept: dict[int, dict[str, Any]] = {}
        self._met: list[int] = []

    def visit(self, layer: int, call: Call) -> Array | None:
        """Keep one layer's call, if it was asked for; the context where all of it was computed.

        Raises Enough where nothing that follows is wanted.
        """
        context = self._visit(layer, call)
        if layer == self._last:
            raise Enough
        return context

    def _visit(self, layer: int, call: Call) -> Array | None:
        self._met.append(layer)
        if layer not in self._layers:
            return None
        rows, heads = self.rows, list(self._heads)
        part = rows is not None or len(heads) < call.queries.shape[-3]
        if part and (layer == self._last or call.queries.shape[-2] > LONG):  # what was asked for, not every n × n
            narrow = attention.select(call, heads, None if rows is None else list(rows))
            self._kept[layer] = steps_kept(layer, narrow, attention.run(narrow))
            return None
        steps = attention.run(call)  # the run that goes on needs every head and row
        self._kept[layer] = cut(steps_kept(layer, call, steps), heads, rows)
        return steps.context

    def trace(self, ran: Run) -> Trace:
        """The trace of what was kept and what the model told. Raises UsageError for a layer that did not attend."""
        kept, rows, info = self._kept, self.rows, self.info
        for layer in self._layers & ran.weights.keys():
            part = ran.weights[layer][list(self._heads)]  # (heads, n_q, n_k)
            kept[layer] = {"weights": part if rows is None else part[:, list(rows)]}
        for layer in sorted(self._layers - kept.keys()) if self._named else ():
            raise UsageError(
                f"layer {layer} of {info.name} has no attention: it is in {spoken(sorted(set(self._met)))}"
            )
        trace = Trace(
            text=self.text,
            tokens=ran.tokens,
            model=ran.model or info,
            layers=tuple(
                layer_trace(layer, kept[layer], ran.extras.get(layer, {}), self._heads, rows, info)
                for layer in sorted(kept)
            ),
            embeddings=ran.embeddings,
            key_tokens=ran.key_tokens,
            predictions=ran.predictions,
            notes=ran.notes,
        )
        if info.kind != "checkpoint":
            return trace
        from attnctl.readings.measures import sink

        if (parked := sink(trace)) is not None:
            trace = replace(trace, notes=(*trace.notes, parked))
        return trace


def _check_room(layers: int, heads: int, rows: int, n: int) -> None:
    """Raise AttnctlError, before any work, where the scores, scaled scores and weights would fill the memory."""
    size = 3 * 4 * layers * heads * rows * n
    if size > MOST:
        raise AttnctlError(
            f"every step of {layers} layers × {heads} heads, {rows:,} × {n:,} each, takes {size / 1e9:.0f} GB: choose "
            "with --layer, --head and --query"
        )


PER_ROW = ("queries", "scores", "bias", "scaled_scores", "weights", "dropped_weights", "context")


def cut(kept: dict[str, Any], heads: list[int], rows: Sequence[int] | None) -> dict[str, Any]:
    """The same arrays for some heads and some query rows only."""
    every = kept["scores"].shape[0]
    if heads != list(range(every)):
        kept = {name: array if name == "mask" else array[heads] for name, array in kept.items()}
    if rows is not None:
        kept = {name: array[:, list(rows)] if name in PER_ROW else array for name, array in kept.items()}
        if "mask" in kept:
            kept["mask"] = kept["mask"][list(rows)]
    return kept


def steps_kept(layer: int, call: Call, steps: attention.Attended) -> dict[str, Any]:
    """The arrays of one call as the fields of a LayerTrace. Raises AttnctlError where they overflow float32."""
    n_heads = call.queries.shape[-3]
    arrays = {
        "queries": call.queries,
        "keys": attention.share_heads(call.keys, n_heads),
        "values": attention.share_heads(call.values, n_heads),
        "scores": steps.scores,
        "scaled_scores": steps.scaled_scores,
        "mask": steps.mask,
        "weights": steps.weights,
        "dropped_weights": steps.dropped,
        "context": steps.context,
    }
    kept = {name: as_numpy(array) for name, array in arrays.items() if array is not None}
    for name in ("scores", "scaled_scores", "weights"):
        if not np.isfinite(kept[name]).all():
            what = name.replace("_", " ")
            raise AttnctlError(f"the {what} of layer {layer} are too large for float32: see the scale and temperature")
    if call.bias is not None:
        kept["bias"] = np.broadcast_to(as_numpy(call.bias), kept["scores"].shape)
    return kept


def layer_trace(
    layer: int,
    kept: dict[str, Any],
    extras: dict[str, Any],
    heads: tuple[int, ...],
    rows: Sequence[int] | None,
    info: Any,
) -> LayerTrace:
    """A LayerTrace of what the visitor kept and what the model told, cut to the heads and rows that were asked for."""
    group = (info.n_heads or 1) // (info.n_kv_heads or info.n_heads or 1)
    kv_heads = tuple(head // group for head in heads)
    told = dict(extras)
    for name in ("queries_before_rope", "keys_before_rope"):
        if name in told:
            told[name] = told[name][list(heads if name.startswith("q") else kv_heads)]
    if rows is not None and "queries_before_rope" in told:
        told["queries_before_rope"] = told["queries_before_rope"][:, list(rows)]
    parameters = {
        name: array if name in ("W_O", "b_O") else array[list(heads if name.endswith("Q") else kv_heads)]
        for name, array in told.pop("parameters", {}).items()
    }
    return LayerTrace(
        layer=layer,
        heads=heads,
        kv_heads=kv_heads,
        rows=None if rows is None else tuple(rows),
        parameters=parameters,
        **kept,
        **told,
    )
