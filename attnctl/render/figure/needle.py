"""Needles as a picture: depths × lengths, once for what was answered and once for the attention that found it."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from attnctl.readings.effects.needle import Needles
from attnctl.render.figure.heatmaps.heatmap import colour_map


def needle_grids(found: Needles, cmap: str = "viridis") -> Figure:
    """Two grids side by side, each with its colour bar; a cell that was not asked stays blank."""
    figure = Figure(figsize=(8.0, 3.4), dpi=200, layout="constrained")
    panels = figure.subplots(1, 2)
    said = (
        ("answered", "answered (1) or not (0)", 1.0),
        ("found", "share of the answer's attention on the needle", None),
    )
    for axes, (what, title, top) in zip(panels, said, strict=True):
        values, lengths, depths = found.depth_grid(what)  # (depths, lengths)
        most = top or max(float(np.nanmax(values)), 1e-6)
        image = axes.imshow(values, vmin=0, vmax=most, cmap=colour_map(cmap), aspect="auto")
        axes.set_xticks(range(len(lengths)), [f"{length:,}" for length in lengths], fontsize=7, rotation=30)
        axes.set_yticks(range(len(depths)), [f"{100 * depth:.0f} %" for depth in depths], fontsize=7)
        axes.set_xlabel("tokens of the prompt", fontsize=8)
        axes.set_ylabel("depth of the needle", fontsize=8)
        axes.set_title(title, fontsize=8)
        figure.colorbar(image, ax=axes).ax.tick_params(labelsize=7)
    figure.suptitle(
        f"{found.run.model.name}: {found.answered_count} of {len(found.cells)} needles answered", fontsize=9
    )
    return figure
