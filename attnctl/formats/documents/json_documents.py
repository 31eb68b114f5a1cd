"""Define the JSON documents of attnctl as Structs, whose types describe writing, reading and the JSON Schema.

A document that is read is checked against the types; an error names the path of the wrong value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, fields
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast, get_args, get_type_hints

import numpy as np
import numpy.typing as npt
from msgspec import Meta, Struct, ValidationError, convert, defstruct, field, to_builtins
from msgspec.structs import asdict, replace
from orjson import Fragment

from attnctl.checks import document_fields
from attnctl.checks.document_fields import ALWAYS, Index, Part, about
from attnctl.checks.selection import heads_by_layer
from attnctl.errors import AttnctlError, in_one_line
from attnctl.formats.validation import finite_floats, true_or_false
from attnctl.text import as_json, spoken_heads
from attnctl.text.tokens import Token
from attnctl.trace.model_info import ModelInfo
from attnctl.trace.notes import Note, NoteKind
from attnctl.version import __version__

if TYPE_CHECKING:
    from attnctl.text import Document

Kind = TypeVar("Kind")
Field = tuple[str, Any, Any]  # name, type, default; a type may be Annotated, for which Python has no type

FAILED = "attnctl.failed/1"  # the schema of a text of a batch that failed
WRITTEN_BY_ORJSON = (np.ndarray, np.float32, np.float64, np.int64, np.bool_, Fragment, Note)


class JsonDocument(Struct, kw_only=True, omit_defaults=True, tag_field="schema"):
    """A JSON document; its `tag` is the name of its schema."""

    attnctl: Annotated[str, about("The version of attnctl that wrote this document."), ALWAYS] = field(
        default_factory=lambda: __version__
    )


class Made(Part):
    """A part whose fields come from a table; see `fields_from`."""

    if TYPE_CHECKING:

        def __init__(self, **values: object) -> None: ...

        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: object) -> None: ...


def fields_from(table: Iterable[Field]) -> Callable[[type[Kind]], type[Kind]]:
    """Return a decorator that adds fields to a class, each (name, type, default), or `field()` without a default."""

    def with_fields(kind: type[Kind]) -> type[Kind]:
        namespace = {"__doc__": kind.__doc__, "__module__": kind.__module__}
        bases = (cast("type[Struct]", kind),)
        return cast("type[Kind]", defstruct(kind.__name__, table, bases=bases, namespace=namespace, kw_only=True))

    return with_fields


def fields_of(value_type: type, **otherwise: object) -> Iterator[Field]:
    """Yield the fields of a dataclass, whose annotations use types of `document_fields`; `otherwise` replaces some types."""
    names = vars(document_fields) | {"Meta": Meta}
    hints = get_type_hints(value_type, localns=names, include_extras=True) | otherwise
    for entry in fields(value_type):
        if entry.default is MISSING:
            yield entry.name, hints[entry.name], field()
        elif ALWAYS in getattr(hints[entry.name], "__metadata__", ()):
            yield entry.name, hints[entry.name], field(default_factory=partial(getattr, entry, "default"))
        else:
            yield entry.name, hints[entry.name], entry.default


# --- tokens and models -------------------------------------------------------------------------------------------


@fields_from([("index", Annotated[Index | None, ALWAYS], None), *fields_of(Token)])
class DocumentToken(Made):
    """A token; start and end are positions in the text, in characters."""


_OFF = Annotated[str, about("Heads that are switched off (their context is not used), as layer.head: 1.2, 0.5.")]


class MeasuredRole(Part):
    """What a head was measured to find."""

    layer: Index
    head: Index
    role: Annotated[str, about("The relation; -> stands for →.")]


_FINDS = Annotated[tuple[MeasuredRole, ...], about("What heads were measured to find, the most certain first.")]


@fields_from(fields_of(ModelInfo, off=_OFF | None, finds=_FINDS | None))
class DocumentModel(Made):
    """The model or file that the numbers come from."""


# for a result that is a document: the types in Python, and the types in JSON, which `json_object` makes
if TYPE_CHECKING:
    ResultModel = ModelInfo
    ResultTokens = tuple[Token, ...]
else:
    ResultModel = DocumentModel
    ResultTokens = tuple[DocumentToken, ...]


# --- documents of a text -----------------------------------------------------------------------------------------

Tokens = Annotated[tuple[DocumentToken, ...], about("", minItems=1)]
Notes = Annotated[tuple[str, ...], about("Notes that a reader needs to understand these numbers.")]
NoteKinds = Annotated[
    tuple[NoteKind, ...],
    about("The subject of each note, in the order of the notes; an empty text is a note on another subject."),
]


class TextDocument(JsonDocument, kw_only=True):
    """The first fields of every document about a text."""

    text: str
    tokens: Tokens
    model: DocumentModel
    key_tokens: Annotated[
        Tokens | None, about("The tokens of the key axis, if the keys come from another text (cross attention).")
    ] = None


# --- writing and reading -----------------------------------------------------------------------------------------


def document_of(kind: type[Kind], *holders: object, **overrides: object) -> Kind:
    """Return the document of values: each field is the attribute of the same name, or the value in `overrides`."""
    names = kind.__struct_fields__  # type: ignore[attr-defined]
    values: dict[str, Any] = {name: _in_document(value) for name, value in overrides.items()}
    for holder in holders:
        for name in names:
            if name not in overrides and (value := getattr(holder, name, MISSING)) is not MISSING:
                values[name] = _in_document(value)
    notes = values["notes"] if "note_kinds" in names else ()
    if isinstance(notes, tuple) and notes:
        kinds = tuple(note.kind if isinstance(note, Note) else "" for note in notes)
        values["note_kinds"] = kinds if any(kinds) else ()
    return kind(**values)


def _in_document(value: object) -> object:
    """Return a value in the form of a document: a model and tokens have their own forms."""
    if isinstance(value, ModelInfo):
        return model_document(value)
    return token_documents(value) if isinstance(value, tuple) and value and isinstance(value[0], Token) else value


def model_document(model: ModelInfo) -> DocumentModel:
    """Return a model in the form of a document."""
    # pure ASCII is written much faster
    roles = [MeasuredRole(layer, head, role.replace("→", "->")) for layer, head, role in model.finds or ()]
    finds = None if model.finds is None else tuple(roles)
    return DocumentModel(**vars(model) | {"off": model.off and spoken_heads(model.off), "finds": finds})


def token_documents(tokens: Sequence[Token]) -> tuple[DocumentToken, ...]:
    """Return tokens in the form of a document."""
    entries = convert(tokens, tuple[DocumentToken, ...], from_attributes=True)
    for index, entry in enumerate(entries):
        entry.index = index
    return entries


def value_of(kind: type[Kind], document: Struct, **overrides: object) -> Kind:
    """Return the value of a document: each field is the document's field of the same name, or the value in `overrides`.

    Raises ValueError if tokens have invalid places, if heads of a model are not written as attnctl writes them, or if the
    numbers of notes and of their kinds differ.
    """
    names = [entry.name for entry in fields(kind)]  # type: ignore[arg-type]
    values = asdict(document)
    results = {name: _as_python(values[name]) for name in names if name not in overrides and name in values}
    if "notes" in results and "note_kinds" in values:
        notes = values["notes"]
        kinds = values["note_kinds"] or ("",) * len(notes)
        if len(kinds) != len(notes):
            raise ValueError(f"note_kinds is {str(kinds)[:40]}, not the kinds of {len(notes)} notes")
        results["notes"] = tuple(map(Note, notes, kinds))
    return kind(**results, **overrides)


def result_of(kind: type[Kind], document: object, source: str, name: str) -> Kind:
    """Return the result of a command from its parsed JSON document, with Python's own model and tokens.

    Raises AttnctlError if the document has another schema or is damaged.
    """
    with document_read(kind, document, source, name, "damaged") as result:
        struct = cast("Struct", result)
        return cast("Kind", replace(struct, **{field: _as_python(value) for field, value in asdict(struct).items()}))


def _as_python(value: object) -> object:
    """Return a value of a document as Python has it."""
    if isinstance(value, DocumentModel):
        return _read_model(value)
    return (
        read_tokens(value) if isinstance(value, tuple) and isinstance(next(iter(value), None), DocumentToken) else value
    )


def _read_model(entry: DocumentModel) -> ModelInfo:
    off = entry.off
    if off is not None and not re.fullmatch(r"\d{1,6}\.\d{1,6}(, *\d{1,6}\.\d{1,6})*", off):
        raise ValueError(f"off is {off[:40]!r}, not layer.head of heads: 1.2, 0.5")
    finds = entry.finds and tuple((part.layer, part.head, part.role.replace("->", "→")) for part in entry.finds)
    places = [(int(layer), int(head)) for layer, head in re.findall(r"(\d+)\.(\d+)", off or "")]
    return ModelInfo(**asdict(entry) | {"off": None if off is None else heads_by_layer(places), "finds": finds})


def read_tokens(entries: tuple[DocumentToken, ...]) -> tuple[Token, ...]:
    """Return the tokens of a document. Raises ValueError for an invalid span, or an index that is not the token's place."""
    for place, entry in enumerate(entries):
        if entry.index not in (None, place):
            raise ValueError(f"token {place} has index {entry.index}")
        start, end = entry.start, entry.end
        if (start is None) != (end is None) or (start is not None and end is not None and start > end):
            raise ValueError(f"token {entry.text[:40]!r} stands from {start} to {end}")
    values_of = attrgetter(*(entry.name for entry in fields(Token)))
    return tuple(Token(*values_of(entry)) for entry in entries)


def json_object(document: Struct) -> Document:
    """Return the JSON object of a document as a dictionary, without absent fields; arrays stay arrays."""
    values = [(name, getattr(document, name)) for name in document.__struct_fields__]
    changed = {name: made for name, value in values if (made := _in_document(value)) is not value}
    result: Document = to_builtins(
        replace(document, **changed) if changed else document, builtin_types=WRITTEN_BY_ORJSON
    )
    return result


def flat_records(parts: Iterable[Struct]) -> list[dict[str, Any]]:
    """Return a flat record for each part, all with the same names; None is an absent value.

    The name of a field of an inner part follows that of the part: looks_key. Lists are left out.
    """
    rows = [dict(_flat(part)) for part in parts]
    names = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in names} for row in rows]


def _flat(part: Struct, before: str = "") -> Iterator[tuple[str, object]]:
    for name in part.__struct_fields__:
        value = getattr(part, name)
        if isinstance(value, Struct):
            yield from _flat(value, f"{before}{name}_")
        elif isinstance(value, (str, int, float)):
            yield f"{before}{name}", value


def write_json(document: Struct, name: str, *, in_form: bool = False) -> bytes:
    """Return one line of JSON, without the newline. Raises AttnctlError if `name` cannot be written.

    `in_form`: the document comes from `document_of`, so that models and tokens have their forms already.
    """
    try:
        return as_json(to_builtins(document, builtin_types=WRITTEN_BY_ORJSON) if in_form else json_object(document))
    except TypeError as error:
        raise AttnctlError(f"this {name} cannot be written as JSON: {error}") from error


@contextmanager
def document_read(kind: type[Kind], document: object, source: str, name: str, damage: str) -> Iterator[Kind]:
    """Read a parsed JSON document as `kind`; turn each error inside into one line that begins with `damage`.

    Raises AttnctlError, with the schema that was found, if it is not a JSON object of the schema of `kind`.
    """
    tag = kind.__struct_config__.tag  # type: ignore[attr-defined]
    if not isinstance(document, dict) or "schema" not in document:
        others = "; attention of other programs: attnctl docs my-checkpoint" if name == "a trace" else ""
        raise AttnctlError(f'{source} is not {name}: it has no "schema"{others}')
    if document["schema"] == FAILED:
        raise AttnctlError(f"{source} is a text of a batch that failed: {document.get('error')}")
    if document["schema"] != tag:
        raise AttnctlError(f"{source} has schema {str(document['schema'])[:60]!r}; this attnctl reads {tag!r}")
    try:
        yield read_as(kind, document)
    except (TypeError, ValueError, OverflowError, IndexError) as error:
        raise AttnctlError(f"{source} is {damage}: {in_one_line(error)}") from error


def read_as(kind: type[Kind], document: object) -> Kind:
    """Read a parsed JSON document as `kind`. Raises ValueError with the wrong field and what it should be."""
    try:
        return convert(document, kind, dec_hook=_read_array)
    except ValidationError as error:
        match = _REASON.fullmatch(str(error))
        assert match is not None  # always matches: both parts may be empty
        path = "".join(re.findall(r"`\$([^`]*)`", match[2])[::-1]).removeprefix(".")  # the inner path comes first
        reason = re.sub(r"`([^`]+)`", _in_words, match[1])
        for pattern, sentence in _SENTENCES:
            reason = re.sub(pattern, sentence, reason)
        if reason.startswith(("not ", "which ")) and "..." not in path:
            for key in re.findall(r"[^.\[\]]+", path):
                document = document[int(key) if isinstance(document, list) else key]  # type: ignore[index]
            raise ValueError(f"{path or 'it'} is {str(document)[:40]!r}, {reason}") from error
        raise ValueError(f"{path}: {reason}" if path else reason) from error


def _read_array(kind: Any, value: object) -> npt.NDArray[np.generic]:
    """Return the array of such a type that lists hold. Raises ValueError or TypeError, to which msgspec adds the path."""
    shape, dtype = get_args(kind)
    axes = len(get_args(shape))
    array = _READERS[get_args(dtype)[0]](value)
    if array.ndim != axes and (array.size or array.dtype == np.int64):
        raise ValueError(f"the array has {array.ndim} axes, not {axes}")
    return array


def _whole_numbers(values: object) -> npt.NDArray[np.int64]:
    """Return lists of whole numbers from 0 as an array."""
    is_table = isinstance(values, list) and any(isinstance(row, list) for row in values)
    try:
        rows: Any = convert(values, tuple[tuple[Index, ...], ...] if is_table else tuple[Index, ...])
    except ValidationError as error:
        raise ValueError(error) from error
    if is_table and len(set(map(len, rows))) != 1:
        raise ValueError("the counts are not a table of layers and heads")
    return np.array(rows, np.int64)


def _masked_scores(values: object) -> npt.NDArray[np.float64]:
    """Return numbers as an array, -inf for null."""
    entries = values if isinstance(values, list) else None
    numbers = _doubles(values if entries is None else [0 if entry is None else entry for entry in entries])
    return np.where([entry is None for entry in entries or ()], -np.inf, numbers)


_doubles = partial(finite_floats, name="the array", dtype=np.float64)
_READERS: dict[type[np.generic], Callable[[object], npt.NDArray[Any]]] = {
    np.float32: partial(finite_floats, name="the array"),
    np.float64: _doubles,
    np.floating: _masked_scores,
    np.bool_: partial(true_or_false, name="the array"),
    np.int64: _whole_numbers,
}


_REASON = re.compile(r"(.*?)((?: - at (?:`\w+` in )?`\$[^`]*`)*)", re.DOTALL)
_WORDS = {"int": "a whole number", "float": "a number", "str": "a text", "bool": "true or false"}
_WORDS |= {"array": "a list", "object": "an object"}
_SENTENCES = (
    (r"Object missing required field (.*)", r"\1 is missing"),
    (r"Expected (.*), got .*", r"not \1"),
    (r"Expected (.*)", r"not \1"),
    (r"Invalid enum value .*", "which is not an allowed value"),
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
