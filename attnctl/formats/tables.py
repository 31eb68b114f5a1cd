"""Write tidy tables, a row for each number, as CSV or Parquet, and return the same rows as records for Python.

A table comes in blocks of some rows, so that a large one is never in memory as text.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attnctl.errors import AttnctlError
from attnctl.readings.head_statistics import HeadTable
from attnctl.readings.overview import LongRow, Overview, TextPart
from attnctl.text import as_json
from attnctl.text.tokens import Token
from attnctl.trace import Trace
from attnctl.trace.subject import numbers_in_text

if TYPE_CHECKING:
    from attnctl.runtime.arrays import Bools, Floats

TABLE_FORMATS = ("csv", "parquet")
Record = dict[str, Any]
# some rows of a table, by column: numbers as an array, in which NaN is an absent number, or texts
Block = Mapping[str, "npt.NDArray[np.number[Any]] | Sequence[str | None]"]


def records_of(blocks: Iterable[Block]) -> list[Record]:
    """Return a record for each row: the shortest numbers that read back to the same float32, None for an absent value."""
    return [
        dict(zip(block, row, strict=True))
        for block in blocks
        for row in zip(*map(_values, block.values()), strict=True)
    ]


def _values(column: npt.NDArray[np.number[Any]] | Sequence[str | None]) -> Sequence[Any]:
    import orjson

    return orjson.loads(as_json(np.ascontiguousarray(column))) if isinstance(column, np.ndarray) else column


def block_of(records: Sequence[Mapping[str, object]]) -> Block:
    """Return records, whose numbers are floats or whole, as one block."""
    columns: dict[str, Any] = {name: [record[name] for record in records] for name in (records[0] if records else ())}
    for name, values in columns.items():
        if all(isinstance(value, int) for value in values):
            columns[name] = np.array(values, np.int64)
        elif not any(isinstance(value, str) for value in values):
            columns[name] = np.array([np.nan if value is None else value for value in values], np.float64)
    return columns


def table_writer(blocks: Iterable[Block], form: str) -> Callable[[IO[bytes]], None]:
    """Return a function that writes a table into a file. Texts are not changed, even those that begin as a formula does."""
    return partial(_write_parquet if form == "parquet" else _write_csv, blocks)


def _write_csv(blocks: Iterable[Block], file: IO[bytes]) -> None:
    """Write a table as CSV with quotes as in RFC 4180, and rows that end in a line feed; an absent value is empty."""
    text = io.TextIOWrapper(file, "utf-8", newline="")
    # the writer quotes a carriage return only if rows end in one
    rows = csv.writer(SimpleNamespace(write=lambda row: text.write(f"{row[:-2]}\n")), lineterminator="\r\n")
    for number, block in enumerate(blocks):
        if not number:
            rows.writerow(block)
        rows.writerows(zip(*map(_values, block.values()), strict=True))
    text.flush()
    text.detach()


def _write_parquet(blocks: Iterable[Block], file: IO[bytes]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    writer = None
    for block in blocks:
        table = pa.table({name: pa.array(values, from_pandas=True) for name, values in block.items()})
        writer = writer or pq.ParquetWriter(file, table.schema, compression="zstd")
        writer.write_table(table)
    if writer is not None:
        writer.close()


# --- tables of readings -------------------------------------------------------------------------------------------


def value_records(value: Trace | Overview | LongRow) -> list[Record]:
    """Return the records of a value: its weights, else the statistics of heads, else the strongest links."""
    if isinstance(value, Overview) and value.grid is None:
        statistics = HeadTable(value.head_statistics).to_records()
        return statistics or records_of(_link_blocks(value))
    return records_of(weight_blocks(value))


def weight_blocks(value: Trace | Overview | LongRow, key_numbers: Sequence[int] | None = None) -> Iterator[Block]:
    """Yield the weights of each layer and head: layer, head, query, key, query_text, key_text, weight.

    A hidden cell has no weight. `key_numbers` are the numbers of the keys in the text. Cells that hold several tokens
    also have query_tokens and key_tokens (0-15), and pool; query and key are then the first of these tokens. Raises
    AttnctlError for a trace without weights.
    """
    if key_numbers is None:
        is_narrow = not isinstance(value, LongRow) and "left-out" in value.noted
        key_numbers = numbers_in_text(value.tokens, value.key_axis) if is_narrow else None
    numbers = range(len(value.key_axis)) if key_numbers is None else key_numbers
    keys = [(number, token.text) for number, token in zip(numbers, value.key_axis, strict=True)]
    if isinstance(value, LongRow):
        query = [(value.query, value.tokens[value.query].text)]
        for place, row in value.weights.items():
            yield _block(place, query, keys, row[None])
    elif isinstance(value, Trace):
        if not value.layers:
            raise AttnctlError("this trace holds no weights: write it without narrowing its steps")
        for layer in value.layers:
            rows = range(len(value.tokens)) if layer.rows is None else layer.rows
            queries = [(row, value.tokens[row].text) for row in rows]
            for head in layer.heads:
                yield _block((layer.layer, head), queries, keys, layer.head_weights(head), layer.mask)
    elif value.grid is not None:
        yield from _grid_blocks(value, list(numbers))


def _grid_blocks(overview: Overview, numbers: Sequence[int]) -> Iterator[Block]:
    """Yield the cells of an overview's grid; `numbers` are the numbers of its keys in the text."""
    grid = overview.grid
    assert grid is not None
    pooled = grid.pool == "mass" or any(part.token_count > 1 for part in (*grid.rows, *grid.columns))
    queries = _cells(grid.rows, overview.tokens, range(len(overview.tokens)))
    keys = _cells(grid.columns, overview.key_axis, numbers)
    n_q, n_k = len(queries), len(keys)
    ranges: Block = {}
    if pooled:
        rows, columns = [_ranges(part) for part in grid.rows], [_ranges(part) for part in grid.columns]
        ranges = {
            "query_tokens": [rows[index] for index in range(n_q) for _ in range(n_k)],
            "key_tokens": columns * n_q,
            "pool": [grid.pool] * (n_q * n_k),
        }
    for place, weights in grid.weights.items():
        yield {**_block(place, queries, keys, weights, grid.masks.get(place[0])), **ranges}


def _cells(parts: Sequence[TextPart], tokens: Sequence[Token], numbers: Sequence[int]) -> list[tuple[int, str]]:
    """Return the number of the first token of each part, and the text of a single token or the name of a part."""
    return [
        (numbers[part.first_token], tokens[part.first_token].text if part.token_count == 1 else part.name)
        for part in parts
    ]


def _ranges(part: TextPart) -> str:
    return ",".join(str(a) if b == a + 1 else f"{a}-{b - 1}" for a, b in part.ranges)


def _block(
    place: tuple[int, int],
    queries: Sequence[tuple[int, str]],
    keys: Sequence[tuple[int, str]],
    weights: Floats,
    mask: Bools | None = None,
) -> Block:
    """Return the rows of one layer and head; `queries` and `keys` are numbers and texts, `weights` (n_q, n_k)."""
    n_q, n_k = weights.shape
    hidden = weights if mask is None else np.where(mask, weights, np.float32(np.nan))
    query_texts, key_texts = ([text for _, text in named] for named in (queries, keys))
    return {
        "layer": np.full(n_q * n_k, place[0]),
        "head": np.full(n_q * n_k, place[1]),
        "query": np.repeat(np.array([number for number, _ in queries], np.int64), n_k),
        "key": np.tile(np.array([number for number, _ in keys], np.int64), n_q),
        "query_text": [text for text in query_texts for _ in range(n_k)],
        "key_text": key_texts * n_q,
        "weight": np.ascontiguousarray(hidden, np.float32).reshape(-1),
    }


def _link_blocks(overview: Overview) -> Iterator[Block]:
    """Yield the strongest links of each layer and head, those that have a weight."""
    keys = overview.key_axis
    for (layer, head), links in overview.links.items():
        rows, columns = np.nonzero(links.weights > 0)
        chosen = links.keys[rows, columns]
        yield {
            "layer": np.full(len(rows), layer),
            "head": np.full(len(rows), head),
            "query": rows.astype(np.int64),
            "key": chosen,
            "query_text": [overview.tokens[row].text for row in rows],
            "key_text": [keys[key].text for key in chosen],
            "weight": links.weights[rows, columns].astype(np.float32),
        }
