"""What the heads of a model do for the predictions of many texts: means over the texts."""

from __future__ import annotations

from attnctl.batching import Item, MeanFormat, Tally, tally_of_values
from attnctl.errors import AttnctlError
from attnctl.source import Model
from attnctl.text.tokens import checked_text
from attnctl.trace import Trace
from attnctl.watched import EffectRequest, HeadEffect, measure_effects, watched_text

# of each head: its largest weight, what it writes, the effect of its removal (after minus before; nats, logits, a
# regression's number, 1 - cosine)
MEASURES = ("weight", "writes", "log_probability", "logit_difference", "number", "distance")


class EffectMeans(MeanFormat):
    """`effects.csv`: the means of MEASURES of each head, their standard errors and numbers of texts."""

    form, measures, spread = "effects", MEASURES, "standard_error"

    @staticmethod
    def make(item: Item, trace: Trace, model: Model) -> Tally:
        """Return MEASURES of every head of the trace; each head is ablated in turn over the text.

        The watched word is the item's `target`, compared with its `against`, else the likeliest word. Raises AttnctlError if
        the item is a trace: its numbers are computed already.
        """
        if item.trace is not None:
            raise AttnctlError("a trace has no heads to switch off: give its text")
        options = item.options
        layers = [layer.layer for layer in trace.layers]
        heads = sorted({head for layer in trace.layers for head in layer.heads})
        target, against = item.target or options.get("word"), item.against or options.get("against")
        ask = EffectRequest(target, against, layers=layers, heads=heads)
        effects = measure_effects(watched_text(model, checked_text(item.text), options.get("query")), ask)
        return tally_of_values(
            (effect.layer, effect.head, name, value)
            for effect in effects.heads
            for name, value in zip(MEASURES, _measured_values(effect), strict=True)
        )


def _measured_values(effect: HeadEffect) -> tuple[float | None, ...]:
    """Return the values of MEASURES of one head, in their order."""
    predicted = effect.log_probability, effect.logit_difference, effect.number
    return effect.looks.weight, effect.writes, *predicted, effect.distance
