"""The ordered steps of a trace: name, formula, sentence, arrays. Every renderer walks this."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attnctl.errors import UsageError
from attnctl.readings.traces.trace import LayerTrace, Trace
from attnctl.readings.traces.trace_arrays import FIELD_ARRAYS
from attnctl.steps.head_steps import head_steps
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


# what a step is called elsewhere
STEPS_BY_MEANING = {
    "softmax": "weights", "attention": "weights", "attn": "weights", "probs": "weights", "probabilities": "weights",
    "q": "queries", "k": "keys", "v": "values", "qkv": "queries,keys,values", "projections": "queries,keys,values",
    "logits": "scores", "dot": "scores", "products": "scores", "scale": "scaled", "scaling": "scaled",
    "positions": "rope", "rotary": "rope", "w_q": "matrices", "w_k": "matrices", "w_v": "matrices", "w_o": "matrices",
    "x": "embeddings", "predictions": "prediction", "next": "prediction", "sum": "summary",
}  # fmt: skip

# why a run may lack a step, and what makes one
_WHY = {
    "embeddings": "the source keeps none",
    "input": "only layers after the first have one, where the source keeps it",
    "matrices": "the source keeps none",
    "queries": "the source holds no queries and keys",
    "keys": "the source holds no queries and keys",
    "values": "the source holds no values",
    "rope": "no rotary positions here: --rope turns queries and keys of random and dot",
    "scores": "the source holds weights alone",
    "scaled": "the source holds weights alone",
    "mask": "nothing is masked: --causal or --window masks",
    "weights": "the source holds none",
    "difference": "no differential attention here",
    "gate": "no gate on the output of heads here",
    "dropout": "no weight is dropped: --dropout 0.1 drops some",
    "context": "the source holds no values",
    "output": "one head without W_O: its context is the output",
    "residual": "the source adds no residual stream",
    "prediction": "no words are predicted here: --predict TOKEN, for a model that can",
    "summary": "the source holds no weights",
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
                yield from head_steps(trace, layer, at)
        if layer.output is not None and (len(layer.heads) > 1 or "W_O" in layer.parameters):
            yield _output_step(trace, layer)
        if layer.residual is not None:
            yield _residual_step(layer)
    if trace.predictions:
        yield _prediction_step(trace)
    if "no-weights" not in trace.noted and any(layer.weights is not None for layer in trace.layers):
        left = ", once keys are left out and rows rescaled" if trace.noted >= {"left-out", "rescaled"} else ""
        yield Step("summary", "where attention went", "", f"The largest weights of each row, as shares of one{left}.")


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
    return Step("embeddings", "embeddings", "X", sentence, (Part("embeddings", "X", trace.embeddings, "tokens"),))


def _input_step(layer: LayerTrace) -> Step:
    assert layer.input is not None
    return Step(
        "input",
        f"input of layer {layer.layer}",
        f"X of layer {layer.layer} = residual stream",
        "What the layers before have made of each token; it takes the place of the embeddings.",
        (Part("input", "X", layer.input, "tokens"),),
        layer=layer.layer,
    )


def _output_step(trace: Trace, layer: LayerTrace) -> Step:
    assert layer.output is not None
    n_heads, projected = trace.model.n_heads or len(layer.heads), "W_O" in layer.parameters
    joined = f"The contexts of {n_heads} heads stand side by side" if n_heads > 1 else "The context stands alone"
    parts = [Part("output", "output", layer.output, "tokens")]
    off = trace.model.heads_off_in(layer.layer)
    if layer.context is not None and len(layer.heads) == n_heads > 1 and projected and layer.rows is None:
        contexts = [np.zeros_like(c) if at in off else c for at, c in enumerate(layer.context)]  # heads × (n, d_v)
        side_by_side = np.concatenate(contexts, axis=-1)  # (n, heads · d_v)
        parts.insert(0, Part("concatenated", "side by side", side_by_side, "tokens"))
    bias = " + b_O" if "b_O" in layer.parameters else ""
    heads = "[head 0 … head " + str(n_heads - 1) + "]" if n_heads > 1 else "context"
    return Step(
        "output",
        "output",
        f"output = {heads}{' W_O' if projected else ''}{bias}",
        joined + (", and W_O mixes them into one row again." if projected else ".") + _said_off(off),
        tuple(parts),
        layer=layer.layer,
    )


def _said_off(heads: Sequence[int]) -> str:
    """What stands in place of the contexts of heads that are off; nothing where none is."""
    if not heads:
        return ""
    if len(heads) == 1:
        return f" Head {heads[0]} is off: 0 stands in its place."
    return f" Heads {', '.join(map(str, heads[:-1]))} and {heads[-1]} are off: 0 stands in their place."


def _residual_step(layer: LayerTrace) -> Step:
    assert layer.residual is not None
    return Step(
        "residual",
        "residual stream",
        "X + output",
        "What attention found is added to what was there.",
        (Part("residual", "X + output", layer.residual, "tokens"),),
        layer=layer.layer,
    )


def _prediction_step(trace: Trace) -> Step:
    formula = "softmax(residual stream × unembedding)"
    sentence = "A token's final row is held against every word of the vocabulary."
    if trace.model.kind == "checkpoint" and trace.model.final_norm:
        formula = "softmax(head(norm(residual stream)))"
        sentence = "A token's row is normalised once more, and the model's own head holds it against every word."
    elif trace.model.kind == "checkpoint":
        formula = "softmax(head(residual stream))"
        sentence = "The model's own head holds a token's row against every word."
    return Step("prediction", "prediction", formula, sentence)


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


def rounded_trace(trace: Trace, decimals: int) -> Trace:
    """The trace with every number rounded to so many decimals, parameters too."""

    def rounded(array: Any) -> Any:
        if array is None or array.dtype.kind != "f":
            return array
        return np.round(array.astype(np.float64), decimals).astype(array.dtype)  # float32 would round twice

    layers = []
    for layer in trace.layers:
        fields = {array.name: rounded(getattr(layer, array.name)) for array in FIELD_ARRAYS}
        parameters = {name: rounded(array) for name, array in layer.parameters.items()}
        layers.append(replace(layer, parameters=parameters, **fields))
    return replace(
        trace,
        embeddings=rounded(trace.embeddings),
        layers=tuple(layers),
        predictions=tuple(replace(one, probability=round(one.probability, decimals)) for one in trace.predictions),
    )


def check_names(names: Collection[str]) -> None:
    """Raise UsageError for a name that is no step, with the one that was meant where that can be told."""
    from difflib import get_close_matches

    for name in names:
        if name not in NAMES:
            near = STEPS_BY_MEANING.get(name.casefold()) or next(iter(get_close_matches(name.casefold(), NAMES, 1)), "")
            meant = f"did you mean {near}? They" if near else "they"
            raise UsageError(f"no step {name!r}: {meant} are {', '.join(NAMES)}")


def check_steps(trace: Trace, names: Sequence[str]) -> list[str]:
    """Notes on the named steps that a run lacks. Raises UsageError where it has none of them."""
    lacking = [name for name in names if not any(walk_steps(trace, None, [name]))]
    said = [f"no {name} step: {_WHY.get(name, 'this run has none')}" for name in lacking]
    if len(lacking) == len(names):
        raise UsageError(f"--steps {','.join(names)}: {said[0]}")
    return said
