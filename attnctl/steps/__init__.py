"""The ordered steps of a trace: name, formula, sentence, arrays. Every renderer walks this."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from attnctl.errors import UsageError
from attnctl.readings.traces.trace import LayerTrace, Trace
from attnctl.readings.traces.trace_arrays import FIELD_ARRAYS
from attnctl.steps.families import difference_step, gate_step, mask_step
from attnctl.steps.matrices import matrices_step
from attnctl.steps.step import Part, Step

# every name that --steps takes: a step, or a part of one
NAMES = (
    "tokens",
    "embeddings",
    "input",
    "matrices",
    "queries",
    "keys",
    "values",
    "rope",
    "scores",
    "scaled",
    "mask",
    "weights",
    "difference",
    "dropout",
    "context",
    "gate",
    "output",
    "residual",
    "prediction",
    "summary",
)

# what stands in place of the weights, where another measure was asked for: formula and sentence
OTHERWISE = {
    "value-norm": (
        "‖weight × value‖ ÷ Σ",
        "How long each weighted value is, as a share of its row (Kobayashi et al. 2020).",
    ),
    "rollout": (
        "Π (½ mean weights + ½ identity)",
        "How much of each token has reached each row by this layer, all heads together (Abnar & Zuidema 2020).",
    ),
}


def walk_steps(
    trace: Trace, heads: Collection[int] | None = None, only: Collection[str] | None = None
) -> Iterator[Step]:
    """The steps of `trace` in the order of the mathematics, for some heads (None: all) and some names (None: all)."""
    for step in _all_steps(trace, heads):
        if step.name == "matrices" and (only is None or "matrices" not in only):
            continue  # shown only where they are asked for
        if only is None or step.name in only:
            yield step
        elif parts := tuple(part for part in step.parts if part.name in only):
            yield replace(step, parts=parts)


def _all_steps(trace: Trace, heads: Collection[int] | None) -> Iterator[Step]:
    yield _tokens_step(trace)
    if trace.embeddings is not None:
        yield _embeddings_step(trace)
    for layer in trace.layers:
        if layer.input is not None:
            yield _input_step(layer)
        for at, head in enumerate(layer.heads):
            if heads is None or head in heads:
                yield from _head_steps(trace, layer, at, head)
        if layer.output is not None and (len(layer.heads) > 1 or "W_O" in layer.parameters):
            yield _output_step(trace, layer)
        if layer.residual is not None:
            yield _residual_step(layer)
    if trace.predictions:
        yield _prediction_step(trace)
    if any(layer.weights is not None for layer in trace.layers):
        yield Step("summary", "where attention went", "", "The largest weights of each row, as shares of one.")


def _tokens_step(trace: Trace) -> Step:
    n = len(trace.tokens)
    many = f"{n} tokens" if n != 1 else "1 token"
    known = trace.tokens and trace.tokens[0].id is not None
    ids = ", each with the id by which the model knows it" if known else ""
    return Step("tokens", "tokens", "", f"The text is cut into {many}{ids}.")


def _embeddings_step(trace: Trace) -> Step:
    assert trace.embeddings is not None
    d = trace.embeddings.shape[1]
    sentence = f"Each token becomes a row of {d} numbers, the same for the same word."
    if trace.model.positions is not None:
        kind = "sines and cosines of" if trace.model.positions == "sinusoidal" else "a learned row for"
        sentence = f"Each token becomes a row of {d} numbers: its word's row, plus {kind} its position."
    return Step("embeddings", "embeddings", "X", sentence, (_step_part("embeddings", "X", trace.embeddings, "tokens"),))


def _step_part(name: str, symbol: str, array: npt.NDArray[np.float32], rows: str, columns: str = "dimensions") -> Part:
    return Part(name, symbol, array, rows, columns)


def _input_step(layer: LayerTrace) -> Step:
    assert layer.input is not None
    return Step(
        "input",
        f"input of layer {layer.layer}",
        f"X of layer {layer.layer} = residual stream",
        "What the layers before have made of each token; it takes the place of the embeddings.",
        (_step_part("input", "X", layer.input, "tokens"),),
        layer=layer.layer,
    )


def _head_steps(trace: Trace, layer: LayerTrace, at: int, head: int) -> Iterator[Step]:
    for make in _HEAD_STEPS:
        step = make(trace, layer, at)
        if step is not None:
            yield replace(step, layer=layer.layer, head=head)


def _projections_step(trace: Trace, layer: LayerTrace, at: int) -> Step | None:
    before = layer.queries_before_rope, layer.keys_before_rope
    q = layer.queries if before[0] is None else before[0]
    k = layer.keys if before[1] is None else before[1]
    names = (("queries", "Q", q, "queries"), ("keys", "K", k, "keys"), ("values", "V", layer.values, "keys"))
    parts = tuple(_step_part(name, symbol, array[at], rows) for name, symbol, array, rows in names if array is not None)
    if not parts:
        return None
    story = (
        "Query: what am I looking for? Key: what do I offer? Value: what do I share if I am chosen? "
        "As in a library: the query is what you ask, the keys are the titles on the spines, the values what is inside."
    )
    formula = "   ".join(_projection_formula(part.symbol, layer) for part in parts)
    sentence = "Each row is read in three ways: as what it looks for, what it offers, and what it passes on."
    if trace.model.kind == "dot":
        formula, sentence = "Q = K = V = X", "Without weights a row is its own query, key and value."
        parts = parts[:1]
    elif trace.model.kind == "checkpoint":
        formula, sentence = "Q, K, V", "As the model hands them to attention: projected, and turned where it uses RoPE."
    elif trace.model.kind == "matrix":
        formula, sentence = "Q, K, V", "Given outright."
    shared = trace.model.n_heads != trace.model.n_kv_heads
    if shared and layer.kv_heads:
        sentence += f" Head {layer.heads[at]} reads the keys and values of key/value head {layer.kv_heads[at]}."
    title = ", ".join(part.name for part in parts) if len(parts) > 1 else "queries, keys, values"
    return Step("projections", title, formula, sentence, parts, story)


def _projection_formula(symbol: str, layer: LayerTrace) -> str:
    bias = f" + b_{symbol}" if f"b_{symbol}" in layer.parameters else ""
    return f"{symbol} = X W_{symbol}{bias}"


def _rope_step(trace: Trace, layer: LayerTrace, at: int) -> Step | None:
    if layer.rope_angles is None or layer.queries_before_rope is None:
        return None
    assert layer.queries is not None and layer.keys is not None
    pairs = "(k, k + d/2)" if trace.model.rope_pairs != "interleaved" else "(2k, 2k + 1)"
    return Step(
        "rope",
        "rotary positions",
        f"angle = position / {trace.model.rope_theta:g}^(2k/d)",
        f"Queries and keys are turned in pairs of dimensions {pairs}, by an angle that grows with the position: a score "
        "then depends on how far apart two tokens are.",
        (
            _step_part("rope_angles", "angle in radians", layer.rope_angles, "tokens", "pairs"),
            _step_part("queries", "Q turned", layer.queries[at], "queries"),
            _step_part("keys", "K turned", layer.keys[at], "keys"),
        ),
    )


def _scores_step(trace: Trace, layer: LayerTrace, at: int) -> Step | None:
    if layer.scores is None:
        return None
    formula = "scores = X Xᵀ" if trace.model.kind == "dot" and layer.rope_angles is None else "scores = Q Kᵀ"
    return Step(
        "scores",
        "scores",
        formula,
        "Row i, column j: the dot product of i's query and j's key. The better they match, the larger it is.",
        (_step_part("scores", "scores", layer.scores[at], "queries", "keys"),),
        "Each token holds its question against every token's offer.",
    )


def _scaled_step(trace: Trace, layer: LayerTrace, at: int) -> Step | None:
    if layer.scaled_scores is None:
        return None
    scale, d_k, cap = trace.model.scale, trace.model.d_k, trace.model.soft_cap
    if scale == 1.0:
        formula, sentence = "scaled scores = scores", "Not scaled: the scores stay as they are."
    elif is_default_scale(trace):
        formula = f"scaled scores = scores / √{d_k}"
        sentence = (
            f"Divided by √{d_k} = {math.sqrt(d_k or 1):.3g}: sums of more products spread wider, and the wider the scores, "
            "the more of its row the best key takes."
        )
    else:
        shown = "scale" if scale is None else f"{scale:.6g}"
        formula = f"scaled scores = scores × {shown}"
        who = "the model sets" if trace.model.kind == "checkpoint" else "was asked for"
        sentence = f"Multiplied by the scale that {who}."
    if cap is not None:
        formula += f", capped: {cap:g} tanh(· / {cap:g})"
        sentence += f" A soft cap then keeps them within ±{cap:g}."
    parts = [_step_part("scaled_scores", "scaled scores", layer.scaled_scores[at], "queries", "keys")]
    if layer.bias is not None:
        formula += " + bias"
        sentence += " A bias for the distance is added."
        parts.insert(0, _step_part("bias", "bias", layer.bias[at], "queries", "keys"))
    story = "Without this, one match that is a little better would take everything."
    return Step("scaled", "scaled scores", formula, sentence, tuple(parts), story)


def is_default_scale(trace: Trace) -> bool:
    """Whether scores are divided by √d_k."""
    scale, d_k = trace.model.scale, trace.model.d_k
    return scale is not None and d_k is not None and math.isclose(scale, 1 / math.sqrt(d_k), rel_tol=1e-6)


def _weights_step(trace: Trace, layer: LayerTrace, at: int) -> Step | None:
    if layer.weights is None:
        return None
    t = trace.model.temperature
    inside = "scaled scores" if layer.mask is None else "masked scaled scores"
    formula = f"weights = softmax({inside}{'' if t is None else f' / {t:g}'})"
    sentence = "Each score's exponential, divided by the sum over its row: all positive, each row a whole."
    if layer.sink_weights is not None:
        formula = f"weights = softmax({inside}, sink)"
        sentence = (
            "Each score's exponential, divided by the sum over its row and a learned sink, which gives nothing back."
        )
    if trace.model.kind == "matrix" and layer.scaled_scores is None:
        formula, sentence = "weights", "As given: row i says how token i shares out its attention."
    if trace.measure is not None:
        formula, sentence = OTHERWISE[trace.measure]
    elif t is not None:
        sentence += f" A temperature of {t:g} makes rows {'flatter' if t > 1 else 'sharper'}."
    part = _step_part("weights", "weights", layer.weights[at], "queries", "keys")
    return Step(
        "weights",
        trace.measure or "weights",
        formula,
        sentence,
        (part,),
        "How much of its attention each token pays to each.",
    )


def _dropout_step(trace: Trace, layer: LayerTrace, at: int) -> Step | None:
    if layer.dropped_weights is None:
        return None
    p = trace.model.dropout or 0.0
    return Step(
        "dropout",
        "dropout",
        f"kept weights × 1/(1 - {p:g}), the others 0",
        f"In training, each weight is dropped with probability {p:g}, and the kept ones grow by {1 / (1 - p):.3g}.",
        (_step_part("dropped_weights", "weights after dropout", layer.dropped_weights[at], "queries", "keys"),),
    )


def _context_step(trace: Trace, layer: LayerTrace, at: int) -> Step | None:
    if layer.context is None:
        return None
    used = "weights" if layer.dropped_weights is None else "(weights after dropout)"
    return Step(
        "context",
        "context",
        f"context = {used} {'X' if trace.model.kind == 'dot' else 'V'}",
        "Each token's new row: every value times its weight, added up.",
        (_step_part("context", "context", layer.context[at], "queries"),),
        "What each token has learned from those it listened to.",
    )


_HEAD_STEPS = (
    *(
        matrices_step,
        _projections_step,
        _rope_step,
        _scores_step,
        _scaled_step,
        mask_step,
        _weights_step,
        difference_step,
    ),
    *(_dropout_step, _context_step, gate_step),
)


def _output_step(trace: Trace, layer: LayerTrace) -> Step:
    assert layer.output is not None
    n_heads, projected = trace.model.n_heads or len(layer.heads), "W_O" in layer.parameters
    joined = f"The contexts of {n_heads} heads stand side by side" if n_heads > 1 else "The context stands alone"
    parts = [_step_part("output", "output", layer.output, "tokens")]
    if layer.context is not None and len(layer.heads) == n_heads > 1 and projected and layer.rows is None:
        side_by_side = np.concatenate(list(layer.context), axis=-1)  # (n, heads · d_v)
        parts.insert(0, _step_part("concatenated", "side by side", side_by_side, "tokens"))
    bias = " + b_O" if "b_O" in layer.parameters else ""
    heads = "[head 0 … head " + str(n_heads - 1) + "]" if n_heads > 1 else "context"
    return Step(
        "output",
        "output",
        f"output = {heads}{' W_O' if projected else ''}{bias}",
        joined + (", and W_O mixes them into one row again." if projected else "."),
        tuple(parts),
        layer=layer.layer,
    )


def _residual_step(layer: LayerTrace) -> Step:
    assert layer.residual is not None
    return Step(
        "residual",
        "residual stream",
        "X + output",
        "What attention found is added to what was there.",
        (_step_part("residual", "X + output", layer.residual, "tokens"),),
        layer=layer.layer,
    )


def _prediction_step(trace: Trace) -> Step:
    if trace.model.kind == "checkpoint":
        if trace.model.final_norm:
            return Step(
                "prediction",
                "prediction",
                "softmax(head(norm(residual stream)))",
                "A token's row is normalised once more, and the model's own head holds it against every word.",
            )
        return Step(
            "prediction",
            "prediction",
            "softmax(head(residual stream))",
            "The model's own head holds a token's row against every word.",
        )
    return Step(
        "prediction",
        "prediction",
        "softmax(residual stream × unembedding)",
        "A token's final row is held against every word of the vocabulary.",
    )


def narrow_trace(trace: Trace, names: Collection[str]) -> Trace:
    """The trace with only the arrays that the named steps show. Raises UsageError for a name that is no step."""
    check_names(names)
    gone: dict[str, Any] = {array.name: None for array in FIELD_ARRAYS if array.step not in names}
    layers = tuple(
        replace(layer, parameters=layer.parameters if "matrices" in names else {}, **gone) for layer in trace.layers
    )
    return replace(
        trace,
        layers=layers,
        embeddings=trace.embeddings if "embeddings" in names else None,
        predictions=trace.predictions if "prediction" in names else (),
    )


def check_names(names: Collection[str]) -> None:
    """Raise UsageError for a name that is no step."""
    for name in names:
        if name not in NAMES:
            raise UsageError(f"no step {name!r}: they are {', '.join(NAMES)}")
