"""Counts of a census, of one sentence or of many: they add up, so that parts of a corpus can be counted apart."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attnctl import limits
from attnctl.attention import Array
from attnctl.readings.census.words import FARTHEST

Label = tuple[str, str]  # relation as the corpus labels it, direction
# half (0: of sentences to choose heads on, 1: of those to score them on), what is counted, and more to tell it apart by
Key = tuple[Any, ...]
OTHER = "(other labels)"


@dataclass(frozen=True, eq=False)
class Cases:
    """The cases of one relation and direction; the first axis is the half."""

    right: Array  # (2, layers, heads): cases in which the head finds the word
    untrained: Array  # the same of the untrained model, zeros where there is none
    offsets: Array  # (2, 11): where the word stands, from -5 to 5
    rules: Array  # (2, 4): cases; the target is the first word; head_match is right; beside the cases: it stands ahead
    tags: dict[str, Array]  # of the target: (2, 4): cases, nearest before, behind, either

    @property
    def count_by_half(self) -> Array:
        """Cases in each half: (2,)."""
        return self.rules[:, 0]


@dataclass(eq=False)
class CensusTally:
    """Everything counted, of models whose `shape` is (layers, heads)."""

    shape: tuple[int, int]
    counts: dict[Key, Array] = field(default_factory=dict)
    _tags: dict[Label, set[str]] = field(default_factory=dict)  # of each label that another tally brought

    def count(self, value: Array, *key: Any) -> None:
        """Add a number, or an array, to what is counted under a key."""
        self.counts[key] = self.counts.get(key, 0) + value

    def merge_tally(self, other: CensusTally) -> None:
        """Take in everything that another counted; of very many labels and tags, those that come late are one."""
        for key, value in other.counts.items():
            self.count(value, *(self._known_key(*key) if len(key) > 3 else key))

    def _known_key(self, half: int, what: str, relation: str, direction: str, *tag: str) -> Key:
        """The key of a relation and direction, and a tag where it has one, as this tally tells them apart."""
        if (relation, direction) not in self._tags and len(self._tags) >= limits.CENSUS_LABELS:
            relation = OTHER
        known = self._tags.setdefault((relation, direction), set())
        if tag and tag[0] not in known and len(known) >= limits.CENSUS_TAGS:
            tag = ("",)
        known.update(tag)
        return half, what, relation, direction, *tag

    def both_halves(self, shape: tuple[int, ...], *key: str) -> Array:
        """What is counted under a key in each half: (2, *shape)."""
        return np.stack([np.broadcast_to(self.counts.get((half, *key), 0), shape) for half in (0, 1)])

    def numbers(self, what: str) -> dict[str, int]:
        """Numbers that are told apart by one name, and are of no half."""
        return {key[2]: int(value) for key, value in self.counts.items() if key[:2] == (0, what)}

    def cases(self) -> dict[Label, Cases]:
        """The cases of each relation and direction, in the order in which they came."""
        tags: dict[Label, dict[str, None]] = {}
        for key in self.counts:
            if len(key) > 3:
                tags.setdefault((key[2], key[3]), {}).update(dict.fromkeys(key[4:]))
        return {
            label: Cases(
                self.both_halves(self.shape, "right", *label),
                self.both_halves(self.shape, "untrained", *label),
                self.both_halves((2 * FARTHEST + 1,), "offsets", *label),
                self.both_halves((4,), "rules", *label),
                {tag: self.both_halves((4,), "tags", *label, tag) for tag in known},
            )
            for label, known in tags.items()
        }

    def relabelled(self, name_of: Callable[[str], str | None]) -> CensusTally:
        """The cases alone, of relations as `name_of` calls them; those that it gives no name are left out."""
        found = CensusTally(self.shape)
        for (half, what, *label), value in self.counts.items():
            if len(label) > 1 and (name := name_of(label[0])) is not None:
                found.count(value, half, what, name, *label[1:])
        return found

    def of_untrained(self) -> CensusTally:
        """What is kept of what an untrained model finds: the right answers and the edges."""
        found = CensusTally(self.shape)
        for (half, what, *more), value in self.counts.items():
            if what == "right":
                found.count(value, half, "untrained", *more)
            elif (what, *more) == ("sums", "edges"):
                found.count(value, half, "sums", "edges_untrained")
        return found

    def attending_heads(self) -> Array:
        """Which heads attend, (layers, heads): others are of layers that hold no attention, or fewer. All, of no words."""
        if not self.both_halves((5,), "sentences")[:, 1].sum():
            return np.ones(self.shape, bool)
        return sum(self.both_halves(self.shape, "sums", name).sum(0) for name in ("self", "special", "words")) > 0


def tally_of_skip(shape: tuple[int, int], reason: str) -> CensusTally:
    """A sentence that could not be used; what follows the reason's colon names it and is not counted."""
    return CensusTally(shape, {(0, "skipped", reason.partition(":")[0]): np.int64(1)})


def pack_tally(tally: CensusTally) -> bytes:
    """The tally as bytes: JSON, deflated; most counts of a part of a corpus are zero."""
    import orjson

    said = [tally.shape, [[key, value] for key, value in tally.counts.items()]]
    return zlib.compress(orjson.dumps(said, option=orjson.OPT_SERIALIZE_NUMPY), 1)


def unpack_tally(data: bytes) -> CensusTally:
    """The tally that `pack_tally` wrote."""
    import orjson

    (layers, heads), counts = orjson.loads(zlib.decompress(data))
    return CensusTally((layers, heads), {tuple(key): np.array(value) for key, value in counts})
