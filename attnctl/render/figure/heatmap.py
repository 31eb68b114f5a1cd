"""Attention weights as a picture: one head as an annotated grid, several as labelled small multiples with one colour bar."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib import colormaps
from matplotlib.colors import Colormap, LogNorm, Normalize
from matplotlib.figure import Figure

from attnctl.errors import UsageError
from attnctl.formats.pictures import PLAIN, Look
from attnctl.readings.heatmap import HeatmapGrid, log_span, weight_span
from attnctl.readings.traces.trace import Trace, notes_of_kind
from attnctl.render.figure.drawing import Sheet
from attnctl.render.figure.layout import Drawing, Grids, Panel, Scale, token_labels
from attnctl.render.figure.saving import plain_settings
from attnctl.source.cells import read_heatmap

MOST_ACROSS = 6  # heads of one layer beside each other


def figure_of_trace(
    trace: Trace,
    *,
    layer: Sequence[int] | None = None,
    head: Sequence[int] | None = None,
    drop: Sequence[str] = (),
    renormalise: bool = False,
    **look: Any,
) -> Figure:
    """The weights of a trace as a matplotlib Figure.

    `layer` and `head` choose (None: all there are). `drop` leaves keys out ("first", "special", a token or its index),
    `renormalise` then rescales the rows; the picture says so. Other keywords are those of `Look`.
    Raises AttnctlError where there is nothing to draw, UsageError for an option that cannot be.
    """
    reading = read_heatmap(trace, layers=layer, heads=head, drop=drop, renormalise=renormalise)
    return draw_heatmap(reading, Look(**look)).figure


def draw_heatmap(reading: HeatmapGrid, look: Look = PLAIN) -> Drawing:
    """Weights as a picture: queries down, keys across. Raises AttnctlError for weights that have no such colours."""
    return drawing_of(grids_of_reading(reading, look), look)


def drawing_of(grids: Grids, look: Look = PLAIN) -> Drawing:
    """Grids as a picture."""
    with plain_settings():
        sheet = Sheet(grids, look)
        sheet.draw()
    return Drawing(sheet.figure, sheet.labels.missing_characters)


def grids_of_reading(reading: HeatmapGrid, look: Look) -> Grids:
    """The grids of a reading: several layers as rows and their heads as columns, the heads of one layer in a few rows."""
    scale, said = _colour_scale(reading, look)
    several = len(reading.layers) > 1
    n_heads = len(reading.heads)
    across = n_heads if several or n_heads <= 4 else math.ceil(n_heads / math.ceil(n_heads / MOST_ACROSS))
    panels = []
    for number, (layer, head, weights, mask) in enumerate(reading.panels()):
        row, column = divmod(number, across)
        if several:
            row, column = reading.layers.index(layer), reading.heads.index(head)
        panels.append(Panel(row, column, reading.panel_name(head), weights, mask))
    return Grids(
        panels=tuple(panels),
        rows=token_labels(reading.queries),
        columns=token_labels(reading.keys),
        scales=(scale,),
        title=reading.picture_title if look.title is None else look.title,
        said=said,
        cited=reading.cited,
        row_names=tuple(f"layer {layer}" for layer in reading.layers) if several else (),
    )


def _colour_scale(reading: HeatmapGrid, look: Look) -> tuple[Scale, tuple[str, ...]]:
    """The colours of a reading's weights, and what was done to them."""
    said = reading.said
    if look.log:
        low, high, words = log_span(reading)
        said = (*said, words)
    else:
        low, high = weight_span(reading)
    ends = low if look.vmin is None else look.vmin, high if look.vmax is None else look.vmax
    if ends[0] >= ends[1]:
        raise UsageError(f"the colours would go from {ends[0]:g} to {ends[1]:g}: give another --vmin or --vmax")
    beyond = [f"above {ends[1]:g}"] * (ends[1] < high) + [f"below {ends[0]:g}"] * (ends[0] > low)
    if beyond:
        said = (*said, f"all {' and all '.join(beyond)} in one colour")
    unit = reading.unit_of_cells + (", rescaled" if notes_of_kind(reading.said, "rescaled") else "")
    return Scale((LogNorm if look.log else Normalize)(*ends), colour_map(look.cmap), unit), said


def colour_map(name: str) -> Colormap:
    """A colour map of matplotlib. Raises UsageError naming those that come close."""
    if name in colormaps:
        return colormaps[name]
    near = difflib.get_close_matches(name, list(colormaps), 3)
    meant = f"did you mean {' or '.join(near)}?" if near else "try viridis, cividis, magma or gray_r"
    raise UsageError(f"no colour map {name!r}: {meant}")


def colour_function(cmap: str) -> Callable[[float], tuple[int, int, int]]:
    """A colour map as a function of a share, 0 to 1: red, green and blue, 0 to 255. Raises UsageError for no such map."""
    chosen = colour_map(cmap)

    def colour_of_share(share: float) -> tuple[int, int, int]:
        r, g, b, _ = chosen(float(share), bytes=True)
        return int(r), int(g), int(b)

    return colour_of_share
