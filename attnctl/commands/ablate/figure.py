"""Effects as a figure: heads as a grid, edges and parts as bars, words shaded in the text, regions over the photograph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.colors import CenteredNorm

from attnctl.commands.ablate.show import effect_number, parts_in_text
from attnctl.readings.spans import SENTENCES, WORDS
from attnctl.render import (
    CHANGE,
    LEAST_EXTENT,
    Bars,
    Drawing,
    Scale,
    ShadedPart,
    bar_drawing,
    colour_map,
    draw_looks_and_effects,
    draw_shaded_text,
    drawing_of,
    panel_of_heads,
)
from attnctl.text import bare_word, sentence_percent
from attnctl.watched import EdgeEffect, Effects, SpanEffect

if TYPE_CHECKING:
    from PIL.Image import Image

LEAST_CHANGE = 0.01  # of a log-probability or a logit: effects that are written as 0.00 have no colour
MORE, LESS = "#b35806", "#542788"  # the ends of the map: for more, for less
DONE = {"zero": "set to 0", "mean": "replaced by its mean", "resample": "replaced by another text's"}


def effects_drawing(effects: Effects, photograph: Image | None = None) -> Drawing:
    """Return a drawing of effects.

    Heads are a grid, edges and spans bars, words and sentences the text in shades; regions lie over the photograph.
    """
    boxes = {span.box: span for span in effects.spans if span.box is not None}
    if photograph is None or not boxes:
        if effects.parts in (WORDS, SENTENCES):
            return _draw_text(effects)
        return _draw_heads(effects) if effects.heads else _draw_bars(effects)
    lines = [
        _effects_title(effects),
        f"Left: share of the attention. Right: {_effect_unit(effects)} with the region cut.",
    ]
    looks, does = [span.looked_at for span in boxes.values()], [span.signed_size for span in boxes.values()]
    return draw_looks_and_effects(
        list(boxes), looks, does, _effect_unit(effects), photograph, lines, effects.model.citation
    )


def _effect_unit(effects: Effects) -> str:
    if effects.target is None:
        return "cosine distance"
    if effects.against is not None:
        return "Δ logit difference"
    return "Δ of the number" if effects.baseline.probability is None else "Δ log-probability (nats)"


def _effects_title(effects: Effects) -> str:
    if effects.target is None:
        return effects.model.name
    against = "" if effects.against is None else f" against “{effects.against.text.strip()}”"
    place = "after" if effects.model.causal else "at"
    if effects.target.is_class:
        return f"“{effects.target.text.strip()}”{against}, {effects.model.name}"
    return (
        f"“{effects.target.text.strip()}”{against} {place} “{effects.tokens[effects.query].text}”, {effects.model.name}"
    )


def _draw_heads(effects: Effects) -> Drawing:
    sizes = {(effect.layer, effect.head): effect.signed_size for effect in effects.heads}
    furthest = max(*map(abs, sizes.values()), LEAST_EXTENT)
    how = "to first order" if effects.approximation is not None else f"its output {DONE[effects.how]}"
    # the line above the grid has the unit in full: beside the colour bar it is no longer than two rows of heads
    unit = _effect_unit(effects).replace("log-probability", "log p").replace("logit difference", "logits")
    scale = Scale(CenteredNorm(halfrange=furthest), colour_map(CHANGE), unit)
    sentence = f"{_effect_unit(effects)} without each head, {how}"
    return drawing_of(
        panel_of_heads(sizes, scale, _effects_title(effects), sentence, "not measured", effects.model.citation)
    )


def _draw_text(effects: Effects) -> Drawing:
    """Return a drawing of the text, each word or sentence shaded by the effect of hiding it."""
    furthest = max(*(span.absolute_size for span in effects.spans), LEAST_EXTENT)
    if effects.baseline.probability is not None:
        furthest = max(furthest, LEAST_CHANGE)
    scale = Scale(CenteredNorm(halfrange=furthest), colour_map(CHANGE), _effect_unit(effects))
    parts = [
        ShadedPart(text) if span is None else ShadedPart(text, span.signed_size, effect_number(effects, span))
        for text, span in parts_in_text(effects)
    ]
    sentence = f"{_effect_unit(effects)} with each {str(effects.parts).removesuffix('s')} hidden from the other tokens"
    if (share := effects.baseline.probability) is not None and effects.target is not None:
        sentence += f"; with all of them {bare_word(effects.target.text)} has {sentence_percent(share)}"
    return draw_shaded_text(_effects_title(effects), sentence, parts, scale, effects.model.citation)


def _draw_bars(effects: Effects) -> Drawing:
    """Return a drawing with one bar for each edge or span, in the order of the text."""
    cuts: list[EdgeEffect | SpanEffect] = [*effects.edges, *effects.spans]
    values, number_format = [cut.signed_size for cut in cuts], ".4f" if effects.target is None else "+.2f"
    bars = Bars(_effect_unit(effects), values, [MORE if value > 0 else LESS for value in values], number_format)
    subtitle = f"{_effect_unit(effects)} with {'each edge' if effects.edges else 'each part'} cut"
    return bar_drawing(
        _effects_title(effects), subtitle, [_bar_label(effects, cut) for cut in cuts], [bars], effects.model.citation
    )


def _bar_label(effects: Effects, cut: EdgeEffect | SpanEffect) -> str:
    if isinstance(cut, SpanEffect):
        return cut.name
    if cut.key is None:
        return "together"
    key = f"{effects.key_axis[cut.key].text} {cut.key}"
    return key if cut.query is None else f"{effects.tokens[cut.query].text} {cut.query} → {key}"
