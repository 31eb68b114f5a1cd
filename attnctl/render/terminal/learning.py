"""The softmax number by number, and the questions of a quiz, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from attnctl.readings.questions.softmax import Doubles, SoftmaxSteps
from attnctl.render.forms import number_text, token_label
from attnctl.render.terminal.console import (
    ACCENT,
    DIM,
    cells_line,
    cropped_line,
    heat_style,
    packed_lines,
    padded_text,
    prose_lines,
    share_lines,
    wrapped_line,
)
from attnctl.text import visible_text

if TYPE_CHECKING:
    from attnctl.readings.questions.focus import Focus
    from attnctl.readings.questions.quiz import QuizQuestion


INDENT = 2
Column = tuple[str, Doubles, str]  # title, numbers, what stands below them


class SoftmaxTables:
    """Softmax weights worked out, as a rich renderable: the arithmetic with bars, the scales, plain division."""

    def __init__(self, worked: SoftmaxSteps, precision: int = 2) -> None:
        self.worked, self.precision = worked, precision
        scores = [f"{x:g}" if np.isfinite(x) else "-∞" for x in worked.scores]
        self.names = scores if worked.labels is None else [token_label(name, 18) for name in worked.labels]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The lines, none wider than the console."""
        for line in self._softmax_lines(options.max_width):
            if line.overflow == "fold":
                yield from wrapped_line(line, console, options.max_width, INDENT)
            else:
                yield cropped_line(Text(" " * INDENT).append_text(line), options.max_width)

    def _softmax_lines(self, width: int) -> Iterator[Text]:
        yield Text("")
        yield _section_title("softmax", "weights = exp(scaled scores) / Σ exp(scaled scores)")
        yield Text("")
        yield from self._arithmetic_lines(width)
        yield Text("")
        yield _prose_line(self._remark_line())
        yield Text("")
        over = "" if self.worked.temperature == 1.0 else f" / {self.worked.temperature:g}"
        yield _section_title("scale by scale", f"weights = softmax(scores × scale{over})")
        yield Text("")
        yield from self._scale_lines(width)
        yield Text("")
        yield _section_title("why not divide by the sum?", "scores / Σ scores")
        yield Text("")
        yield from self._division_lines(width)

    def _softmax_number(self, x: float) -> str:
        if not np.isfinite(x):
            return "-∞"
        return number_text(x, self.precision, tiny=0 < abs(x) < 0.5 * 10.0**-self.precision and self.precision > 3)

    def _arithmetic_lines(self, width: int) -> Iterator[Text]:
        w = self.worked
        columns: list[Column] = [] if w.labels is None else [("score", w.scores, "")]
        if w.scale != 1.0:
            columns.append((scale_factor(w.scale), w.scaled_scores, ""))
        if w.temperature != 1.0:
            columns.append((f"÷ {w.temperature:g}", w.scaled, ""))
        e = w.exponentials
        columns.append(
            (
                f"exp(· - {self._softmax_number(w.exponent_shift)})" if w.exponent_shift else "exp",
                e,
                self._softmax_number(float(e.sum())),
            )
        )
        columns.append(("÷ Σ", w.weights, self._softmax_number(float(w.weights.sum()))))
        yield from self._table_lines(columns, [float(x) for x in w.weights], width)
        if w.exponent_shift:
            largest = self._softmax_number(w.exponent_shift)
            told = f"{largest}, the largest, is taken off each score before exp, so that none overflows: "
            told += "the shares stay the same."
            yield from prose_lines(told, width - INDENT)

    def _table_lines(self, columns: Sequence[Column], shares: Sequence[float], width: int) -> Iterator[Text]:
        """Names, columns of (title, numbers, foot), a bar for each share, and the feet."""
        left = max(map(cell_len, [*self.names, "score"]))
        cells = [[self._softmax_number(float(x)) for x in column] for _, column, _ in columns]
        widths = [left, *(max(len(t), len(f), *map(len, c)) for (t, _, f), c in zip(columns, cells, strict=True))]
        room = max(4, min(32, width - sum(widths) - 2 * len(columns) - 6))
        heading = "score" if self.worked.labels is None else ""
        yield cells_line(heading, [title for title, _, _ in columns], widths)
        yield from share_lines(list(zip(self.names, *cells, strict=True)), widths, shares, room)
        yield cells_line("Σ", [total for _, _, total in columns], widths)

    def _remark_line(self) -> Text:
        w = self.worked
        best = int(np.argmax(w.weights))
        even = f"{np.exp(w.entropy):.1f}"
        text = Text(self.names[best], style=f"bold {ACCENT}")
        said = f" takes {100 * w.weights[best]:.3g} %; the whole is as even as {even} equal shares would be."
        return text.append(said, style="not bold default")

    def _scale_lines(self, width: int) -> Iterator[Text]:
        w = self.worked
        wide = max(self.precision + 4, *(min(10, cell_len(name)) for name in self.names))
        fitting = max(1, min(len(self.names), (width - 14) // (wide + 2)))
        more = len(self.names) - fitting
        head = Text(padded_text("scale", 8), style=DIM)
        for name in self.names[:fitting]:
            head.append("  " + padded_text(token_label(name, wide), wide))
        yield head.append(f"  … {more} more" if more else "")
        for scale in w.scales_compared:
            own = scale == w.scale
            line = Text(padded_text(scale_factor(scale), 8), style=f"bold {ACCENT}" if own else "")
            for x in w.weights_scaled_by(scale)[:fitting]:
                line.append("  ")
                line.append(padded_text(self._softmax_number(float(x)), wide), style=heat_style(float(x)))
            yield line

    def _division_lines(self, width: int) -> Iterator[Text]:
        w = self.worked
        if w.divided_by_sum is None:
            yield _prose_line(Text("The scores add up to 0: there is nothing to divide by."))
            yield _prose_line(Text("exp makes every score positive first.", style=DIM))
            return
        total = self._softmax_number(float(w.unmasked_scores.sum()))
        columns: list[Column] = [] if w.labels is None else [("score", w.scores, "")]
        columns.append((f"÷ {total}", w.divided_by_sum, self._softmax_number(1)))
        yield from self._table_lines(columns, [float(x) for x in w.divided_by_sum], width)
        yield Text("")
        if (w.divided_by_sum < 0).any():
            yield _prose_line(
                Text("Shares below 0 or above 1 are no shares. exp makes every score positive first.", style=DIM)
            )
            return
        if change := self._change_by_shift():
            yield _prose_line(Text(f"{change} here.", style=DIM))
            yield _prose_line(Text("The softmax stays the same: what counts is by how much a score leads.", style=DIM))

    def _change_by_shift(self) -> str:
        """How plain division changes where every score is larger, or smaller; empty where no such change can be seen."""
        w = self.worked
        assert w.divided_by_sum is not None
        best = int(np.argmax(w.divided_by_sum))
        before, least = self._softmax_number(float(w.divided_by_sum[best])), float(w.scores[w.visible].min())
        for shift in (10.0, 1 - least):  # by which the least score is 1
            shifted = np.where(w.visible, w.scores + shift, 0.0)  # (n,)
            total = float(shifted.sum())
            if total > 0 and (after := self._softmax_number(float(shifted[best]) / total)) != before:
                done = f"Adding {shift:g} to" if shift > 0 else f"Taking {-shift:g} off"
                return f"{done} every score turns {before} into {after}"
        return ""


def _section_title(name: str, formula: str) -> Text:
    return _prose_line(Text(name, style="bold").append(f"   {formula}", style="not bold"))


def _prose_line(text: Text) -> Text:
    """A sentence, which may go on below."""
    text.overflow = "fold"
    return text


def scale_factor(scale: float) -> str:
    """A scale as a factor: × 2, or ÷ 8 where that is the rounder number."""
    if 0 < abs(scale) < 1 and abs(1 / scale - round(1 / scale)) < 1e-9:
        return f"÷ {round(1 / scale)}"
    return f"× {scale:.4g}"


MARGIN = 8


class Beside:
    """A mark in the margin, and lines of text beside it, each as many lines as it takes; a blank line first.

    Of a line given as its parts ("a) eat", "b) will") no part is cut that fits.
    """

    def __init__(self, mark: Text, *lines: Text | tuple[str, ...]) -> None:
        self.mark, self.lines = mark, lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """The lines, none wider than the console."""
        margin = Text(padded_text(self.mark.plain, MARGIN), style=self.mark.style)
        for line in self.lines:
            yield Text("")
            width = max(10, options.max_width - MARGIN - 2)
            text = line if isinstance(line, Text) else Text("\n".join(packed_lines(line[0], line[1:], width, "   ")))
            for part in text.wrap(console, width):
                whole = Text("").append_text(margin).append("  ").append_text(part)
                yield cropped_line(whole, options.max_width)
                margin = Text(" " * MARGIN)


def put_question(question: QuizQuestion, number: int, count: int) -> Beside:
    """The question with the numbers it takes, and the choices by letter."""
    letters = tuple(f"{chr(ord('a') + at)}) {choice}" for at, choice in enumerate(question.choices))
    text = f"{question.text}{'' if question.choices else accuracy(question)}"
    more = [tuple(parts) for parts in (question.facts, letters) if parts]
    return Beside(Text(f"{number}/{count}", style=DIM), Text(text, style="bold"), *more)


def accuracy(question: QuizQuestion) -> str:
    """How exact a number is wanted, as the end of its question."""
    if question.tolerance == 0:
        return " (a whole number)"
    return f" (two decimals: what is within {question.tolerance:.2g} is right)"


def marked_answer(question: QuizQuestion, given: str, good: bool) -> Beside:
    """What became of an answer, and why."""
    if good:
        return Beside(Text("right", style=f"bold {ACCENT}"), Text(question.why))
    whole = question.choices or question.tolerance == 0
    answer = question.answer if whole else f"{float(question.answer):.2f}"
    return Beside(
        Text("wrong" if given else "passed", style="bold"), Text(f"It is {visible_text(answer)}. {question.why}")
    )


def beginning(focus: Focus, query: str, where: str) -> Beside:
    """Which row the first question is about, and why; where the others come from."""
    place = f"{query}{f' in {where}' if where else ''}"
    said = (
        f"The first question is about {place}: {focus.reason}. The others are drawn by --seed "
        "(--layer, --head, --query choose)."
    )
    return Beside(Text(""), Text(said, style=DIM))


def quiz_result(correct: int, answered: int, count: int) -> Text:
    """The score."""
    text = Text(f"\n  {correct} of {count} right", style=f"bold {ACCENT}")
    return text if answered == count else text.append(f", {answered} answered", style="not bold default")
