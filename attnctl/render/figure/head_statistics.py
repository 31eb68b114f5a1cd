"""One statistic of every head as a picture: layers down, heads across."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import Normalize

from attnctl.readings.head_statistics import HeadStatistics
from attnctl.readings.statistic_table import STATISTICS
from attnctl.render.figure.grids import Drawing, Grids, Panel, Scale
from attnctl.render.figure.heatmaps.heatmap import colour_map, drawing_of
from attnctl.render.figure.look import PLAIN, Look


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
