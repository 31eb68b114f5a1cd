"""The grid of weights in a terminal: numbers on colours if they fit, else coloured squares or half blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from rich.cells import cell_len
from rich.color import Color
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.style import Style
from rich.text import Text

from attnctl.blockwise import pool_keys, pool_rows
from attnctl.readings.heatmap import POOLED, HeatmapGrid, log_span, weight_span
from attnctl.render.forms import ABSENT, Grid, Line, label_fit, token_label
from attnctl.render.terminal.console import (
    DIM,
    grid_lines,
    padded_text,
    painted_style,
    text_lines,
    viridis_colour,
)
from attnctl.runtime.arrays import Bools, Floats
from attnctl.text import csv_table, in_a_cell
from attnctl.text.tokens import Token

Colour = tuple[int, int, int]
SHADES = "▁░▒▓█"  # from little to much, for a terminal without colours
SIDE_BY_SIDE = 4  # more panels than these are drawn small, beside each other


class HeatmapBlocks:
    """A HeatmapGrid as a rich renderable, as wide as the console allows.

    `values`: write the weights (None: if they fit). `log`: use a logarithmic colour scale. `colour` returns the colour for
    a number from 0 to 1 (None: viridis).
    """

    def __init__(
        self,
        grid: HeatmapGrid,
        *,
        title: str | None = None,
        values: bool | None = None,
        log: bool = False,
        colour: Callable[[float], Colour] | None = None,
    ) -> None:
        self.grid, self.values, self.colour = grid, values, colour or viridis_colour
        self.sentence = grid.sentence if title is None else ""
        self.title = grid.picture_title if title is None else title
        self.below = "" if grid.sinks is None else grid.sinks.caption(log)
        self.low, self.high = weight_span(grid)
        self.remarks, self.log = grid.remarks, log
        if log:
            self.low, self.high, words = log_span(grid)
            self.remarks += (words,)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the title, the remarks, each panel, the legend of the colours, and the sentence on sinks."""
        width, self._coloured = options.max_width, console.color_system is not None and not console.no_color
        if self.sentence:
            yield Text(token_label(self.sentence, width), style="bold")
        if self.title:
            yield Text(token_label(self.title), style=DIM if self.sentence else "bold")
        for line in self.remarks:
            yield Text(token_label(line), style=DIM)
        panels = list(self.grid.panels())
        if len(panels) > SIDE_BY_SIDE:
            yield from self._name_lines(width, "tokens", self.grid.queries, self.grid.numbers[0])
            yield from self._mosaic_lines(width)
        else:
            for layer, head, weights, mask in panels:
                if len(panels) > 1:
                    yield Text("")
                    role = self.grid.roles.get((layer, head))
                    yield Text(f"layer {layer}, {self.grid.panel_name(head)}" + (f": {role}" if role else ""))
                yield from self._panel_lines(_masked_as_nan(weights, mask), width)
        yield from self._legend_lines()
        if self.below:
            yield from text_lines(Line(self.below, "dim"), width)

    def _colour_shares(self, weights: Floats) -> Floats:
        """Return weights (rows, columns), NaN for masked cells, as positions on the colour scale: 0 to 1."""
        low, high = self.low, self.high
        if self.log:
            clipped = np.clip(weights, low, high)  # (rows, columns)
            return np.asarray(np.log(clipped / low) / math.log(high / low), np.float32)  # (rows, columns)
        return (weights - low) / (high - low)  # (rows, columns)

    # --- one panel, as large as it can be ------------------------------------------------------------------------

    def _panel_lines(self, weights: Floats, width: int) -> Iterator[RenderableType]:
        n_q, n_k = weights.shape
        names = [token_label(token, max(6, width // 5)) for token in self.grid.queries]
        left = max(cell_len(name) for name in names) + 1
        longest = max(cell_len(token_label(token)) for token in self.grid.keys)
        room = (width - left) // n_k
        if self.values and room < 6:
            keys = [token_label(token) for token in self.grid.keys]
            mask = np.isfinite(weights)  # (n_q, n_k)
            grid = Grid(np.nan_to_num(weights), names, keys, mask=mask, heat=True, max_rows=n_q)
            shares = self._colour_shares(weights)  # (n_q, n_k)
            yield from grid_lines(grid, width, lambda row, column: self._share_style(float(shares[row, column])))
        elif self.values is not False and room >= 6:
            yield from self._valued_lines(weights, names, left, min(room, max(6, min(longest + 2, 12))))
        else:
            yield from self._coloured_lines(weights, names, left, width)

    def _coloured_lines(self, weights: Floats, names: Sequence[str], left: int, width: int) -> Iterator[Text]:
        """Yield colours with the indices of the tokens: squares, or half blocks (two rows a line), pooled if too many."""
        (n_q, n_k), (down, across), starts = weights.shape, self.grid.numbers, self.grid.starts
        digits = len(str(max(down, default=0))) + 1
        if left + digits + 2 * n_k <= width and n_q <= 60:
            left, rows_a_line = left + digits, 1
            lines = iter([self._square_cells(row) for row in self._colour_shares(weights)])
            step = 1 if n_k <= 10 and max(across) < 10 else 5
            ruler = "".join(f"{number:<{2 * step}}" for number in across[::step]) if n_k > 2 else ""
        else:
            left = min(max(cell_len(name) for name in names), 14) + digits + 1
            factor = max(1, -(-n_k // max(width - left, 8)))
            if factor > 1:
                yield Text(f"each cell is the mean of {factor} × {factor} weights", style=DIM)
            pooled = self._colour_shares(pool_cells(weights, factor))  # (rows, columns)
            lines, rows_a_line = self._small_lines(pooled), factor * (2 if self._coloured else 1)
            ruler = "".join(f"{number:<10}" for number in across[:: 10 * factor])[: pooled.shape[1]]
        if ruler:
            yield Text(" " * left + ruler, style=DIM)
        for first_row, line in zip(range(0, n_q, rows_a_line), lines, strict=True):
            name = label_fit(names[first_row], left - 1 - (0 if starts else digits))
            label = name if starts else f"{down[first_row]:>{digits - 1}} {name}"
            yield Text(padded_text(label, left, right=False)).append_text(line)
        if self.grid.keys != self.grid.queries:
            yield from self._name_lines(width, "keys", self.grid.keys, across)

    def _valued_lines(self, weights: Floats, names: Sequence[str], left: int, cell: int) -> Iterator[Text]:
        shares = self._colour_shares(weights)  # (n_q, n_k)
        header = Text(" " * left, style=DIM)
        for token in self.grid.keys:
            text = token_label(token, cell - 1)
            before = (cell - cell_len(text)) // 2
            header.append(" " * before + padded_text(text, cell - before, right=False))
        yield header
        for i, name in enumerate(names):
            line = Text(padded_text(name, left, right=False))
            for weight, share in zip(weights[i].tolist(), shares[i].tolist(), strict=True):
                hidden = math.isnan(share)
                text = ABSENT if hidden else f"{weight:.2f}"
                style = Style(dim=True) if hidden else self._share_style(share)
                before = (cell - len(text)) // 2
                line.append(" " * before + text + " " * (cell - before - len(text)), style=style)
            yield line

    def _square_cells(self, shares: Floats) -> Text:
        """Return one row, with each weight two cells wide: about a square."""
        line = Text()
        for share in shares.tolist():
            if math.isnan(share):
                line.append("  ")
            elif self._coloured:
                line.append("  ", style=self._share_style(share))
            else:
                line.append(2 * _shade(share))
        return line

    def _small_lines(self, shares: Floats) -> Iterator[Text]:
        """Yield cells one character wide: rows two by two with colours, one row a line without."""
        if not self._coloured:
            for row in shares.tolist():
                yield Text("".join(" " if math.isnan(share) else _shade(share) for share in row))
            return
        for i in range(0, len(shares), 2):
            below = shares[i + 1] if i + 1 < len(shares) else np.full(shares.shape[1], np.nan)  # (columns,)
            line = Text()
            for upper, lower in zip(shares[i].tolist(), below.tolist(), strict=True):
                line.append(*self._half_block(upper, lower))
            yield line

    def _half_block(self, upper: float, lower: float) -> tuple[str, Style]:
        """Return ▀ with the upper weight as its colour and the lower as its background."""
        if math.isnan(upper) and math.isnan(lower):
            return " ", Style()
        if math.isnan(upper):
            return "▄", Style(color=Color.from_rgb(*self.colour(lower)))
        if math.isnan(lower):
            return "▀", Style(color=Color.from_rgb(*self.colour(upper)))
        return "▀", Style(color=Color.from_rgb(*self.colour(upper)), bgcolor=Color.from_rgb(*self.colour(lower)))

    # --- many panels ---------------------------------------------------------------------------------------------

    def _mosaic_lines(self, width: int) -> Iterator[Text]:
        """Yield a small map of every layer and head, as many beside each other as fit, a layer on a new line."""
        n_k = len(self.grid.keys)
        factor = max(1, -(-n_k // min(32, width)))
        if factor > 1:
            yield Text(f"each cell is the mean of {factor} × {factor} weights", style=DIM)
        cell = max(-(-n_k // factor), 7)
        across = max(1, (width + 2) // (cell + 2))
        for layer in self.grid.layers:
            layer_panels = [
                (head, self._colour_shares(pool_cells(_masked_as_nan(w, m), factor)))
                for panel_layer, head, w, m in self.grid.panels()
                if panel_layer == layer
            ]
            yield Text("")
            yield Text(f"layer {layer}", style="bold")
            roles = [
                f"{head} {self.grid.roles[layer, head]}" for head, _ in layer_panels if (layer, head) in self.grid.roles
            ]
            if roles:
                yield from text_lines(Line(["heads", *roles], "dim", hanging=7, between="  "), width)
            for start in range(0, len(layer_panels), across):
                panels_of_line = layer_panels[start : start + across]
                yield Text(
                    "  ".join(padded_text(self.grid.panel_name(head), cell, right=False) for head, _ in panels_of_line),
                    style=DIM,
                )
                for parts in zip(*(self._small_lines(shares) for _, shares in panels_of_line), strict=True):
                    line = Text()
                    for part in parts:
                        line.append_text(part).append(" " * (cell - cell_len(part.plain) + 2))
                    line.rstrip()
                    yield line

    # --- names and legend ----------------------------------------------------------------------------------------

    def _name_lines(self, width: int, heading: str, tokens: Sequence[Token], numbers: Sequence[int]) -> Iterator[Text]:
        """Yield `keys  0 Alice  1 will …`, on three lines at most; the names of parts begin with their numbers."""
        labels = [token_label(token.text, 20) for token in tokens]
        names = labels if self.grid.starts else list(map("{} {}".format, numbers, labels))
        yield from text_lines(Line([heading, *names], "dim", hanging=len(heading) + 2, between="  ", lines=3), width)

    def _legend_lines(self) -> Iterator[Text]:
        yield Text("")
        named = "weight" if self.grid.measure in POOLED else self.grid.unit_of_cells
        line = Text().append(f"{named} {self.low:.2g} ", style=DIM)
        line.append_text(self._square_cells(np.linspace(1 / 16, 15 / 16, 8, dtype=np.float32)))
        line.append(f" {self.high:.2g}", style=DIM)
        if self.grid.hides_keys:
            line.append(f"   {ABSENT} or blank: masked", style=DIM)
        yield line

    def _share_style(self, share: float) -> Style:
        return painted_style(self.colour(share)) if self._coloured else Style()


def _shade(share: float) -> str:
    """Return the character for a position on the colour scale, 0 to 1, for a terminal without colours."""
    return SHADES[min(int(share * len(SHADES)), len(SHADES) - 1)]


def _masked_as_nan(weights: Floats, mask: Bools | None) -> Floats:
    """Return weights (n_q, n_k) with NaN for masked cells."""
    return weights if mask is None else np.where(mask, weights, np.nan)  # (n_q, n_k)


def pool_cells(weights: Floats, factor: int) -> Floats:
    """Return means of factor × factor cells of weights (n_q, n_k) without the masked cells (NaN); NaN if all are masked."""
    if factor == 1:
        return weights
    down, across = ([*range(0, size, factor), size] for size in weights.shape)
    visible = ~np.isnan(weights)  # (n_q, n_k)
    sums, counts = (
        pool_rows(pool_keys(part, across), down)  # (rows, columns)
        for part in (np.where(visible, weights, 0.0), visible.astype(np.float64))
    )
    return np.where(counts > 0, sums / np.where(counts > 0, counts, 1), np.nan)  # (rows, columns)


def tab_separated(grid: HeatmapGrid) -> str:
    """Return the weights as tab-separated text: layer, head, index and text of the query, then a column for each key.

    A column is named by its key's index and text, "3:pizza". In a pooled text the name of a part begins with the index of
    its first token. Masked cells are empty.
    """
    queries, keys = (
        [
            (number, token.text if grid.starts is None else token.text.removeprefix(f"{number} "))
            for number, token in named
        ]
        for named in map(zip, grid.numbers, (grid.queries, grid.keys))
    )
    rows = (
        (layer, head, *query, *(None if math.isnan(weight) else weight for weight in row))
        for layer, head, weights, mask in grid.panels()
        for query, row in zip(queries, _masked_as_nan(weights, mask).tolist(), strict=True)
    )
    heading = ("layer", "head", "index", "query", *(f"{number}:{in_a_cell(name)}" for number, name in keys))
    return csv_table(heading, rows, 6, "\t")
