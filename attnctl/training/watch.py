"""Watching one sentence while a network learns: where its words look, before and now."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from attnctl.errors import AttnctlError
from attnctl.models.builtin.vocabulary import vocabulary_tokenizer
from attnctl.tokens import find_token, split_words
from attnctl.training import network
from attnctl.training.corpus import UNKNOWN

if TYPE_CHECKING:
    from attnctl.arrays import Floats
    from attnctl.attention import Array
    from attnctl.formats.documents.model_documents import WatchedWord
    from attnctl.training.run import Recipe


@dataclass
class Watch:
    """The sentence to watch, and one of its words, or None for the word whose look changes most."""

    sentence: str
    vocabulary: tuple[str, ...]
    recipe: Recipe  # of the network
    query: str | None = None
    _before: Floats | None = field(default=None, repr=False)  # (layers, heads, n, n) at the first look

    def __post_init__(self) -> None:
        self.tokens = vocabulary_tokenizer(split_words, self.vocabulary, UNKNOWN, "the corpus")(self.sentence)
        if len(self.tokens) < 2:
            raise AttnctlError(f"--watch {self.sentence!r}: a sentence of two words or more")
        self.ids = [token.id or 0 for token in self.tokens]
        self.row = None if self.query is None else find_token(self.tokens, self.query)

    def sentence_weights(self, parameters: dict[str, Array]) -> Floats:
        """Attention over the sentence under these parameters: (layers, heads, n, n)."""
        if "positions" in parameters and len(self.ids) > len(parameters["positions"]):
            raise AttnctlError(
                f"--watch: the sentence has {len(self.ids)} words, the network {len(parameters['positions'])} positions"
            )
        rows = network.sentence_rows(parameters, self.ids, [token.text for token in self.tokens])  # (n, d_model)
        _, layers = network.residual(parameters, rows, self.recipe)
        return np.stack([steps.weights for steps in layers])  # (layers, heads, n, n)

    def start(self, parameters: dict[str, Array]) -> None:
        """Remember how the words look before training."""
        self._before = self.sentence_weights(parameters)

    def see(self, parameters: dict[str, Array]) -> WatchedWord:
        """Where the watched word looks now: the link to another word that grew most since the start."""
        now = self.sentence_weights(parameters)  # (layers, heads, n, n)
        if self._before is None:
            self._before = now
        growth = (now - self._before) * (1 - np.eye(len(self.ids)))  # (layers, heads, n, n)
        if self.recipe.causal and len(self.ids) > 2:
            growth[:, :, :2] -= 1  # with one other word to look at there is little to choose
        if self.row is not None:
            only = np.zeros_like(growth)
            only[:, :, self.row] = 1
            growth = np.where(only > 0, growth, -1.0)
        layer, head, i, j = (int(at) for at in np.unravel_index(int(growth.argmax()), growth.shape))
        return {
            "query": self.tokens[i].text,
            "key": self.tokens[j].text,
            "layer": layer,
            "head": head,
            "before": round(float(self._before[layer, head, i, j]), 4),
            "weight": round(float(now[layer, head, i, j]), 4),
            "tokens": tuple(token.text for token in self.tokens),
            "row": tuple(round(float(w), 4) for w in now[layer, head, i]),
        }
