"""The tokenizer of a checkpoint, with readable pieces."""

from __future__ import annotations

import functools
import os
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from attnctl.checks import limits
from attnctl.errors import AttnctlError, TooLongError, UsageError, option_name, telling_errors
from attnctl.models.huggingface.hub import read_json
from attnctl.models.huggingface.library_tokenizer import (
    LibraryTokenizer,
    OpenTokenizer,
    TextEncoding,
    languages_of,
    lower_case,
    open_library_tokenizer,
    set_language,
)
from attnctl.models.huggingface.sentence_folder import SentenceSettings, sentence_settings
from attnctl.runtime.files import decode_text, read_bytes
from attnctl.text import quoted_beginning
from attnctl.text.tokens import (
    Place,
    Token,
    bare_piece,
    check_token_count,
    dropped_letters,
    drops_letters,
    library_tokenizer,
    piece_spans,
    piece_text,
    piece_words,
    placed_names,
    spelled_places,
    with_places,
)
from attnctl.trace.notes import Note

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

    from attnctl.text import Document


BETWEEN = "\n\n"  # between the two texts of a pair when they are shown as one: each is a paragraph
CHARACTER_BYTES = 4  # bytes of the longest character
LANGUAGE_CLASSES = ("Nllb", "MBart", "M2M100", "PLBart", "SeamlessM4T")  # tokenizers that have languages
# rows of an embedding table beyond the tokenizer's tokens; with more, a note says that they may not fit
UNUSED_ROWS = 1000
_SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


@dataclass(frozen=True)
class Pieces:
    """The tokenizer of a checkpoint's folder.

    `bos` None: as the tokenizer does it; True: exactly one token for the beginning; False: none is added.
    """

    name: str
    tokenizer: Tokenizer | LibraryTokenizer
    settings: Document  # tokenizer_config.json
    limit: int | None = None  # tokens that the model can read
    bos: bool | None = None
    truncate: bool = False
    text_pair: str | None = None  # the second of two texts, read after each text
    names_target: bool = False  # the user has named the language of the target
    wrapped_by: str = ""  # a program that puts each text into the chat template: `ollama run`
    # opens the tokenizer of transformers, for pairs, token types and languages
    open_library: OpenTokenizer | None = None
    sentence: SentenceSettings | None = None  # of a sentence-transformers folder

    def tokenize_text(self, text: str) -> tuple[Token, ...]:
        """Return the tokens of `text`, and of `text_pair` after it, with special tokens.

        Raises AttnctlError for more tokens than the model reads; UsageError for `bos` without such a token.
        """
        read = self.prompt + text
        with telling_errors(f"the tokenizer of {self.name} fails on this text"):
            tokens = self.tokens_of_encoding(self.joined_text(read), self._encode(read), len(read))
        return self._within_limit(self._with_bos(_moved_back(tokens, len(self.prompt))))

    def listed_tokens(self, text: str, names: Sequence[str]) -> tuple[Token, ...]:
        """Return the tokens of these names, with their places in the text; `bos` and `truncate` apply as to a text.

        Raises AttnctlError for a name that is not one token of the vocabulary, UsageError beside a second text or a prompt.
        """
        if self.text_pair is not None or self.prompt:
            before = "a second text behind" if self.text_pair is not None else "a prompt before"
            raise UsageError(f"names every token, and {self.name} reads {before} the text", option="tokens")
        usual = self._ids_by_place(text)
        tokens, end = list[Token](), 0
        for name, place in placed_names(text, names):
            start = end if place is None else place[0]
            is_plain = place and text[slice(*place)] == name.strip()  # a name with a mark says which piece it is
            number = usual.get(place) if place and is_plain else None
            if number is None:
                number = self._id_named(name, "" if start == 0 else text[start - 1])
            tokens.append(Token(name, number, special=number in self.special_ids))
            end = end if place is None else place[1]
        return self._within_limit(self._with_bos(with_places(tokens, text, names)))

    def _ids_by_place(self, text: str) -> dict[tuple[int, int], int]:
        """Return (start, end) → id of the tokens that the tokenizer makes of the text; of a place with several, none."""
        with telling_errors(f"the tokenizer of {self.name} fails on this text"):
            made = self.tokens_of_encoding(text, self._encode(text), len(text))
        ids: dict[tuple[int, int], list[int]] = {}
        for token in made:
            if token.start is not None and token.end is not None and token.id not in (None, self.unknown_id):
                space = len(piece := text[token.start : token.end]) - len(piece.lstrip())
                ids.setdefault((token.start + space, token.end), []).append(token.id)
        return {place: found[0] for place, found in ids.items() if len(found) == 1}

    def _id_named(self, name: str, before: str) -> int:
        """Return the id of the token with this name, behind the character `before` ("": the text begins).

        The mark for the beginning or the middle of a word may be absent: behind a space, `will` is the token of " will".
        """
        spaced = not before.strip()  # behind white space, or where the text begins
        inside = before.isalnum() and name[:1].isalnum()  # of a word
        marked = ["##" + name] * inside
        if spaced:
            marked = ["▁" + name.strip(), *(["Ġ" + name.strip()] if before else [])]
        for piece in (*marked, name):
            if (number := self.tokenizer.token_to_id(piece)) is not None:
                return number
        for spelled in (" " + name.strip(), name) if spaced and before else (name,):
            ids = self.tokenizer.encode(spelled, add_special_tokens=False).ids
            if len(ids) == 1 and ids[0] != self.unknown_id:
                return ids[0]
        raise AttnctlError(f"{name!r} is not one token of {self.name}")

    @property
    def prompt(self) -> str:
        """Return what is put before each text; its tokens have no position, since positions refer to the text."""
        return "" if self.sentence is None else self.sentence.prompt

    def tokenize_target(self, text: str) -> tuple[Token, ...]:
        """Return the tokens of a decoder's text, encoded as a `text_target`."""
        with telling_errors(f"the tokenizer of {self.name} fails on this target"):
            if self.has_languages or isinstance(self.tokenizer, LibraryTokenizer):
                encoding: Encoding | TextEncoding = self._encode_target(text)
            else:
                encoding = self.tokenizer.encode(text)
            tokens = self._with_bos(self.tokens_of_encoding(text, encoding))
        return self._within_limit(tokens)

    def joined_text(self, text: str) -> str:
        """Return the text that the tokens' positions refer to: the text, with `text_pair` as a second paragraph."""
        return text if self.text_pair is None else f"{text}{BETWEEN}{self.text_pair}"

    def _encode(self, text: str) -> Encoding | TextEncoding:
        """Return the encoding of a text, cut to the tokens that the model reads if `truncate` is set."""
        encoding = self._encode_up_to(text, None)
        # a beginning token that the tokenizer adds and the user does not want is dropped later
        longest = None if self.limit is None or not self.truncate else self.limit + (self.bos is False)
        return encoding if longest is None or len(encoding.ids) <= longest else self._encode_up_to(text, longest)

    def _encode_up_to(self, text: str, longest: int | None) -> Encoding | TextEncoding:
        """Return the encoding of a text, by the tokenizer of transformers if the tokenizers library cannot do it alone.

        It is cut to `longest` tokens as transformers cuts it: at the tokenizer's side, with its special tokens.
        """
        if self.text_pair is not None:
            if self.open_library is None:
                why = f"needs a tokenizer of transformers for {self.name}, which reads pairs"
                raise UsageError(why, option="text_pair")
            return self.library.encode(text, pair=self.text_pair, longest=longest)
        if isinstance(self.tokenizer, LibraryTokenizer):
            return self.tokenizer.encode(text, longest=longest)
        if longest is None:
            encoding = self.tokenizer.encode(text)
        else:
            self.tokenizer.enable_truncation(longest, direction=self._cut_side)
            try:
                encoding = self.tokenizer.encode(text)
            finally:
                self.tokenizer.no_truncation()
        by_library = self.open_library is not None and (self.has_languages or any(encoding.type_ids))
        return self.library.encode(text, longest=longest) if by_library else encoding

    @property
    def _cut_side(self) -> str:
        """Return at which side a long text is cut: right or left."""
        return "left" if self.settings.get("truncation_side") == "left" else "right"

    @cached_property
    def library(self) -> LibraryTokenizer:
        """Return the tokenizer of transformers."""
        assert self.open_library is not None
        return self.tokenizer if isinstance(self.tokenizer, LibraryTokenizer) else self.open_library()

    @cached_property
    def has_languages(self) -> bool:
        """Return whether texts and targets are encoded in languages (NLLB, mBART, M2M100)."""
        has_language_class = str(self.settings.get("tokenizer_class") or "").startswith(LANGUAGE_CLASSES)
        if self.open_library is None or not (has_language_class or {"src_lang", "tgt_lang"} & self.settings.keys()):
            return False
        return bool(languages_of(self.library.tokenizer))

    @property
    def target_language(self) -> str | None:
        """Return the language of the decoder's text; None if it is not set, or the tokenizer has no languages."""
        return getattr(self.library.tokenizer, "tgt_lang", None) if self.has_languages else None

    def set_languages(self, source: str | None, target: str | None) -> None:
        """Set the languages of a text and of a target. Raises UsageError for an unknown language."""
        for side, language in (("source", source), ("target", target)):
            if language is not None:
                set_language(self.library.tokenizer, side, language, self.name)

    def force_language(self, forced: int | None) -> None:
        """Set the language of a target to the one whose token id `generate` is configured to begin with."""
        codes = (
            {number: code for code, number in languages_of(self.library.tokenizer).items()}
            if self.has_languages
            else {}
        )
        if forced in codes:
            self.library.tokenizer.tgt_lang = codes[forced]

    def _encode_target(self, text: str) -> TextEncoding:
        """Return the encoding of a target. Raises UsageError if the tokenizer needs a language and has none (M2M100)."""
        try:
            return self.library.encode(text, as_target=True)
        except KeyError:
            if not self.has_languages or self.target_language is not None:
                raise
            codes = ", ".join(sorted(languages_of(self.library.tokenizer))[:6])
            raise UsageError(
                f"{self.name} writes each target in a language: name it with {option_name('target_language')} ({codes}, …)"
            ) from None

    def _within_limit(self, tokens: tuple[Token, ...]) -> tuple[Token, ...]:
        if self.limit is not None and len(tokens) > self.limit:
            if not self.truncate:
                raise TooLongError(
                    f"the text has {len(tokens):,} tokens, but {self.name} reads {self.limit:,}: "
                    f"shorten it, or give {option_name('truncate', True)}"
                )
            closing = [token for token in tokens[-1:] if token.special]  # [SEP] stays at the end
            tokens = (*tokens[: self.limit - len(closing)], *closing)
        return tokens

    def truncation_notes(self, text: str, tokens: Sequence[Token]) -> tuple[str, ...]:
        """Return a note about the end of a text that is cut off, since it has more tokens than the model reads; else ()."""
        if not self.truncate or self.limit is None or len(tokens) < self.limit:
            return ()
        second = len(text) + len(BETWEEN)
        sides = [(0, text)] + ([] if self.text_pair is None else [(second, self.text_pair)])
        unread = [part for first, side in sides if (part := self._unread_part(tokens, first, side))]
        if not unread:
            return ()
        which = "last" if self._cut_side == "left" else "first"
        by = option_name("truncate", True) if self.sentence is None else "sentence-transformers"
        return (f"{self.name} reads only the {which} {self.limit:,} tokens: {by} leaves out {' and '.join(unread)}.",)

    def _unread_part(self, tokens: Sequence[Token], first: int, side: str) -> str:
        """Return which part of one of two texts, which begins at character `first`, has no token; "" if all of it has."""
        spans = [(t.start, t.end) for t in tokens if t.start is not None and t.end is not None and not t.special]
        spans = [(start - first, end - first) for start, end in spans if first <= start < first + len(side)]
        if self._cut_side == "left":
            start = min((start for start, _ in spans), default=len(side))
            return f"the text before {quoted_beginning(side[start:].strip())}" if side[:start].strip() else ""
        end = max((end for _, end in spans), default=0)
        return f"the text from {quoted_beginning(side[end:].strip())} on" if side[end:].strip() else ""

    def sentence_notes(self, text: str) -> tuple[str, ...]:
        """Return the notes about what sentence-transformers does to a text of its folder; () for other folders."""
        return () if self.sentence is None else self.sentence.notes_of_text(text, self.name)

    @staticmethod
    def _bos_option(value: bool) -> str:
        """Return how a user asks for a beginning token, or for none: an option, or open_model(bos=True) in Python."""
        option = option_name("bos", value)
        return option if option.startswith("-") else f"open_model({option})"

    def beginning_notes(self, tokens: Sequence[Token], causal: bool) -> tuple[str, ...]:
        """Return the notes about how these tokens begin: a doubled or a missing beginning token."""
        if self.bos_id is None or not tokens:
            return ()
        mark = self.tokenizer.id_to_token(self.bos_id)
        if len(tokens) > 1 and tokens[0].id == tokens[1].id == self.bos_id:
            return (
                f"{mark} is twice at the start, once from the tokenizer and once from the text: "
                f"{self._bos_option(False)} reads it once.",
            )
        if causal and self.bos is None and tokens[0].id != self.bos_id and not tokens[0].special:
            return (
                f"There is no {mark} at the start; a model trained with one may want it: "
                f"{self._bos_option(True)} adds it.",
            )
        return ()

    def separator_notes(self, tokens: Sequence[Token]) -> tuple[str, ...]:
        """Return a note if a text contains the separator of two texts; else ()."""
        mark = named_token(self.settings, "sep_token") or "[SEP]"
        number = self.tokenizer.token_to_id(mark)
        separators = [token for token in tokens if token.id == number and token.special and token.start != token.end]
        if number is None or not separators:
            return ()
        sentence = f"The text holds {mark} and is read as one text: {option_name('text_pair')} gives the second of two."
        return (Note(sentence, "input"),)

    def place_notes(self, tokens: Sequence[Token]) -> tuple[str, ...]:
        """Return a note if a tokenizer without offsets gives pieces that do not spell the text; else ()."""
        first = next((token for token in tokens if not token.special), None)
        if first is None or first.start is not None or not isinstance(self.tokenizer, LibraryTokenizer):
            return ()
        return (
            f"The tokenizer of {self.name} gives no positions in the text, and its pieces do not spell it: tokens are "
            "shown as pieces, and words and spans cannot be found.",
        )

    def language_notes(self, is_given: bool) -> tuple[str, ...]:
        """Return a note about the language of a target, which the user gave (`is_given`) or the model writes; else ()."""
        if self.names_target or not self.has_languages:
            return ()
        language = self.target_language
        if language is None:
            return (
                f"No target language is set, so {self.name} begins without one: {option_name('target_language')} sets it.",
            )
        same_language = ", the language of the source" if language == self.library.tokenizer.src_lang else ""
        verb = "read as" if is_given else "written in"
        return (f"The target is {verb} {language}{same_language}: {option_name('target_language')} sets another.",)

    def size_notes(self, rows: int) -> tuple[str, ...]:
        """Return a note if the embedding table has many more rows than the tokenizer has tokens; else ().

        Tables are padded by a few hundred rows. The other case, an id without a row, is refused when a text contains one.
        """
        n_tokens = self.tokenizer.get_vocab_size()
        if rows - n_tokens <= max(UNUSED_ROWS, 0.1 * rows):
            return ()
        return (
            f"The tokenizer of {self.name} has {n_tokens:,} tokens, its network rows for {rows:,}: if it is another "
            "model's, every word is read as another one.",
        )

    def _with_bos(self, tokens: tuple[Token, ...]) -> tuple[Token, ...]:
        if self.bos is None:
            return tokens
        if self.bos_id is None:
            raise UsageError(f"{self.name} has no token for the beginning of a text", option="bos", value=self.bos)
        begins = bool(tokens) and tokens[0].id == self.bos_id
        if not self.bos:
            added = begins and tokens[0].start == tokens[0].end
            return tokens[1:] if added else tokens
        while len(tokens) > 1 and tokens[0].id == tokens[1].id == self.bos_id:
            tokens = tokens[1:]
        if begins:
            return tokens
        return (Token(str(self.tokenizer.id_to_token(self.bos_id)), self.bos_id, 0, 0, special=True), *tokens)

    def mask_positions(self, tokens: Sequence[Token]) -> list[int]:
        """Return the positions of the mask tokens, which the model fills in."""
        mask = named_token(self.settings, "mask_token")
        return [position for position, token in enumerate(tokens) if mask and token.special and token.text == mask]

    def named_id(self, number: int) -> Token:
        """Return the special token of an id, which the model puts before its own text."""
        return Token(self.tokenizer.id_to_token(number) or str(number), number, special=True)

    @cached_property
    def _unknown(self) -> str | None:
        """Return the piece for what is not in the vocabulary, or None."""
        return unknown_piece(self.tokenizer) or named_token(self.settings, "unk_token")

    @cached_property
    def unknown_id(self) -> int | None:
        """Return the id of the piece for what is not in the vocabulary, or None."""
        return self.tokenizer.token_to_id(self._unknown) if self._unknown else None

    @cached_property
    def bos_id(self) -> int | None:
        """Return the id of the token that begins a text, or None."""
        piece = named_token(self.settings, "bos_token") or named_token(self.settings, "cls_token")
        return self.tokenizer.token_to_id(piece) if piece else None

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Return the ids of special tokens: beginnings, ends, separators, masks."""
        return frozenset(i for i, added in self.tokenizer.get_added_tokens_decoder().items() if added.special)

    def tokens_of_encoding(self, text: str, encoding: Encoding | TextEncoding, first: int = 0) -> tuple[Token, ...]:
        """Return the tokens of an encoding of `text`, each shown by its characters in the text, without ##, Ġ or ▁.

        `first` is the number of characters of the first of two texts.
        """
        check_token_count(len(encoding.ids), text)
        unknown, unknown_id = self._unknown, self.unknown_id
        types: list[int | None] = [*encoding.type_ids] if any(encoding.type_ids) else [None] * len(encoding.ids)
        tokens = []
        placed = _placed_encoding(encoding, first)
        places = self._spelled_places(text, placed)
        for piece, number, place, mask, kind, word in zip(
            placed.tokens,
            placed.ids,
            piece_spans(text, places),
            placed.special_tokens_mask,
            types,
            piece_words(text, placed.tokens, places, placed.word_ids),
            strict=True,
        ):
            start, end = (None, None) if place is None else place
            span = "" if start is None else text[start:end]
            # Unigram keeps the letters of an unknown piece: only its id shows that it is unknown
            missing = number == unknown_id is not None and (place is None or span not in ("", unknown))
            special = not missing and (bool(mask) or number in self.special_ids)
            name = piece if special else piece_text(piece, span) if span else bare_piece(piece)
            word_of_token = None if special else word
            tokens.append(
                Token(_named_letter(name), number, start, end, special, missing, type=kind, word=word_of_token)
            )
        return _split_characters(text, tokens)

    def _spelled_places(self, text: str, placed: TextEncoding) -> Sequence[Place]:
        """Return the spans of an encoding's pieces, without those of a word whose letters the tokenizer dropped."""
        if isinstance(self.tokenizer, LibraryTokenizer):
            return placed.offsets
        return spelled_places(self.tokenizer, text, placed.tokens, placed.offsets, placed.word_ids)

    def dropped_notes(self, text: str, tokens: Sequence[Token]) -> tuple[str, ...]:
        """Return a note if the tokenizer dropped letters of the text; else ()."""
        if isinstance(self.tokenizer, LibraryTokenizer) or not drops_letters(self.tokenizer):
            return ()
        return tuple(Note(sentence, "input") for sentence in dropped_letters(self.joined_text(text), tokens))

    def spelled_target(self, tokens: Sequence[Token]) -> tuple[str, tuple[Token, ...]]:
        """Return the text that a decoder's tokens spell, and these with their places in it and their words.

        Tokens that are single bytes have the place of their character.
        """
        ids, placed = [token.id or 0 for token in tokens], list[Token]()
        text, length = "", 0
        for count in range(1, len(ids) + 1):
            text = self.tokenizer.decode(ids[:count])
            waits = text.endswith("\ufffd") and count - len(placed) < CHARACTER_BYTES
            if not waits or count == len(ids):
                placed += [replace(token, start=length, end=len(text)) for token in tokens[len(placed) : count]]
                length = len(text)
        encoded = self.tokens_of_encoding(text, self.tokenizer.encode(text, add_special_tokens=False))
        word_at = {character: token.word for token in encoded for character in range(token.start or 0, token.end or 0)}
        for index, token in enumerate(placed):
            start, end = token.start or 0, token.end or 0
            first = start + len(text[start:end]) - len(text[start:end].lstrip())
            placed[index] = replace(token, word=word_at.get(first))
        return text, tuple(placed)

    def continued_tokens(self, before: Sequence[int], after: Sequence[int]) -> tuple[Token, ...]:
        """Return tokens for the generated ids `after`, which follow `before`; they have no position in the text."""
        ids = list(before)
        decoded = self.tokenizer.decode(ids, skip_special_tokens=False)
        pending: list[int] = []
        tokens: list[Token] = []
        for number in after:
            pending.append(number)
            decoded_now = self.tokenizer.decode(ids + pending, skip_special_tokens=False)
            if decoded_now.endswith("\ufffd") and len(pending) < 8:  # an incomplete character
                continue
            span = decoded_now[len(decoded) :]
            name = span.strip() or span or bare_piece(self.tokenizer.id_to_token(number) or "")
            names = [_named_letter(name)] if len(pending) == 1 else _numbered_pieces(name, len(pending))
            pairs = zip(names, pending, strict=True)
            tokens += [Token(text, i, special=i in self.special_ids) for text, i in pairs]
            ids, decoded, pending = ids + pending, decoded_now, []
        return (*tokens, *(Token("\ufffd", i) for i in pending))


def _placed_encoding(encoding: Encoding | TextEncoding, first: int) -> TextEncoding:
    """Return an encoding of two texts with the second one's offsets after the first, `first` characters long."""
    behind, words = first + len(BETWEEN), encoding.word_ids
    count = 1 + max(
        (w for w, s in zip(words, encoding.sequence_ids, strict=True) if w is not None and s != 1), default=-1
    )
    offsets, numbers = list[tuple[int, int] | None](), list[int | None]()
    for place, word, sequence in zip(encoding.offsets, words, encoding.sequence_ids, strict=True):
        second = sequence == 1
        offsets.append((place[0] + behind, place[1] + behind) if second and place is not None else place)
        numbers.append(word + count if second and word is not None else word)
    return TextEncoding(
        encoding.ids,
        encoding.tokens,
        offsets,
        encoding.special_tokens_mask,
        encoding.type_ids,
        encoding.sequence_ids,
        numbers,
    )


def _moved_back(tokens: Sequence[Token], length: int) -> tuple[Token, ...]:
    """Return the tokens of a text without the `length` characters before it; tokens of these have no position."""
    if not length:
        return tuple(tokens)
    moved = []
    for token in tokens:
        if token.start is None or token.end is None or token.start == token.end == 0:
            moved.append(token)
        elif token.end <= length:
            moved.append(replace(token, start=None, end=None, word=None))
        else:
            moved.append(replace(token, start=max(0, token.start - length), end=token.end - length))
    return tuple(moved)


def _named_letter(text: str) -> str:
    """Name a single invisible character: a joiner, or a letter of private use."""
    return f"U+{ord(text):04X}" if len(text) == 1 and unicodedata.category(text) in ("Cf", "Co") else text


def _numbered_pieces(text: str, count: int) -> list[str]:
    return [_named_letter(text) + str(part + 1).translate(_SUBSCRIPTS) for part in range(count)]


def _split_characters(text: str, tokens: list[Token]) -> tuple[Token, ...]:
    """Show tokens that share a character (an emoji's bytes) as that character, numbered: 🍕₁ 🍕₂."""
    result: list[Token] = []
    first = 0
    while first < len(tokens):
        last = first
        while last + 1 < len(tokens) and _spans_overlap(tokens[last], tokens[last + 1]):
            last += 1
        group = tokens[first : last + 1]
        if last > first:
            start, end = group[0].start, max(token.end or 0 for token in group)
            names = _numbered_pieces(text[start:end].strip() or text[start:end], len(group))
            group = [replace(token, text=name) for token, name in zip(group, names, strict=True)]
        result += group
        first = last + 1
    return tuple(result)


def _spans_overlap(first: Token, second: Token) -> bool:
    if first.end is None or second.start is None or second.end is None:
        return False
    if not first.text.strip():  # a space before the text, which covers its first character
        return False
    return first.start != first.end and second.start < first.end and second.end > second.start


def named_token(settings: Document, name: str) -> str:
    """Return a token of tokenizer_config.json, which is a string or an object there; "" if it is missing."""
    entry = settings.get(name)
    content = entry.get("content") if isinstance(entry, dict) else entry
    return content if isinstance(content, str) else ""


def unknown_piece(tokenizer: Tokenizer | LibraryTokenizer) -> str | None:
    """Return the piece that stands for a character which the vocabulary lacks; None for a model without one."""
    return getattr(tokenizer.model, "unk_token", None)


def open_pieces(
    folder: Path,
    name: str,
    *,
    bos: bool | None = None,
    truncate: bool = False,
    tokenizer: str | os.PathLike[str] | None = None,
) -> Pieces:
    """Return the tokenizer in a checkpoint's folder, for sentence-transformers with what that library does to a text.

    `tokenizer` names another tokenizer.json, or the folder of another tokenizer. Raises AttnctlError if no file of it can
    be read.
    """
    place = folder if tokenizer is None else _place_of_tokenizer(tokenizer)
    home = place if place.is_dir() else folder
    settings = read_json(home / "tokenizer_config.json") if (home / "tokenizer_config.json").exists() else {}
    if (home / "chat_template.jinja").exists():
        template = str(home / "chat_template.jinja")
        settings = settings | {"chat_template": decode_text(read_bytes(template, limits.SETTINGS_BYTES), template)}
    path = place / "tokenizer.json" if place.is_dir() else place
    opened = functools.cache(functools.partial(open_library_tokenizer, place, name))
    read: Tokenizer | LibraryTokenizer
    with telling_errors(f"{name} has no tokenizer that can be read"):
        if path.exists():
            read = library_tokenizer(path, f"{name} has no tokenizer that can be read")
        else:  # older checkpoints: transformers builds a tokenizer from their vocabulary
            library = opened().tokenizer
            read = getattr(library, "backend_tokenizer", None) or opened()
            settings = settings | {key: str(token) for key, token in library.special_tokens_map.items()}
            if not isinstance(read, LibraryTokenizer):
                read.no_truncation()
                read.no_padding()
    if not path.exists():
        _check_vocabulary(read, name, place)
    longest = settings.get("model_max_length")
    limit = int(longest) if isinstance(longest, int | float) and 0 < longest < 10**9 else None
    pieces = Pieces(name, read, settings, limit, bos=bos, truncate=truncate, open_library=opened)
    return _as_sentence_transformers(pieces, sentence_settings(folder))


def _place_of_tokenizer(tokenizer: str | os.PathLike[str]) -> Path:
    """Return the file or folder of a tokenizer. Raises UsageError for anything else."""
    place = Path(tokenizer)
    if not place.is_dir() and not place.is_file():
        why = "a checkpoint reads a tokenizer.json, or the folder of a tokenizer"
        raise UsageError(why, option="tokenizer", value=str(tokenizer))
    return place


def _as_sentence_transformers(pieces: Pieces, sentence: SentenceSettings | None) -> Pieces:
    """Return a tokenizer that reads texts as sentence-transformers does with these settings; None: the same tokenizer."""
    if sentence is None:
        return pieces
    open_library, tokenizer = pieces.open_library, pieces.tokenizer
    if sentence.lower_case:
        lower_case(tokenizer)
        opened = open_library

        @functools.cache
        def open_library() -> LibraryTokenizer:
            assert opened is not None
            library = opened()
            lower_case(library)
            return library

    limit = pieces.limit if sentence.limit is None else sentence.limit
    return replace(pieces, limit=limit, truncate=True, sentence=sentence, open_library=open_library)


def _check_vocabulary(tokenizer: Tokenizer | LibraryTokenizer, name: str, folder: Path) -> None:
    """Raise AttnctlError if no word has a token, as in a tokenizer that transformers makes without a vocabulary."""
    special = sum(added.special for added in tokenizer.get_added_tokens_decoder().values())
    if tokenizer.get_vocab_size() - special > 2:  # T5's and DeBERTa's also have "▁"
        return
    named = option_name("tokenizer")
    remedy = f"put its tokenizer.json there, or name it with {named} (tokenizer.save_pretrained writes it)"
    if (folder / "vocab.txt").is_file():  # of a tokenizer whose rules for splitting are code (SMILES, DNA)
        remedy = (
            "its vocab.txt does not say how a text is split: write a tokenizer.json that does (attnctl docs speech shows "
            f"it for SMILES), put it there, or name it with {named}"
        )
    raise AttnctlError(f"{name} has no vocabulary that its tokenizer reads: {remedy}")
