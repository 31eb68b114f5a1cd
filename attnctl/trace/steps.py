"""The steps of attention in order, as every renderer receives them: words, formula, and arrays of one layer and head."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from attnctl.errors import UsageError
from attnctl.layer import FIELD_ARRAYS, LayerTrace
from attnctl.trace import Trace, reach_of_mask, visible_past


@dataclass(frozen=True)
class StepPart:
    """One array of a step. `rows` and `columns` name what its axes count: queries, keys, tokens, or dimensions."""

    name: str
    symbol: str
    array: npt.NDArray[np.float32] | npt.NDArray[np.bool_]
    rows: str
    columns: str = "dimensions"


@dataclass(frozen=True)
class Step:
    """One step: its name, its formula, its meaning, and its arrays for one layer and head.

    `layer` and `head` are None if the step belongs to the whole text, or to all heads.
    """

    name: str
    title: str
    formula: str
    sentence: str
    parts: tuple[StepPart, ...] = ()
    story: str = ""
    layer: int | None = None
    head: int | None = None


BIASES = {"b_Q": "W_Q", "b_K": "W_K", "b_V": "W_V"}  # bias → the matrix after which it is added


def _matrices_step(trace: Trace, layer: LayerTrace, place: int) -> Step | None:
    """Return the matrices of the head at `place` in a layer; None if the source has none."""
    parameters, head = layer.parameters, layer.heads[place]
    parts = [
        StepPart(name, name, parameters[name][place], "dimensions")
        for name in ("W_Q", "W_K", "W_V")
        if name in parameters
    ]
    if "W_O" in parameters and trace.model.d_v:
        rows = slice(head * trace.model.d_v, (head + 1) * trace.model.d_v)
        parts.append(StepPart("W_O", f"W_O, the rows of head {head}", parameters["W_O"][rows], "dimensions"))
    if not parts:
        return None
    biases = [bias for bias in BIASES if bias in parameters]
    sentence = "Learned in training, the same for every text: they turn a row of X into its query, key and value"
    sentence += ", and the context into its part of the output" if "W_O" in parameters else ""
    added = f" {', '.join(biases)} {'is' if len(biases) == 1 else 'are'} added after." if biases else ""
    return Step("matrices", "matrices", "", f"{sentence}.{added}", tuple(parts))


def _projections_step(trace: Trace, layer: LayerTrace, place: int) -> Step | None:
    before = layer.queries_before_rope, layer.keys_before_rope
    q = layer.queries if before[0] is None else before[0]
    k = layer.keys if before[1] is None else before[1]
    names = (("queries", "Q", q, "queries"), ("keys", "K", k, "keys"), ("values", "V", layer.values, "keys"))
    parts = tuple(
        StepPart(name, symbol, array[place], rows) for name, symbol, array, rows in names if array is not None
    )
    if not parts:
        return None
    story = (
        "Query: what am I looking for? Key: what do I offer? Value: what do I share if I am chosen? "
        "As in a classroom: each pupil has a question, a name tag with the subject that they know, and notes to share."
    )
    biases = {part.symbol: f" + b_{part.symbol}" * (f"b_{part.symbol}" in layer.parameters) for part in parts}
    formula = "   ".join(f"{symbol} = X W_{symbol}{bias}" for symbol, bias in biases.items())
    sentence = "Each row is read in three ways: as what it looks for, what it offers, and what it passes on."
    if not trace.model.nature.has_matrices:
        formula, sentence = "Q = K = V = X", "Without weights a row is its own query, key and value."
        parts = parts[:1]
    elif trace.model.nature.is_network:
        formula, sentence = "Q, K, V", "As the model gives them to attention: projected, and rotated if it uses RoPE."
    elif trace.model.nature.is_given:
        formula, sentence = "Q, K, V", "Read from the file."
    shared = trace.model.n_heads != trace.model.n_kv_heads
    if shared and layer.kv_heads:
        sentence += f" Head {layer.heads[place]} reads the keys and values of key/value head {layer.kv_heads[place]}."
    title = ", ".join(part.name for part in parts) if len(parts) > 1 else "queries, keys, values"
    return Step("projections", title, formula, sentence, parts, story)


def _rope_step(trace: Trace, layer: LayerTrace, place: int) -> Step | None:
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
            StepPart("rope_angles", "angle in radians", layer.rope_angles, "tokens", "pairs"),
            StepPart("queries", "Q turned", layer.queries[place], "queries"),
            StepPart("keys", "K turned", layer.keys[place], "keys"),
        ),
        "Each pupil turns as the hands of a clock do, by the number of the seat: two who sit side by side still face almost "
        "the same way, wherever in the room they are.",
    )


def _scores_step(trace: Trace, layer: LayerTrace, place: int) -> Step | None:
    if layer.scores is None:
        return None
    formula = "scores = X Xᵀ" if not trace.model.nature.has_matrices and layer.rope_angles is None else "scores = Q Kᵀ"
    return Step(
        "scores",
        "scores",
        formula,
        "Row i, column j: the dot product of i's query and j's key. The better they match, the larger it is.",
        (StepPart("scores", "scores", layer.scores[place], "queries", "keys"),),
        "Each pupil holds the question against every name tag, their own too.",
    )


def _scaled_step(trace: Trace, layer: LayerTrace, place: int) -> Step | None:
    if layer.scaled_scores is None:
        return None
    scale, d_k, cap = trace.model.scale, trace.model.d_k, trace.model.soft_cap
    if trace.model.nature.has_own_code:
        formula = "scaled scores: what the softmax reads"
        sentence = (
            "Computed by the model's own code from queries and keys, with its scale, and with its bias, cap or norm if it "
            "has one."
        )
    elif scale == 1.0:
        formula, sentence = "scaled scores = scores", "Not scaled: the scores stay as they are."
    elif trace.model.has_default_scale:
        formula = f"scaled scores = scores / √{d_k}"
        sentence = (
            f"Divided by √{d_k} = {math.sqrt(d_k or 1):.3g}: sums of more products spread wider, and the wider the scores, "
            "the more of its row the best key takes."
        )
    else:
        factor = "scale" if scale is None else f"{scale:.6g}"
        formula = f"scaled scores = scores × {factor}"
        sentence = f"Multiplied by the scale that {trace.model.nature.scaled_by}."
    if cap is not None:
        formula += f", capped: {cap:g} tanh(· / {cap:g})"
        sentence += f" A soft cap then keeps them within ±{cap:g}."
    parts = [StepPart("scaled_scores", "scaled scores", layer.scaled_scores[place], "queries", "keys")]
    if layer.bias is not None:
        formula += " + bias"
        sentence += " A bias for the distance is added."
        parts.insert(0, StepPart("bias", "bias", layer.bias[place], "queries", "keys"))
    story = "Everyone speaks more softly: else one tag that fits a little better would drown out the class."
    return Step("scaled", "scaled scores", formula, sentence, tuple(parts), story)


def _mask_step(trace: Trace, layer: LayerTrace, _: int) -> Step | None:
    """Return what a query may not see, and why; None if it sees everything."""
    if layer.mask is None:
        return None
    hidden = ["the ones after it"] if trace.model.causal else []
    if (limit := _limit_of_mask(trace, layer)) is not None:
        hidden.append(limit)
    parts = [StepPart("mask", "mask", layer.mask, "queries", "keys")]
    rule = f": no token may look at {' or at '.join(hidden)}" if hidden else ""
    sentence = f"What a query may not see is hidden before the softmax{rule}."
    sentence += " Here nothing is: every query sees every key." if layer.mask.all() else ""
    story = "No one may ask a pupil who comes in later: words are written from left to right."
    return Step("mask", "mask", "hidden scores = -∞", sentence, tuple(parts), story if trace.model.causal else "")


def _limit_of_mask(trace: Trace, layer: LayerTrace) -> str | None:
    """Return in words which tokens a layer's mask hides besides later ones (outside a window or chunk, others), or None."""
    if trace.model.window is not None:
        return f"tokens {trace.model.window} positions away or more"
    n = len(trace.tokens)
    if layer.mask is None or layer.mask.shape[-1] < n or trace.key_axis[:n] != trace.tokens:  # keys of another text
        return None
    rows, past = visible_past(trace, layer)  # (n_q,), (n_q, n)
    mask, keys = layer.mask[:, :n], np.arange(n)
    if bool((mask == past).all()):
        return None
    if (reach := reach_of_mask(trace, layer)) is not None:
        return f"tokens {reach + 1} positions away or more"
    first = (rows - mask.argmax(axis=-1)).max()  # the largest distance to the furthest key of a row
    if bool((mask == (past & (rows[:, None] // (first + 1) == keys // (first + 1)))).all()):
        return f"tokens of another chunk of {first + 1}"
    return "others that this model's own mask hides"


def _weights_step(trace: Trace, layer: LayerTrace, place: int) -> Step | None:
    if layer.weights is None:
        return None
    t = trace.model.temperature
    inside = "scaled scores" if layer.mask is None else "masked scaled scores"
    formula = f"weights = softmax({inside}{'' if t is None else f' / {t:g}'})"
    changed = _changed_rows_sentence(trace)
    whole = "" if changed else ": all positive, each row a whole"
    sentence = f"Each score's exponential, divided by the sum over its row{whole}."
    if layer.sink_weights is not None:
        formula = f"weights = softmax({inside}, sink)"
        sentence = (
            "Each score's exponential, divided by the sum over its row and a learned sink, which gives nothing back."
        )
    if trace.model.nature.has_own_code and layer.scaled_scores is None:
        formula = "weights"
        sentence = (
            f"Computed by the model's own code, whose softmax or other function attnctl does not see in full{whole}."
        )
        if layer.sink_weights is not None:
            sentence = sentence.removesuffix(f"{whole}.") + ": rows may sum to less than 1."
    if trace.model.nature.is_given and layer.scaled_scores is None:
        meaning = (
            "says how token i shares out its attention"
            if "no-weights" not in trace.noted
            else "holds the numbers of token i"
        )
        formula, sentence = "weights", f"As given: row i {meaning}."
    if trace.measure is not None:
        from attnctl.measures import measure_named

        measure = measure_named(trace.measure)
        formula, sentence = measure.formula, measure.sentence
    elif t is not None:
        sentence += f" A temperature of {t:g} makes rows {'flatter' if t > 1 else 'sharper'}."
    part = StepPart("weights", "weights", layer.weights[place], "queries", "keys")
    return Step(
        "weights",
        trace.measure or "weights",
        formula,
        sentence + changed,
        (part,),
        "How much of the lesson each pupil spends listening to each." if "no-weights" not in trace.noted else "",
    )


def _changed_rows_sentence(trace: Trace) -> str:
    """Return what was changed in the rows: keys left out, rows rescaled; empty if nothing was."""
    if trace.noted >= {"left-out", "rescaled"}:
        return " Then keys are left out, and each row is rescaled to sum to 1."
    if "left-out" in trace.noted:
        return " Then keys are left out: what they took is missing from its row."
    return " Then each row is rescaled to sum to 1." if "rescaled" in trace.noted else ""


def _dropout_step(trace: Trace, layer: LayerTrace, place: int) -> Step | None:
    if layer.dropped_weights is None:
        return None
    p = trace.model.dropout or 0.0
    return Step(
        "dropout",
        "dropout",
        f"kept weights × 1/(1 - {p:g}), the others 0",
        f"In training, each weight is dropped with probability {p:g}, and the kept ones grow by {1 / (1 - p):.3g}.",
        (StepPart("dropped_weights", "weights after dropout", layer.dropped_weights[place], "queries", "keys"),),
    )


def _context_step(trace: Trace, layer: LayerTrace, place: int) -> Step | None:
    if layer.context is None:
        return None
    used = "weights" if layer.dropped_weights is None else "(weights after dropout)"
    sentence = "Each token's new row: every value times its weight, added up."
    if layer.heads[place] in trace.model.heads_off_in(layer.layer):
        sentence += f" Head {layer.heads[place]} is off: the model does not use its context."
    return Step(
        "context",
        "context",
        f"context = {used} {'X' if not trace.model.nature.has_matrices else 'V'}",
        sentence,
        (StepPart("context", "context", layer.context[place], "queries"),),
        "What stands in each notebook afterwards: the notes of those who were listened to, more of some than of others.",
    )


def _gate_step(trace: Trace, layer: LayerTrace, place: int) -> Step | None:
    """Return how far a learned gate after the context is open; None without a gate."""
    if layer.gate is None:
        return None
    open_ = float(layer.gate[place].mean())
    return Step(
        "gate",
        "gate",
        "‖gate × context‖ / ‖context‖",
        f"A learned gate lets a part of each context through: {share_text(open_)} of it on average, so this head looks, and "
        f"is {share_text(1 - open_)} shut."
        if open_ <= 1
        else f"A learned gate makes each context longer: {share_text(open_)} of what it was, on average.",
        (StepPart("gate", "open", layer.gate[place][:, None], "queries"),),
    )


def share_text(share: float) -> str:
    """Return a share for a sentence: "97 %"; a small share that is not 0 is never "0 %"."""
    percent = 100 * share
    return "less than 1 %" if 0 < percent < 0.5 else f"{percent:.0f} %"


# in the order of the mathematics
_HEAD_STEPS = (
    *(_matrices_step, _projections_step, _rope_step, _scores_step, _scaled_step, _mask_step, _weights_step),
    *(_dropout_step, _context_step, _gate_step),
)


# every name that --steps accepts: a step, or a part of a step
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
    "dropout",
    "context",
    "gate",
    "output",
    "residual",
    "prediction",
    "summary",
)


# other names of steps
STEPS_BY_MEANING = {
    "softmax": "weights", "attention": "weights", "attn": "weights", "probs": "weights", "probabilities": "weights",
    "q": "queries", "k": "keys", "v": "values", "qkv": "queries,keys,values", "projections": "queries,keys,values",
    "logits": "scores", "dot": "scores", "products": "scores", "scale": "scaled", "scaling": "scaled",
    "positions": "rope", "rotary": "rope", "w_q": "matrices", "w_k": "matrices", "w_v": "matrices", "w_o": "matrices",
    "x": "embeddings", "predictions": "prediction", "next": "prediction", "sum": "summary",
}  # fmt: skip

# the reason why a run may lack a step, and how to get it
_WHY = {
    "embeddings": "the source keeps none",
    "input": "only layers after the first have one, where the source keeps it",
    "matrices": "the source keeps none",
    "queries": "the source holds no queries and keys",
    "keys": "the source holds no queries and keys",
    "values": "the source holds no values",
    "rope": "no rotary positions here: queries and keys of random and dot can be turned (rope)",
    "scores": "the source holds weights alone",
    "scaled": "the source holds weights alone",
    "mask": "nothing is masked: a causal mask or a window would",
    "weights": "the source holds none",
    "gate": "no gate on the output of heads here",
    "dropout": "no weight is dropped: a dropout of 0.1 drops some",
    "context": "the source holds no values",
    "output": "one head without W_O: its context is the output",
    "residual": "the source adds no residual stream",
    "prediction": "no words are predicted here: name a token to predict, for a model that can",
    "summary": "the source holds no weights",
}


def walk_steps(
    trace: Trace, heads: Collection[int] | None = None, only: Collection[str] | None = None
) -> Iterator[Step]:
    """Yield the steps of `trace` in the order of the mathematics, for some heads (None: all) and names (None: all)."""
    for step in _all_steps(trace, heads):
        if step.name == "matrices" and (only is None or "matrices" not in only):
            continue  # shown only if named
        if only is None or step.name in only:
            yield step
        elif parts := tuple(part for part in step.parts if part.name in only):
            yield replace(step, parts=parts)


def _all_steps(trace: Trace, heads: Collection[int] | None) -> Iterator[Step]:
    n = len(trace.tokens)
    has_ids = trace.tokens and trace.tokens[0].id is not None
    ids = ", each with the id by which the model knows it" if has_ids else ""
    yield Step("tokens", "tokens", "", f"The text is cut into {n} token{'s' * (n != 1)}{ids}.")
    if trace.embeddings is not None:
        yield _embeddings_step(trace)
    for layer in trace.layers:
        if layer.input is not None:
            title, formula = f"input of layer {layer.layer}", f"X of layer {layer.layer} = residual stream"
            sentence = "The result of the layers before, for each token; it replaces the embeddings."
            yield Step(
                "input", title, formula, sentence, (StepPart("input", "X", layer.input, "tokens"),), layer=layer.layer
            )
        for place, head in enumerate(layer.heads):
            steps = (make(trace, layer, place) for make in _HEAD_STEPS if heads is None or head in heads)
            yield from (replace(step, layer=layer.layer, head=head) for step in steps if step is not None)
        if layer.output is not None and (len(layer.heads) > 1 or "W_O" in layer.parameters):
            yield _output_step(trace, layer)
        if layer.residual is not None:
            sentence = "The output of attention is added to its input."
            parts = (StepPart("residual", "X + output", layer.residual, "tokens"),)
            yield Step("residual", "residual stream", "X + output", sentence, parts, layer=layer.layer)
    if trace.predictions:
        yield _prediction_step(trace)
    if "no-weights" not in trace.noted and any(layer.weights is not None for layer in trace.layers):
        changes = ", once keys are left out and rows rescaled" if trace.noted >= {"left-out", "rescaled"} else ""
        yield Step(
            "summary", "where attention went", "", f"The largest weights of each row, as shares of one{changes}."
        )


def _embeddings_step(trace: Trace) -> Step:
    assert trace.embeddings is not None
    d = trace.embeddings.shape[1]
    sentence = f"Each token becomes a row of {d} numbers, the same for the same word."
    if trace.model.positions is not None:
        kind = "sines and cosines of" if trace.model.positions == "sinusoidal" else "a learned row for"
        sentence = f"Each token becomes a row of {d} numbers: its word's row, plus {kind} its position."
    return Step("embeddings", "embeddings", "X", sentence, (StepPart("embeddings", "X", trace.embeddings, "tokens"),))


def _output_step(trace: Trace, layer: LayerTrace) -> Step:
    assert layer.output is not None
    n_heads, projected = trace.model.n_heads or len(layer.heads), "W_O" in layer.parameters
    joined = f"The contexts of {n_heads} heads stand side by side" if n_heads > 1 else "The context stands alone"
    parts = [StepPart("output", "output", layer.output, "tokens")]
    off = trace.model.heads_off_in(layer.layer)
    if layer.context is not None and len(layer.heads) == n_heads > 1 and projected and layer.rows is None:
        contexts = [np.zeros_like(c) if head in off else c for head, c in enumerate(layer.context)]  # heads × (n, d_v)
        side_by_side = np.concatenate(contexts, axis=-1)  # (n, heads · d_v)
        parts.insert(0, StepPart("concatenated", "side by side", side_by_side, "tokens"))
    off_sentence = f" Head {off[0]} is off: 0 replaces its context." if off else ""
    if len(off) > 1:
        off_sentence = f" Heads {', '.join(map(str, off[:-1]))} and {off[-1]} are off: 0 replaces their contexts."
    bias = " + b_O" if "b_O" in layer.parameters else ""
    heads = "[head 0 … head " + str(n_heads - 1) + "]" if n_heads > 1 else "context"
    return Step(
        "output",
        "output",
        f"output = {heads}{' W_O' if projected else ''}{bias}",
        joined + (", and W_O mixes them into one row again." if projected else ".") + off_sentence,
        tuple(parts),
        layer=layer.layer,
    )


def _prediction_step(trace: Trace) -> Step:
    formula = "softmax(residual stream × unembedding)"
    sentence = "A token's final row is held against every word of the vocabulary."
    if trace.model.nature.is_network and trace.model.final_norm:
        formula = "softmax(head(norm(residual stream)))"
        sentence = "A token's row is normalised once more, and the model's own head holds it against every word."
    elif trace.model.nature.is_network:
        formula = "softmax(head(residual stream))"
        sentence = "The model's own head holds a token's row against every word."
    if trace.predictions[0].is_class:
        formula = "softmax(score of each class)"
        sentence = "The model's own head scores each class for the whole text or picture at once, not for one token."
    return Step("prediction", "prediction", formula, sentence)


def narrow_trace(trace: Trace, names: Collection[str]) -> Trace:
    """Return the trace with only the arrays of the named steps, and with only the layers and heads that have one.

    Raises UsageError for an unknown name.
    """
    check_names(names)
    fields, fields_of_heads = fields_of_steps(frozenset(names))
    layers = []
    for layer in trace.layers:
        kept = layer.with_fields(fields, layer.parameters if "matrices" in names else {})
        if kept.parameters or any(getattr(kept, name) is not None for name in fields_of_heads):
            layers.append(kept)
        elif any(getattr(kept, name) is not None for name in fields):
            layers.append(replace(kept, heads=(), kv_heads=()))
    return replace(
        trace,
        layers=tuple(layers),
        embeddings=trace.embeddings if "embeddings" in names else None,
        predictions=trace.predictions if "prediction" in names else (),
    )


@lru_cache
def fields_of_steps(names: frozenset[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the fields of a layer that hold the arrays of the named steps; and those of them that have heads."""
    arrays = [array for array in FIELD_ARRAYS if array.step in names]
    return tuple(array.name for array in arrays), tuple(array.name for array in arrays if array.level == "head")


def listed_steps(value: str) -> tuple[str, ...]:
    """Return the steps that a text lists, "scores,weights", or every step for "all". Raises UsageError for others."""
    names = NAMES if value.strip() == "all" else tuple(name.strip() for name in value.split(","))
    check_names(names)
    return names


def check_names(names: Collection[str]) -> None:
    """Raise UsageError for an unknown name of a step, with a similar name if possible."""
    from difflib import get_close_matches

    for name in names:
        if name not in NAMES:
            near = STEPS_BY_MEANING.get(name.casefold()) or next(iter(get_close_matches(name.casefold(), NAMES, 1)), "")
            meant = f"did you mean {near}? They" if near else "they"
            raise UsageError(f"no step {name!r}: {meant} are {', '.join(NAMES)}, or all", value=name)


def check_steps(trace: Trace, names: Sequence[str]) -> list[str]:
    """Return notes on the named steps that a run lacks. Raises UsageError if it lacks all of them."""
    lacking = [name for name in names if not any(walk_steps(trace, None, [name]))]
    notes = [f"no {name} step: {_WHY.get(name, 'this run has none')}" for name in lacking]
    if len(lacking) == len(names):
        raise UsageError(notes[0], option="steps", value=",".join(names))
    return notes
