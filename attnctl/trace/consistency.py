"""Check a trace against itself: impossible sizes and numbers, and arrays that do not follow from the others.

Every array that follows from others is recomputed by `attention.py`: when a trace is read (from a large one rows at even
distances), and completely when it is checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from attnctl import attention
from attnctl.checks import limits
from attnctl.checks.tolerances import CHECKED, HIDDEN, NOTED, STORED, SUMS, tolerance
from attnctl.errors import AttnctlError, UsageError
from attnctl.layer import LayerTrace
from attnctl.measures import measure_named
from attnctl.runtime.arrays import Bools, Floats
from attnctl.text.tokens import bare_piece
from attnctl.trace import CheckFinding, Trace
from attnctl.trace.notes import Note
from attnctl.trace.subject import Subject, numbers_in_text

CELLS = 1 << 18  # scores of a trace that are recomputed when it is read; of a larger trace, rows at even distances


_ENGLISH = re.compile("[A-Za-z]+")

# the rules in the order of the mathematics: the line of a check, and the sentence of a doubt
RULES = {
    "input": ("input against what the layer before puts out", "the input is not what the layer before puts out"),
    "queries": ("queries against X W_Q", "the queries are not X W_Q"),
    "keys": ("keys against X W_K", "the keys are not X W_K"),
    "values": ("values against X W_V", "the values are not X W_V"),
    "rope": ("queries and keys against those before RoPE", "the queries and keys are not those before RoPE, turned"),
    "scores": ("scores against Q Kᵀ", "the scores are not Q Kᵀ"),
    "scaled_scores": ("scaled scores against scores × scale", "the scaled scores are not scores × scale"),
    "weights": (
        "weights against the softmax of scaled scores",
        "the weights are not the softmax of their scaled scores",
    ),
    "hidden": ("weights on what the mask hides", "keys that the mask hides have weight"),
    "future": ("weights on later tokens", "tokens look ahead, though the model is causal"),
    "sums": ("row sums, max |Σ - 1|", "the rows do not sum to 1"),  # `weights_notes` writes the note
    "dropped_weights": ("weights after dropout", "the weights after dropout are neither 0 nor weights × 1/(1 - p)"),
    "context": ("context against weights × values", "the context is not weights × values"),
    "output": ("output against the contexts, W_O", "the output is not the contexts side by side, times W_O"),
    "residual": ("residual stream against input + output", "the residual stream is not input + output"),
}
ZERO, ONE = np.zeros((), np.float32), np.ones((), np.float32)
ALWAYS = ("scores", "scaled_scores", "weights", "context")  # a check lists these even if they cannot be recomputed


@dataclass(frozen=True)
class Gap:
    """The largest distance of a layer's array from its rule in RULES: max |Δ|, relative to the largest number there."""

    rule: str
    size: float
    layer: int
    head: int | None  # None if it belongs to all heads

    def __str__(self) -> str:
        head = "" if self.head is None else f", head {self.head}"
        return f"{self.size:.2g} (layer {self.layer}{head})"

    def holds(self, limit: float) -> bool:
        """Return whether the gap may be rounding: at most `limit`, or almost 0 where the rule requires 0."""
        return self.size <= (HIDDEN if self.rule in ("hidden", "future") else limit)


def checked_trace(trace: Trace, source: str) -> Trace:
    """Return the trace, with a note on each number that attention cannot give: range and sums of weights, and RULES.

    Raises AttnctlError, naming `source`, for impossible sizes or numbers.
    """
    check_sizes(trace, source)
    trace = with_causal_masks(trace)
    limit = max(NOTED, tolerance(STORED, trace.model.dtype))
    wrong = [gap for gap in worst_gaps(trace, CELLS) if not gap.holds(limit)]
    doubts = (Note(f"Doubtful numbers: {RULES[gap.rule][1]}, by up to {gap}.", "doubt") for gap in wrong)
    notes = (*trace.notes, *weights_notes(trace), *doubts, *place_notes(trace.subject))
    return trace.about(notes=tuple({note: note for note in notes}.values()))


def with_causal_masks(trace: Trace) -> Trace:
    """Return a causal model's trace with the masks that its file leaves out, as a file of some steps alone does.

    Without them each query would count as one that sees every key. A layer with weight on a hidden key stays as it is.
    """
    numbers = numbers_in_text(trace.tokens, trace.key_axis)
    if not trace.model.causal or numbers is None or not (trace.key_tokens is None or "left-out" in trace.noted):
        return trace

    @cache
    def visible_keys(rows: tuple[int, ...] | None, window: int | None) -> Bools:
        """Return which keys some queries (None: all) see in every layer with this window → (rows, n_k)."""
        queries = np.arange(len(trace.tokens)) if rows is None else np.asarray(rows)  # (rows,)
        return np.asarray(attention.visibility_mask(queries, np.asarray(numbers), causal=True, window=window))

    layers = []
    for layer in trace.layers:
        if layer.mask is None and layer.weights is not None:
            # layers of a model with a window may have it or not
            for window in dict.fromkeys((trace.model.window, None)):
                visible = visible_keys(layer.rows, window)
                if not layer.weights[:, ~visible].any():
                    layer = replace(layer, mask=visible)
                    break
        layers.append(layer)
    return replace(trace, layers=tuple(layers))


# --- what cannot be ----------------------------------------------------------------------------------------------


def place_notes(subject: Subject) -> list[Note]:
    """Return a note if tokens do not stand where they are said to stand in the text, as after a change by hand; else none.

    Only words of English letters are compared, since a tokenizer may change all others: accents, ligatures, single bytes.
    It may also change case, put marks before a piece, or give a piece the place of its whole word.
    """
    wrong = []
    for token in subject.tokens if subject.key_tokens is None else ():  # a decoder's tokens are of another text
        if token.special or token.unknown or token.start is None or token.end is None:
            continue
        there, name = subject.text[token.start : token.end].strip(), bare_piece(token.text).removeprefix("##")
        are_words = _ENGLISH.fullmatch(there) and _ENGLISH.fullmatch(name)
        if token.end > len(subject.text) or (
            are_words and name.lower() not in there.lower() and there.lower() not in name.lower()
        ):
            wrong.append((token, there))
    if not wrong:
        return []
    token, there = wrong[0]
    instead = f"the text has “{there}” in place of" if there else "the text ends before"
    more = f"; {len(wrong):,} tokens are so" if len(wrong) > 1 else ""
    return [Note(f"Doubtful tokens: {instead} “{token.text}”, at characters {token.start}-{token.end}{more}.", "doubt")]


def check_sizes(trace: Trace, source: str) -> None:
    """Raise AttnctlError if arrays, numbers of layers, heads and rows, or the model's sizes contradict each other."""
    n, info = len(trace.tokens), trace.model
    if not n:
        raise AttnctlError(f"{source} holds no tokens")
    if trace.measure is not None:
        try:
            measure_named(str(trace.measure))
        except UsageError:
            raise AttnctlError(f"{source}: no measure {str(trace.measure)[:40]!r}") from None
    if trace.embeddings is not None and (trace.embeddings.ndim != 2 or len(trace.embeddings) != n):
        raise AttnctlError(f"{source}: embeddings have shape {trace.embeddings.shape}, for {n} tokens")
    if len({layer.layer for layer in trace.layers}) < len(trace.layers):
        raise AttnctlError(f"{source}: a layer appears twice")
    check_head_count(sum(len(layer.heads) for layer in trace.layers), source)
    for prediction in trace.predictions:
        if not 0 <= prediction.position < n:
            raise AttnctlError(f"{source}: a prediction at token {prediction.position}, of {n}")
        if not 0 <= prediction.probability <= 1 + NOTED:
            raise AttnctlError(f"{source}: a prediction has probability {prediction.probability:g}")
    for layer in trace.layers:
        where = f"{source}: layer {layer.layer}"
        _check_number(layer.layer, info.n_layers, source, "layer")
        for noun, numbers, count in (("head", layer.heads, info.n_heads), ("row", layer.rows or (), n)):
            if len(set(numbers)) < len(numbers):
                raise AttnctlError(f"{where} has a {noun} twice")
            for number in numbers:
                _check_number(number, count, where, noun)
        for head, shared in zip(layer.heads, layer.kv_heads, strict=True):
            _check_number(shared, min(head + 1, info.n_kv_heads or head + 1), f"{where}, head {head}", "kv_head")
        _check_shapes(trace, layer, source)
        _check_shared(layer, where)


def check_head_count(count: int, source: str) -> None:
    """Raise AttnctlError if there are more heads than attnctl reads."""
    if count > limits.HEADS_IN_ALL:
        raise AttnctlError(f"{source} holds {count:,} heads in all: {limits.HEADS_IN_ALL:,} are read at most")


def _check_number(number: int, count: int | None, where: str, noun: str) -> None:
    if number < 0 or (count is not None and number >= count):
        range_text = (
            "" if count is None else f": its {noun}s are 0 to {count - 1}" if count > 1 else f": its only {noun} is 0"
        )
        raise AttnctlError(f"{where} has {noun} {number}{range_text}")


def _check_shapes(trace: Trace, layer: LayerTrace, source: str) -> None:
    """Raise AttnctlError for an array whose shape does not fit the other arrays, the tokens, or the model."""
    info, n = trace.model, len(trace.tokens)
    sizes = {"rows": n if layer.rows is None else len(layer.rows), "keys": len(trace.key_axis), "tokens": n}
    sizes |= {name: size for name, size in (("d_k", info.d_k), ("d_v", info.d_v)) if size is not None}
    if info.n_heads and info.d_v:
        sizes["heads · d_v"] = info.n_heads * info.d_v
    if trace.embeddings is not None and layer.layer == 0:
        sizes["d_model"] = trace.embeddings.shape[1]
    for array, value in layer.arrays_kept():
        heads = [len(layer.heads)] if array.level == "head" else []
        shape = [*heads, *(sizes.get(axis) for axis in array.axes)]  # None: any length
        if value.ndim != len(shape) or any(a not in (None, b) for a, b in zip(shape, value.shape, strict=True)):
            expected = "(" + ", ".join("…" if size is None else str(size) for size in shape) + ")"
            raise AttnctlError(f"{source}: {array.name} of layer {layer.layer} has shape {value.shape}, not {expected}")
        sizes |= dict(zip(array.axes, value.shape[-len(array.axes) :], strict=True))
    if "d_k" in sizes and 2 * sizes.get("d_k / 2", 0) > sizes["d_k"]:
        raise AttnctlError(
            f"{source}: rope_angles of layer {layer.layer} turn {2 * sizes['d_k / 2']} dimensions, of {sizes['d_k']}"
        )


def _check_shared(layer: LayerTrace, where: str) -> None:
    """Raise AttnctlError if two heads that read the same keys and values have different ones."""
    for place, shared in enumerate(layer.kv_heads):
        first = layer.kv_heads.index(shared)
        for name, array in (("keys", layer.keys), ("values", layer.values)):
            if first != place and array is not None and not np.array_equal(array[first], array[place]):
                raise AttnctlError(
                    f"{where}, heads {layer.heads[first]} and {layer.heads[place]} read kv_head {shared}, and have "
                    f"different {name}"
                )


# --- what does not follow ----------------------------------------------------------------------------------------


def weights_notes(trace: Trace) -> list[Note]:
    """Return what a reader must know about weights that are not from 0 to 1, or rows that do not sum to 1."""
    layers = [layer for layer in trace.layers if layer.weights is not None and layer.weights.size]
    if not layers:
        return []
    with np.errstate(all="ignore"):  # a sum beyond float32 is a large sum
        sums = [row_sums(trace, layer) for layer in layers]  # layers × (heads, rows)
    smallest, largest = min(float(part.min()) for part in sums), max(float(part.max()) for part in sums)
    low = min(float(layer.weights.min()) for layer in layers if layer.weights is not None) + 0.0  # never -0
    high = max(float(layer.weights.max()) for layer in layers if layer.weights is not None) + 0.0
    bare = trace.model.nature.is_given and all(layer.scaled_scores is None for layer in layers)
    limit = max(SUMS, 2 * tolerance(STORED, trace.model.dtype))
    noun, expected = ("numbers", "attention weights") if bare else ("weights", "those of attention")
    if low < 0 or high > 1 + NOTED:
        problem = f"{noun} go from {low:.3g} to {high:.3g}, and {expected} from 0 to 1"
    elif largest > 1 + limit:
        problem = f"rows sum to up to {largest:.3g}, and attention weights to 1"
    elif smallest < 1 - limit:  # such rows may be weights: a sink, or keys left out, took a part
        up_to = f" to {largest:.3g}" if largest - smallest > limit else ""
        bare, problem = False, f"rows sum to {smallest:.3g}{up_to}, and attention weights to 1"
    else:
        return []
    if bare:
        return [Note(f"The {problem}: are these scores?", "no-weights")]
    return [Note(f"Doubtful numbers: the {problem}.", "doubt")]


def row_sums(trace: Trace, layer: LayerTrace) -> Floats:
    """Return the sum of each row of weights and its sink → (heads, rows); at least 1 if it may be less."""
    assert layer.weights is not None
    sums: Floats = layer.weights.sum(axis=-1)  # (heads, rows)
    if layer.sink_weights is not None:
        return sums + layer.sink_weights
    if "sink" in trace.noted or ("left-out" in trace.noted and "rescaled" not in trace.noted):
        return np.maximum(sums, 1)
    may_be_less = np.zeros(sums.shape, dtype=bool)  # (heads, rows)
    if trace.noted & {"rescaled", "unseen"} or trace.measure is not None:  # such a row has no keys
        may_be_less |= sums == 0
    if layer.mask is not None:
        may_be_less |= ~layer.mask.any(axis=-1)
    return np.where(may_be_less, np.maximum(sums, 1), sums)


def findings_of_trace(trace: Trace) -> tuple[CheckFinding, ...]:
    """Return each of RULES that the arrays of a trace allow to recompute, and whether it holds everywhere."""
    limit = CHECKED * tolerance(STORED, trace.model.dtype)
    worst = {gap.rule: gap for gap in worst_gaps(trace)}
    sums = [
        _gap("sums", layer, row_sums(trace, layer), ONE, 1.0) for layer in trace.layers if layer.weights is not None
    ]
    if sums:
        worst["sums"] = max(sums, key=lambda gap: gap.size)
    findings = []
    for rule, (check, _) in RULES.items():
        if rule in worst:
            holds = worst[rule].holds(limit)
            findings.append(CheckFinding(check, holds, f"{worst[rule].size:.1e}" if holds else str(worst[rule])))
        elif rule in ALWAYS:
            findings.append(CheckFinding(check, None, "the file does not hold what they follow from"))
    return tuple(findings)


def worst_gaps(trace: Trace, cells: int | None = None) -> list[Gap]:
    """Return the largest gap of each of RULES that can be recomputed, in their order.

    Of a trace with more than `cells` scores (None: any number), only rows at even distances are recomputed.
    """
    count = sum(len(layer.heads) * len(layer.rows or trace.tokens) for layer in trace.layers) * len(trace.key_axis)
    step = 1 if cells is None else max(1, -(-count // cells))
    worst: dict[str, Gap] = {}
    before: LayerTrace | None = None
    with np.errstate(all="ignore"):  # an overflow is a large gap
        for layer in trace.layers:
            for gaps in (_gaps_of_rows(trace, layer, before, step), _gaps_of_scores(trace, layer, step)):
                for gap in gaps:
                    if gap.rule not in worst or gap.size > worst[gap.rule].size:
                        worst[gap.rule] = gap
            before = layer
    return [worst[rule] for rule in RULES if rule in worst]


def _gap(rule: str, layer: LayerTrace, stored: Floats, follows: Floats, largest: float | None = None) -> Gap:
    """Return the distance of stored numbers, (heads, …) or for all heads together (n, d), from those that follow.

    |Δ| is relative to `largest`; None: the largest number of both.
    """
    distances = np.abs(stored - follows)
    if not distances.size:
        return Gap(rule, 0.0, layer.layer, None)
    if largest is None:
        largest = max(float(np.abs(stored).max()), float(np.abs(follows).max()))
    by_head = distances.reshape(len(distances), -1).max(axis=-1)  # (heads,)
    head = layer.heads[int(by_head.argmax())] if rule not in ("input", "output", "residual") else None
    return Gap(rule, float(np.nan_to_num(by_head.max(), nan=np.inf)) / (largest or 1.0), layer.layer, head)


def _gaps_of_rows(trace: Trace, layer: LayerTrace, before: LayerTrace | None, step: int) -> Iterator[Gap]:
    """Yield the gaps of rows of vectors: a layer's input, its queries, keys and values, and its output."""
    model, parameters, n = trace.model, layer.parameters, len(trace.tokens)
    x = layer.input if layer.layer else trace.embeddings  # (n, d_model)
    sampled = np.arange(0, n, step)  # (some,), tokens
    places = sampled if layer.rows is None else np.arange(0, len(layer.rows), step)  # (some,), among the stored rows
    rows = sampled if layer.rows is None else np.asarray(layer.rows)[places]  # (some,), the tokens that these are
    if before is not None and before.layer == layer.layer - 1 and layer.input is not None:
        previous = before.output if before.residual is None else before.residual  # (n, d_model)
        if previous is not None and previous.shape == layer.input.shape:
            yield _gap("input", layer, layer.input[sampled], previous[sampled])
    rotated = layer.queries_before_rope is not None, layer.keys_before_rope is not None
    for name, symbol, array, tokens, chosen in (
        ("queries", "Q", layer.queries_before_rope if rotated[0] else layer.queries, rows, places),
        ("keys", "K", layer.keys_before_rope if rotated[1] else layer.keys, sampled, sampled),
        ("values", "V", layer.values, sampled, sampled),
    ):
        if array is not None and x is not None and f"W_{symbol}" in parameters and trace.key_tokens is None:
            projected = attention.project_heads(x[tokens], parameters[f"W_{symbol}"], parameters.get(f"b_{symbol}"))
            yield _gap(name, layer, array[:, chosen], projected)
    if layer.rope_angles is not None and trace.key_tokens is None:
        for array, plain, tokens, chosen in (
            (layer.queries, layer.queries_before_rope, rows, places),
            (layer.keys, layer.keys_before_rope, sampled, sampled),
        ):
            if array is not None and plain is not None:
                angles = layer.rope_angles[tokens]  # (some, d_k / 2)
                follows = attention.rotate_positions(plain[:, chosen], angles, model.rope_pairs or "half")
                yield _gap("rope", layer, array[:, chosen], follows)
    if layer.output is None:
        return
    whole = layer.rows is None and layer.heads == tuple(range(model.n_heads or 0))
    if layer.context is not None and whole and layer.gate is None:
        off = model.heads_off_in(layer.layer)
        contexts = np.stack([part * (head not in off) for head, part in enumerate(layer.context[:, sampled])])
        side_by_side = attention.concatenate_heads(contexts)  # (some, heads · d_v)
        if "W_O" in parameters or side_by_side.shape[1] == layer.output.shape[1]:
            follows = attention.project_output(side_by_side, parameters.get("W_O"), parameters.get("b_O"))
            yield _gap("output", layer, layer.output[sampled], follows)
    if layer.residual is not None and x is not None and x.shape == layer.output.shape:
        yield _gap("residual", layer, layer.residual[sampled], x[sampled] + layer.output[sampled])


def _gaps_of_scores(trace: Trace, layer: LayerTrace, step: int) -> Iterator[Gap]:
    """Yield the gaps of scores, weights and context, for some rows of queries over all keys."""
    model, later = trace.model, _later_keys(trace, layer)
    rows = slice(None, None, step)  # of the stored rows
    part = replace(layer, **layer.narrowed_arrays(rows=rows))
    scores, scaled, weights, mask = part.scores, part.scaled_scores, part.weights, part.mask
    if scores is not None and part.queries is not None and part.keys is not None:
        yield _gap("scores", layer, scores, attention.scores(part.queries, part.keys))
    if scaled is not None and scores is not None and model.scale is not None:
        follows = attention.scale_scores(scores, model.scale, model.soft_cap, part.bias)
        yield _gap("scaled_scores", layer, scaled, follows)
    if weights is None:
        return
    if scaled is not None and trace.measure is None:
        shares = attention.softmax(scaled, mask, temperature=model.temperature or 1.0)  # (heads, rows, n_k)
        if part.sink_weights is not None:
            shares = shares * (1 - part.sink_weights[..., None])
        elif "sink" in trace.noted:
            shares = shares * weights.sum(axis=-1, keepdims=True)
        yield _gap("weights", layer, weights, shares, 1.0)
    if mask is not None:
        yield _gap("hidden", layer, np.where(mask, ZERO, weights), ZERO, 1.0)
    if later is not None:
        yield _gap("future", layer, np.where(later[rows], weights, ZERO), ZERO, 1.0)
    if part.dropped_weights is not None:
        expected = attention.drop_weights(weights, part.dropped_weights != 0, model.dropout or 0.0)
        yield _gap("dropped_weights", layer, part.dropped_weights, expected, 1.0)
    if part.context is not None and part.values is not None:
        used = weights if part.dropped_weights is None else part.dropped_weights
        follows = attention.context(used, part.values)  # (heads, rows, d_v)
        yield _gap("context", layer, part.context, follows, float(np.abs(part.values).max(initial=0)))


def _later_keys(trace: Trace, layer: LayerTrace) -> Bools | None:
    """Return true for a key after its query → (rows, n_k); None if that is allowed, or positions are unknown."""
    if not trace.model.causal or not trace.reads_itself:
        return None
    numbers = numbers_in_text(trace.tokens, trace.key_axis) if "left-out" in trace.noted else range(len(trace.tokens))
    if numbers is None:
        return None
    places = np.full(len(trace.key_axis), -1)  # slots after the text's own keys count as before all queries
    places[: len(numbers)] = numbers
    rows = np.arange(len(trace.tokens)) if layer.rows is None else np.asarray(layer.rows)  # (rows,)
    return places > rows[:, None]
