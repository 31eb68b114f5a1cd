"""Needles as a picture: depths × lengths, the attention that found each needle, beside those that were answered."""

from __future__ import annotations

import numpy as np
from matplotlib.colors import Normalize

from attnctl.readings.effects.needle import Needles
from attnctl.render.figure.grids import Drawing, Grids, Panel, Scale
from attnctl.render.figure.heatmaps.heatmap import colour_map, drawing_of
from attnctl.render.figure.look import CMAP

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
