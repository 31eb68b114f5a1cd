"""A sentence whose words are parsed, whatever file it came from: its text, its words' places, its dependency tree."""

from __future__ import annotations

import zlib
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from attnctl.errors import AttnctlError

if TYPE_CHECKING:
    from attnctl.text import Document

HALVES = ("choose", "score")  # where the best head is chosen, and where it is scored


@dataclass(frozen=True)
class Mention:
    """Words `first` to `last` (both of it, from 0), which speak of an entity; `head` is the word that stands for them."""

    entity: str
    first: int
    last: int
    head: int


class BadSentenceError(AttnctlError):
    """A sentence that cannot be used: `reason: detail`; reasons are few, so that they can be counted."""


@dataclass(frozen=True)
class ParsedSentence:
    """A sentence and its dependency tree; words count from 0, spans are characters of `text`."""

    text: str
    spans: tuple[tuple[int, int], ...]
    forms: tuple[str, ...]
    tags: tuple[str, ...]  # UPOS, or XPOS where there is none; "" where there is neither
    heads: tuple[int, ...]  # -1 for the root
    relations: tuple[str, ...]
    mentions: tuple[Mention, ...] = ()
    half: str | None = None  # one of HALVES, where the corpus says so

    @property
    def scored_half(self) -> int:
        """0 where the sentence is one to choose heads on, 1 where it is one to score them on; by a hash of its text."""
        return zlib.crc32(self.text.encode()) & 1 if self.half is None else HALVES.index(self.half)

    def as_dict(self) -> Document:
        """The sentence as JSON has it; `from_dict` is the way back."""
        return asdict(self)


def from_dict(said: Document) -> ParsedSentence:
    """The sentence that `as_dict` wrote."""
    mentions = tuple(Mention(**mention) for mention in said["mentions"])
    spans = tuple((start, end) for start, end in said["spans"])
    rest = {name: tuple(said[name]) for name in ("forms", "tags", "heads", "relations")}
    return ParsedSentence(said["text"], spans, mentions=mentions, half=said["half"], **rest)
