"""Needles: a fact planted in filler at several depths and lengths, whether a model finds it, and which heads fetch it.

The retrieval score of a head is that of Wu et al. 2024 (Retrieval Head Mechanistically Explains Long-Context Factuality):
the share of the answer's tokens for which the head attends most to that very token inside the needle, over all needles
that were found. Heads with 0.1 and more are called retrieval heads there.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import numpy as np

from attnctl.arrays import Floats
from attnctl.document_fields import ALWAYS, Index, Part, Portion, Sha256, Share, Whole, about
from attnctl.errors import AttnctlError
from attnctl.readings.head_place import HeadPlace
from attnctl.trace.model_info import ModelInfo

if TYPE_CHECKING:
    from collections.abc import Iterator

    from attnctl.attention import Array

RETRIEVAL = 0.1  # a head's score from which Wu et al. call it a retrieval head

# what is planted, what is asked, and what the answer must hold, where nothing else is given
NEEDLE = (
    "The key to the old lighthouse lies under the blue flowerpot by the door.",
    "Where does the key to the old lighthouse lie? Answer with the place alone.",
    "blue flowerpot",
)

_PLACES = (
    "harbour", "market", "library", "station", "garden", "museum", "bakery", "workshop", "orchard", "mill",
    "school", "theatre", "bridge", "square",
)  # fmt: skip
_PEOPLE = (
    "gardener", "baker", "teacher", "sailor", "carpenter", "painter", "clerk", "doctor", "farmer", "weaver",
    "printer", "singer", "miller", "guide",
)  # fmt: skip
_DEEDS = (
    "repaired a fence", "read the newspaper", "counted the boats", "painted a wall", "sold apples", "wrote a long letter",
    "waited for the rain to stop", "swept the steps", "talked about the weather", "mended a coat", "drank a cup of tea",
    "looked for a lost glove", "carried a basket of bread", "watched the birds", "listened to the bells", "fed the hens",
)  # fmt: skip
_TIMES = (
    "In the morning", "Before noon", "Late in the afternoon", "On Monday", "On a cold day", "After the storm", "In spring",
    "Toward evening", "On the first of the month", "During the holidays", "At six o'clock", "Once a week",
)  # fmt: skip


@dataclass(frozen=True)
class NeedleRun:
    """What the needles of one run share."""

    model: ModelInfo
    needle: Annotated[str, about("The fact that was planted.")]
    question: str
    expect: Annotated[str, about("What an answer must hold, letter case aside.")]
    haystack: Annotated[Sha256 | None, about("SHA-256 of the haystack's text; absent: made sentences.")] = None
    seed: Annotated[Whole, about("Of the made sentences, and of the heads switched off at random."), ALWAYS] = 0

    def is_answered(self, answer: str) -> bool:
        """Whether an answer holds what is expected."""
        return " ".join(self.expect.casefold().split()) in " ".join(answer.casefold().split())


def filler_sentences(seed: int) -> Iterator[str]:
    """Sentences without end, the same for the same seed: nothing in them has to do with a needle."""
    rng = random.Random(seed)
    while True:
        yield f"{rng.choice(_TIMES)} the {rng.choice(_PEOPLE)} at the {rng.choice(_PLACES)} {rng.choice(_DEEDS)}."


def sentences_of(text: str) -> list[str]:
    """A haystack's sentences, in order. Raises AttnctlError where it has none."""
    found = [part.strip() for part in re.split(r"(?<=[.!?…])\s+", text) if part.strip()]
    if not found:
        raise AttnctlError("the haystack holds no sentences")
    return found


@dataclass(frozen=True)
class NeedleCell:
    """One needle, and what came of it."""

    length: Annotated[Index, about("Tokens of the prompt that were asked for.")]
    depth: Annotated[Portion, about("Where the needle stands: 0 first, 1 last.")]
    tokens: Annotated[Index, about("Tokens of the prompt as it was.")]
    answer: str
    answered: bool
    found: Annotated[Share, about("Share of the answer's attention on the needle, over all heads and layers.")]
    scores: dict[int, Floats] = field(default_factory=dict)  # layer → each head's retrieval score (heads,), if answered


class HeadsOff(Part):
    """How many needles are still answered with these heads switched off."""

    heads: tuple[HeadPlace, ...]
    answered: Index
    asked: Index


@dataclass(frozen=True)
class Needles:
    """All needles of one run, and what they say of the heads."""

    run: NeedleRun
    cells: tuple[NeedleCell, ...]
    off: HeadsOff | None = None  # the heads with the highest scores
    random_off: HeadsOff | None = None  # as many others, at random
    notes: tuple[str, ...] = ()

    @property
    def answered_count(self) -> int:
        """How many needles were answered."""
        return sum(cell.answered for cell in self.cells)

    def retrieval_scores(self) -> dict[tuple[int, int], float]:
        """(layer, head) → retrieval score, the mean over the needles that were answered, highest first."""
        known = [cell for cell in self.cells if cell.answered and cell.scores]
        if not known:
            return {}
        mean = {layer: np.mean([cell.scores[layer] for cell in known], axis=0) for layer in known[0].scores}
        every = {(layer, head): float(score) for layer, row in mean.items() for head, score in enumerate(row)}
        return dict(sorted(every.items(), key=lambda item: -item[1]))

    def retrieval_heads(self) -> dict[tuple[int, int], float]:
        """The heads whose score is at least RETRIEVAL."""
        return {place: score for place, score in self.retrieval_scores().items() if score >= RETRIEVAL}

    def depth_grid(self, what: str) -> tuple[Floats, list[int], list[float]]:
        """`answered` or `found` as (depths, lengths), NaN where it was not asked; and the lengths and depths."""
        lengths = sorted({cell.length for cell in self.cells})
        depths = sorted({cell.depth for cell in self.cells})
        values = np.full((len(depths), len(lengths)), np.nan, np.float32)  # (depths, lengths)
        for cell in self.cells:
            values[depths.index(cell.depth), lengths.index(cell.length)] = float(getattr(cell, what))
        return values, lengths, depths


def retrieval_scores(
    strongest: dict[int, Array], prompt: Sequence[int], answer: Sequence[int], needle: tuple[int, int]
) -> dict[int, Floats]:
    """Layer → each head's retrieval score on one answer: (heads,).

    `strongest` is layer → the key that each head attends to most when it predicts each answer token (heads, m); `prompt`
    and `answer` are ids, `needle` the prompt's tokens [a, b).
    """
    a, b = needle
    ids = np.asarray([*prompt, *answer])  # (n + m,)
    scores = {}
    for layer, keys in strongest.items():
        inside = (keys >= a) & (keys < b)  # (heads, m)
        same = ids[keys] == np.asarray(answer)  # (heads, m)
        scores[layer] = (inside & same).mean(-1).astype(np.float32)  # (heads,)
    return scores
