"""Counts of a census, and the table that they come to: best heads, rules, trees, heads and layers.

Counts of sentences add up, so that parts of a corpus can be counted apart. In the table the best head is chosen on one half
of the sentences and scored on the other; so are the rules.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from msgspec.structs import replace

from attnctl.attention import Array
from attnctl.commands.evaluate.result import (
    ALL,
    FEWEST,
    Best,
    BestLayer,
    CensusTable,
    Finding,
    HeadRow,
    LayerRow,
    Positional,
    Relation,
    Rule,
    SentencesRead,
    Trees,
    WordCounts,
)
from attnctl.commands.evaluate.words import COREFERENCE, DOWN, FARTHEST, SIDES, TO_ANTECEDENT, UP

Label = tuple[str, str]  # relation as the corpus labels it, direction
# half (0: of sentences to choose heads on, 1: of those to score them on), what is counted, and more to tell it apart by
Key = tuple[Any, ...]
OTHER = "(other labels)"
MOST_LABELS = 2000  # relations in both directions: a column of something else has more, and the memory ends
MOST_TAGS = 500  # of the targets of one relation

POSITIONAL = 0.9  # share of words whose largest weight stands at one offset (Voita et al. 2019, section 5)
SYNTACTIC = 0.1  # by how much a head's accuracy exceeds that of the best fixed offset (Voita et al. 2019, section 5.2)
VOITA = ("nsubj", "obj", "dobj", "amod", "advmod")  # of which that was said, under either standard's names
SURE = 1.959964  # standard deviations on either side of a mean that hold 95 %


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
        if (relation, direction) not in self._tags and len(self._tags) >= MOST_LABELS:
            relation = OTHER
        tags = self._tags.setdefault((relation, direction), set())
        if tag and tag[0] not in tags and len(tags) >= MOST_TAGS:
            tag = ("",)
        tags.update(tag)
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
                {tag: self.both_halves((4,), "tags", *label, tag) for tag in of_label},
            )
            for label, of_label in tags.items()
        }

    def relabelled(self, name_of: Callable[[str], str | None]) -> CensusTally:
        """The cases alone, of relations as `name_of` calls them; those that it gives no name are left out."""
        tally = CensusTally(self.shape)
        for (half, what, *label), value in self.counts.items():
            if len(label) > 1 and (name := name_of(label[0])) is not None:
                tally.count(value, half, what, name, *label[1:])
        return tally

    def of_untrained(self) -> CensusTally:
        """What is kept of what an untrained model finds: the right answers and the edges."""
        tally = CensusTally(self.shape)
        for (half, what, *more), value in self.counts.items():
            if what == "right":
                tally.count(value, half, "untrained", *more)
            elif (what, *more) == ("sums", "edges"):
                tally.count(value, half, "sums", "edges_untrained")
        return tally

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

    document = [tally.shape, [[key, value] for key, value in tally.counts.items()]]
    return zlib.compress(orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY), 1)


def unpack_tally(data: bytes) -> CensusTally:
    """The tally that `pack_tally` wrote."""
    import orjson

    (layers, heads), counts = orjson.loads(zlib.decompress(data))
    return CensusTally((layers, heads), {tuple(key): np.array(value) for key, value in counts})


def table_of_tally(
    tally: CensusTally, model: str, corpus: str, *, causal: bool = False, untrained: bool = False
) -> CensusTable:
    """What a tally says; arrays of it are (layers, heads)."""
    attends = tally.attending_heads()
    parts = list(_relation_cases(tally))
    relations = tuple(_relation_row(*part, untrained, attends) for part in parts)
    offsets = [float(cases.offsets.sum(0).max()) / max(int(cases.count_by_half.sum()), 1) for _, _, cases, _ in parts]
    trees = _tree_scores(tally, untrained, attends)
    used, units, within, *_ = (int(count) for count in _sentence_counts(tally).sum(0))
    masses = _head_masses(tally)
    heads = tuple(_heads_of_tally(tally, masses, dict(zip(relations, offsets, strict=True)), attends))
    skipped = dict(sorted(tally.numbers("skipped").items(), key=lambda reason: (-reason[1], reason[0])))
    return CensusTable(
        model=model,
        corpus=corpus,
        causal=causal,
        sentences=SentencesRead(read=used + sum(skipped.values()), used=used, skipped=skipped),
        words=WordCounts(units, within),
        relations=relations,
        trees=trees,
        layers=tuple(_layers_of_tally(tally, masses["entropy"], attends)),
        heads=heads,
        untrained=untrained,
        mentions=tally.numbers("mentions"),
    )


def wilson_interval(right: int, total: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson 1927). → from, to."""
    if total == 0:
        return 0.0, 1.0
    p, z = right / total, SURE
    middle = (p + z * z / (2 * total)) / (1 + z * z / total)
    reach = z * math.sqrt(p * (1 - p) / total + z * z / (4 * total * total)) / (1 + z * z / total)
    return max(0.0, middle - reach), min(1.0, middle + reach)


def best_of(right: Array, count: Array, attends: Array | None = None) -> Best | None:
    """The head that is right most often in the first half, scored on the second: right (2, layers, heads), count (2,).

    `attends` (layers, heads) says which heads there are; None: all.
    """
    if count[0] == 0 or count[1] == 0 or not right.size:
        return None
    chosen = right[0] if attends is None else np.where(attends, right[0], -1)
    layer, head = (int(index) for index in np.unravel_index(int(chosen.argmax()), chosen.shape))
    hits, total = int(right[1, layer, head]), int(count[1])
    return Best(layer, head, int(count[0]), total, hits / total, wilson_interval(hits, total))


def _relation_cases(tally: CensusTally) -> Iterator[tuple[str, str, Cases, bool]]:
    """Relations with their subtypes, then these alone, then all together; those with most cases first."""
    labelled = tally.cases()
    bare = tally.relabelled(lambda name: name.partition(":")[0])
    whole = bare.cases()
    signs = {name for name, _ in whole if _is_of_punctuation(name, whole.get((name, DOWN)))}
    together = bare.relabelled(lambda name: None if name in (*signs, COREFERENCE) else ALL)
    together.merge_tally(bare.relabelled(lambda name: name if name == ALL else None))
    whole |= together.cases()
    size = dict.fromkeys((name for name, _ in whole), 0)
    for (name, _), cases in whole.items():  # a causal model has other numbers in either direction
        size[name] += int(cases.count_by_half.sum())
    order = sorted(size, key=lambda name: (name == COREFERENCE, name != ALL, -size[name], name))
    for name in order:
        directions = (TO_ANTECEDENT,) if name == COREFERENCE else (UP, DOWN)
        for direction in directions:
            if (name, direction) in whole:
                yield name, direction, whole[name, direction], False
        for subtype in sorted({subtype for subtype, _ in labelled if subtype.startswith(f"{name}:")}):
            for direction in directions:
                yield subtype, direction, labelled[subtype, direction], True


def _is_of_punctuation(name: str, down: Cases | None) -> bool:
    """Whether a relation is that of punctuation: by its name in UD, or else as most of its dependents are tagged so."""
    signs = 0 if down is None else down.tags.get("PUNCT", np.zeros((2, 4)))[:, 0].sum()
    return name == "punct" or (down is not None and 2 * signs > down.count_by_half.sum())


def _relation_row(name: str, direction: str, cases: Cases, subtype: bool, untrained: bool, attends: Array) -> Relation:
    count = cases.count_by_half
    best = best_of(cases.right, count, attends)
    rules = {} if best is None else dict(_rule_rows(cases, direction == TO_ANTECEDENT))
    before = best_of(cases.untrained, count, attends) if untrained else None
    ahead = int(cases.rules[:, 3].sum())
    row = Relation(
        relation=name,
        direction=direction,
        cases=int(count.sum()),
        ahead=ahead,
        correct=cases.right.sum(0),
        subtype=subtype,
        best=best,
        rules=rules,
        untrained=before,
    )
    return row if best is None else replace(row, best=replace(best, beats_rules=row.beats_rules))


def _rule_rows(cases: Cases, mentions: bool) -> Iterator[tuple[str, Rule]]:
    """The rules beside a relation, what can be chosen chosen on the first half and all scored on the second."""
    scored = int(cases.count_by_half[1])
    if mentions:
        nearest = sum(counts[1, 3] for counts in cases.tags.values())
        yield "nearest", Rule(accuracy=float(nearest) / scored)
        yield "head_match", Rule(accuracy=float(cases.rules[1, 2]) / scored)
        yield "first", Rule(accuracy=float(cases.rules[1, 1]) / scored)
        return
    index = int(cases.offsets[0].argmax())
    yield "offset", Rule(accuracy=float(cases.offsets[1, index]) / scored, offset=index - FARTHEST)
    if any(tag for tag in cases.tags):
        tag = max(cases.tags, key=lambda tag: (int(cases.tags[tag][0, 0]), tag))
        side = int(cases.tags[tag][0, 1:].argmax())
        yield "nearest", Rule(accuracy=float(cases.tags[tag][1, 1 + side]) / scored, tag=tag, side=SIDES[side])
    yield "first", Rule(accuracy=float(cases.rules[1, 1]) / scored)


def _tree_scores(tally: CensusTally, untrained: bool, attends: Array) -> Trees:
    edges, chain = _sentence_counts(tally)[:, 3:].T  # (2,)
    right = _whole_sums(tally, "edges")
    layers = _layer_edges(tally)
    best_layer = None
    if edges.all():
        layer = int(np.where(attends.any(-1), layers[0], -1).argmax())
        best_layer = BestLayer(layer, float(layers[1, layer]) / float(edges[1]))
    return Trees(
        edges=int(edges.sum()),
        right_branching=float(chain[1]) / max(int(edges[1]), 1),
        correct=right.sum(0),
        best_head=best_of(right, edges, attends),
        best_layer=best_layer,
        untrained=best_of(_whole_sums(tally, "edges_untrained"), edges, attends) if untrained else None,
    )


def _sentence_counts(tally: CensusTally) -> Array:
    """Sentences, units, dependencies within one, edges, and those of right-branching trees: (2, 5)."""
    return tally.both_halves((5,), "sentences")


def _layer_edges(tally: CensusTally) -> Array:
    """Edges that each layer's mean weights find: (2, layers)."""
    return tally.both_halves(tally.shape[:1], "layer_edges")


def _whole_sums(tally: CensusTally, name: str) -> Array:
    """One of the sums, in whole numbers: (2, layers, heads)."""
    return tally.both_halves(tally.shape, "sums", name).round().astype(np.int64)


def _head_masses(tally: CensusTally) -> dict[str, Array]:
    """Means and shares of each head over all words: (layers, heads), and of a layer (layers,)."""
    names = ("entropy", "self", "special", "words", "distance", "linked")
    sums = {name: tally.both_halves(tally.shape, "sums", name).sum(0) for name in names}
    units = max(int(_sentence_counts(tally)[:, 1].sum()), 1)
    to_words = np.maximum(sums["words"], 1e-12)
    return {
        "entropy": sums["entropy"] / units,
        "own": sums["self"] / units,
        "special": np.maximum(sums["special"], 0) / units,  # a sum of differences, which may fall below 0 by rounding
        "distance": sums["distance"] / to_words,
        "dependency_mass": sums["linked"] / to_words,
    }


def _layers_of_tally(tally: CensusTally, entropy: Array, attends: Array) -> Iterator[LayerRow]:
    """The row of each layer that attends; `entropy` (layers, heads) is that of its heads."""
    names = ("linked", "distance", "words")
    linked, distance, words = (tally.both_halves(tally.shape, "sums", name).sum((0, -1)) for name in names)
    tree_edges, edges = _layer_edges(tally).sum(0), max(int(_sentence_counts(tally)[:, 3].sum()), 1)
    for layer, mass in enumerate(np.maximum(words, 1e-12)):
        if attends[layer].any():
            mean = float(entropy[layer][attends[layer]].mean())
            uuas = float(tree_edges[layer]) / edges
            yield LayerRow(layer, float(linked[layer] / mass), float(distance[layer] / mass), mean, uuas)


def _heads_of_tally(
    tally: CensusTally, masses: dict[str, Array], relations: dict[Relation, float], attends: Array
) -> Iterator[HeadRow]:
    layers, heads = tally.shape
    looking = tally.both_halves(tally.shape, "sums", "looking").sum(0)  # (layers, heads)
    offsets = tally.both_halves((layers, heads, 2 * FARTHEST + 1), "offsets").sum(0)  # (layers, heads, 11)
    edges, tree_edges = int(_sentence_counts(tally)[:, 3].sum()), _whole_sums(tally, "edges").sum(0)
    names = ("entropy", "own", "special", "distance", "dependency_mass")
    for layer, head in np.argwhere(attends).tolist():
        index = int(offsets[layer, head].argmax())
        share = float(offsets[layer, head, index]) / max(float(looking[layer, head]), 1.0)
        yield HeadRow(
            layer=layer,
            head=head,
            **{name: float(masses[name][layer, head]) for name in names},
            uuas=float(tree_edges[layer, head]) / edges if edges else None,
            positional=Positional(index - FARTHEST, share) if share >= POSITIONAL else None,
            syntactic=tuple(_syntactic_labels(relations, layer, head)),
        )


def _syntactic_labels(relations: dict[Relation, float], layer: int, head: int) -> Iterator[Finding]:
    """The relations that a head finds; of each there is the share of all cases at their most frequent offset."""
    for relation, at_offset in relations.items():
        if relation.relation not in VOITA or relation.cases < FEWEST:
            continue
        accuracy = float(relation.correct[layer, head]) / relation.cases
        if accuracy >= at_offset + SYNTACTIC:
            yield Finding(relation.relation, relation.direction, accuracy)
