"""Two runs side by side as JSON: the weights of both, and their difference."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from attnctl.checks.document_fields import Index, Mask, Matrix, Part, about
from attnctl.formats import DocumentModel, JsonDocument, document_of, write_json
from attnctl.readings import AlignedTokens, Comparison
from attnctl.text import counted, quoted_beginning


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

    def to_records(self) -> list[dict[str, object]]:
        """Return a flat record for each weight that both have, as the comparison of Python does.

        `query` and `key` are the numbers of the tokens in A.
        """
        heads = (
            (layer.layer, head.head, head.a, head.b, head.difference) for layer in self.layers for head in layer.heads
        )
        return Comparison.records_of_weights((self.tokens, self.key_tokens), self.aligned, heads)

    def __repr__(self) -> str:
        heads = counted(sum(len(layer.heads) for layer in self.layers), "head")
        return f"Comparison of {self.a.name} and {self.b.name}, {heads} of both: {quoted_beginning(self.a.text)}"


def comparison_to_json(pair: Comparison) -> bytes:
    """Return the comparison as one line of JSON, without the newline."""
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
        layers=tuple(ComparedLayer(layer_index, tuple(heads)) for layer_index, heads in layers.items()),
    )
    return write_json(document, "comparison")
