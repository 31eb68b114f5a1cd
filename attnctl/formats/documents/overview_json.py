"""Overviews and single rows of long texts as JSON, written and read: schema `attnctl.overview/1`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import numpy as np

from attnctl.arrays import Bools, Floats
from attnctl.errors import AttnctlError
from attnctl.formats.documents.json_documents import (
    DAMAGED,
    check_schema,
    damage_of,
    document_opening,
    notes_document,
    read_opening,
    write_json,
)
from attnctl.formats.validation import checked_number, checked_whole_number, finite_floats, true_or_false
from attnctl.readings.head_statistics import STATISTICS, HeadStatistics
from attnctl.readings.overview import Links, LongRow, Overview, PooledGrid, TextPart
from attnctl.text import Document

SCHEMA = "attnctl.overview/1"
Shaped = TypeVar("Shaped", Floats, Bools)


# --- writing -----------------------------------------------------------------------------------------------------


def overview_to_json(overview: Overview | LongRow) -> bytes:
    """One line of JSON, without the newline. What was not asked for is absent."""
    document = _overview_document(overview) if isinstance(overview, Overview) else _row_document(overview)
    return write_json(document, "overview")


def _overview_document(overview: Overview) -> Document:
    document = document_opening(SCHEMA, overview.text, overview.tokens, overview.model, overview.key_tokens)
    if (grid := overview.grid) is not None:
        document |= {
            "pool": grid.pool,
            "rows": [{"name": part.name, "ranges": part.ranges} for part in grid.rows],
            "columns": [{"name": part.name, "ranges": part.ranges} for part in grid.columns],
        }
        if grid.masks:
            masks = sorted(grid.masks.items())
            document["layers"] = [{"layer": layer, "mask": np.ascontiguousarray(mask)} for layer, mask in masks]
    known = [(measured.layer, measured.head) for measured in overview.head_statistics]
    known += [*overview.links, *(() if grid is None else grid.weights)]
    document["heads"] = [_head_document(overview, layer, head) for layer, head in dict.fromkeys(known)]
    return document | notes_document(overview.notes)


def _head_document(overview: Overview, layer: int, head: int) -> Document:
    document: Document = {"layer": layer, "head": head}
    for measured in overview.head_statistics:
        if (measured.layer, measured.head) == (layer, head):
            document |= measured.statistics_document()
    if (links := overview.links.get((layer, head))) is not None:
        document["coverage"] = links.mass_covered
        document["links"] = [
            [[key, weight] for key, weight in zip(keys, weights, strict=True) if weight > 0]
            for keys, weights in zip(links.keys.tolist(), _shortest_decimals(links.weights), strict=True)
        ]
    if overview.grid is not None and (layer, head) in overview.grid.weights:
        document["grid"] = np.ascontiguousarray(overview.grid.weights[layer, head], np.float32)
    return document


def _shortest_decimals(weights: Floats) -> list[list[float]]:
    """Weights as the shortest decimals that read back to the same float32."""
    return [[float(str(weight)) for weight in row] for row in weights]


def _row_document(row: LongRow) -> Document:
    """One query's exact weights as a document of the same schema."""
    key_tokens = None if row.keys == row.tokens else row.keys
    document = document_opening(SCHEMA, row.text, row.tokens, row.model, key_tokens)
    document["heads"] = [
        {"layer": layer, "head": head, "query": row.query, "weights": np.ascontiguousarray(weights, np.float32)}
        for (layer, head), weights in row.weights.items()
    ]
    return document | notes_document(row.notes)


# --- reading -----------------------------------------------------------------------------------------------------


def overview_from_document(document: object, source: str = "this overview") -> Overview | LongRow:
    """An overview, or the row of one query, from its parsed JSON. Raises AttnctlError where it is none, or does not fit."""
    entries = check_schema(document, SCHEMA, source, "an overview")
    try:
        row = any("query" in head for head in entries["heads"])
        return _read_row(entries) if row else _read_overview(entries)
    except DAMAGED as error:
        raise AttnctlError(f"{source} is a damaged overview: {damage_of(error)}") from error


def _read_overview(entries: Document) -> Overview:
    opening, heads = read_opening(entries), _read_heads(entries["heads"])
    n_q = len(opening["tokens"])
    n_k = n_q if opening["key_tokens"] is None else len(opening["key_tokens"])
    return Overview(
        **opening,
        grid=_read_grid(entries, heads, n_q, n_k) if "rows" in entries else None,
        head_statistics=tuple(_read_statistics(*at, head) for at, head in heads.items() if "entropy" in head),
        links={at: _read_links(head["links"], n_q, n_k) for at, head in heads.items() if "links" in head},
    )


def _read_heads(entries: Sequence[Document]) -> dict[tuple[int, int], Document]:
    heads = {
        (checked_whole_number(head["layer"], "layer"), checked_whole_number(head["head"], "head")): head
        for head in entries
    }
    if len(heads) < len(entries):
        raise ValueError("a head stands there twice")
    return heads


def _read_statistics(layer: int, head: int, entry: Document) -> HeadStatistics:
    values: dict[str, float | None] = {name: entry.get(name) for name in STATISTICS}
    for name, value in values.items():
        if value is not None:
            checked_number(value, name)
    return HeadStatistics(layer, head, values, tuple(str(name) for name in entry.get("names", ())))


def _read_grid(entries: Document, heads: dict[tuple[int, int], Document], n_q: int, n_k: int) -> PooledGrid:
    rows, columns = (_read_parts(entries[name], n) for name, n in (("rows", n_q), ("columns", n_k)))
    shape = len(rows), len(columns)
    weights = {
        at: _of_shape(finite_floats(head["grid"], "a grid"), shape) for at, head in heads.items() if "grid" in head
    }
    masks = {
        checked_whole_number(layer["layer"], "layer"): _of_shape(true_or_false(layer["mask"], "a mask"), shape)
        for layer in entries.get("layers", ())
    }
    if entries["pool"] not in ("mean", "max", "mass"):
        raise ValueError(f"pool is {str(entries['pool'])[:40]!r}, not mean, max or mass")
    return PooledGrid(str(entries["pool"]), rows, columns, weights, masks)


def _read_parts(entries: Iterable[Document], n: int) -> tuple[TextPart, ...]:
    parts = tuple(
        TextPart(
            str(entry["name"]),
            tuple((checked_whole_number(a, "a range"), checked_whole_number(b, "a range")) for a, b in entry["ranges"]),
        )
        for entry in entries
    )
    for part in parts:
        if not part.ranges or any(not 0 <= a < b <= n for a, b in part.ranges):
            raise ValueError(f"{part.name[:40]!r} holds tokens {part.ranges}, of {n}")
    return parts


def _of_shape(array: Shaped, shape: tuple[int, ...]) -> Shaped:
    if array.shape != shape:
        raise ValueError(f"a grid has shape {array.shape}, not {shape}")
    return array


def _read_links(rows: Sequence[Sequence[tuple[int, float]]], n_q: int, n_k: int) -> Links:
    """The strongest keys of each query; rows with fewer are filled up with weights of 0."""
    if len(rows) != n_q:
        raise ValueError(f"there are links of {len(rows)} queries, for {n_q} tokens")
    count = max((len(row) for row in rows), default=0)
    if count > n_k:
        raise ValueError(f"a query has {count} links, to {n_k} keys")
    keys = np.zeros((n_q, count), np.int64)  # (n_q, count)
    weights = np.zeros((n_q, count))  # (n_q, count), as float32 once they are known to be finite
    for at, row in enumerate(rows):
        for place, (key, weight) in enumerate(row):
            keys[at, place] = checked_whole_number(key, "a link's key")
            weights[at, place] = checked_number(weight, "a link's weight")
    if keys.size and not 0 <= keys.min() <= keys.max() < n_k:
        raise ValueError(f"a link goes to key {keys.max()}, of {n_k}")
    return Links(keys, finite_floats(weights))


def _read_row(entries: Document) -> LongRow:
    opening, heads = read_opening(entries), _read_heads(entries["heads"])
    tokens, key_tokens = opening["tokens"], opening.pop("key_tokens")
    keys = tokens if key_tokens is None else key_tokens
    queries = {checked_whole_number(head["query"], "query") for head in heads.values()}
    if len(queries) > 1 or not queries <= set(range(len(tokens))):
        raise ValueError(f"the rows of queries {sorted(queries)} do not stand in one document of {len(tokens)} tokens")
    weights = {at: _of_shape(finite_floats(head["weights"], "the weights"), (len(keys),)) for at, head in heads.items()}
    return LongRow(**opening, keys=keys, query=queries.pop(), weights=weights)
