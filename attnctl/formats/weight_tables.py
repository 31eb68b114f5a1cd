"""Read tables of weights: a row for each cell, as attnctl and pandas write them, or a row for each query, as in a pipe."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from attnctl.checks import limits
from attnctl.errors import AttnctlError, in_one_line
from attnctl.runtime.files import decode_text, need_pyarrow, parse_json

if TYPE_CHECKING:
    from attnctl.runtime.arrays import Bools, Floats

CELL = ("query", "key", "weight")  # the columns that a table of cells must have
NAMES = {"query": "query_text", "key": "key_text"}  # the columns with the texts of queries and keys
TEXTS = (*NAMES.values(), "pool")  # columns that are texts, even if they look like numbers
WIDE = ("layer", "head", "index", "query")  # the first columns of a table of rows
PARQUET = b"PAR1"  # the first bytes of a file
CHUNK = 1 << 16  # rows that are text at once
MARKS = (b"\t", b";", b",")


@dataclass(frozen=True)
class LayerTable:
    """The weights of one layer in a table: which heads it has, and which cells are seen."""

    layer: int
    heads: tuple[int, ...]
    weights: Floats  # (heads, n_q, n_k), 0 where a cell is hidden
    seen: Bools  # (n_q, n_k)


@dataclass(frozen=True)
class WeightTable:
    """The weights of a table, and its axes: number → text, in order; the text of a token without a name is its number."""

    layers: tuple[LayerTable, ...]
    queries: dict[int, str]
    keys: dict[int, str]
    named: bool  # whether the table has texts
    pool: str = ""  # how cells of several tokens were made

    @property
    def one_text(self) -> bool:
        """Return whether queries and keys are tokens of one text: numbers that both have stand for the same token."""
        if not self.named:
            return self.queries.keys() == self.keys.keys()
        shared = self.queries.keys() & self.keys.keys()
        narrow = self.queries.keys() <= self.keys.keys() or self.keys.keys() <= self.queries.keys()
        return narrow and all(self.queries[number] == self.keys[number] for number in shared)


def is_weight_table(data: bytes) -> bool:
    """Return whether the bytes of a file or pipe are a table of weights, by the names of its columns."""
    if data[:4] == PARQUET or _holds_records(data):
        return True
    names = _header(data)
    return set(CELL) <= set(names) or tuple(names[:4]) == WIDE


def _holds_records(data: bytes) -> bool:
    """Return whether bytes are JSON of records, a list of objects, as `to_records()` and pandas write cells."""
    start = data[:4096].lstrip()
    return re.match(rb"\[\s*\{", start) is not None and all(b'"%s"' % name.encode() in start for name in CELL)


def _header(data: bytes) -> list[str]:
    line = data.removeprefix(b"\xef\xbb\xbf")[:100_000].split(b"\n", 1)[0].rstrip(b"\r")
    mark = max(MARKS, key=line.count)
    return [name.strip().strip('"').lower() for name in line.decode("utf-8", "replace").split(mark.decode())]


def read_weight_table(data: bytes, path: str) -> WeightTable:
    """Return the weights of a table. Raises AttnctlError if it is damaged, or has a cell twice.

    A table of cells has the columns query, key and weight; layer, head, query_text and key_text if it has them. Queries
    and keys are numbers, or words, which then are numbered in the order of the table. An empty weight, or a missing row,
    is a hidden cell.
    """
    limits.check_memory(4.0 * len(data), f"reading {path}", "give some layers or heads of it")
    if data[:4] == PARQUET:
        columns = _parquet_columns(data, path)
    else:
        columns = _columns_of_records(data, path) if _holds_records(data) else _text_columns(data, path)
    for name in CELL:
        if name not in columns:
            raise AttnctlError(f"{path} has no column {name}: a table of weights has query, key, weight, for each cell")
    if not len(columns["weight"]):
        raise AttnctlError(f"{path} holds no weights: its table has no rows")
    weights = _numbers(columns["weight"], "weight", path)  # (rows,)
    zeros = np.zeros(len(weights), np.int64)
    layers, heads = (_whole(columns[name], name, path) if name in columns else zeros for name in ("layer", "head"))
    (query_numbers, queries), (key_numbers, keys) = (_axis(columns, name, path) for name in CELL[:2])
    table = _grids(path, (layers, heads, query_numbers, key_numbers), weights, tuple(queries), tuple(keys))
    named = any(NAMES[name] in columns or not _is_numeric(columns[name]) for name in CELL[:2])
    pool = str(columns["pool"][0]) if "pool" in columns else ""
    return WeightTable(table, queries, keys, named, pool)


Column = npt.NDArray[np.generic]


def _text_columns(data: bytes, path: str) -> dict[str, Column]:
    """Return the columns of a table in text by their names in small letters."""
    mark = max(MARKS, key=data[:100_000].split(b"\n", 1)[0].count).decode()
    rows = csv.reader(io.StringIO(decode_text(data, path), newline=""), delimiter=mark)
    try:
        header = next(rows)
        names = [name.strip().lower() for name in header]
        if tuple(names[:4]) == WIDE:
            return _cells_of_rows(header, list(rows), path)
        parts = list(_chunks(rows, names, path))
    except csv.Error as error:
        raise AttnctlError(f"{path} is not a sound table: {in_one_line(error)}") from error
    wanted = [*CELL, "layer", "head", *TEXTS]
    return {
        name: np.concatenate([part[names.index(name)] for part in parts]) if parts else np.empty(0)
        for name in wanted
        if name in names
    }


def _chunks(rows: Iterator[list[str]], names: Sequence[str], path: str) -> Iterator[list[Column]]:
    """Yield some rows by column, as arrays of numbers where all cells are numbers, else of texts."""
    while lines := [line for line in islice(rows, CHUNK) if line]:
        if wrong := next((line for line in lines if len(line) != len(names)), None):
            raise AttnctlError(f"{path}: a row has {len(wrong)} cells, and the first line names {len(names)} columns")
        columns = zip(names, zip(*lines, strict=True), strict=True)
        yield [np.array(cells, dtype=object) if name in TEXTS else _column(cells) for name, cells in columns]


def _column(cells: Sequence[str]) -> Column:
    try:
        return np.array([cell or "nan" for cell in cells]).astype(np.float64)
    except ValueError:
        return np.array(cells, dtype=object)


def _cells_of_rows(names: list[str], lines: list[list[str]], path: str) -> dict[str, Column]:
    """Return a table of rows (layer, head, index, query, then a column for each key) as columns of cells."""
    keys = [name.partition(":") for name in names[4:]]
    if not keys or not all(number.isdecimal() for number, *_ in keys):
        raise AttnctlError(f"{path}: its columns after the first four are keys, such as 0:Alice")
    lines = [line for line in lines if line]
    if not lines or any(len(line) != len(names) for line in lines):
        raise AttnctlError(f"{path} is not a sound table: its rows are of different lengths")
    head, n_k = list(zip(*(line[:4] for line in lines), strict=True)), len(keys)
    columns = {
        name: np.repeat(_column(cells), n_k) for name, cells in zip(("layer", "head", "query"), head[:3], strict=True)
    }
    columns["query_text"] = np.repeat(np.array(head[3], dtype=object), n_k)
    columns["key"] = np.tile(np.array([int(number) for number, *_ in keys]), len(lines))
    columns["key_text"] = np.tile(np.array([text for *_, text in keys], dtype=object), len(lines))
    columns["weight"] = np.concatenate([_column(line[4:]) for line in lines])
    return columns


def _columns_of_records(data: bytes, path: str) -> dict[str, Column]:
    """Return records in JSON as columns; a weight that is null is a hidden cell."""
    records = parse_json(data, path)
    if not all(isinstance(record, dict) and set(CELL) <= record.keys() for record in records):
        raise AttnctlError(f"{path} has a record without query, key or weight")
    names = [name for name in (*CELL, "layer", "head", *TEXTS) if name in records[0]]
    columns: dict[str, Column] = {}
    for name in names:
        cells = [record.get(name) for record in records]
        words = name in TEXTS or (name in CELL[:2] and any(isinstance(cell, str) for cell in cells))
        numeric = not words and not any(isinstance(cell, (str, list, dict)) for cell in cells)
        columns[name] = np.array(cells, np.float64 if numeric else object)
    return columns


def _parquet_columns(data: bytes, path: str) -> dict[str, Column]:
    """Return the columns of a Parquet file by their names in small letters."""
    need_pyarrow(f"{path}, Parquet,")
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(pa.BufferReader(data))
        names = [name.lower() for name in table.column_names]
        wanted = [name for name in (*CELL, "layer", "head", *TEXTS) if name in names]
        return {name: table.column(names.index(name)).to_numpy() for name in wanted}
    except (pa.ArrowException, OSError, ValueError) as error:
        raise AttnctlError(f"{path} is not a sound Parquet file: {in_one_line(error)}") from error


def _is_numeric(column: Column) -> bool:
    return column.dtype.kind in "iuf"


def _numbers(column: Column, name: str, path: str) -> npt.NDArray[np.float64]:
    """Return a column of numbers, NaN where a cell is empty. Raises AttnctlError if it holds anything else."""
    if _is_numeric(column):
        return column.astype(np.float64)
    try:
        return np.asarray([np.nan if cell in (None, "") else cell for cell in column], np.float64)
    except (ValueError, TypeError):
        raise AttnctlError(f"{path}: its column {name} holds things that are not numbers") from None


def _whole(column: Column, name: str, path: str) -> npt.NDArray[np.int64]:
    """Return a column of whole numbers from 0. Raises AttnctlError if it holds anything else."""
    numbers = _numbers(column, name, path)
    if not (np.isfinite(numbers) & (numbers >= 0) & (numbers < 2**31) & (numbers == np.floor(numbers))).all():
        raise AttnctlError(f"{path}: its column {name} holds things that are not numbers from 0")
    return numbers.astype(np.int64)


def _axis(columns: dict[str, Column], name: str, path: str) -> tuple[npt.NDArray[np.int64], dict[int, str]]:
    """Return the number of the query, or key, of each cell, and number → text in order."""
    column = columns[name]
    if _is_numeric(column):
        numbers = _whole(column, name, path)
        texts = columns.get(NAMES[name])
        by_number = dict(zip(numbers.tolist(), numbers if texts is None else texts, strict=True))
        return numbers, {number: str(by_number[number]) for number in sorted(by_number)}
    order = {text: place for place, text in enumerate(dict.fromkeys(map(str, column)))}
    return np.array([order[str(text)] for text in column]), {place: text for text, place in order.items()}


def _grids(
    path: str,
    places: tuple[npt.NDArray[np.int64], ...],
    weights: npt.NDArray[np.float64],
    queries: tuple[int, ...],
    keys: tuple[int, ...],
) -> tuple[LayerTable, ...]:
    """Return the weights of each layer; `places` are the layer, head, query and key of each cell."""
    layers, heads, query_numbers, key_numbers = places
    rows, columns = np.searchsorted(queries, query_numbers), np.searchsorted(keys, key_numbers)  # (cells,)
    tables = []
    for layer in np.unique(layers).tolist():
        chosen = layers == layer
        own = np.unique(heads[chosen])
        grid = np.full((len(own), len(queries), len(keys)), np.nan)  # (heads, n_q, n_k)
        index = np.searchsorted(own, heads[chosen]), rows[chosen], columns[chosen]
        cells = np.ravel_multi_index(index, grid.shape)
        if len(np.unique(cells)) < len(cells):
            raise AttnctlError(
                f"{path} has a cell of layer {layer} twice: number the tokens in columns query and key, and write their "
                "texts into query_text and key_text"
            )
        grid[index] = weights[chosen]
        hidden = ~(grid > -np.inf)  # NaN and -inf
        if np.isposinf(grid).any():
            raise AttnctlError(f"{path} holds inf in layer {layer}, and every weight must be finite")
        differs = (hidden != hidden[0]).any((1, 2))  # (heads,)
        if differs.any():
            head = int(own[differs.argmax()])
            raise AttnctlError(f"{path}: head {head} of layer {layer} hides other keys than head {own[0]}")
        tables.append(LayerTable(layer, tuple(own.tolist()), np.where(hidden, 0, grid).astype(np.float32), ~hidden[0]))
    return tuple(tables)
