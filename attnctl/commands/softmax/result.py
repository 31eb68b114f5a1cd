"""The softmax of a few scores, every step from the scores to the weights, and what plain division would give."""

from __future__ import annotations

from typing import Annotated

from msgspec import field

from attnctl.checks.document_fields import Doubles, MaskedScores, Part, Share, about
from attnctl.formats import JsonDocument


class ScaledWeights(Part):
    """The weights under another factor."""

    scale: float
    weights: Doubles


class Softmax(JsonDocument, kw_only=True, eq=False, tag="attnctl.softmax/1"):
    """The softmax of a few scores, step by step."""

    labels: Annotated[tuple[str, ...] | None, about("Names of the scores.")] = None
    scores: Annotated[MaskedScores, about("As they were given; null where masked.")]  # (n,), there -inf
    scale: Annotated[float, about("The factor on the scores.")]
    temperature: float
    scaled: Annotated[MaskedScores, about("Scores × scale / temperature; null where masked.")] = field(
        name="scaled_scores"
    )
    exponent_shift: Annotated[float, about("Taken off the scaled scores before the exponential.")] = field(name="shift")
    exponentials: Doubles
    sum: Annotated[float, about("Of the exponentials.")]
    weights: Annotated[tuple[Share, ...], about("The softmax.")]
    entropy: Annotated[float, about("Of the weights, nats.")]
    divided_by_sum: Annotated[
        tuple[float, ...] | None, about("Each score divided by the plain sum; null where that is 0.")
    ]
    scales: Annotated[tuple[ScaledWeights, ...], about("The weights under other factors.")]
