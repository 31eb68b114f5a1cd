"""The softmax of a few scores worked out: bars, arithmetic, several scales, and plain division beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from attnctl.readings.questions.softmax import Doubles, SoftmaxSteps
from attnctl.render.terminal.number_grid import ACCENT, DIM, bar, cropped, heat, label, number, padded

INDENT = 2
Column = tuple[str, Doubles, str]  # title, numbers, what stands below them


class SoftmaxTables:
    """Softmax weights worked out, as a rich renderable: the arithmetic with bars, the scales, plain division."""

    def __init__(self, worked: SoftmaxSteps, precision: int = 2) -> None:
        self.worked, self.precision = worked, precision
        scores = [f"{x:g}" if np.isfinite(x) else "-∞" for x in worked.scores]
        self.names = scores if worked.labels is None else [label(name, 18) for name in worked.labels]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The lines, none wider than the console."""
        for line in self._lines(options.max_width):
            prose = line.overflow == "fold"
            for part in line.wrap(console, max(options.max_width - INDENT, 8)) if prose else [line]:
                part.rstrip()
                yield cropped(Text(" " * INDENT).append_text(part) if part.plain else part, options.max_width)

    def _lines(self, width: int) -> Iterator[Text]:
        yield Text("")
        yield _title("softmax", "weights = exp(scaled scores) / Σ exp(scaled scores)")
        yield Text("")
        yield from self._arithmetic(width)
        yield Text("")
        yield _prose(self._remark())
        yield Text("")
        yield _title("scale by scale", "weights = softmax(scores × scale" + self._over_temperature() + ")")
        yield Text("")
        yield from self._scales(width)
        yield Text("")
        yield _title("why not divide by the sum?", "scores / Σ scores")
        yield Text("")
        yield from self._division(width)

    def _num(self, x: float) -> str:
        if not np.isfinite(x):
            return "-∞"
        return number(x, self.precision, tiny=0 < abs(x) < 0.5 * 10.0**-self.precision and self.precision > 3)

    def _arithmetic(self, width: int) -> Iterator[Text]:
        w = self.worked
        columns: list[Column] = [] if w.labels is None else [("score", w.scores, "")]
        if w.scale != 1.0:
            columns.append((times(w.scale), w.multiplied, ""))
        if w.temperature != 1.0:
            columns.append((f"÷ {w.temperature:g}", w.scaled, ""))
        e = w.exponentials
        columns.append((f"exp(· - {self._num(w.shift)})" if w.shift else "exp", e, self._num(float(e.sum()))))
        columns.append(("÷ Σ", w.weights, self._num(float(w.weights.sum()))))
        yield from self._table(columns, [float(x) for x in w.weights], width)

    def _table(self, columns: Sequence[Column], shares: Sequence[float], width: int) -> Iterator[Text]:
        """Names, columns of (title, numbers, foot), a bar for each share, and the feet."""
        left = max(map(cell_len, [*self.names, "score"]))
        cells = [[self._num(float(x)) for x in column] for _, column, _ in columns]
        widths = [max(len(t), len(f), *map(len, c)) for (t, _, f), c in zip(columns, cells, strict=True)]
        head = Text(padded("score" if self.worked.labels is None else "", left, right=False), style=DIM)
        foot = Text(padded("Σ", left, right=False), style=DIM)
        for (title, _, total), wide in zip(columns, widths, strict=True):
            head.append("  " + padded(title, wide))
            foot.append("  " + padded(total, wide))
        room = max(4, min(32, width - left - sum(widths) - 2 * len(widths) - 6))
        yield head
        for at, name in enumerate(self.names):
            line = Text(padded(name, left, right=False))
            for column, wide in zip(cells, widths, strict=True):
                line.append("  " + padded(column[at], wide), style="bold" if column is cells[-1] else "")
            background = heat(shares[at]).bgcolor
            yield line.append("  ").append(bar(shares[at], room), style=background.name if background else "")
        yield foot

    def _remark(self) -> Text:
        w = self.worked
        best = int(np.argmax(w.weights))
        even = f"{np.exp(w.entropy):.1f}"
        text = Text(self.names[best], style=f"bold {ACCENT}")
        said = f" takes {100 * w.weights[best]:.3g} %; the whole is as even as {even} equal shares would be."
        return text.append(said, style="not bold default")

    def _over_temperature(self) -> str:
        return "" if self.worked.temperature == 1.0 else f" / {self.worked.temperature:g}"

    def _scales(self, width: int) -> Iterator[Text]:
        w = self.worked
        wide = max(self.precision + 4, *(min(10, cell_len(name)) for name in self.names))
        fitting = max(1, min(len(self.names), (width - 14) // (wide + 2)))
        more = len(self.names) - fitting
        head = Text(padded("scale", 8), style=DIM)
        for name in self.names[:fitting]:
            head.append("  " + padded(label(name, wide), wide))
        yield head.append(f"  … {more} more" if more else "")
        for scale in w.scales:
            own = scale == w.scale
            line = Text(padded(times(scale), 8), style=f"bold {ACCENT}" if own else "")
            for x in w.weights_at(scale)[:fitting]:
                line.append("  ")
                line.append(padded(self._num(float(x)), wide), style=heat(float(x)))
            yield line

    def _division(self, width: int) -> Iterator[Text]:
        w = self.worked
        if w.divided is None:
            yield _prose(Text("The scores add up to 0: there is nothing to divide by."))
            yield _prose(Text("exp makes every score positive first.", style=DIM))
            return
        total = self._num(float(w.plain.sum()))
        columns: list[Column] = [] if w.labels is None else [("score", w.scores, "")]
        columns.append((f"÷ {total}", w.divided, self._num(1)))
        yield from self._table(columns, [float(x) for x in w.divided], width)
        yield Text("")
        if (w.divided < 0).any():
            yield _prose(
                Text("Shares below 0 or above 1 are no shares. exp makes every score positive first.", style=DIM)
            )
            return
        shifted = np.where(w.visible, w.scores + 10, 0.0)  # (n,)
        best = int(np.argmax(w.divided))
        if len(shifted) == 1:
            return
        change = f"{self._num(float(w.divided[best]))} into {self._num(float(shifted[best] / shifted.sum()))}"
        yield _prose(Text(f"Adding 10 to every score turns {change} here.", style=DIM))
        yield _prose(Text("The softmax stays the same: what counts is by how much a score leads.", style=DIM))


def _title(name: str, formula: str) -> Text:
    return _prose(Text(name, style="bold").append(f"   {formula}", style="not bold"))


def _prose(text: Text) -> Text:
    """A sentence, which may go on below."""
    text.overflow = "fold"
    return text


def times(scale: float) -> str:
    """A scale as a factor: × 2, or ÷ 8 where that is the rounder number."""
    if 0 < abs(scale) < 1 and abs(1 / scale - round(1 / scale)) < 1e-9:
        return f"÷ {round(1 / scale)}"
    return f"× {scale:.4g}"
