"""Rows and links of a text, statistics of heads, and two traces compared, as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from attnctl.arrays import Floats
from attnctl.readings.overview import LongRow, TextPart
from attnctl.readings.traces.comparison import Comparison
from attnctl.readings.traces.trace import own_numbers
from attnctl.render.forms import Grid, label_fit, number_text, token_label
from attnctl.render.terminal.console import (
    ACCENT,
    DIM,
    cropped_line,
    grid_lines,
    padded_text,
    prose_lines,
    share_bar,
)
from attnctl.render.terminal.lowering import cut_at_start
from attnctl.text import counted, visible_text
from attnctl.tokens import Token

AROUND = 40  # characters of the text on each side of a key
BAR = 12
IN_FULL = 6  # heads, beyond which each has one line


class RowTable:
    """A LongRow as a rich renderable: for each head its entropy, its top keys, and its mass by `parts` of the text.

    Where it is not the `whole` row, its keys are its strongest links, and neither entropy nor the other keys are told.
    """

    def __init__(self, row: LongRow, parts: Sequence[TextPart] = (), top: int = 10, whole: bool = True) -> None:
        self.row, self.parts, self.top, self.whole = row, parts, top, whole
        self.numbers: Sequence[int]
        own = own_numbers(row.tokens, row.keys)  # also where keys were left out
        self.numbers, self.text_of_keys = (range(len(row.keys)), "") if own is None else (own, row.text)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The query in its text, then head by head."""
        row, width = self.row, options.max_width
        yield Text(f"{row.model.name}, {counted(len(row.tokens), 'token')}", style="bold")
        query = row.tokens[row.query]
        yield _surroundings_line(Text(f"query {row.query}  "), row.text, query, width)
        if len(row.weights) > IN_FULL:
            yield from self._brief_lines(width)
            return
        for (layer, head), weights in row.weights.items():
            yield Text("")
            heading = Text(f"layer {layer}, head {head}")
            if self.whole:
                nats = row_entropy(weights)
                said = f"   entropy {nats:.2f} nats, as if spread evenly over {np.exp(nats):.0f} keys"
                heading.append(said, style=DIM)
            yield heading
            yield from self._key_lines(weights, width)
            if self.parts:
                yield Text("")
                yield from self._by_part(weights, width)

    def _brief_lines(self, width: int) -> Iterator[Text]:
        """One line a head: its entropy and its top keys; --layer and --head show one in full."""
        yield Text("")
        yield Text(f"layer head  {'entropy  ' * self.whole}looks most at", style=DIM)
        for (layer, head), weights in self.row.weights.items():
            entropy = f"{row_entropy(weights):>7.2f} " if self.whole else ""
            line = Text(f"{layer:>5} {head:>4}  {entropy}", no_wrap=True)
            for at in np.argsort(-weights, kind="stable")[: min(4, self.top)].tolist():
                name = f"{weights[at]:.3f} {self.numbers[at]} {token_label(self.row.keys[at], 14)}"
                if weights[at] > 0 and cell_len(line.plain) + cell_len(name) + 2 <= width:
                    line.append(f" {padded_text(name, 25, right=False)}")
            line.rstrip()
            yield line

    def _key_lines(self, weights: Floats, width: int) -> Iterator[Text]:
        row = self.row
        best = [int(at) for at in np.argsort(-weights, kind="stable")[: self.top] if weights[at] > 0]
        digits = len(str(self.numbers[-1]))
        for at in best:
            line = Text(f"  {weights[at]:.3f} ", no_wrap=True)
            line.append(padded_text(share_bar(float(weights[at]), BAR), BAR, right=False))
            line.append(f" {self.numbers[at]:>{digits}}  ", style=DIM)
            yield _surroundings_line(line, self.text_of_keys, row.keys[at], width)
        if best and self.whole:
            rest = len(row.keys) - len(best)
            held = float(weights[best].sum())
            yield Text(f"  {max(float(weights.sum()) - held, 0.0):.3f} on the other {rest:,} keys", style=DIM)

    def _by_part(self, weights: Floats, width: int) -> Iterator[Text]:
        masses = [(sum(float(weights[a:b].sum()) for a, b in part.ranges), part) for part in self.parts]
        for mass, part in sorted(masses, key=lambda pair: -pair[0])[: self.top]:
            line = Text(f"  {mass:.3f} ", no_wrap=True)
            line.append(padded_text(share_bar(mass, BAR), BAR, right=False)).append("  ")
            yield line.append(label_fit(token_label(part.name), max(8, width - cell_len(line.plain))))
        if len(masses) > self.top:
            yield Text(f"  … {len(masses) - self.top} more parts", style=DIM)


def row_entropy(weights: Floats) -> float:
    """Of one row, in nats."""
    some = weights[weights > 0].astype(np.float64)
    return float(-(some * np.log(some)).sum())


def _one_line(text: str) -> str:
    """The words of a stretch of text on one line; nothing where there are none."""
    words = " ".join(text.split())
    return visible_text(words) if words else ""


def _surroundings_line(line: Text, text: str, token: Token, width: int) -> Text:
    """The token in its surroundings, appended to the line and cut to the width."""
    line.no_wrap = True
    room = max(0, width - cell_len(line.plain))
    before, after = "", ""
    if text and token.start is not None and token.end is not None and token.end > token.start:
        covered = text[token.start : token.end]
        start = token.start + (len(covered) - len(covered.lstrip())) * bool(
            covered.strip()
        )  # a piece may begin with a space
        before = _one_line(text[max(0, start - AROUND) : start])
        after = _one_line(text[token.end : token.end + AROUND])
        before += " " * text[:start][-1:].isspace()
        after = " " * text[token.end : token.end + 1].isspace() + after
    name = f"‹{token_label(token, 24)}›"  # marked where there is no colour, too
    side = max(0, (room - cell_len(name)) // 2)
    line.append(padded_text(cut_at_start(before, min(side, AROUND + 1)), min(side, AROUND + 1)), style=DIM)
    line.append(name, style=ACCENT)
    line.append(label_fit(after, max(0, room - cell_len(name) - min(side, AROUND + 1))), style=DIM)
    return line


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
                yield from grid_lines(shown, width)
            if (hidden := self.pair.hidden_in_one(layer)) is not None:
                yield Text("")
                said = f"{hidden.sum():,} of {hidden.size:,} places are hidden in one of the two: no weights to compare"
                yield from prose_lines(said, width)
        if said := self.pair.unmatched_tokens():
            yield Text("")
            yield from prose_lines(said, width)
        yield Text("")
        yield from self._largest_difference(rows, columns, width)

    def _grids_at(self, layer: int, head: int, rows: list[str], columns: list[str]) -> Iterator[tuple[str, Grid]]:
        """A and B with all their tokens, and B - A with those that both have."""
        _, _, i, j = self.pair.largest_difference(layer, head)
        masks = self.pair.whole_masks(layer)
        sides = zip((self.pair.a, self.pair.b), self.pair.whole_weights(layer, head), masks, strict=True)
        for side, (trace, array, mask) in enumerate(sides):
            at = (i, j) if self.pair.aligned is None else (self.pair.aligned[0][i][side], self.pair.aligned[1][j][side])
            names = (rows, columns)
            if self.pair.aligned is not None:
                names = [token_label(t.text) for t in trace.tokens], [token_label(t.text) for t in trace.key_axis]
            grid = Grid(array, *names, self.precision, mask=mask, heat=True, marks=at[:1], must=at)
            yield f"{'AB'[side]}  {self.pair.names[side]}", grid
        a, b = self.pair.both_weights(layer, head)
        *_, mask = self.pair.both_masks(layer)
        yield (
            "B - A",
            Grid(b - a, rows, columns, self.precision, mask=mask, heat=False, change=True, marks=(i,), must=(i, j)),
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
            yield from (Text(change, style=f"bold {ACCENT}"), *prose_lines(said, width))
