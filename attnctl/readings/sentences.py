"""Split a text into sentences, by its punctuation."""

from __future__ import annotations

import re
from collections.abc import Iterator

# marks that end a sentence at once (Chinese, Japanese), marks that do so before white space, and line ends; a mark takes
# the closing quotes and brackets behind it. No part of the pattern can fail after it began: the time grows with the text
_CLOSING = "\"'”’»)\\]}」』）】〉》"
_CANDIDATE = re.compile(
    rf"(?P<wide>[。！？｡]+[{_CLOSING}]*)|(?P<mark>[.!?…؟۔।॥።։]+[{_CLOSING}]*(?:[ \u00a0\u202f]»)?)|[\r\n\u2028\u2029]\s*"
)
_TITLES = frozenset(
    [
        "mr",
        "mrs",
        "ms",
        "mx",
        "dr",
        "prof",
        "st",
        "gen",
        "col",
        "lt",
        "sgt",
        "capt",
        "rev",
        "sen",
        "gov",
        "mme",
        "mlle",
        "vs",
        "cf",
        "fig",
        "figs",
        "eq",
        "bzw",
    ]
)
_NUMBERED = frozenset(["no", "nos", "nr", "vol", "p", "pp", "ch", "sec", "art"])  # abbreviations before a number alone
_LAST_WORD = re.compile(r"[^\W_]+(?:\.[^\W_]+)*$")
_DOTTED = re.compile(r"(?:[^\W\d_]\.)+[^\W\d_]")  # "e.g", "U.S"
_LONGEST = 16  # characters before a mark that may be an abbreviation, or a number in a list


def sentence_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of each sentence, without white space around it; together they hold all other characters.

    A sentence ends at a mark (. ! ? … 。), or at a line end. It goes on after an abbreviation, an initial, a number in a
    list, and if a small letter follows, unless the whole text is in small letters.
    """
    has_capitals = text != text.lower()
    start = 0
    for candidate in _CANDIDATE.finditer(text):
        begun = text[max(start, candidate.start() - _LONGEST) : candidate.start()].lstrip()
        if _ends_sentence(text, candidate, begun, has_capitals):
            yield from _stripped(text, start, candidate.end())
            start = candidate.end()
    yield from _stripped(text, start, len(text))


def _ends_sentence(text: str, candidate: re.Match[str], begun: str, has_capitals: bool) -> bool:
    """Return whether a sentence ends at a candidate; `begun` is its text so far, or the end of it."""
    if candidate["wide"]:
        return True
    end = candidate.end()
    following = re.compile(r"\S").search(text, end)
    if following is None:
        return True
    goes_on = has_capitals and following[0].islower()
    if not candidate["mark"]:  # a line end; a blank line ends any sentence
        return not goes_on or len(candidate[0].splitlines()) > 1
    if following.start() == end or goes_on:  # "3.14", "example.com"; "approx. half"
        return False
    if candidate["mark"] != ".":
        return True
    if begun.isdecimal() and len(begun) < 4:  # "1. Buy milk"
        return False
    last = _LAST_WORD.search(begun)
    word = "" if last is None else last[0]
    is_initial = len(word) == 1 and word.isupper() and word != "I"
    before_number = word.lower() in _NUMBERED and following[0].isdecimal()
    dotted = _DOTTED.fullmatch(word) is not None and word.lower() not in ("a.m", "p.m")
    return not (is_initial or before_number or dotted or word.lower() in _TITLES)


def _stripped(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield a span without the white space around it, if anything else is in it."""
    part = text[start:end]
    if stripped := part.strip():
        first = start + len(part) - len(part.lstrip())
        yield first, first + len(stripped)
