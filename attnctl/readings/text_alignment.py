"""Which token of a source each token of a target was made from: by the weights of heads that give each one of its own.

A target token is aligned by its own row, that of the decoder as it reads the token: Shift-Att of Chen et al. 2020 (Accurate
Word Alignment Induction from Neural Machine Translation). Earlier work (Garg et al. 2019, Jointly Learning to Align and
Translate with Transformer Models), and Whisper's times, take the row before, which predicts the token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from attnctl.arrays import Bools, Floats
from attnctl.document_fields import Index, Part, Share, about
from attnctl.layer import LayerAttention
from attnctl.readings.head_place import HeadPlace
from attnctl.text import quoted_beginning
from attnctl.tokens import Token
from attnctl.trace.model_info import ModelInfo
from attnctl.trace.run import Run


class AlignedLink(Part):
    """A token of the target, and the one of the source that its row gives most."""

    text: str
    source: Annotated[Index, about("Its place in sources.")]
    source_text: str
    weight: Annotated[Share, about("Mean of the heads.")]


class AlignmentHead(HeadPlace):
    """A head, and how well it tells the tokens of the source apart."""

    score: Annotated[
        Share,
        about(
            "Mean over the target's tokens of the largest weight on the source × the share of them that have a source of "
            "their own; of tokens with a letter or digit."
        ),
    ]


@dataclass(frozen=True, eq=False)
class AlignedText:
    """A source and a target, what each of the target's tokens was made from, and the heads that say so."""

    text: str
    target: str
    given: bool
    model: ModelInfo
    sources: tuple[Token, ...]
    links: tuple[AlignedLink, ...]
    weights: Floats  # (target tokens, source tokens), mean of the heads
    chosen: str
    heads: tuple[HeadPlace, ...]
    found_heads: tuple[AlignmentHead, ...]
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"AlignedText of {quoted_beginning(self.target)}: {len(self.links)} links, {self.model.name}"


HeadWeights = dict[tuple[int, int], Floats]  # (layer, head) → (target tokens, source tokens)


class AlignmentReading:
    """The weights of every head from target tokens to source tokens, and what the run told.

    `targets` are the queries of each target token, over which is averaged; `sources` are keys.
    """

    predicts = False

    def __init__(self, targets: Sequence[Sequence[int]], sources: Sequence[int]) -> None:
        self._rows, self._sources = [row for rows in targets for row in rows], sources
        self._counts = np.array([len(rows) for rows in targets], np.float32)
        self._starts = np.cumsum([0, *map(len, targets)])[:-1]
        self._weights: HeadWeights = {}

    def take(self, layer: LayerAttention) -> None:
        """Keep the weights of a layer's heads."""
        rows = layer.rows_of(self._rows)[..., self._sources]  # (heads, rows, sources)
        summed: Floats = np.add.reduceat(rows, self._starts, axis=1)  # (heads, targets, sources)
        means = summed / self._counts[:, None]
        self._weights |= {(layer.layer, head): own for head, own in zip(layer.heads, means, strict=True)}

    def value(self, run: Run) -> tuple[HeadWeights, Run]:
        """The weights of all heads."""
        return self._weights, run


def ranked_heads(weights: HeadWeights, targets: Sequence[Token], sources: Sequence[Token]) -> tuple[AlignmentHead, ...]:
    """All heads with their scores, best first; punctuation, which looks at the ends of things, does not count."""
    rows, columns = _worded(targets), _worded(sources)
    scores = {place: head_score(own[rows][:, columns]) for place, own in weights.items()}
    return tuple(AlignmentHead(*place, scores[place]) for place in sorted(scores, key=lambda place: -scores[place]))


def _worded(tokens: Sequence[Token]) -> Bools:
    """Which tokens have a letter or digit; all where none has one → (tokens,)."""
    found = np.array([any(letter.isalnum() for letter in token.text) for token in tokens])
    return found if found.any() else ~found


def head_score(weights: Floats) -> float:
    """How well a head aligns by its weights (targets, sources): their largest, on average, × the share of distinct ones."""
    distinct = len(set(weights.argmax(axis=1).tolist())) / len(weights)
    return float(weights.max(axis=1).mean()) * distinct


def aligned_links(weights: Floats, targets: Iterable[Token], sources: Sequence[Token]) -> tuple[AlignedLink, ...]:
    """The largest of each row of weights (targets, sources)."""
    best = weights.argmax(axis=1)
    return tuple(
        AlignedLink(token.text, int(at), sources[at].text, float(row[at]))
        for token, at, row in zip(targets, best, weights, strict=True)
    )
