"""One row of a long text: where a query looks, with the surroundings of what it finds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from attnctl.arrays import Floats
from attnctl.readings.overview import LongRow, TextPart
from attnctl.readings.traces.trace import own_numbers
from attnctl.render.terminal.number_grid import ACCENT, DIM, label_fit, padded_text, share_bar, token_label
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


def _end_of_text(text: str, width: int) -> str:
    """The end of a text in at most `width` cells, after an ellipsis where it is not all of it."""
    if cell_len(text) <= width:
        return text
    start = len(text)
    while start > 0 and cell_len(text[start - 1 :]) < width:
        start -= 1
    return f"…{text[start:]}"[:width]


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
    line.append(padded_text(_end_of_text(before, min(side, AROUND + 1)), min(side, AROUND + 1)), style=DIM)
    line.append(name, style=ACCENT)
    line.append(label_fit(after, max(0, room - cell_len(name) - min(side, AROUND + 1))), style=DIM)
    return line
