"""Text to tokens: words and punctuation in any language, characters, or a trained tokenizer's file."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from attnctl import limits
from attnctl.errors import AttnctlError, TooLongError, UsageError, telling_errors
from attnctl.files import is_possible_name
from attnctl.text import isolated, visible_text
from attnctl.tokens.word_spans import cluster_spans, word_spans

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

    from attnctl.text import Document
    from attnctl.tokens.guarded_tokenizer import GuardedTokenizer


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of the text: its characters, its id, where it stands (start and end in characters), what it is."""

    text: str
    id: int | None = None
    start: int | None = None
    end: int | None = None
    special: bool = False
    unknown: bool = False  # the model has no such word and reads its unknown token instead


Tokenize = Callable[[str], tuple[Token, ...]]

BLANKS = ("____", "[MASK]", "<mask>")


def split_words(text: str) -> tuple[Token, ...]:
    """Words, numbers and signs, white space dropped: "Alice will eat pizza." is five tokens."""
    return _numbered_tokens(text, word_spans(text))


def split_characters(text: str) -> tuple[Token, ...]:
    """Characters as a reader sees them: letter and accent, or a joined emoji, are one token; white space is kept."""
    return _numbered_tokens(text, cluster_spans(text))


def _numbered_tokens(text: str, spans: Iterable[tuple[int, int]]) -> tuple[Token, ...]:
    """Tokens at these spans; without a vocabulary, ids count the distinct tokens of the text itself.

    Raises AttnctlError where they are more than limits.TEXT_TOKENS, before they fill the memory.
    """
    found = list(islice(spans, limits.TEXT_TOKENS + 1))
    check_token_count(len(found))
    ids: dict[str, int] = {}
    return tuple(Token(text[start:end], ids.setdefault(text[start:end], len(ids)), start, end) for start, end in found)


def check_token_count(count: int, text: str | None = None) -> None:
    """Raise AttnctlError for more tokens than are read of one text, or far more than the `text` has characters."""
    if text is not None and (said := limits.growth_error(count, len(text), "tokens")):
        raise AttnctlError(f"the tokenizer fails on this text ({said})")
    if count > limits.TEXT_TOKENS:
        raise TooLongError(
            f"the text has more than the {limits.TEXT_TOKENS:,} tokens that are read of one: give less of it"
        )


def from_file(path: str | Path) -> Tokenize:
    """The tokenizer of a `tokenizer.json`. Raises AttnctlError where the file is missing or none."""
    from attnctl.files import decode_text, read_bytes

    data = decode_text(read_bytes(path, limits.SETTINGS_BYTES), str(path))
    tokenizer = library_tokenizer(data, f"{path} is not a tokenizer.json")

    def tokenize_by_file(text: str) -> tuple[Token, ...]:
        with telling_errors(f"{path} fails on this text"):
            return from_encoding(text, tokenizer.encode(text))

    return tokenize_by_file


def library_tokenizer(data: str, refusal: str) -> GuardedTokenizer | Tokenizer:
    """A `tokenizers.Tokenizer` of the text of a tokenizer.json, which neither pads nor truncates.

    Raises AttnctlError, beginning with `refusal`, where it is none, or could make a short text endless.
    """
    with telling_errors(refusal):
        loaded = json.loads(data)
        grows = _may_grow(loaded if isinstance(loaded, dict) else {})
        from tokenizers import Tokenizer

        from attnctl.tokens.guarded_tokenizer import GuardedTokenizer, patterns_in

        tokenizer = Tokenizer.from_str(data)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        patterns = patterns_in(loaded)
        return GuardedTokenizer(tokenizer, patterns, grows) if patterns or grows else tokenizer


def _may_grow(settings: dict[str, object]) -> bool:
    """Whether the steps before a tokenizer may make more than limits.TEXT_GROWTH characters of one.

    Raises ValueError where the steps before or after it are too many, or make a character too many, whatever the text.
    """
    largest = 1.0
    for part in ("normalizer", "decoder"):
        count, growth = 0, 1.0
        waiting = [settings.get(part)]
        while waiting:
            step = waiting.pop()
            if not isinstance(step, dict):
                continue
            waiting += [*_pipeline_steps(step, "normalizers"), *_pipeline_steps(step, "decoders")]
            count += 1
            pattern, content = step.get("pattern"), step.get("content", step.get("prepend"))
            if isinstance(content, str):
                replaced = pattern.get("String") if isinstance(pattern, dict) else None
                growth *= max(
                    1.0, len(content) / len(replaced) if isinstance(replaced, str) and replaced else len(content)
                )
            if count > limits.TOKENIZER_STEPS or growth > limits.TOKENIZER_GROWTH:
                raise ValueError(f"its {part} is {count} steps that make a character up to {growth:,.0f}")
        largest = max(largest, growth)
    _check_template(settings)
    return largest > limits.TEXT_GROWTH


def _check_template(settings: dict[str, object]) -> None:
    """Raise ValueError where what is put around every text is of too many parts."""
    waiting, count = [settings.get("post_processor")], 0
    while waiting:
        step = waiting.pop()
        if not isinstance(step, dict):
            continue
        waiting += _pipeline_steps(step, "processors")
        special = step.get("special_tokens")
        added = (
            [entry.get("ids") for entry in special.values() if isinstance(entry, dict)]
            if isinstance(special, dict)
            else []
        )
        count += 1 + len(_pipeline_steps(step, "single")) + sum(len(ids) for ids in added if isinstance(ids, list))
        if count > limits.TOKENIZER_TEMPLATE:
            raise ValueError(f"its post_processor puts more than {limits.TOKENIZER_TEMPLATE} parts around a text")


def _pipeline_steps(step: dict[str, object], name: str) -> list[Document]:
    found = step.get(name)
    return found if isinstance(found, list) else []


def from_encoding(text: str, encoding: Encoding) -> tuple[Token, ...]:
    """Tokens of a `tokenizers.Encoding` of `text`, each shown by the characters that it covers."""
    check_token_count(len(encoding.ids), text)
    tokens = []
    for piece, number, (start, end), special in zip(
        encoding.tokens, encoding.ids, encoding.offsets, encoding.special_tokens_mask, strict=True
    ):
        covers = end > start and not special
        tokens.append(Token(text[start:end].strip() or piece if covers else piece, number, start, end, bool(special)))
    return tuple(tokens)


def open_tokenizer(name: str | os.PathLike[str] | None) -> Tokenize:
    """`words` (the default), `chars`, or the path of a tokenizer.json. Raises UsageError for anything else."""
    if name is None or name == "words":
        return split_words
    if name == "chars":
        return split_characters
    name = os.fspath(name)
    can_be = is_possible_name(name) and len(os.fsencode(Path(name).name)) <= limits.NAME_BYTES
    if can_be and (name.endswith(".json") or Path(name).is_file()):
        return from_file(name)
    raise UsageError(f"no tokenizer {name[:80]!r}: it is words, chars, or the path of a tokenizer.json")


STRANGE_SHARE = 0.3  # of the tokens of a text that a model does not know, from which it cannot read the text well


def unknown_words(tokens: Sequence[Token]) -> tuple[str, ...]:
    """What a user must know of words that a model does not: one sentence, or none."""
    words = list(dict.fromkeys(visible_text(token.text) for token in tokens if token.unknown))
    if not words:
        return ()
    named = ", ".join(words[:6]) + (f" and {len(words) - 6} more" if len(words) > 6 else "")
    return (f"not among the words the model knows, read by their shape or as its unknown word (†): {named}",)


def strange_words(name: str, tokens: Sequence[Token]) -> str | None:
    """One sentence where the model of this name does not know STRANGE_SHARE of the tokens, and two at least; else None."""
    strange = [visible_text(token.text) for token in tokens if token.unknown]
    if len(strange) < max(2, STRANGE_SHARE * len(tokens)):
        return None
    short = [word if len(word) <= 16 else f"{word[:15]}…" for word in strange[:3]]
    named = ", ".join(isolated(f"{word}†") for word in short) + (", …" if len(strange) > 3 else "")
    return f"{name} does not know {len(strange)} of these {len(tokens)} tokens ({named})"


def named_tokens(names: Sequence[str]) -> list[Token]:
    """Tokens by their names, each where it stands in the names joined by spaces."""
    tokens, start = [], 0
    for name in names:
        tokens.append(Token(name, start=start, end=start + len(name)))
        start += len(name) + 1
    return tokens


def checked_text(text: str) -> str:
    """The text, if there is any. Raises AttnctlError for blank text and for halves of surrogate pairs."""
    if not text.strip():
        raise AttnctlError("the text is empty: give at least one word")
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise AttnctlError("the text is not valid Unicode: it holds half of a surrogate pair")
    return text


AS_TEXT = "text:"  # before a query that is the text of a token, though it looks like an index or a list

_INDEX = re.compile(r"[+-]?[0-9]{1,18}")
_RANGE = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")


def find_token(tokens: Sequence[Token], query: str) -> int:
    """The index of the one token that `query` names (see `find_several`). Raises UsageError where it names several."""
    found = find_several(tokens, query)
    if len(found) > 1:
        raise UsageError(f"{visible_text(query[:80])!r} names {len(found)} tokens: one is wanted here")
    return found[0]


def find_several(tokens: Sequence[Token], query: str) -> list[int]:
    """The indices of the tokens that `query` names, in its order: `eat`, `3`, `-1`, `text:3`, `eat,pizza`, `2-5`.

    A whole number is always an index (negative counts from the end), `text:…` always the text of a token. Raises
    UsageError where there is no such token, or more than one has that text (the message lists their indices).
    """
    if not query.strip():
        raise UsageError("--query is empty: name a token by its text or its index")
    if "," in query and not query.startswith(AS_TEXT) and all(token.text != query for token in tokens):
        parts = [part for part in query.split(",") if part.strip()]
        found = [at for part in parts for at in find_several(tokens, part.strip())]
        return list(dict.fromkeys(found)) if parts else [_by_text(tokens, query)]
    if is_index(query):
        return [_by_index(tokens, int(query), query)]
    if (ends := _RANGE.fullmatch(query)) and all(token.text != query for token in tokens):
        first, last = int(ends[1]), int(ends[2])
        if last < first:
            raise UsageError(f"--query {query}: from {first} down to {last} is no range")
        return list(range(_by_index(tokens, first, ends[1]), _by_index(tokens, last, ends[2]) + 1))
    return [_by_text(tokens, query.removeprefix(AS_TEXT))]


def is_index(query: str) -> bool:
    """Whether a query is the index of a token, rather than its text."""
    return _INDEX.fullmatch(query) is not None


def _by_index(tokens: Sequence[Token], at: int, query: str) -> int:
    if -len(tokens) <= at < len(tokens):
        return at % len(tokens)
    hint = f" (the token {query!r} is {AS_TEXT}{query})" if any(token.text == query for token in tokens) else ""
    raise UsageError(f"no token {at}: the text has {len(tokens)} tokens, 0 to {len(tokens) - 1}{hint}")


def _by_text(tokens: Sequence[Token], text: str) -> int:
    matches = [at for at, token in enumerate(tokens) if token.text == text]
    if not matches:
        matches = [at for at, token in enumerate(tokens) if token.text.casefold() == text.casefold()]
    if len(matches) > 1:
        places = ", ".join(str(at) for at in matches[:12]) + (", …" if len(matches) > 12 else "")
        raise UsageError(f"{visible_text(text)!r} stands at several places: name one by its index ({places})")
    if matches:
        return matches[0]
    known = " ".join(visible_text(token.text) for token in tokens[:12]) + (" …" if len(tokens) > 12 else "")
    raise UsageError(f"no token {visible_text(text[:80])!r} in the text: its tokens are {known}")
