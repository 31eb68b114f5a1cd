"""Search for the sources of an answer: a checkpoint answers a prompt, and parts of the prompt are hidden from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import InitVar, dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import asdict

from attnctl.checks.tolerances import WHOLE_ROW
from attnctl.commands.sources.clock import SearchClock
from attnctl.commands.sources.parts import (
    RESTS,
    SINK,
    TEMPLATE,
    PromptPart,
    SearchProgress,
    picture_parts,
    prompt_parts,
    search_parts,
)
from attnctl.commands.sources.result import (
    Answer,
    AnswerSources,
    AnswerToken,
    PartSource,
    first_sources,
    probability_of_token,
    rank_agreement,
    rests_on_prompt,
)
from attnctl.errors import AttnctlError, UsageError, option_name
from attnctl.formats import Conversation, Prompt, token_documents
from attnctl.runtime.arrays import Floats
from attnctl.source import AnswersPrompts
from attnctl.text import quoted_beginning

if TYPE_CHECKING:
    from attnctl.blockwise import Tick

LEARNED_SINK = "(learned sink)"
NEUTRAL = "Write a general description of the image."  # the neutral prompt of relative attention (Zhang et al. 2025)
ANSWER = 64  # the default limit of tokens in an answer


@dataclass
class SourceSearch:
    """A prompt, its parts and its answer; `measure_all` measures part after part, `found_so_far` returns the result."""

    model: AnswersPrompts
    prompt: Prompt
    kind: str | None = None  # of parts, as in --spans
    answer: str | None = None  # None: the model's own, greedily
    answer_limit: int = ANSWER  # the most tokens of a generated answer
    budget: int = 20  # forwards
    tick: InitVar[Tick | None] = None  # receives the shares of the prompt that are read

    def __post_init__(self, tick: Tick | None) -> None:
        self.tokens = self.model.prompt_tokens(self.prompt.text)
        patches = [index for index, token in enumerate(self.tokens) if token.box is not None]
        if patches:
            self.parts = picture_parts(self.kind, self.prompt.text, self.tokens)
        else:
            self.parts = prompt_parts(self.prompt.text, self.tokens, self.kind, self.prompt.spans)
        self.read = self.model.read_prompt(self.tokens, self.prompt.text, tick=tick)
        if self.answer is None:
            self.read.generate_answer(self._answer_room())
        else:
            self.read.answer = answer_ids(self.model, self.answer)
            self._answer_room()
        self.attention = self.read.answer_looks().mass_of_keys()  # (n_k,)
        self.first_attention = self._looks_of_beginning(patches) if patches else None
        self.base = self.read.log_probabilities()  # (m,)
        self.removed: dict[int, float] = {}
        self.together: float | None = None  # the change with all parts hidden, if no part changes the answer much
        self.read.leaves_out()  # checks this now, outside the measured time of the first forward
        self.clock = SearchClock(self.read.at_once)
        self.progress = SearchProgress()
        self.written: Floats | None = None  # (n_k,), how much each token writes directly to the answer
        self.notes: tuple[str, ...] = ()
        try:
            self.written, self.notes = self.read.writes_by_token()
        except AttnctlError as why:
            self.notes = (f"The column “writes” is missing: {why}.",)

    def _looks_of_beginning(self, patches: Sequence[int]) -> tuple[Floats, Floats]:
        """Return the attention (n,) of the prompt's last token to the picture, and the same with NEUTRAL as the prompt."""
        model, both = self.model, []
        for text, tokens in ((self.prompt.text, self.tokens), (NEUTRAL, model.prompt_tokens(NEUTRAL))):
            places = [index for index, token in enumerate(tokens) if token.box is not None]
            read = model.read_prompt(tokens, text, answer=self.read.answer[:1])
            looks = np.zeros(len(self.tokens), np.float32)
            looks[patches] = read.answer_looks().mass_of_keys()[places]
            both.append(looks)
        return both[0], both[1]

    def _answer_room(self) -> int:
        """Return how many tokens an answer may have. Raises AttnctlError if the model cannot read prompt and answer."""
        limit, answer_length = self.model.limit, len(self.read.answer) or 1
        room = self.answer_limit if limit is None else min(self.answer_limit, limit - len(self.tokens))
        if limit is not None and len(self.tokens) + answer_length > limit:
            raise AttnctlError(
                f"the prompt has {len(self.tokens):,} tokens, and {self.model.info.name} reads {limit:,}, with the answer"
            )
        return room

    @property
    def forwards(self) -> int:
        """Return the largest number of forwards that the search may make."""
        return min(len(self.parts), self.budget)

    def share_done(self, remove: bool = False) -> float:
        """Return which share of the search's time is over, 0 to 1; with `remove` that of prompts without a part is in it.

        The forwards that are likely to come take the time of those before them, by the tokens that they read.
        """
        if not self.clock.timed:
            return 0.0
        m = len(self.base)
        rounds = [[self._tokens_left_in(group) + m for group in groups] for groups in self.progress.coming]
        if self._hides_all_together():
            rounds.append([self._tokens_left_in(range(len(self.parts))) + m])
        left = self.clock.seconds_left(rounds)
        if remove:
            coming = {group[0] for groups in self.progress.coming for group in groups if len(group) == 1}
            still = len(self.progress.alone | coming) - len(self.removed)
            left += still * self.clock.cost.seconds_of(len(self.tokens) + m)
        return self.clock.share_done(left)

    def _hides_all_together(self) -> bool:
        """Return whether one more forward hides all parts: no part that was measured matters much."""
        changes = self.progress.changes.values()
        return len(self.parts) > 1 and self.together is None and all(float(values.sum()) > -RESTS for values in changes)

    def cheaper(self, remove: bool) -> str:
        """Return how many forwards the search makes, and how it takes less time; `remove` as above."""
        forwards = self.forwards + remove * len(self.parts)
        half = "" if remove or forwards < 4 else f"{option_name('budget', forwards // 2)} takes half of it, "
        return f"{forwards} forwards at most; {half}Ctrl-C shows the parts that are measured, the likeliest first"

    def _tokens_behind(self, group: Sequence[int]) -> int:
        """Return how many tokens a forward reads that hides a group of parts."""
        first = min(self.parts[index].ranges[0][0] for index in group)
        return len(self.tokens) - (0 if first < self.read.together else first)

    def _tokens_left_in(self, group: Sequence[int]) -> int:
        """Return how many tokens of the prompt such a forward reads if it leaves out the tokens that it hides."""
        hidden = sum(b - a for index in group for a, b in self.parts[index].ranges)
        return max(0, self._tokens_behind(group) - hidden)

    def measure_all(self) -> Iterator[int]:
        """Measure the parts; yield after each forward how many groups of parts are measured.

        If no part halves the probability of the answer, one more forward hides all parts together.
        """

        def changes_without(groups: Sequence[tuple[int, ...]]) -> Iterator[Floats]:
            ranges = [[tokens for index in group for tokens in self.parts[index].ranges] for group in groups]
            self.clock.begin_round(len(groups))
            for group, hidden in zip(groups, self.read.log_probabilities_of(ranges), strict=True):
                self.clock.end_forward(self._tokens_left_in(group) + len(self.base))
                yield hidden - self.base  # (m,)

        for progress in search_parts(len(self.parts), changes_without, self.budget, self._likely()):
            self.progress = progress
            yield progress.measured
        changes = self.progress.changes
        if len(changes) == len(self.parts) and all(float(values.sum()) > -RESTS for values in changes.values()):
            together = next(changes_without([tuple(range(len(self.parts)))])) if len(changes) > 1 else changes[0]
            self.together = float(together.sum())
            if len(changes) > 1:
                yield self.progress.measured

    def _likely(self) -> list[int]:
        """Return the parts by rank, in turn those that write most to the answer and those that it looks at most."""
        columns = [self.attention] if self.written is None else [np.abs(self.written), self.attention]
        shares = [[-part.share_of(column) for part in self.parts] for column in columns]
        ranked = [np.argsort(column, kind="stable").tolist() for column in shares]
        return list(dict.fromkeys(part for column in zip(*ranked, strict=True) for part in column))

    def remove_parts(self, conversation: Conversation | None) -> Iterator[int]:
        """Render the prompt without each part that was measured alone, and measure again; yield how many are done.

        If the part is the whole prompt, nothing remains to answer: a note says so.
        """
        for count, index in enumerate(sorted(self.progress.alone), 1):
            begun = perf_counter()
            text = prompt_without(self.model, self.prompt, self.parts[index], conversation)
            tokens = self.model.prompt_tokens(text)
            if tokens:
                shorter = self.read.another(tokens, self.read.answer)
                self.removed[index] = float((shorter.log_probabilities() - self.base).sum())
            else:
                self.notes += (f"Without {quoted_beginning(self.parts[index].name)} nothing of the prompt is left.",)
            self.clock.seconds += perf_counter() - begun
            yield count

    def found_so_far(self) -> AnswerSources:
        """Return the results so far, what matters most first; parts that were not reached are left out."""
        parts, changes = self._known_parts()
        notes = [*self.notes]
        notes += [] if len(parts) == len(self.parts) else [f"{len(self.parts) - len(parts)} parts were not reached."]
        groups = len(parts) - len(self.progress.alone)
        if groups:
            notes.append(
                f"{groups} parts were measured only together with their neighbours: together they matter less than the "
                "parts listed first, or the budget was spent."
            )
        return AnswerSources(
            prompt=self.prompt.text,
            model=self.model.info,
            answer=self._known_answer(first_sources(parts, changes, len(self.base))),
            parts=parts,
            together=self.together,
            rests=rests_on_prompt(parts, self.together),
            apart=self._shares_apart(),
            agreement=rank_agreement(parts),
            forwards=self.read.forwards + len(self.removed),
            notes=tuple(notes),
        )

    def token_costs(self) -> tuple[float | None, ...]:
        """Return each answer token's change without the part whose loss costs it most; None if no part's loss does."""
        parts, changes = self._known_parts()
        firsts = first_sources(parts, changes, len(self.base))
        return tuple(None if first is None else float(changes[first][token]) for token, first in enumerate(firsts))

    def _known_parts(self) -> tuple[tuple[PartSource, ...], tuple[Floats, ...]]:
        """Return the known parts, what matters most first, and for each the change of each answer token without it: (m,)."""
        sources = [(self._part_source(index), self.progress.changes[index]) for index in sorted(self.progress.changes)]
        sources.sort(key=lambda pair: (not pair[0].alone, pair[0].matters))
        sources.sort(key=lambda pair: -abs(pair[0].matters) if pair[0].alone else 0.0)
        return tuple(source for source, _ in sources), tuple(change for _, change in sources)

    def _known_answer(self, firsts: Sequence[int | None]) -> Answer:
        """Return the answer, with the first source of each of its tokens."""
        text = self.model.spelled(self.read.answer, special=True) if self.answer is None else self.answer
        tokens = token_documents(self.model.tokens_behind(self.read.prompt, self.read.answer))
        each = zip(tokens, self.base, firsts, strict=True)
        return Answer(
            text,
            self.answer is not None,
            tuple(
                AnswerToken(**asdict(token), log_probability=float(value), source=part) for token, value, part in each
            ),
            float(self.base.sum()),
            probability_of_token(float(self.base.sum()), len(self.base)),
        )

    def _part_source(self, index: int) -> PartSource:
        part = self.parts[index]
        in_prompt, in_neutral = (
            (None, None) if self.first_attention is None else map(part.share_of, self.first_attention)
        )
        return PartSource(
            name=part.name,
            message=part.message,
            start=part.start,
            end=part.end,
            box=part.box,
            looks=part.share_of(self.attention),
            relative=in_prompt / in_neutral if in_prompt is not None and in_neutral else None,
            matters=float(self.progress.changes[index].sum()),
            alone=index in self.progress.alone,
            predicts_answer=any(a < len(self.tokens) <= b for a, b in part.ranges),
            writes=None if self.written is None else part.share_of(self.written),
            removed=self.removed.get(index),
        )

    def _shares_apart(self) -> dict[str, float]:
        """Return the shares of attention that belong to no part, by name."""
        in_part = np.zeros(len(self.attention), dtype=bool)
        for part in self.parts:
            for a, b in part.ranges:
                in_part[a:b] = True
        n = len(self.tokens)
        template = self.attention[1:n][~in_part[1:n]].sum()
        shares = {
            SINK: 0.0 if self.tokens[0].box else self.attention[0],
            TEMPLATE if self.prompt.spans else "(rest)": template,
        }
        shares |= {"(the answer itself)": self.attention[n:].sum()}
        unseen = 1.0 - float(self.attention.sum())
        shares |= {LEARNED_SINK: unseen} if unseen > WHOLE_ROW else {}
        return {name: float(value) for name, value in shares.items()}


def answer_ids(model: AnswersPrompts, answer: str) -> tuple[int, ...]:
    """Return the ids of an answer behind a prompt. Raises UsageError if it has none."""
    ids = model.ids_behind(answer)
    if not ids or not answer.strip():
        raise UsageError("it has no tokens: give the words of the answer", option="answer", value=answer)
    return ids


def prompt_without(model: AnswersPrompts, prompt: Prompt, part: PromptPart, conversation: Conversation | None) -> str:
    """Return the prompt's text without a part; a message that is the part is left out of its conversation."""
    if conversation is not None:
        for number, message in enumerate(conversation.messages):
            if part.message == f"{message.role} {number}":
                remaining = tuple(m for index, m in enumerate(conversation.messages) if index != number)
                if not remaining:
                    break
                try:
                    return model.prompt_of(replace(conversation, messages=remaining)).text
                except AttnctlError:  # the template needs this message: leave out only its content
                    break
    return prompt.text[: part.start] + prompt.text[part.end :]
