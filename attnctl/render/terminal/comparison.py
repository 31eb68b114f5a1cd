"""A comparison for a terminal: both grids, their difference, and where it is largest."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap

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
            yield Text("")
            yield Text(f"layer {layer}, head {head}", style=f"bold {ACCENT}")
            for title, shown in self._grids_at(layer, head, rows, columns):
                yield Text("")
                yield Text(label_fit(token_label(title), width), style="bold")
                yield from shown.grid_lines(width)
            if (hidden := self.pair.hidden_in_one(layer)) is not None:
                yield Text("")
                said = f"{hidden.sum():,} of {hidden.size:,} places are hidden in one of the two: no weights to compare"
                yield from _dim_lines(said, width)
        if said := self.pair.unmatched_tokens():
            yield Text("")
            yield from _dim_lines(said, width)
        yield Text("")
        yield from self._largest_difference(rows, columns, width)

    def _grids_at(self, layer: int, head: int, rows: list[str], columns: list[str]) -> Iterator[tuple[str, NumberGrid]]:
        """A and B with all their tokens, and B - A with those that both have."""
        _, _, i, j = self.pair.largest_difference(layer, head)
        masks = self.pair.whole_masks(layer)
        sides = zip((self.pair.a, self.pair.b), self.pair.whole_weights(layer, head), masks, strict=True)
        for side, (trace, array, mask) in enumerate(sides):
            at = (i, j) if self.pair.aligned is None else (self.pair.aligned[0][i][side], self.pair.aligned[1][j][side])
            names = (rows, columns)
            if self.pair.aligned is not None:
                names = [token_label(t.text) for t in trace.tokens], [token_label(t.text) for t in trace.key_axis]
            grid = NumberGrid(array, *names, self.precision, mask=mask, heat=True, marks=at[:1], must=at)
            yield f"{'AB'[side]}  {self.pair.names[side]}", grid
        a, b = self.pair.both_weights(layer, head)
        *_, mask = self.pair.both_masks(layer)
        yield (
            "B - A",
            NumberGrid(
                b - a, rows, columns, self.precision, mask=mask, heat=False, change=True, marks=(i,), must=(i, j)
            ),
        )

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
            yield from (Text(change, style=f"bold {ACCENT}"), *_dim_lines(said, width))


def _dim_lines(said: str, width: int) -> list[Text]:
    """A sentence in lines of at most `width` cells."""
    return [Text(line, style=DIM) for line in wrap(said, max(width, 16))]
