"""Effects as a picture: layers × heads in colours around 0, or edges and spans as bars over the text."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import CenteredNorm
from matplotlib.figure import Figure

from attnctl.readings.effects.effects import EdgeEffect, Effects, SpanEffect
from attnctl.render.colours import CHANGE
from attnctl.render.figure.grids import Drawing, Grids, Panel, Scale
from attnctl.render.figure.heatmaps.heatmap import colour_map, drawing_of
from attnctl.render.figure.heatmaps.labels import LONGEST, Labels
from attnctl.render.figure.look import DPI
from attnctl.render.figure.saving import plain_settings

LEAST = 1e-6  # a scale's extent where all numbers are 0
INK, QUIET = "#111111", "#555555"
MORE, LESS = "#b35806", "#542788"  # the ends of the map: for more, for less
BAR = 0.26  # inches from bar to bar
DONE = {"zero": "set to 0", "mean": "replaced by its mean", "resample": "replaced by another text's"}


def effects_drawing(found: Effects) -> Drawing:
    """Heads as a grid, edges and spans as bars: whichever was measured."""
    return _draw_heads(found) if found.heads else _draw_bars(found)


def _effect_unit(found: Effects) -> str:
    if found.target is None:
        return "cosine distance"
    return "Δ logit difference" if found.against is not None else "Δ log-probability (nats)"


def _short_unit(found: Effects) -> str:
    """The unit for a colour bar no longer than two rows of heads; the line above the grid has it in full."""
    if found.target is None:
        return "cosine distance"
    return "Δ logits" if found.against is not None else "Δ log p (nats)"


def _effects_title(found: Effects) -> str:
    if found.target is None:
        return found.model.name
    against = "" if found.against is None else f" against “{found.against.text.strip()}”"
    at = "after" if found.model.causal else "at"
    return f"“{found.target.text.strip()}”{against} {at} “{found.tokens[found.query].text}”, {found.model.name}"


def _draw_heads(found: Effects) -> Drawing:
    layers, numbers = sorted({one.layer for one in found.heads}), sorted({one.head for one in found.heads})
    values = np.full((len(layers), len(numbers)), np.nan, dtype=np.float32)  # (layers, heads)
    for one in found.heads:
        values[layers.index(one.layer), numbers.index(one.head)] = one.effect.signed_size
    there = np.isfinite(values)  # (layers, heads)
    furthest = max(float(np.abs(values[there]).max()), LEAST)
    how = "to first order" if found.approximation is not None else f"its output {DONE[found.how]}"
    grids = Grids(
        panels=(Panel(0, 0, "", np.where(there, values, 0), there),),
        rows=tuple(map(str, layers)),
        columns=tuple(map(str, numbers)),
        scales=(Scale(CenteredNorm(halfrange=furthest), colour_map(CHANGE), _short_unit(found)),),
        title=_effects_title(found),
        said=(f"{_effect_unit(found)} without each head, {how}",),
        axes=("layer", "head"),
        hidden="not measured",
        cited=found.model.citation,
    )
    return drawing_of(grids)


def _draw_bars(found: Effects) -> Drawing:
    """One bar an edge or a span, in the order of the text, to the left for less and to the right for more."""
    cuts: list[EdgeEffect | SpanEffect] = [*found.edges, *found.spans]
    rows = [(_bar_label(found, one), one.effect.signed_size) for one in cuts]
    title = _effects_title(found)
    labels = Labels([title, *(name for name, _ in rows)])
    names = [labels.axis_label(name, LONGEST + 12) for name, _ in rows]
    left = 0.35 + max(labels.text_width(name, 9) for name in names)
    wide, high = 3.6, BAR * len(rows)
    width, height = max(left + wide + 0.75, 5.0), high + 1.35
    with plain_settings():
        figure: Any = Figure(figsize=(width, height), dpi=DPI, facecolor="white", label=found.model.citation)
        FigureCanvasAgg(figure)
        axes = figure.add_axes((left / width, 0.55 / height, wide / width, high / height))
        values = [value for _, value in rows]
        places = range(len(rows))
        axes.barh(places, values, height=0.72, color=[MORE if value > 0 else LESS for value in values])
        furthest = max(max(map(abs, values)), LEAST)
        axes.set(xlim=(-1.3 * furthest, 1.3 * furthest), ylim=(len(rows) - 0.5, -0.5))
        axes.axvline(0, color=QUIET, linewidth=0.8)
        for place, value in zip(places, values, strict=True):
            side = "left" if value >= 0 else "right"
            gap = 0.02 * furthest * (1 if value >= 0 else -1)
            axes.text(value + gap, place, f"{value:+.2f}", ha=side, va="center", fontsize=8, color=INK)
        axes.set_yticks(list(places), names)
        for text in axes.get_yticklabels():
            text.set(parse_math=False, family=labels.family, fontsize=9)
        axes.tick_params(length=0, labelsize=9)
        axes.tick_params(axis="x", labelsize=8, colors=QUIET)
        axes.set_xlabel(_effect_unit(found), fontsize=9, color=QUIET)
        for side in ("top", "right", "left", "bottom"):
            axes.spines[side].set_visible(False)
        head = labels.cut_to_width(labels.drawable(title), 11.5, width - 0.3)
        what = "each edge" if found.edges else "each part"
        for text, size, colour, down in (
            (head, 11.5, INK, 0.25),
            (f"{_effect_unit(found)} with {what} cut", 9, QUIET, 0.5),
        ):
            at = 0.15 / width, 1 - down / height
            figure.text(*at, text, fontsize=size, color=colour, va="center", parse_math=False, family=labels.family)
    return Drawing(figure, labels.missing_characters)


def _bar_label(found: Effects, one: EdgeEffect | SpanEffect) -> str:
    if isinstance(one, SpanEffect):
        return one.name
    if one.key is None:
        return "together"
    key = f"{found.key_axis[one.key].text} {one.key}"
    return key if one.query == found.query else f"{found.tokens[one.query].text} {one.query} → {key}"
