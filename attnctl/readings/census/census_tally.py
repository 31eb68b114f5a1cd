"""Counts of a census over many sentences: they add up, so that parts of a corpus can be counted apart."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from attnctl import limits
from attnctl.attention import Array
from attnctl.readings.census.census import SentenceCounts, edges_found, right_branching
from attnctl.readings.census.words import FARTHEST, AlignedSentence, TreeQuestion
from attnctl.text import as_json

if TYPE_CHECKING:
    from attnctl.text import Document

Key = tuple[str, str]  # relation as the corpus labels it, direction
OTHER = "(other labels)"


@dataclass(eq=False)
class Cases:
    """The cases of one relation and direction: first axis 0 sentences to choose on, 1 sentences to score on."""

    right: Array  # (2, layers, heads): cases in which the head finds the word
    untrained: Array  # the same of the untrained model, zeros where there is none
    offsets: Array = field(default_factory=lambda: np.zeros((2, 2 * FARTHEST + 1), np.int64))  # (2, 11)
    # (2, 4): cases; the target is the first word; head_match is right; beside the cases: the word stands ahead
    plain: Array = field(default_factory=lambda: np.zeros((2, 4), np.int64))
    tags: dict[str, Array] = field(default_factory=dict)  # of the target: (2, 4): cases, nearest before, behind, either

    @property
    def count_by_half(self) -> Array:
        """Cases in each half: (2,)."""
        return self.plain[:, 0]

    def count_rules(self, question: TreeQuestion, half: int) -> None:
        """Count what simple rules answer to a case of one half."""
        off = question.target - question.query
        self.plain[half] += (1, question.first, question.head_match, 0)
        if abs(off) <= FARTHEST:
            self.offsets[half, off + FARTHEST] += 1
        tag = question.tag if question.tag in self.tags or len(self.tags) < limits.CENSUS_TAGS else ""
        self.tags.setdefault(tag, np.zeros((2, 4), np.int64))[half] += (1, *question.nearest)

    def add_cases(self, other: Cases) -> None:
        """Take in the cases of another."""
        self.right = self.right + other.right
        self.untrained = self.untrained + other.untrained
        self.offsets = self.offsets + other.offsets
        self.plain = self.plain + other.plain
        for tag, counts in other.tags.items():
            self.tags[tag] = self.tags.get(tag, 0) + counts


@dataclass(eq=False)
class CensusTally:
    """Everything counted; `shape` is (layers, heads)."""

    shape: tuple[int, int]
    cases: dict[Key, Cases] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)  # reason → sentences
    counts: Array = field(default_factory=lambda: np.zeros((2, 4), np.int64))  # sentences, units, within a unit, edges
    right_branching: Array = field(default_factory=lambda: np.zeros(2, np.int64))  # edges
    sums: dict[str, Array] = field(default_factory=dict)  # each of SUMS, and edges_untrained → (2, layers, heads)
    offsets: Array = 0  # (layers, heads, 11)
    layer_edges: Array = 0  # (2, layers)
    mentions: dict[str, int] = field(default_factory=dict)  # MENTION_COUNTS of documents that are read in windows

    def attending_heads(self) -> Array:
        """Which heads attend, (layers, heads): others are of layers that hold no attention, or fewer. All, of no words."""
        if not self.counts[:, 1].sum():
            return np.ones(self.shape, bool)
        zeros = np.zeros((2, *self.shape))
        return sum(self.sums.get(name, zeros).sum(0) for name in ("self", "special", "words")) > 0

    def skip_sentence(self, reason: str) -> None:
        """Count a sentence that could not be used; what follows the reason's colon names it and is not counted."""
        short = reason.partition(":")[0]
        self.skipped[short] = self.skipped.get(short, 0) + 1

    def add_packed(self, data: bytes) -> None:
        """Take in a sentence or a document, or that it could not be used, as `packed_…` wrote it."""
        import orjson

        said = orjson.loads(data)
        if "skipped" in said:
            self.skip_sentence(said["skipped"])
        elif "windows" in said:
            self.add_document([_record_from(record) for record in said["windows"]], said["mentions"])
        else:
            self.add_sentence(_record_from(said))

    def add_sentence(self, record: SentenceRecord) -> None:
        """Take in a sentence."""
        half = record.scored
        self._add_answers(record)
        self.counts[half] += (1, record.units, record.within, record.edges)
        self.right_branching[half] += record.right_branching
        for name, sums in record.sums.items():
            if name not in self.sums:
                self.sums[name] = np.zeros((2, *self.shape))  # (2, layers, heads)
            self.sums[name][half] += sums
        self.offsets = self.offsets + record.offsets
        self.layer_edges = self.layer_edges + np.stack([record.layer_edges * (half == at) for at in (0, 1)])

    def add_document(self, windows: Sequence[SentenceRecord], mentions: dict[str, int]) -> None:
        """Take in the answers of a document's windows, and its MENTION_COUNTS."""
        for record in windows:
            self._add_answers(record)
        self._add_mentions(mentions)

    def _add_mentions(self, mentions: dict[str, int]) -> None:
        for name, count in mentions.items():
            self.mentions[name] = self.mentions.get(name, 0) + count

    def _add_answers(self, record: SentenceRecord) -> None:
        half = record.scored
        places: dict[Key, list[int]] = {}
        for at, question in enumerate(record.questions):
            places.setdefault((question.relation, question.direction), []).append(at)
        for key, several in places.items():
            cases = self._known_cases(*key)
            cases.right[half] += record.right[several].sum(0)
            if record.untrained is not None:
                cases.untrained[half] += record.untrained[several].sum(0)
            for at in several:
                cases.count_rules(record.questions[at], half)
        for key in record.ahead:
            self._known_cases(*key).plain[half, 3] += 1

    def _known_cases(self, relation: str, direction: str) -> Cases:
        """The cases of a label; of very many, those that come late are one."""
        known = (relation, direction) in self.cases or len(self.cases) < limits.CENSUS_LABELS
        key = (relation if known else OTHER, direction)
        if key not in self.cases:
            self.cases[key] = self.no_cases()
        return self.cases[key]

    def no_cases(self) -> Cases:
        """Cases of which there are none."""
        return Cases(np.zeros((2, *self.shape), np.int64), np.zeros((2, *self.shape), np.int64))

    def merge_tally(self, other: CensusTally) -> None:
        """Take in everything that another counted."""
        for (relation, direction), cases in other.cases.items():
            self._known_cases(relation, direction).add_cases(cases)
        for reason, count in other.skipped.items():
            self.skipped[reason] = self.skipped.get(reason, 0) + count
        self.counts = self.counts + other.counts
        self.right_branching = self.right_branching + other.right_branching
        for name, sums in other.sums.items():
            self.sums[name] = self.sums.get(name, 0) + sums
        self.offsets = self.offsets + other.offsets
        self.layer_edges = self.layer_edges + other.layer_edges
        self._add_mentions(other.mentions)


@dataclass(frozen=True, eq=False)
class SentenceRecord:
    """What is kept of one sentence on its way to a tally."""

    scored: int  # 0: to choose heads on, 1: to score them on
    units: int
    within: int
    edges: int
    right_branching: int
    questions: tuple[TreeQuestion, ...]
    right: Array  # (questions, layers, heads) bool
    untrained: Array | None  # the same of the untrained model
    sums: dict[str, Array]  # (layers, heads)
    offsets: Array  # (layers, heads, 11)
    layer_edges: Array  # (layers,)
    ahead: tuple[Key, ...] = ()  # of cases that a causal model cannot see


def record_of(sentence: AlignedSentence, counts: SentenceCounts, untrained: SentenceCounts | None) -> SentenceRecord:
    """What is kept of a sentence."""
    chain = edges_found(right_branching(sentence.kept)[None], sentence.edges[None])  # (1,)
    sums = counts.sums | ({} if untrained is None else {"edges_untrained": untrained.sums["edges"]})
    return SentenceRecord(
        sentence.scored,
        sentence.unit_count,
        sentence.within,
        int(sentence.edges.sum()) // 2,
        int(chain[0]),
        sentence.questions,
        counts.right,
        None if untrained is None else untrained.right,
        sums,
        counts.offsets,
        counts.layer_edges,
        sentence.ahead,
    )


def packed_record(record: SentenceRecord) -> bytes:
    """The record as bytes, to travel between processes."""
    import orjson

    said = {name: getattr(record, name) for name in ("scored", "units", "within", "edges", "right_branching")}
    said |= {"questions": record.questions, "shape": record.right.shape, "right": np.packbits(record.right)}
    said |= {"untrained": None if record.untrained is None else np.packbits(record.untrained)}
    said |= {"sums": record.sums, "offsets": record.offsets, "layer_edges": record.layer_edges, "ahead": record.ahead}
    return orjson.dumps(said, option=orjson.OPT_SERIALIZE_NUMPY, default=tuple)


def unpacked_record(data: bytes) -> SentenceRecord:
    """The record that `packed_record` wrote."""
    import orjson

    return _record_from(orjson.loads(data))


def _record_from(said: Document) -> SentenceRecord:
    shape = said.pop("shape")

    def bits(packed: list[int]) -> Array:
        flat = np.unpackbits(np.array(packed, np.uint8), count=int(np.prod(shape)))
        return flat.reshape(shape).astype(bool)  # (questions, layers, heads)

    said["questions"] = tuple(TreeQuestion(*question) for question in said["questions"])
    said["right"] = bits(said["right"])
    said["ahead"] = tuple((relation, direction) for relation, direction in said["ahead"])
    said["untrained"] = None if said["untrained"] is None else bits(said["untrained"])
    said["sums"] = {name: np.array(sums) for name, sums in said["sums"].items()}
    said["offsets"], said["layer_edges"] = _count_array(said["offsets"]), _count_array(said["layer_edges"])
    return SentenceRecord(**said)


def packed_document(windows: Sequence[SentenceRecord], mentions: dict[str, int]) -> bytes:
    """The records of a document's windows, and its MENTION_COUNTS, as bytes."""
    import orjson

    return orjson.dumps({"windows": [orjson.Fragment(packed_record(one)) for one in windows], "mentions": mentions})


def packed_skip(reason: str) -> bytes:
    """As bytes, that a sentence could not be used."""
    return as_json({"skipped": reason})


def pack_tally(tally: CensusTally) -> bytes:
    """The tally as bytes: JSON, deflated; most counts of a part of a corpus are zero."""
    import orjson

    said = {
        "shape": tally.shape,
        "cases": [
            [*key, cases.right, cases.untrained, cases.offsets, cases.plain, cases.tags]
            for key, cases in tally.cases.items()
        ],
        "skipped": tally.skipped,
        "counts": tally.counts,
        "right_branching": tally.right_branching,
        "sums": tally.sums,
        "offsets": np.asarray(tally.offsets).tolist(),  # 0 where no sentence could be used
        "layer_edges": np.asarray(tally.layer_edges).tolist(),
        "mentions": tally.mentions,
    }
    return zlib.compress(orjson.dumps(said, option=orjson.OPT_SERIALIZE_NUMPY), 1)


def unpack_tally(data: bytes) -> CensusTally:
    """The tally that `pack_tally` wrote."""
    import orjson

    said = orjson.loads(zlib.decompress(data))
    layers, heads = said["shape"]
    tally = CensusTally(
        (layers, heads),
        skipped=said["skipped"],
        counts=_count_array(said["counts"]),
        right_branching=_count_array(said["right_branching"]),
        sums={name: np.array(sums) for name, sums in said["sums"].items()},
        offsets=_count_array(said["offsets"]),
        layer_edges=_count_array(said["layer_edges"]),
        mentions=said["mentions"],
    )
    for relation, direction, right, untrained, offsets, plain, tags in said["cases"]:
        tally.cases[relation, direction] = Cases(
            _count_array(right),
            _count_array(untrained),
            _count_array(offsets),
            _count_array(plain),
            {tag: _count_array(counts) for tag, counts in tags.items()},
        )
    return tally


def _count_array(counts: Array) -> Array:
    return np.array(counts, np.int64)
