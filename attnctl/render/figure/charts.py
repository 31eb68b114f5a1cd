"""Figures that are no heatmaps: sources, needles, a census."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.colors import Normalize

from attnctl import __version__
from attnctl.attention import Array
from attnctl.document_fields import Box
from attnctl.formats.pictures import CMAP, PLAIN, Look
from attnctl.readings.census.census_table import ALL, FEWEST, CensusTable, Relation
from attnctl.readings.census.words import DOWN, TO_ANTECEDENT, UP
from attnctl.readings.effects.answer_sources import AnswerSources, PartSource
from attnctl.readings.effects.needle import Needles
from attnctl.render.figure.bars import Bars, bar_drawing
from attnctl.render.figure.heatmap import colour_map, drawing_of
from attnctl.render.figure.layout import Drawing, Grids, Panel, Scale
from attnctl.render.figure.photograph import RegionValues, draw_looks_and_effects
from attnctl.text import percent, probability_text, shortened, visible_text

if TYPE_CHECKING:
    from PIL.Image import Image

SOURCE_UNIT = "Δ log p(answer)"
LOOKS, AGAINST, FOR = "#8fa8c8", "#b2182b", "#2166ac"

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
    return draw_looks_and_effects(list(regions), looks, does, SOURCE_UNIT, photograph, said, cited, between)


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
    return bar_drawing(f"{found.model.name}: “{answer}”", said, names, several, found.model.citation)


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


# --- a census ---

MOST_MAPS = 24  # maps of relations in a picture
ACROSS = 4
WAYS = {UP: "→ its head", DOWN: "→ its dependents", TO_ANTECEDENT: "→ antecedent"}
READ = "how often a head's largest weight is on the right word; a ring around the best head"
Map = tuple[str, Array, tuple[int, int] | None]  # its name in two lines, shares (layers, heads), the best head


def census_drawing(census: CensusTable, look: Look = PLAIN) -> Drawing:
    """The maps of the relations with most cases, and that of the trees, all on one scale from 0 to 1."""
    maps = _relation_maps(census)
    layers, heads = census.head_grid
    panels = tuple(
        Panel(*divmod(at, ACROSS), name, np.where(census.attends, share, 0), census.attends, ring=best)
        for at, (name, share, best) in enumerate(maps)
    )
    heading = f"{visible_text(census.model)} on {visible_text(census.corpus)}: {census.used:,} sentences"
    grids = Grids(
        panels=panels,
        rows=tuple(map(str, range(layers))),
        columns=tuple(map(str, range(heads))),
        scales=(Scale(Normalize(0, 1), colour_map(look.cmap), "share of cases"),),
        title=heading if look.title is None else visible_text(look.title),
        said=(*(maps[0][0].split("\n") if len(maps) == 1 else ()), READ),
        axes=("layer", "head"),
        hidden="no attention",
        cited=f"attnctl {__version__}, {census.model} on {census.corpus}",
    )
    return drawing_of(grids, look)


def _relation_maps(census: CensusTable) -> list[Map]:
    found = [one for one in census.relations if one.best and one.best.scored_on >= FEWEST and not one.subtype]
    names = list(dict.fromkeys(relation.relation for relation in found))[: MOST_MAPS // 2]
    maps = [_relation_map(relation) for relation in found if relation.relation in names]
    trees = census.trees
    if trees.edges and trees.best_head is not None:
        best = trees.best_head
        below = f"{best.layer}.{best.head}: {percent(best.accuracy)}; right-branch {percent(trees.right_branching)}"
        maps.append((f"spanning trees (UUAS)\n{below}", trees.correct / trees.edges, (best.layer, best.head)))
    return maps or [("no relation has enough cases", np.zeros(census.head_grid), None)]


def _relation_map(relation: Relation) -> Map:
    best, rule_name = relation.best, relation.best_rule
    assert best is not None
    below = f"{best.layer}.{best.head}: {percent(best.accuracy)}"
    if rule_name is not None:
        rule = relation.rules[rule_name]
        more = {"offset": f" {rule.sentence(rule_name)}", "nearest": f" {rule.tag or rule_name}"}
        said = rule_name + more.get(rule_name, "")
        below += f"; {said} {percent(rule.accuracy)}"
    name = "all relations" if relation.relation == ALL else visible_text(relation.relation)
    title = f"{name} {WAYS[relation.direction]}"
    return f"{title}\n{below}", relation.correct / relation.cases, (best.layer, best.head)
