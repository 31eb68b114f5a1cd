"""What each head does for predictions over a whole corpus: the mean effect of its removal, and its standard error."""

from __future__ import annotations

from typing import Any

from attnctl.batching.items import Item
from attnctl.errors import AttnctlError

# of each head: what it looks at most, what it writes, what its removal does (after minus before; nats, logits, 1 - cosine)
MEASURES = ("weight", "writes", "log_probability", "logit_difference", "distance")


def of_item(model: Any, item: Item, layers: list[int] | None, heads: list[int] | None) -> list[list[Any]]:
    """Layer, head, and each of MEASURES (None where it has no meaning), for every head ablated in turn over one text.

    The word watched is the item's own `word`, less its `against`, or the likeliest. Raises AttnctlError where the item is a
    trace: its numbers are computed already.
    """
    from attnctl.models.watching import watched_text
    from attnctl.readings.effects.ablation import EffectRequest
    from attnctl.readings.effects.effect_sweep import measure_effects
    from attnctl.tokens import checked_text

    if item.trace is not None:
        raise AttnctlError("a trace has no heads to switch off: give its text")
    options = item.options
    ask = EffectRequest(options.get("word"), options.get("against"), layers=layers, heads=heads)
    found = measure_effects(watched_text(model, checked_text(item.text), options.get("query")), ask)
    return [
        [one.layer, one.head, one.weight, one.writes]
        + [one.effect.log_probability, one.effect.logit_difference, one.effect.distance]
        for one in sorted(found.heads, key=lambda one: (one.layer, one.head))
    ]
