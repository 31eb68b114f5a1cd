"""Split text into tokens: words and punctuation in any language, characters, or the pieces of a trained tokenizer."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from attnctl.checks import limits
from attnctl.errors import AttnctlError, TooLongError, UsageError, about_value, telling_errors
from attnctl.runtime.files import is_possible_name
from attnctl.text import LABEL_CHARACTERS, isolated, shortened, visible_text

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

    from attnctl.checks.document_fields import ALWAYS, Index, Portion, about


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of the text: its characters, its id, its place (start and end in characters), and its kind."""

    text: str
    id: int | None = None
    start: Annotated[Index, about("First character in text.")] | None = None
    end: Annotated[Index, about("One past the last.")] | None = None
    special: Annotated[bool, ALWAYS] = False
    unknown: Annotated[bool, about("The model has no such word and reads its unknown token.")] = False
    box: Annotated[
        tuple[int, int, int, int] | None,
        about("Of a patch or an object: left, top, right, bottom in pixels, the last two one past."),
    ] = None
    seconds: Annotated[tuple[float, float] | None, about("Of a frame of sound: when it begins and ends.")] = None
    word: Annotated[Index | None, about("Which word of the text it is part of, as the tokenizer counts words.")] = None
    picture: Annotated[
        Index | None,
        about("Which of several pictures it is of, from 0 on: they stand side by side, and boxes are in all of that."),
    ] = None
    type: Annotated[
        Index | None, about("Token type: which of two texts it is of, as the tokenizer tells the model.")
    ] = None
    score: Annotated[
        Portion | None,
        about("Of a query of a detector: how sure it is of the object in its box, as its processor counts, 0 to 1."),
    ] = None

    @property
    def is_patch(self) -> bool:
        """Return whether it is a part of a picture that the model reads, and no object that the model found there."""
        return self.box is not None and self.score is None


Tokenize = Callable[[str], tuple[Token, ...]]
Span = tuple[int, int]

PADDING = "padding-"  # the names of patches that contain only padding of a picture begin so
WHOLE = "whole-"  # the names of tokens of the small view of a whole picture, beside its tiles, begin so
BLANKS = ("____", "[MASK]", "<mask>")
SHORTEST_BLANK = 3  # underscores: three or more are a blank, too


def is_blank(text: str) -> bool:
    """Return whether a token is a blank to fill in: one of BLANKS, or three underscores or more."""
    return text in BLANKS or len(text) >= SHORTEST_BLANK and not text.strip("_")


def split_words(text: str) -> tuple[Token, ...]:
    """Return words, numbers and signs, without white space: "Alice will eat pizza." is five tokens."""
    return _numbered_tokens(text, word_spans(text))


def split_characters(text: str) -> tuple[Token, ...]:
    """Return characters as a reader sees them: a letter with its accent, or a joined emoji, is one token; spaces stay."""
    kinds = _character_kinds(text)
    singly = ((index, index + 1) for index in range(len(text)))
    return _numbered_tokens(text, _clusters(text, kinds) if any(kinds.values()) else singly)


def _numbered_tokens(text: str, spans: Iterable[Span]) -> tuple[Token, ...]:
    """Return the tokens at these spans; without a vocabulary, ids number the distinct tokens of the text."""
    ids: dict[str, int] = {}
    return tuple(
        Token(text[start:end], ids.setdefault(text[start:end], len(ids)), start, end)
        for start, end in counted_spans(spans)
    )


def counted_spans(spans: Iterable[Span]) -> list[Span]:
    """Return spans as a list. Raises AttnctlError for more than limits.TEXT_TOKENS, before they fill the memory."""
    places = list(islice(spans, limits.TEXT_TOKENS + 1))
    check_token_count(len(places))
    return places


def check_token_count(count: int, text: str | None = None) -> None:
    """Raise AttnctlError for more tokens than one text may have, or for far more than the `text` has characters."""
    if text is not None and (reason := limits.growth_error(count, len(text), "tokens")):
        raise AttnctlError(f"the tokenizer fails on this text ({reason})")
    if count > limits.TEXT_TOKENS:
        raise TooLongError(
            f"the text has more than the {limits.TEXT_TOKENS:,} tokens that are read of one: give less of it"
        )


def from_file(path: str | Path) -> Tokenize:
    """Return the tokenizer of a `tokenizer.json`. Raises AttnctlError if the file is missing or is not one."""
    tokenizer = library_tokenizer(path, f"{path} is not a tokenizer.json")

    def tokenize_by_file(text: str) -> tuple[Token, ...]:
        with telling_errors(f"{path} fails on this text"):
            return from_encoding(text, tokenizer.encode(text), tokenizer)

    return tokenize_by_file


def library_tokenizer(path: str | Path, refusal: str) -> Tokenizer:
    """Return the `tokenizers.Tokenizer` of a tokenizer.json, without padding and truncation.

    Raises AttnctlError that begins with `refusal` if it is not one; another AttnctlError if the file is too large, or if
    the library is not installed.
    """
    from attnctl.runtime.files import decode_text, read_bytes

    data = decode_text(read_bytes(path, limits.TOKENIZER_BYTES), str(path))
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise AttnctlError(f"{path} needs tokenizers: pip install tokenizers") from error
    with telling_errors(refusal):
        tokenizer = Tokenizer.from_str(data)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer


def from_encoding(text: str, encoding: Encoding, tokenizer: Tokenizer) -> tuple[Token, ...]:
    """Return the tokens of the encoding of `text` by `tokenizer`, each with the characters that it covers."""
    check_token_count(len(encoding.ids), text)
    places = spelled_places(tokenizer, text, encoding.tokens, encoding.offsets, encoding.word_ids)
    tokens = []
    for piece, number, place, special, word in zip(
        encoding.tokens,
        encoding.ids,
        piece_spans(text, places),
        encoding.special_tokens_mask,
        piece_words(text, encoding.tokens, places, encoding.word_ids),
        strict=True,
    ):
        if place is None:
            tokens.append(Token(bare_piece(piece), number, word=word))
            continue
        start, end = place
        covers = end > start and not special
        label = piece_text(piece, text[start:end]) if covers else piece
        tokens.append(Token(label, number, start, end, bool(special), word=None if special else word))
    return tuple(tokens)


def spelled_places(
    tokenizer: Tokenizer, text: str, pieces: Sequence[str], spans: Sequence[Place], words: Sequence[int | None]
) -> Sequence[Place]:
    """Return the spans of pieces in the text, without those of a word whose pieces do not spell it.

    A BPE without an unknown token drops letters that it has no piece for, and the library then counts the places of the
    pieces that follow in the word from the dropped letters on.
    """
    if not drops_letters(tokenizer):
        return spans
    misplaced = {
        word
        for piece, span, word in zip(pieces, spans, words, strict=True)
        if word is not None and span is not None and not _spells(tokenizer, piece, text[slice(*span)])
    }
    return [None if word in misplaced else span for span, word in zip(spans, words, strict=True)]


def drops_letters(tokenizer: Tokenizer) -> bool:
    """Return whether a tokenizer drops letters that it has no piece for: a BPE without unknown token and bytes."""
    model = tokenizer.model
    if type(model).__name__ != "BPE" or model.unk_token is not None or model.byte_fallback:
        return False
    return "ByteLevel" not in f"{tokenizer.normalizer} {tokenizer.pre_tokenizer}"


def _spells(tokenizer: Tokenizer, piece: str, covered: str) -> bool:
    """Return whether a piece consists of the letters that it covers, after the tokenizer has normalized them."""
    if _is_lone_marker(piece, covered):
        return True
    model = tokenizer.model
    bare = piece.removeprefix(model.continuing_subword_prefix or "").removesuffix(model.end_of_word_suffix or "")
    normalized = covered if tokenizer.normalizer is None else tokenizer.normalizer.normalize_str(covered)
    letters, covered_letters = plain_letters(without_marks(bare)), plain_letters(normalized)
    # the pieces of one character, such as a ligature, all cover it
    return letters == covered_letters or (len(covered) == 1 and letters in covered_letters)


def plain_letters(text: str) -> str:
    """Return a text in lower case, without accents and white space."""
    decomposed = unicodedata.normalize("NFKD", text).casefold()
    return "".join(letter for letter in decomposed if not letter.isspace() and not unicodedata.combining(letter))


def without_marks(piece: str) -> str:
    """Return a piece without the marks for the beginning, the middle or the end of a word."""
    return piece.replace("▁", " ").replace("Ġ", " ").removeprefix("##").removesuffix("</w>").removesuffix("@@")


def dropped_letters(text: str, tokens: Sequence[Token]) -> tuple[str, ...]:
    """Return one sentence about the letters, digits and symbols that no token covers, or ().

    The pieces of a word with dropped letters have no place in the text, so that of such a word all letters count that
    none of its pieces holds.
    """
    if _covers(tokens, text):
        return ()
    covered = {index for token in tokens for index in range(token.start or 0, token.end or 0)}
    placeless = plain_letters("".join(token.text for token in tokens if token.start is None and not token.special))
    letters = (
        letter
        for index, letter in enumerate(text)
        if index not in covered
        and unicodedata.category(letter)[0] in "LNS"
        and plain_letters(letter)
        and plain_letters(letter) not in placeless
    )
    named = [visible_text(letter) for letter in dict.fromkeys(letters)]
    if not named and not placeless:
        return ()
    listed = f": {', '.join(named[:6])}" + (f" and {len(named) - 6} more" if len(named) > 6 else "") if named else ""
    pieces = "; the pieces of these words have no place in the text" if placeless else ""
    return (f"The tokenizer dropped letters that it has no piece for{listed}{pieces}.",)


def _covers(tokens: Sequence[Token], text: str) -> bool:
    """Return whether the tokens stand in order, and nothing but white space lies between them."""
    end = 0
    for token in tokens:
        if token.start is None or token.end is None or not (token.start <= end or text[end : token.start].isspace()):
            return False
        end = max(end, token.end)
    return end >= len(text) or text[end:].isspace()


def bare_piece(piece: str) -> str:
    """Return a piece without its space markers; a single space if nothing else is in it."""
    return piece.replace("▁", " ").replace("Ġ", " ").strip() or " "


def piece_text(piece: str, covered: str) -> str:
    """Return the text that shows a piece: the characters that it covers, a space for a lone space marker.

    Tokenizers that put a space before a text let its marker cover the first character, which belongs to another token.
    """
    return " " if _is_lone_marker(piece, covered) and covered.strip() else covered.strip() or covered


def _is_lone_marker(piece: str, covered: str) -> bool:
    return bare_piece(piece) == " " and covered != piece


def piece_spans(text: str, spans: Sequence[Place]) -> list[Place]:
    """Return the characters that each piece covers, with the marks that a normalizer composed or dropped.

    For a letter and an accent that become one character, the library names only the letter. A piece without a place has no
    span here either.
    """
    if text.isascii():
        return list(spans)
    places: list[Place] = []
    for index, place in enumerate(spans):
        if place is None:
            places.append(None)
            continue
        start, end = place
        following = (spans[index + 1] if index + 1 < len(spans) else None) or (0, 0)
        last = following[0] if following[0] < following[1] else len(text)
        while start < end < last and _kind_of(text[end]) == _EXTENDS and unicodedata.category(text[end]) != "Cf":
            end += 1
        places.append((start, end))
    return places


def piece_words(
    text: str, pieces: Sequence[str], spans: Sequence[Place], words: Sequence[int | None]
) -> list[int | None]:
    """Return the word of each piece, as the tokenizer counts `words`; None for a piece without a place.

    A tokenizer that does not split a text before it makes pieces puts several words into one. Then the words are those of
    `word_spans`, and a lone space marker belongs to the word that it begins.
    """
    ends: dict[int, Span] = {}
    for word, place in zip(words, spans, strict=True):
        if word is not None and place is not None:
            first, last = ends.get(word, place)
            ends[word] = min(first, place[0]), max(last, place[1])
    if all(len(text[start:end].split()) < 2 for start, end in ends.values()):
        return list(words)
    word_at = word_numbers(text)
    numbers: list[int | None] = []
    following: tuple[str, int | None] = "", None  # the piece that follows, and its word
    for piece, place in zip(reversed(pieces), reversed(spans), strict=True):
        if place is None:
            numbers.append(None)
            continue
        start, end = place
        covered = text[start:end]
        word = word_at.get(start + len(covered) - len(covered.lstrip()))
        if _is_lone_marker(piece, covered):
            word = None if following[0].startswith(("▁", "Ġ")) else following[1]
        numbers.append(word)
        following = piece, word
    return numbers[::-1]


def word_numbers(text: str) -> dict[int, int]:
    """Return character → number of its word, without the characters between words."""
    return {index: number for number, span in enumerate(word_spans(text)) for index in range(*span)}


def open_tokenizer(name: str | os.PathLike[str] | None) -> Tokenize:
    """Return the tokenizer `words` (the default), `chars`, or of a tokenizer.json. Raises UsageError for any other name."""
    if name is None or name == "words":
        return split_words
    if name == "chars":
        return split_characters
    name = os.fspath(name)
    can_be = is_possible_name(name) and len(os.fsencode(Path(name).name)) <= limits.NAME_BYTES
    if can_be and (name.endswith(".json") or Path(name).is_file()):
        with about_value(name):
            return from_file(name)
    raise UsageError(f"no tokenizer {name[:80]!r}: it is words, chars, or the path of a tokenizer.json", value=name)


STRANGE_SHARE = 0.3  # share of unknown tokens from which a model cannot read the text well


def unknown_words(tokens: Sequence[Token]) -> tuple[str, ...]:
    """Return one sentence about the words that the model does not know, or ()."""
    words = list(dict.fromkeys(token.text for token in tokens if token.unknown))
    if not words:
        return ()
    named = ", ".join(visible_text(shortened(word, LABEL_CHARACTERS)) for word in words[:6])
    named += f" and {len(words) - 6} more" if len(words) > 6 else ""
    return (f"not among the words the model knows, read by their shape or as its unknown word (†): {named}",)


def strange_words(name: str, tokens: Sequence[Token]) -> str | None:
    """Return a sentence if the model of this name does not know STRANGE_SHARE of the tokens, two at least; else None."""
    strange = [token.text for token in tokens if token.unknown]
    if len(strange) < max(2, STRANGE_SHARE * len(tokens)):
        return None
    examples = (shortened(visible_text(word[:LABEL_CHARACTERS]), 16) for word in strange[:3])
    named = ", ".join(isolated(f"{word}†") for word in examples) + (", …" if len(strange) > 3 else "")
    return f"{name} does not know {len(strange)} of these {len(tokens)} tokens ({named})"


def named_tokens(names: Sequence[str]) -> list[Token]:
    """Return tokens with these names, placed in the names joined by spaces."""
    tokens, start = [], 0
    for name in names:
        tokens.append(Token(name, start=start, end=start + len(name)))
        start += len(name) + 1
    return tokens


def placed_names(text: str, names: Sequence[str]) -> Iterator[tuple[str, Place]]:
    """Yield each name with its place in the text behind the names before it; None for a name that is not there.

    White space around a name, and the mark of a piece for the beginning or the middle of a word, need not be in the text.
    """
    after = 0
    for name in names:
        spelled = name if text.find(name, after) >= 0 else without_marks(name).strip()
        start = text.find(spelled, after) if spelled else -1
        if start >= 0:
            after = start + len(spelled)
        yield name, None if start < 0 else (start, after)


def with_places(tokens: Sequence[Token], text: str, names: Sequence[str]) -> tuple[Token, ...]:
    """Return the tokens with these names, and with the places of the names in the text."""
    places = (place or (None, None) for _, place in placed_names(text, names))
    return tuple(
        replace(token, text=name, start=start, end=end)
        for token, name, (start, end) in zip(tokens, names, places, strict=True)
    )


def checked_text(text: str) -> str:
    """Return the text. Raises AttnctlError if it is blank, or holds half of a surrogate pair."""
    if not text.strip():
        raise AttnctlError("the text is empty: give at least one word")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise AttnctlError("the text is not valid Unicode: it holds half of a surrogate pair") from None
    return text


Place = Span | None  # None: the tokenizer gives no place

# a blank to fill in ("____", "[MASK]"), a number with its points, a word with its apostrophes, or one other sign
_WORD = re.compile(r"_{2,}|\[[A-Z]+\]|\d+(?:[.,]\d+)*|\w+(?:['’]\w+)*|[^\w\s]")

# scripts without spaces (kana, Han): each character, with its marks, is a token
_ALONE = ("\u3040\u30ff", "\u31f0\u31ff", "\u3400\u4dbf", "\u4e00\u9fff", "\uf900\ufaff", "\U00020000\U0003ffff")
_HAN = "\u4e00"  # represents all of them

# the kind of a character in a cluster
_PLAIN, _EXTENDS, _JOINER, _REGIONAL, _LINE_END = range(5)


def word_spans(text: str) -> Iterable[Span]:
    """Return the spans of words, numbers and signs; marks stay with their letters, scripts without spaces are split."""
    if text.isascii():
        return (match.span() for match in _WORD.finditer(text))
    kinds = _character_kinds(text)
    if not any(kinds.values()):
        return _spans_in(_stand_ins(text))
    clusters = list(_clusters(text, kinds))
    spans = _spans_in(_stand_ins("".join(text[start] for start, _ in clusters)))  # one character for each cluster
    return ((clusters[first][0], clusters[last - 1][1]) for first, last in spans)


def _character_kinds(text: str) -> dict[str, int]:
    """Return distinct character → its kind in a cluster."""
    return {char: _kind_of(char) for char in set(text)}


def _kind_of(char: str) -> int:
    if char == "\u200d":
        return _JOINER
    if "\U0001f1e6" <= char <= "\U0001f1ff":
        return _REGIONAL
    if char in "\r\n":
        return _LINE_END
    skin_tone = "\U0001f3fb" <= char <= "\U0001f3ff"
    tag = "\U000e0020" <= char <= "\U000e007f"  # in the flags of England, Scotland and Wales
    half_width = char in "\uff9e\uff9f"  # the voiced marks of half-width katakana
    vowel_or_final = "\u1160" <= char <= "\u11ff" or "\ud7b0" <= char <= "\ud7ff"  # in a decomposed Hangul syllable
    marks = unicodedata.category(char) in ("Mn", "Mc", "Me") or char == "\u200c" or half_width or vowel_or_final
    return _EXTENDS if marks or skin_tone or tag else _PLAIN


def _clusters(text: str, kinds: dict[str, int]) -> Iterator[Span]:
    """Yield the spans that a reader takes for one character (short form of Unicode's grapheme clusters, UAX 29)."""
    start, flags, before = 0, 0, ""  # flags: regional indicators in a row; two of them make a flag
    for index, char in enumerate(text):
        kind = kinds[char]
        extends = (
            kind in (_EXTENDS, _JOINER)
            or before == "\u200d"
            or (kind == _REGIONAL and flags % 2 == 1)
            or (char == "\n" and before == "\r")
        )
        flags = flags + 1 if kind == _REGIONAL else 0
        if index and not extends:
            yield start, index
            start = index
        before = char
    if text:
        yield start, len(text)


def joins_within_word(text: str) -> Callable[[int], bool]:
    """Return a function that says whether a tokenizer's word may not end before a character of the text.

    It may not end inside a character as a reader sees it (UAX 29), beside a mark inside a word of `word_spans` (a
    tokenizer that takes marks for signs cuts नमस्ते at each), or between two digits of a number.
    """
    word_at = word_numbers(text)
    kinds = {} if text.isascii() else _character_kinds(text)
    marked = any(kinds.values())
    starts = {start for start, _ in _clusters(text, kinds)} if marked else set[int]()

    def joins(place: int) -> bool:
        if not 0 < place < len(text):
            return False
        before, after = text[place - 1], text[place]
        inside = place in word_at and word_at[place] == word_at.get(place - 1)
        if marked and (place not in starts or inside and kinds[before] in (_EXTENDS, _JOINER)):
            return True
        return inside and before.isdigit() and after.isdigit()

    return joins


def _stand_ins(text: str) -> str:
    """Return the text with one character for all characters of unspaced scripts: one expression then reads every script."""
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


def ids_of(tokens: Iterable[Token]) -> tuple[int, ...]:
    """Return the ids of tokens in their vocabulary, without those that have none."""
    return tuple(token.id for token in tokens if token.id is not None)
