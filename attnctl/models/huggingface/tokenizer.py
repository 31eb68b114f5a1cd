"""A checkpoint's tokenizer, its pieces shown as people read them."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnctl import limits
from attnctl.errors import AttnctlError, TooLongError, UsageError, telling_errors
from attnctl.files import decode_text, read_bytes
from attnctl.light_import import complete_torch
from attnctl.models.huggingface.hub import import_extra, read_json
from attnctl.tokens import Token, bare_piece, check_token_count, library_tokenizer, piece_spans, piece_text, piece_words

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

    from attnctl.text import Document
    from attnctl.tokens import GuardedTokenizer


UNUSED_ROWS = 1000  # in an embedding table beyond the tokenizer's tokens, before the two are thought not to fit
_SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


@dataclass(frozen=True)
class Pieces:
    """The tokenizer of a checkpoint's folder. `bos`: None as the tokenizer does it, True exactly one, False none added."""

    name: str
    tokenizer: Tokenizer | GuardedTokenizer
    settings: Document  # tokenizer_config.json
    limit: int | None = None  # tokens that the model can read
    bos: bool | None = None
    truncate: bool = False

    def tokenize_text(self, text: str) -> tuple[Token, ...]:
        """The tokens of `text`, special ones included.

        Raises AttnctlError where there are more than the model reads, UsageError for --bos where there is none.
        """
        with telling_errors(f"the tokenizer of {self.name} fails on this text"):
            tokens = self._with_bos(self.tokens_of_encoding(text, self.tokenizer.encode(text)))
        if self.limit is not None and len(tokens) > self.limit:
            if not self.truncate:
                raise TooLongError(
                    f"the text has {len(tokens):,} tokens, but {self.name} reads {self.limit:,}: "
                    "shorten it, or give --truncate"
                )
            closing = [token for token in tokens[-1:] if token.special]  # [SEP] stays at the end
            tokens = (*tokens[: self.limit - len(closing)], *closing)
        return tokens

    def beginning_notes(self, tokens: Sequence[Token], causal: bool) -> tuple[str, ...]:
        """What a reader must know about how these tokens begin."""
        if self.bos_id is None or not tokens:
            return ()
        mark = self.tokenizer.id_to_token(self.bos_id)
        if len(tokens) > 1 and tokens[0].id == tokens[1].id == self.bos_id:
            return (f"{mark} stands twice at the start, once from the tokenizer and once from the text: see --bos.",)
        if causal and self.bos is None and tokens[0].id != self.bos_id and not tokens[0].special:
            return (f"The tokenizer adds no {mark} at the start; a model trained with one may want it: --bos adds it.",)
        return ()

    def size_notes(self, rows: int) -> tuple[str, ...]:
        """What a reader must know where an embedding table of `rows` tokens holds many more than the tokenizer gives.

        Tables are padded by a few hundred rows. The other case, an id without a row, is refused where a text has one.
        """
        known = self.tokenizer.get_vocab_size()
        if rows - known <= max(UNUSED_ROWS, 0.1 * rows):
            return ()
        return (
            f"The tokenizer of {self.name} has {known:,} tokens, its network rows for {rows:,}: if it is another model's, "
            "every word is read as another one.",
        )

    def _with_bos(self, tokens: tuple[Token, ...]) -> tuple[Token, ...]:
        if self.bos is None:
            return tokens
        if self.bos_id is None:
            raise UsageError(
                f"--{'bos' if self.bos else 'no-bos'}: {self.name} has no token for the beginning of a text"
            )
        begins = bool(tokens) and tokens[0].id == self.bos_id
        if not self.bos:
            added = begins and tokens[0].start == tokens[0].end
            return tokens[1:] if added else tokens
        while len(tokens) > 1 and tokens[0].id == tokens[1].id == self.bos_id:
            tokens = tokens[1:]
        if begins:
            return tokens
        return (Token(str(self.tokenizer.id_to_token(self.bos_id)), self.bos_id, 0, 0, special=True), *tokens)

    @cached_property
    def bos_id(self) -> int | None:
        """The id of the token that begins a text, or None."""
        named = named_token(self.settings, "bos_token") or named_token(self.settings, "cls_token")
        return self.tokenizer.token_to_id(named) if named else None

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The ids of tokens that are no text: beginnings, ends, separators, masks."""
        return frozenset(i for i, added in self.tokenizer.get_added_tokens_decoder().items() if added.special)

    def tokens_of_encoding(self, text: str, encoding: Encoding) -> tuple[Token, ...]:
        """Tokens of an Encoding of `text`: each shown by the characters it covers, without ##, Ġ or ▁."""
        check_token_count(len(encoding.ids), text)
        unknown = getattr(self.tokenizer.model, "unk_token", None)
        tokens = []
        for piece, number, (start, end), mask, word in zip(
            encoding.tokens,
            encoding.ids,
            piece_spans(text, encoding),
            encoding.special_tokens_mask,
            piece_words(text, encoding),
            strict=True,
        ):
            span = text[start:end]
            missing = piece == unknown and span not in ("", piece)
            special = not missing and (bool(mask) or number in self.special_ids)
            shown = piece if special else _visible_joiner(piece_text(piece, span)) if span else bare_piece(piece)
            tokens.append(Token(shown, number, start, end, special, missing, word=None if special else word))
        return _split_characters(text, tokens)

    def continued_tokens(self, before: Sequence[int], after: Sequence[int]) -> tuple[Token, ...]:
        """Tokens for generated ids `after`, which follow `before`; they have no place in the text."""
        ids = list(before)
        done = self.tokenizer.decode(ids, skip_special_tokens=False)
        pending: list[int] = []
        tokens: list[Token] = []
        for number in after:
            pending.append(number)
            now = self.tokenizer.decode(ids + pending, skip_special_tokens=False)
            if now.endswith("\ufffd") and len(pending) < 8:  # a character not complete yet
                continue
            span = now[len(done) :]
            shown = span.strip() or span or bare_piece(self.tokenizer.id_to_token(number) or "")
            names = [_visible_joiner(shown)] if len(pending) == 1 else _numbered_pieces(shown, len(pending))
            pairs = zip(names, pending, strict=True)
            tokens += [Token(text, i, special=i in self.special_ids) for text, i in pairs]
            ids, done, pending = ids + pending, now, []
        return (*tokens, *(Token("\ufffd", i) for i in pending))


def _visible_joiner(text: str) -> str:
    """A joiner that stands alone would not be seen: it is named."""
    return f"U+{ord(text):04X}" if len(text) == 1 and unicodedata.category(text) == "Cf" else text


def _numbered_pieces(text: str, count: int) -> list[str]:
    return [_visible_joiner(text) + str(part + 1).translate(_SUBSCRIPTS) for part in range(count)]


def _split_characters(text: str, tokens: list[Token]) -> tuple[Token, ...]:
    """Tokens that share a character (an emoji's bytes) are shown as that character, numbered: 🍕₁ 🍕₂."""
    shown: list[Token] = []
    at = 0
    while at < len(tokens):
        last = at
        while last + 1 < len(tokens) and _spans_overlap(tokens[last], tokens[last + 1]):
            last += 1
        group = tokens[at : last + 1]
        if last > at:
            start, end = group[0].start, max(token.end or 0 for token in group)
            names = _numbered_pieces(text[start:end].strip() or text[start:end], len(group))
            group = [replace(token, text=name) for token, name in zip(group, names, strict=True)]
        shown += group
        at = last + 1
    return tuple(shown)


def _spans_overlap(one: Token, other: Token) -> bool:
    assert one.end is not None and other.start is not None and other.end is not None
    if not one.text.strip():  # a space before the text, which covers its first character
        return False
    return one.start != one.end and other.start < one.end and other.end > other.start


def named_token(settings: Document, name: str) -> str:
    """A token of tokenizer_config.json, which is written as a string or as an object; "" where it names none."""
    entry = settings.get(name)
    content = entry.get("content") if isinstance(entry, dict) else entry
    return content if isinstance(content, str) else ""


def open_pieces(folder: Path, name: str, **how: Any) -> Pieces:
    """The tokenizer in a checkpoint's folder. Raises AttnctlError where there is none that can be read."""
    settings = read_json(folder / "tokenizer_config.json") if (folder / "tokenizer_config.json").exists() else {}
    if (folder / "chat_template.jinja").exists():
        template = str(folder / "chat_template.jinja")
        settings = settings | {"chat_template": decode_text(read_bytes(template, limits.SETTINGS_BYTES), template)}
    path = folder / "tokenizer.json"
    with telling_errors(f"{name} has no tokenizer that can be read"):
        if path.exists():
            tokenizer = library_tokenizer(
                decode_text(read_bytes(path, limits.SETTINGS_BYTES), str(path)),
                f"{name} has no tokenizer that can be read",
            )
        else:  # older checkpoints: transformers knows how to build one from their vocabulary
            complete_torch()  # a family's configuration, which this may import, wants all of it
            auto = import_extra("transformers").AutoTokenizer
            wrapped = auto.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            if not hasattr(wrapped, "backend_tokenizer"):
                raise AttnctlError(
                    f"the tokenizer of {name} is of type {type(wrapped).__name__}, which tells no spans of the text"
                )
            tokenizer = wrapped.backend_tokenizer
            settings = settings | {key: str(token) for key, token in wrapped.special_tokens_map.items()}
            tokenizer.no_truncation()
            tokenizer.no_padding()
    if not path.exists():
        _check_vocabulary(tokenizer, name)
    longest = settings.get("model_max_length")
    lengths = [x for x in (how.pop("limit", None), longest) if isinstance(x, int | float) and 0 < x < 10**9]
    return Pieces(name, tokenizer, settings, int(min(lengths)) if lengths else None, **how)


def _check_vocabulary(tokenizer: Tokenizer | GuardedTokenizer, name: str) -> None:
    """Raise AttnctlError where no word has a token: transformers makes such a tokenizer of a folder without a vocabulary."""
    special = sum(added.special for added in tokenizer.get_added_tokens_decoder().values())
    if tokenizer.get_vocab_size() - special <= 2:  # T5's and DeBERTa's have "▁" and the like besides
        raise AttnctlError(
            f"{name} has no vocabulary that its tokenizer reads: put the tokenizer's files into its folder "
            "(tokenizer.json: tokenizer.save_pretrained writes it)"
        )
