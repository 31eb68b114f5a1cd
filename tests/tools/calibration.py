"""Fit how probable the links of the bundled models are, and measure how often a headline is right.

`python -m tests.tools.calibration` prints both; `--write` also writes attnctl/readings/questions/certainty.json.

It fits on tests/training/calibration.txt and measures on tests/training/headlines.txt: sentences that no training met, marked
by hand before anything was fitted. A link of a pronoun that may stand for two words counts as wrong: it must be unsure.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path

import numpy as np

import attnctl
from attnctl.readings.questions import certainty
from attnctl.readings.questions.certainty import (
    ANTECEDENT,
    FAMILIES,
    POSSESSIVE,
    SUBJECT_VERB,
    VERB_OBJECT,
    Certainty,
    Sentence,
)
from attnctl.readings.questions.headline import Candidate, candidates, headline
from attnctl.text.tokens import Token
from attnctl.trace import Headline, Trace
from samples.english.marked import word_place

TRAINING = Path(__file__).parents[1] / "training"
CERTAINTY = Path(certainty.__file__).with_name("certainty.json")
MODELS = ("demo", "demo-causal", "minilm", "smollm2")
FAMILY_OF_MARK = {
    "vs": "subject", "vp": "subject", "ov": "object", "pn": "pronoun", "it": "pronoun", "an": "described",
    "dn": "determined", "pp": "governor", "cl": "opening mark", "in": "repeated",
}  # fmt: skip
BACKWARDS = {
    SUBJECT_VERB.name: "subject",
    VERB_OBJECT.name: "object",
}  # from the word that is marked to the marked word
AUXILIARIES = frozenset(
    [
        "is",
        "are",
        "was",
        "were",
        "am",
        "be",
        "been",
        "has",
        "have",
        "had",
        "do",
        "does",
        "did",
        "will",
        "would",
        "can",
        "could",
        "may",
        "must",
    ]
)
FITTED = ("calibration.txt", "constructions-fitted.txt")
UNSEEN = ("headlines.txt", "constructions.txt")
FOLDS = 10
MOST_FITTED = {"smollm2": 1100}  # sentences, the first of the first file: this checkpoint reads two or three a second
LONGEST = 30  # words: longer sentences take a checkpoint too long
PENALTY = 1.0  # on the squares of the coefficients of evidence that is scaled to a spread of 1
MOST_WRONG = 0.01  # of the sure headlines
LEAST_SURE = 0.9  # a smaller probability is never called sure, though few of such links were wrong
FEWEST_LINKS = 20  # links of which a share is kept
KIND = "# kind: "
FEWEST = 100  # headlines, or links, that give a family its threshold
STEPS = (
    0.1,
    0.3,
    0.5,
    0.7,
    0.8,
    0.9,
    0.95,
    1.0,
)  # of probability: of the links up to each, the share that is right is kept


@dataclass(frozen=True)
class Marked:
    """A sentence: its words, the right keys of each (family, query), and the queries that are ambiguous."""

    words: list[str]
    right: dict[tuple[str, int], set[int]]
    ambiguous: set[int]

    @cached_property
    def word_of_letter(self) -> list[int]:
        """The number of the word that each letter of the text stands in; of a space, that before it."""
        return [number for number, word in enumerate(self.words) for _ in range(len(word) + 1)]

    def word_of(self, token: Token) -> int:
        """Return the number of the word that a token is, or is a piece of ("Hye-jin" is three tokens)."""
        assert token.start is not None and token.end is not None  # a token may begin with its space
        return self.word_of_letter[token.end - 1]

    def holds(self, family: str, trace: Trace, link: Candidate | Headline) -> bool:
        """Return whether a link is one of the marks; that of an auxiliary to the subject of the verb behind it counts."""
        query, key = (self.word_of(trace.tokens[i]) for i in (link.query, link.key))
        if family in BACKWARDS:
            family, query, key = BACKWARDS[family], key, query
        word = self.words[query].lower()
        if family == "subject" and (word in AUXILIARIES or word.endswith("n't")):
            query = next((other for other in range(query, len(self.words)) if (family, other) in self.right), query)
        kind = "pronoun" if family in (ANTECEDENT.name, POSSESSIVE.name) else family
        return key in self.right.get((kind, query), ())


def read_sentences(name: str) -> list[Marked]:
    """Return the marked sentences of a file of tests/training."""
    lines = (TRAINING / name).read_text(encoding="utf-8").splitlines()
    return [_read_line(line) for line in lines if line and not line.startswith("#")]


def _read_line(line: str) -> Marked:
    text, _, marks = line.partition(" | ")
    words, right, ambiguous = text.split(), defaultdict(set), set()
    for mark in filter(None, marks.split(" ; ")):
        code, *pairs = mark.split()
        for pair in pairs:
            query, key = (word_place(words, name) for name in pair.rsplit(">", 1))
            if code == "am":
                ambiguous.add(query)
            else:
                right[FAMILY_OF_MARK[code], query].add(key)
    return Marked(words, dict(right), ambiguous)


FamilyLink = tuple[str, float, bool]  # the name of its family, its probability, and whether it is right
Case = tuple[Marked, Trace, list[Candidate]]


def read_cases(names: str | Sequence[str], model: str, most: int | None = None) -> list[Case]:
    """Return each sentence of a file, or of several, with its trace and its candidates; `most` sentences (None: all)."""
    opened = attnctl.open_model(model)
    is_network, layers = opened.info.nature.is_network, sorted({layer for layer, *_ in opened.info.finds or ()})
    cases = []
    every = chain.from_iterable(map(read_sentences, [names] if isinstance(names, str) else names))
    for marked in islice(every, most):
        if is_network and len(marked.words) > LONGEST:
            continue
        trace = attnctl.attend(" ".join(marked.words), opened, layer=layers if is_network else None)
        cases.append((marked, trace, list(candidates(trace))))
    return cases


def fit(cases: Sequence[Case]) -> dict[str, dict[str, float]]:
    """Return family → name of a piece of evidence → its coefficient, by penalised maximum likelihood."""
    coefficients = {}
    for family in FAMILIES:
        rows = [
            (link.evidence, marked.holds(family.name, trace, link))
            for marked, trace, links in cases
            for link in links
            if link.family is family
        ]
        if len(rows) >= 10:
            names = list(rows[0][0])
            x = np.array([[seen[name] for name in names] for seen, _ in rows])  # (links, evidence)
            y = np.array([right for _, right in rows], dtype=float)  # (links,)
            intercept, slopes = _logistic_regression(x, y)
            coefficients[family.name] = {"intercept": intercept} | dict(zip(names, slopes, strict=True))
    return {
        family: {name: round(value, 4) for name, value in own.items() if abs(value) >= 5e-5}
        for family, own in coefficients.items()
    }


def _logistic_regression(x: np.ndarray, y: np.ndarray) -> tuple[float, list[float]]:
    """Return intercept and slopes (evidence,) by Newton's method, the slopes penalised."""
    centre, spread = x.mean(axis=0), np.where(x.std(axis=0) > 1e-9, x.std(axis=0), 1.0)
    design = np.column_stack([np.ones(len(x)), (x - centre) / spread])  # (links, 1 + evidence)
    penalty = np.diag([1e-6] + [PENALTY] * x.shape[1])
    beta = np.zeros(design.shape[1])
    for _ in range(100):
        p = 1 / (1 + np.exp(-design @ beta))  # (links,)
        gradient = design.T @ (y - p) - penalty @ beta
        step = np.linalg.solve(design.T @ (design * (p * (1 - p) + 1e-9)[:, None]) + penalty, gradient)
        beta += step
        if np.abs(step).max() < 1e-9:
            break
    slopes = beta[1:] / spread
    return float(beta[0] - slopes @ centre), slopes.tolist()


@dataclass(frozen=True)
class Outcome:
    """A headline, and whether it is right. One about an ambiguous pronoun never is."""

    marked: Marked
    trace: Trace
    line: Headline
    family: str  # empty: nothing was measured of its head
    right: bool

    @property
    def ambiguous(self) -> bool:
        """Whether the headline is about a pronoun that may stand for two words."""
        return self.marked.word_of(self.trace.tokens[self.line.query]) in self.marked.ambiguous

    def __str__(self) -> str:
        query, key = (self.trace.tokens[i].text for i in (self.line.query, self.line.key))
        return f"{self.line.probability or 0:.3f} {f'{query} → {key}':24} {self.trace.text}"


def outcomes(cases: Sequence[Case], model: str, measured: Certainty) -> Iterator[Outcome]:
    """Yield the headline of each sentence under a measurement."""
    known = certainty.measured()
    before = known.get(model)
    known[model] = measured
    try:
        for marked, trace, _ in cases:
            line = headline(trace)
            assert line is not None
            of_role = Sentence(trace.tokens).family_of(line.role, line.query) if line.role else None
            family = of_role.name if of_role else ""
            yield Outcome(marked, trace, line, family, marked.holds(family, trace, line))
    finally:
        known[model] = before or certainty.UNMEASURED


def thresholds(judged: Sequence[Outcome], links: Sequence[FamilyLink]) -> dict[str, float]:
    """Return from which probability on a link of each family is sure: by headlines, or by all links if these are few."""
    sure_from = {}
    for family in FAMILIES:
        shown = [(o.line.probability or 0.0, o.right) for o in judged if o.family == family.name]
        every = [(probability, right) for name, probability, right in links if name == family.name]
        if len(every) >= FEWEST:
            sure_from[family.name] = _threshold(shown if len(shown) >= FEWEST else every)
    return sure_from


def _threshold(links: Sequence[tuple[float, bool]]) -> float:
    """Return the lowest probability from which on at most MOST_WRONG of the links are wrong, LEAST_SURE or more."""
    wrong, best = 0, 1.0
    ranked = sorted((link for link in links if link[0] >= LEAST_SURE), key=lambda link: -link[0])
    for count, (probability, right) in enumerate(ranked, 1):
        wrong += not right
        if wrong <= MOST_WRONG * count:
            best = probability
    return round(best - 5e-4, 3)


def interval(count: int, of: int) -> str:
    """Return a share with its 95 % interval (Wilson 1927)."""
    if not of:
        return "none"
    z, p = 1.96, count / of
    centre = (p + z * z / (2 * of)) / (1 + z * z / of)
    half = z / (1 + z * z / of) * math.sqrt(p * (1 - p) / of + z * z / (4 * of * of))
    return (
        f"{count} of {of} = {100 * p:.1f} % ({100 * max(centre - half, 0):.1f} to {100 * min(centre + half, 1):.1f} %)"
    )


def report(judged: Sequence[Outcome], title: str, show: bool) -> None:
    """Print how many headlines are sure, and how many of each kind are wrong."""
    sure = [outcome for outcome in judged if outcome.line.sure]
    unsure = [outcome for outcome in judged if not outcome.line.sure]
    ordinary = [outcome for outcome in judged if not outcome.marked.ambiguous]
    print(f"\n{title}")
    print("  sure, of ordinary sentences ", interval(sum(bool(o.line.sure) for o in ordinary), len(ordinary)))
    print("  wrong, of the sure          ", interval(sum(not o.right for o in sure), len(sure)))
    print("  wrong, of the unsure        ", interval(sum(not o.right for o in unsure), len(unsure)))
    print(
        "  right, or ambiguous and unsure",
        interval(sum(o.right or o.ambiguous and not o.line.sure for o in judged), len(judged)),
    )
    for name, some in (("sure and wrong", [o for o in sure if not o.right]), ("unsure", unsure)) if show else ():
        for outcome in some:
            print(f"    {name} {'+' if outcome.right else '-'}{'?' if outcome.ambiguous else ' '} {outcome}")


def judged_by_the_others(cases: Sequence[Case], model: str) -> tuple[list[Outcome], Certainty]:
    """Return the headline of each case under what the other folds fit, and the measurement of all of them."""
    folds = [cases[fold::FOLDS] for fold in range(FOLDS)]
    fits = [fit([case for other in folds if other is not fold for case in other]) for fold in folds]

    def judged(sure_from: Mapping[str, float]) -> list[Outcome]:
        pairs = zip(folds, fits, strict=True)
        return [o for fold, fitted in pairs for o in outcomes(fold, model, Certainty(fitted, sure_from))]

    links = [
        (
            link.family.name,
            Certainty(fitted).probability(link.family, link.evidence),
            marked.holds(link.family.name, trace, link),
        )
        for fold, fitted in zip(folds, fits, strict=True)
        for marked, trace, own_links in fold
        for link in own_links
    ]
    sure_from = thresholds(judged({"others": 0.0}), links)
    sure_from = thresholds(judged(sure_from), links)  # what is sure changes which link is shown
    right = {
        family.name: steps
        for family in FAMILIES
        if (steps := _shares_right([(probability, holds) for name, probability, holds in links if name == family.name]))
    }
    return judged(sure_from), Certainty(fit(cases), sure_from, right)


def _shares_right(links: Sequence[tuple[float, bool]]) -> list[tuple[float, float]]:
    """Return (probability, share): of the links up to it, down to the one before it, the share that is right."""
    shares, waiting = list[tuple[float, float]](), list[bool]()
    for start, end in zip((-1.0, *STEPS), STEPS, strict=False):
        waiting += [right for probability, right in links if start < probability <= end]
        if len(waiting) >= FEWEST_LINKS:
            shares.append((end, round(sum(waiting) / len(waiting), 3)))
            waiting = []
    if waiting and shares:
        shares[-1] = (1.0, shares[-1][1])
    return shares


def kinds_of(name: str) -> list[str]:
    """Return the kind of each sentence of a file; "" before its first line with a kind."""
    kinds, kind = list[str](), ""
    for line in (TRAINING / name).read_text(encoding="utf-8").splitlines():
        if line.startswith(KIND):
            kind = line.removeprefix(KIND)
        elif line and not line.startswith("#"):
            kinds.append(kind)
    return kinds


def report_kinds(judged: Sequence[Outcome], kinds: Sequence[str]) -> None:
    """Print how many headlines of each kind of sentence are sure, and wrong."""
    for kind in dict.fromkeys(kinds):
        some = [outcome for outcome, own in zip(judged, kinds, strict=True) if own == kind]
        sure = [outcome for outcome in some if outcome.line.sure]
        wrong = interval(sum(not o.right for o in sure), len(some))
        print(f"  {kind:30} sure {len(sure):3} of {len(some)}; sure and wrong {wrong}")


def main() -> None:
    """Fit, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write certainty.json")
    parser.add_argument("--show", action="store_true", help="print every headline that is unsure or wrong")
    parser.add_argument("--model", choices=MODELS, help="only this model, without writing")
    asked = parser.parse_args()
    document = {}
    for model in [asked.model] if asked.model else MODELS:
        cases = read_cases(FITTED, model, MOST_FITTED.get(model))
        judged, measured = judged_by_the_others(cases, model)
        report(judged, f"{model}, each tenth by the others: sure from {measured.sure_from}", asked.show)
        ordinary, constructions = UNSEEN
        report(list(outcomes(read_cases(ordinary, model), model, measured)), f"{model}, {ordinary}", asked.show)
        of_kinds = list(outcomes(read_cases(constructions, model), model, measured))
        report(of_kinds, f"{model}, {constructions}", asked.show)
        report_kinds(of_kinds, kinds_of(constructions))
        document[model] = asdict(measured)
    if asked.write and not asked.model:
        CERTAINTY.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"\nwritten: {CERTAINTY.name}", file=sys.stderr)


if __name__ == "__main__":
    main()
