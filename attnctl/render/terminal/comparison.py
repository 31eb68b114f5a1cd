"""A comparison for a terminal: both grids, their difference, and where it is largest."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from attnctl.readings.traces.comparison import Comparison
from attnctl.render.terminal.number_grid import (
    ACCENT,
    DIM,
    NumberGrid,
    cropped_line,
    label_fit,
    number_text,
    token_label,
)

INDENT = 5


class ComparisonTables:
    """Three grids, A, B and B - A, for each chosen layer and head."""

    def __init__(self, pair: Comparison, places: list[tuple[int, int]], precision: int = 2) -> None:
        self.pair, self.places, self.precision = pair, places, precision

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The lines of the comparison, none wider than the console."""
        for line in self._comparison_lines(options.max_width - INDENT):
            yield cropped_line(Text(" " * INDENT).append_text(line), options.max_width)

    def _comparison_lines(self, width: int) -> Iterator[Text]:
        rows, columns = ([token_label(name) for name in side] for side in self.pair.axis_labels())
        for layer, head in self.places:
            a, b = self.pair.both_weights(layer, head)
            _, _, i, j = self.pair.largest_difference(layer, head)
            masks = self.pair.both_masks(layer)
            yield Text("")
            yield Text(f"layer {layer}, head {head}", style=f"bold {ACCENT}")
            titles = (f"A  {self.pair.names[0]}", f"B  {self.pair.names[1]}", "B - A")
            for title, array, mask in zip(titles, (a, b, b - a), masks, strict=True):
                yield Text("")
                yield Text(label_fit(token_label(title), width), style="bold")
                difference = title == "B - A"
                grid = NumberGrid(
                    array,
                    rows,
                    columns,
                    self.precision,
                    mask=mask,
                    heat=not difference,
                    change=difference,
                    marks=(i,),
                    must=(i, j),
                )
                yield from grid.grid_lines(width)
            if (hidden := self.pair.hidden_in_one(layer)) is not None:
                yield Text("")
                said = f"{hidden.sum():,} of {hidden.size:,} places are hidden in one of the two: no weights to compare"
                yield Text(label_fit(said, width), style=DIM)
        yield Text("")
        yield from self._largest_difference(rows, columns, width)

    def _largest_difference(self, rows: list[str], columns: list[str], width: int) -> Iterator[Text]:
        layer, head, i, j = self.pair.largest_difference()
        a, b = self.pair.both_weights(layer, head)
        if not np.abs(b - a)[i, j]:
            where = "Where both may look, " if self.pair.hidden_in_one(layer) is not None else ""
            yield Text(f"{where}A and B are the same, to the last bit.", style=f"bold {ACCENT}")
            return
        x, y = (number_text(float(side[i, j]), self.precision) for side in (a, b))
        where = f"layer {layer}, head {head}"
        change = label_fit(f"{rows[i]} → {columns[j]}  {x} → {y}", width)
        said = f"the largest change of all, in {where}"
        if cell_len(change) + 3 + len(said) <= width:
            yield Text(change, style=f"bold {ACCENT}").append(f"   {said}", style=f"not bold {DIM} default")
        else:
            yield from (Text(change, style=f"bold {ACCENT}"), Text(label_fit(said, width), style=DIM))
