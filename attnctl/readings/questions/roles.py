"""What each head of a model was measured to find, as its weights file says, and between which words that can hold."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from attnctl.readings.traces.trace import ModelInfo
from attnctl.text import plain_letters
from attnctl.tokens import Token

if TYPE_CHECKING:
    from attnctl.text import Document


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


def of_pronoun(info: ModelInfo, tokens: Sequence[Token], query: int | None = None) -> tuple[int, int, int] | None:
    """(layer, head, query) of the head that finds what a pronoun stands for; None where there is none of either.

    The pronoun is the token at `query`, or where that is None the last one.
    """
    said = [at for at, token in enumerate(tokens) if at > 1 and query in (None, at) and token.text.lower() in PRONOUNS]
    for start in _starts_for(tokens[said[-1]].text) if said else ():
        for (layer, head), relations in roles_of_heads(info).items():
            if any(relation.startswith(start) for relation in relations):
                return layer, head, said[-1]
    return None


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

_LISTED = {"noun": NOUN, "proper": NOUN, "name": NOUN, "surname": NOUN, "verb": VERB, "adjective": ADJECTIVE}

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
    text = _list_of_words()
    found = _lines_with(text, word) | _lines_with(text, folded)
    return frozenset(found) or frozenset([NOUN] if word[:1].isupper() else ())


@cache
def usual_gender(name: str) -> str | None:
    """The gender of most who have this name: f, m, x for either; None where the list of names does not hold it."""
    text = _list_of_words()
    at = text.find(f"\nname {plain_letters(name)} ")
    return None if at < 0 else text[text.find("\n", at + 1) - 1]


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
    return word[:1].isupper() and not _lines_with(_list_of_words(), word.lower()) and word_classes(word) == {NOUN}


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
    return files("attnctl.training.english").joinpath("words.txt").read_text(encoding="utf-8")


def _lines_with(text: str, word: str) -> set[str]:
    """The classes of the lines that hold a word: found by search, since reading all lines takes longer than a start may."""
    found: set[str] = set()
    size = len(word) + 1
    at = text.find(f" {word}")
    while at >= 0:
        kind = text[text.rfind("\n", 0, at) + 1 : at + 1].split(" ", 1)[0]
        if text[at + size : at + size + 1] in (" ", "\n") and kind in _LISTED:
            found.add(_LISTED[kind])
        at = text.find(f" {word}", at + 1)
    return found
