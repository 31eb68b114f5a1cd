"""Save and load traces as JSON, or as NPZ with `trace` (the JSON without arrays), `embeddings`, `layers.0.weights` etc."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from typing import IO

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from attnctl.checks.argument_types import check_types
from attnctl.errors import AttnctlError
from attnctl.formats.documents.json_documents import result_of
from attnctl.formats.documents.overview_json import OverviewDocument, overview_from_document, overview_to_json
from attnctl.formats.documents.trace_json import layer_fields, read_document, trace_from_document, trace_to_json
from attnctl.formats.validation import check_no_bare_weights, finite_floats, read_npz
from attnctl.layer import LayerTrace
from attnctl.readings.overview import LongRow, Overview
from attnctl.registry import DOCUMENTS
from attnctl.runtime.files import parse_json, read_bytes, write_whole
from attnctl.trace import Headline, Trace
from attnctl.trace.consistency import checked_trace

# the date of every entry, the earliest that ZIP allows: the same trace is the same file
CREATED = (1980, 1, 1, 0, 0, 0)


def trace_to_npz(trace: Trace) -> bytes:
    """Return a trace as the bytes of an NPZ file, the same for the same trace."""
    file = io.BytesIO()
    write_trace_npz(trace, file)
    return file.getvalue()


def write_trace_npz(trace: Trace, file: IO[bytes]) -> None:
    """Write a trace as an NPZ file, its arrays directly from memory: np.savez would copy each of them first."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, entry_array in _npz_entries(trace):
            array = np.asarray(entry_array, order="C")
            with archive.open(zipfile.ZipInfo(f"{name}.npy", CREATED), "w", force_zip64=True) as entry:
                np.lib.format.write_array_header_1_0(entry, np.lib.format.header_data_from_array_1_0(array))
                entry.write(array.reshape(-1).view(np.uint8).data)


def _npz_entries(trace: Trace) -> Iterator[tuple[str, npt.NDArray[np.generic]]]:
    bare = tuple(LayerTrace(layer.layer, layer.heads, layer.kv_heads, rows=layer.rows) for layer in trace.layers)
    yield "trace", np.asarray(trace_to_json(replace(trace, embeddings=None, layers=bare)).decode())
    if trace.embeddings is not None:
        yield "embeddings", trace.embeddings
    for layer in trace.layers:
        for array, values in layer.arrays_kept():
            yield f"layers.{layer.layer}.{array.name}", values


def trace_from_npz(data: bytes, source: str = "this file") -> Trace:
    """Read a trace from the bytes of an NPZ file; nothing in it is ever unpickled. Raises AttnctlError if it is not one."""
    arrays = read_npz(data, source)
    if "trace" not in arrays:
        raise AttnctlError(f"{source} is not a trace: it has no entry 'trace'")
    bare = read_document(parse_json(str(arrays.pop("trace")), source), source)
    layers = []
    try:
        embeddings = (
            finite_floats(arrays.pop("embeddings"), "embeddings") if "embeddings" in arrays else bare.embeddings
        )
        for layer in bare.layers:
            prefix = f"layers.{layer.layer}."
            arrays_of_layer = {
                name.removeprefix(prefix): arrays.pop(name) for name in list(arrays) if name.startswith(prefix)
            }
            layers.append(replace(layer, **layer_fields(arrays_of_layer, layer.layer)))
    except (ValueError, TypeError) as error:
        raise AttnctlError(f"{source} is a damaged trace: {error}") from error
    if beyond := next((name for name in arrays if name.startswith("layers.")), None):
        raise AttnctlError(f"{source} holds {beyond[:60]}, an array of a layer that its trace does not have")
    return checked_trace(replace(bare, embeddings=embeddings, layers=tuple(layers)), source)


def save_value(value: Trace | Overview | LongRow, path: str | Path, line: Headline | None = None) -> None:
    """Write a trace (.json with its headline, .npz) or an overview (.json) to `path`, completely or not at all.

    Raises AttnctlError for another suffix, for numbers that are not finite, and for a path that cannot be written.
    """
    check_types("save", str | os.PathLike, path=path)
    suffix = Path(path).suffix.lower()
    if suffix == ".json":
        text = trace_to_json(value, line) if isinstance(value, Trace) else overview_to_json(value)
        write_whole(path, text + b"\n")
    elif suffix == ".npz" and isinstance(value, Trace):
        write_whole(path, lambda file: write_trace_npz(value, file))
    else:
        kind, suffixes = ("a trace", ".json or .npz") if isinstance(value, Trace) else ("an overview", ".json")
        raise AttnctlError(f"{kind} is saved as {suffixes}, not as {suffix or 'a name without suffix'}: {path}")


def load(path: str | Path) -> Trace | Overview | LongRow | Struct:
    """Read a file that `save` wrote, or the JSON document of any command; "-" is standard input.

    A trace, an overview or the row of a query is as it was; what `effects`, `sources`, `leaks`, … return is the same object
    again, with `to_records()`. Raises AttnctlError if the file is none of these, is damaged, or cannot be read.
    """
    check_types("load", str | os.PathLike, path=path)
    data = read_bytes(path)
    source = "standard input" if str(path) == "-" else str(path)
    if data[:2] == b"PK":
        return trace_from_npz(data, source)
    lines = data.strip().split(b"\n")
    if len(lines) > 1 and lines[0].rstrip().endswith(b"}"):
        raise AttnctlError(f"{source} holds {len(lines)} documents, one a line: give a file with one of them")
    document = parse_json(data, source)
    if not isinstance(document, dict) or "schema" not in document:
        return _value_of(document, source)
    name = str(document["schema"]).removeprefix("attnctl.").partition("/")[0]
    if name not in DOCUMENTS:
        schema = str(document["schema"])[:60]
        raise AttnctlError(f"{source} has schema {schema!r}, not attnctl.NAME/1 of {', '.join(DOCUMENTS)}")
    if name in ("trace", "overview", "failed"):
        return _value_of(document, source)
    kind: type[Struct] = resolve_name(DOCUMENTS[name])
    return result_of(kind, document, source, name)


def from_json(data: bytes, source: str = "this file") -> Trace | Overview | LongRow:
    """Return a trace, an overview, or the row of one query, from JSON. Raises AttnctlError for other or damaged JSON."""
    return _value_of(parse_json(data, source), source)


def _value_of(document: object, source: str) -> Trace | Overview | LongRow:
    check_no_bare_weights(document, source)
    if isinstance(document, dict) and document.get("schema") == OverviewDocument.__struct_config__.tag:
        return overview_from_document(document, source)
    return trace_from_document(document, source)
