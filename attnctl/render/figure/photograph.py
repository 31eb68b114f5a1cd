"""Draw weights over a photograph, a panel for each head or query; or values of its regions, a panel for each kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import CenteredNorm, Colormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from attnctl.checks.document_fields import Box
from attnctl.errors import AttnctlError, UsageError
from attnctl.formats.photographs import photograph_of
from attnctl.formats.pictures import CMAP, DPI, Look
from attnctl.readings.overview import LongRow, Overview
from attnctl.readings.picture_heat import heat_of_boxes, panels_of, query_of_picture, sentences_of_heat
from attnctl.render.figure.labels import Labels
from attnctl.render.figure.layout import LEAST_EXTENT, Drawing, colour_map, colour_norm
from attnctl.render.figure.saving import plain_settings
from attnctl.render.forms import CHANGE
from attnctl.runtime.arrays import Floats

if TYPE_CHECKING:
    from PIL.Image import Image

    from attnctl.layer import LayerTrace
    from attnctl.trace import Trace

SIDE = 560  # pixels of a panel's longer side, at most
PANEL, GAP, HEAD, FOOT, BAR = 2.4, 0.1, 0.36, 0.3, 1.0  # inches
NARROWEST, LOWEST = 1.15, 1.5  # inches of a panel's title, and of a colour bar with its title
LETTER = 0.0095  # width of a digit in inches, for each point of its size
MOST_ACROSS = 6
MOST_PANELS = 64
LOG_DECADES = 3  # of a logarithmic scale, at most
MARK = "#ff3b30"  # around the query's own patch or object
TITLE = 8.5  # points of a panel's title


def draw_over_photograph(value: LongRow | Overview, photograph: Image, look: Look) -> Drawing:
    """Draw where one query looks, a panel for each head, or where each of several queries looks.

    The picture is grey, and more colour is more weight; the box of a query is outlined.

    Raises UsageError for more panels than MOST_PANELS, AttnctlError if no patch has any weight.
    """
    heat = panels_of(value)
    panels = heat.panels
    if len(panels) > MOST_PANELS:
        raise UsageError(f"{len(panels)} panels over a picture are too many: choose layers and heads, or queries")
    size, grey = photograph.size, _pale_picture(photograph)
    heats = [heat_of_boxes(panel.weights, heat.keys, size, grey.shape) for panel in panels]
    norm, colours = _scale_of_heats(heats, look), colour_map(look.cmap)
    places = _panel_places([panel.layer for panel in panels])
    across, down = (1 + max(place[axis] for place in places) for axis in (1, 0))
    lines = [heat.heading if look.title is None else look.title, *sentences_of_heat(heat)]
    labels = Labels([*lines, *(panel.title for panel in panels)])
    wide, high = (PANEL * side / max(size) for side in size)
    step = max(wide, NARROWEST) + GAP  # a panel's title is not wider than that
    width = max(0.3 + across * step + BAR * look.colorbar, 5.0)
    top = 0.16 + 0.24 * len(lines)
    height = top + max(down * (high + HEAD), LOWEST) + FOOT
    with plain_settings():
        figure = Figure(figsize=(width, height), dpi=look.dpi, facecolor="white", label=heat.cited)
        FigureCanvasAgg(figure)
        for (line, column), panel, weights in zip(places, panels, heats, strict=True):
            up, left = height - top - (line + 1) * (high + HEAD), 0.2 + column * step
            axes = figure.add_axes((left / width, up / height, wide / width, high / height))
            _draw_panel(axes, grey, weights, norm, colours, size)
            if panel.box is not None:
                _outline(axes, panel.box, size)
            title = labels.cut_to_width(labels.drawable(panel.title), TITLE, step - GAP)
            labels.write_line(figure, (left / width, (up + high + 0.11) / height), title, TITLE, "black")
        _write_heading(figure, labels, lines, (width, height))
        if look.colorbar:
            tall = max(down * (high + HEAD) - HEAD, LOWEST - HEAD)
            axes = figure.add_axes(((width - BAR + 0.15) / width, FOOT / height, 0.14 / width, tall / height))
            figure.colorbar(ScalarMappable(norm, colours), cax=axes).outline.set_visible(False)
            axes.set_title("weight", fontsize=TITLE, loc="left", pad=6)
            axes.tick_params(labelsize=7.5)
    return Drawing(figure, labels.missing_characters)


def _outline(axes: Axes, box: Box, size: tuple[int, int]) -> None:
    """Draw a box in pixels of the picture, in a colour and a pale rim that are seen on light and on dark."""
    left, upper, right, lower = box
    outline = [left, right, right, left, left], [upper, upper, lower, lower, upper]
    axes.plot(*outline, color="white", lw=2.4, clip_on=False)
    axes.plot(*outline, color=MARK, lw=1.2, clip_on=False)
    axes.set(xlim=(0, size[0]), ylim=(size[1], 0))


def figure_over_picture(
    trace: Trace,
    *,
    picture: object,
    query: int | str | None = None,
    layer: Sequence[int] | None = None,
    head: Sequence[int] | None = None,
    **options: Any,
) -> Figure:
    """Return a matplotlib Figure of one query's weights over the picture: of the last layer, unless layers are given.

    Raises UsageError if the trace's tokens have no places in a picture, if there is no such query, layer or head, or for an
    option that has no effect.
    """
    for name in (name for name in ("drop", "renormalise", "values", "size", "font_size") if options.get(name)):
        raise UsageError("has no effect over a picture", option=name)
    if not any(token.box is not None for token in trace.key_axis):
        raise UsageError(
            "the tokens of this trace have no places in a picture: name it in trace(picture=…)", option="picture"
        )
    place = query_of_picture(trace.tokens, None if query is None else str(query), bool(trace.model.causal))
    weights = {}
    for part in trace.layers[-1:] if layer is None else [trace.layer(number) for number in layer]:
        rows = range(len(trace.tokens)) if part.rows is None else part.rows
        if place not in rows or part.weights is None:
            raise UsageError(f"layer {part.layer} of this trace does not hold it", option="query", value=query)
        for number in chosen_places(part, head):
            weights[part.layer, number] = part.weights[part.heads.index(number), list(rows).index(place)]
    row = LongRow(trace.subject, place, weights)
    return draw_over_photograph(row, photograph_of("figure", picture), Look(**options)).figure


def chosen_places(layer: LayerTrace, heads: Sequence[int] | None) -> Sequence[int]:
    """Return the chosen heads of a layer (None: all). Raises UsageError for one that it does not hold."""
    for head in heads or ():
        if head not in layer.heads:
            raise UsageError(f"layer {layer.layer} of this trace does not hold it", option="head", value=head)
    return layer.heads if heads is None else heads


class RegionValues(NamedTuple):
    """Values of the regions of a picture: a heading, a value for each region, the format of the numbers, the colours."""

    heading: str
    values: Sequence[float]
    number_format: str
    scale: Normalize
    colours: Colormap


def draw_regions(
    boxes: Sequence[tuple[int, int, int, int]],
    panels: Sequence[RegionValues],
    photograph: Image,
    lines: Sequence[str],
    cited: str,
) -> Drawing:
    """Draw the regions of a picture, each in the colour of its value and with the number in it; a panel for each kind."""
    size, labels, grey = (
        photograph.size,
        Labels([*lines, *(panel.heading for panel in panels)]),
        _pale_picture(photograph),
    )
    wide, high = (1.5 * PANEL * side / max(size) for side in size)
    width = max(0.4 + len(panels) * (wide + GAP), 5.0)
    height = 0.16 + 0.24 * len(lines) + HEAD + high + 0.2
    with plain_settings():
        figure = Figure(figsize=(width, height), dpi=DPI, facecolor="white", label=cited)
        FigureCanvasAgg(figure)
        for column, panel in enumerate(panels):
            place = (0.2 + column * (wide + GAP)) / width, 0.2 / height, wide / width, high / height
            axes = figure.add_axes(place)
            axes.imshow(grey, cmap="gray", vmin=0, vmax=1, extent=(0, size[0], size[1], 0), interpolation="bilinear")
            for (left, top, right, bottom), value in zip(boxes, panel.values, strict=True):
                shade = panel.colours(panel.scale(value))
                corner, sides = (left, top), (right - left, bottom - top)
                axes.add_patch(Rectangle(corner, *sides, facecolor=shade, alpha=0.55, edgecolor="white", lw=1))
                number = f"{value:{panel.number_format}}"
                room = (
                    wide * (right - left) / size[0] / (LETTER * len(number))
                )  # points with which it is as wide as its region
                text = axes.text((left + right) / 2, (top + bottom) / 2, number, fontsize=min(8.5, max(room, 4.5)))
                text.set(ha="center", va="center", bbox={"facecolor": "white", "alpha": 0.8, "lw": 0, "pad": 1.5})
            axes.set(xlim=(0, size[0]), ylim=(size[1], 0))
            axes.set_axis_off()
            axes.set_title(panel.heading, fontsize=8.5, loc="left", pad=3)
        _write_heading(figure, labels, lines, (width, height))
    return Drawing(figure, labels.missing_characters)


def draw_looks_and_effects(
    boxes: Sequence[Box], looks: Sequence[float], effects: Sequence[float], unit: str, photograph: Image,
    lines: Sequence[str], cited: str, between: Sequence[RegionValues] = (),
) -> Drawing:  # fmt: skip
    """Draw how much is looked at each region, and the effect of its loss, beside each other over the photograph."""
    furthest = max(*map(abs, effects), LEAST_EXTENT)
    panels = (
        RegionValues("looked at", looks, ".1%", Normalize(0, max(*looks, LEAST_EXTENT)), colour_map(CMAP)),
        *between,
        RegionValues(unit, effects, "+.2f", CenteredNorm(halfrange=furthest), colour_map(CHANGE)),
    )
    return draw_regions(boxes, panels, photograph, lines, cited)


def _pale_picture(photograph: Image) -> Floats:
    """Return the picture in light greys, 0.35 to 1, its longer side SIDE pixels at most: (rows, columns)."""
    size = photograph.size
    across, down = (max(1, round(side * min(1.0, SIDE / max(size)))) for side in size)
    small = photograph.convert("L").resize((across, down))
    grey: Floats = np.asarray(small, np.float32) * np.float32(0.65 / 255) + np.float32(0.35)
    return grey


def _write_heading(figure: Figure, labels: Labels, lines: Sequence[str], size: tuple[float, float]) -> None:
    """Write the title and the sentences below it at the top of a figure of `size` (width, height) in inches."""
    for number, text in enumerate(lines):
        points, colour = (8.5, "#555555") if number else (11.0, "black")
        fitting = labels.cut_to_width(labels.drawable(text), points, size[0] - 0.4)
        place = 0.2 / size[0], 1 - (0.22 + 0.24 * number) / size[1]
        labels.write_line(figure, place, fitting, points, colour)


def _scale_of_heats(heats: Sequence[Floats], look: Look) -> Normalize:
    """Return the scale of all panels: from 0, or on a logarithmic scale from LOG_DECADES below its end."""
    largest = max(float(np.nanmax(heat)) for heat in heats)
    if largest <= 0:
        raise AttnctlError("no patch of the picture has any weight")
    high = largest if look.vmax is None else look.vmax
    low = look.vmin if look.vmin is not None else high / 10**LOG_DECADES if look.log else 0.0
    return colour_norm(low, high, log=bool(look.log), clip=True)


def _panel_places(layers: Sequence[int]) -> list[tuple[int, int]]:
    """Return the line and column of panels of these layers: a layer begins a line, and a line has MOST_ACROSS at most."""
    places: list[tuple[int, int]] = []
    line, column = 0, 0
    for number, layer in enumerate(layers):
        if number and (column == MOST_ACROSS or layer != layers[number - 1]):
            line, column = line + 1, 0
        places.append((line, column))
        column += 1
    return places


def _draw_panel(
    axes: Axes, grey: Floats, heat: Floats, norm: Normalize, colours: Colormap, size: tuple[int, int]
) -> None:
    """Draw the grey picture (rows, columns) and its heat of the same shape over it, in pixels of the original picture."""
    extent = (0, size[0], size[1], 0)
    axes.imshow(grey, cmap="gray", vmin=0, vmax=1, extent=extent, interpolation="bilinear")
    shares = np.asarray(norm(np.nan_to_num(heat, nan=float(norm.vmin or 0.0))), np.float32)  # (rows, columns)
    pixels = colours(shares)  # (rows, columns, 4)
    pixels[..., 3] = np.where(np.isnan(heat), 0, 0.25 + 0.6 * shares)
    axes.imshow(pixels, extent=extent, interpolation="nearest")
    axes.set_axis_off()
