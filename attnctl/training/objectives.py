"""What is predicted from what: the next word from those before it, or masked words from both sides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnctl.training.corpus import Corpus

UNKNOWN_ID, MASK_ID, FIRST_WORD = 0, 1, 2

OBJECTIVES = ("next-word", "masked-word")

# Masked words: of those chosen, most become a word that fits there as well, few [MASK], the rest stay as they are. Wrong
# words teach a word to doubt itself and to look at the others; [MASK] would teach that to [MASK] alone.
CHOSEN, MASKED, WRONG = 0.35, 0.08, 0.62

# In this share of the sentences, words become [UNK], so that a word never seen is linked by where it stands.
UNKNOWN_SENTENCES = {"next-word": 0.45, "masked-word": 0.3}
UNKNOWN_WORDS = 0.5


@dataclass(frozen=True)
class Batch:
    """Sentences to predict words of."""

    ids: Tensor  # (batch, n), what the network sees
    targets: Tensor  # (batch, n), the true words
    counted: Tensor  # (batch, n), true where the prediction counts
    real: Tensor  # (batch, n), false at padding


class Batches:
    """Batches of a corpus; the one of a step depends on the seed and the step alone, so that a run can be resumed."""

    def __init__(self, corpus: Corpus, objective: str, size: int, seed: int) -> None:
        self.ids = torch.from_numpy(corpus.ids)  # (sentences, length)
        self.objective, self.size, self.seed = objective, size, seed
        self.open = torch.from_numpy(corpus.open)  # (vocabulary,)
        self.neighbours = Neighbours(self.ids, len(corpus.vocabulary))

    def at(self, step: int) -> Batch:
        """The batch of this step."""
        random = torch.Generator().manual_seed((self.seed << 32) + step)
        rows = torch.randint(len(self.ids), (self.size,), generator=random)  # (batch,)
        ids = self.ids[rows]  # (batch, length)
        ids = ids[:, : int((ids >= 0).sum(1).max())]  # (batch, n)
        return self.corrupted(ids, random)

    def corrupted(self, ids: Tensor, random: torch.Generator) -> Batch:
        """Sentences ids (batch, n) as the objective shows them."""
        true = ids.clamp(min=0)  # (batch, n)
        seen = self._with_unknowns(true, random)  # (batch, n)
        if self.objective == "next-word":
            real = ids >= 0  # (batch, n)
            return Batch(seen[:, :-1], true[:, 1:], real[:, 1:] & (true[:, 1:] != UNKNOWN_ID), real[:, :-1])
        real = ids >= 0  # (batch, n)
        chosen = real & (true != UNKNOWN_ID) & (torch.rand(ids.shape, generator=random) < CHOSEN)  # (batch, n)
        kind = torch.rand(ids.shape, generator=random)  # (batch, n)
        wrong = self.neighbours.sample(ids, random)  # (batch, n)
        shown = torch.where(kind < MASKED, MASK_ID, torch.where(kind < MASKED + WRONG, wrong, true))  # (batch, n)
        return Batch(torch.where(chosen, shown, seen), true, chosen, real)

    def _with_unknowns(self, ids: Tensor, random: torch.Generator) -> Tensor:
        some = torch.rand((len(ids), 1), generator=random) < UNKNOWN_SENTENCES[self.objective]  # (batch, 1)
        strange = torch.rand(ids.shape, generator=random) < UNKNOWN_WORDS * self.open[ids]  # (batch, n)
        return torch.where(some & strange, UNKNOWN_ID, ids)  # (batch, n)


class Neighbours:
    """Which words the corpus has side by side: a wrong word drawn from them fits both words beside it.

    So nothing near gives it away, and it takes a look at the words further off to tell that it is wrong.
    """

    tries = 8

    def __init__(self, ids: Tensor, vocabulary: int) -> None:
        self.edge = vocabulary  # stands for what is before the first word and after the last
        before, after = self._beside(ids)  # (sentences, length)
        real = ids >= 0  # (sentences, length)
        order = before[real].argsort(stable=True)
        self.words = ids[real][order]  # (words of the corpus,), sorted by the word before
        self.count = torch.bincount(before[real], minlength=vocabulary + 1)  # (vocabulary + 1,)
        self.first = self.count.cumsum(0) - self.count  # (vocabulary + 1,)
        self.side_by_side = torch.zeros(vocabulary, vocabulary + 1, dtype=torch.bool)  # (word, the word after it)
        self.side_by_side[ids[real], after[real]] = True

    def _beside(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The words before and after each place: ids (batch, n), -1 at padding → (batch, n) twice."""
        end = torch.full((len(ids), 1), -1)
        before, after = torch.cat([end, ids[:, :-1]], dim=1), torch.cat([ids[:, 1:], end], dim=1)  # (batch, n)
        return torch.where(before < 0, self.edge, before), torch.where(after < 0, self.edge, after)

    def sample(self, ids: Tensor, random: torch.Generator) -> Tensor:
        """A word that fits between its neighbours, for each place: ids (batch, n), -1 at padding → (batch, n)."""
        before, after = self._beside(ids)  # (batch, n)
        draw = torch.rand((self.tries, *ids.shape), generator=random, dtype=torch.float64)  # (tries, batch, n)
        at = self.first[before] + (draw * self.count[before]).long()  # (tries, batch, n)
        drawn = self.words[at.clamp(max=len(self.words) - 1)]  # (tries, batch, n)
        fits = self.side_by_side[drawn, after] & (drawn != ids)  # (tries, batch, n)
        best = fits.to(torch.uint8).argmax(dim=0, keepdim=True)  # (1, batch, n), the first that fits, else the first
        return drawn.gather(0, best)[0]  # (batch, n)


def loss_of(logits: Tensor, batch: Batch) -> Tensor:
    """Mean cross-entropy of the words that count: logits (batch, n, vocabulary) → ()."""
    return torch.nn.functional.cross_entropy(logits[batch.counted], batch.targets[batch.counted])


def batch_to(batch: Batch, device: Any) -> Batch:
    """The batch on a device."""
    return Batch(*(part.to(device) for part in (batch.ids, batch.targets, batch.counted, batch.real)))
