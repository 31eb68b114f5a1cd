"""Write traces to Parquet: a row for each layer and head, or for each weight. Needs pyarrow."""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from attnctl.batching.formats import BatchFormat, NamedFiles
from attnctl.batching.items import Item
from attnctl.batching.tables import blocks_of_text
from attnctl.layer import HEAD_FIELD_ARRAYS, LayerTrace
from attnctl.models import Model
from attnctl.trace import Trace

if TYPE_CHECKING:
    from attnctl.attention import Array
    from attnctl.text import Document

LARGEST = 64 << 20  # bytes of a table in memory
_ROW = pa.list_(pa.float32())
_GRID = pa.list_(_ROW)
SCHEMA = pa.schema(
    [
        ("number", pa.int64()),
        ("id", pa.string()),
        ("error", pa.string()),  # why the text failed; its row then has a number, an id and nothing more
        ("text", pa.string()),
        ("model", pa.string()),
        ("tokens", pa.list_(pa.string())),
        ("key_tokens", pa.list_(pa.string())),  # differ from the tokens only for cross attention
        ("layer", pa.int32()),
        ("head", pa.int32()),
        ("kv_head", pa.int32()),
        ("rows", pa.list_(pa.int32())),  # the queries in the arrays; null: all
        ("mask", pa.list_(pa.list_(pa.bool_()))),
        *((array.name, _GRID if len(array.axes) == 2 else _ROW) for array in HEAD_FIELD_ARRAYS),
    ]
)
WEIGHT_SCHEMA = pa.schema(
    [
        ("number", pa.int64()),
        ("id", pa.string()),
        ("layer", pa.int64()),
        ("head", pa.int64()),
        ("query", pa.int64()),
        ("key", pa.int64()),
        ("query_text", pa.string()),
        ("key_text", pa.string()),
        ("weight", pa.float32()),  # null: hidden
    ]
)


class Tables(BatchFormat):
    """The format `traces.parquet/NUMBER.parquet`; the folder is read as one table."""

    form, prefix = "parquet", "traces.parquet/"

    def __init__(self) -> None:
        self._rows: list[pa.Table] = []
        self._bytes = 0

    @staticmethod
    def make(item: Item, trace: Trace, model: Model) -> bytes:
        """Return the rows of a trace as an Arrow stream."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, SCHEMA) as stream:
            for layer in trace.layers:
                stream.write_batch(_layer_rows(trace, layer, item))
            if not trace.layers:  # the chosen steps have no arrays
                stream.write_batch(pa.RecordBatch.from_pylist([_text_columns(trace, item)], SCHEMA))
        return bytes(sink.getvalue())

    @staticmethod
    def failed(item: Item, why: str) -> bytes | None:
        """Return the row of a text that failed, as an Arrow stream."""
        row = {"number": item.number, "id": None if item.id is None else str(item.id), "error": why}
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, SCHEMA) as stream:
            stream.write_batch(pa.RecordBatch.from_pylist([row], SCHEMA))
        return bytes(sink.getvalue())

    def add(self, made: bytes) -> NamedFiles:
        """Add the rows of a trace; return a file if there are many rows."""
        with pa.ipc.open_stream(made) as stream:
            self._rows.append(stream.read_all())
        self._bytes += len(made)
        return self.end() if self._bytes > LARGEST else []

    def rest(self) -> NamedFiles:
        """Return the file of the remaining rows."""
        out = io.BytesIO()
        pq.write_table(pa.concat_tables(self._rows), out, compression="zstd")
        self._rows, self._bytes = [], 0
        return [(self.name_of_part(".parquet"), out.getvalue())]


class WeightTables(Tables):
    """The format `weights.parquet/NUMBER.parquet`: a row for each weight, with the columns of `weights.csv`."""

    form, prefix = "weights-parquet", "weights.parquet/"

    @staticmethod
    def make(item: Item, trace: Trace, model: Model) -> bytes:
        """Return the rows of a text as an Arrow stream. Raises AttnctlError for a trace without weights."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, WEIGHT_SCHEMA) as stream:
            for block in blocks_of_text(item, trace):
                columns = [pa.array(block[field.name], field.type, from_pandas=True) for field in WEIGHT_SCHEMA]
                stream.write_batch(pa.record_batch(columns, schema=WEIGHT_SCHEMA))
        return bytes(sink.getvalue())

    @staticmethod
    def failed(item: Item, why: str) -> None:
        """Return None: a failed text has no weights."""


def _text_columns(trace: Trace, item: Item) -> Document:
    """Return the columns that are the same in all rows of a text."""
    return {
        "number": item.number,
        "id": None if trace.id is None else str(trace.id),
        "text": trace.text,
        "model": trace.model.name,
        "tokens": [token.text for token in trace.tokens],
        "key_tokens": [token.text for token in trace.key_axis],
    }


def _layer_rows(trace: Trace, layer: LayerTrace, item: Item) -> pa.RecordBatch:
    """Return one row for each head; some columns are the same in all rows."""
    heads = len(layer.heads)
    common = _text_columns(trace, item) | {"layer": layer.layer, "rows": layer.rows}
    per_head = {"head": layer.heads, "kv_head": layer.kv_heads}
    arrays = {array.name: array_values for array, array_values in layer.arrays_kept()}
    if layer.mask is not None:
        arrays["mask"] = np.stack([layer.mask] * heads)  # (heads, n_q, n_k)
    columns = [
        _nested_rows(arrays[field.name])
        if field.name in arrays
        else pa.array(per_head.get(field.name, [common.get(field.name)] * heads), field.type)
        for field in SCHEMA
    ]
    return pa.record_batch(columns, schema=SCHEMA)


def _nested_rows(array: Array) -> pa.Array:
    """Return an array (heads, rows, columns) as a list of lists for each head, (heads, rows) as a list for each head."""
    nested = pa.array(np.ascontiguousarray(array).reshape(-1))
    for axis in range(array.ndim - 1, 0, -1):  # the innermost lists first
        lists = math.prod(array.shape[:axis])
        nested = pa.ListArray.from_arrays(np.arange(lists + 1, dtype=np.int32) * array.shape[axis], nested)
    return nested
