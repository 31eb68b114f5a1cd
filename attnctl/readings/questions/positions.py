"""What the position alone explains of each head's weights, measured on a text of everyday English.

A head that always looks at the word before has a large weight in every sentence, and its link says nothing about this one.
Over one short text it cannot be told from a head that finds something, so the model reads a longer text as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from attnctl.runtime.arrays import Floats

if TYPE_CHECKING:
    from attnctl.layer import LayerAttention
    from attnctl.trace.run import Run

FARTHEST = 24  # tokens: a larger offset is too rare in a text to say something
FEWEST_ROWS = 12  # rows from which the weights of a text itself tell what position explains
TEXT = (
    "When the old ferry reached the island, nobody was waiting on the pier. Marta carried her suitcase up the narrow steps "
    "and looked for the house that her brother had described in his last letter. It was smaller than she had expected. "
    "The door was not locked. In the kitchen she found two cups, a loaf of bread and a note on the table. He had gone to "
    "the harbour because the fishermen needed help with their nets, and would come back before the rain. She made tea, "
    "opened a window and waited. Outside, children were chasing a dog that had stolen somebody's hat."
)


@dataclass(frozen=True)
class Positions:
    """The mean weight of each head at each offset from the query, (layer, head) → (2 · FARTHEST + 1,): keys before first."""

    profiles: Mapping[tuple[int, int], Floats]

    def explained(self, layer: int, head: int, queries: list[int], n_k: int) -> Floats:
        """Return the weight that position alone explains → (queries, n_k): 0 at offsets that are too large."""
        offsets = np.arange(n_k)[None, :] - np.array(queries)[:, None]  # (queries, n_k)
        profile = self.profiles.get((layer, head))
        if profile is None:
            return np.zeros(offsets.shape, np.float32)
        near = np.abs(offsets) <= FARTHEST
        return np.where(near, profile[np.where(near, offsets + FARTHEST, 0)], 0.0)  # (queries, n_k)


class PositionsReading:
    """The reading of Positions: the mean weight of each head at each offset, over the rows that have a key there."""

    predicts = False

    def __init__(self) -> None:
        self._profiles: dict[tuple[int, int], Floats] = {}

    def take(self, layer: LayerAttention) -> None:
        """Keep the profiles of one layer."""
        for head, weights in zip(layer.heads, layer.all_weights(), strict=True):  # (n, n)
            self._profiles[layer.layer, head] = profile_of(weights)

    def value(self, run: Run) -> Positions:
        """Return the profiles of all heads."""
        return Positions(self._profiles)


def profile_of(weights: Floats) -> Floats:
    """Return the mean weight at each offset from -FARTHEST to FARTHEST → (2 · FARTHEST + 1,), of (n, n) weights."""
    diagonals = [np.diagonal(weights, offset) for offset in range(-FARTHEST, FARTHEST + 1)]
    return np.array([row.mean() if row.size else 0.0 for row in diagonals], np.float32)  # (2 · FARTHEST + 1,)


def explained_by_the_text(weights: Floats) -> Floats:
    """Return what the other rows of a text explain of each weight → (n, n): their mean weight at the same offset."""
    n = len(weights)
    explained: Floats = np.zeros((n, n), np.float32)
    for offset in range(1 - n, n):
        diagonal = np.diagonal(weights, offset)
        if diagonal.size > 1:
            rows = np.arange(max(0, -offset), max(0, -offset) + diagonal.size)
            explained[rows, rows + offset] = (diagonal.sum() - diagonal) / (diagonal.size - 1)
    return explained  # (n, n)
