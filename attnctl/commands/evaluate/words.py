"""Find the words of a parsed sentence among a model's tokens, and the questions that heads are asked about them."""

from __future__ import annotations

import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from attnctl.attention import Array
from attnctl.formats import BadSentenceError, ParsedSentence
from attnctl.text import visible_text
from attnctl.text.tokens import Token

HALF = "census"  # the comment that names the half of a sentence
HALVES = ("choose", "score")  # the best head is chosen on the first, and scored on the second
UP, DOWN = "dependent→head", "head→dependent"
TO_ANTECEDENT = "mention→antecedent"
COREFERENCE = "coreference"
# the kinds of mentions of Clark et al. (2019), by the tag of the head; other mentions are nominal
MENTION_KINDS = {"PRON": "pronoun", "DET": "pronoun", "PROPN": "proper"}
FARTHEST = 5  # words: fixed offsets go from -5 to 5
SIDES = ("before", "behind", "either")  # sides on which a rule looks for the nearest word of a tag


class TreeQuestion(NamedTuple):
    """One case: from the word `query` a head should look at the word `target`; with the answers of simple rules."""

    relation: str
    direction: str
    query: int
    target: int
    tag: str  # tag of the target
    nearest: tuple[bool, bool, bool]  # whether the target is the nearest word of that tag, on each of SIDES
    first: bool  # whether it is the first word
    choices: tuple[int, ...] = ()  # for coreference: the words to choose from
    right: tuple[int, ...] = ()  # for coreference: the choices that are right
    # for coreference: whether the nearest mention with the same head word (without one, the nearest mention) is right
    head_match: bool = False


@dataclass(frozen=True, eq=False)
class AlignedSentence:
    """A sentence as a model reads it. Words that share a token cannot be told apart, and form one unit."""

    tokens: tuple[Token, ...]
    pool: Array  # (n, units) bool: whether a token is part of a unit
    questions: tuple[TreeQuestion, ...]
    edges: Array  # (units, units) bool: undirected edges of the tree, without punctuation
    is_word: Array  # (units,) bool: whether a unit is more than punctuation
    linked: Array  # (units, units) bool: dependencies in both directions
    within: int  # dependencies between two words of one unit
    scored: int  # half: 0 to choose heads on, 1 to score them on
    ahead: tuple[tuple[str, str], ...] = ()  # relation and direction of pairs that no head of a causal model can see

    @property
    def unit_count(self) -> int:
        """Return the number of units."""
        return int(self.pool.shape[1])


def align_words(
    sentence: ParsedSentence, tokens: Sequence[Token], renamed: dict[str, str] | None = None, causal: bool = False
) -> AlignedSentence:
    """Return the sentence with its words among the tokens, matched by characters.

    `renamed` gives relations new names; "" leaves a relation out. For a causal model, pairs whose word stands ahead are in
    `ahead` and not among the questions: no head can answer them, and only the rules would gain. Raises BadSentenceError if
    a word has no token.
    """
    unit_of, pool = _word_units(sentence, tokens)
    units = pool.shape[1]
    names = sentence.relations if renamed is None else tuple(renamed.get(r, r) for r in sentence.relations)
    punctuation = [
        tag == "PUNCT" or relation.partition(":")[0] == "punct"
        for tag, relation in zip(sentence.tags, sentence.relations, strict=True)
    ]
    is_word = np.zeros(units, bool)  # (units,)
    is_word[[unit for unit, sign in zip(unit_of, punctuation, strict=True) if not sign]] = True
    edges, linked = np.zeros((2, units, units), bool)  # (units, units)
    pairs = []
    within = 0
    for word, (head, name) in enumerate(zip(sentence.heads, names, strict=True)):
        if head < 0 or not name:
            continue
        first, second = unit_of[word], unit_of[head]
        if first == second:
            within += 1
            continue
        linked[first, second] = linked[second, first] = True
        if not punctuation[word] and is_word[first] and is_word[second]:
            edges[first, second] = edges[second, first] = True
        pairs.append((name, word, head))
    all_questions = _dependency_questions(sentence, pairs, unit_of)
    ahead = tuple((first.relation, first.direction) for first in all_questions if causal and first.target > first.query)
    visible = [first for first in all_questions if not causal or first.target < first.query]
    questions = (*visible, *_coreference_questions(sentence, unit_of))
    # a sentence that does not name its half gets one by a hash of its text
    half = HALVES.index(sentence.half) if sentence.half in HALVES else zlib.crc32(sentence.text.encode()) & 1
    return AlignedSentence(tuple(tokens), pool, questions, edges, is_word, linked, within, half, ahead)


def _word_units(sentence: ParsedSentence, tokens: Sequence[Token]) -> tuple[list[int], Array]:
    """Return each word's unit, and the tokens of each unit (n, units)."""
    spans, text = sentence.spans, sentence.text
    touching = [_words_under(spans, *_trimmed_span(text, token)) for token in tokens]
    for index in range(len(tokens) - 2, -1, -1):
        token, following = tokens[index], tokens[index + 1]
        if not touching[index] and not token.special and token.word is not None and token.word == following.word:
            touching[index] = touching[index + 1][:1]  # a lone space marker belongs to the word behind it
    begins = np.ones(len(spans), bool)  # (words,)
    has_token = np.zeros(len(spans), bool)  # (words,)
    for under in touching:
        has_token[under.start : under.stop] = True
        begins[under.start + 1 : under.stop] = False
    for word in range(1, len(spans)):
        if spans[word] == spans[word - 1]:  # both are in one multi-word token
            begins[word] = False
    unit_of = (np.cumsum(begins) - 1).tolist()
    pool = np.zeros((len(tokens), unit_of[-1] + 1), bool)  # (n, units)
    for index, under in enumerate(touching):
        if under:
            pool[index, unit_of[under.start]] = True
    if not pool.any(0).all() or not has_token.all():
        word = int(np.flatnonzero(~has_token)[0]) if not has_token.all() else 0
        raise BadSentenceError(f"not aligned: the model has no token for {visible_text(sentence.forms[word])!r}")
    return unit_of, pool


def _trimmed_span(text: str, token: Token) -> tuple[int, int]:
    """Return the characters of a token without the white space around them; (0, 0) for a special token."""
    start, end = token.start, token.end
    if token.special or start is None or end is None:
        return 0, 0
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    return (start, end) if start < end else (0, 0)


def _words_under(spans: Sequence[tuple[int, int]], start: int, end: int) -> range:
    """Return the words that share a character with [start, end); `spans` ascend."""
    if start == end:
        return range(0)
    first = bisect_right(spans, start, key=lambda span: span[1])
    return range(first, max(first, bisect_left(spans, end, key=lambda span: span[0])))


def _dependency_questions(
    sentence: ParsedSentence, pairs: Sequence[tuple[str, int, int]], unit_of: Sequence[int]
) -> list[TreeQuestion]:
    """Return the questions of both directions of each dependency between two units."""
    units_of: dict[str, list[int]] = {}  # the units of each tag, ascending
    for tag, unit in zip(sentence.tags, unit_of, strict=True):
        units = units_of.setdefault(tag, [])
        if not units or units[-1] != unit:
            units.append(unit)
    questions = []
    for name, word, head in pairs:
        for direction, asks, answers in ((UP, word, head), (DOWN, head, word)):
            query, target, tag = unit_of[asks], unit_of[answers], sentence.tags[answers]
            nearest = _is_nearest(target, units_of[tag], query)
            questions.append(TreeQuestion(name, direction, query, target, tag, nearest, target == 0))
    return questions


def _is_nearest(target: int, units: Sequence[int], query: int) -> tuple[bool, bool, bool]:
    """Return whether `target` is the nearest of `units` before `query`, behind it, and on either side (ties: before)."""
    start, end = bisect_left(units, query), bisect_right(units, query)
    before = units[start - 1] if start else -1
    behind = units[end] if end < len(units) else -1
    nearer = before if behind < 0 or (before >= 0 and query - before <= behind - query) else behind
    return before == target, behind == target, nearer == target


def _coreference_questions(sentence: ParsedSentence, unit_of: Sequence[int]) -> list[TreeQuestion]:
    """Return a question for each mention whose entity was mentioned before: does it look at such a mention's head?"""
    questions = []
    heads = [(unit_of[m.head], m.entity, sentence.forms[m.head].casefold(), m.head) for m in sentence.mentions]
    for index, (query, entity, form, word) in enumerate(heads):
        earlier = [mention for mention in heads[:index] if mention[0] < query]
        right = {unit for unit, earlier_value, *_ in earlier if earlier_value == entity}
        if not right:
            continue
        choices = sorted({unit for unit, *_ in earlier})
        nearest = choices[-1]
        same = [unit for unit, _, earlier_value, _ in earlier if earlier_value == form]
        questions.append(
            TreeQuestion(
                f"{COREFERENCE}:{MENTION_KINDS.get(sentence.tags[word], 'nominal')}",
                TO_ANTECEDENT,
                query,
                max(right),
                sentence.tags[word],
                (nearest in right, False, nearest in right),
                choices[0] in right,
                tuple(choices),
                tuple(sorted(right)),
                (max(same) if same else nearest) in right,
            )
        )
    return questions
