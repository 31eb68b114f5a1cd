"""Is what is shown true? The weights recomputed by other means, and the findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attnctl.attention import Array, default_scale
from attnctl.models import Model
from attnctl.readings.traces.trace import LayerTrace, Trace
from attnctl.source import record_trace

# how far two roads may lie apart: rounding, in units of what the number type resolves
ROUNDING = {"float64": 1e-6, "float32": 1e-5, "bfloat16": 2e-2, "float16": 2e-3}


@dataclass(frozen=True)
class Finding:
    """One thing that was checked: a sentence, whether it holds (None: it could not be checked), and the number found."""

    what: str
    holds: bool | None
    found: str


def check_attention(
    model: Model, text: str, layers: Sequence[int] | None = None, heads: Sequence[int] | None = None
) -> tuple[Finding, ...]:
    """Recompute the attention over `text` by the model's own eager path and by torch's fused kernel.

    Raises AttnctlError as `record_trace`.
    """
    trace = record_trace(model, text, layers=layers, heads=heads, predictions=False)
    limit = ROUNDING.get(trace.model.dtype, 1e-5)
    return (
        _against_eager(model, trace, limit),
        _against_fused(trace, limit),
        _layer_output(model, trace, limit),
        _row_sums(trace, limit),
        _nan_finding(trace),
        _dropout_finding(model, trace),
        _shape_finding(trace),
    )


def _against_eager(model: Model, trace: Trace, limit: float) -> Finding:
    what = "weights against the model's own eager path, max |Δ|"
    if not hasattr(model, "own_weights"):
        return Finding(what, None, "a built-in model has no other path")
    eager = model.own_weights(trace.tokens, trace.text)
    worst = 0.0
    for layer in trace.layers:
        if layer.weights is None or layer.layer not in eager:
            return Finding(what, None, "its eager path puts out no weights")
        ours, theirs = layer.weights, eager[layer.layer][list(layer.heads)]  # (heads, n_q, n_k)
        if ours.shape != theirs.shape:
            return Finding(what, False, f"layer {layer.layer}: {ours.shape} for {theirs.shape}")
        if has_sinks(trace):  # some eager paths tell the tokens' shares without the sink's
            ours, theirs = _rescaled_rows(ours), _rescaled_rows(theirs)
        blind = np.zeros(theirs.shape[1], dtype=bool) if layer.mask is None else ~layer.mask.any(axis=-1)  # (n_q,)
        worst = worse_error(worst, float(np.abs(ours - theirs)[:, ~blind].max(initial=0)))
    return Finding(what, worst <= limit, f"{worst:.1e}" if worst else "0, equal to the last bit")


def _against_fused(trace: Trace, limit: float) -> Finding:
    what = "context against torch's fused kernel, max |Δ| / max |context|"
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    worst = 0.0
    for layer in trace.layers:
        if layer.queries is None or layer.keys is None or layer.values is None or layer.context is None:
            return Finding(what, None, "the source gives no queries, keys and values")
        if trace.model.caps_scores or has_sinks(trace):
            return Finding(what, None, "no fused kernel knows soft caps and sinks")
        bias = torch.zeros(layer.queries.shape[0], layer.queries.shape[1], layer.keys.shape[1])  # (heads, n_q, n_k)
        if layer.bias is not None:
            bias += torch.tensor(np.asarray(layer.bias, dtype=np.float32))
        if layer.mask is not None:
            bias.masked_fill_(~torch.tensor(layer.mask), -torch.inf)
        q, k, v = (torch.tensor(part, dtype=torch.float32)[None] for part in (layer.queries, layer.keys, layer.values))
        ours = layer.context
        kernel = scaled_dot_product_attention(q, k, v, attn_mask=bias[None], scale=_scale_of_scores(trace, layer))[
            0
        ].numpy()
        worst = worse_error(worst, float(np.abs(ours - kernel).max(initial=0) / max(np.abs(ours).max(initial=0), 1e-9)))
    return Finding(what, worst <= 10 * limit, f"{worst:.1e}")


def _rescaled_rows(weights: Array) -> Array:
    """Rows (..., n_k) as shares of what their keys have together."""
    return weights / np.maximum(weights.sum(axis=-1, keepdims=True), 1e-12)  # (..., n_k)


def _layer_output(model: Model, trace: Trace, limit: float) -> Finding:
    what = "layer output with the context recomputed against the layer's own, max |Δ| / max |output|"
    if not hasattr(model, "layer_outputs"):
        return Finding(what, None, "a built-in model has no other path")
    own = model.layer_outputs(trace.tokens, trace.text, recomputed=False)
    ours = model.layer_outputs(trace.tokens, trace.text, recomputed=True)
    if not own:
        return Finding(what, None, "this architecture tells its weights alone")
    worst = 0.0
    for layer in {part.layer for part in trace.layers} & own.keys():
        largest = max(float(np.abs(own[layer]).max(initial=0)), 1e-9)
        worst = worse_error(worst, float(np.abs(own[layer] - ours[layer]).max(initial=0)) / largest)
    return Finding(what, worst <= 10 * limit, f"{worst:.1e}" if worst else "0, equal to the last bit")


def _scale_of_scores(trace: Trace, layer: LayerTrace) -> float:
    """The factor on the scores, read off the largest of them: what the model said, in whatever way it said it."""
    assert layer.queries is not None
    if layer.scores is None or layer.scaled_scores is None:
        return trace.model.scale or default_scale(layer.queries.shape[-1])
    scaled = layer.scaled_scores if layer.bias is None else layer.scaled_scores - layer.bias
    at = int(np.abs(layer.scores).argmax())
    largest = float(layer.scores.flat[at])
    if not largest:  # every score is 0
        return trace.model.scale or default_scale(layer.queries.shape[-1])
    return float(scaled.flat[at]) / largest


def has_sinks(trace: Trace) -> bool:
    """Whether some layer has learned sinks (gpt-oss), which take weight and give nothing back."""
    return any(layer.sink_weights is not None for layer in trace.layers)


def worse_error(one: float, other: float) -> float:
    """The larger of two errors; NaN is the worst of all."""
    return float(np.maximum(one, other))


def _row_sums(trace: Trace, limit: float) -> Finding:
    what = "row sums, max |Σ - 1|"
    worst = 0.0
    for layer in trace.layers:
        if layer.weights is None:
            continue
        sums = layer.weights.astype(np.float64).sum(axis=-1)  # (heads, n_q)
        if has_sinks(trace):
            return Finding(what, bool((sums <= 1 + 10 * limit).all()), "below 1: a learned sink takes the rest")
        seen = np.ones(sums.shape[1], dtype=bool) if layer.mask is None else layer.mask.any(axis=-1)
        worst = worse_error(worst, float(np.abs(sums[:, seen] - 1).max(initial=0)))
    return Finding(what, worst <= 10 * limit, f"{worst:.1e}")


def _nan_finding(trace: Trace) -> Finding:
    count = sum(int(np.isnan(part.weights).any(axis=-1).sum()) for part in trace.layers if part.weights is not None)
    return Finding("rows with NaN", count == 0, str(count))


def _dropout_finding(model: Model, trace: Trace) -> Finding:
    what = "dropout"
    if trace.model.dropout:
        return Finding(what, True, f"asked for: {trace.model.dropout:g}")
    training = bool(getattr(getattr(model, "network", None), "training", False))
    return Finding(what, not training, "on: the model is in training mode" if training else "off")


def _shape_finding(trace: Trace) -> Finding:
    n_q, n_k = len(trace.tokens), len(trace.key_axis)
    wrong = [
        f"layer {layer.layer}: {layer.weights.shape}"
        for layer in trace.layers
        if layer.weights is not None and layer.weights.shape != (len(layer.heads), n_q, n_k)
    ]
    return Finding("labels match shapes", not wrong, "; ".join(wrong) or f"{n_q} × {n_k}, as many as tokens")
