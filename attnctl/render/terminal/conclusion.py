"""What a walk ends on: where the query of a focus looks, what may be concluded of it, or why to doubt the model."""

from __future__ import annotations

from attnctl.readings.questions.focus import Focus
from attnctl.readings.questions.roles import may_stand_for, other_name, relation_of_pronoun, roles_of_heads
from attnctl.readings.traces.trace import LayerTrace, ModelInfo, Trace
from attnctl.render.terminal.worked_example import summary_line
from attnctl.text import visible_text

PARKED = 0.5  # weight on itself, or of most words on the first token, above which that is called a place to park
PARKED_HERE = "What it keeps for itself is parked there: nothing better to look at was found."
OFTEN_PARKED = "Attention that stays on the token itself is often parked there, and then says little."
UNTRAINED = ("random", "dot")  # kinds of models that can have learned nothing, nor to park attention


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


def conclusion_of(trace: Trace, focus: Focus) -> str:
    """What a reader may conclude of the strongest link, in a sentence; empty where it speaks for itself."""
    finds = roles_of_heads(trace.model).get((focus.layer, focus.head), ())
    trained = trace.model.kind not in UNTRAINED
    if trace.reads_itself and focus.key == focus.query and focus.weight > PARKED:
        if _keys_seen(trace.layer(focus.layer), focus) == 1:
            return "It sees no other token: the softmax of one score is 1."
        return (PARKED_HERE if finds else OFTEN_PARKED) if trained else ""
    if trained and focus.key == 0 and focus.query > 3 and _most_on_first(trace.layer(focus.layer), focus.head):
        return "Most words look at the first token here: attention is parked there, and says little about it."
    if not finds or not may_stand_for(trace.tokens, focus.query, focus.key):
        return ""
    fitting = relation_of_pronoun(finds, trace.tokens[focus.query].text)
    if not fitting:
        return ""
    other = other_name(trace.tokens, focus.query, focus.key)
    if other is not None:
        pronoun, found = (visible_text(trace.tokens[at].text) for at in (focus.query, focus.key))
        return f"By their usual genders {pronoun} may be {found} or {visible_text(other)}: which of them is a guess."
    return f"This head was measured to find {fitting}; how often it is right: attnctl model {trace.model.card_name}."


def _keys_seen(layer: LayerTrace, focus: Focus) -> int:
    """How many keys the query of a focus may look at."""
    assert layer.weights is not None
    return layer.weights.shape[-1] if layer.mask is None else int(layer.mask[layer.row_of(focus.query)].sum())


def _most_on_first(layer: LayerTrace, head: int) -> bool:
    """Whether most words from the fourth on give the first token more than PARKED of their attention."""
    rows = layer.head_weights(head)[3:]  # (n - 3, n_k)
    return len(rows) > 0 and float((rows[:, 0] > PARKED).mean()) > 0.5
