"""The weights of a checkpoint that are larger than their position explains, and which of them tells most.

Every head gives some weight to some distances in all texts; positions.py knows how much. What is larger by a margin is of
this text. Most of it would still be of "the" and "to", so links between words with a meaning of their own come first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from attnctl.layer import LayerTrace
from attnctl.readings.questions.certainty import POSSESSIVES, Sentence
from attnctl.readings.questions.positions import FEWEST_ROWS, Positions, explained_by_the_text
from attnctl.readings.questions.word_classes import PRONOUN, word_set
from attnctl.text import percent
from attnctl.text.tokens import Token
from attnctl.trace import Headline, Trace, joined_word, word_groups

EQUAL_DIGITS = (
    6  # decimals: weights that differ by less count as equal, so that any processor chooses the first of them
)
MARGIN = 0.5  # a weight stands out if it is larger than what its position explains by this much
EXPLAINED = 0.25  # a weight at an offset of which the position explains more is the head's habit
COMMON = 0.3  # a key with a larger mean share of the other rows' attention says little about one of them
FEWEST_WORDS = 4  # in a shorter text every weight is large
UNEXPLAINED = "elsewhere this head gives {usual} to a word at this distance"
_REFERRING = POSSESSIVES | word_set("who whom which that")


class Standing(NamedTuple):
    """A link whose weight its position does not explain."""

    stands_out: bool  # by MARGIN
    tells: int  # -1 to 2, as `how_much_links_tell` says
    more: float  # the weight without what its position explains
    line: Headline

    @property
    def rank(self) -> tuple[bool, int, float]:
        """Return the rank among others: the largest is shown."""
        return self.stands_out, self.tells, round(self.more, EQUAL_DIGITS)


def standing_out(trace: Trace, places: Sequence[tuple[LayerTrace, int]], query: int | None) -> Standing | None:
    """Return the weight that tells most of those that are larger than their position explains; None if none stands out.

    A sink, a special token, a mark, the same word and another piece of the word do not count. Of links that tell as much, it
    is the one that exceeds the explained weight by the most. For a `query`, a smaller excess is an answer too.
    """
    groups = word_groups(trace.tokens, trace.text)
    word_of = np.zeros(len(trace.tokens), int)  # (n,)
    for number, pieces in enumerate(groups):
        word_of[list(pieces)] = number
    telling, tells = (
        _possible_links(trace, word_of),
        how_much_links_tell(trace, groups)[word_of[:, None], word_of],
    )  # (n, n)
    positions: Positions | None = None if trace.positions is None else trace.positions()
    links = [
        link
        for part, head in places
        if part.weights is not None and part.weights.shape[2] == len(trace.tokens)
        if (link := _of_head(part, head, telling, tells, query, positions)) is not None
    ]
    best = max(links, key=lambda link: link.rank, default=None)
    if best is None or query is None and telling.any(axis=0).sum() < FEWEST_WORDS - 1:
        return None
    return best if best.stands_out or query is not None and best.more > 0 else None


def _possible_links(trace: Trace, word_of: np.ndarray) -> np.ndarray:
    """Return which links can stand out → (n, n)."""
    spellings = np.array([token.text.strip().lower() for token in trace.tokens])
    is_word = np.array(
        [not t.special and any(map(str.isalnum, word)) for t, word in zip(trace.tokens, spellings, strict=True)]
    )
    possible: np.ndarray = is_word[:, None] & is_word[None, :]
    possible &= (spellings[:, None] != spellings[None, :]) & (word_of[:, None] != word_of[None, :])
    possible[:, 0] = False  # checkpoints park attention on their first token
    return possible


def how_much_links_tell(trace: Trace, groups: Sequence[Sequence[int]]) -> np.ndarray:
    """Return how much a link between two words tells → (words, words): -1 to 2; `groups` are the tokens of each word.

    2: two words with a meaning of their own and another word between them, or a pronoun ("it", "its", "who") and an earlier
    noun; 1: two words with a meaning of their own side by side; 0: a word like "the" or "to", or two words of one name;
    -1: a word of several tokens, of which a link has one alone.
    """
    sentence = Sentence([_spelled(trace, pieces) for pieces in groups])
    words = range(len(groups))
    full = np.array([sentence.has_meaning(i) for i in words])  # (words,)
    nouns = np.array([sentence.is_noun(i) for i in words])
    pronouns = np.array([sentence.classes[i] == {PRONOUN} or sentence.small[i] in _REFERRING for i in words])
    capitals = np.array([word[:1].isupper() for word in sentence.words])
    offset = np.arange(len(groups))[None, :] - np.arange(len(groups))[:, None]  # (words, words)
    neighbours = np.abs(offset) == 1
    tells = np.where(full[:, None] & full[None, :], np.where(neighbours, 1, 2), 0)
    tells[neighbours & capitals[:, None] & capitals[None, :]] = 0
    tells[(offset < 0) & pronouns[:, None] & nouns[None, :]] = 2
    whole = np.array([len(pieces) == 1 for pieces in groups])
    tells[~(whole[:, None] & whole[None, :])] = -1
    return tells


def _spelled(trace: Trace, pieces: Sequence[int]) -> Token:
    return Token(joined_word([trace.tokens[i] for i in pieces], trace.text).text.strip(), unknown=False)


def _of_head(
    part: LayerTrace,
    head: int,
    possible: np.ndarray,
    tells: np.ndarray,
    query: int | None,
    positions: Positions | None,
) -> Standing | None:
    """Return the link of one head that tells most; None for a head without the row of the query."""
    weights = part.head_weights(head).astype(np.float64)  # (rows, n)
    queries = list(range(len(weights)) if part.rows is None else part.rows)
    explained, is_known = _explained(part, head, weights, queries, positions)
    own = weights[np.arange(len(queries)), queries]
    shares = (weights.sum(axis=0) - np.bincount(queries, own, weights.shape[1])) / max(len(queries) - 1, 1)  # (n,)
    excess = np.where(possible[queries] & (shares <= COMMON) & (explained <= EXPLAINED), weights - explained, -1.0)
    excess[[i for i, token in enumerate(queries) if query not in (None, token)]] = -2.0
    order = excess.round(EQUAL_DIGITS) + 2.0 * np.where(excess >= MARGIN, tells[queries], 0)  # (rows, n)
    row, key = np.unravel_index(int(np.argmax(order)), order.shape)
    more = float(excess[row, key])
    if more <= -2:
        return None
    reason = UNEXPLAINED.format(usual=percent(float(explained[row, key])))
    line = Headline(part.layer, head, queries[row], int(key), float(weights[row, key]), reason=reason)
    stands_out = more >= MARGIN and is_known
    worth = int(tells[queries[row], key]) if stands_out else 0
    return Standing(stands_out, worth, more if is_known else more - 2, line)


def _explained(
    part: LayerTrace, head: int, weights: np.ndarray, queries: list[int], positions: Positions | None
) -> tuple[np.ndarray, bool]:
    """Return what the position explains of a head's weights (rows, n), and whether that is known."""
    if positions is not None:
        return positions.explained(part.layer, head, queries, weights.shape[1]), True
    if len(weights) == weights.shape[1] and len(weights) >= FEWEST_ROWS:
        return explained_by_the_text(weights), True
    return np.zeros(weights.shape), False
