"""Draw attention weights: one head, or several as small multiples with one colour bar, or one head over training."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from matplotlib.figure import Figure

from attnctl.formats.pictures import PLAIN, Look
from attnctl.readings.heatmap import Evolution, HeatmapGrid, log_span, weight_span
from attnctl.render.figure.drawing import Sheet
from attnctl.render.figure.layout import Drawing, Panel, Panels, Scale, colour_map, colour_norm, token_labels
from attnctl.render.figure.saving import plain_settings
from attnctl.source.zoom import read_heatmap
from attnctl.trace import Trace
from attnctl.trace.notes import notes_of_kind

MOST_ACROSS = 6  # heads of one layer beside each other
MOST_PANELS = 8  # of a strip


def figure_of_trace(
    trace: Trace,
    *,
    layer: Sequence[int] | None = None,
    head: Sequence[int] | None = None,
    drop: Sequence[str] = (),
    renormalise: bool = False,
    **look: Any,
) -> Figure:
    """Return a matplotlib Figure with the weights of a trace.

    `layer` and `head` choose layers and heads (None: all). `drop` leaves keys out ("first", "special", a token or its
    index), `renormalise` then rescales the rows; the picture says so. Other keywords are the fields of `Look`.
    Raises AttnctlError if there is nothing to draw, UsageError for an option that is not possible.
    """
    grid = read_heatmap(trace, layers=layer, heads=head, drop=drop, renormalise=renormalise)
    return draw_heatmap(grid, Look(**look)).figure


def draw_heatmap(grid: HeatmapGrid, look: Look = PLAIN) -> Drawing:
    """Draw weights: queries down, keys across. Raises AttnctlError if these colours cannot show the weights."""
    return drawing_of(panels_of_grid(grid, look), look)


def drawing_of(picture: Panels, look: Look = PLAIN) -> Drawing:
    """Draw panels as a picture."""
    with plain_settings():
        sheet = Sheet(picture, look)
        sheet.draw()
    return Drawing(sheet.figure, sheet.labels.missing_characters)


def panels_of_grid(grid: HeatmapGrid, look: Look) -> Panels:
    """Return the panels of a grid: several layers as rows and their heads as columns; heads of one layer in a few rows."""
    scale, notes = _colour_scale(grid, look)
    several = len(grid.layers) > 1
    n_heads = len(grid.heads)
    across = n_heads if several or n_heads <= 4 else math.ceil(n_heads / math.ceil(n_heads / MOST_ACROSS))
    panels = []
    with_roles = bool(grid.roles) and not grid.names
    for number, (layer, head, weights, mask) in enumerate(grid.panels()):
        row, column = divmod(number, across)
        if several:
            row, column = grid.layers.index(layer), grid.heads.index(head)
        name = grid.panel_name(head)
        if with_roles:  # heads without a role have a number only, so that all names look alike
            name = f"{layer}.{head} {grid.roles.get((layer, head), '')}".rstrip()
        ring = None if grid.ring is None or grid.ring[:2] != (layer, head) else grid.ring[2:]
        panels.append(Panel(row, column, name, weights, mask, ring=ring))
    return Panels(
        panels=tuple(panels),
        rows=token_labels(grid.queries),
        columns=token_labels(grid.keys),
        scales=(scale,),
        title=grid.picture_title if look.title is None else look.title,
        sentence=grid.sentence if look.title is None else "",
        notes=notes,
        below="" if grid.sinks is None else grid.sinks.caption(bool(look.log)),
        cited=grid.cited,
        row_names=tuple(f"layer {layer}" for layer in grid.layers) if several else (),
        each_named=with_roles,
    )


def _colour_scale(grid: HeatmapGrid, look: Look) -> tuple[Scale, tuple[str, ...]]:
    """Return the colours of a grid's weights, and the sentences that say how the weights were changed."""
    notes = grid.remarks
    if look.log:
        low, high, sentence = log_span(grid)
        notes = (*notes, sentence)
    else:
        low, high = weight_span(grid)
    ends = low if look.vmin is None else look.vmin, high if look.vmax is None else look.vmax
    norm = colour_norm(*ends, log=bool(look.log))
    beyond = [f"above {ends[1]:g}"] * (ends[1] < high) + [f"below {ends[0]:g}"] * (ends[0] > low)
    if beyond:
        notes = (*notes, f"all {' and all '.join(beyond)} in one colour")
    unit = grid.unit_of_cells + (", rescaled" if notes_of_kind(grid.remarks, "rescaled") else "")
    return Scale(norm, colour_map(look.cmap), unit), notes


def colour_function(cmap: str) -> Callable[[float], tuple[int, int, int]]:
    """Return a function from a share, 0 to 1, to red, green and blue, 0 to 255. Raises UsageError if no map has the name."""
    colours = colour_map(cmap)

    def colour_of_share(share: float) -> tuple[int, int, int]:
        r, g, b, _ = colours(float(share), bytes=True)
        return int(r), int(g), int(b)

    return colour_of_share


def draw_strip(run: Evolution, look: Look = PLAIN) -> Drawing:
    """Draw up to eight of the steps side by side, each with its name; the first and the last are among them."""
    last = len(run.grids) - 1
    count = min(MOST_PANELS, len(run.grids))
    # more steps of the beginning than of the end: the beginning changes most
    chosen = sorted({round(last * (number / max(count - 1, 1)) ** 1.5) for number in range(count)})
    grids = [run.grids[index] for index in chosen]
    first = grids[0]
    weights = {
        (layer, number): weights for number, grid in enumerate(grids) for (layer, _), weights in grid.weights.items()
    }
    together = replace(
        first,
        overview=replace(first.overview, grid=replace(first.cells, weights=weights)),
        names=tuple(f"step {run.steps[index]:,}" for index in chosen),
    )
    return draw_heatmap(together, on_one_scale(look, f"{run.name}, over training"))


def on_one_scale(look: Look, title: str) -> Look:
    """Return `look` with the same colours at every step: from 0 to 1, unless it sets other ends."""
    return replace(
        look,
        title=title if look.title is None else look.title,
        vmin=look.vmin if look.vmin is not None or look.log else 0.0,
        vmax=1.0 if look.vmax is None else look.vmax,
    )
