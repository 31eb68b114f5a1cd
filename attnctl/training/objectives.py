"""What is predicted from what: the next word from those before it, or masked words from both sides."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from attnctl.shapes import SHAPES
from attnctl.training.corpus import Corpus

UNKNOWN_ID, MASK_ID, FIRST_WORD = 0, 1, 2 + len(SHAPES)

OBJECTIVES = ("next-word", "masked-word")

# Masked words: of those chosen, most become a word that fits there as well, or another form of the word; few become [MASK];
# the rest stay as they are. Wrong words teach a word to doubt itself and to look at the others; [MASK] would teach that to
# [MASK] alone.
CHOSEN, MASKED, WRONG = 0.3, 0.1, 0.6
TWIN = 0.55  # of words that have other forms, so many become one of these

# In this share of the sentences, words are read by their shape, so that a word never seen is linked by where it stands.
UNKNOWN_SENTENCES, UNKNOWN_WORDS = 0.35, 0.4

WINDOWS = 40  # a batch is drawn from one of so many parts of the sentences in the order of their length

# This share of the pronouns is to be read as the word they stand for: "it" in "… because it is warm" as "mat".
MEANT = 0.75


@dataclass(frozen=True)
class Batch:
    """Sentences to predict words of."""

    ids: Tensor  # (batch, n), what the network sees
    targets: Tensor  # (batch, n), the true words
    counted: Tensor  # (batch, n), true where the prediction counts
    real: Tensor  # (batch, n), false at padding
    meant: Tensor | None = None  # (batch, n), true at pronouns whose target is the word that they stand for


class Batches:
    """Batches of a corpus; the one of a step depends on the seed and the step alone, so that a run can be resumed."""

    def __init__(self, corpus: Corpus, objective: str, size: int, seed: int) -> None:
        self.ids = torch.from_numpy(corpus.ids)  # (sentences, length)
        self.lengths = (self.ids >= 0).sum(1)  # (sentences,)
        self.by_length = self.lengths.argsort(stable=True)  # (sentences,)
        self.mean_length = float(self.lengths.float().mean())
        self.shapes = torch.from_numpy(corpus.shapes)  # (vocabulary,)
        self.stands_for = (
            None if corpus.stands_for is None else torch.from_numpy(corpus.stands_for)
        )  # (sentences, length)
        self.asked = None if corpus.asked is None else torch.from_numpy(corpus.asked)  # (vocabulary,)
        self.settled = None if corpus.settled is None else torch.from_numpy(corpus.settled) > 0  # (sentences, length)
        self.twins = None if corpus.twins is None else torch.from_numpy(corpus.twins)  # (vocabulary, MOST_TWINS)
        self.objective, self.size, self.seed = objective, size, seed
        self.open = torch.from_numpy(corpus.open)  # (vocabulary,)
        self.neighbours = Neighbours(self.ids, len(corpus.vocabulary))

    def at(self, step: int) -> Batch:
        """The batch of this step."""
        random = torch.Generator().manual_seed((self.seed << 32) + step)
        rows = self._sentence_rows(random)  # (batch,)
        n = int(self.lengths[rows].max())
        stands, settled = (None if part is None else part[rows, :n] for part in (self.stands_for, self.settled))
        return self.corrupted(self.ids[rows, :n], random, stands, settled)

    def _sentence_rows(self, random: torch.Generator) -> Tensor:
        """Which sentences: of about the same length, so many that there are always about as many words → (batch,)."""
        count = len(self.ids)
        window = max(1, count // WINDOWS)
        start = int(torch.randint(count - window + 1, (), generator=random))
        longest = int(self.lengths[self.by_length[start + window - 1]])
        size = max(1, round(self.size * self.mean_length / longest))
        return self.by_length[start + torch.randint(window, (size,), generator=random)]

    def corrupted(
        self,
        ids: Tensor,
        random: torch.Generator,
        stands_for: Tensor | None = None,
        settled: Tensor | None = None,
    ) -> Batch:
        """Sentences ids (batch, n) as the objective shows them; `stands_for` and `settled` (batch, n) as of the Corpus."""
        true = ids.clamp(min=0)  # (batch, n)
        seen = self._with_unknowns(true, random)  # (batch, n)
        if self.objective == "next-word":
            real = ids >= 0  # (batch, n)
            return Batch(seen[:, :-1], true[:, 1:], real[:, 1:] & (true[:, 1:] != UNKNOWN_ID), real[:, :-1])
        real = ids >= 0  # (batch, n)
        often = CHOSEN if self.asked is None else self.asked[true]  # (batch, n)
        chosen = real & (true != UNKNOWN_ID) & (torch.rand(ids.shape, generator=random) < often)  # (batch, n)
        kind = torch.rand(ids.shape, generator=random)  # (batch, n)
        if settled is not None:
            kind = torch.where(settled, 0.0, kind)  # (batch, n)
        wrong = self._wrong_words(ids, random)  # (batch, n)
        shown = torch.where(kind < MASKED, MASK_ID, torch.where(kind < MASKED + WRONG, wrong, seen))  # (batch, n)
        shown = torch.where(chosen, shown, seen)  # (batch, n)
        if stands_for is None:
            return Batch(shown, true, chosen, real)
        meant = (stands_for > 0) & (torch.rand(ids.shape, generator=random) < MEANT)  # (batch, n)
        shown = torch.where(meant, true, shown)  # (batch, n)
        return Batch(shown, torch.where(meant, stands_for, true), chosen | meant, real, meant)

    def _wrong_words(self, ids: Tensor, random: torch.Generator) -> Tensor:
        """Another word for each place: one that fits between its neighbours, or a form of the same word → (batch, n)."""
        wrong = self.neighbours.sample(ids, random)  # (batch, n)
        if self.twins is None:
            return wrong
        own = self.twins[ids.clamp(min=0)]  # (batch, n, MOST_TWINS)
        count = (own >= 0).sum(-1)  # (batch, n)
        at = (torch.rand(ids.shape, generator=random) * count).long().clamp(max=own.shape[-1] - 1)  # (batch, n)
        twin = own.gather(-1, at[..., None])[..., 0]  # (batch, n)
        use = (count > 0) & (torch.rand(ids.shape, generator=random) < TWIN)  # (batch, n)
        return torch.where(use, twin, wrong)

    def _with_unknowns(self, ids: Tensor, random: torch.Generator) -> Tensor:
        some = torch.rand((len(ids), 1), generator=random) < UNKNOWN_SENTENCES  # (batch, 1)
        strange = torch.rand(ids.shape, generator=random) < UNKNOWN_WORDS * self.open[ids]  # (batch, n)
        return torch.where(some & strange, self.shapes[ids], ids)  # (batch, n)


class Neighbours:
    """Which words the corpus has side by side: a wrong word drawn from them fits both words beside it.

    So nothing near gives it away, and it takes a look at the words further off to tell that it is wrong.
    """

    tries = 8

    def __init__(self, ids: Tensor, vocabulary: int) -> None:
        self.edge = vocabulary  # stands for what is before the first word and after the last
        before, after = self._words_beside(ids)  # (sentences, length)
        real = ids >= 0  # (sentences, length)
        order = before[real].argsort(stable=True)
        self.words = ids[real][order]  # (words of the corpus,), sorted by the word before
        self.count = torch.bincount(before[real], minlength=vocabulary + 1)  # (vocabulary + 1,)
        self.first = self.count.cumsum(0) - self.count  # (vocabulary + 1,)
        self.side_by_side = torch.zeros(vocabulary, vocabulary + 1, dtype=torch.bool)  # (word, the word after it)
        self.side_by_side[ids[real], after[real]] = True

    def _words_beside(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The words before and after each place: ids (batch, n), -1 at padding → (batch, n) twice."""
        end = torch.full((len(ids), 1), -1)
        before, after = torch.cat([end, ids[:, :-1]], dim=1), torch.cat([ids[:, 1:], end], dim=1)  # (batch, n)
        return torch.where(before < 0, self.edge, before), torch.where(after < 0, self.edge, after)

    def sample(self, ids: Tensor, random: torch.Generator) -> Tensor:
        """A word that fits between its neighbours, for each place: ids (batch, n), -1 at padding → (batch, n)."""
        before, after = self._words_beside(ids)  # (batch, n)
        draw = torch.rand((self.tries, *ids.shape), generator=random, dtype=torch.float64)  # (tries, batch, n)
        at = self.first[before] + (draw * self.count[before]).long()  # (tries, batch, n)
        drawn = self.words[at.clamp(max=len(self.words) - 1)]  # (tries, batch, n)
        fits = self.side_by_side[drawn, after] & (drawn != ids)  # (tries, batch, n)
        best = fits.to(torch.uint8).argmax(dim=0, keepdim=True)  # (1, batch, n), the first that fits, else the first
        return drawn.gather(0, best)[0]  # (batch, n)


def batch_to(batch: Batch, device: Any) -> Batch:
    """The batch on a device."""
    there = {field.name: part for field in fields(Batch) if (part := getattr(batch, field.name)) is not None}
    return replace(batch, **{name: part.to(device) for name, part in there.items()})
