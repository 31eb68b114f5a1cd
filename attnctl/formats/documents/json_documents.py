"""What every JSON document of attnctl is: a Struct, whose types say how it is written, read, and told in its JSON Schema.

What is read is held against the types, which name the path of what is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, fields
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast, get_type_hints

import numpy as np
import numpy.typing as npt
from msgspec import Meta, Struct, ValidationError, convert, defstruct, field, to_builtins
from msgspec.structs import asdict, replace
from orjson import Fragment

from attnctl import __version__, document_fields
from attnctl.document_fields import ALWAYS, Index, Part, about
from attnctl.errors import AttnctlError, in_one_line
from attnctl.selection import heads_by_layer
from attnctl.text import as_json, spoken_heads
from attnctl.tokens import Token
from attnctl.trace.model_info import ModelInfo
from attnctl.trace.run import Note, NoteKind

if TYPE_CHECKING:
    from attnctl.text import Document

Kind = TypeVar("Kind")
Field = tuple[str, Any, Any]  # name, type, default; a type may be Annotated, which Python gives no type of its own

WRITTEN_BY_ORJSON = (np.ndarray, np.float32, np.float64, np.int64, np.bool_, Fragment, Note)


class JsonDocument(Struct, kw_only=True, omit_defaults=True, tag_field="schema"):
    """A document; its `tag` is the name of its schema."""

    attnctl: Annotated[str, about("The version of attnctl that wrote this."), ALWAYS] = field(
        default_factory=lambda: __version__
    )


class Made(Part):
    """A part whose fields a table tells; see `fields_from`."""

    if TYPE_CHECKING:

        def __init__(self, **values: object) -> None: ...

        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: object) -> None: ...


def fields_from(told: Iterable[Field]) -> Callable[[type[Kind]], type[Kind]]:
    """The class with more fields, each (name, type, default), or `field()` where there is no default."""

    def made(kind: type[Kind]) -> type[Kind]:
        namespace = {"__doc__": kind.__doc__, "__module__": kind.__module__}
        bases = (cast("type[Struct]", kind),)
        return cast("type[Kind]", defstruct(kind.__name__, told, bases=bases, namespace=namespace, kw_only=True))

    return made


def fields_of(reading: type, **otherwise: object) -> Iterator[Field]:
    """The fields of a dataclass, whose annotations name types of `document_fields`; some are told `otherwise`."""
    names = vars(document_fields) | {"Meta": Meta}
    hints = get_type_hints(reading, localns=names, include_extras=True) | otherwise
    for own in fields(reading):
        if own.default is MISSING:
            yield own.name, hints[own.name], field()
        elif ALWAYS in getattr(hints[own.name], "__metadata__", ()):
            yield own.name, hints[own.name], field(default_factory=partial(getattr, own, "default"))
        else:
            yield own.name, hints[own.name], own.default


# --- tokens and models -------------------------------------------------------------------------------------------


@fields_from([("index", Annotated[Index | None, ALWAYS], None), *fields_of(Token)])
class DocumentToken(Made):
    """A token; start and end are characters of the text."""


_OFF = Annotated[str, about("Heads whose context goes nowhere, layer.head: 1.2, 0.5.")]


@fields_from(fields_of(ModelInfo, off=_OFF | None, finds=str | None))
class DocumentModel(Made):
    """What the numbers come from."""


# in a result that is a document: what Python has, and what `plain` makes of it
if TYPE_CHECKING:
    ResultModel = ModelInfo
    ResultTokens = tuple[Token, ...]
else:
    ResultModel = DocumentModel
    ResultTokens = tuple[DocumentToken, ...]


# --- documents of a text -----------------------------------------------------------------------------------------

Tokens = Annotated[tuple[DocumentToken, ...], about("", minItems=1)]
Notes = Annotated[tuple[str, ...], about("What a reader must know about these numbers.")]
NoteKinds = Annotated[tuple[NoteKind, ...], about("What each note tells of; empty: of none of these.")]


class TextDocument(JsonDocument, kw_only=True):
    """What a document of a text begins with."""

    text: str
    tokens: Tokens
    model: DocumentModel
    key_tokens: Annotated[
        Tokens | None, about("The tokens of the key axis, where it is another text's (cross attention).")
    ] = None


# --- writing and reading -----------------------------------------------------------------------------------------


def document_of(kind: type[Kind], *readings: object, **made: object) -> Kind:
    """The document of readings: each field is the attribute of that name of one, but for what is `made` here."""
    names = kind.__struct_fields__  # type: ignore[attr-defined]
    found = {name: getattr(reading, name) for reading in readings for name in names if hasattr(reading, name)} | made
    if "note_kinds" in names:
        kinds = tuple(note.kind if isinstance(note, Note) else "" for note in found["notes"])
        found["note_kinds"] = kinds if any(kinds) else ()
    return kind(**{name: _in_document(value) for name, value in found.items()})


def _in_document(value: object) -> object:
    """What a reading holds as it stands in a document: a model and tokens in their own way."""
    if isinstance(value, ModelInfo):
        return model_document(value)
    return token_documents(value) if isinstance(value, tuple) and value and isinstance(value[0], Token) else value


def model_document(model: ModelInfo) -> DocumentModel:
    """A model as it stands in a document."""
    finds = model.finds and "; ".join(f"{layer}.{head} {relation}" for layer, head, relation in model.finds)
    # text that is all ASCII is written far faster
    said = {"off": model.off and spoken_heads(model.off), "finds": finds and finds.replace("→", "->")}
    return DocumentModel(**vars(model) | said)


def token_documents(tokens: Sequence[Token]) -> tuple[DocumentToken, ...]:
    """Tokens as they stand in a document."""
    entries = convert(tokens, tuple[DocumentToken, ...], from_attributes=True)
    for index, entry in enumerate(entries):
        entry.index = index
    return entries


def reading_of(kind: type[Kind], document: Struct, **made: object) -> Kind:
    """The reading of a document: each field is the document's of that name, but for what is `made` here.

    Raises ValueError where tokens have no sound place, a model's heads are not said as they are written, or notes and their
    kinds are not as many.
    """
    names = [own.name for own in fields(kind)]  # type: ignore[arg-type]
    values = asdict(document)
    found = {name: _in_reading(values[name]) for name in names if name not in made and name in values}
    if "note_kinds" in values:
        notes = values["notes"]
        kinds = values["note_kinds"] or ("",) * len(notes)
        if len(kinds) != len(notes):
            raise ValueError(f"note_kinds is {str(kinds)[:40]}, not the kinds of {len(notes)} notes")
        found["notes"] = tuple(map(Note, notes, kinds))
    return kind(**found, **made)


def _in_reading(value: object) -> object:
    """What a document holds as it stands in a reading."""
    if isinstance(value, DocumentModel):
        return _read_model(value)
    return (
        read_tokens(value) if isinstance(value, tuple) and isinstance(next(iter(value), None), DocumentToken) else value
    )


def _read_model(entry: DocumentModel) -> ModelInfo:
    off = entry.off
    if off is not None and not re.fullmatch(r"\d{1,6}\.\d{1,6}(, *\d{1,6}\.\d{1,6})*", off):
        raise ValueError(f"off is {off[:40]!r}, not layer.head of heads: 1.2, 0.5")
    found = re.findall(r"(\d{1,6})\.(\d{1,6}) ([^;]+)", (entry.finds or "").replace("->", "→"))
    finds = None if entry.finds is None else tuple((int(layer), int(head), relation) for layer, head, relation in found)
    places = [(int(layer), int(head)) for layer, head in re.findall(r"(\d+)\.(\d+)", off or "")]
    return ModelInfo(**asdict(entry) | {"off": None if off is None else heads_by_layer(places), "finds": finds})


def read_tokens(entries: tuple[DocumentToken, ...]) -> tuple[Token, ...]:
    """The tokens of a document. Raises ValueError where a span is none, or an index is not the token's place."""
    for place, entry in enumerate(entries):
        if entry.index not in (None, place):
            raise ValueError(f"token {place} has index {entry.index}")
        start, end = entry.start, entry.end
        if (start is None) != (end is None) or (start is not None and end is not None and start > end):
            raise ValueError(f"token {entry.text[:40]!r} stands from {start} to {end}")
    own = attrgetter(*(own.name for own in fields(Token)))
    return tuple(Token(*own(entry)) for entry in entries)


def plain(document: Struct) -> Document:
    """The JSON object of a document, arrays still arrays, what is absent left out."""
    values = {name: _in_document(getattr(document, name)) for name in document.__struct_fields__}
    found: Document = to_builtins(replace(document, **values), builtin_types=WRITTEN_BY_ORJSON)
    return found


def write_json(document: Struct, what: str) -> bytes:
    """One line of JSON, without the newline. Raises AttnctlError where `what` cannot be written."""
    try:
        return as_json(plain(document))
    except TypeError as error:
        raise AttnctlError(f"this {what} cannot be written as JSON: {error}") from error


@contextmanager
def document_read(kind: type[Kind], document: object, source: str, what: str, damage: str) -> Iterator[Kind]:
    """A parsed JSON document as one of `kind`; what is wrong with it, met inside, is one line that begins with `damage`.

    Raises AttnctlError where it is no JSON object of the schema of `kind`, naming what it is instead.
    """
    tag = kind.__struct_config__.tag  # type: ignore[attr-defined]
    if not isinstance(document, dict) or "schema" not in document:
        raise AttnctlError(f'{source} is not {what}: it has no "schema"')
    if document["schema"] != tag:
        raise AttnctlError(f"{source} has schema {str(document['schema'])[:60]!r}; this attnctl reads {tag!r}")
    try:
        yield read_as(kind, document)
    except (TypeError, ValueError, OverflowError, IndexError) as error:
        raise AttnctlError(f"{source} is {damage}: {in_one_line(error)}") from error


def read_as(kind: type[Kind], document: object) -> Kind:
    """A parsed JSON document as one of `kind`. Raises ValueError that says where it is wrong, and what is wanted there."""
    try:
        return convert(document, kind, dec_hook=_counts_array)
    except ValidationError as error:
        said = _REASON.fullmatch(str(error))
        assert said is not None  # both its parts may be anything
        path = "".join(re.findall(r"`\$([^`]*)`", said[2])[::-1]).removeprefix(".")  # the inner one stands first
        reason = re.sub(r"`([^`]+)`", _in_words, said[1])
        for pattern, sentence in _SENTENCES:
            reason = re.sub(pattern, sentence, reason)
        if reason.startswith(("not ", "which ")) and "..." not in path:
            for key in re.findall(r"[^.\[\]]+", path):
                document = document[int(key) if isinstance(document, list) else key]  # type: ignore[index]
            raise ValueError(f"{path or 'it'} is {str(document)[:40]!r}, {reason}") from error
        raise ValueError(f"{path}: {reason}" if path else reason) from error


def _counts_array(kind: object, rows: object) -> npt.NDArray[np.int64]:
    """Lists of counts as an array: (layers, heads). Raises ValueError where they are none."""
    try:
        counts = convert(rows, tuple[tuple[Index, ...], ...])
    except ValidationError as error:
        raise ValueError(error) from error  # which msgspec gives the path of the counts, too
    if len(set(map(len, counts))) != 1:
        raise ValueError("the counts are no table of layers and heads")
    return np.array(counts, np.int64)  # (layers, heads)


_REASON = re.compile(r"(.*?)((?: - at (?:`\w+` in )?`\$[^`]*`)*)", re.DOTALL)
_WORDS = {"int": "a whole number", "float": "a number", "str": "a text", "bool": "true or false"}
_WORDS |= {"array": "a list", "object": "an object"}
_SENTENCES = (
    (r"Object missing required field (.*)", r"\1 is missing"),
    (r"Expected (.*), got .*", r"not \1"),
    (r"Expected (.*)", r"not \1"),
    (r"Invalid enum value .*", "which it cannot be"),
    (r"Number out of range", "not a number of any size"),
    (r" >= (\S+)", r" from \1 up"),
    (r" <= (\S+)", r" up to \1"),
    (r" > (\S+)", r" above \1"),
    (r" < (\S+)", r" below \1"),
    (r"\.0$", ""),
)


def _in_words(match: re.Match[str]) -> str:
    kinds = [kind for kind in match[1].split(" | ") if kind != "null"]
    return " or ".join(_WORDS.get(kind, f"'{kind}'") for kind in kinds) or "null"
