"""What every JSON document of attnctl begins with, written and read: schema, text, tokens, model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import get_args

from attnctl import __version__
from attnctl.errors import AttnctlError
from attnctl.formats.validation import checked_whole_number, read_fields
from attnctl.interventions import heads_off
from attnctl.readings.traces.trace import ModelInfo, Note, NoteKind
from attnctl.text import Document, as_json, spoken_heads
from attnctl.tokens import Token

# what reading the parts of a document raises where they are not what they should be
DAMAGED = (KeyError, TypeError, ValueError, AttributeError, OverflowError, IndexError)


def document_opening(
    schema: str, text: str, tokens: Sequence[Token], model: ModelInfo, key_tokens: Sequence[Token] | None
) -> Document:
    """The first keys of a document; `key_tokens` only where they are not the tokens."""
    document: Document = {
        "schema": schema,
        "attnctl": __version__,
        "text": text,
        "tokens": [token_document(index, token) for index, token in enumerate(tokens)],
        "model": model_document(model),
    }
    if key_tokens is not None:
        document["key_tokens"] = [token_document(index, token) for index, token in enumerate(key_tokens)]
    return document


def read_opening(entries: Document) -> Document:
    """What every document of a text says, by the names of the fields: text, tokens, model, key_tokens, notes.

    `key_tokens` is None where they are the tokens. Raises one of DAMAGED.
    """
    return {
        "text": checked_text(entries["text"], "text"),
        "tokens": read_tokens(entries["tokens"]),
        "model": read_model(entries["model"]),
        "key_tokens": read_tokens(entries["key_tokens"]) if "key_tokens" in entries else None,
        "notes": read_notes(entries),
    }


def token_document(index: int, token: Token) -> Document:
    """A token as it stands in JSON."""
    entry: Document = {"index": index, "text": token.text}
    if token.id is not None:
        entry["id"] = token.id
    if token.start is not None:
        entry["start"], entry["end"] = token.start, token.end
    entry["special"] = token.special
    if token.unknown:
        entry["unknown"] = True
    return entry


def model_document(info: ModelInfo) -> Document:
    """A model as it stands in JSON."""
    finds = info.finds and "; ".join(f"{layer}.{head} {relation}" for layer, head, relation in info.finds)
    # text that is all ASCII is written far faster
    said = vars(info) | {"off": info.off and spoken_heads(info.off), "finds": finds and finds.replace("→", "->")}
    # the seed is always said: null is an answer ("none was used")
    return {name: value for name, value in said.items() if value is not None or name == "seed"}


def read_tokens(entries: Sequence[Mapping[str, object]]) -> tuple[Token, ...]:
    """The tokens of a document.

    Raises TypeError where a field has another type, ValueError where a span is none, or an index is not the token's place.
    """
    for place, entry in enumerate(entries):
        if "index" in entry and checked_whole_number(entry["index"], "a token's index") != place:
            raise ValueError(f"token {place} has index {entry['index']}")
    return tuple(_checked_span(read_fields(Token, entry)) for entry in entries)


def _checked_span(token: Token) -> Token:
    """The token itself, if it stands nowhere, or from a character to one behind it. Raises ValueError where it does not."""
    if token.start is None and token.end is None:
        return token
    start, end = checked_whole_number(token.start, "start"), checked_whole_number(token.end, "end")
    if not 0 <= start <= end:
        raise ValueError(f"token {token.text[:40]!r} stands from {start} to {end}")
    return token


def checked_text(value: object, what: str) -> str:
    """A text of a file, as it stands. Raises TypeError where it is of another type."""
    if not isinstance(value, str):
        raise TypeError(f"{what} is {str(value)[:40]!r}, not a text")
    return value


def read_model(entry: Mapping[str, object]) -> ModelInfo:
    """The model of a document. Raises TypeError and ValueError where a field has another type, or counts nothing."""
    given = dict(entry)
    if entry.get("off") is not None:
        off = checked_text(entry["off"], "off")
        if not re.fullmatch(r"\d{1,6}\.\d{1,6}(, *\d{1,6}\.\d{1,6})*", off):
            raise ValueError(f"off is {off[:40]!r}, not layer.head of heads: 1.2, 0.5")
        given["off"] = heads_off(off)
    if entry.get("finds") is not None:
        finds = checked_text(entry["finds"], "finds").replace("->", "→")
        found = re.findall(r"(\d{1,6})\.(\d{1,6}) ([^;]+)", finds)
        given["finds"] = tuple((int(layer), int(head), relation) for layer, head, relation in found)
    info = read_fields(ModelInfo, given)
    for name in ("d_model", "d_k", "d_v", "n_heads", "n_kv_heads", "n_layers", "window"):
        if (count := getattr(info, name)) is not None and checked_whole_number(count, name) < 1:
            raise ValueError(f"{name} is {count}")
    if (info.temperature is not None and info.temperature <= 0) or not 0 <= (info.dropout or 0) < 1:
        raise ValueError(f"temperature is {info.temperature}, and dropout {info.dropout}")
    if info.soft_cap is not None and info.soft_cap <= 0:
        raise ValueError(f"soft_cap is {info.soft_cap}")
    return info


def notes_document(notes: Sequence[str]) -> Document:
    """The notes of a document, and their kinds where one has a kind."""
    kinds = [note.kind if isinstance(note, Note) else "" for note in notes]
    return ({"notes": list(notes)} if notes else {}) | ({"note_kinds": kinds} if any(kinds) else {})


def read_notes(entries: Document) -> tuple[str, ...]:
    """The notes of a document. Raises TypeError for one that is no text, ValueError where their kinds are none of them."""
    notes = [checked_text(note, "a note") for note in entries.get("notes", ())]
    kinds = entries.get("note_kinds", [""] * len(notes))
    if len(kinds) != len(notes) or any(kind not in get_args(NoteKind) for kind in kinds):
        raise ValueError(f"note_kinds is {str(kinds)[:40]}, not the kinds of {len(notes)} notes")
    return tuple(map(Note, notes, kinds))


def write_json(document: Document, what: str) -> bytes:
    """One line of JSON, without the newline. Raises AttnctlError where `what` cannot be written."""
    try:
        return as_json(document)
    except TypeError as error:
        raise AttnctlError(f"this {what} cannot be written as JSON: {error}") from error


def check_schema(document: object, schema: str, source: str, what: str) -> Document:
    """The document itself, if it is a JSON object of `schema`. Raises AttnctlError naming what it is instead."""
    if not isinstance(document, dict) or "schema" not in document:
        raise AttnctlError(f'{source} is not {what}: it has no "schema"')
    if document["schema"] != schema:
        raise AttnctlError(f"{source} has schema {str(document['schema'])[:60]!r}; this attnctl reads {schema!r}")
    return document


def damage_of(error: Exception) -> str:
    """What an error of DAMAGED says is wrong with a document."""
    if isinstance(error, KeyError):
        return f"{error.args[0]!r} is missing"
    if isinstance(error, (TypeError, AttributeError)) and re.search(
        r"\bobject\b|\bindices\b", str(error)
    ):  # Python's own
        return "a part of it is of another type than it should be"
    return str(error)
