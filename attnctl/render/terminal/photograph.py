"""Weights over a photograph in a terminal: two pixels of the picture a character, coloured by the weight of their patch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from rich.color import Color
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from attnctl.readings.overview import LongRow, Overview
from attnctl.readings.picture_heat import heat_of_boxes, panels_of, sentences_of_heat
from attnctl.render.terminal.console import DIM, viridis_colour
from attnctl.text import csv_table

if TYPE_CHECKING:
    from PIL.Image import Image

    from attnctl.checks.document_fields import Box
    from attnctl.runtime.arrays import Bools, Bytes, Floats

WIDEST = 64  # columns of a panel
MOST_PANELS = 12  # panels that are shown, one below the other
MARK = (255, 59, 48)  # around the query's own patch or object


class PhotographBlocks:
    """Weights over the picture, a panel for each head or query, as wide as the console allows; a note without colours."""

    def __init__(
        self,
        value: LongRow | Overview,
        photograph: Image,
        colour: Callable[[float], tuple[int, int, int]] | None = None,
    ) -> None:
        self.heat, self.photograph, self.colour = panels_of(value), photograph, colour or viridis_colour

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the heading, the sentences, and each panel."""
        yield Text(self.heat.heading, style="bold")
        for sentence in sentences_of_heat(self.heat):
            yield Text(sentence, style=DIM)
        if console.color_system is None or console.no_color:
            yield Text(
                "Without colours there is no picture here: -o heat.png draws it, a pipe takes the numbers.", style=DIM
            )
            return
        size, panels = self.photograph.size, self.heat.panels
        wide = min(options.max_width, WIDEST)
        high = max(2, round(wide * size[1] / size[0]) // 2 * 2)
        grey = np.asarray(self.photograph.convert("L").resize((wide, high)), np.float32) / np.float32(
            255
        )  # (rows, columns)
        heats = [heat_of_boxes(panel.weights, self.heat.keys, size, grey.shape) for panel in panels]
        largest = max(float(np.nanmax(heat)) for heat in heats) or 1.0
        for panel, heat in zip(panels[:MOST_PANELS], heats, strict=False):
            pixels = self._pixels(grey, heat / largest, _outline(panel.box, size, grey.shape))
            yield Text(f"\n{panel.title}")
            for upper, lower in zip(pixels[::2], pixels[1::2], strict=True):
                for above, below in zip(upper.tolist(), lower.tolist(), strict=True):
                    yield Segment("▀", Style(color=Color.from_rgb(*above), bgcolor=Color.from_rgb(*below)))
                yield Segment.line()
        yield Text(f"brightest: {largest:.3f} on one patch", style=DIM)
        if len(panels) > MOST_PANELS:
            more = f"… {len(panels) - MOST_PANELS} more panels: choose layers, heads or queries, or -o heat.png"
            yield Text(more, style=DIM)

    def _pixels(self, grey: Floats, shares: Floats, outline: Bools) -> Bytes:
        """Return the picture's grey mixed with the colours of weights, 0 to 1 (NaN: no patch), and the outline."""
        distinct, places = np.unique(shares, return_inverse=True)  # of the pixels of a patch all are the same
        colours = np.array([(0, 0, 0) if np.isnan(share) else self.colour(float(share)) for share in distinct])
        brightness = 255 * (0.2 + 0.8 * grey[..., None])  # (rows, columns, 1)
        mixed = 0.25 + 0.6 * shares[..., None]  # (rows, columns, 1)
        pixels = (1 - mixed) * brightness + mixed * colours[places.reshape(shares.shape)]  # (rows, columns, 3)
        pixels = np.where(np.isnan(mixed), brightness * 0.6, pixels)  # (rows, columns, 3)
        pixels[outline] = MARK
        return pixels.astype(np.uint8)  # (rows, columns, 3)


def _outline(box: Box | None, size: tuple[int, int], shape: tuple[int, int]) -> Bools:
    """Return which pixels of a panel (rows, columns) lie on the outline of a box of a picture of `size` (width, height)."""
    outline = np.zeros(shape, bool)
    if box is not None:
        across, down = shape[1] / size[0], shape[0] / size[1]
        left, right = int(box[0] * across), max(int(box[0] * across), int(np.ceil(box[2] * across)) - 1)
        top, bottom = int(box[1] * down), max(int(box[1] * down), int(np.ceil(box[3] * down)) - 1)
        outline[top : bottom + 1, [left, min(right, shape[1] - 1)]] = True
        outline[[top, min(bottom, shape[0] - 1)], left : right + 1] = True
    return outline


def patches_tab_separated(value: LongRow | Overview) -> str:
    """Return the weights as tab-separated text, a line for each head, query and key: the key's box in the picture.

    Of a grid, the columns name the query too, and its score if it has one.
    """
    return _patches_of_row(value) if isinstance(value, LongRow) else _patches_of_queries(value)


def _patches_of_row(row: LongRow) -> str:
    lines = [
        (layer, head, key.text, *(key.box or (None,) * 4), float(weight))
        for (layer, head), weights in row.weights.items()
        for key, weight in zip(row.key_axis, weights, strict=True)
    ]
    return csv_table(["layer", "head", "token", "left", "top", "right", "bottom", "weight"], lines, 6, "\t")


def _patches_of_queries(overview: Overview) -> str:
    grid = overview.grid
    assert grid is not None
    queries = [overview.tokens[part.first_token] for part in grid.rows]
    lines = [
        (layer, head, query.text, query.score, key.text, *(key.box or (None,) * 4), float(weight))
        for (layer, head), weights in grid.weights.items()
        for query, row in zip(queries, weights, strict=True)
        for key, weight in zip(overview.key_axis, row, strict=True)
    ]
    scored = any(query.score is not None for query in queries)
    header = ["layer", "head", "query", "score", "token", "left", "top", "right", "bottom", "weight"]
    if not scored:
        header.remove("score")
        lines = [(*line[:3], *line[4:]) for line in lines]
    return csv_table(header, lines, 6, "\t")
