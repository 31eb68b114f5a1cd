"""What a walk ends on: where the query of a focus looks, what may be concluded of it, or why to doubt the model."""

from __future__ import annotations

from attnctl.readings.questions.focus import Focus
from attnctl.readings.questions.roles import relation_of_pronoun, roles_of_heads
from attnctl.readings.traces.trace import LayerTrace, ModelInfo, Trace
from attnctl.render.terminal.number_grid import token_label
from attnctl.render.terminal.worked_example import summary_line
from attnctl.tokens import GUESS

PARKED = 0.5  # weight on itself, or mean weight on the first token, above which that is called a place to park


def place_name(model: ModelInfo, layer: int, head: int) -> str:
    """A layer and head by their numbers, each where the model has several: "layer 1, head 2"."""
    where = [f"layer {layer}"] if (model.n_layers or 1) > 1 else []
    return ", ".join(where + [f"head {head}"] * ((model.n_heads or 1) > 1))


def focus_sentence(trace: Trace, focus: Focus, width: int) -> str:
    """Where the query of a focus looks, in a sentence."""
    where = place_name(trace.model, focus.layer, focus.head)
    place = f"In {where}, " if where else ""
    about = trace, trace.layer(focus.layer), focus.head, focus.query
    line = summary_line(*about, width - len(place) - 1)
    if "…" in line:  # on two lines, then
        line = summary_line(*about, max(width, 60))
    return f"{place}{line}."


def doubt_of(trace: Trace) -> str | None:
    """What is said instead of shares where the model cannot read the sentence well; else None."""
    strange = [token_label(token, 16) for token in trace.tokens if token.unknown]
    if trace.model.kind not in ("demo", "weights") or len(strange) < max(2, 0.3 * len(trace.tokens)):
        return next((f"{note}." for note in trace.notes if note.endswith(GUESS)), None)
    named = ", ".join(strange[:3]) + (", …" if len(strange) > 3 else "")
    return f"{trace.model.name} does not know {len(strange)} of these {len(trace.tokens)} words ({named}): {GUESS}."


def conclusion_of(trace: Trace, focus: Focus) -> str:
    """What a reader may conclude of the strongest link, in a sentence; empty where it speaks for itself."""
    finds = roles_in_trace(trace).get((focus.layer, focus.head), ())
    if trace.reads_itself and focus.key == focus.query and focus.weight > PARKED:
        if _keys_seen(trace.layer(focus.layer), focus) == 1:
            return "It sees no other token: the softmax of one score is 1."
        return "What it keeps for itself is parked there: nothing better to look at was found."
    if focus.key == 0 and focus.query > 3 and _mean_on_first(trace.layer(focus.layer), focus.head) > PARKED:
        return "Most words look at the first token here: attention is parked there, and says little about it."
    fitting = relation_of_pronoun(finds, trace.tokens[focus.query].text)
    return f"This head was measured to find {fitting}: see attnctl model {trace.model.name}." if fitting else ""


def roles_in_trace(trace: Trace) -> dict[tuple[int, int], tuple[str, ...]]:
    """(layer, head) → the relations that the head was measured to find; none where all heads are shown together."""
    return {} if trace.measure == "rollout" else roles_of_heads(trace.model)


def _keys_seen(layer: LayerTrace, focus: Focus) -> int:
    """How many keys the query of a focus may look at."""
    assert layer.weights is not None
    return layer.weights.shape[-1] if layer.mask is None else int(layer.mask[layer.row_of(focus.query)].sum())


def _mean_on_first(layer: LayerTrace, head: int) -> float:
    """How much of their attention the words from the fourth on give to the first token, on average."""
    assert layer.weights is not None
    rows = layer.weights[layer.position_of(head)][3:]  # (n - 3, n_k)
    return float(rows[:, 0].mean()) if len(rows) else 0.0
