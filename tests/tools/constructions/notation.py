"""Read sentences with their links in brackets behind each word: "The boys'* teacher* smiled[s teacher] .".

word[s X]   X is the subject of the word          *   a noun: the determiners and adjectives before it belong to it
word[o X]   the word is an object of the verb X   ~   an adjective
word[p X]   the pronoun stands for X              X   the nearest word of this spelling, or its first with X#1
word[g X]   the preposition belongs to X          word[m X][m Y]   the pronoun may stand for X or for Y
word[a X]   the adjective describes X
"""

from __future__ import annotations

import re

from attnctl.readings.questions.word_classes import word_set

CODES = {"s": "vs", "o": "ov", "p": "pn", "g": "pp", "a": "an", "m": "am"}
DETERMINERS = word_set(
    "the a an this that these those my your his her its our their some every each no any both which whose two three four "
    "five six nine ten forty many more much most several few all one"
)
ORDER = ("vs", "ov", "pn", "an", "dn", "pp", "am")


def marked_line(text: str) -> str:
    """Return a sentence in this notation as a line of tests/training: words and marks. Raises ValueError for a missing word."""
    words, links, nouns, adjectives = [], list[tuple[int, str, str]](), set(), set()
    for place, item in enumerate(re.findall(r"[^\s\[\]]+(?:\[[^\]]*\])*", text)):
        word, *notes = item.replace("]", "").split("[")
        nouns |= {place} if word.endswith("*") else set()
        adjectives |= {place} if word.endswith("~") else set()
        words.append(word.rstrip("*~"))
        links += [(place, *note.split(" ", 1)) for note in notes]
    marks: dict[str, list[str]] = {}
    for place, code, target in links:
        marks.setdefault(CODES[code], []).append(
            f"{_named(words, place)}>{_named(words, _nearest(words, place, target))}"
        )
    for place, word in enumerate(words):
        code = "an" if place in adjectives else "dn" if word.lower() in DETERMINERS else ""
        noun = next((other for other in range(place + 1, len(words)) if other in nouns), None)
        # a determiner and its noun have only adjectives and other determiners between them
        between = range(place + 1, noun or 0)
        if code and noun and all(i in adjectives or words[i].lower() in DETERMINERS for i in between):
            marks.setdefault(code, []).append(f"{_named(words, place)}>{_named(words, noun)}")
    return f"{' '.join(words)} | " + " ; ".join(f"{code} {' '.join(marks[code])}" for code in ORDER if code in marks)


def _nearest(words: list[str], place: int, target: str) -> int:
    word, _, number = target.partition("#")
    places = [i for i, other in enumerate(words) if other == word and i != place]
    if not places:
        raise ValueError(f"{' '.join(words)!r} has no {target!r}")
    return places[int(number) - 1] if number else min(places, key=lambda i: abs(i - place))


def _named(words: list[str], place: int) -> str:
    """Return a word, with its number if an equal word stands in the sentence."""
    return (
        words[place] if words.count(words[place]) == 1 else f"{words[place]}#{words[: place + 1].count(words[place])}"
    )
