"""Induction and duplicate-token scores by the usual probe: random tokens, said twice (Olsson et al. 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attnctl.layer import LayerAttention, Run
from attnctl.source import Model, TextSource
from attnctl.tokens import Token, named_tokens


class ProbeReading:
    """Of a text that says `length` tokens twice, the mean weight over the second half on what followed the first copy,
    and on the first copy: (layer, head) → (both).
    """

    predicts = False

    def __init__(self, length: int) -> None:
        self._length = length
        self._scores: dict[tuple[int, int], tuple[float, float]] = {}

    def take(self, layer: LayerAttention) -> None:
        """Take in one layer."""
        length, at = self._length, slice(layer.n_q - self._length, None)
        scores = [layer.at_offset(back)[:, at].mean(-1) for back in (1 - length, -length)]  # (heads,) each
        for head, after, on in zip(layer.heads, *scores, strict=True):
            self._scores[layer.layer, head] = float(after), float(on)

    def value(self, run: Run) -> dict[tuple[int, int], tuple[float, float]]:
        """(layer, head) → induction, duplicate."""
        return self._scores


def probe_heads(
    model: Model, length: int = 100, *, layers: Sequence[int] | None = None, heads: Sequence[int] | None = None
) -> dict[tuple[int, int], tuple[float, float]]:
    """Induction and duplicate-token scores of a model's heads: (layer, head) → (both)."""
    return probe_text(model, length).read(ProbeReading(length), layers, heads)


def probe_text(model: Model, length: int = 100) -> TextSource:
    """`length` random tokens of the model's vocabulary, said twice, after what the model begins every text with."""
    rng = np.random.default_rng(0)
    pieces: Any = getattr(model, "pieces", None)
    if pieces is not None:
        added = set(pieces.tokenizer.get_added_tokens_decoder())
        ids = [at for at in range(pieces.tokenizer.get_vocab_size()) if at not in added]
        first = [token for token in model.tokenize("a")[:1] if token.special]
        names = {at: pieces.tokenizer.id_to_token(at) or str(at) for at in ids}
    else:
        words: Sequence[str] = [word for word in getattr(model, "vocabulary", ()) if word.isalpha()]
        words = words if len(words) > 1 else [f"word{at}" for at in range(10 * length)]
        known = {word: at for at, word in enumerate(getattr(model, "vocabulary", ()))}
        names, first = {known.get(word, at): word for at, word in enumerate(words)}, []
        ids = list(names)
    drawn = rng.choice(ids, length, replace=len(ids) < length).tolist()
    said = [*first, *(Token(names[at], at) for at in 2 * drawn)]
    placed = zip(said, named_tokens([token.text for token in said]), strict=True)
    tokens = tuple(replace(token, start=at.start, end=at.end) for token, at in placed)
    return TextSource(model, " ".join(token.text for token in tokens), tokens)
