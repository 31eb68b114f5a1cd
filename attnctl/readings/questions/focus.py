"""Where to look first: what each head was measured to find, and between which words of this text that holds.

A head that was measured to find something comes first, where one of its links is in this text: the antecedent of a pronoun,
then who does what to whom, then the other relations. Otherwise the link that stands out most: its weight less the mean
that the other rows give to that key, since a key at which every row looks tells nothing of this row. Links to the nearest
words count for less; a token's link to itself, to a special token, or to the first token of a checkpoint (where unused
attention is parked) is taken only where there is nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.resources import files
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from attnctl.layer import LayerTrace
from attnctl.readings.traces.trace import ModelInfo, Trace
from attnctl.text import plain_letters
from attnctl.tokens import Token

if TYPE_CHECKING:
    from attnctl.text import Document


EQUAL_DIGITS = 6  # after the point: links that differ by less are equal, on any processor, and the first is told
LEAST = 0.6  # of its held-out sentences that a head must be right on to bear the relation's name

PRONOUNS = frozenset(("it", "they", "he", "she", "him", "her", "them"))
_OF_PRONOUNS = ("it →", "pronoun →")


def measured_roles(figures: Document) -> tuple[tuple[int, int, str], ...] | None:
    """(layer, head, relation) of the figures in a weights file, the surest first; None where no head is sure.

    Raises KeyError, TypeError, ValueError where they are no figures.
    """
    known = [row for row in figures.values() if float(row["held_out"]) >= LEAST]
    sure = sorted(known, key=lambda row: -round(row["held_out"], 2))
    # of equals the one that was measured first, which is the simpler
    return tuple((int(row["layer"]), int(row["head"]), str(row["relation"])) for row in sure) or None


def roles_of_heads(info: ModelInfo) -> dict[tuple[int, int], tuple[str, ...]]:
    """(layer, head) → what it finds, the surest first."""
    found: dict[tuple[int, int], tuple[str, ...]] = {}
    for layer, head, relation in info.finds or ():
        found[layer, head] = (*found.get((layer, head), ()), relation)
    return found


def relation_of_pronoun(finds: Sequence[str], word: str) -> str:
    """Of the relations that a head was measured to find, the one that fits the pronoun `word`; empty where none does."""
    starts = _starts_for(word) if word.lower() in PRONOUNS else ()
    return next((relation for start in starts for relation in finds if relation.startswith(start)), "")


def _starts_for(pronoun: str) -> tuple[str, ...]:
    """How the names of the relations begin that ask what a pronoun stands for, the best fitting first."""
    return _OF_PRONOUNS if pronoun.lower() in ("it", "they") else _OF_PRONOUNS[::-1]


NOUN, VERB, ADJECTIVE, DETERMINER, PREPOSITION, PRONOUN = (
    "noun", "verb", "adjective", "determiner", "preposition", "pronoun",
)  # fmt: skip

# of the kinds in the list of words
_CLASSES = dict.fromkeys(("noun", "nouns", "mass", "name"), NOUN) | {"adjective": ADJECTIVE}
_CLASSES |= dict.fromkeys(("base", "third", "past", "ing", "participle"), VERB)

# the words that stand in no list, since there are few
_FUNCTION_WORDS = {
    DETERMINER: "the a an this that these those my your his her its our their some every each no any",
    PREPOSITION: "in on at to of with from for by under over behind near into about after before between without",
    PRONOUN: "i you he she it we they me him her us them who",
    VERB: "is are was were am be been",
    "other": "will would can could may might must shall should do does did has have had not and or but because if when "
    "than as so too very what which whom whose how why where",
}
_CLASSES_OF_FUNCTION_WORDS = {
    word: frozenset(kind for kind, words in _FUNCTION_WORDS.items() if word in words.split())
    for line in _FUNCTION_WORDS.values()
    for word in line.split()
}

# the beginning of a relation's name → classes that its query may have, and its key; and whether the key stands before,
# after, or on either side
_ENDS = {
    "verb →": ((VERB,), (NOUN, PRONOUN), (-1,)),
    "object →": ((NOUN, PRONOUN), (VERB,), (-1,)),
    "adjective →": ((ADJECTIVE,), (NOUN,), (-1, 1)),
    "determiner →": ((DETERMINER,), (NOUN,), (1,)),
    "preposition →": ((PREPOSITION,), (NOUN, VERB), (-1,)),
}


@cache
def word_classes(word: str) -> frozenset[str]:
    """The classes that a word may have; a capital makes a name of a word that no list holds, other such words have none."""
    folded = word.lower()
    if folded in _CLASSES_OF_FUNCTION_WORDS:
        return _CLASSES_OF_FUNCTION_WORDS[folded]
    return _listed_classes(word) | _listed_classes(folded) or frozenset([NOUN] if word[:1].isupper() else ())


@cache
def usual_gender(name: str) -> str | None:
    """The gender of most who have this name: f, m, x for either; None where the list of names does not hold it."""
    gender = _kinds_and_gender(plain_letters(name))[1]
    return gender if gender in ("f", "m", "x") else None


def other_name(tokens: Sequence[Token], pronoun: int, key: int) -> str | None:
    """Of the names before a pronoun he, him, she or her, one that it may stand for as well as for the name at `key`.

    None where there is none, or no name at `key`: then the usual genders of the names tell which is meant.
    """
    gender = _GENDERS.get(tokens[pronoun].text.lower())
    names = {at: tokens[at].text for at in {*range(pronoun), key} if _is_name(tokens, at)}
    if gender is None or key not in names:
        return None
    fitting = [name for name in dict.fromkeys(names.values()) if usual_gender(name) in (gender, "x", None)]
    others = [name for name in fitting if name != names[key]]
    return others[0] if others and (names[key] in fitting or len(others) > 1) else None


_GENDERS = {"he": "m", "him": "m", "she": "f", "her": "f"}


def _is_name(tokens: Sequence[Token], at: int) -> bool:
    """Whether a token is a name of the list, or a word with a capital that no list of words holds."""
    word = tokens[at].text
    if usual_gender(word) is not None:
        return word[:1].isupper()
    return word[:1].isupper() and not _listed_classes(word.lower()) and word_classes(word) == {NOUN}


def may_relate(relation: str, words: Sequence[str], query: int, key: int) -> bool:
    """Whether a relation of this name can hold from one word to another, by their classes and order; no for other kinds.

    What stands in a phrase behind a preposition is no verb's subject.
    """
    ends = next((ends for start, ends in _ENDS.items() if relation.startswith(start)), None)
    if ends is None or (1 if key > query else -1) not in ends[2]:
        return False
    if relation.startswith("verb →") and _behind_preposition(words, key):
        return False
    return bool(word_classes(words[query]) & {*ends[0]} and word_classes(words[key]) & {*ends[1]})


def _behind_preposition(words: Sequence[str], noun: int) -> bool:
    """Whether a preposition stands before the noun with nothing but determiners and adjectives between."""
    before = noun - 1
    while before >= 0 and word_classes(words[before]) & {DETERMINER, ADJECTIVE}:
        before -= 1
    return before >= 0 and PREPOSITION in word_classes(words[before])


def may_stand_for(tokens: Sequence[Token], pronoun: int, key: int) -> bool:
    """Whether a pronoun may stand for what is at `key`: elsewhere, and a noun, a pronoun, or a word of no known class."""
    word = tokens[key].text
    classes = word_classes(word)
    return pronoun != key and (bool(classes & {NOUN, PRONOUN}) or not classes and any(map(str.isalpha, word)))


@cache
def _list_of_words() -> str:
    return files("attnctl.training").joinpath("words.tsv").read_text(encoding="utf-8")


def _kinds_and_gender(word: str) -> tuple[str, str]:
    """What the list says of a word, nothing where it lacks it; found by search: reading every line takes longer."""
    text = _list_of_words()
    at = text.find(f"\n{word}\t")
    _, kinds, gender, *_ = text[at + 1 : text.find("\n", at + 1)].split("\t") if at >= 0 else ("", "", "")
    return kinds, gender


def _listed_classes(word: str) -> frozenset[str]:
    """The classes that the list gives a word."""
    return frozenset(_CLASSES[kind] for kind in _kinds_and_gender(word)[0].split() if kind in _CLASSES)


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
    if heads is None and trace.model.finds and trace.reads_itself:
        known = _of_pronoun(trace, query) or _of_relation(trace, query, "verb") or _of_relation(trace, query, "")
        if known is not None:  # it stands out
            return known
    rank, best = max(_links(trace, None, heads, query), key=itemgetter(0), default=(0.0, None))
    if best is None or not any(part.weights is not None and part.weights.any() for part in trace.layers):
        return best
    return replace(best, reason=OUTSTANDING if rank > -1 else LARGEST)


WALKED_LAYERS = 2  # as many as are walked through when none are named


def walked_heads(
    trace: Trace, any_layer: bool, any_head: bool, heads: Sequence[int] | None, queries: Sequence[int | None]
) -> tuple[Trace, list[Focus], dict[int, tuple[int, ...]]]:
    """The layers to walk through, each query's focus, and layer → heads: those asked for, else the most telling ones."""
    only = trace.layers[0].layer if len(trace.layers) == 1 else None
    focuses = [found for at in queries if (found := focus(trace, layer=only, head=heads, query=at)) is not None]
    if any_layer and focuses and len(trace.layers) > WALKED_LAYERS:
        trace = replace(trace, layers=tuple(trace.layer(at) for at in sorted({found.layer for found in focuses})))
    shown: dict[int, tuple[int, ...]] = {}
    for part in trace.layers:
        if not any_head:
            shown[part.layer] = part.heads if heads is None else tuple(heads)
        elif here := tuple(sorted({found.head for found in focuses if found.layer == part.layer})):
            shown[part.layer] = here
        else:
            own = focus(trace, layer=part.layer, query=focuses[0].query if focuses else None)
            shown[part.layer] = (own.head,) if own else part.heads[:1]
    return trace, focuses, shown


def _largest_of_row(part: LayerTrace, head: int, query: int) -> Focus | None:
    """The largest weight of a row that was asked for; None where the layer has no such row."""
    rows = () if part.weights is None or head not in part.heads else part.rows or range(part.weights.shape[1])
    if query not in rows:
        return None
    row = part.head_weights(head)[rows.index(query)]  # (n_k,)
    key = int(np.argmax(row.round(EQUAL_DIGITS)))
    return Focus(part.layer, head, query, key, float(row[key]))


def _of_pronoun(trace: Trace, query: int | None) -> Focus | None:
    """What the head that finds what a pronoun stands for finds of the one at `query`, or where that is None of the last.

    None where there is no such head or pronoun, or the head looks most at the pronoun itself, or at a word that is neither
    noun nor pronoun: it found none.
    """
    places = range(2, len(trace.tokens)) if query is None else [query]
    said = [at for at in places if at > 1 and trace.tokens[at].text.lower() in PRONOUNS]
    if not said:
        return None
    word, known = trace.tokens[said[-1]].text, roles_of_heads(trace.model)
    layer, head = next(
        (
            at
            for start in _starts_for(word)
            for at, finds in known.items()
            if any(one.startswith(start) for one in finds)
        ),
        (None, -1),
    )
    part = next((part for part in trace.layers if part.layer == layer and part.rows is None), None)
    found = None if part is None else _largest_of_row(part, head, said[-1])
    if found is None or not may_stand_for(trace.tokens, found.query, found.key):
        return None
    relation = relation_of_pronoun(known[found.layer, head], word)
    return replace(found, reason=f"the head was measured to find {relation}")


def _of_relation(trace: Trace, query: int | None, about: str) -> Focus | None:
    """The link that stands out most among those of heads measured to find a relation with `about` in its name.

    One of which its head is sure comes before any other.
    """
    words = [token.text for token in trace.tokens]
    found = [
        (link.weight > SURE, rank, replace(link, reason=MEASURED.format(relation=relation)))
        for (layer, head), relations in roles_of_heads(trace.model).items()
        for relation in relations
        if about in relation
        for rank, link in _links(trace, layer, (head,), query, partial(may_relate, relation, words))
        if rank >= STANDS_OUT
    ]
    return max(found, key=itemgetter(0, 1))[2] if found else None


# --- links of heads ----------------------------------------------------------------------------------------------


def _links(
    trace: Trace,
    layer: int | None,
    heads: Collection[int] | None,
    query: int | None,
    fits: Callable[[int, int], bool] | None = None,
) -> Iterator[tuple[float, Focus]]:
    """Of each chosen head how much the link that ranks highest stands out, and the link.

    Of those that `fits` lets through (query, key); no link where `query` is not among the layer's rows, or nothing fits.
    """
    for part in trace.layers:
        if part.weights is None or layer not in (None, part.layer):
            continue
        for at, number in enumerate(part.heads):
            if (heads is None or number in heads) and (link := _strongest(trace, part, at, query, fits)) is not None:
                yield link


def _strongest(
    trace: Trace, layer: LayerTrace, at: int, query: int | None, fits: Callable[[int, int], bool] | None
) -> tuple[float, Focus] | None:
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
    return float(rank[index, key]), Focus(layer.layer, layer.heads[at], i, key, weight)


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
    return rank.round(EQUAL_DIGITS)
