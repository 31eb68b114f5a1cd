"""Three panels, A, B and B - A: the picture of a comparison."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import CenteredNorm, Normalize
from matplotlib.figure import Figure

from attnctl.readings.comparison import Comparison
from attnctl.render.figure.heatmap import CMAP, DPI, Drawing, plain_settings
from attnctl.render.figure.labels import LONGEST, Labels

CHANGE = "PuOr_r"  # orange for more, violet for less: told apart by every kind of colour vision
MOST_WRITTEN = 14  # tokens up to which the values are written into the cells
MOST_LABELS = 40
INK, QUIET = "#111111", "#555555"


def panels(pair: Comparison, layer: int, head: int) -> Drawing:
    """The weights of A and B at one place on one scale, and their difference on a scale of its own, 0 in the middle."""
    a, b = pair.weights(layer, head)  # (n_q, n_k) each
    rows, columns = pair.labels()
    titles = (f"A  {pair.names[0]}", f"B  {pair.names[1]}", "B - A")
    labels = Labels([*rows, *columns, *titles])
    with plain_settings():
        # inches: cells of a third of an inch for few tokens, a panel of six for many
        high, wide = (min(max(0.42 * count, 1.9), 6.0) for count in a.shape)
        names = [labels.label(name, LONGEST) for name in columns]
        longest = max(labels.width(name, 9) for name in names)
        slanted = longest > 0.95 * wide / min(len(names), MOST_LABELS)
        rise = longest * 0.87 + 0.1 if slanted else 0.25  # what the labels take above the grid
        left = 0.45 + max(labels.width(labels.label(name, LONGEST), 9) for name in rows)
        bar, gap, below = 0.75, 0.25, 0.25
        top = 0.85 + rise
        width = left + 3 * wide + 2 * gap + 2 * bar + 0.15
        figure = Figure(figsize=(width, top + high + below), dpi=DPI, facecolor="white")
        FigureCanvasAgg(figure)
        weights = Normalize(0, max(float(a.max()), float(b.max()), 1e-6))
        change = CenteredNorm(halfrange=max(float(np.abs(b - a).max()), 1e-6))
        x = left
        mask = pair.mask(layer)
        for at, array in enumerate((a, b, b - a)):
            if mask is not None:
                array = np.ma.masked_where(~mask, array)
            box = (x / width, below / (top + high + below), wide / width, high / (top + high + below))
            axes = figure.add_axes(box)
            norm, cmap = (change, CHANGE) if at == 2 else (weights, CMAP)
            _panel(axes, array, norm, cmap)
            title = labels.fitted(labels.drawable(titles[at]), 11, wide)
            y = 1 - 0.7 / (top + high + below)
            figure.text(
                x / width, y, title, fontsize=11, va="center", parse_math=False, color=INK, family=labels.family
            )
            _ticks(axes, labels, rows if at == 0 else [], columns, slanted)
            if at:
                strip = figure.add_axes(((x + wide + 0.12) / width, box[1], 0.12 / width, box[3]))
                figure.colorbar(axes.images[0], cax=strip).outline.set_visible(False)
                strip.tick_params(labelsize=8, length=2)
                strip.set_title("change" if at == 2 else "weight", fontsize=8, color=QUIET, loc="left")
            x += wide + (gap if at == 0 else bar + gap)
        place = f"layer {layer}, head {head}"
        figure.text(0.15 / width, 1 - 0.25 / (top + high + below), place, fontsize=12, va="center", color=INK)
    return Drawing(figure, labels.notes)


def _panel(axes: Any, array: Any, norm: Normalize, cmap: str) -> None:
    axes.set_facecolor("#ececec")  # shows where nothing may be seen
    axes.imshow(array, norm=norm, cmap=cmap, aspect="auto", interpolation="nearest")
    axes.xaxis.set_ticks_position("top")
    axes.tick_params(length=0, labelsize=9)
    for spine in axes.spines.values():
        spine.set_visible(False)
    if max(array.shape) > MOST_WRITTEN:
        return
    colours = colormaps[cmap](norm(array))[..., :3]  # (n_q, n_k, 3)
    for side, count in ((axes.axhline, array.shape[0]), (axes.axvline, array.shape[1])):
        for at in range(1, count):
            side(at - 0.5, color="white", linewidth=1)
    for i, j in np.argwhere(~np.ma.getmaskarray(array)):
        value = float(array[i, j])
        bright = float(colours[i, j] @ (0.299, 0.587, 0.114)) > 0.5
        written = f"{value:+.2f}" if isinstance(norm, CenteredNorm) else f"{value:.2f}"
        axes.text(j, i, written, ha="center", va="center", fontsize=8, color="black" if bright else "white")


def _ticks(axes: Any, labels: Labels, rows: list[str], columns: list[str], slanted: bool) -> None:
    """Token labels, thinned out where they would touch."""
    for axis, names in ((axes.yaxis, rows), (axes.xaxis, columns)):
        at = range(0, len(names), -(-len(names) // MOST_LABELS) or 1)
        axis.set_ticks(list(at), [labels.label(names[i], LONGEST) for i in at])
        for text in axis.get_ticklabels():
            text.set_parse_math(False)
            text.set_family(labels.family)
            if slanted and axis is axes.xaxis:
                text.set(rotation=60, ha="left", va="bottom", rotation_mode="anchor")
