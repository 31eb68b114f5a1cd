"""Readings as JSON: effects, comparisons, a softmax, a quiz."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from msgspec import field

from attnctl.document_fields import Amount, Index, Mask, Matrix, Part, Share, Vector, about
from attnctl.formats.documents.json_documents import (
    DocumentModel,
    JsonDocument,
    TextDocument,
    document_of,
    fields_from,
    fields_of,
    write_json,
)
from attnctl.readings.comparison import AlignedTokens, Comparison
from attnctl.readings.effects import ContributionPart, Effects, strongest_cuts
from attnctl.readings.questions.quiz import QuizQuestion
from attnctl.readings.questions.softmax import SoftmaxSteps
from attnctl.trace.model_info import ModelInfo

# --- effects -----------------------------------------------------------------------------------------------------


class ContributionsEntry(Part):
    """The logit taken apart: what the model says, what the parts add up to, and the parts."""

    logit: Annotated[float, about("The model's own, as in baseline.")]
    sum_of_parts: float = field(name="sum")
    parts: tuple[ContributionPart, ...]
    logit_before_cap: Annotated[float | None, about("Where the model caps its logits: what the parts add up to.")] = (
        None
    )


_TEXT = TextDocument.__struct_fields__


@fields_from(own for own in fields_of(Effects, contributions=ContributionsEntry | None) if own[0] not in _TEXT)
class EffectsDocument(TextDocument, tag="attnctl.effects/1"):
    """What the attention over one text does for one prediction.

    Each head ablated in turn, each edge cut, parts of the text cut off. Δ is after minus before, in nats. What was not
    measured is absent.
    """


def effects_to_json(effects: Effects, top: int | None = None) -> bytes:
    """One line of JSON, without the newline; heads strongest first, `top` of them (None: all)."""
    return write_json(effects_document(effects, top), "table of effects")


def effects_document(effects: Effects, top: int | None = None) -> EffectsDocument:
    """Effects as a document, `top` heads, edges and spans of them (None: all)."""
    parts = effects.contributions and document_of(ContributionsEntry, effects.contributions)
    edges, spans = strongest_cuts(effects.edges, top), strongest_cuts(effects.spans, top)
    return document_of(
        EffectsDocument, effects, heads=effects.strongest(top), edges=edges, spans=spans, contributions=parts
    )


# --- comparisons -------------------------------------------------------------------------------------------------


class ComparedRun(Part):
    """One side of a comparison."""

    name: str
    text: str
    model: DocumentModel


class LargestDifference(Part):
    """Where the two differ most."""

    layer: Index
    head: Index
    query: Index
    key: Index
    a: float
    b: float
    difference: float


class ComparedHead(Part):
    """The weights of one head on both sides."""

    head: Index
    a: Annotated[Matrix, about("Weights of A (rows, columns).")]
    b: Annotated[Matrix, about("Weights of B.")]
    difference: Annotated[Matrix, about("B minus A.")]
    hidden_in_one: Annotated[Mask | None, about("True where one of the two alone hides the key.")] = None


class ComparedLayer(Part):
    """The heads of a layer that both have."""

    layer: Index
    heads: tuple[ComparedHead, ...]


class ComparisonDocument(JsonDocument, kw_only=True, tag="attnctl.comparison/1"):
    """The weights of two runs, and their difference: B minus A, for each head that both have."""

    a: ComparedRun
    b: ComparedRun
    aligned: Annotated[
        AlignedTokens | None,
        about("Which tokens are compared, where some are not with the one at their own place."),
    ] = None
    tokens: Annotated[tuple[str, ...], about("What a row of a grid is: the token, or A's/B's where they differ.")]
    key_tokens: Annotated[tuple[str, ...], about("What its columns are.")]
    largest: LargestDifference
    layers: tuple[ComparedLayer, ...]


def comparison_to_json(pair: Comparison) -> bytes:
    """Two runs side by side as one line of JSON, without the newline."""
    layer, head, i, j = pair.largest_difference()
    x, y = (float(weights[i, j]) for weights in pair.both_weights(layer, head))
    layers: dict[int, list[ComparedHead]] = {}
    for at_layer, at_head in pair.places:
        u, v = pair.both_weights(at_layer, at_head)
        a, b, difference = (np.ascontiguousarray(grid, np.float32) for grid in (u, v, v - u))
        compared = ComparedHead(at_head, a, b, difference, pair.hidden_in_one(at_layer))
        layers.setdefault(at_layer, []).append(compared)
    rows, columns = pair.axis_labels()
    document = document_of(
        ComparisonDocument,
        pair,
        a=document_of(ComparedRun, pair.a, name=pair.names[0]),
        b=document_of(ComparedRun, pair.b, name=pair.names[1]),
        tokens=tuple(rows),
        key_tokens=tuple(columns),
        largest=LargestDifference(layer, head, i, j, x, y, y - x),
        layers=tuple(ComparedLayer(at, tuple(heads)) for at, heads in layers.items()),
    )
    return write_json(document, "comparison")


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
