"""Show the questions of a quiz, with a mark in the margin."""

from __future__ import annotations

from collections.abc import Iterator

from attnctl.commands.quiz.result import QuizQuestion
from attnctl.errors import option_name
from attnctl.render import Form, Line, Piece
from attnctl.text import number_text, visible_text
from attnctl.trace import Headline

MARGIN = 10  # cells


def question_forms(question: QuizQuestion, number: int, count: int) -> Iterator[Form]:
    """Return a question with the numbers that it needs, and its choices by letter."""
    exact = (
        f" (two decimals: what is within {question.tolerance:.2g} is right)"
        if question.tolerance
        else " (a whole number)"
    )
    yield from _beside(f"{number}/{count}", "dim", (question.text + exact * (not question.choices), "bold"))
    letters: list[Piece] = [f"{chr(ord('a') + index)}) {choice}" for index, choice in enumerate(question.choices)]
    facts: list[Piece] = [*question.facts]
    for parts in (facts, letters):
        if parts:
            yield ""
            yield Line(parts, indent=MARGIN, between="   ")


def answer_forms(question: QuizQuestion, reply: str, good: bool) -> Iterator[Form]:
    """Return whether an answer was right, and why."""
    if good:
        return _beside("right", "bold accent", question.why)
    right_answer, decimals = question.answer, 2 if question.tolerance else 0
    answer_text = visible_text(right_answer) if isinstance(right_answer, str) else number_text(right_answer, decimals)
    return _beside("wrong" if reply else "passed", "bold", f"It is {answer_text}. {question.why}")


def beginning_forms(line: Headline, query: str, where: str) -> Iterator[Form]:
    """Return why the first question is about this row, and how the other questions are chosen."""
    place = f"{query}{f' in {where}' if where else ''}"
    sentence = f"The first question is about {place}: {line.reason}. "
    options = ", ".join(map(option_name, ("layer", "head", "query")))
    return _beside("", "", (f"{sentence}The others are drawn by {option_name('seed')} ({options} choose).", "dim"))


def score_forms(correct: int, answered: int, count: int) -> Iterator[Form]:
    """Return the score."""
    yield ""
    yield Line(
        [(f"{correct} of {count} right", "bold accent"), f", {answered} answered" * (answered != count)], indent=2
    )


def _beside(mark: str, tone: str, text: Piece) -> Iterator[Form]:
    yield ""
    yield Line(text, mark=(mark.rjust(MARGIN - 2), tone), hanging=MARGIN)
