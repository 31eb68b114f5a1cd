"""Classes of English words by the list that the demo's grammar is made from: which words a relation can hold between."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files

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


def may_relate(relation: str, words: Sequence[str], query: int, key: int) -> bool:
    """Whether a relation of this name can hold from one word to another, by their classes and order; no for other kinds."""
    ends = next((ends for start, ends in _ENDS.items() if relation.startswith(start)), None)
    if ends is None or (1 if key > query else -1) not in ends[2]:
        return False
    return bool(word_classes(words[query]) & {*ends[0]} and word_classes(words[key]) & {*ends[1]})


@cache
def _list_of_words() -> str:
    return files("attnctl.training.english").joinpath("words.txt").read_text(encoding="utf-8")


def _lines_with(text: str, word: str) -> set[str]:
    """The classes of the lines that hold a word: found by search, since reading all lines takes longer than a start may."""
    found = set()
    for after in (" ", "\n"):
        at = text.find(f" {word}{after}")
        while at >= 0:
            kind = text[text.rfind("\n", 0, at) + 1 : at + 1].split(" ", 1)[0]
            if kind in _LISTED:
                found.add(_LISTED[kind])
            at = text.find(f" {word}{after}", at + 1)
    return found
