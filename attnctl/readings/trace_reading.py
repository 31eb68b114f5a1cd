"""The reading of a whole trace: every array of its layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from attnctl.errors import AttnctlError
from attnctl.layer import CHECKED, LayerAttention, LayerTrace
from attnctl.readings.parked_attention import sink_sentence
from attnctl.trace import Trace
from attnctl.trace.notes import Note
from attnctl.trace.run import Run


class TraceReading:
    """A reading that keeps every array of each layer, for some queries (None: all), and returns them as a Trace."""

    def __init__(self, rows: Sequence[int] | None = None, predictions: bool = True) -> None:
        self.rows = None if rows is None else tuple(rows)
        self.predicts = predictions
        self._layers: list[LayerTrace] = []

    def take(self, layer: LayerAttention) -> None:
        """Keep one layer. Raises AttnctlError if its numbers overflow float32."""
        trace = layer.record(self.rows)
        for array, numbers in () if layer.is_finite else trace.arrays_kept():
            # a finite sum needs no array of answers; that of large numbers may overflow
            if array.name in CHECKED and not np.isfinite(numbers.sum()) and not np.isfinite(numbers).all():
                name = f"the {array.name.replace('_', ' ')} of layer {layer.layer}"
                raise AttnctlError(f"{name} are too large for float32: see the scale and temperature")
        self._layers.append(trace)

    def value(self, run: Run) -> Trace:
        """Return the trace; for a checkpoint, with a note on the tokens where attention is parked."""
        trace = Trace(
            run.subject,
            layers=tuple(_with_gates(layer, run) for layer in sorted(self._layers, key=lambda layer: layer.layer)),
            embeddings=run.embeddings,
            predictions=run.predictions,
            positions=run.positions,
        )
        if not trace.model.nature.is_network or "parked" in trace.noted or trace.measure is not None:
            return trace
        parked = sink_sentence(trace)
        return trace if parked is None else trace.about(notes=(*trace.notes, Note(parked, "parked")))


def _with_gates(layer: LayerTrace, run: Run) -> LayerTrace:
    """Return the layer with the opening of its gates, which a run knows only after the layer has ended."""
    gate = run.gates.get(layer.layer)  # (heads, n)
    if gate is None or layer.context is None:
        return layer
    chosen = gate[list(layer.heads)]
    return replace(layer, gate=chosen if layer.rows is None else chosen[:, list(layer.rows)])
