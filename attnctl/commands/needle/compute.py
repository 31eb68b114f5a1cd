"""Ask needles of a checkpoint: prompts of a given length with a fact at a given depth."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from itertools import cycle
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from attnctl.checks.document_fields import HeadPlace
from attnctl.checks.selection import heads_by_layer
from attnctl.commands.needle.haystack import NEEDLE, filler_sentences, sentences_of
from attnctl.commands.needle.result import (
    RETRIEVAL,
    HeadsOff,
    NeedleCell,
    NeedleRun,
    Needles,
    RetrievalHead,
    is_answered,
    mean_scores,
    retrieval_scores,
)
from attnctl.errors import AttnctlError
from attnctl.source import AnsweredPrompt, AnswersPrompts
from attnctl.text.tokens import Token

if TYPE_CHECKING:
    from attnctl.blockwise import Tick

ANSWER = 24  # tokens of an answer


@dataclass
class NeedleAsker:
    """A model, a needle with its question and expected answer, and the text of a haystack.

    A haystack of None means sentences generated from the seed. Raises AttnctlError for a haystack without sentences.
    """

    model: AnswersPrompts
    needle: tuple[str, str, str] = NEEDLE
    haystack: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        self._sentences = None if self.haystack is None else sentences_of(self.haystack)
        digest = None if self.haystack is None else sha256(self.haystack.encode()).hexdigest()
        needle, question, expect = self.needle
        self.run = NeedleRun(
            model=self.model.info, needle=needle, question=question, expect=expect, haystack=digest,
            seed=self.seed,
        )  # fmt: skip

    def check_length(self, length: int) -> None:
        """Raise AttnctlError for a prompt that is longer than the model can read."""
        limit = self.model.limit
        if limit is not None and length > limit:
            raise AttnctlError(f"{self.model.info.name} reads {limit:,} tokens", option="lengths", value=length)

    def ask_needles(self, places: Sequence[tuple[int, float]]) -> Iterator[NeedleCell]:
        """Yield a needle at each (length, depth) of prompts of about `length` tokens; depth 0 is first, 1 last.

        Raises AttnctlError if `length` has no room for the needle.
        """
        if not places:
            return iter(())
        haystack = self._read_haystack(places, self.model)
        return (self._asked_needle(*place, haystack) for place in places)

    def _read_haystack(self, places: Sequence[tuple[int, float]], model: AnswersPrompts) -> AnsweredPrompt:
        """Read the prompt with the longest text before the needle: every other prompt begins with the same filler."""
        return model.read_prompt(self._prompt_of_length(*max(places, key=math.prod))[1])

    def _asked_needle(self, length: int, depth: float, haystack: AnsweredPrompt) -> NeedleCell:
        prompt, tokens, where = self._prompt_of_length(length, depth)
        read, answer = self._answer(tokens, haystack)
        cell = NeedleCell(
            **asdict(self.run), length=length, depth=depth, tokens=len(tokens), answer=answer,
            answered=bool(read.answer) and is_answered(answer, self.run.expect), found=0.0, scores={},
        )  # fmt: skip
        if read.answer:
            looks = read.answer_looks()
            cell.found = float(looks.mass_of_keys()[slice(*where)].sum())
            if cell.answered:
                scores = retrieval_scores(looks.strongest, read.prompt, read.answer, where)
                cell.scores = {str(layer): row for layer, row in scores.items()}
        return cell

    def needles_of(self, cells: Sequence[NeedleCell], off: int = 0, tick: Tick = lambda share: None) -> Needles:
        """Return the summary of `cells`, with the answers without the `off` best heads and without random ones.

        `tick` receives the share of these answers that each one is.
        """
        scores = mean_scores(cells)
        heads = tuple(RetrievalHead(*place, score) for place, score in scores.items() if score >= RETRIEVAL)
        summary = Needles(
            **asdict(self.run), asked=len(cells), answered=sum(cell.answered for cell in cells), retrieval_heads=heads,
            notes=(),
        )  # fmt: skip
        best = [(head.layer, head.head) for head in heads[:off]]
        if best:
            random_ones = random_heads(list(scores), best, len(best), self.seed)
            summary.off, summary.random_off = (
                self.answered_without(chosen, cells, tick) for chosen in (best, random_ones)
            )
        return summary

    def answered_without(
        self, heads: Sequence[tuple[int, int]], cells: Sequence[NeedleCell], tick: Tick = lambda share: None
    ) -> HeadsOff:
        """Return how many of the answered needles are still answered with these heads' outputs set to 0."""
        places = [(cell.length, cell.depth) for cell in cells if cell.answered]
        still = 0
        for answer in self._answers_without(heads, places):
            still += is_answered(answer, self.run.expect)
            tick(0.5 / len(places))  # two sets of heads are off in turn
        return HeadsOff(tuple(HeadPlace(*place) for place in heads), still, len(places))

    def _answers_without(self, heads: Sequence[tuple[int, int]], places: Sequence[tuple[int, float]]) -> Iterator[str]:
        """Yield the answer at each place with the outputs of these heads set to 0, and of those that are off already."""
        already = () if self.model.intervention is None else self.model.intervention.heads.items()
        off = heads_by_layer([*heads, *((layer, head) for layer, of_layer in already for head in of_layer)])
        model = self.model.with_heads_off(off)
        assert isinstance(model, AnswersPrompts)
        haystack = self._read_haystack(places, model)
        for place in places:
            yield self._answer(self._prompt_of_length(*place)[1], haystack)[1]

    def _answer(self, tokens: Sequence[Token], haystack: AnsweredPrompt) -> tuple[AnsweredPrompt, str]:
        """Return the answer to a prompt that shares its beginning with another; "" if the first token ends the text."""
        read = haystack.another(tokens)
        with suppress(AttnctlError):
            read.generate_answer(ANSWER)
        return read, self.model.spelled(read.answer, special=False)

    def _prompt_of_length(self, length: int, depth: float) -> tuple[str, tuple[Token, ...], tuple[int, int]]:
        """Return the prompt, its tokens, and the range of the needle's tokens."""
        empty = len(self._tokens_of(self._rendered_prompt([])))
        room, sentences = length - empty, []
        for sentence in filler_sentences(self.seed) if self._sentences is None else cycle(self._sentences):
            size = self._size_of(f" {sentence}")
            if size > room:
                break
            sentences.append(sentence)
            room -= size
        if length < empty:
            raise AttnctlError(f"a prompt of {length:,} tokens has no room for the needle and its question: {empty:,}")
        index = round(depth * len(sentences))
        planted = [*sentences[:index], self.run.needle, *sentences[index:]]
        prompt = self._rendered_prompt(planted)
        tokens = self._tokens_of(prompt)
        # the needle's words may stand in the filler, or in what a template adds, too
        start = prompt.index(f"{_body_of(planted)}\n\n") + len(_body_of([*sentences[:index], ""]) if index else "")
        end = start + len(self.run.needle)
        inside = [
            index
            for index, token in enumerate(tokens)
            if token.start is not None and token.end is not None and token.end > start and token.start < end
        ]
        return prompt, tokens, (inside[0], inside[-1] + 1)

    def _tokens_of(self, text: str) -> tuple[Token, ...]:
        return self.model.prompt_tokens(text)

    def _size_of(self, sentence: str) -> int:
        """Return the number of a sentence's tokens within a text."""
        return len(self.model.ids_behind(sentence))

    def _rendered_prompt(self, sentences: Sequence[str]) -> str:
        """Return the haystack and the question, in the model's chat template if it has one."""
        body = _body_of(sentences or [self.run.needle])
        message = f"{body}\n\n{self.run.question}"
        if self.model.reads_conversations():
            return self.model.prompt_of(message).text
        return f"{body}\n\nQuestion: {self.run.question}\nAnswer:"


def _body_of(sentences: Sequence[str]) -> str:
    """Return the sentences as the text above the question."""
    return " ".join(sentences)


def random_heads(
    every: Sequence[tuple[int, int]], excluded: Sequence[tuple[int, int]], count: int, seed: int
) -> list[tuple[int, int]]:
    """Return `count` random heads that are not in `excluded`; the same seed gives the same heads."""
    candidates = sorted(set(every) - set(excluded))
    return sorted(random.Random(seed).sample(candidates, min(count, len(candidates))))
