"""The documents of a prompt in several orders: what each does for the answer on average, and what its place does.

A model may use a document for where it stands. With the documents moved, means over the orders tell the document from the
place: a place's bias is what the documents have there beyond their own means.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attnctl.errors import UsageError
from attnctl.readings.effects.answer_sources import AnswerSources, PartSource, PromptPart
from attnctl.readings.spans import Span, begins_document

TRIED_ORDERS = 60  # draws of an order, of which that is taken whose documents stand at new places


@dataclass(frozen=True)
class OrderedPrompt:
    """A prompt with its documents in an order; `owners` is, for each part by its place, the part of the given prompt."""

    text: str
    spans: tuple[Span, ...]
    owners: tuple[int, ...]


@dataclass(frozen=True)
class OrderSources:
    """Where the answer came from with the documents in one order."""

    owners: tuple[int, ...]
    sources: AnswerSources

    def by_owner(self) -> dict[int, PartSource]:
        """What is known of each part of the given prompt, by its place there."""
        ordered = sorted(self.sources.parts, key=lambda one: one.part.start)
        return dict(zip(self.owners, ordered, strict=True))


@dataclass(frozen=True)
class DocumentMean:
    """A document over the orders: mean and standard deviation; `matters` is of the orders in which it was measured alone."""

    name: str
    looks: float
    looks_deviation: float
    matters: float | None
    matters_deviation: float | None
    orders: int  # in which it was measured alone


@dataclass(frozen=True)
class PlaceMean:
    """A place among the documents, from 0, over the orders: means, and how far they lie from the documents' own means."""

    place: int
    looks: float
    looks_bias: float
    matters: float | None
    matters_bias: float | None
    orders: int


@dataclass(frozen=True)
class DocumentOrders:
    """The same answer with the documents in several orders, the first as given. `documents` are their places as parts."""

    documents: tuple[int, ...]
    orders: tuple[OrderSources, ...]
    seed: int

    def document_means(self) -> tuple[DocumentMean, ...]:
        """Each document, what matters most first; those never measured alone last."""
        found = [self._document_mean(document) for document in self.documents]
        return tuple(sorted(found, key=lambda one: math.inf if one.matters is None else -abs(one.matters)))

    def place_means(self) -> tuple[PlaceMean, ...]:
        """Each place among the documents, in order."""
        return tuple(self._place_mean(place) for place in range(len(self.documents)))

    def firsts(self) -> dict[str, int]:
        """Of each document, in how many orders it matters most, where that is any."""
        counts: dict[str, int] = {}
        for order in self.orders:
            alone = [one for owner, one in order.by_owner().items() if owner in self.documents and one.alone]
            if alone:
                name = min(alone, key=lambda one: one.matters).part.name
                counts[name] = counts.get(name, 0) + 1
        return dict(sorted(counts.items(), key=lambda item: -item[1]))

    def _document_mean(self, document: int) -> DocumentMean:
        own = [order.by_owner()[document] for order in self.orders]
        looks, matters = _values_of(own)
        mean, deviation = (_mean(matters), _deviation(matters)) if matters else (None, None)
        return DocumentMean(own[0].part.name, _mean(looks), _deviation(looks), mean, deviation, len(matters))

    def _place_mean(self, place: int) -> PlaceMean:
        at = self.documents[place]
        there = [(order.owners[at], order.by_owner()[order.owners[at]]) for order in self.orders]
        looks, matters = _values_of([one for _, one in there])
        means = {document: self._document_mean(document) for document in {owner for owner, _ in there}}
        looks_bias = [one.looks - means[owner].looks for owner, one in there]
        bias = [one.matters - (means[owner].matters or 0.0) for owner, one in there if one.alone]
        mean, own = (_mean(matters), _mean(bias)) if matters else (None, None)
        return PlaceMean(place, _mean(looks), _mean(looks_bias), mean, own, len(matters))


def _values_of(parts: Sequence[PartSource]) -> tuple[list[float], list[float]]:
    """What is looked at, and what matters of those measured alone."""
    return [one.looks for one in parts], [one.matters for one in parts if one.alone]


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def _deviation(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


# --- orders ------------------------------------------------------------------------------------------------------


def movable_documents(text: str, parts: Sequence[PromptPart]) -> tuple[int, ...]:
    """The parts that are documents by their markers and stand side by side, the longest such row of them.

    `parts` are in the order of the text. Raises UsageError where there are fewer than two.
    """
    rows: list[list[int]] = []
    for at, part in enumerate(parts):
        if not begins_document(text[part.start : part.end]):
            continue
        beside = rows and rows[-1][-1] == at - 1 and not text[parts[at - 1].end : part.start].strip()
        rows[-1].append(at) if beside else rows.append([at])
    longest = max(rows, key=len, default=[])
    if len(longest) < 2:
        raise UsageError(
            "--permute needs two documents side by side, each beginning with a line [name] or <document>: "
            f"this prompt has {'none' if not longest else 'one'}"
        )
    return tuple(longest)


def drawn_orders(count: int, orders: int, seed: int) -> list[tuple[int, ...]]:
    """So many different orders of `count` documents, the given one first, the same for the same seed.

    Of several that are drawn that one is taken in which fewest documents stand where they stood before. Raises UsageError
    where there are not so many orders.
    """
    if count < 12 and orders > math.factorial(count):
        raise UsageError(f"--permute {orders}: {count} documents have {math.factorial(count)} orders")
    rng, found = random.Random(seed), [tuple(range(count))]
    stood = {(place, place) for place in range(count)}
    while len(found) < orders:
        drawn = {tuple(rng.sample(range(count), count)) for _ in range(TRIED_ORDERS)} - set(found)
        if not drawn:
            continue
        best = min(sorted(drawn), key=lambda order: sum(pair in stood for pair in enumerate(order)))
        found.append(best)
        stood |= set(enumerate(best))
    return found


def prompt_in_order(
    text: str, parts: Sequence[PromptPart], documents: Sequence[int], order: Sequence[int]
) -> OrderedPrompt:
    """The prompt with document `order[place]` at each place; what stands between documents stays where it is."""
    if list(order) == list(range(len(documents))):
        return OrderedPrompt(text, tuple((p.name, p.start, p.end) for p in parts), tuple(range(len(parts))))
    said = [text[part.start : part.end] for part in parts]
    bodies = [whole.rstrip() for whole in said]
    owners = list(range(len(parts)))
    for place, document in enumerate(order):
        owners[documents[place]] = documents[document]
    spans: list[Span] = []
    built, before = "", 0
    for at, part in enumerate(parts):
        built += text[before : part.start]
        start = len(built)
        built += bodies[owners[at]] + said[at][len(bodies[at]) :]
        spans.append((parts[owners[at]].name, start, len(built)))
        before = part.end
    return OrderedPrompt(built + text[before:], tuple(spans), tuple(owners))
