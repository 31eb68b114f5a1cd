"""Watch the next token of a text in a module of the user's own, while heads are off and edges are cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from attnctl.attention import Array
from attnctl.checks.selection import find_token
from attnctl.errors import AttnctlError, UsageError
from attnctl.layer.interventions import Intervention
from attnctl.runtime.arrays import Floats, as_numpy
from attnctl.text.tokens import Token
from attnctl.trace.model_info import ModelInfo
from attnctl.watched.effects import Contributions, Word
from attnctl.watched.measure import FirstOrder, WatchedText


class RunsChanged(Protocol):
    """A module with a tokenizer, run under interventions."""

    info: ModelInfo

    def tokenize(self, text: str, /) -> tuple[Token, ...]:
        """Return the tokens of a text."""

    def tokens_of_keys(self, tokens: Sequence[Token], text: str) -> tuple[Token, ...] | None:
        """Return the tokens of the keys if they differ from the queries' tokens; else None."""

    def ids_of(self, text: str) -> list[int]:
        """Return the ids of a text."""

    def text_of_id(self, number: int) -> str:
        """Return the text of one id."""

    def logits_under(self, intervention: Intervention, text: str) -> Array:
        """Return the logits (1, n, vocabulary) under an intervention. Raises AttnctlError if there are none."""

    def weights_under(self, intervention: Intervention, text: str, take: Callable[[int, Floats], None]) -> None:
        """Call `take` with each layer and its weights (heads, n, n) under an intervention."""


@dataclass(kw_only=True)
class WatchedModule(WatchedText):
    """A text in a module that puts out logits of its tokenizer's vocabulary; the prediction at `query` is watched."""

    model: RunsChanged
    predicts_words = True

    def target_word(self, text: str) -> Word:
        """Return the target that a text names. Raises UsageError if it is not one token."""
        ids = self.model.ids_of(text)
        if len(ids) != 1:
            why = f"it is {len(ids)} tokens of {self.info.name}: give one"
            raise UsageError(why, option="target", value=text)
        return Word(text, ids[0])

    def word_of_id(self, number: int) -> str:
        """Return the text of one id, by the tokenizer."""
        return self.model.text_of_id(number)

    def query_weights(self) -> dict[int, Floats]:
        """Return layer → weights of the watched query: (heads, n)."""
        rows: dict[int, Floats] = {}

        def take(layer: int, weights: Floats) -> None:
            rows[layer] = weights[:, self.query]

        self.model.weights_under(self.base, self.text, take)
        return rows

    def outcomes(
        self, interventions: Sequence[Intervention], continuation: tuple[int, ...] = (), batch_size: int | None = None
    ) -> Iterator[Floats]:
        """Yield logits at the watched position, (1, 1, vocabulary), by intervention."""
        for intervention in interventions:
            yield as_numpy(self.model.logits_under(intervention, self.text)[:, self.query, None].float())

    def gradients(self, target: Word, against: Word | None) -> FirstOrder:
        """Raise UsageError: every head is ablated exactly."""
        raise UsageError(f"is for checkpoints, and {self.info.name} is a module of your own", option="approximate")

    def contributions(self, target: Word, against: Word | None) -> tuple[Contributions, tuple[str, ...]]:
        """Raise AttnctlError: nothing tells which matrices of a module write into its logits."""
        raise AttnctlError(f"what {self.info.name} adds to a logit is not known: it is a module of your own")


def watch_module_text(model: RunsChanged, text: str, query: str | None, base: Intervention) -> WatchedModule:
    """Return the text with the watched position: `query`, or the last token.

    Raises UsageError for a query that does not exist, AttnctlError if the module puts out no logits for each token.
    """
    tokens = model.tokenize(text)
    if model.tokens_of_keys(tokens, text) is not None:
        raise AttnctlError(
            f"{model.info.name} attends to another tensor than its queries come from: nothing is ablated"
        )
    model.logits_under(base, text)
    position = len(tokens) - 1 if query is None else find_token(tokens, query)
    return WatchedModule(model.info, text, tokens, position, base, model=model)
