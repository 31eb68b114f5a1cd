"""The layer, head, query and key that a walk, a page or a quiz opens on where none is asked for, by one rule.

A head that was measured to find something comes first, where one of its links is in this text: the antecedent of a pronoun,
then who does what to whom, then the other relations. Otherwise the link that stands out most: its weight less the mean
that the other rows give to that key, since a key at which every row looks tells nothing of this row. Links to the nearest
words count for less; a token's link to itself, to a special token, or to the first token of a checkpoint (where unused
attention is parked) is taken only where there is nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from attnctl.readings.questions.roles import (
    may_relate,
    may_stand_for,
    of_pronoun,
    relation_of_pronoun,
    roles_of_heads,
)
from attnctl.readings.traces.trace import LayerTrace, Trace

STANDS_OUT = 0.15  # more of its attention than other rows give the key: less, and a head's relation is not seen here
SURE = 0.5  # of its attention: a head that gives a key less is not sure of it
DEMOTED = 2.0  # more than any two links differ by: what is demoted comes after all that is not

MEASURED = "the head was measured to find {relation}, and here it does most clearly"
OUTSTANDING = "no other link stands out so much from what other tokens give the same key"
LARGEST = "the largest weight, as no link between two words stands out"


@dataclass(frozen=True)
class Focus:
    """The layer, head and query token that a walk looks at most closely, and the key its attention goes to.

    `reason` says in a clause why this one; it is empty where layer, head and query were all asked for.
    """

    layer: int
    head: int
    query: int
    key: int
    weight: float
    reason: str = ""


@dataclass(frozen=True)
class _Link:
    """A link of one head, and by how much it stands out from its column."""

    layer: int
    head: int
    query: int
    key: int
    weight: float
    rank: float

    def focus(self, reason: str) -> Focus:
        return Focus(self.layer, self.head, self.query, self.key, self.weight, reason)


def focus(
    trace: Trace, layer: int | None = None, head: int | Collection[int] | None = None, query: int | None = None
) -> Focus | None:
    """The most telling place of a trace, within what is already chosen; None where there are no weights."""
    heads = None if head is None else (head,) if isinstance(head, int) else tuple(head)
    if query is not None and len(trace.layers) == 1 and len(trace.layers[0].heads) == 1:  # there is no choice left
        layer, heads = trace.layers[0].layer, trace.layers[0].heads
    head = heads[0] if heads is not None and len(heads) == 1 else None
    if layer is not None and head is not None and query is not None:
        return _largest_of_row(trace.layer(layer), head, query)
    if layer is not None:
        trace = replace(trace, layers=tuple(part for part in trace.layers if part.layer == layer))
    if heads is None and (known := _of_measured_heads(trace, query)) is not None:
        return known
    best = max(_links(trace, None, heads, query), key=lambda link: link.rank, default=None)
    if best is None:
        return None
    if not any(part.weights is not None and part.weights.any() for part in trace.layers):
        return best.focus("")
    return best.focus(OUTSTANDING if best.rank > -1 else LARGEST)


def _largest_of_row(part: LayerTrace, head: int, query: int) -> Focus | None:
    """The largest weight of a row that was asked for; None where the layer has no such row."""
    rows = () if part.weights is None or head not in part.heads else part.rows or range(part.weights.shape[1])
    if query not in rows:
        return None
    row = part.head_weights(head)[rows.index(query)]  # (n_k,)
    key = int(np.argmax(row))
    return Focus(part.layer, head, query, key, float(row[key]))


def _of_measured_heads(trace: Trace, query: int | None) -> Focus | None:
    """What a head that was measured to find a relation finds in this text; None where no such link stands out."""
    found = roles_of_heads(trace.model)
    if not found or not trace.reads_itself:
        return None
    return _of_pronoun(trace, query) or _of_relation(trace, query, "verb") or _of_relation(trace, query, "")


def _of_relation(trace: Trace, query: int | None, about: str) -> Focus | None:
    """The link that stands out most among those of heads measured to find a relation with `about` in its name.

    One of which its head is sure comes before any other.
    """
    words = [token.text for token in trace.tokens]
    best: tuple[_Link, str] | None = None
    for (layer, head), relations in roles_of_heads(trace.model).items():
        for relation in relations:
            if about not in relation:
                continue

            for link in _links(trace, layer, (head,), query, partial(may_relate, relation, words)):
                if link.rank >= STANDS_OUT and (best is None or _surer(link) > _surer(best[0])):
                    best = link, relation
    return None if best is None else best[0].focus(MEASURED.format(relation=best[1]))


def _surer(link: _Link) -> tuple[bool, float]:
    return link.weight > SURE, link.rank


def _of_pronoun(trace: Trace, query: int | None) -> Focus | None:
    """What a pronoun's own head finds, where the model is known to have one, and the text a pronoun.

    None where the head looks most at the pronoun itself, or at a word that is neither noun nor pronoun: it found none.
    """
    asked = of_pronoun(trace.model, trace.tokens, query)
    part = next((part for part in trace.layers if asked and part.layer == asked[0]), None)
    if asked is None or part is None or part.weights is None or asked[1] not in part.heads or part.rows is not None:
        return None
    row = part.weights[part.position_of(asked[1]), asked[2]]  # (n_k,)
    key = int(np.argmax(row))
    if not may_stand_for(trace.tokens, asked[2], key):
        return None
    relation = relation_of_pronoun(roles_of_heads(trace.model)[asked[:2]], trace.tokens[asked[2]].text)
    return Focus(*asked, key, float(row[key]), f"the head was measured to find {relation}")


# --- links of heads ----------------------------------------------------------------------------------------------


def _links(
    trace: Trace,
    layer: int | None,
    heads: Collection[int] | None,
    query: int | None,
    fits: Callable[[int, int], bool] | None = None,
) -> Iterator[_Link]:
    """Of each chosen head the link that ranks highest, among those that `fits` lets through (query, key)."""
    for part in trace.layers:
        if part.weights is None or layer not in (None, part.layer):
            continue
        for at, number in enumerate(part.heads):
            if heads is None or number in heads:
                link = _strongest(trace, part, at, query, fits)
                if link is not None:
                    yield link


def _strongest(
    trace: Trace, layer: LayerTrace, at: int, query: int | None, fits: Callable[[int, int], bool] | None
) -> _Link | None:
    """The link of one head that ranks highest; None where `query` is not among the layer's rows, or nothing fits."""
    assert layer.weights is not None
    every = list(range(layer.weights.shape[1]) if layer.rows is None else layer.rows)
    asked = [row for row, i in enumerate(every) if query in (None, i)]
    if not asked:
        return None
    rank = link_ranks(trace, layer, at, every)[asked]  # (asked, n_k)
    if fits is not None:
        others = np.where(np.arange(rank.shape[1]) == np.take(every, asked)[:, None], -1, layer.weights[at][asked])
        finds = np.argmax(others, axis=1)  # (asked,): a head finds what it looks at most, itself left out
        for index, key in np.argwhere(rank >= STANDS_OUT).tolist():
            if not fits(every[asked[index]], key) or key != finds[index]:
                rank[index, key] = -np.inf
    index, key = (int(part) for part in np.unravel_index(int(np.argmax(rank)), rank.shape))
    if np.isneginf(rank[index, key]):
        return None
    i, weight = every[asked[index]], float(layer.weights[at, asked[index], key])
    return _Link(layer.layer, layer.heads[at], i, key, weight, float(rank[index, key]))


def link_ranks(trace: Trace, layer: LayerTrace, at: int, queries: list[int]) -> npt.NDArray[np.float64]:
    """How much each link of a head stands out: its weight less the mean of its column's other rows, discounted."""
    assert layer.weights is not None
    weights = layer.weights[at].astype(np.float64)  # (rows, n_k)
    visible = np.ones(weights.shape, dtype=bool) if layer.mask is None else layer.mask  # (rows, n_k)
    others = np.maximum(visible.sum(axis=0) - 1, 1)  # (n_k,)
    rank: npt.NDArray[np.float64] = weights - (weights.sum(axis=0) - weights) / others  # (rows, n_k)
    n_k = weights.shape[1]
    if trace.reads_itself:
        apart = np.abs(np.arange(n_k) - np.asarray(queries)[:, None])  # (rows, n_k)
        rank = rank * np.where(rank > 0, 1 - 0.5 ** np.maximum(apart, 1), 1.0)  # (rows, n_k)
        rank[apart == 0] = weights[apart == 0] - 2 * DEMOTED
    few = visible.sum(axis=1) < min(3, n_k)  # (rows,)
    special = np.array([trace.tokens[i].special for i in queries], dtype=bool)  # (rows,)
    rank[few | special] -= DEMOTED
    parked = trace.model.kind == "checkpoint"
    rank[:, [j for j, t in enumerate(trace.key_axis) if t.special or (j == 0 and parked)]] -= DEMOTED
    rank[~visible] = -np.inf
    return rank
