"""Weights laid over a photograph: a panel a head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure

from attnctl.arrays import Floats
from attnctl.errors import AttnctlError, UsageError
from attnctl.formats.pictures import Look
from attnctl.readings.overview import LongRow
from attnctl.readings.picture_heat import heading_of_row, heat_of_boxes, sentences_of_row
from attnctl.render.figure.heatmap import colour_map
from attnctl.render.figure.labels import Labels
from attnctl.render.figure.layout import Drawing
from attnctl.render.figure.saving import plain_settings

if TYPE_CHECKING:
    from PIL.Image import Image

SIDE = 560  # pixels of a panel's longer side, at most
PANEL, GAP, HEAD, FOOT, BAR = 2.4, 0.1, 0.36, 0.3, 1.0  # inches
MOST_ACROSS = 6
MOST_PANELS = 64
LOG_DECADES = 3  # that a logarithmic scale spans at most
MARK = "#ff3b30"  # around the query's own patch


def draw_over_photograph(row: LongRow, photograph: Image, look: Look) -> Drawing:
    """The query's weights over the picture, a panel a head; grey is the picture, the more colour the more weight.

    Raises UsageError for more panels than MOST_PANELS, AttnctlError where no patch has any weight.
    """
    if len(row.weights) > MOST_PANELS:
        raise UsageError(f"{len(row.weights)} heads are too many panels over a picture: choose with --layer and --head")
    size = photograph.size
    across_pixels, down_pixels = (max(1, round(side * min(1.0, SIDE / max(size)))) for side in size)
    small = photograph.convert("L").resize((across_pixels, down_pixels))
    grey: Floats = np.asarray(small, np.float32) * np.float32(0.65 / 255) + np.float32(0.35)  # (rows, columns)
    heats = {place: heat_of_boxes(weights, row.keys, size, small.size[::-1]) for place, weights in row.weights.items()}
    norm, colours = _scale_of_heats(list(heats.values()), look), colour_map(look.cmap)
    places = _panel_places(list(heats))
    across, down = (1 + max(place[at] for place in places) for at in (1, 0))
    said = [heading_of_row(row) if look.title is None else look.title, *sentences_of_row(row)]
    labels = Labels(said)
    wide, high = (PANEL * side / max(size) for side in size)
    width = max(0.3 + across * (wide + GAP) + BAR * look.colour_bar, 5.0)
    top = 0.16 + 0.24 * len(said)
    height = top + down * (high + HEAD) + FOOT
    with plain_settings():
        figure: Any = Figure(figsize=(width, height), dpi=look.dpi, facecolor="white", label=row.model.citation)
        FigureCanvasAgg(figure)
        for (line, at), ((layer, head), heat) in zip(places, heats.items(), strict=True):
            up = height - top - (line + 1) * (high + HEAD)
            axes = figure.add_axes(((0.2 + at * (wide + GAP)) / width, up / height, wide / width, high / height))
            _draw_panel(axes, grey, heat, norm, colours, size)
            if (box := row.tokens[row.query].box) is not None:
                left, upper, right, lower = box
                axes.plot([left, right, right, left, left], [upper, upper, lower, lower, upper], color=MARK, lw=1.2)
            axes.set_title(f"layer {layer}, head {head}", fontsize=8.5, loc="left", pad=3)
        for number, text in enumerate(said):
            points, colour = (8.5, "#555555") if number else (11.0, "black")
            fitting = labels.cut_to_width(labels.drawable(text), points, width - 0.4)
            how = {"fontsize": points, "color": colour, "va": "center", "parse_math": False, "family": labels.family}
            figure.text(0.2 / width, 1 - (0.22 + 0.24 * number) / height, fitting, **how)
        if look.colour_bar:
            axes = figure.add_axes(((width - BAR + 0.15) / width, FOOT / height, 0.14 / width, high / height))
            figure.colorbar(ScalarMappable(norm, colours), cax=axes).outline.set_visible(False)
            axes.set_title("weight", fontsize=8.5, loc="left", pad=3)
            axes.tick_params(labelsize=7.5)
    return Drawing(figure, labels.missing_characters)


def _scale_of_heats(heats: Sequence[Floats], look: Look) -> Any:
    """The scale that all panels share, from 0, or of a logarithmic one LOG_DECADES below its end."""
    most = max(float(np.nanmax(heat)) for heat in heats)
    if most <= 0:
        raise AttnctlError("no patch of the picture has any weight")
    high = most if look.vmax is None else look.vmax
    low = look.vmin if look.vmin is not None else high / 10**LOG_DECADES if look.log else 0.0
    if low >= high:
        raise UsageError(f"the colours would go from {low:g} to {high:g}: give another --vmin or --vmax")
    return LogNorm(low, high, clip=True) if look.log else Normalize(low, high, clip=True)


def _panel_places(heads: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Line and column of each (layer, head): a layer begins a line, and goes on after MOST_ACROSS heads."""
    found: list[tuple[int, int]] = []
    line, column = 0, 0
    for number, (layer, _) in enumerate(heads):
        if number and (column == MOST_ACROSS or layer != heads[number - 1][0]):
            line, column = line + 1, 0
        found.append((line, column))
        column += 1
    return found


def _draw_panel(axes: Any, grey: Floats, heat: Floats, norm: Any, colours: Any, size: tuple[int, int]) -> None:
    """The picture in grey (rows, columns) under its heat of the same shape, in the pixels of the picture as it was given."""
    extent = (0, size[0], size[1], 0)
    axes.imshow(grey, cmap="gray", vmin=0, vmax=1, extent=extent, interpolation="bilinear")
    shares = np.asarray(norm(np.nan_to_num(heat, nan=float(norm.vmin))), np.float32)  # (rows, columns)
    pixels = colours(shares)  # (rows, columns, 4)
    pixels[..., 3] = np.where(np.isnan(heat), 0, 0.25 + 0.6 * shares)
    axes.imshow(pixels, extent=extent, interpolation="nearest")
    axes.set_axis_off()
