"""Traces as JSON, written and read: schema `attnctl.trace/1`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from orjson import Fragment

from attnctl.arrays import Bools, Floats
from attnctl.errors import AttnctlError
from attnctl.files import parse_json
from attnctl.formats.documents.json_documents import (
    DAMAGED,
    check_schema,
    damage_of,
    document_opening,
    notes_document,
    read_opening,
    write_json,
)
from attnctl.formats.validation import checked_whole_number, finite_floats, read_fields, true_or_false
from attnctl.readings.traces.consistency import checked_trace
from attnctl.readings.traces.trace import FIELD_ARRAYS, LAYER_TRACE_ARRAYS, LayerTrace, Prediction, Trace, TraceArray
from attnctl.text import Document, as_json

SCHEMA = "attnctl.trace/1"


def trace_to_json(trace: Trace) -> bytes:
    """One line of JSON, without the newline. Raises AttnctlError where a number is not finite."""
    data = write_json(trace_document(trace), "trace")
    if _count_nulls(data) > (trace.model.seed is None):
        _check_finite(trace)
    return data


def _count_nulls(data: bytes) -> int:
    """How often `nul` stands in a JSON text: numbers that are NaN or infinite are written as null, and so is no seed.

    A word may hold it too, so this tells where a closer look is due. By NumPy, since searching the bytes took an eighth of a
    trace's time (`tests/benchmarks/bench_batch.py`).
    """
    letters = np.frombuffer(data, np.uint8)  # (bytes,)
    at = np.flatnonzero(letters == ord("u"))  # (u's,), neither the first letter nor the last: those are braces
    return int(np.count_nonzero((letters[at - 1] == ord("n")) & (letters[at + 1] == ord("l"))))


def _check_finite(trace: Trace) -> None:
    """Raise AttnctlError naming an array of the trace with a number that is not finite."""
    named: list[tuple[str, Floats | Bools | None]] = [("embeddings", trace.embeddings)]
    named += [(f"layer {layer.layer}: {of.name}", array) for layer in trace.layers for of, array in layer.arrays_kept()]
    for where, array in named:
        if array is not None and not np.isfinite(array).all():
            raise AttnctlError(f"{where}: a number is not finite (NaN or infinity), so the trace is not written")


def trace_document(trace: Trace) -> Document:
    """The JSON document, arrays still arrays. What the source cannot give is absent."""
    document = document_opening(SCHEMA, trace.text, trace.tokens, trace.model, trace.key_tokens)
    if trace.id is not None:
        document["id"] = trace.id
    if trace.embeddings is not None:
        document["embeddings"] = _contiguous(trace.embeddings)
    document["layers"] = [_layer_document(layer) for layer in trace.layers]
    if trace.predictions:
        document["predictions"] = [
            {"position": p.position, "text": p.text, "id": p.id, "probability": p.probability}
            for p in trace.predictions
        ]
    if trace.measure is not None:
        document["measure"] = trace.measure
    return document | notes_document(trace.notes)


Written = npt.NDArray[np.generic] | Fragment | list[Fragment]  # an array, or its text where that is known already


def _layer_document(layer: LayerTrace) -> Document:
    """Keys in the order of TRACE_ARRAYS, the heads where their first array would stand."""
    document: Document = {"layer": layer.layer}
    if layer.rows is not None:
        document["rows"] = list(layer.rows)
    before: list[tuple[str, Written]] = []
    of_heads: list[tuple[str, Written]] = []
    after: list[tuple[str, Written]] = []
    for array, there in layer.arrays_kept():
        group = of_heads if array.level == "head" else before if array.name in _BEFORE_HEADS else after
        group.append((array.name, _heads_as_text(there, array) if array.parameter else _contiguous(there)))
    heads = [
        {"head": head, "kv_head": layer.kv_heads[at]} | {name: there[at] for name, there in of_heads}
        for at, head in enumerate(layer.heads)
    ]
    return document | dict(before) | {"heads": heads} | dict(after)


# by (id, name): the array, and its text
_WRITTEN: OrderedDict[tuple[int, str], tuple[Floats | Bools, Written]] = OrderedDict()
MOST_WRITTEN = 256


def _heads_as_text(array: Floats | Bools, of: TraceArray) -> Written:
    """A model's own numbers as JSON text, one text a head: they are the same in every trace, so they are written once."""
    key = (id(array), of.name)
    known = _WRITTEN.get(key)
    if known is None or known[0] is not array:
        floats = _contiguous(array)
        texts = [Fragment(as_json(part)) for part in floats] if of.level == "head" else Fragment(as_json(floats))
        known = _WRITTEN[key] = (array, texts)
        if len(_WRITTEN) > MOST_WRITTEN:
            _WRITTEN.popitem(last=False)
    return known[1]


_LEVELS = [array.level for array in LAYER_TRACE_ARRAYS]
_BEFORE_HEADS = {array.name for array in LAYER_TRACE_ARRAYS[: _LEVELS.index("head")]}


def _contiguous(array: Floats | Bools) -> npt.NDArray[np.generic]:
    """As JSON needs it: contiguous, and float32 or true and false."""
    return np.ascontiguousarray(array, dtype=None if array.dtype == np.bool_ else np.float32)


def trace_from_json(data: bytes | str, source: str = "this trace") -> Trace:
    """Read one JSON trace. Raises AttnctlError where it is no trace, of another schema, or its shapes do not fit."""
    return trace_from_document(parse_json(data, source), source)


def trace_from_document(document: object, source: str = "this trace") -> Trace:
    """A trace from its parsed JSON document, held against itself; errors as `trace_from_json`."""
    return checked_trace(read_document(document, source), source)


def read_document(document: object, source: str) -> Trace:
    """The fields of a trace's parsed JSON document, as they stand. Raises AttnctlError where one is of another type."""
    entries = check_schema(document, SCHEMA, source, "a trace")
    try:
        given = entries.get("id")
        if given is not None and (not isinstance(given, (str, int)) or isinstance(given, bool)):
            raise TypeError(f"id is {str(given)[:40]!r}, not a text or a whole number")
        return Trace(
            **read_opening(entries),
            layers=tuple(_read_layer(layer) for layer in entries["layers"]),
            embeddings=finite_floats(entries["embeddings"], "embeddings") if "embeddings" in entries else None,
            predictions=tuple(read_fields(Prediction, given) for given in entries.get("predictions", ())),
            measure=entries.get("measure"),
            id=given,
        )
    except DAMAGED as error:
        raise AttnctlError(f"{source} is a damaged trace: {damage_of(error)}") from error


def _read_layer(entry: Document) -> LayerTrace:
    number, heads = checked_whole_number(entry["layer"], "layer"), entry["heads"]
    found = {}
    for array in LAYER_TRACE_ARRAYS:
        if array.level == "layer" and array.name in entry:
            found[array.name] = entry[array.name]
        elif array.level == "head" and (given := [head[array.name] for head in heads if array.name in head]):
            if len(given) < len(heads):
                raise ValueError(f"{array.name} of layer {number} stand in {len(given)} of its {len(heads)} heads")
            found[array.name] = given
    return LayerTrace(
        layer=number,
        heads=tuple(checked_whole_number(head["head"], "head") for head in heads),
        kv_heads=tuple(checked_whole_number(head.get("kv_head", head["head"]), "kv_head") for head in heads),
        rows=tuple(checked_whole_number(row, "a row") for row in entry["rows"]) if "rows" in entry else None,
        **layer_fields(found, number),
    )


def layer_fields(found: Mapping[str, object], layer: int) -> Document:
    """The array fields of a LayerTrace, `parameters` one of them, of what a file holds by name of a layer.

    Raises ValueError, TypeError where one is no array of finite numbers.
    """
    read: dict[str, Floats | Bools] = {}
    for array in LAYER_TRACE_ARRAYS:
        if array.name in found:
            as_array = true_or_false if array.boolean else finite_floats
            read[array.name] = as_array(found[array.name], f"{array.name} of layer {layer}")
    fields: Document = {array.name: read[array.name] for array in FIELD_ARRAYS if array.name in read}
    return fields | {"parameters": {name: there for name, there in read.items() if name not in fields}}
