"""Where a text's words and characters stand, in every script: spans (start, end), one after another, never all at once."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator

Span = tuple[int, int]

# a blank to fill in ("____", "[MASK]"), a number with its points, a word with its apostrophes, or one other sign
_WORD = re.compile(r"_{2,}|\[[A-Z]+\]|\d+(?:[.,]\d+)*|\w+(?:['’]\w+)*|[^\w\s]")

# scripts written without spaces (kana, Han): each character, with its marks, is a token of its own
_ALONE = ("\u3040\u30ff", "\u31f0\u31ff", "\u3400\u4dbf", "\u4e00\u9fff", "\uf900\ufaff", "\U00020000\U0003ffff")
_HAN = "\u4e00"  # which stands for all of them

# what a character is to a cluster
_PLAIN, _EXTENDS, _JOINER, _REGIONAL, _LINE_END = range(5)


def word_spans(text: str) -> Iterable[Span]:
    """Words, numbers and signs; marks stay on their letters, and unspaced scripts are taken apart."""
    if text.isascii():
        return (match.span() for match in _WORD.finditer(text))
    kinds = _kinds_of(text)
    if not any(kinds.values()):
        return _spans_in(_stand_ins(text))
    clusters = list(_clusters(text, kinds))
    spans = _spans_in(_stand_ins("".join(text[start] for start, _ in clusters)))  # one character a cluster
    return ((clusters[first][0], clusters[last - 1][1]) for first, last in spans)


def cluster_spans(text: str) -> Iterable[Span]:
    """What a reader takes for one character (after Unicode's grapheme clusters, UAX 29, in short)."""
    kinds = _kinds_of(text)
    return _clusters(text, kinds) if any(kinds.values()) else ((at, at + 1) for at in range(len(text)))


def _kinds_of(text: str) -> dict[str, int]:
    """Each distinct character, and what it is to a cluster."""
    return {char: _kind_of(char) for char in set(text)}


def _kind_of(char: str) -> int:
    if char == "\u200d":
        return _JOINER
    if "\U0001f1e6" <= char <= "\U0001f1ff":
        return _REGIONAL
    if char in "\r\n":
        return _LINE_END
    skin_tone = "\U0001f3fb" <= char <= "\U0001f3ff"
    tag = "\U000e0020" <= char <= "\U000e007f"  # of the flags of England, Scotland and Wales
    marks = unicodedata.category(char) in ("Mn", "Mc", "Me") or char == "\u200c"
    return _EXTENDS if marks or skin_tone or tag else _PLAIN


def _clusters(text: str, kinds: dict[str, int]) -> Iterator[Span]:
    start, flags, before = 0, 0, ""  # flags: regional indicators seen in a row, of which two make a flag
    for at, char in enumerate(text):
        kind = kinds[char]
        extends = (
            kind in (_EXTENDS, _JOINER)
            or before == "\u200d"
            or (kind == _REGIONAL and flags % 2 == 1)
            or (char == "\n" and before == "\r")
        )
        flags = flags + 1 if kind == _REGIONAL else 0
        if at and not extends:
            yield start, at
            start = at
        before = char
    if text:
        yield start, len(text)


def _stand_ins(text: str) -> str:
    """The text with one character for all those of unspaced scripts, so that one expression reads every script."""
    alone = {ord(char): _HAN for char in set(text) if any(ends[0] <= char <= ends[1] for ends in _ALONE)}
    return text.translate(alone) if alone else text


def _spans_in(text: str) -> Iterator[Span]:
    for match in _WORD.finditer(text):
        first, last = match.span()
        if _HAN not in text[first:last]:
            yield first, last
            continue
        for piece in re.finditer(f"{_HAN}|[^{_HAN}]+", text[first:last]):
            yield first + piece.start(), first + piece.end()
