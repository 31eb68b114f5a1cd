"""Measure how a prediction changes while heads are ablated and edges are cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnctl.public import public_names

if TYPE_CHECKING:
    from attnctl.watched.effects import ContributionPart as ContributionPart
    from attnctl.watched.effects import EdgeEffect as EdgeEffect
    from attnctl.watched.effects import Effect as Effect
    from attnctl.watched.effects import Effects as Effects
    from attnctl.watched.effects import HeadEffect as HeadEffect
    from attnctl.watched.effects import SpanEffect as SpanEffect
    from attnctl.watched.effects import effects_to_json as effects_to_json
    from attnctl.watched.effects import strongest_cuts as strongest_cuts
    from attnctl.watched.measure import EffectRequest as EffectRequest
    from attnctl.watched.measure import Watched as Watched
    from attnctl.watched.measure import chosen_heads as chosen_heads
    from attnctl.watched.measure import measure_contributions as measure_contributions
    from attnctl.watched.measure import measure_effects as measure_effects
    from attnctl.watched.measure import watched_text as watched_text
    from attnctl.watched.model import by_cross_attention as by_cross_attention
    from attnctl.watched.model import off_heads as off_heads
    from attnctl.watched.model import reference_contexts as reference_contexts
else:
    __getattr__, __dir__, __all__ = public_names(
        __name__,
        {
            "attnctl.watched.effects": (
                "ContributionPart EdgeEffect Effect Effects HeadEffect SpanEffect effects_to_json strongest_cuts"
            ),
            "attnctl.watched.measure": (
                "EffectRequest Watched chosen_heads measure_contributions measure_effects watched_text"
            ),
            "attnctl.watched.model": "by_cross_attention off_heads reference_contexts",
        },
    )
