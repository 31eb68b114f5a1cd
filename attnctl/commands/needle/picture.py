"""The needles of a haystack as a picture."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import Normalize

from attnctl.commands.needle.result import NeedleCell, Needles, depth_grid
from attnctl.formats import CMAP
from attnctl.render import Panel, Panels, Scale, colour_map

SHARE = "share of the answer's attention on the needle"


def needle_panels(summary: Needles, cells: Sequence[NeedleCell]) -> Panels:
    """Return a picture of all needles on the left, the answered ones on the right; colours and numbers are shares."""
    shares, lengths, depths = depth_grid(cells, [cell.found for cell in cells])  # (depths, lengths)
    is_asked = np.isfinite(shares)  # (depths, lengths)
    answered = is_asked & (depth_grid(cells, [cell.answered for cell in cells])[0] == 1)  # (depths, lengths)
    shares = np.where(is_asked, shares, 0)  # (depths, lengths)
    return Panels(
        panels=(Panel(0, 0, "asked", shares, is_asked), Panel(0, 1, "answered", shares, answered)),
        rows=tuple(f"{100 * depth:g} %" for depth in depths),
        columns=tuple(f"{length:,}" for length in lengths),
        scales=(Scale(Normalize(0, float(shares.max()) or 1.0), colour_map(CMAP), "share"),),
        title=f"{summary.model.name}: {summary.answered} of {summary.asked} needles answered",
        notes=(SHARE,),
        axes=("depth of the needle", "tokens of the prompt"),
        hidden="not answered" if is_asked.all() else "not answered, or not asked",
        cited=summary.model.citation,
    )
