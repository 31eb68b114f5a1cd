"""How far two checkpoints of one architecture drift apart: each head, each layer's output, the next token."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from attnctl.checks.document_fields import (
    NOT_EMPTY,
    Amount,
    Correlation,
    Count,
    Index,
    Part,
    Portion,
    Share,
    Whole,
    about,
)
from attnctl.formats import JsonDocument, ResultModel, flat_records


class TokenPlace(Part):
    """A query of a text."""

    text: Annotated[Index, about("The place of the text in the input, from 0.")]
    query: Annotated[Index, about("The number of the token in the text.")]
    token: Annotated[str, about("The text of the token.")]


class LargestVariation(TokenPlace):
    """The row of weights that changed most."""

    total_variation: Share


class HeadDrift(Part):
    """How far the weights of one head moved from A to B, over all rows of all texts."""

    layer: Index
    head: Index
    total_variation: Annotated[Share, about("Share of a row's weight that is on other keys in B, mean over the rows.")]
    largest: LargestVariation
    sink: Annotated[
        Share | None,
        about(
            "Share of the weight that A puts on sinks: keys with 0.3 of the head's weight in a text, a learned sink."
        ),
    ] = None
    sink_change: Annotated[float | None, about("Share on the same sinks in B, minus that in A.")] = None


class LayerDrift(Part):
    """How far the output of one layer's attention, after W_O, turned from A to B."""

    layer: Index
    cosine: Annotated[
        Correlation, about("Cosine of the angle between A's and B's output of a token, mean over tokens.")
    ]
    smallest: Annotated[Correlation, about("The smallest cosine of a token.")]
    place: Annotated[TokenPlace, about("The token with the smallest cosine.")]


class LargestDivergence(TokenPlace):
    """The position with the largest divergence of the predictions; of a classifier the last token of that text."""

    kl: Amount


class SkippedText(Part):
    """A text that could not be compared; the numbers are of the others."""

    number: Annotated[Index, about("The place of the text in the input, from 0.")]
    error: Annotated[str, about("The reason why it was skipped.")]


class Drift(JsonDocument, kw_only=True, eq=False, tag="attnctl.drift/1"):
    """How far two checkpoints of one architecture drift apart over texts; A is the reference.

    `kl`, `top_token_agreement` and `largest_kl` are of what the models predict: tokens, or the label of a text. Models
    that predict neither do not have them.
    """

    a: ResultModel
    b: ResultModel
    kernels: Annotated[
        tuple[str, str] | None, about("The attention functions of transformers that ran in A and B: sdpa, eager.")
    ] = None
    texts: Count
    tokens: Annotated[Count, about("Rows of weights of each head, over all texts.")]
    heads: Annotated[tuple[HeadDrift, ...], NOT_EMPTY]
    layers: Annotated[tuple[LayerDrift, ...], about("Layers whose output can be read.")] = ()
    kl: Annotated[
        Amount | None,
        about("Kullback-Leibler divergence of B's prediction from A's, KL(A‖B), nats, mean over positions."),
    ] = None
    largest_kl: LargestDivergence | None = None
    top_token_agreement: Annotated[
        Portion | None, about("Share of positions at which both predict the same token; of classifiers the same label.")
    ] = None
    predictions: Annotated[
        Whole, about("Positions whose predictions are compared; of classifiers the number of texts.")
    ] = 0
    predicted: Annotated[
        Literal["token", "label"] | None, about("What the models predict; absent if nothing is compared.")
    ] = None
    skipped: Annotated[tuple[SkippedText, ...], about("Texts that could not be compared.")] = ()
    notes: tuple[str, ...] = ()

    def to_records(self) -> list[dict[str, Any]]:
        """Return a flat record for each head, in the order of layers and heads."""
        return flat_records(self.heads)

    @property
    def total_variation(self) -> float:
        """Return the mean total variation of all heads."""
        return sum(head.total_variation for head in self.heads) / len(self.heads)

    def worst(self, count: int | None = None) -> list[HeadDrift]:
        """Return the heads that moved most, the first one most; `count` None returns all."""
        return sorted(self.heads, key=lambda head: (-head.total_variation, head.layer, head.head))[:count]

    def __repr__(self) -> str:
        worst = self.worst(1)[0]
        return (
            f"Drift of {self.a.name} and {self.b.name}: total variation {self.total_variation:.3g}, most in layer "
            f"{worst.layer}, head {worst.head}"
        )
