"""Add up the counts of a census, and make its table of them: best heads, rules, trees, heads and layers.

Counts of sentences can be added, so that parts of a corpus are counted separately. In the table, the best head and the rules
are chosen on one half of the sentences and scored on the other half.
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
# (half, name of the count, names of what it belongs to …); half is 0: to choose heads on, or 1: to score them on
Key = tuple[Any, ...]
OTHER = "(other labels)"
# relations in both directions: with more labels the column holds something else, and the counts would fill the memory
MOST_LABELS = 2000
MOST_TAGS = 500  # tags of the targets of one relation

POSITIONAL = 0.9  # share of words whose largest weight stands at one offset (Voita et al. 2019, section 5)
SYNTACTIC = 0.1  # by how much a head's accuracy exceeds that of the best fixed offset (Voita et al. 2019, section 5.2)
# the relations that Voita et al. measured, under the names of both standards
VOITA = ("nsubj", "obj", "dobj", "amod", "advmod")
SURE = 1.959964  # standard deviations on each side of the mean that hold 95 %


@dataclass(frozen=True, eq=False)
class Cases:
    """The cases of one relation and direction; the first axis is the half."""

    right: Array  # (2, layers, heads): cases in which the head finds the word
    untrained: Array  # the same for the untrained model; zeros without one
    offsets: Array  # (2, 11): where the word stands, from -5 to 5
    rules: Array  # (2, 4): cases; first word is the target; head_match is right; further pairs whose word stands ahead
    tags: dict[str, Array]  # tag of the target: (2, 4): cases, nearest before, behind, either

    @property
    def count_by_half(self) -> Array:
        """Return the number of cases in each half: (2,)."""
        return self.rules[:, 0]


@dataclass(eq=False)
class CensusTally:
    """The counts of a census, of models whose `shape` is (layers, heads)."""

    shape: tuple[int, int]
    counts: dict[Key, Array] = field(default_factory=dict)
    _tags: dict[Label, set[str]] = field(default_factory=dict)  # the tags of each label that was merged

    def count(self, value: Array, half: int, *names: str) -> None:
        """Add a number or an array to the count under the key (half, *names)."""
        key: Key = (half, *names)
        self.counts[key] = self.counts.get(key, 0) + value

    def merge_tally(self, other: CensusTally) -> None:
        """Add the counts of another tally; labels beyond MOST_LABELS, and tags beyond MOST_TAGS, count as one."""
        for key, value in other.counts.items():
            self.count(value, *(self._known_key(*key) if len(key) > 3 else key))

    def _known_key(self, half: int, name: str, relation: str, direction: str, *tag: str) -> Key:
        """Return the key under which this tally counts a relation, a direction and perhaps a tag."""
        if (relation, direction) not in self._tags and len(self._tags) >= MOST_LABELS:
            relation = OTHER
        tags = self._tags.setdefault((relation, direction), set())
        if tag and tag[0] not in tags and len(tags) >= MOST_TAGS:
            tag = ("",)
        tags.update(tag)
        return half, name, relation, direction, *tag

    def both_halves(self, shape: tuple[int, ...], *key: str) -> Array:
        """Return the counts under a key in each half: (2, *shape)."""
        return np.stack([np.broadcast_to(self.counts.get((half, *key), 0), shape) for half in (0, 1)])

    def numbers(self, name: str) -> dict[str, int]:
        """Return the numbers counted under `what`, by name; they belong to no half."""
        return {key[2]: int(value) for key, value in self.counts.items() if key[:2] == (0, name)}

    def cases(self) -> dict[Label, Cases]:
        """Return the cases of each relation and direction, in the order in which they were first counted."""
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
        """Return only the cases, with relations renamed by `name_of`; None leaves a relation out."""
        tally = CensusTally(self.shape)
        for (half, count_name, *label), value in self.counts.items():
            if len(label) > 1 and (name := name_of(label[0])) is not None:
                tally.count(value, half, count_name, name, *label[1:])
        return tally

    def of_untrained(self) -> CensusTally:
        """Return the right answers and edges of this tally as counts of an untrained model."""
        tally = CensusTally(self.shape)
        for (half, count_name, *names), value in self.counts.items():
            if count_name == "right":
                tally.count(value, half, "untrained", *names)
            elif (count_name, *names) == ("sums", "edges"):
                tally.count(value, half, "sums", "edges_untrained")
        return tally

    def attending_heads(self) -> Array:
        """Return which heads attend, (layers, heads); all of them if no word was counted.

        Other heads belong to layers that hold no attention, or fewer heads.
        """
        if not self.both_halves((5,), "sentences")[:, 1].sum():
            return np.ones(self.shape, bool)
        return sum(self.both_halves(self.shape, "sums", name).sum(0) for name in ("self", "special", "words")) > 0


def tally_of_skip(shape: tuple[int, int], reason: str) -> CensusTally:
    """Return the tally of a skipped sentence, counted under the part of its reason before the colon."""
    return CensusTally(shape, {(0, "skipped", reason.partition(":")[0]): np.int64(1)})


def pack_tally(tally: CensusTally) -> bytes:
    """Return the tally as compressed JSON; most counts of a part of a corpus are zero."""
    import orjson

    document = [tally.shape, [[key, value] for key, value in tally.counts.items()]]
    return zlib.compress(orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY), 1)


def unpack_tally(data: bytes) -> CensusTally:
    """Return the tally that `pack_tally` wrote."""
    import orjson

    (layers, heads), counts = orjson.loads(zlib.decompress(data))
    return CensusTally((layers, heads), {tuple(key): np.array(value) for key, value in counts})


def table_of_tally(
    tally: CensusTally, model: str, corpus: str, *, causal: bool = False, untrained: bool = False
) -> CensusTable:
    """Return the table that the counts of a tally come to; its arrays are (layers, heads)."""
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
    """Return the 95 % interval of a share (Wilson 1927), from and to."""
    if total == 0:
        return 0.0, 1.0
    p, z = right / total, SURE
    middle = (p + z * z / (2 * total)) / (1 + z * z / total)
    reach = z * math.sqrt(p * (1 - p) / total + z * z / (4 * total * total)) / (1 + z * z / total)
    return max(0.0, middle - reach), min(1.0, middle + reach)


def best_of(right: Array, count: Array, attends: Array | None = None) -> Best | None:
    """Return the head that is right most often in the first half, scored on the second.

    `right` is (2, layers, heads) and `count` (2,); their first axis is the half. `attends` (layers, heads) says which heads
    exist; None: all.
    """
    if count[0] == 0 or count[1] == 0 or not right.size:
        return None
    chosen = right[0] if attends is None else np.where(attends, right[0], -1)
    layer, head = (int(index) for index in np.unravel_index(int(chosen.argmax()), chosen.shape))
    hits, total = int(right[1, layer, head]), int(count[1])
    return Best(layer, head, int(count[0]), total, hits / total, wilson_interval(hits, total))


def _relation_cases(tally: CensusTally) -> Iterator[tuple[str, str, Cases, bool]]:
    """Return all relations together, then each relation with its subtypes; those with most cases first."""
    labelled = tally.cases()
    bare = tally.relabelled(lambda name: name.partition(":")[0])
    whole = bare.cases()
    signs = {name for name, _ in whole if _is_of_punctuation(name, whole.get((name, DOWN)))}
    together = bare.relabelled(lambda name: None if name in (*signs, COREFERENCE) else ALL)
    together.merge_tally(bare.relabelled(lambda name: name if name == ALL else None))
    whole |= together.cases()
    size = dict.fromkeys((name for name, _ in whole), 0)
    for (name, _), cases in whole.items():  # in a causal model the two directions have different numbers
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
    """Return whether a relation joins punctuation: by its name in UD, or because most of its dependents have that tag."""
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
    """Return the rules beside a relation: offset and tag are chosen on the first half, all rules scored on the second."""
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
    """Return sentences, units, dependencies within a unit, edges, and edges of right-branching trees: (2, 5)."""
    return tally.both_halves((5,), "sentences")


def _layer_edges(tally: CensusTally) -> Array:
    """Return how many edges the mean weights of each layer find: (2, layers)."""
    return tally.both_halves(tally.shape[:1], "layer_edges")


def _whole_sums(tally: CensusTally, name: str) -> Array:
    """Return one of the sums of heads in whole numbers: (2, layers, heads)."""
    return tally.both_halves(tally.shape, "sums", name).round().astype(np.int64)


def _head_masses(tally: CensusTally) -> dict[str, Array]:
    """Return means and shares of each head over all words: (layers, heads) each."""
    names = ("entropy", "self", "special", "words", "distance", "linked")
    sums = {name: tally.both_halves(tally.shape, "sums", name).sum(0) for name in names}
    units = max(int(_sentence_counts(tally)[:, 1].sum()), 1)
    to_words = np.maximum(sums["words"], 1e-12)
    return {
        "entropy": sums["entropy"] / units,
        "own": sums["self"] / units,
        "special": np.maximum(sums["special"], 0) / units,  # a sum of differences, which rounding may make negative
        "distance": sums["distance"] / to_words,
        "dependency_mass": sums["linked"] / to_words,
    }


def _layers_of_tally(tally: CensusTally, entropy: Array, attends: Array) -> Iterator[LayerRow]:
    """Return the row of each layer that attends; `entropy` (layers, heads) is the mean entropy of each head."""
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
    """Return the relations that a head finds; `relations` gives for each the share of cases at its most frequent offset."""
    for relation, at_offset in relations.items():
        if relation.relation not in VOITA or relation.cases < FEWEST:
            continue
        accuracy = float(relation.correct[layer, head]) / relation.cases
        if accuracy >= at_offset + SYNTACTIC:
            yield Finding(relation.relation, relation.direction, accuracy)
