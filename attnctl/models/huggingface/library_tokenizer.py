"""A tokenizer of transformers with the methods of the tokenizers library that attnctl calls.

It builds a whole input: special tokens, the second of two texts, token types, language codes. Some tokenizers are written
in Python (ESM-2, Marian, M2M100, ByT5, CANINE) and give no offsets: their pieces are searched in the text, from left to
right.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from attnctl.errors import AttnctlError, UsageError, in_one_line
from attnctl.text.tokens import Span, plain_letters, without_marks, word_numbers

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase


class TextEncoding(NamedTuple):
    """The encoding of one or two texts, one value per token; the names come from `tokenizers.Encoding`."""

    ids: list[int]
    tokens: list[str]
    offsets: Sequence[Span | None]  # None: the tokenizer gives no offset, and none was found
    special_tokens_mask: list[int]
    type_ids: list[int]  # all 0 if the tokenizer gives no token types
    sequence_ids: list[int | None]  # 0 the first text, 1 the second, None neither
    word_ids: list[int | None]  # number of a token's word in its text


class LibraryTokenizer:
    """A tokenizer of transformers; `tokenizer` is the wrapped object."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer: Any = tokenizer
        # the attribute of the tokenizers library
        self.model = SimpleNamespace(unk_token=None if tokenizer.unk_token is None else str(tokenizer.unk_token))

    def encode(
        self,
        text: str,
        add_special_tokens: bool = True,
        *,
        pair: str | None = None,
        as_target: bool = False,
        longest: int | None = None,
    ) -> TextEncoding:
        """Return the encoding of a text, or of two; `as_target` encodes the text of a decoder.

        It is cut to `longest` tokens; None: it is not cut.
        """
        texts = {"text_target": text} if as_target else {"text": text, "text_pair": pair}
        cut = {} if longest is None else {"truncation": True, "max_length": longest}
        encoded = self.tokenizer(**texts, add_special_tokens=add_special_tokens, return_special_tokens_mask=True, **cut)
        ids, special = list(encoded["input_ids"]), list(encoded["special_tokens_mask"])
        types = list(encoded.get("token_type_ids") or [0] * len(ids))
        if self.tokenizer.is_fast:
            encoding = encoded.encodings[0]
            return TextEncoding(
                ids, encoding.tokens, encoding.offsets, special, types, encoding.sequence_ids, encoding.word_ids
            )
        pieces: list[str] = self.tokenizer.convert_ids_to_tokens(ids)
        sequences = self._sequence_ids(special, text, pair)
        offsets: list[Span | None] = [(0, 0) if mark else None for mark in special]
        words: list[int | None] = [None] * len(ids)
        for number, part in enumerate((text, pair)):
            positions = [position for position, sequence in enumerate(sequences) if sequence == number]
            known_pieces = [
                None if pieces[position] == self.model.unk_token else pieces[position] for position in positions
            ]
            for position, span in zip(positions, match_pieces(part or "", known_pieces), strict=True):
                offsets[position] = span
            numbers = word_numbers(part or "")
            for position in positions:
                span = offsets[position]
                words[position] = (
                    None if span is None else next((numbers[index] for index in range(*span) if index in numbers), None)
                )
        return TextEncoding(ids, pieces, offsets, special, types, sequences, words)

    def _sequence_ids(self, special: list[int], text: str, pair: str | None) -> list[int | None]:
        """Return which of two texts each token belongs to: the first text has as many tokens as when encoded alone."""
        first = len(special) if pair is None else len(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        sequences, count = list[int | None](), 0
        for mark in special:
            sequences.append(None if mark else int(count >= first))
            count += not mark
        return sequences

    def get_vocab(self) -> dict[str, int]:
        """Return the id of each piece."""
        vocabulary: dict[str, int] = self.tokenizer.get_vocab()
        return vocabulary

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text that these ids spell."""
        options = {"skip_special_tokens": skip_special_tokens, "clean_up_tokenization_spaces": False}
        return str(self.tokenizer.decode(list(ids), **options))

    def id_to_token(self, number: int) -> str | None:
        """Return the piece of an id; None for an id outside the vocabulary."""
        return str(self.tokenizer.convert_ids_to_tokens(number)) if 0 <= number < self.get_vocab_size() else None

    def token_to_id(self, piece: str) -> int | None:
        """Return the id of a piece; None for a piece outside the vocabulary."""
        number: int | None = self.tokenizer.convert_tokens_to_ids(piece)
        is_unknown = number == self.tokenizer.unk_token_id and piece != self.model.unk_token
        return None if is_unknown else number

    def get_vocab_size(self) -> int:
        """Return the number of ids, with added tokens."""
        return len(self.tokenizer)

    def get_added_tokens_decoder(self) -> dict[int, Any]:
        """Return id → added token, with special tokens."""
        special = {number: SimpleNamespace(special=True) for number in self.tokenizer.all_special_ids}
        return {**special, **self.tokenizer.added_tokens_decoder}


def lower_case(tokenizer: Tokenizer | LibraryTokenizer) -> None:
    """Let a tokenizer read each text in lower case, as sentence-transformers does: before its other normalisers."""
    from tokenizers.normalizers import Lowercase, Sequence

    own = tokenizer.tokenizer if isinstance(tokenizer, LibraryTokenizer) else None
    if own is not None and not own.is_fast:
        own.do_lower_case = True
        return
    backend: Any = tokenizer if own is None else own.backend_tokenizer
    normalizer = backend.normalizer
    is_several = isinstance(normalizer, Sequence)
    parts: list[Any] = list(normalizer) if is_several else [] if normalizer is None else [normalizer]
    if not any(isinstance(part, Lowercase) for part in parts):
        backend.normalizer = Sequence([Lowercase(), *parts])


# --- languages -------------------------------------------------------------------------------------------------------

_LANGUAGE = re.compile(r"[a-z]{2,3}_[A-Z][A-Za-z]+|__[a-z]{2,4}(_[A-Za-z]+)?__")  # fra_Latn, fr_XX, __fra__, __python__


def languages_of(tokenizer: Any) -> dict[str, int]:
    """Return language code → id of its token; {} for a tokenizer without languages."""
    if not hasattr(tokenizer, "tgt_lang"):
        return {}
    named: dict[str, int] | None = getattr(tokenizer, "lang_code_to_id", None)
    if named is not None:
        return dict(named)
    tokens = map(str, tokenizer.all_special_tokens)
    return {token: tokenizer.convert_tokens_to_ids(token) for token in tokens if _LANGUAGE.fullmatch(token)}


LISTED = 600  # length of the list of languages in a message, in characters


def set_language(tokenizer: Any, side: str, language: str, name: str) -> None:
    """Set the "source" or "target" language of a tokenizer. Raises UsageError for an unknown language."""
    languages = languages_of(tokenizer)
    if not languages:
        supported = [code for code in getattr(tokenizer, "supported_language_codes", ()) if code]
        instead = f'; its texts begin with their target language: "{supported[0]} …"' if supported else ""
        why = f"the tokenizer of {name} has no languages{instead}"
        raise UsageError(why, option=f"{side}_language", value=language)
    code = language if language in languages else f"__{language}__"
    if code not in languages:
        codes = sorted(languages)
        similar = [
            code_listed for code_listed in codes if code_listed.strip("_")[:2] == language.strip("_")[:2].casefold()
        ]
        fits = len(", ".join(codes)) <= LISTED
        shown_codes = codes if fits else similar or codes[: LISTED // (2 + max(map(len, codes)))]
        remainder = f", … ({len(codes)} in all)" if len(shown_codes) < len(codes) else ""
        why = f"{name} knows {', '.join(shown_codes)}{remainder}"
        raise UsageError(why, option=f"{side}_language", value=language)
    setattr(tokenizer, "src_lang" if side == "source" else "tgt_lang", code)


# --- the places of pieces in a text ----------------------------------------------------------------------------------


def match_pieces(text: str, pieces: Sequence[str | None]) -> list[Span | None]:
    """Return the span of each piece in the text; all None if the pieces do not spell the text.

    A piece that is None is unknown: it gets the characters between its neighbours.
    """
    for find in (_spans_as_written, _spans_of_bytes, _spans_of_letters):
        spans = find(text, pieces)
        if spans is not None:
            return list(spans)
    return [None] * len(pieces)


def _spans_as_written(text: str, pieces: Sequence[str | None]) -> list[Span] | None:
    """Return the spans of pieces that are the text, split: characters (CANINE), amino acids; else None."""
    if None in pieces or "".join(map(str, pieces)) != text:
        return None
    spans, end = [], 0
    for piece in map(str, pieces):
        spans.append((end, end + len(piece)))
        end += len(piece)
    return spans


def _spans_of_bytes(text: str, pieces: Sequence[str | None]) -> list[Span] | None:
    """Return the spans of pieces that are bytes, each written as the character of that number (ByT5); else None."""
    if not all(piece is not None and len(piece) == 1 and ord(piece) < 256 for piece in pieces):
        return None
    if bytes(ord(str(piece)) for piece in pieces) != text.encode():
        return None
    return [(index, index + 1) for index, character in enumerate(text) for _ in character.encode()]


def _spans_of_letters(text: str, pieces: Sequence[str | None]) -> list[Span] | None:
    """Return the spans of pieces of words; else None.

    Their marks, letter case, accents and white space may differ from the text's.
    """
    letters = [(letter, index) for index, character in enumerate(text) for letter in plain_letters(character)]
    flat, position = "".join(letter for letter, _ in letters), 0
    spans: list[Span | None] = []

    def span_of(first: int, last: int) -> Span:
        """Return the span in the text of the letters [first, last) of `flat`."""
        here = letters[first][1] if first < len(letters) else len(text)
        return (here, letters[last - 1][1] + 1) if last > first else (here, here)

    def fill_unknown(until: int) -> bool:
        """Give the unknown pieces the text before letter `until`; return False if there is no text before it."""
        unknown = spans and spans[-1] is None
        if unknown and until <= position:
            return False
        first, last = span_of(position, until) if unknown else (0, 0)
        words = [match.span() for match in re.finditer(r"\S+", text[first:last])]
        places = [index for index, span in enumerate(spans) if span is None]
        for number, index in enumerate(places):
            start, end = words[number] if len(words) == len(places) else (0, last - first)
            spans[index] = (first + start, first + end)
        return True

    for piece in pieces:
        if piece is None:
            spans.append(None)
            continue
        for form in (plain_letters(without_marks(piece)), plain_letters(piece)):
            waits = bool(spans) and spans[-1] is None and bool(form)
            start = flat.find(form, position + 1) if waits else position if flat.startswith(form, position) else -1
            if start >= 0:
                break
        else:
            return None
        if form and not fill_unknown(start):
            return None
        spans.append(span_of(start, start + len(form)))
        position = start + len(form)
    return spans if fill_unknown(len(flat)) else None  # type: ignore[return-value]


OpenTokenizer = Callable[[], LibraryTokenizer]


def open_library_tokenizer(place: Path, name: str) -> LibraryTokenizer:
    """Return the tokenizer of transformers in a folder, or of a tokenizer.json.

    Raises AttnctlError, in one line, if it cannot be read.
    """
    from attnctl.models.huggingface.hub import import_extra
    from attnctl.models.huggingface.network import quiet_library
    from attnctl.runtime.light_import import complete_torch

    complete_torch()  # this may import a family's configuration, which needs all of torch
    transformers = import_extra("transformers")
    try:
        with quiet_library():
            if place.is_file():
                return LibraryTokenizer(transformers.PreTrainedTokenizerFast(tokenizer_file=str(place)))
            auto = transformers.AutoTokenizer
            return LibraryTokenizer(auto.from_pretrained(place, local_files_only=True, trust_remote_code=False))
    except Exception as error:
        reason = _missing_packages(place) or in_one_line(error)
        raise AttnctlError(f"{name} has no tokenizer that can be read ({reason})") from error


def _missing_packages(place: Path) -> str:
    """Return which packages a tokenizer of sentencepiece needs that are not installed; "" if none is missing.

    Without them transformers asks for tiktoken, which does not read such files.
    """
    suffixes = (".model", ".spm")
    files = [path for path in sorted(place.iterdir()) if path.suffix in suffixes] if place.is_dir() else []
    modules = {"sentencepiece": "sentencepiece", "protobuf": "google.protobuf"}
    missing = [package for package, module in modules.items() if not _is_installed(module)]
    if not files or not missing:
        return ""
    return f"{files[0].name} needs {' and '.join(missing)}: pip install {' '.join(missing)}"


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package google itself is missing
        return False
