"""Figures that are no heatmaps: effects, sources of an answer, needles, comparisons, statistics of heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import CenteredNorm, Normalize
from matplotlib.figure import Figure

from attnctl.readings.effects.answer_sources import AnswerSources
from attnctl.readings.effects.effects import EdgeEffect, Effects, SpanEffect
from attnctl.readings.effects.needle import Needles
from attnctl.readings.head_statistics import STATISTICS, HeadStatistics
from attnctl.readings.traces.comparison import Comparison
from attnctl.render.colours import CHANGE
from attnctl.render.figure.drawing import LONGEST, Labels
from attnctl.render.figure.heatmap import colour_map, drawing_of
from attnctl.render.figure.layout import Drawing, Grids, Panel, Scale
from attnctl.render.figure.look import CMAP, DPI, PLAIN, Look
from attnctl.render.figure.saving import plain_settings
from attnctl.text import probability_text

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


MOST = 30  # parts, unless told otherwise: more cannot be read
NAME = 36  # characters of a part's name
LOOKS, AGAINST, FOR = "#8fa8c8", "#b2182b", "#2166ac"


def source_bars(found: AnswerSources, top: int | None = None) -> Figure:
    """The parts, what matters most on top; bars to the left are losses of log-probability, in nats."""
    parts = found.parts[: top or MOST]
    names = Labels([one.part.name for one in parts])
    figure = Figure(figsize=(7.2, 1.5 + 0.28 * len(parts)), dpi=200, layout="constrained")
    written = [one.writes for one in parts if one.writes is not None]
    left, *between, right = figure.subplots(1, 3 if written else 2, sharey=True)
    rows = range(len(parts))
    left.barh(rows, [100 * one.looks for one in parts], color=LOOKS)
    left.set_xlabel("looks: % of the answer's attention")
    for axes in between:
        axes.barh(rows, written, color=[FOR if value > 0 else AGAINST for value in written])
        axes.axvline(0, color="black", linewidth=0.6)
        axes.set_xlabel("writes: to log p(answer), nats")
    left.set_yticks(rows, [names.axis_label(one.part.name, NAME) for one in parts])
    left.invert_yaxis()
    losses = [one.matters if one.alone else 0.0 for one in parts]
    right.barh(rows, losses, color=[FOR if one.matters < 0 else AGAINST for one in parts])
    right.axvline(0, color="black", linewidth=0.6)
    right.set_xlabel("matters: Δ log p(answer) without it, nats")
    for axes in (left, *between, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=7)
        axes.xaxis.label.set_size(7)
    answer = names.axis_label(" ".join(found.answer.split()), 60)
    figure.suptitle(
        f"{found.model.name}: “{answer}”, probability {probability_text(found.log_probability)}", fontsize=9
    )
    if len(parts) < len(found.parts):
        figure.supxlabel(f"{len(found.parts) - len(parts)} more parts are not drawn", fontsize=7)
    return figure


SHARE = "share of the answer's attention on the needle"


def needle_drawing(found: Needles) -> Drawing:
    """All needles at the left, at the right those that were answered, the others hatched; colours and numbers are shares."""
    shares, lengths, depths = found.depth_grid("found")  # (depths, lengths)
    asked = np.isfinite(shares)  # (depths, lengths)
    answered = asked & (found.depth_grid("answered")[0] == 1)  # (depths, lengths)
    shares = np.where(asked, shares, 0)  # (depths, lengths)
    grids = Grids(
        panels=(Panel(0, 0, "asked", shares, asked), Panel(0, 1, "answered", shares, answered)),
        rows=tuple(f"{100 * depth:g} %" for depth in depths),
        columns=tuple(f"{length:,}" for length in lengths),
        scales=(Scale(Normalize(0, float(shares.max()) or 1.0), colour_map(CMAP), "share"),),
        title=f"{found.run.model.name}: {found.answered_count} of {len(found.cells)} needles answered",
        said=(SHARE,),
        axes=("depth of the needle", "tokens of the prompt"),
        hidden="not answered" if asked.all() else "not answered, or not asked",
        cited=found.run.model.citation,
    )
    return drawing_of(grids)


def comparison_panels(pair: Comparison, layer: int, head: int, look: Look = PLAIN) -> Drawing:
    """The weights of A and B at one place, and their difference."""
    a, b = pair.both_weights(layer, head)  # (n_q, n_k) each
    rows, columns = pair.axis_labels()
    masks = pair.both_masks(layer)
    hidden = pair.hidden_in_one(layer)
    change_of = b - a if hidden is None else np.where(hidden, 0, b - a)  # (n_q, n_k)
    top = max(float(a.max()), float(b.max()), LEAST) if look.vmax is None else look.vmax
    weights = Scale(Normalize(look.vmin or 0.0, top), colour_map(look.cmap), "weight")
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
    layers, numbers = sorted({one.layer for one in heads}), sorted({one.head for one in heads})
    values = np.full((len(layers), len(numbers)), np.nan, dtype=np.float32)  # (layers, heads)
    for one in heads:
        value = one[name]
        values[layers.index(one.layer), numbers.index(one.head)] = np.nan if value is None else value
    there = np.isfinite(values)  # (layers, heads)
    top = float(values[there].max()) if there.any() else 0.0
    ends = look.vmin or 0.0, look.vmax if look.vmax is not None else top or 1.0
    grids = Grids(
        panels=(Panel(0, 0, "", np.where(there, values, 0), there),),
        rows=tuple(map(str, layers)),
        columns=tuple(map(str, numbers)),
        scales=(Scale(Normalize(*ends), colour_map(look.cmap), STATISTICS[name].unit or name),),
        title=title if look.title is None else look.title,
        said=(STATISTICS[name].title_with_unit,),
        axes=("layer", "head"),
        hidden="no value",
        cited=cited,
    )
    return drawing_of(grids, look)
