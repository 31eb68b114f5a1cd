"""A question, its marking and the score, for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from attnctl.render.grid import ACCENT, DIM
from attnctl.tokens import shown

if TYPE_CHECKING:
    from attnctl.quiz import Question


def put(question: Question, number: int, count: int) -> Table:
    """The question with the numbers it takes, and the choices by letter."""
    text = Text(question.text, style="bold")
    if question.facts:
        text.append("\n\n" + "   ".join(question.facts), style="not bold")
    if question.choices:
        letters = (f"{chr(ord('a') + at)}) {choice}" for at, choice in enumerate(question.choices))
        text.append("\n\n" + "   ".join(letters), style="not bold")
    return _beside(Text(f"{number}/{count}", style=DIM), text)


def marked(question: Question, given: str, good: bool) -> Table:
    """What became of an answer, and why."""
    if good:
        return _beside(Text("right", style=f"bold {ACCENT}"), Text(question.why))
    answer = question.answer if question.choices else f"{float(question.answer):.2f}".removesuffix(".00")
    return _beside(Text("wrong" if given else "passed", style="bold"), Text(f"It is {shown(answer)}. {question.why}"))


def result(correct: int, answered: int, count: int) -> Text:
    """The score."""
    text = Text(f"\n  {correct} of {count} right", style=f"bold {ACCENT}")
    return text if answered == count else text.append(f", {answered} answered", style="not bold default")


def _beside(mark: Text, text: Text) -> Table:
    """A mark in the margin, and the text beside it, however many lines it takes."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=8, justify="right", no_wrap=True)
    table.add_column()
    table.add_row(Text(), Text())
    table.add_row(mark, text)
    return table
