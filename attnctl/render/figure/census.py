"""A census as a picture: for each relation and direction a small map of layers × heads, coloured by accuracy."""

from __future__ import annotations

import numpy as np
from matplotlib.colors import Normalize

from attnctl import __version__
from attnctl.attention import Array
from attnctl.readings.census.census_table import ALL, FEWEST, CensusTable, Relation
from attnctl.readings.census.words import DOWN, TO_ANTECEDENT, UP
from attnctl.render.figure.heatmap import colour_map, drawing_of
from attnctl.render.figure.layout import Drawing, Grids, Panel, Scale
from attnctl.render.figure.look import PLAIN, Look
from attnctl.text import percent, visible_text

MOST = 24  # maps of relations in a picture
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
    names = list(dict.fromkeys(relation.relation for relation in found))[: MOST // 2]
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
