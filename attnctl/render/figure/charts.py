"""Figures that are no heatmaps: effects, sources, needles, speech, leaks, comparisons, statistics of heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import CenteredNorm, Normalize
from matplotlib.figure import Figure

from attnctl.document_fields import Box
from attnctl.formats.pictures import CMAP, DPI, PLAIN, Look
from attnctl.readings.alignment import FRAME_SECONDS, AlignedSpeech, heads_listed
from attnctl.readings.comparison import Comparison
from attnctl.readings.effects import EdgeEffect, Effects, SpanEffect
from attnctl.readings.effects.answer_sources import AnswerSources, PartSource
from attnctl.readings.effects.needle import Needles
from attnctl.readings.head_statistics import STATISTICS, HeadStatistics
from attnctl.readings.leaks import Leaks
from attnctl.readings.text_alignment import AlignedText
from attnctl.render.figure.drawing import INK, QUIET
from attnctl.render.figure.heatmap import colour_map, drawing_of
from attnctl.render.figure.labels import LONGEST, Labels
from attnctl.render.figure.layout import Drawing, Grids, Panel, Scale, colour_norm, token_labels
from attnctl.render.figure.photograph import RegionValues, draw_regions
from attnctl.render.figure.saving import plain_settings
from attnctl.render.forms import CHANGE
from attnctl.render.told.leaks import headline, segment_name
from attnctl.text import probability_text, shortened

if TYPE_CHECKING:
    from PIL.Image import Image

LEAST = 1e-6  # a scale's extent where all numbers are 0
MORE, LESS = "#b35806", "#542788"  # the ends of the map: for more, for less
BAR, GAP = 0.26, 0.35  # inches from bar to bar, and between two sets of them
SOURCE_UNIT = "Δ log p(answer)"
LOOKS, AGAINST, FOR = "#8fa8c8", "#b2182b", "#2166ac"
DONE = {"zero": "set to 0", "mean": "replaced by its mean", "resample": "replaced by another text's"}


def effects_drawing(found: Effects, photograph: Image | None = None) -> Drawing:
    """Heads as a grid, edges and spans as bars: whichever was measured; regions of a picture over the photograph."""
    boxes = {one.box: one for one in found.spans if one.box is not None}
    if photograph is None or not boxes:
        return _draw_heads(found) if found.heads else _draw_bars(found)
    said = [_effects_title(found), f"Left: share of the attention. Right: {_effect_unit(found)} with the region cut."]
    looks, does = [one.looked_at for one in boxes.values()], [one.signed_size for one in boxes.values()]
    return _draw_looks_and_effects(
        list(boxes), looks, does, _effect_unit(found), photograph, said, found.model.citation
    )


def _draw_looks_and_effects(
    boxes: Sequence[Box], looks: Sequence[float], does: Sequence[float], unit: str, photograph: Image,
    said: Sequence[str], cited: str, between: Sequence[RegionValues] = (),
) -> Drawing:  # fmt: skip
    """How much is looked at each region, and what its loss does, beside each other over the photograph."""
    furthest = max(*map(abs, does), LEAST)
    panels = (
        RegionValues("looked at", looks, ".1%", Normalize(0, max(*looks, LEAST)), colour_map(CMAP)),
        *between,
        RegionValues(unit, does, "+.2f", CenteredNorm(halfrange=furthest), colour_map(CHANGE)),
    )
    return draw_regions(boxes, panels, photograph, said, cited)


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
    return _bar_drawing(
        _effects_title(found), said, [_bar_label(found, one) for one in cuts], [bars], found.model.citation
    )


class Bars(NamedTuple):
    """Bars beneath each other: what they are, their values and colours, and how a value is told."""

    heading: str
    values: Sequence[float | None]  # None: there is no bar
    colours: Sequence[str]
    told: str = "+.2f"


def _bar_drawing(title: str, said: str, names: Sequence[str], several: Sequence[Bars], cited: str) -> Drawing:
    """Named bars, several sets of them beside each other, each to the left for less than 0 and to the right for more."""
    labels = Labels([title, said, *names])
    names = [labels.axis_label(name, LONGEST + 12) for name in names]
    left = 0.35 + max(labels.text_width(name, 9) for name in names)
    wide, high = 3.6 if len(several) == 1 else 2.4, BAR * len(names)
    width, height = max(left + (wide + GAP) * len(several) + 0.4, 5.0), high + 1.35
    with plain_settings():
        figure: Any = Figure(figsize=(width, height), dpi=DPI, facecolor="white", label=cited)
        FigureCanvasAgg(figure)
        for at, bars in enumerate(several):
            place = (left + at * (wide + GAP)) / width, 0.55 / height, wide / width, high / height
            axes = figure.add_axes(place)
            values = [value or 0.0 for value in bars.values]
            low, most = min(0.0, *values), max(LEAST, *values)
            room = 0.25 * (most - low)  # for the numbers
            drawn = axes.barh(range(len(values)), values, height=0.72, color=bars.colours)
            numbers = ["" if value is None else f"{value:{bars.told}}" for value in bars.values]
            axes.bar_label(drawn, numbers, padding=2.7, fontsize=8, color=INK)
            axes.set(xlim=(low - room * (low < 0), most + room), ylim=(len(values) - 0.5, -0.5))
            axes.axvline(0, color=QUIET, linewidth=0.8)
            axes.set_yticks(range(len(names)), names if at == 0 else [""] * len(names))
            for text in axes.get_yticklabels():
                text.set(parse_math=False, family=labels.family, fontsize=9)
            axes.tick_params(length=0)
            axes.tick_params(axis="x", labelsize=8, colors=QUIET)
            axes.set_xlabel(bars.heading, fontsize=9, color=QUIET)
            axes.spines[:].set_visible(False)
        head = labels.cut_to_width(labels.drawable(title), 11.5, width - 0.3)
        for text, size, colour, down in ((head, 11.5, INK, 0.25), (said, 9, QUIET, 0.5)):
            how = {"fontsize": size, "color": colour, "va": "center", "parse_math": False, "family": labels.family}
            figure.text(0.15 / width, 1 - down / height, text, **how)
    return Drawing(figure, labels.missing_characters)


def _bar_label(found: Effects, one: EdgeEffect | SpanEffect) -> str:
    if isinstance(one, SpanEffect):
        return one.name
    if one.key is None:
        return "together"
    key = f"{found.key_axis[one.key].text} {one.key}"
    return key if one.query is None else f"{found.tokens[one.query].text} {one.query} → {key}"


MOST = 30  # parts, unless told otherwise: more cannot be read


def _draw_source_regions(found: AnswerSources, regions: Mapping[Box, PartSource], photograph: Image) -> Drawing:
    answer = shortened(" ".join(found.answer.split()), 60)
    said = [
        f"{found.model.name}: “{answer}”",
        f"Left: share of the attention. Right: {SOURCE_UNIT} without the region.",
    ]
    if len(regions) < len(found.parts):
        said.append(f"{len(found.parts) - len(regions)} more regions are not drawn")
    looks, does = [one.looks for one in regions.values()], [one.matters for one in regions.values()]
    times = [one.relative for one in regions.values() if one.relative is not None]
    between = []
    if len(times) == len(regions):
        said[1] = said[1].replace("Right", "Middle: relative to a neutral prompt. Right")
        between = [RegionValues("relative attention", times, ".2f", Normalize(0, max(times)), colour_map(CMAP))]
    cited = found.model.citation
    return _draw_looks_and_effects(list(regions), looks, does, SOURCE_UNIT, photograph, said, cited, between)


def sources_drawing(found: AnswerSources, top: int | None = None, photograph: Image | None = None) -> Drawing:
    """The parts, what matters most on top; bars to the left are losses of log-probability, in nats.

    Regions of a picture are drawn over the photograph.
    """
    parts = found.parts[: top or MOST]
    regions = {one.box: one for one in parts if one.box is not None and one.alone}
    if photograph is not None and regions:
        return _draw_source_regions(found, regions, photograph)
    looks = Bars("looks (% of attention)", [100 * one.looks for one in parts], [LOOKS] * len(parts), ".1f")
    several = [looks]
    if all(one.writes is not None for one in parts):
        written = [one.writes or 0.0 for one in parts]
        several.append(Bars("writes (nats)", written, [FOR if value > 0 else AGAINST for value in written]))
    losses = [one.matters if one.alone else None for one in parts]
    several.append(Bars("matters (nats)", losses, [FOR if one.matters < 0 else AGAINST for one in parts]))
    answer = shortened(" ".join(found.answer.split()), 60)
    said = f"probability {probability_text(found.log_probability)}; matters: {SOURCE_UNIT} without the part"
    if len(parts) < len(found.parts):
        said += f"; {len(found.parts) - len(parts)} more parts are not drawn"
    names = [one.name for one in parts]
    return _bar_drawing(f"{found.model.name}: “{answer}”", said, names, several, found.model.citation)


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


INCHES_A_SECOND, INCHES_A_TOKEN = 1.4, 0.17
ALIGNED = "weight, standardised over the tokens; mean of the heads"


def alignment_drawing(found: AlignedSpeech | AlignedText) -> Drawing:
    """Tokens down, seconds across, a panel for each part of the sound, with the path along which the words were found.

    Of texts the target's tokens down, the source's across.
    """
    if isinstance(found, AlignedText):
        return _draw_links(found)
    windows = found.windows
    said = f"heads {heads_listed(found.heads)}"
    labels = Labels([found.audio, said, *(name for window in windows for name in window.tokens)])
    names = [[labels.axis_label(name, LONGEST) for name in window.tokens] for window in windows]
    left = 0.35 + max(labels.text_width(name, 7.5) for several in names for name in several)
    wide = max(5.0, INCHES_A_SECOND * max(window.weights.shape[1] for window in windows) * FRAME_SECONDS)
    wide, highs = min(wide, 30.0), [INCHES_A_TOKEN * len(several) for several in names]
    width, height = left + wide + 1.1, 0.9 + sum(highs) + 0.75 * len(highs)
    dpi = min(DPI, 8000 / max(width, height))
    with plain_settings():
        figure: Any = Figure(figsize=(width, height), dpi=dpi, facecolor="white", label=found.model.citation)
        FigureCanvasAgg(figure)
        top = height - 0.75
        for window, several, high in zip(windows, names, highs, strict=True):
            axes = figure.add_axes((left / width, (top - high) / height, wide / width, high / height))
            top -= high + 0.75
            array, seconds = window.weights[:-1], window.weights.shape[1] * FRAME_SECONDS
            extent = (window.start, window.start + seconds, len(several) - 0.5, -0.5)
            image = axes.imshow(array, cmap=colour_map(CMAP), aspect="auto", extent=extent, interpolation="nearest")
            rows, frames = window.path
            here = rows < len(several)
            axes.plot(window.start + (frames[here] + 0.5) * FRAME_SECONDS, rows[here], color="white", linewidth=1.2)
            axes.set_yticks(range(len(several)), several)
            for text in axes.get_yticklabels():
                text.set(parse_math=False, family=labels.family, fontsize=7.5)
            axes.tick_params(length=0, labelsize=7.5)
            axes.set_xlabel("seconds", fontsize=8, color=QUIET)
            place = ((left + wide + 0.15) / width, (axes.get_position().y0), 0.12 / width, high / height)
            bar = figure.colorbar(image, cax=figure.add_axes(place))
            bar.ax.tick_params(labelsize=7)
            bar.set_label(ALIGNED if high > 3.2 else "standardised weight", fontsize=7.5)
        head = labels.cut_to_width(labels.drawable(f"{found.audio}, {found.model.name}"), 11.5, width - 0.3)
        for text, size, colour, down in ((head, 11.5, INK, 0.25), (said, 9, QUIET, 0.5)):
            how = {"fontsize": size, "color": colour, "va": "center", "parse_math": False, "family": labels.family}
            figure.text(0.15 / width, 1 - down / height, text, **how)
    return Drawing(figure, labels.missing_characters)


def _draw_links(found: AlignedText) -> Drawing:
    grids = Grids(
        panels=(Panel(0, 0, "", found.weights),),
        rows=tuple(link.text for link in found.links),
        columns=token_labels(found.sources),
        scales=(Scale(Normalize(0, max(float(found.weights.max()), LEAST)), colour_map(CMAP), "weight"),),
        title=found.model.name,
        said=(f"mean of heads {heads_listed(found.heads)}",),
        axes=("target", "source"),
        cited=found.model.citation,
    )
    return drawing_of(grids)


def leaks_drawing(found: Leaks) -> Drawing:
    """Segment × segment: what may be seen, what is, and what it moves; on the diagonal a segment's own future."""
    queries, keys = (
        tuple(dict.fromkeys(which)) for which in zip(*((one.query, one.key) for one in found.pairs), strict=True)
    )
    arrays = np.zeros((3, len(queries), len(keys)), np.float32)
    there = np.zeros((len(queries), len(keys)), np.bool_)
    for pair in found.pairs:
        at = queries.index(pair.query), keys.index(pair.key)
        there[at], arrays[:, *at] = True, (max(pair.visible, default=0), pair.largest or 0, pair.change or 0)
    scales = (
        Scale(Normalize(0, 1), colour_map(CMAP), "share"),
        Scale(Normalize(0, max(float(arrays[2].max()), found.limit)), colour_map(CMAP), f"change of {found.outputs}"),
    )
    told = ("may: share of pairs visible", "does: largest weight"), f"matters: change of {found.outputs}"
    panels = [Panel(0, at, name, arrays[at], there) for at, name in enumerate(told[0] if found.layers else ())]
    panels.append(Panel(0, len(panels), told[1], arrays[2], there, scale=1))
    grids = Grids(
        panels=tuple(panels),
        rows=tuple(segment_name(found, at) for at in queries),
        columns=tuple(segment_name(found, at) for at in keys),
        scales=scales,
        title=headline(found),
        said=("on the diagonal: a segment's own future",),
        axes=("segment that looks", "segment that is seen"),
        hidden="in another row of the batch",
        cited=found.model.citation,
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
