"""Ask needles of a torch module of the user's own: it has a tokenizer and logits, and no cache and no chat template."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from attnctl.checks.selection import heads_by_layer
from attnctl.commands.needle.compute import ANSWER, NeedleAsker
from attnctl.source import AnswersByIds
from attnctl.text.tokens import Token


class ModuleNeedles(NeedleAsker):
    """A module, a needle with its question and expected answer, and the text of a haystack."""

    model: Any

    @classmethod
    def of_model(
        cls, model: AnswersByIds, needle: tuple[str, str, str], haystack: str | None, seed: int
    ) -> ModuleNeedles:
        """Return the asker of a model that continues token ids."""
        asked: Any = model
        return cls(asked, needle, haystack, seed)

    def check_length(self, length: int) -> None:
        """Do nothing: what a module can read is known to the module alone."""

    def _read_haystack(self, places: Sequence[tuple[int, float]], model: Any) -> Any:
        """Return None: without a cache, nothing is read once for all needles."""

    def _answer(self, tokens: Sequence[Token], haystack: Any) -> tuple[Any, str]:
        read = self.model.answer_of([token.id for token in tokens if token.id is not None])
        read.generate(ANSWER)
        return read, self.model.text_of_ids(read.answer) if read.answer else ""

    def _tokens_of(self, text: str) -> tuple[Token, ...]:
        tokens: tuple[Token, ...] = self.model.inputs_of_text(text).tokens or ()
        return tokens

    def _size_of(self, sentence: str) -> int:
        return len(self.model.ids_of(sentence))

    def _answers_without(self, heads: Sequence[tuple[int, int]], places: Sequence[tuple[int, float]]) -> Iterator[str]:
        with self.model.answering_without(heads_by_layer(heads)):
            for place in places:
                yield self._answer(self._prompt_of_length(*place)[1], None)[1]

    def _rendered_prompt(self, sentences: Sequence[str]) -> str:
        body = " ".join(sentences or [self.run.needle])
        return f"{body}\n\nQuestion: {self.run.question}\nAnswer:"
