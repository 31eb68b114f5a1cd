"""A question, its marking and the score, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.text import Text

from attnctl.render.terminal.number_grid import ACCENT, DIM, cropped_line, padded_text
from attnctl.text import visible_text

if TYPE_CHECKING:
    from attnctl.readings.questions.focus import Focus
    from attnctl.readings.questions.quiz import QuizQuestion

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
            text = _packed_parts(line, width) if isinstance(line, tuple) else line
            for part in text.wrap(console, width):
                whole = Text("").append_text(margin).append("  ").append_text(part)
                yield cropped_line(whole, options.max_width)
                margin = Text(" " * MARGIN)


def _packed_parts(parts: tuple[str, ...], width: int) -> Text:
    """The parts side by side, a new line before each that would not fit."""
    lines = [""]
    for part in parts:
        longer = f"{lines[-1]}   {part}" if lines[-1] else part
        if cell_len(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(part)
    return Text("\n".join(line for line in lines if line))


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
