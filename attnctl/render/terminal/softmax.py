"""The softmax of a few scores worked out: bars, arithmetic, several scales, and plain division beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from attnctl import attention
from attnctl.render.terminal.number_grid import ACCENT, DIM, bar, cropped, heat, label, number, padded

SCHEMA = "attnctl.softmax/1"
FACTORS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
CALM = 8.0  # scores up to here have exponentials that can be read; beyond, the largest is taken off first

Doubles = npt.NDArray[np.float64]
Column = tuple[str, Doubles, str]  # title, numbers, what stands below them


@dataclass(frozen=True)
class Worked:
    """Scores (n,) with -inf for a masked one, and every step from there to the weights; all in float64."""

    scores: Doubles  # (n,)
    labels: tuple[str, ...] | None = None
    scale: float = 1.0
    temperature: float = 1.0

    @property
    def visible(self) -> npt.NDArray[np.bool_]:
        """Which scores are not masked: (n,)."""
        return np.isfinite(self.scores)

    @property
    def plain(self) -> Doubles:
        """The scores, 0 where they are masked: (n,)."""
        return np.where(self.visible, self.scores, 0.0)  # (n,)

    @property
    def multiplied(self) -> Doubles:
        """Scores × scale, masked ones -inf: (n,)."""
        return np.where(self.visible, self.plain * self.scale, -np.inf)  # (n,)

    @property
    def scaled(self) -> Doubles:
        """Scores × scale ÷ temperature, masked ones -inf: (n,)."""
        return self.multiplied / self.temperature  # (n,)

    @property
    def shift(self) -> float:
        """What is taken off before the exponential, which changes no weight: 0 where the numbers are readable without."""
        top = float(self.scaled.max())
        return top if abs(top) > CALM else 0.0

    @property
    def exponentials(self) -> Doubles:
        """exp(scaled - shift): (n,)."""
        return np.exp(self.scaled - self.shift)

    @property
    def weights(self) -> Doubles:
        """The softmax: (n,), summing to 1."""
        return self.weights_at(self.scale)

    def weights_at(self, scale: float) -> Doubles:
        """The softmax under another scale: (n,)."""
        weights: Doubles = attention.softmax(self.plain * scale, self.visible, temperature=self.temperature)
        return weights

    @property
    def divided(self) -> Doubles | None:
        """What dividing each score by the plain sum gives: (n,), or None where the sum is 0; masked ones 0."""
        total = self.plain.sum()
        return None if abs(total) <= 1e-12 * np.abs(self.plain).max() else self.plain / total  # (n,)

    @property
    def scales(self) -> tuple[float, ...]:
        """The scales to set side by side, the chosen one among them."""
        return tuple(sorted({*FACTORS, self.scale}))

    @property
    def entropy(self) -> float:
        """Entropy of the weights, in nats."""
        some = self.weights[self.weights > 0]
        return float(abs(-(some * np.log(some)).sum()))

    def document(self) -> dict[str, Any]:
        """The JSON document; a masked score is null, and so is a share that plain division cannot give."""
        return {
            "schema": SCHEMA,
            **({} if self.labels is None else {"labels": list(self.labels)}),
            "scores": _finite(self.scores),
            "scale": self.scale,
            "temperature": self.temperature,
            "scaled_scores": _finite(self.scaled),
            "shift": self.shift,
            "exponentials": _finite(self.exponentials),
            "sum": float(self.exponentials.sum()),
            "weights": _finite(self.weights),
            "entropy": self.entropy,
            "divided_by_sum": None if self.divided is None else _finite(self.divided),
            "scales": [{"scale": s, "weights": _finite(self.weights_at(s))} for s in self.scales],
        }


class SoftmaxTables:
    """`Worked` as a rich renderable: the arithmetic with bars, the scales, plain division."""

    def __init__(self, worked: Worked, precision: int = 2) -> None:
        self.worked, self.precision = worked, precision
        scores = [f"{x:g}" if np.isfinite(x) else "-∞" for x in worked.scores]
        self.names = scores if worked.labels is None else [label(name, 18) for name in worked.labels]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The lines, none wider than the console."""
        for line in self._lines(options.max_width):
            yield cropped(Text("  ").append_text(line) if line.plain else line, options.max_width)

    def _lines(self, width: int) -> Iterator[Text]:
        yield Text("")
        yield _title("softmax", "weights = exp(scaled scores) / Σ exp(scaled scores)")
        yield Text("")
        yield from self._arithmetic(width)
        yield Text("")
        yield self._remark()
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
            yield Text("The scores add up to 0: there is nothing to divide by.")
            yield Text("exp makes every score positive first.", style=DIM)
            return
        total = self._num(float(w.plain.sum()))
        columns: list[Column] = [] if w.labels is None else [("score", w.scores, "")]
        columns.append((f"÷ {total}", w.divided, self._num(1)))
        yield from self._table(columns, [float(x) for x in w.divided], width)
        yield Text("")
        if (w.divided < 0).any():
            yield Text("Shares below 0 or above 1 are no shares. exp makes every score positive first.", style=DIM)
            return
        shifted = np.where(w.visible, w.scores + 10, 0.0)  # (n,)
        best = int(np.argmax(w.divided))
        if len(shifted) == 1:
            return
        change = f"{self._num(float(w.divided[best]))} into {self._num(float(shifted[best] / shifted.sum()))}"
        yield Text(f"Adding 10 to every score turns {change} here.", style=DIM)
        yield Text("The softmax stays the same: what counts is by how much a score leads.", style=DIM)


def _title(name: str, formula: str) -> Text:
    return Text(name, style="bold").append(f"   {formula}", style="not bold")


def _finite(array: Doubles) -> list[float | None]:
    return [float(x) if np.isfinite(x) else None for x in array]


def times(scale: float) -> str:
    """A scale as a factor: × 2, or ÷ 8 where that is the rounder number."""
    if 0 < abs(scale) < 1 and abs(1 / scale - round(1 / scale)) < 1e-9:
        return f"÷ {round(1 / scale)}"
    return f"× {scale:.4g}"
