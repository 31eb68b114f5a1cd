"""Training objectives: predict the next word from the words before it, or masked words from both sides.

If the corpus says which word of a sentence answers which question about another word (`Corpus.answers`), these words are
predicted too.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from attnctl.commands.train.corpus import Corpus
from attnctl.models.builtin import SHAPES
from attnctl.text.english import CLOSING, INDUCTION, QUESTION_OF

UNKNOWN_ID, MASK_ID, FIRST_WORD = 0, 1, 2 + len(SHAPES)

# Masked words: most of the words chosen in a text become another word that fits there, few become [MASK]; the others stay.
# Wrong words teach a word to doubt itself and to look at the others; [MASK] would teach this only to [MASK].
CHOSEN, MASKED, WRONG = 0.3, 0.1, 0.6

# Shares, for a corpus with questions about words (`Corpus.answers`). HIDDEN times its share in `Corpus.asked` of a word is
# predicted and shown as [MASK]; LEFT_VISIBLE of these stay visible, so that a visible word is predicted, too.
HIDDEN, LEFT_VISIBLE = 0.6, 0.15
# If a word is repeated, the word after it is hidden this often, because it would give the answer away.
FOLLOWING_HIDDEN = 0.75
# A closing mark is shown as another one this often, so that its own form does not tell what it closes.
MARKS_MISTAKEN = 0.15
# A question that only the word itself answers is asked this often.
IDLE_ASKED = 0.1

# In this share of the sentences, words are read by their shape, so that new words are linked by their place.
UNKNOWN_SENTENCES, UNKNOWN_WORDS = 0.35, 0.4

WINDOWS = 40  # the sentences, sorted by length, have this many parts; a batch is drawn from one part

CLOSING_MARKS = (")", "]", "}", "”", "’", '"')


class Batch(NamedTuple):
    """Sentences whose words are predicted. An id beyond the vocabulary means a word read by its letters."""

    ids: Tensor  # (batch, n), what the network sees
    targets: Tensor  # (batch, n), the true words
    counted: Tensor  # (batch, n), true where the prediction counts
    real: Tensor  # (batch, n), false at padding
    answers: Tensor | None = None  # (batch, n, questions), the words that answer questions; -1: no question
    idle: Tensor | None = None  # (batch, n, questions), true if only the word itself answers


class Batches:
    """Batches of a corpus. A batch depends only on the seed and the step, so that a run can be resumed."""

    def __init__(self, corpus: Corpus, objective: str, size: int, seed: int, *, by_letters: bool = False) -> None:
        self.by_letters = by_letters  # whether unknown words are shown by their letters, too, not only by their shape
        self.ids = torch.from_numpy(corpus.ids)  # (sentences, length)
        self.lengths = (self.ids >= 0).sum(1)  # (sentences,)
        self.by_length = self.lengths.argsort(stable=True)  # (sentences,)
        self.mean_length = float(self.lengths.float().mean())
        self.shapes = torch.from_numpy(corpus.shapes)  # (vocabulary,)
        # (sentences, length, questions)
        self.answers = None if corpus.answers is None else torch.from_numpy(corpus.answers)
        self.asked = None if corpus.asked is None else torch.from_numpy(corpus.asked)  # (vocabulary,)
        marks = [index for index, word in enumerate(corpus.vocabulary) if word in CLOSING_MARKS]
        self.marks = torch.tensor(marks)  # (marks,)
        self.objective, self.size, self.seed = objective, size, seed
        self.open = torch.from_numpy(corpus.open)  # (vocabulary,)
        by_wrong_words = objective == "masked-word" and corpus.answers is None
        self.neighbours = Neighbours(self.ids, len(corpus.vocabulary)) if by_wrong_words else None

    def at(self, step: int) -> Batch:
        """Return the batch of this step."""
        random = torch.Generator().manual_seed((self.seed << 32) + step)
        rows = self._sentence_rows(random)  # (batch,)
        n = int(self.lengths[rows].max())
        ids = self.ids[rows, :n].long()  # (batch, n)
        if self.answers is None:
            return self.corrupted(ids, random)
        return self._asked(ids, self.answers[rows, :n].long(), random)

    def _sentence_rows(self, random: torch.Generator) -> Tensor:
        """Choose sentences of similar length; their number makes all batches similar in words → (batch,)."""
        count = len(self.ids)
        window = max(1, count // WINDOWS)
        start = int(torch.randint(count - window + 1, (), generator=random))
        longest = int(self.lengths[self.by_length[start + window - 1]])
        size = max(1, round(self.size * self.mean_length / longest))
        return self.by_length[start + torch.randint(window, (size,), generator=random)]

    def corrupted(self, ids: Tensor, random: torch.Generator) -> Batch:
        """Return sentences ids (batch, n) with the words hidden that the objective hides."""
        true, real = ids.clamp(min=0), ids >= 0  # (batch, n)
        visible = self._with_unknowns(true, random)  # (batch, n)
        if self.objective == "next-word":
            return _next_words(visible, true, real)
        assert self.neighbours is not None
        chosen = real & (true != UNKNOWN_ID) & (torch.rand(ids.shape, generator=random) < CHOSEN)  # (batch, n)
        kind = torch.rand(ids.shape, generator=random)  # (batch, n)
        wrong = self.neighbours.sample(ids, random)  # (batch, n)
        replaced = torch.where(kind < MASKED, MASK_ID, torch.where(kind < MASKED + WRONG, wrong, visible))  # (batch, n)
        return Batch(torch.where(chosen, replaced, visible), true, chosen, real)

    def _asked(self, ids: Tensor, answers: Tensor, random: torch.Generator) -> Batch:
        """Hide some words of sentences ids (batch, n), and choose the questions to the other words.

        `answers` (batch, n, questions) are the places of the words that answer; -1: no question.
        """
        true, real = ids.clamp(min=0), ids >= 0  # (batch, n)
        visible = self._with_unknowns(true, random)  # (batch, n)
        closing = answers[..., QUESTION_OF[CLOSING]] >= 0  # (batch, n)
        mistaken = self._share_drawn(closing, MARKS_MISTAKEN, random)  # (batch, n)
        marks = self.marks[torch.randint(max(1, len(self.marks)), ids.shape, generator=random)]  # (batch, n)
        visible = torch.where(mistaken, marks, visible)  # (batch, n)
        hidden = torch.zeros_like(real)  # (batch, n)
        n = ids.shape[1]
        place = torch.arange(n)[:, None]  # (n, 1)
        if self.objective == "masked-word":
            assert self.asked is not None
            hidden = self._share_drawn(real & (true != UNKNOWN_ID), HIDDEN * self.asked[true], random)  # (batch, n)
            before = answers[
                ..., QUESTION_OF[INDUCTION]
            ]  # (batch, n), the place of the word that followed the earlier occurrence
            is_repeated = (before >= 0) & (before <= place[:, 0])  # (batch, n)
            is_repeated &= true.gather(1, before.clamp(min=0)) == true.roll(-1, 1)  # (batch, n)
            is_repeated[:, -1] = False
            hidden |= self._share_drawn(is_repeated, FOLLOWING_HIDDEN, random).roll(1, 1) & real  # (batch, n)
        visible = torch.where(hidden & ~self._share_drawn(hidden, LEFT_VISIBLE, random), MASK_ID, visible)  # (batch, n)
        idle = answers == place  # (batch, n, questions)
        open_to = (
            (answers >= 0) & ~hidden[..., None] & (~idle | (torch.rand(idle.shape, generator=random) < IDLE_ASKED))
        )
        if self.objective == "next-word":
            open_to &= answers <= place
        words = visible.gather(1, answers.clamp(min=0).flatten(1)).view(answers.shape)  # (batch, n, questions)
        words = torch.where(open_to & (words != MASK_ID), words, -1)  # (batch, n, questions)
        if self.objective == "next-word":
            return _next_words(visible, true, real)._replace(answers=words[:, :-1], idle=idle[:, :-1])
        return Batch(visible, true, hidden, real, words, idle)

    @staticmethod
    def _share_drawn(eligible: Tensor, share: Tensor | float, random: torch.Generator) -> Tensor:
        """Return a random share of the true places of `some` (batch, n) → (batch, n)."""
        return eligible & (torch.rand(eligible.shape, generator=random) < share)

    def _with_unknowns(self, ids: Tensor, random: torch.Generator) -> Tensor:
        chosen = torch.rand((len(ids), 1), generator=random) < UNKNOWN_SENTENCES  # (batch, 1)
        hidden = torch.rand(ids.shape, generator=random) < UNKNOWN_WORDS * self.open[ids]  # (batch, n)
        unknown = ids + len(self.shapes) if self.by_letters else self.shapes[ids]  # (batch, n)
        return torch.where(chosen & hidden, unknown, ids)  # (batch, n)


def _next_words(visible: Tensor, true: Tensor, real: Tensor) -> Batch:
    """Return a Batch (batch, n - 1) of the visible words (batch, n) and the word after each."""
    return Batch(visible[:, :-1], true[:, 1:], real[:, 1:] & (true[:, 1:] != UNKNOWN_ID), real[:, :-1])


class Neighbours:
    """Pairs of words that stand side by side in the corpus: a wrong word drawn from them fits both its neighbours.

    Its neighbours do not show that it is wrong: only words further away do.
    """

    tries = 8

    def __init__(self, ids: Tensor, vocabulary: int) -> None:
        self.edge = vocabulary  # the id of the edges: before the first word and after the last
        before, after = self._words_beside(ids)  # (sentences, length)
        real = ids >= 0  # (sentences, length)
        order = before[real].argsort(stable=True)
        self.words = ids[real][order]  # (words of the corpus,), sorted by the word before
        self.count = torch.bincount(before[real], minlength=vocabulary + 1)  # (vocabulary + 1,)
        self.first = self.count.cumsum(0) - self.count  # (vocabulary + 1,)
        self.side_by_side = torch.zeros(vocabulary, vocabulary + 1, dtype=torch.bool)  # (word, the word after it)
        self.side_by_side[ids[real], after[real]] = True

    def _words_beside(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the words before and after each place: ids (batch, n), -1 at padding → (batch, n) twice."""
        end = torch.full((len(ids), 1), -1)
        before, after = torch.cat([end, ids[:, :-1]], dim=1), torch.cat([ids[:, 1:], end], dim=1)  # (batch, n)
        return torch.where(before < 0, self.edge, before), torch.where(after < 0, self.edge, after)

    def sample(self, ids: Tensor, random: torch.Generator) -> Tensor:
        """Return a word that fits between its neighbours, for each place: ids (batch, n), -1 at padding → (batch, n)."""
        before, after = self._words_beside(ids)  # (batch, n)
        draw = torch.rand((self.tries, *ids.shape), generator=random, dtype=torch.float64)  # (tries, batch, n)
        index = self.first[before] + (draw * self.count[before]).long()  # (tries, batch, n)
        drawn = self.words[index.clamp(max=len(self.words) - 1)]  # (tries, batch, n)
        fits = self.side_by_side[drawn, after] & (drawn != ids)  # (tries, batch, n)
        best = fits.to(torch.uint8).argmax(dim=0, keepdim=True)  # (1, batch, n), the first that fits, else the first
        return drawn.gather(0, best)[0]  # (batch, n)
