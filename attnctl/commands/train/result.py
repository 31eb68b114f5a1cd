"""The JSON of a training: its reports, the attention of the watched sentence, and one step as a lesson."""

from __future__ import annotations

from typing import Annotated, TypedDict

from attnctl.checks.document_fields import Amount, Count, Index, Matrix, Part, Portion, Share, Whole, about
from attnctl.formats import JsonDocument


class WatchedWord(TypedDict):
    """The attention of one word of the watched sentence."""

    query: str
    key: Annotated[str, about("The word on which the query's weight grew most.")]
    layer: Index
    head: Index
    before: Annotated[Share, about("Its weight at the start.")]
    weight: Annotated[Share, about("Its weight now.")]
    tokens: tuple[str, ...]
    row: Annotated[tuple[Share, ...], about("The query's weights now.")]


class ReportDocument(Part, kw_only=True, tag_field="schema", tag="attnctl.report/1"):
    """The progress of a training: one line of JSON, from `attnctl train` and in a run's metrics.jsonl."""

    step: Whole
    loss: Annotated[float | None, about("Mean since the last report; null if no word counted.")]
    lr: float
    tokens_per_second: Whole
    seconds: Annotated[Amount, about("Since this run began.")]
    watch: WatchedWord | None = None


class Lesson(JsonDocument, kw_only=True, tag="attnctl.lesson/1"):
    """One step of gradient descent on one sentence, with every number kept."""

    sentence: str
    vocabulary: Annotated[Count, about("Number of words.")]
    predictions: Annotated[
        tuple[tuple[str, str, Portion], ...], about("The visible words, the true word, its probability.")
    ]
    loss: float
    loss_after: float
    lr: Annotated[float, about("The learning rate.")]
    layer: Index
    head: Index
    gradient_norm: float
    weights: Annotated[Matrix, about("W_Q of that layer and head (d_model, d_k).")]
    gradient: Annotated[Matrix, about("The gradient of W_Q (d_model, d_k).")]
    after: Annotated[Matrix, about("W_Q after the step (d_model, d_k).")]
    falls: Annotated[
        dict[str, float],
        about("Each tensor's part of the loss's fall, to first order: learning rate × |gradient|²."),
    ]
    watch: WatchedWord
