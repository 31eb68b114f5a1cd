"""The step that shows a head's own matrices, where they are asked for: W_Q, W_K, W_V and its rows of W_O."""

from __future__ import annotations

from attnctl.readings.traces.trace import LayerTrace, Trace
from attnctl.steps.step import Part, Step

NAMED = {"b_Q": "W_Q", "b_K": "W_K", "b_V": "W_V"}  # biases, and the matrices that they are added after


def matrices_step(trace: Trace, layer: LayerTrace, at: int) -> Step | None:
    """The matrices of the head at place `at` of a layer; None where the source keeps none."""
    given, head = layer.parameters, layer.heads[at]
    parts = [Part(name, name, given[name][at], "dimensions") for name in ("W_Q", "W_K", "W_V") if name in given]
    if "W_O" in given and trace.model.d_v:
        own = slice(head * trace.model.d_v, (head + 1) * trace.model.d_v)
        parts.append(Part("W_O", f"W_O, the rows of head {head}", given["W_O"][own], "dimensions"))
    if not parts:
        return None
    biases = [bias for bias in NAMED if bias in given]
    sentence = "Learned in training, the same for every text: they turn a row of X into its query, key and value"
    sentence += ", and the context into its part of the output" if "W_O" in given else ""
    added = f" {', '.join(biases)} {'is' if len(biases) == 1 else 'are'} added after." if biases else ""
    return Step("matrices", "matrices", "", f"{sentence}.{added}", tuple(parts))
