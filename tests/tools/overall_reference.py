"""All that a census says beside the counts of relations, by another way: from eager weights, by the definitions alone."""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from typing import Any

import numpy as np

from tests.tools.census_reference import units

UP, DOWN = "dependent→head", "head→dependent"
VOITA = ("nsubj", "obj", "dobj", "amod", "advmod")


class Overall:
    """Sums over sentences, a head at a time; `heads` and `layers` and `rows` hold what JSON should."""

    def __init__(self, sentences: list[dict[str, Any]], attend: Any) -> None:
        self.words = 0
        self.sums: dict[tuple[int, int], Counter[str]] = defaultdict(Counter)
        self.offsets: dict[tuple[int, int], Counter[int]] = defaultdict(Counter)
        self.layer_trees: Counter[tuple[int, int]] = Counter()  # layer, half
        self.trees: Counter[tuple[int, int, int]] = Counter()  # layer, head, half
        self.edges: Counter[int] = Counter()
        self.chain: Counter[int] = Counter()
        self.cases: dict[tuple[str, str], list[tuple[int, int, int, str, dict[str, list[int]]]]] = defaultdict(list)
        self.right: Counter[tuple[str, str, int, int, int]] = Counter()  # relation, direction, layer, head, half
        for sentence in sentences:
            weights, offsets = attend(sentence["text"])
            self.add_sentence(sentence, np.array(weights), offsets)

    def add_sentence(self, sentence: dict[str, Any], weights: np.ndarray, offsets: list[tuple[int, int]]) -> None:
        half = zlib.crc32(sentence["text"].encode()) % 2
        unit_of, tokens = units(sentence, offsets)
        n = len(tokens)
        self.words += n
        linked: set[tuple[int, int]] = set()
        gold: set[tuple[int, int]] = set()
        signs = {
            w
            for w, (tag, name) in enumerate(zip(sentence["tags"], sentence["names"], strict=True))
            if is_sign(tag, name)
        }
        kept = sorted({unit_of[w] for w in range(len(unit_of)) if w not in signs})
        by_tag: dict[str, list[int]] = defaultdict(list)
        for word, tag in enumerate(sentence["tags"]):
            by_tag[tag].append(unit_of[word])
        asked = []
        for word, (head, name) in enumerate(zip(sentence["heads"], sentence["names"], strict=True)):
            one, other = unit_of[word], unit_of[head]
            if head < 0 or one == other:
                continue
            linked |= {(one, other), (other, one)}
            if word not in signs and one in kept and other in kept:
                gold.add((min(one, other), max(one, other)))
            for way, query, target, tag in (
                (UP, one, other, sentence["tags"][head]),
                (DOWN, other, one, sentence["tags"][word]),
            ):
                self.cases[name, way].append((half, query, target, tag, dict(by_tag)))
                asked.append((name, way, query, target))
        self.edges[half] += len(gold)
        self.chain[half] += sum(tuple(sorted(pair)) in gold for pair in zip(kept, kept[1:], strict=False))
        for layer, heads in enumerate(weights):
            given = [pooled(matrix, tokens) for matrix in heads]
            self.layer_trees[layer, half] += len(spanning_tree(sum(given) / len(given), kept) & gold)
            for head, (matrix, own) in enumerate(zip(heads, given, strict=True)):
                self.trees[layer, head, half] += len(spanning_tree(own, kept) & gold)
                self.add_head((layer, head), matrix, own, tokens, linked)
                best = (
                    [int(np.argmax(np.where(np.arange(n) == unit, -1.0, row))) for unit, row in enumerate(own)]
                    if n > 1
                    else []
                )
                for unit, found in enumerate(best):
                    self.offsets[layer, head][found - unit] += 1
                for name, way, query, target in asked:
                    self.right[name, way, layer, head, half] += best[query] == target

    def add_head(
        self,
        at: tuple[int, int],
        matrix: np.ndarray,
        own: np.ndarray,
        tokens: list[list[int]],
        linked: set[tuple[int, int]],
    ) -> None:
        """Masses, distance and entropy of one head in one sentence."""
        sums, n = self.sums[at], len(tokens)
        rows = -(matrix * np.log(np.where(matrix > 0, matrix, 1.0))).sum(-1)  # (tokens,)
        sums["entropy"] += sum(rows[places].mean() for places in tokens)
        sums["own"] += own.trace()
        sums["special"] += n - own.sum()
        others = own * (1 - np.eye(n))  # (words, words)
        sums["others"] += others.sum()
        sums["far"] += (others * abs(np.subtract.outer(np.arange(n), np.arange(n)))).sum()
        sums["linked"] += sum(others[edge] for edge in linked)

    def heads(self) -> dict[tuple[int, int], dict[str, float]]:
        found = {}
        for at, sums in self.sums.items():
            found[at] = {name: sums[name] / self.words for name in ("entropy", "own", "special")}
            found[at] |= {"distance": sums["far"] / sums["others"], "dependency_mass": sums["linked"] / sums["others"]}
            found[at]["uuas"] = sum(self.trees[*at, half] for half in (0, 1)) / self.edges.total()
        return found

    def positional(self) -> dict[tuple[int, int], tuple[int, float]]:
        """Heads whose largest weight stands at one offset in 90 % of the words (Voita et al. 2019)."""
        found = {}
        for at, offsets in self.offsets.items():
            offset, count = max(((o, c) for o, c in offsets.items() if -5 <= o <= 5), key=lambda pair: pair[1])
            if count / offsets.total() >= 0.9:
                found[at] = (offset, count / offsets.total())
        return found

    def syntactic(self) -> set[tuple[int, int, str, str]]:
        """Heads ten points above the most frequent offset of a relation (Voita et al. 2019)."""
        found = set()
        for name, way in {(name.partition(":")[0], way) for name, way in self.cases}:
            if name not in VOITA:
                continue
            keys = [key for key in self.cases if key[1] == way and key[0].partition(":")[0] == name]
            cases = [case for key in keys for case in self.cases[key]]
            if len(cases) < 20:
                continue
            often = Counter(target - query for _, query, target, *_ in cases if abs(target - query) <= 5)
            rule = max(often.values(), default=0) / len(cases)
            for layer, head in self.sums:
                right = sum(self.right[*key, layer, head, half] for key in keys for half in (0, 1))
                if right / len(cases) >= rule + 0.1:
                    found.add((layer, head, name, way))
        return found

    def rules(self, name: str, way: str) -> dict[str, float]:
        """What rules find in the second half, chosen on the first: the offset, the nearest of the usual tag, the first."""
        cases = [
            case
            for key, some in self.cases.items()
            if key[1] == way and key[0].partition(":")[0] == name
            for case in some
        ]
        first, second = ([case for case in cases if case[0] == half] for half in (0, 1))
        if not first or not second:
            return {}

        def share(answer: Any, some: list[Any]) -> float:
            return sum(answer(case) == case[2] for case in some) / len(some)

        offset = max(range(-5, 6), key=lambda off: (share(lambda case: case[1] + off, first), -off))
        tags = Counter(case[3] for case in first)
        tag = max(tags, key=lambda one: (tags[one], one))
        of_tag = [case for case in first if case[3] == tag]
        side = max((-1, 1, 0), key=lambda one: share(lambda case: nearest(case, tag, one), of_tag))
        there = [case for case in second if case[3] == tag]
        return {
            "offset": share(lambda case: case[1] + offset, second),
            "nearest": (share(lambda case: nearest(case, tag, side), there) if there else 0.0)
            * len(there)
            / len(second),
            "first": share(lambda case: 0, second),
        }


def is_sign(tag: str, name: str) -> bool:
    return tag == "PUNCT" or name.partition(":")[0] == "punct"


def pooled(matrix: np.ndarray, tokens: list[list[int]]) -> np.ndarray:
    """To a word the sum over its tokens, from a word the mean: (n, n) → (words, words)."""
    belongs = np.zeros((len(tokens), len(matrix)))  # (words, n): 1 for the tokens of a word
    for word, places in enumerate(tokens):
        belongs[word, places] = 1
    return belongs / belongs.sum(1, keepdims=True) @ matrix @ belongs.T


def spanning_tree(given: np.ndarray, kept: list[int]) -> set[tuple[int, int]]:
    """The edges of the maximum spanning tree over the words kept (Kruskal 1956)."""
    pairs = [(given[a, b] + given[b, a], a, b) for at, a in enumerate(kept) for b in kept[at + 1 :]]
    group = {word: word for word in kept}
    edges = set()
    for _, a, b in sorted(pairs, reverse=True):
        if group[a] != group[b]:
            edges.add((a, b))
            old = group[b]
            group = {word: group[a] if own == old else own for word, own in group.items()}
    return edges


def nearest(case: tuple[int, int, int, str, dict[str, list[int]]], tag: str, side: int) -> int | None:
    """The nearest word with a tag before (-1), behind (1), or on either side (0; of two as near the one before)."""
    _, query, _, _, by_tag = case
    there = [word for word in by_tag.get(tag, []) if word != query and (side == 0 or (word - query) * side > 0)]
    return min(there, key=lambda word: (abs(word - query), word), default=None)
