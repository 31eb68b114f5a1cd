"""Ask needles of a torch module of the user's own: it has a tokenizer and logits, and no cache and no chat template."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from attnctl.commands.needle.compute import ANSWER, NeedleAsker
from attnctl.models.huggingface.prompts import Prompt
from attnctl.source.model import AnswersByIds
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

    def _read_haystack(self, places: Sequence[tuple[int, float]]) -> None:
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

    def _without(self, heads: dict[int, tuple[int, ...]]) -> AbstractContextManager[None]:
        without: AbstractContextManager[None] = self.model.answering_without(heads)
        return without

    def _rendered_prompt(self, sentences: Sequence[str]) -> Prompt:
        body = " ".join(sentences or [self.run.needle])
        return Prompt(f"{body}\n\nQuestion: {self.run.question}\nAnswer:", ())
