"""Weights over a photograph in a terminal: two pixels of the picture a character, coloured by the weight of their patch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from rich.color import Color
from rich.console import Console, ConsoleOptions, RenderResult
from rich.style import Style
from rich.text import Text

from attnctl.readings.overview import LongRow
from attnctl.readings.picture_heat import heading_of_row, heat_of_boxes, sentences_of_row
from attnctl.render.terminal.console import DIM, viridis_colour
from attnctl.text import csv_table

if TYPE_CHECKING:
    from PIL.Image import Image

WIDEST = 64  # columns of a panel
MOST_PANELS = 12  # panels that are shown, one below the other


class PhotographPanels:
    """A query's weights over the picture, a panel for each head, as wide as the console allows; a note without colours."""

    def __init__(
        self, row: LongRow, photograph: Image, colour: Callable[[float], tuple[int, int, int]] | None = None
    ) -> None:
        self.row, self.photograph, self.colour = row, photograph, colour or viridis_colour

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the heading, the sentences, and each panel."""
        yield Text(heading_of_row(self.row), style="bold")
        for sentence in sentences_of_row(self.row):
            yield Text(sentence, style=DIM)
        if console.color_system is None or console.no_color:
            yield Text(
                "Without colours there is no picture here: -o heat.png draws it, a pipe takes the numbers.", style=DIM
            )
            return
        size = self.photograph.size
        wide = min(options.max_width, WIDEST)
        high = max(2, round(wide * size[1] / size[0]) // 2 * 2)
        grey = np.asarray(self.photograph.convert("L").resize((wide, high)), np.float32) / 255  # (rows, columns)
        rows = list(self.row.weights.items())
        largest = (
            max(float(np.nanmax(heat_of_boxes(weights, self.row.key_axis, size, grey.shape))) for _, weights in rows)
            or 1.0
        )
        for (layer, head), weights in rows[:MOST_PANELS]:
            heat = heat_of_boxes(weights, self.row.key_axis, size, grey.shape) / largest  # (rows, columns)
            yield Text(f"\nlayer {layer}, head {head}")
            for upper in range(0, high, 2):
                line = Text()
                for x in range(wide):
                    two = [Color.from_rgb(*self._pixel(grey[y, x], heat[y, x])) for y in (upper, upper + 1)]
                    line.append("▀", Style(color=two[0], bgcolor=two[1]))
                yield line
        yield Text(f"brightest: {largest:.3f} on one patch", style=DIM)
        if len(rows) > MOST_PANELS:
            yield Text(f"… {len(rows) - MOST_PANELS} more heads: choose layers and heads, or -o heat.png", style=DIM)

    def _pixel(self, grey: float, share: float) -> tuple[int, int, int]:
        """Return the picture's grey mixed with the colour of a weight, 0 to 1; NaN: outside every patch."""
        brightness = 255 * (0.2 + 0.8 * grey)
        if np.isnan(share):
            return int(brightness * 0.6), int(brightness * 0.6), int(brightness * 0.6)
        mixed = 0.25 + 0.6 * float(share)
        red, green, blue = (int((1 - mixed) * brightness + mixed * part) for part in self.colour(float(share)))
        return red, green, blue


def patches_as_tsv(row: LongRow) -> str:
    """Return a line for each head and key, tab-separated: its box in the picture, empty for no box, and its weight."""
    lines = [
        (layer, head, key.text, *(key.box or (None,) * 4), float(weight))
        for (layer, head), weights in row.weights.items()
        for key, weight in zip(row.key_axis, weights, strict=True)
    ]
    return csv_table(["layer", "head", "token", "left", "top", "right", "bottom", "weight"], lines, 6, "\t")
