"""Readings as JSON: a softmax, a quiz."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import field

from attnctl.document_fields import Amount, Part, Share, Vector, about
from attnctl.formats.documents.json_documents import (
    DocumentModel,
    JsonDocument,
    document_of,
    write_json,
)
from attnctl.readings.questions.quiz import QuizQuestion
from attnctl.readings.questions.softmax import SoftmaxSteps
from attnctl.trace.model_info import ModelInfo

# --- a softmax, a quiz -------------------------------------------------------------------------------------------

NumbersOrNull = Annotated[Any, about("", type="array", items={"anyOf": [{"type": "number"}, {"type": "null"}]})]


class ScaledWeights(Part):
    """The weights under another factor."""

    scale: float
    weights: Vector


class SoftmaxDocument(JsonDocument, kw_only=True, tag="attnctl.softmax/1"):
    """The softmax of a few scores, step by step."""

    labels: Annotated[tuple[str, ...] | None, about("Names of the scores.")] = None
    scores: Annotated[NumbersOrNull, about("As they were given; null where masked.")]
    scale: Annotated[float, about("The factor on the scores.")]
    temperature: float
    scaled: Annotated[NumbersOrNull, about("Scores × scale / temperature; null where masked.")] = field(
        name="scaled_scores"
    )
    exponent_shift: Annotated[float, about("Taken off the scaled scores before the exponential.")] = field(name="shift")
    exponentials: Vector
    sum: Annotated[float, about("Of the exponentials.")]
    weights: Annotated[tuple[Share, ...], about("The softmax.")]
    entropy: Annotated[float, about("Of the weights, nats.")]
    divided_by_sum: Annotated[
        tuple[float, ...] | None, about("Each score divided by the plain sum; null where that is 0.")
    ]
    scales: Annotated[tuple[ScaledWeights, ...], about("The weights under other factors.")]


def softmax_to_json(steps: SoftmaxSteps) -> bytes:
    """A softmax as one line of JSON; infinite numbers, of masked scores, are null."""
    scales = tuple(ScaledWeights(scale, steps.weights_scaled_by(scale)) for scale in steps.scales_compared)
    document = document_of(SoftmaxDocument, steps, sum=float(steps.exponentials.sum()), scales=scales)
    return write_json(document, "softmax")


class QuestionEntry(Part, kw_only=True):
    """A question and its answer."""

    kind: Annotated[str, about("What is asked for: a weight, the strongest key, …")]
    text: str = field(name="question")
    facts: Annotated[tuple[str, ...], about("The numbers that it takes.")]
    answer: Annotated[str | float, about("One of choices, or a number.")]
    choices: tuple[str, ...] = ()
    tolerance: Annotated[Amount | None, about("How far off a number may be.")] = None


class QuizDocument(JsonDocument, kw_only=True, tag="attnctl.quiz/1"):
    """Questions about the attention of a sentence, each with its answer."""

    text: str
    model: DocumentModel
    questions: tuple[QuestionEntry, ...]


def quiz_to_json(text: str, info: ModelInfo, questions: Sequence[QuizQuestion]) -> bytes:
    """The questions of a quiz as one line of JSON, without the newline."""
    entries = tuple(
        document_of(QuestionEntry, one, answer=one.answer if one.choices else float(one.answer)) for one in questions
    )
    return write_json(document_of(QuizDocument, text=text, model=info, questions=entries), "quiz")
