"""A model with some of its heads off in everything that it does: traces, heatmaps, predictions, generation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from attnctl.errors import UsageError
from attnctl.interventions import Intervention, checked_heads, heads_off, spoken_heads
from attnctl.readings.traces.trace import ModelInfo


def switch_heads_off(model: Any, off: str) -> Any:
    """The model with the heads of `23.3,0.5` off. Raises UsageError for heads that are not there, or cannot be switched."""
    info = model.info
    if info.kind == "matrix":
        raise UsageError(f"--off: {info.name} has no heads to switch off: its numbers are given, not computed")
    if info.kind == "checkpoint":
        from attnctl.models.huggingface.effects.watched import check_switchable

        check_switchable(model.network)
    intervention = Intervention(off_heads(info, off))
    named = replace(info, name=f"{info.name} without {spoken_heads(intervention.heads)}", off=intervention.heads)
    return replace(model, info=named, intervention=intervention)


def with_heads_on(model: Any) -> tuple[Any, Intervention | None]:
    """The model with all its heads, and what of them was off."""
    off: Intervention | None = getattr(model, "intervention", None)
    if off is None:
        return model, None
    return replace(model, info=replace(model.info, name=model.info.card_name, off=None), intervention=None), off


def off_heads(info: ModelInfo, off: str) -> dict[int, tuple[int, ...]]:
    """Layer → heads that `off` names. Raises UsageError for one that is not there, and where nothing would be left."""
    n_layers, n_heads = info.n_layers or 1, info.n_heads or 1
    heads = checked_heads(heads_off(off), n_layers, n_heads, info.name, every_is_empty=True)
    if sum(map(len, heads.values())) >= n_layers * n_heads:
        raise UsageError(f"--off {off}: that is every head of {info.name}, and nothing is left to look at")
    return heads
