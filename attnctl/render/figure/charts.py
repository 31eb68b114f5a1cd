"""Figures that are no heatmaps: effects, comparisons, statistics of heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.colors import CenteredNorm

from attnctl.formats.pictures import PLAIN, Look
from attnctl.readings.comparison import Comparison
from attnctl.readings.effects import EdgeEffect, Effects, SpanEffect
from attnctl.readings.head_statistics import STATISTICS, HeadStatistics
from attnctl.render.figure.bars import Bars, bar_drawing
from attnctl.render.figure.heatmap import colour_map, drawing_of
from attnctl.render.figure.layout import LEAST, Drawing, Grids, Panel, Scale, colour_norm
from attnctl.render.figure.photograph import draw_looks_and_effects
from attnctl.render.forms import CHANGE

if TYPE_CHECKING:
    from PIL.Image import Image

MORE, LESS = "#b35806", "#542788"  # the ends of the map: for more, for less
DONE = {"zero": "set to 0", "mean": "replaced by its mean", "resample": "replaced by another text's"}


def effects_drawing(found: Effects, photograph: Image | None = None) -> Drawing:
    """Heads as a grid, edges and spans as bars: whichever was measured; regions of a picture over the photograph."""
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
        **_layers_by_heads(effects),
        scales=(Scale(CenteredNorm(halfrange=furthest), colour_map(CHANGE), unit),),
        title=_effects_title(found),
        said=(f"{_effect_unit(found)} without each head, {how}",),
        hidden="not measured",
        cited=found.model.citation,
    )
    return drawing_of(grids)


def _layers_by_heads(values: Mapping[tuple[int, int], float | None]) -> dict[str, Any]:
    """The panel and the labels of a grid of (layer, head) → value, masked where there is none."""
    layers, heads = (sorted(set(numbers)) for numbers in zip(*values, strict=True))
    known = {place: value for place, value in values.items() if value is not None}
    array = np.array([[known.get((layer, head), np.nan) for head in heads] for layer in layers], dtype=np.float32)
    there = np.isfinite(array)  # (layers, heads)
    panel = Panel(0, 0, "", np.where(there, array, 0), there)
    labels = {"rows": tuple(map(str, layers)), "columns": tuple(map(str, heads))}
    return {"panels": (panel,), "axes": ("layer", "head"), **labels}


def _draw_bars(found: Effects) -> Drawing:
    """One bar an edge or a span, in the order of the text."""
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


def comparison_panels(pair: Comparison, layer: int, head: int, look: Look = PLAIN) -> Drawing:
    """The weights of A and B at one place, and their difference."""
    a, b = pair.both_weights(layer, head)  # (n_q, n_k) each
    rows, columns = pair.axis_labels()
    masks = pair.both_masks(layer)
    hidden = pair.hidden_in_one(layer)
    change_of = b - a if hidden is None else np.where(hidden, 0, b - a)  # (n_q, n_k)
    top = max(float(a.max()), float(b.max()), LEAST) if look.vmax is None else look.vmax
    weights = Scale(colour_norm(look.vmin or 0.0, top), colour_map(look.cmap), "weight")
    furthest = max(float(np.abs(change_of).max()), LEAST)
    change = Scale(CenteredNorm(halfrange=furthest), colour_map(CHANGE), "difference")
    names = f"A  {pair.names[0]}", f"B  {pair.names[1]}", "B - A"
    arrays = zip(names, (a, b, change_of), (0, 0, 1), masks, strict=True)
    grids = Grids(
        panels=tuple(Panel(0, at, name, array, mask, scale) for at, (name, array, scale, mask) in enumerate(arrays)),
        rows=tuple(rows),
        columns=tuple(columns),
        scales=(weights, change),
        said=(said,) if (said := pair.unmatched_tokens()) else (),
        title=f"layer {layer}, head {head}" if look.title is None else look.title,
        cited=f"A {pair.a.model.citation}; B {pair.b.model.citation}",
    )
    return drawing_of(grids, replace(look, log=False))


def statistic_grid(
    heads: Sequence[HeadStatistics], name: str, title: str, look: Look = PLAIN, cited: str = ""
) -> Drawing:
    """The statistic `name` of STATISTICS as colour and number; a head without it is hatched; `cited` is for the metadata."""
    values = {(one.layer, one.head): one[name] for one in heads}
    top = max((value for value in values.values() if value is not None), default=0.0)
    ends = look.vmin or 0.0, look.vmax if look.vmax is not None else top or 1.0
    grids = Grids(
        **_layers_by_heads(values),
        scales=(Scale(colour_norm(*ends), colour_map(look.cmap), STATISTICS[name].unit or name),),
        title=title if look.title is None else look.title,
        said=(STATISTICS[name].title_with_unit,),
        hidden="no value",
        cited=cited,
    )
    return drawing_of(grids, look)
