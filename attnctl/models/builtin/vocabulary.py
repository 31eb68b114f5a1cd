"""Look words up in a vocabulary: as written, without a clitic such as `'s`, or by their shape and letters.

A vocabulary with entries like `[Name]` or `[-ing]` reads an unknown word as the entry of its shape, so that an unseen
word is still a name, a plural, or an action. If the model has rows for pieces of words, the rows of an unknown word's
letters are added, so that two unknown words differ.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from attnctl.errors import AttnctlError
from attnctl.text import plain_letters
from attnctl.text.tokens import BLANKS, Token, Tokenize, counted_spans, is_blank, split_words, word_spans

NAME, NUMBER, WORD = "[Name]", "[0]", "[word]"
# the shapes of endings; a longer ending stands before a shorter one that it ends with
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

ENDS = (".", "?", "!", ":", "“", '"', "(", "[")  # a word after one of these may have a capital that is not a name's
# number of words whose ids are cached, for batches, and the largest number of characters of such a word
WORDS_REMEMBERED, LONGEST_REMEMBERED = 50_000, 64

CLITICS = ("'s", "'re", "'m", "'ve", "'ll", "'d")
_CLITIC = re.compile(r"(.+)('(?:s|re|m|ve|ll|d))", re.IGNORECASE | re.DOTALL)


def shape_of(word: str, *, first: bool = False) -> str | None:
    """Return the shape of a word: an ending, a name, a number; None for signs and other scripts.

    `first`: the word begins a sentence, where its capital does not show that a word with a plural's ending is a name.
    """
    if word[:1].isdigit():
        return NUMBER
    if not re.fullmatch(r"[^\W\d_]+(?:[-'’][^\W\d_]+)*", word):
        return None
    if word[0].isupper() and not (first and re.fullmatch(r".{2,}(?<![suiy])s", word)):
        return NAME
    lower = word.lower()
    return next((shape for shape, pattern in _PATTERNS if pattern.fullmatch(lower)), WORD)


@lru_cache(maxsize=256)  # many forwards may read the same text
def letter_pieces(word: str, count: int) -> list[int]:
    """Return the numbers, below `count`, of a word's pieces: the whole, its last letter, and every three letters.

    The word has a mark at both edges. The numbers are CRC-32, the same everywhere; capitals and accents do not count.
    """
    marked = f"<{plain_letters(word.lower())}>"
    pieces = {marked, marked[-2:], *(marked[start : start + 3] for start in range(len(marked) - 2))}
    return sorted(zlib.crc32(piece.encode()) % count for piece in pieces)


def word_spellings(word: str) -> tuple[str, ...]:
    """Return the spellings of a word in a vocabulary: unchanged, in small letters, with a capital, in capitals.

    A word with accents is also spelled without them.
    """
    plain = word.replace("’", "'") if len(word) > 1 else word
    spellings = (plain, plain.lower(), plain.capitalize(), plain.upper())
    bare = plain_letters(plain)
    return spellings if bare == plain else (*spellings, bare, bare.lower(), bare.capitalize(), bare.upper())


def part_clitic(word: str, vocabulary: Container[str]) -> tuple[str, str] | None:
    """Return `Alice's` as (`Alice`, `'s`) if the vocabulary has the clitic and not the whole; else None."""
    plain = word.replace("’", "'")
    match = _CLITIC.fullmatch(plain)
    if (
        match is None
        or match[2].lower() not in vocabulary
        or any(spelling in vocabulary for spelling in word_spellings(word))
    ):
        return None
    cut = len(match[1])
    return word[:cut], word[cut:]


def _with_lone_clitics(tokens: Iterable[Token], vocabulary: Container[str]) -> Iterator[Token]:
    """Yield the tokens, with `'` and a clitic's letters joined if the vocabulary has them and a space is before."""
    before = mark = None
    for token in tokens:
        if mark is not None:
            whole = "'" + token.text.lower()
            alone = before is None or before.end != mark.start
            if alone and token.start == mark.end and whole in CLITICS and whole in vocabulary:
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


def in_parts(tokens: Iterable[Token], vocabulary: Container[str]) -> Iterator[Token]:
    """Yield the tokens, with `Alice's` as two tokens if the vocabulary has it so; character spans stay right."""
    for token in _with_lone_clitics(tokens, vocabulary):
        parts = part_clitic(token.text, vocabulary) if "'" in token.text or "’" in token.text else None
        if parts is None or token.start is None or token.end is None:
            yield token
            continue
        cut = token.start + len(parts[0])
        yield replace(token, text=parts[0], end=cut)
        yield replace(token, text=parts[1], start=cut)


def ids_of_words(vocabulary: Sequence[str]) -> dict[str, int]:
    """Return word → its place in a vocabulary; the first one, if it is there twice."""
    return dict(zip(reversed(vocabulary), range(len(vocabulary) - 1, -1, -1), strict=True))


def vocabulary_tokenizer(split: Tokenize, ids: Mapping[str, int], unknown_word: str, path: str) -> Tokenize:
    """Return a tokenizer: the tokens of `split`, with ids (word → id) of the vocabulary in the file `path`.

    An unknown word has the id of its shape, else that of `unknown_word`, and is shown as the user wrote it. The
    tokenizer raises AttnctlError for a word without an id.
    """
    unknown = ids.get(unknown_word)
    blank = next((ids[mark] for mark in BLANKS if mark in ids), unknown)
    shaped = any(shape in ids for shape in SHAPES)

    def read_word(word: str, first: bool) -> tuple[int, bool, bool]:
        """Return the id of a word, of its shape, or of the unknown word; whether it is a blank; whether it is unknown."""
        if blank is not None and is_blank(word):
            return blank, True, False
        for spelling in word_spellings(word):
            if spelling in ids:
                return ids[spelling], False, False
        shape = shape_of(word, first=first) if shaped else None
        read_as = ids.get(shape, unknown) if shape is not None else unknown
        if read_as is None:
            raise AttnctlError(f"{word!r} is not in the vocabulary of {path}, and it names no unknown token")
        return read_as, False, shape != NUMBER or read_as == unknown

    def pieces_of(text: str) -> Iterator[tuple[str, int | None, int | None, bool]]:
        """Yield the words of a text, where they begin and end, and whether they are special."""
        has_clitics = "'" in text or "’" in text
        if split is split_words and not has_clitics:  # no tokens are made that have no ids yet
            return ((text[start:end], start, end, False) for start, end in counted_spans(word_spans(text)))
        words = split(text)
        parts = in_parts(words, ids) if has_clitics else words
        return ((token.text, token.start, token.end, token.special) for token in parts)

    remembered = lru_cache(maxsize=WORDS_REMEMBERED)(read_word)

    def look_up(text: str) -> tuple[Token, ...]:
        first, result = True, []
        for word, start, end, special in pieces_of(text):
            read = remembered if len(word) <= LONGEST_REMEMBERED else read_word
            read_as, is_mark, lacking = read(word, first)
            result.append(Token(word, read_as, start, end, is_mark or special, lacking))
            first = word in ENDS
        return tuple(result)

    return look_up
