"""Traces as NPZ, written and read: `trace` (the JSON document without arrays), `embeddings`, `layers.0.weights`, …"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from typing import IO

import numpy as np
import numpy.typing as npt

from attnctl.errors import AttnctlError
from attnctl.files import parse_json
from attnctl.formats.documents.trace_json import layer_fields, read_document, trace_to_json
from attnctl.formats.validation import finite_floats, read_npz
from attnctl.readings.traces.consistency import checked_trace
from attnctl.readings.traces.trace import LayerTrace, Trace

# of every entry: the earliest date of a ZIP file, so that the same trace is the same file
CREATED = (1980, 1, 1, 0, 0, 0)


def trace_to_npz(trace: Trace) -> bytes:
    """The bytes of an NPZ file: the same for the same trace."""
    file = io.BytesIO()
    write_trace_npz(trace, file)
    return file.getvalue()


def write_trace_npz(trace: Trace, file: IO[bytes]) -> None:
    """Write a trace as an NPZ file, the arrays straight from memory (bench_explain): np.savez copies each of them first."""
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
        for array, there in layer.arrays_kept():
            yield f"layers.{layer.layer}.{array.name}", there


def trace_from_npz(data: bytes, source: str = "this file") -> Trace:
    """Read a trace from the bytes of an NPZ file; nothing in it is ever unpickled. Raises AttnctlError where it is none."""
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
            own = {name.removeprefix(prefix): arrays.pop(name) for name in list(arrays) if name.startswith(prefix)}
            layers.append(replace(layer, **layer_fields(own, layer.layer)))
    except (ValueError, TypeError) as error:
        raise AttnctlError(f"{source} is a damaged trace: {error}") from error
    if beyond := next((name for name in arrays if name.startswith("layers.")), None):
        raise AttnctlError(f"{source} holds {beyond[:60]}, an array of a layer that its trace does not have")
    return checked_trace(replace(bare, embeddings=embeddings, layers=tuple(layers)), source)
