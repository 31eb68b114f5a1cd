"""A census as a picture: for each relation and direction a small map of layers × heads, coloured by accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from attnctl import __version__
from attnctl.attention import Array
from attnctl.readings.census.census_table import ALL, FEWEST, CensusTable, Relation
from attnctl.readings.census.words import DOWN, UP
from attnctl.render.figure.drawing import INK, QUIET
from attnctl.render.figure.heatmap import colour_map
from attnctl.render.figure.look import PLAIN, Look
from attnctl.render.figure.saving import plain_settings
from attnctl.text import percent, visible_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap

    from attnctl.arrays import Floats

MOST = 24  # maps of relations in a picture
ACROSS = 4
WAYS = {UP: "dependent → head", DOWN: "head → dependent"}
WIDE, HIGH = 2.6, 2.15  # inches of a map with what is written around it


def census_figure(census: CensusTable, look: Look = PLAIN) -> Figure:
    """The maps of the relations with most cases, and that of the trees, all on one scale from 0 to 100 %."""
    panels = _relation_panels(census)
    down = -(-len(panels) // ACROSS)
    across = min(ACROSS, len(panels))
    with plain_settings():
        figure = Figure(figsize=(WIDE * across + 0.9, HIGH * down + 1.0), dpi=look.dpi)
        colours, scale = colour_map(look.cmap), Normalize(0, 100)
        top, bottom = 1 - 0.72 / figure.get_figheight(), 0.48 / figure.get_figheight()
        grid = figure.add_gridspec(
            down, across, left=0.42 / figure.get_figwidth(), right=1 - 0.95 / figure.get_figwidth(), top=top, bottom=bottom,
            wspace=0.28, hspace=0.62,
        )  # fmt: skip
        axes = None
        for at, (title, below, share, best) in enumerate(panels):
            axes = figure.add_subplot(grid[at // ACROSS, at % ACROSS])
            _draw_map(axes, share, best, colours, scale)
            axes.set_title(title, fontsize=8, color=INK, loc="left", pad=13, parse_math=False)
            axes.text(0, 1.03, below, fontsize=6.5, color=QUIET, transform=axes.transAxes, parse_math=False)
            if at % ACROSS == 0:
                axes.set_ylabel("layer", fontsize=7, color=QUIET)
            if at + across >= len(panels):
                axes.set_xlabel("head", fontsize=7, color=QUIET)
        right = 1 - 0.7 / figure.get_figwidth()
        bar = figure.add_axes((right, bottom, 0.14 / figure.get_figwidth(), top - bottom))
        figure.colorbar(ScalarMappable(scale, colours), cax=bar, label="cases in which the head finds the word, %")
        bar.tick_params(labelsize=7)
        bar.yaxis.label.set_fontsize(7.5)
        heading = f"{visible_text(census.model)} on {visible_text(census.corpus)}: {census.used:,} sentences"
        heading = heading if look.title is None else visible_text(look.title)
        figure.set_label(f"attnctl {__version__}, {census.model} on {census.corpus}")  # for the metadata
        figure.text(0.02, 1 - 0.27 / figure.get_figheight(), heading, fontsize=10, color=INK, parse_math=False)
    return figure


Panel = tuple[
    str, str, Array, tuple[int, int] | None
]  # title, what stands below it, share (layers, heads), the best head


def _relation_panels(census: CensusTable) -> list[Panel]:
    found = [one for one in census.relations if one.best and one.best.scored_on >= FEWEST and not one.subtype]
    names = list(dict.fromkeys(relation.relation for relation in found))[: MOST // 2]
    panels = [_relation_panel(relation) for relation in found if relation.relation in names]
    trees = census.trees
    if trees.edges and trees.best_head is not None:
        best = trees.best_head
        below = f"{best.layer}.{best.head}: {percent(best.accuracy)}; right-branching {percent(trees.right_branching)}"
        panels.append(("spanning trees (UUAS)", below, trees.correct / trees.edges, (best.layer, best.head)))
    if not panels:
        shape: Sequence[int] = census.trees.correct.shape
        panels.append(("no relation has enough cases", "", np.zeros(shape), None))
    attends = census.attends  # other cells stay empty
    return [(title, below, np.where(attends, share, np.nan), best) for title, below, share, best in panels]


def _relation_panel(relation: Relation) -> Panel:
    best, rule = relation.best, relation.best_rule
    assert best is not None
    below = f"{best.layer}.{best.head}: {percent(best.accuracy)}"
    if rule is not None:
        said = {"offset": f"offset {rule}", "nearest": f"nearest {str(rule).split()[0]}"}.get(rule.name, rule.name)
        below += f"; {said} {percent(rule.accuracy)}"
    name = "all relations" if relation.relation == ALL else relation.relation
    share = relation.correct / relation.cases  # (layers, heads)
    return (
        f"{visible_text(name)}, {WAYS.get(relation.direction, relation.direction)}",
        below,
        share,
        (best.layer, best.head),
    )


def _draw_map(axes: Axes, share: Floats, best: tuple[int, int] | None, colours: Colormap, scale: Normalize) -> None:
    """One map, layer 0 on top; a ring around the best head."""
    axes.imshow(100 * share, cmap=colours, norm=scale, aspect="auto", interpolation="nearest")
    layers, heads = share.shape
    for axis, count in ((axes.xaxis, heads), (axes.yaxis, layers)):
        step = max(1, -(-count // 6))
        axis.set_ticks(range(0, count, step))
    axes.tick_params(labelsize=6, length=2, colors=QUIET)
    for side in axes.spines.values():
        side.set_visible(False)
    if best is not None:
        layer, head = best
        corners = (head - 0.5, head + 0.5, head + 0.5, head - 0.5, head - 0.5)
        sides = (layer - 0.5, layer - 0.5, layer + 0.5, layer + 0.5, layer - 0.5)
        axes.plot(corners, sides, color="white", linewidth=1.6, clip_on=False)
        axes.plot(corners, sides, color=INK, linewidth=0.8, clip_on=False)
