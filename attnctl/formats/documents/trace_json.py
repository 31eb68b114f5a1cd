"""Write and read traces as JSON: schema `attnctl.trace/1`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import numpy.typing as npt
from msgspec import UNSET, Meta, UnsetType, field
from orjson import Fragment

from attnctl.checks.document_fields import ALWAYS, Index, MaskLists, MatrixLists, Part, VectorLists, about
from attnctl.errors import AttnctlError
from attnctl.formats.documents.json_documents import (
    Field,
    Made,
    NoteKinds,
    Notes,
    TextDocument,
    document_of,
    document_read,
    fields_from,
    fields_of,
    json_object,
    model_document,
    value_of,
    write_json,
)
from attnctl.formats.validation import finite_floats, true_or_false
from attnctl.layer import CHECKED, FIELD_ARRAYS, LAYER_TRACE_ARRAYS, TRACE_ARRAYS, LayerTrace, TraceArray
from attnctl.measures import measure_named, measure_names
from attnctl.runtime.arrays import Bools, Floats
from attnctl.text import Document, as_json
from attnctl.trace import Trace
from attnctl.trace.consistency import checked_trace
from attnctl.trace.run import Prediction
from attnctl.trace.subject import Subject

if TYPE_CHECKING:
    from attnctl.trace import Headline


def _meaning(array: TraceArray) -> Meta:
    return about(f"{array.meaning} ({', '.join(array.axes)}).".lstrip())


def _array_fields(arrays: Sequence[TraceArray]) -> Iterator[Field]:
    for array in arrays:
        kind: object = MaskLists if array.boolean else MatrixLists if len(array.axes) == 2 else VectorLists
        yield array.name, Annotated[kind, _meaning(array)] | UnsetType, UNSET


_LEVELS = [array.level for array in LAYER_TRACE_ARRAYS]
_FIRST = _LEVELS.index("head")  # the field heads comes where the first array of heads would be
_BEFORE_HEADS = LAYER_TRACE_ARRAYS[:_FIRST]
_AFTER_HEADS = [array for array in LAYER_TRACE_ARRAYS[_FIRST:] if array.level == "layer"]
_OF_HEADS = [array for array in LAYER_TRACE_ARRAYS if array.level == "head"]

SENTENCES_OF_MEASURES = " ".join(f"{name}: {measure_named(name).sentence}" for name in measure_names())
Measured = Annotated[
    str | None,
    about(f"The measure that replaces the weights: one of these, or one of a package. {SENTENCES_OF_MEASURES}"),
]


@fields_from([("head", Index, field()), ("kv_head", Annotated[Index | None, ALWAYS], None), *_array_fields(_OF_HEADS)])
class TraceHead(Made):
    """One head of a layer."""


_ROWS = Annotated[tuple[Index, ...] | None, about("The queries in the arrays, if these do not hold all queries.")]


@fields_from(
    [
        ("layer", Index, field()),
        ("rows", _ROWS, None),
        *_array_fields(_BEFORE_HEADS),
        ("heads", tuple[TraceHead, ...], field()),
        *_array_fields(_AFTER_HEADS),
    ]
)
class TraceLayer(Made):
    """The attention of one layer."""


@fields_from(fields_of(Prediction))
class TracePrediction(Made):
    """A word that the model predicts at a position."""


class TraceHeadline(Part):
    """The link to look at first; absent if no head stands out.

    Role and certainty are absent if the model's heads and links were never measured.
    """

    layer: Index
    head: Index
    query: Annotated[Index, about("The index of a token.")]
    key: Annotated[Index, about("The index of a token, in key_tokens if the trace has them.")]
    weight: float
    role: Annotated[str | None, about("The relation that measurements found for this head; -> stands for →.")] = None
    certainty: Literal["sure", "unsure"] | None = None


class TraceDocument(TextDocument, kw_only=True, tag="attnctl.trace/1"):
    """One text through one model, with every intermediate result of self-attention.

    Rows i are queries, columns j are keys. Fields that the source does not have are absent. Every number is finite and reads
    back to the same float32.
    """

    number: Annotated[Index | None, about("The place of the text in the input of its batch, from 0.")] = None
    id: Annotated[str | int | None, about("The item's own name in a batch.")] = None
    embeddings: Annotated[MatrixLists, _meaning(TRACE_ARRAYS[0])] | UnsetType = UNSET
    layers: tuple[TraceLayer, ...]
    headline: TraceHeadline | None = None
    predictions: tuple[TracePrediction, ...] = ()
    measure: Measured = None
    notes: Notes = ()
    note_kinds: NoteKinds = ()


# --- writing -----------------------------------------------------------------------------------------------------


def trace_to_json(trace: Trace, headline: Headline | None = None) -> bytes:
    """Return one line of JSON, without the newline. Fields that the source does not have are absent.

    Raises AttnctlError if a number is not finite.
    """
    embeddings = UNSET if trace.embeddings is None else _contiguous(_finite(trace.embeddings, "embeddings"))
    layers = tuple(map(_layer_document, trace.layers))
    model = _text_known(trace.model, "model", lambda: Fragment(as_json(json_object(model_document(trace.model)))))
    line = _headline_document(headline) if headline is not None and headline.stands_out else None
    document = document_of(TraceDocument, trace, embeddings=embeddings, layers=layers, model=model, headline=line)
    return write_json(document, "trace", in_form=True)


def _headline_document(line: Headline) -> TraceHeadline:
    weight = round(line.weight, 7)  # a float32 has no more digits
    role = line.role.replace("→", "->") or None  # pure ASCII is written much faster
    return TraceHeadline(line.layer, line.head, line.query, line.key, weight, role, line.certainty)


def _finite(array: Floats | Bools, name: str, layer: LayerTrace | None = None) -> Floats | Bools:
    if array.dtype != np.bool_ and not np.isfinite(array).all():
        where = name if layer is None else f"layer {layer.layer}: {name}"
        raise AttnctlError(f"{where}: a number is not finite (NaN or infinity), so the trace is not written")
    return array


Written = npt.NDArray[np.generic] | Fragment | list[Fragment]  # an array, or its JSON text


def _layer_document(layer: LayerTrace) -> TraceLayer:
    of_layer: dict[str, Written] = {}
    of_heads: dict[str, Written] = {}
    for array, values in layer.arrays_kept():
        group = of_heads if array.level == "head" else of_layer
        if not (layer.is_finite and array.name in CHECKED):
            _finite(values, array.name, layer)
        text = partial(_heads_as_text, values, array)
        group[array.name] = _text_known(values, array.name, text) if array.parameter else _contiguous(values)
    of_each = zip(layer.heads, layer.kv_heads, *of_heads.values(), strict=True)
    names = ("head", "kv_head", *of_heads)
    heads = [dict(zip(names, values, strict=True)) for values in of_each]  # each has the fields of a TraceHead
    return TraceLayer(layer=layer.layer, rows=layer.rows, heads=heads, **of_layer)


# by (id, name): the object, and its JSON text
_WRITTEN: OrderedDict[tuple[int, str], tuple[object, Written]] = OrderedDict()
MOST_WRITTEN = 256


def _text_known(source: object, name: str, make: Callable[[], Written]) -> Written:
    """Return the JSON text of a value that is the same in every trace of a model, so that it is written once."""
    key = (id(source), name)
    entry = _WRITTEN.get(key)
    if entry is None or entry[0] is not source:
        entry = _WRITTEN[key] = (source, make())
        if len(_WRITTEN) > MOST_WRITTEN:
            _WRITTEN.popitem(last=False)
    return entry[1]


def _heads_as_text(array: Floats | Bools, description: TraceArray) -> Written:
    """Return a model's own numbers as JSON text, one text for each head."""
    floats = _contiguous(array)
    return [Fragment(as_json(part)) for part in floats] if description.level == "head" else Fragment(as_json(floats))


def _contiguous(array: Floats | Bools) -> npt.NDArray[np.generic]:
    """Return an array as JSON needs it: contiguous, and float32 or booleans."""
    return np.ascontiguousarray(array, dtype=None if array.dtype == np.bool_ else np.float32)


# --- reading -----------------------------------------------------------------------------------------------------


def trace_from_document(document: object, source: str = "this trace") -> Trace:
    """Return a trace from its parsed JSON document, checked for consistency.

    Raises AttnctlError if it is not a trace, has another schema, or has shapes that do not fit.
    """
    return checked_trace(read_document(document, source), source)


def read_document(document: object, source: str) -> Trace:
    """Return a trace from its parsed JSON document, unchecked. Raises AttnctlError if a field has another type."""
    with document_read(TraceDocument, document, source, "a trace", "a damaged trace") as fields:
        return value_of(
            Trace,
            fields,
            subject=value_of(Subject, fields),
            layers=tuple(map(_read_layer, fields.layers)),
            embeddings=None if fields.embeddings is UNSET else finite_floats(fields.embeddings, "embeddings"),
            predictions=tuple(value_of(Prediction, entry) for entry in fields.predictions),
        )


def _read_layer(entry: TraceLayer) -> LayerTrace:
    number, heads = entry.layer, entry.heads
    arrays = {array.name: getattr(entry, array.name) for array in (*_BEFORE_HEADS, *_AFTER_HEADS)}
    for array in _OF_HEADS:
        of_heads = [value for head in heads if (value := getattr(head, array.name)) is not UNSET]
        if 0 < len(of_heads) < len(heads):
            raise ValueError(f"{array.name} of layer {number} stand in {len(of_heads)} of its {len(heads)} heads")
        arrays[array.name] = of_heads or UNSET
    return LayerTrace(
        layer=number,
        heads=tuple(head.head for head in heads),
        kv_heads=tuple(head.head if head.kv_head is None else head.kv_head for head in heads),
        rows=entry.rows,
        **layer_fields({name: value for name, value in arrays.items() if value is not UNSET}, number),
    )


def layer_fields(arrays: Mapping[str, object], layer: int) -> Document:
    """Return the array fields of a LayerTrace, with `parameters` among them, from a file's arrays of a layer by name.

    Raises ValueError, TypeError for an array that is not one of finite numbers.
    """
    read: dict[str, Floats | Bools] = {}
    for array in LAYER_TRACE_ARRAYS:
        if array.name in arrays:
            as_array = true_or_false if array.boolean else finite_floats
            read[array.name] = as_array(arrays[array.name], f"{array.name} of layer {layer}")
    fields: Document = {array.name: read[array.name] for array in FIELD_ARRAYS if array.name in read}
    return fields | {"parameters": {name: array for name, array in read.items() if name not in fields}}
