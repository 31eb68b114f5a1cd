"""Which kinds of words a model met side by side in training, so that a sentence unlike them can be told to be so."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attnctl.arrays import Ids
from attnctl.text import visible_text
from attnctl.tokens import Token

ANY, EDGE = 0, 1  # kinds: of words that may stand anywhere, and of what is before and after a sentence
LEAST_MET = 2  # how often three kinds must have stood side by side to count as met
BITS = 19  # of a slot in the table of what was met: half a million slots, a tenth of them taken
FEW, SHARE = 3, 0.3  # so many new ones, and more than this share of all, are too many for a sentence

Kinds = npt.NDArray[np.uint16]


@dataclass(frozen=True)
class Phrasing:
    """The kinds of words of a vocabulary, and the runs of three kinds that training met.

    `kinds` (vocabulary,) are numbers of kinds, ANY where nothing is to be said of a word; `met` (2^BITS / 8,) has one bit
    for each slot, and a run of three kinds has its slot: one in ten that was never met passes for met.
    """

    kinds: Kinds
    met: bytes

    @classmethod
    def of_sentences(cls, ids: Ids, kinds: Kinds) -> Phrasing:
        """What the sentences ids (sentences, length), -1 after a sentence's end, have side by side."""
        rows, real = kinds[ids.clip(min=0)].astype(np.int64), ids >= 0  # (sentences, length)
        edge = np.full((len(ids), 1), EDGE)  # (sentences, 1)
        ends = np.concatenate([edge, np.where(real, rows, EDGE), edge], axis=1)  # (sentences, length + 2)
        runs = np.stack([ends[:, :-2], ends[:, 1:-1], ends[:, 2:]], axis=-1)[real]  # (words, 3)
        runs, counts = np.unique(runs[(runs != ANY).all(axis=1)], axis=0, return_counts=True)  # (runs, 3), (runs,)
        bits = np.zeros(1 << BITS, dtype=bool)  # (slots,)
        bits[[_slot(*run) for run in runs[counts >= LEAST_MET].tolist()]] = True
        return cls(kinds, np.packbits(bits).tobytes())

    @classmethod
    def of_metadata(cls, metadata: dict[str, str], vocabulary: int) -> Phrasing | None:
        """What a weights file says; None where it says nothing, or what does not fit its vocabulary."""
        try:
            kinds = np.frombuffer(base64.b64decode(metadata["kinds"], validate=True), dtype="<u2")  # (vocabulary,)
            met = base64.b64decode(metadata["met"], validate=True)
        except (KeyError, ValueError, binascii.Error):
            return None
        return cls(kinds, met) if len(kinds) == vocabulary and 8 * len(met) == 1 << BITS else None

    def as_metadata(self) -> dict[str, str]:
        """As a weights file says it."""
        kinds = self.kinds.astype("<u2").tobytes()
        return {"kinds": base64.b64encode(kinds).decode(), "met": base64.b64encode(self.met).decode()}

    def _was_met(self, run: tuple[int, int, int]) -> bool:
        slot = _slot(*run)
        return bool(self.met[slot >> 3] >> (7 - (slot & 7)) & 1)

    def doubt(self, name: str, tokens: Sequence[Token]) -> str | None:
        """One sentence where much of the text is new to the model of this name; None where it is not."""
        known = len(self.kinds)
        ids = [token.id if token.id is not None and 0 <= token.id < known else None for token in tokens]
        kinds = [EDGE, *(ANY if at is None else int(self.kinds[at]) for at in ids), EDGE]
        runs = list(zip(kinds, kinds[1:], kinds[2:], strict=False))  # around each token
        told = [at for at, run in enumerate(runs) if ANY not in run]
        new = [at for at in told if not self._was_met(runs[at])]
        if len(new) < FEW or len(new) <= SHARE * len(told):
            return None
        said = [" ".join(visible_text(t.text) for t in tokens[max(0, at - 1) : at + 2]) for at in new]
        shown = ", ".join(f'"{words}"' for words in dict.fromkeys(said[:: max(1, len(said) // 3)][:3]))
        return f"{name} was trained on simpler English than this ({shown} are new to it)"


def _slot(first: int, second: int, third: int) -> int:
    """The slot of a run of three kinds: its number times an odd constant, modulo 2^64, and of that the highest bits."""
    return ((first << 32 | second << 16 | third) * 0x9E3779B97F4A7C15 & (1 << 64) - 1) >> (64 - BITS)


def number_kinds(kinds: Iterable[str | None]) -> Kinds:
    """Numbers for the kinds of words, None for ANY: the same kind has the same number → (words,)."""
    numbers: dict[str, int] = {}
    return np.array([ANY if kind is None else numbers.setdefault(kind, 2 + len(numbers)) for kind in kinds], np.uint16)
