"""The trace as a reading: every step of every chosen layer, kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from attnctl.attention import Array
from attnctl.errors import AttnctlError
from attnctl.layer import LayerAttention, Run
from attnctl.layer.stored import StoredLayer
from attnctl.readings.traces.trace import LayerTrace, Note, Trace
from attnctl.readings.traces.trace_arrays import FIELD_ARRAYS
from attnctl.text import visible_text


class TraceReading:
    """Everything that each layer knows, for some queries (None: all), as a Trace."""

    def __init__(self, rows: Sequence[int] | None = None, predictions: bool = True) -> None:
        self.rows = None if rows is None else tuple(rows)
        self.predicts = predictions
        self._layers: list[LayerTrace] = []

    def take(self, layer: LayerAttention) -> None:
        """Keep one layer. Raises AttnctlError where its numbers overflow float32."""
        self._layers.append(layer_trace(layer, self.rows))

    def value(self, run: Run) -> Trace:
        """The trace; of a checkpoint's, it is noted where the attention is parked."""
        trace = Trace(
            text=run.text,
            tokens=run.tokens,
            model=run.known_model,
            layers=tuple(_with_gates(layer, run) for layer in sorted(self._layers, key=lambda layer: layer.layer)),
            embeddings=run.embeddings,
            key_tokens=run.key_tokens,
            predictions=run.predictions,
            notes=run.notes,
            measure=run.measure,
        )
        if trace.model.kind != "checkpoint" or "parked" in trace.noted:
            return trace
        parked = sink_sentence(trace)
        return trace if parked is None else replace(trace, notes=(*trace.notes, Note(parked, "parked")))


def _with_gates(layer: LayerTrace, run: Run) -> LayerTrace:
    """The layer with how far its gates were open, which a run knows when the layer has ended."""
    gate = run.gates.get(layer.layer)  # (heads, n)
    if gate is None or layer.context is None:
        return layer
    chosen = gate[list(layer.heads)]
    return replace(layer, gate=chosen if layer.rows is None else chosen[:, list(layer.rows)])


def layer_trace(layer: LayerAttention, rows: Sequence[int] | None = None) -> LayerTrace:
    """Everything that a layer knows, for some queries (None: all). Raises AttnctlError for scores that are not finite."""
    known = layer.arrays(rows)
    for name in ("scores", "scaled_scores", "weights"):
        if name in known and not np.isfinite(known[name]).all():
            what = name.replace("_", " ")
            raise AttnctlError(
                f"the {what} of layer {layer.layer} are too large for float32: see the scale and temperature"
            )
    held = layer.held if rows is None else rows
    return LayerTrace(
        layer=layer.layer,
        heads=layer.heads,
        kv_heads=layer.kv_heads,
        rows=None if held is None else tuple(held),
        parameters=layer.parameters,
        **known,
    )


def stored_layer(layer: LayerTrace) -> StoredLayer:
    """The layer of a trace, to be read. Raises AttnctlError where it holds no weights."""
    if layer.weights is None:
        raise AttnctlError(f"layer {layer.layer} of this trace holds no weights: write it without narrowing its steps")
    names = [array.name for array in FIELD_ARRAYS]
    known: dict[str, Array] = {name: array for name in names if (array := getattr(layer, name)) is not None}
    del known["weights"]
    known.pop("mask", None)
    return StoredLayer(
        layer.layer,
        layer.heads,
        layer.weights,
        mask=layer.mask,
        held=layer.rows,
        known=known,
        matrices=layer.parameters,
        key_heads=layer.kv_heads,
    )


def sink_sentence(trace: Trace) -> str | None:
    """How much of the attention goes to the first and to the other special tokens, as a sentence; None for one token.

    The first token's own row is left out: where the future is hidden it has nowhere else to look.
    """
    keys = trace.key_axis
    first, special, heads = [], [], 0
    others = [j for j, token in enumerate(keys) if token.special and j > 0]
    for layer in trace.layers:
        if layer.weights is None:
            continue
        at = range(len(trace.tokens)) if layer.rows is None else layer.rows
        rows = [place for place, i in enumerate(at) if i > 0 or not trace.reads_itself]
        part = layer.weights[:, rows]  # (heads, rows, n_k)
        heads += len(layer.heads)
        if part.size:
            first.append(part[..., 0].astype(np.float64).mean())
            special.append(part[..., others].astype(np.float64).sum(axis=-1).mean())
    if not first or len(keys) < 2:
        return None
    layers = [layer.layer for layer in trace.layers]
    where = f"layer {layers[0]}, head {trace.layers[0].heads[0]}" if heads == 1 else f"{heads} heads"
    said = f"{100 * np.mean(first):.0f} % goes to the first token, {visible_text(keys[0].text)}"
    if others:
        names = dict.fromkeys(visible_text(keys[j].text) for j in others)
        said += f", {100 * np.mean(special):.0f} % to the other special ones ({', '.join(list(names)[:4])})"
    return f"Of the attention of {where}, {said}."
