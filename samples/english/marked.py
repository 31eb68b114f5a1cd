"""Read the sentences that were marked by hand; training uses neither them nor near copies of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from attnctl.text import english
from attnctl.text.english import Link
from samples.english.draft import Sentence
from samples.english.language import function_words

RELATIONS = {
    "vs": english.VERB_SUBJECT, "vp": english.PAST_OTHERS, "ov": english.OBJECT_VERB, "pn": english.PRONOUN,
    "it": english.MEANING, "an": english.ADJECTIVE, "dn": english.DETERMINER, "pp": english.PREPOSITION,
    "cl": english.CLOSING, "in": english.INDUCTION,
}  # fmt: skip


@cache
def marked_sentences() -> tuple[Sentence, ...]:
    """Return the sentences of `marked.txt` with their links. Raises ValueError for a line that names a missing word."""
    return read_marked(Path(__file__).with_name("marked.txt").read_text(encoding="utf-8"))


def read_marked(text: str) -> tuple[Sentence, ...]:
    """Return the sentences of a text like `marked.txt` with their links. Raises ValueError as `marked_sentences` does."""
    return tuple(_marked_sentence(line) for line in text.splitlines() if line and not line.startswith("#"))


def _marked_sentence(line: str) -> Sentence:
    """Parse `the words | relation query>key … ; relation …`; word#2 is the second word with that spelling."""
    text, _, marks = line.partition(" | ")
    words = text.split()
    links = []
    for mark in marks.split(" ; "):
        code, *pairs = mark.split()
        for pair in pairs:
            query, key = pair.rsplit(">", 1)
            links.append(Link(RELATIONS[code], word_place(words, query), word_place(words, key)))
    return Sentence(words, links)


def word_place(words: Sequence[str], name: str) -> int:
    """Return the place of a word in a sentence: `name`, or `name#2` for the second. Raises ValueError if it is missing."""
    match = re.fullmatch(r"(.+)#(\d+)", name)
    word, count = (match[1], int(match[2])) if match else (name, 1)
    places = [place for place, spelling in enumerate(words) if spelling == word]
    if len(places) < count:
        raise ValueError(f"{' '.join(words)!r} has no {name!r}")
    return places[count - 1]


def content_words(words: Sequence[str]) -> tuple[str, ...]:
    """Return the content words of a sentence in lower case; all its words if it has fewer than two."""
    small = tuple(word.lower() for word in words)
    content = tuple(word for word in small if word not in function_words() and word[0].isalpha())
    return content if len(content) > 1 else small


@cache
def kept_out() -> frozenset[tuple[str, ...]]:
    """Return the content words of every sentence that is kept out of training."""
    return frozenset(content_words(s.words) for s in marked_sentences())
