"""How a word that a vocabulary lacks is read: by its shape, and without the `'s` that hangs on it.

A vocabulary that has entries like `[Name]` or `[-ing]` reads an unknown word as the one whose shape it has, so that what no
training has seen is still a name, a plural, or something that is being done.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator
from dataclasses import replace

from attnctl.tokens import Token

NAME, NUMBER, WORD = "[Name]", "[0]", "[word]"
# the shapes of endings, the longer before the shorter that they end on
_ENDINGS = (
    ("[-ing]", r"ing"),
    ("[-ed]", r"ed"),
    ("[-ly]", r"ly"),
    ("[-ness]", r"ness|tion|sion|ment|ity|ism|ship|hood|dom|ance|ence|ure"),
    ("[-ful]", r"ful|less|ous|able|ible|ive|ish|ical|ic|al|ary|ant|ent|esque"),
    ("[-er]", r"er|or|ist|ian|ee"),
    ("[-s]", r"(?<![suiy])s"),
)
SHAPES = (NAME, NUMBER, WORD, *(shape for shape, _ in _ENDINGS))
_PATTERNS = [(shape, re.compile(rf".{{2,}}(?:{ends})")) for shape, ends in _ENDINGS]

CLITICS = ("'s", "'re", "'m", "'ve", "'ll", "'d")
_CLITIC = re.compile(r"(.+)('(?:s|re|m|ve|ll|d))", re.IGNORECASE | re.DOTALL)


def shape_of(word: str, *, first: bool = False) -> str | None:
    """The shape of a word: of its ending, a name's capital, a number; None for signs and other scripts.

    `first`: it begins a sentence, where a capital says little about a word that ends as plurals do.
    """
    if word[:1].isdigit():
        return NUMBER
    if not re.fullmatch(r"[^\W\d_]+(?:[-'’][^\W\d_]+)*", word):
        return None
    if word[0].isupper() and not (first and re.fullmatch(r".{2,}(?<![suiy])s", word)):
        return NAME
    lower = word.lower()
    return next((shape for shape, pattern in _PATTERNS if pattern.fullmatch(lower)), WORD)


def word_spellings(word: str) -> tuple[str, ...]:
    """The ways in which a vocabulary may write a word: as it stands, in small letters, with a capital, in capitals."""
    plain = word.replace("’", "'") if len(word) > 1 else word
    return (plain, plain.lower(), plain.capitalize(), plain.upper())


def part_clitic(word: str, known: Container[str]) -> tuple[str, str] | None:
    """`Alice's` as (`Alice`, `'s`), where the vocabulary knows the clitic and not the whole; else None."""
    plain = word.replace("’", "'")
    match = _CLITIC.fullmatch(plain)
    if match is None or match[2].lower() not in known or any(spelling in known for spelling in word_spellings(word)):
        return None
    cut = len(match[1])
    return word[:cut], word[cut:]


def _with_lone_clitics(tokens: Iterable[Token], known: Container[str]) -> Iterator[Token]:
    """The tokens, `'` and a clitic's letters right behind it as one where the vocabulary has it and a space is before."""
    before = mark = None
    for token in tokens:
        if mark is not None:
            whole = "'" + token.text.lower()
            alone = before is None or before.end != mark.start
            if alone and token.start == mark.end and whole in CLITICS and whole in known:
                yield replace(mark, text=mark.text + token.text, end=token.end)
                before, mark = token, None
                continue
            yield mark
            before, mark = mark, None
        if token.text in ("'", "’"):
            mark = token
            continue
        yield token
        before = token
    if mark is not None:
        yield mark


def in_parts(tokens: Iterable[Token], known: Container[str]) -> Iterator[Token]:
    """The tokens, `Alice's` and `Alice 's` as two where the vocabulary wants it so; character spans are kept."""
    for token in _with_lone_clitics(tokens, known):
        parts = part_clitic(token.text, known) if "'" in token.text or "’" in token.text else None
        if parts is None or token.start is None or token.end is None:
            yield token
            continue
        cut = token.start + len(parts[0])
        yield replace(token, text=parts[0], end=cut)
        yield replace(token, text=parts[1], start=cut)
