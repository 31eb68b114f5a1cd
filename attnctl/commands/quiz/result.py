"""A quiz: questions with their answers, and the marking of an answer."""

from __future__ import annotations

from typing import Annotated

from msgspec import field

from attnctl.checks.document_fields import Amount, Part, about
from attnctl.formats import JsonDocument, ResultModel


class QuestionEntry(Part):
    """A question and its answer."""

    kind: Annotated[str, about("What is asked for: a weight, the strongest key, …")]
    text: str = field(name="question")
    facts: Annotated[tuple[str, ...], about("The numbers that it takes.")]
    answer: Annotated[str | float, about("One of choices, or a number.")]
    choices: tuple[str, ...] = ()
    tolerance: Annotated[Amount | None, about("How far off a number may be.")] = None


class QuizQuestion(QuestionEntry, kw_only=True):
    """A question with the reason of its answer."""

    why: str


class Quiz(JsonDocument, kw_only=True, tag="attnctl.quiz/1"):
    """Questions about the attention of a sentence, each with its answer."""

    text: str
    model: ResultModel
    questions: tuple[QuestionEntry, ...]


def is_right(question: QuizQuestion, reply: str) -> bool | None:
    """Return whether an answer is right; None if it is not an answer (no such choice, not a number)."""
    reply = reply.strip()
    if not question.choices:
        number = number_in(reply)
        return None if number is None else abs(number - float(question.answer)) <= (question.tolerance or 0)
    matches = [choice for choice in question.choices if choice.casefold() == reply.casefold()]
    if len(reply) == 1 and 0 <= (index := ord(reply.casefold()) - ord("a")) < len(question.choices):
        matches.append(question.choices[index])  # "a" may name the first choice, or be a token: both are taken
    return question.answer in matches if matches else None


def number_in(text: str) -> float | None:
    """Return a number in any usual spelling: 0.42, ,42, 42 %, −1.5; None for anything else."""
    text = text.replace("−", "-").replace(",", ".").strip()
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        return None
