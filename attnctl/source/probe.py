"""The probe of heads: random tokens, repeated, and how far each head finds the first copy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attnctl.layer import LayerAttention
from attnctl.source.model import HasVocabulary, Model
from attnctl.source.sources import TextSource
from attnctl.text.tokens import Token, named_tokens
from attnctl.trace.run import Run

PROBED = 100  # tokens that a probe repeats


class ProbeReading:
    """The induction and duplicate scores of heads on a text of `length` tokens, repeated once.

    They are mean weights over the second half: on the token after the first copy, and on the first copy.
    """

    predicts = False

    def __init__(self, length: int = PROBED) -> None:
        self._length = length
        self._scores: dict[tuple[int, int], tuple[float, float]] = {}

    def take(self, layer: LayerAttention) -> None:
        """Keep the scores of one layer."""
        length, second_half = self._length, slice(layer.n_q - self._length, None)
        scores = [layer.at_offset(back)[:, second_half].mean(-1) for back in (1 - length, -length)]  # (heads,) each
        for head, after, on in zip(layer.heads, *scores, strict=True):
            self._scores[layer.layer, head] = float(after), float(on)

    def value(self, run: Run) -> dict[tuple[int, int], tuple[float, float]]:
        """Return (layer, head) → (induction, duplicate)."""
        return self._scores


def probe_text(model: Model, length: int = PROBED) -> TextSource:
    """Return `length` random tokens of the model's vocabulary, twice, after the tokens that begin every text."""
    names = dict(model.names_by_id()) if isinstance(model, HasVocabulary) else {}
    if len(names) < 2:
        names = {number: f"word{number}" for number in range(10 * length)}
    ids = list(names)
    drawn = np.random.default_rng(0).choice(ids, length, replace=len(ids) < length).tolist()
    first = [token for token in model.tokenize("a")[:1] if token.special]
    repeated = [*first, *(Token(names[number], number) for number in 2 * drawn)]
    placed = zip(repeated, named_tokens([token.text for token in repeated]), strict=True)
    tokens = tuple(replace(token, start=place.start, end=place.end) for token, place in placed)
    return TextSource(model, " ".join(token.text for token in tokens), tokens)
