"""Effects as a figure: heads as a grid, edges and parts as bars, regions of a picture over the photograph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.colors import CenteredNorm

from attnctl.render.figure.bars import Bars, bar_drawing
from attnctl.render.figure.head_grid import layers_by_heads
from attnctl.render.figure.heatmap import colour_map, drawing_of
from attnctl.render.figure.layout import LEAST, Drawing, Grids, Scale
from attnctl.render.figure.photograph import draw_looks_and_effects
from attnctl.render.forms import CHANGE
from attnctl.watched.effects import EdgeEffect, Effects, SpanEffect

if TYPE_CHECKING:
    from PIL.Image import Image

MORE, LESS = "#b35806", "#542788"  # the ends of the map: for more, for less
DONE = {"zero": "set to 0", "mean": "replaced by its mean", "resample": "replaced by another text's"}


def effects_drawing(found: Effects, photograph: Image | None = None) -> Drawing:
    """Return a drawing of effects: heads as a grid, edges and spans as bars, regions of a picture over the photograph."""
    boxes = {one.box: one for one in found.spans if one.box is not None}
    if photograph is None or not boxes:
        return _draw_heads(found) if found.heads else _draw_bars(found)
    said = [_effects_title(found), f"Left: share of the attention. Right: {_effect_unit(found)} with the region cut."]
    looks, does = [one.looked_at for one in boxes.values()], [one.signed_size for one in boxes.values()]
    return draw_looks_and_effects(list(boxes), looks, does, _effect_unit(found), photograph, said, found.model.citation)


def _effect_unit(found: Effects) -> str:
    if found.target is None:
        return "cosine distance"
    return "Δ logit difference" if found.against is not None else "Δ log-probability (nats)"


def _effects_title(found: Effects) -> str:
    if found.target is None:
        return found.model.name
    against = "" if found.against is None else f" against “{found.against.text.strip()}”"
    at = "after" if found.model.causal else "at"
    return f"“{found.target.text.strip()}”{against} {at} “{found.tokens[found.query].text}”, {found.model.name}"


def _draw_heads(found: Effects) -> Drawing:
    effects = {(one.layer, one.head): one.signed_size for one in found.heads}
    furthest = max(*map(abs, effects.values()), LEAST)
    how = "to first order" if found.approximation is not None else f"its output {DONE[found.how]}"
    # the line above the grid has the unit in full: beside the colour bar it is no longer than two rows of heads
    unit = _effect_unit(found).replace("log-probability", "log p").replace("logit difference", "logits")
    grids = Grids(
        **layers_by_heads(effects),
        scales=(Scale(CenteredNorm(halfrange=furthest), colour_map(CHANGE), unit),),
        title=_effects_title(found),
        said=(f"{_effect_unit(found)} without each head, {how}",),
        hidden="not measured",
        cited=found.model.citation,
    )
    return drawing_of(grids)


def _draw_bars(found: Effects) -> Drawing:
    """Return a drawing with one bar for each edge or span, in the order of the text."""
    cuts: list[EdgeEffect | SpanEffect] = [*found.edges, *found.spans]
    values, told = [one.signed_size for one in cuts], ".4f" if found.target is None else "+.2f"
    bars = Bars(_effect_unit(found), values, [MORE if value > 0 else LESS for value in values], told)
    said = f"{_effect_unit(found)} with {'each edge' if found.edges else 'each part'} cut"
    return bar_drawing(
        _effects_title(found), said, [_bar_label(found, one) for one in cuts], [bars], found.model.citation
    )


def _bar_label(found: Effects, one: EdgeEffect | SpanEffect) -> str:
    if isinstance(one, SpanEffect):
        return one.name
    if one.key is None:
        return "together"
    key = f"{found.key_axis[one.key].text} {one.key}"
    return key if one.query is None else f"{found.tokens[one.query].text} {one.query} → {key}"
