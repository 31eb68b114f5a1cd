"""A trace as rows of a table, one a layer and head: what Parquet files hold. Needs pyarrow."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from attnctl.batching.items import Item
from attnctl.readings.traces.trace import HEAD_FIELD_ARRAYS, Trace

if TYPE_CHECKING:
    from attnctl.attention import Array

_ROW = pa.list_(pa.float32())
_GRID = pa.list_(_ROW)
SCHEMA = pa.schema(
    [
        ("number", pa.int64()),
        ("id", pa.string()),
        ("text", pa.string()),
        ("model", pa.string()),
        ("tokens", pa.list_(pa.string())),
        ("key_tokens", pa.list_(pa.string())),  # as the tokens, but for cross attention
        ("layer", pa.int32()),
        ("head", pa.int32()),
        ("kv_head", pa.int32()),
        ("rows", pa.list_(pa.int32())),  # which queries the arrays hold; null: all
        ("mask", pa.list_(pa.list_(pa.bool_()))),
        *((array.name, _GRID if len(array.axes) == 2 else _ROW) for array in HEAD_FIELD_ARRAYS),
    ]
)


def rows_of_trace(trace: Trace, item: Item) -> bytes:
    """The rows of a trace as an Arrow stream."""
    batches = [_layer_rows(trace, at, item) for at in range(len(trace.layers))]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return bytes(sink.getvalue())


def _layer_rows(trace: Trace, at: int, item: Item) -> pa.Table:
    layer = trace.layers[at]
    heads = len(layer.heads)

    def repeated_value(value: object, kind: object) -> pa.Array:
        return pa.array([value] * heads, kind)

    columns = {
        "number": repeated_value(item.number, pa.int64()),
        "id": repeated_value(None if trace.id is None else str(trace.id), pa.string()),
        "text": repeated_value(trace.text, pa.string()),
        "model": repeated_value(trace.model.name, pa.string()),
        "tokens": repeated_value([token.text for token in trace.tokens], pa.list_(pa.string())),
        "key_tokens": repeated_value([token.text for token in trace.key_axis], pa.list_(pa.string())),
        "layer": repeated_value(layer.layer, pa.int32()),
        "head": pa.array(layer.heads, pa.int32()),
        "kv_head": pa.array(layer.kv_heads, pa.int32()),
        "rows": repeated_value(layer.rows, pa.list_(pa.int32())),
    }
    mask = layer.mask
    columns["mask"] = (
        pa.nulls(heads, SCHEMA.field("mask").type) if mask is None else _nested_rows(np.stack([mask] * heads))
    )
    arrays = {array.name: there for array, there in layer.arrays_kept()}
    for array in HEAD_FIELD_ARRAYS:
        kind = SCHEMA.field(array.name).type
        columns[array.name] = _nested_rows(arrays[array.name]) if array.name in arrays else pa.nulls(heads, kind)
    return pa.record_batch([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def _nested_rows(array: Array) -> pa.Array:
    """An array (heads, rows, columns) as a list of lists a head, one (heads, rows) as a list a head."""
    nested = pa.array(np.ascontiguousarray(array).reshape(-1))
    for at in range(array.ndim - 1, 0, -1):  # the innermost lists first
        lists = math.prod(array.shape[:at])
        nested = pa.ListArray.from_arrays(np.arange(lists + 1, dtype=np.int32) * array.shape[at], nested)
    return nested
