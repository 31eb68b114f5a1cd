"""The steps that only some families of models have: keys picked by an indexer, differential attention, gates."""

from __future__ import annotations

from attnctl.readings.traces.trace import LayerTrace, Trace
from attnctl.steps.step import Part, Step


def mask_step(trace: Trace, layer: LayerTrace, _: int) -> Step | None:
    """What a query may not see, and why; None where it sees everything."""
    if layer.mask is None:
        return None
    why = []
    if trace.model.causal:
        why.append("no token may look at the ones after it")
    if trace.model.window is not None:
        why.append(f"none at {trace.model.window} tokens' distance or more")
    parts = [Part("mask", "mask", layer.mask, "queries", "keys")]
    if layer.index_scores is not None:
        picked = "the others" if trace.key_tokens is None else "the compressed slots"
        why.append(f"of {picked} an indexer picks those with its highest scores")
        parts.append(Part("index_scores", "indexer's scores", layer.index_scores, "queries", "keys"))
    sentence = "What a query may not see is hidden before the softmax" + (f": {', '.join(why)}" if why else "") + "."
    sentence += " Here nothing is: every query sees every key." if layer.mask.all() else ""
    story = "Whoever writes from left to right cannot look at words that are not written yet."
    return Step("mask", "mask", "hidden scores = -∞", sentence, tuple(parts), story if trace.model.causal else "")


def difference_step(trace: Trace, layer: LayerTrace, at: int) -> Step | None:
    """The signed result of differential attention; None elsewhere."""
    if layer.signed_weights is None or layer.differential_lambda is None:
        return None
    half = (trace.model.n_heads or 2) // 2
    pair, factor = layer.heads[at] % half, float(layer.differential_lambda[0])
    return Step(
        "difference",
        "difference",
        f"weights of head {pair} - λ × weights of head {pair + half}, λ = {factor:.3g}",
        f"Heads {pair} and {pair + half} are two maps of one (Ye et al. 2024): what both look at cancels out, and a key may "
        "count against.",
        (Part("signed_weights", "difference", layer.signed_weights[at], "queries", "keys"),),
    )


def gate_step(trace: Trace, layer: LayerTrace, at: int) -> Step | None:
    """How far a learned gate after the context is open; None where there is none."""
    if layer.gate is None:
        return None
    open_ = float(layer.gate[at].mean())
    return Step(
        "gate",
        "gate",
        "‖gate × context‖ / ‖context‖",
        f"A learned gate lets a part of each context through: {said_share(open_)} of it on average, so this head looks, and "
        f"is {said_share(1 - open_)} shut."
        if open_ <= 1
        else f"A learned gate makes each context longer: {said_share(open_)} of what it was, on average.",
        (Part("gate", "open", layer.gate[at][:, None], "queries"),),
    )


def said_share(share: float) -> str:
    """A share for a sentence: "97 %"; what is not nothing is not called 0 %."""
    percent = 100 * share
    return "less than 1 %" if 0 < percent < 0.5 else f"{percent:.0f} %"
