"""The reading of a whole trace, and the sentence about attention parked on the first and on special tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from attnctl.errors import AttnctlError
from attnctl.layer import CHECKED, LayerAttention, LayerTrace
from attnctl.text import counted, percent, visible_text
from attnctl.text.tokens import Token
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


def sink_sentence(trace: Trace) -> str | None:
    """Return a sentence on how much attention goes to the first token and to special tokens; None for a single key.

    The row of the first token is left out: if the future is hidden, that token can only look at itself.
    """
    keys = trace.key_axis
    parked = []  # of each layer, the mean weight on each column
    columns = [0, *(j for j, token in enumerate(keys) if token.special and j > 0)]
    for layer in trace.layers:
        if layer.weights is None:
            continue
        queries = range(len(trace.tokens)) if layer.rows is None else layer.rows
        sees = np.ones(len(queries), bool) if layer.mask is None else np.asarray(layer.mask.any(1))  # (rows,)
        rows = [place for place, i in enumerate(queries) if sees[place] and (i > 0 or not trace.reads_itself)]
        if rows and layer.heads:
            cells = layer.weights[:, np.array(rows)[:, None], columns]  # (heads, rows, columns)
            parked.append(cells.mean((0, 1), dtype=np.float64))
    if not parked or len(keys) < 2:
        return None
    first, *special = np.mean(parked, 0).tolist()
    with_weights = [layer for layer in trace.layers if layer.weights is not None]
    where = heads_text([(layer.layer, head) for layer in with_weights for head in layer.heads])
    if keys[0].seconds:  # frames: the special ones pad a sound to its full length
        return parked_sentence(where, [(sum(special), "frames after the end of the sound")]) if special else None
    shares = [(first, f"the first token, {visible_text(keys[0].text)}")]
    if special:
        shares.append((sum(special), other_special([keys[j] for j in columns[1:]])))
    return parked_sentence(where, shares)


def parked_sentence(where: str, shares: Sequence[tuple[float, str]], is_remainder: bool = False) -> str:
    """Return a sentence on how much attention of `where` goes to certain keys; `shares` holds each key's share and name.

    `is_remainder`: the shares are of the attention without the keys that are left out.
    """
    (share, name), *other_shares = shares
    more = (f", {percent(share)} to {name}" for share, name in other_shares)
    of = "what is left of the attention" if is_remainder else "the attention"
    return f"Of {of} of {where}, {percent(share)} goes to {name}{''.join(more)}."


def heads_text(places: Sequence[tuple[int, int]]) -> str:
    """Return "layer 3, head 2", or "72 heads"."""
    return counted(len(places), "head") if len(places) != 1 else "layer {}, head {}".format(*places[0])


def other_special(tokens: Sequence[Token]) -> str:
    """Return "the other special ones ([SEP])"."""
    names = dict.fromkeys(visible_text(token.text) for token in tokens)
    return f"the other special ones ({', '.join(list(names)[:4])})"
