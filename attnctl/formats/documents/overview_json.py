"""Write and read overviews and single rows of long texts as JSON: schema `attnctl.overview/1`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Annotated, Literal, TypeVar

import numpy as np
from msgspec import UNSET, UnsetType, field

from attnctl.checks import limits
from attnctl.checks.document_fields import Amount, Index, MaskLists, MatrixLists, Part, Share, VectorLists, about
from attnctl.formats.documents.json_documents import (
    Field,
    Made,
    NoteKinds,
    Notes,
    TextDocument,
    document_of,
    document_read,
    fields_from,
    value_of,
    write_json,
)
from attnctl.formats.documents.trace_json import Measured
from attnctl.formats.validation import finite_floats, true_or_false
from attnctl.readings.head_statistics import STATISTICS, HeadStatistics
from attnctl.readings.overview import Links, LongRow, Overview, PooledGrid, TextPart
from attnctl.runtime.arrays import Bools, Floats
from attnctl.text import Document
from attnctl.trace.subject import Subject

Shaped = TypeVar("Shaped", Floats, Bools)


class GridLayer(Part):
    """The hidden cells in the grids of one layer."""

    layer: Index
    mask: MaskLists


def _statistics() -> Iterator[Field]:
    for statistic in STATISTICS.values():
        kinds: dict[str, object] = {"share": Share, "places": float, "logit": float, "token": Index}
        kind = kinds.get(statistic.unit, Amount)
        whole = {"multipleOf": 1} if statistic.unit == "places" else {}
        yield statistic.name, Annotated[kind, about(statistic.title_with_unit, **whole)] | None, None


@fields_from([("layer", Index, field()), ("head", Index, field()), *_statistics()])
class StatisticsPart(Made):
    """The statistics of a head."""


class OverviewHead(StatisticsPart, kw_only=True):
    """Statistics, links, grid and single rows of one head."""

    layer: Index
    head: Index
    names: Annotated[
        tuple[str, ...] | None,
        about(
            "The kinds of heads that it looks like, by the usual thresholds; with a ? if the text is too short to be sure."
        ),
    ] = None
    coverage: Annotated[
        Share | None, about("The share of a query's attention that its links hold, averaged over the queries.")
    ] = None
    links: Annotated[
        tuple[tuple[tuple[Index, Share], ...], ...] | None,
        about("For each query its strongest keys as [key, weight], the strongest first."),
    ] = None
    grid: Annotated[MatrixLists, about("Pooled weights (rows, columns).")] | UnsetType = UNSET
    query: Annotated[Index | None, about("The query of the field weights.")] = None
    weights: Annotated[VectorLists, about("The exact weights of that query on every key.")] | UnsetType = UNSET


class OverviewDocument(TextDocument, kw_only=True, tag="attnctl.overview/1"):
    """An overview of the attention over a text whose weights are too many to keep.

    It holds statistics of each head, the strongest links of each query, pooled grids and single rows. Fields that were not
    requested are absent.
    """

    pool: Annotated[
        Literal["mean", "max", "mass"] | None,
        about(
            "The meaning of a number in a grid: the mean or the largest of the weights between row and column, or the share "
            "of its attention that a query of the row gives to the column, on average."
        ),
    ] = None
    rows: Annotated[tuple[TextPart, ...] | None, about("The part of the text that each row of a grid stands for.")] = (
        None
    )
    columns: Annotated[
        tuple[TextPart, ...] | None, about("The part of the text that each column of a grid stands for.")
    ] = None
    layers: Annotated[tuple[GridLayer, ...], about("The hidden cells of the grids, for each layer that has some.")] = ()
    heads: tuple[OverviewHead, ...]
    measure: Measured = None
    notes: Notes = ()
    note_kinds: NoteKinds = ()


# --- writing -----------------------------------------------------------------------------------------------------


def overview_to_json(overview: Overview | LongRow) -> bytes:
    """Return one line of JSON, without the newline. What was not requested is absent."""
    document = _overview_document(overview) if isinstance(overview, Overview) else _row_document(overview)
    return write_json(document, "overview", in_form=True)


def _overview_document(overview: Overview) -> OverviewDocument:
    grid = overview.grid
    weights, masks = ({}, {}) if grid is None else (grid.weights, grid.masks)
    layers = tuple(GridLayer(layer, np.ascontiguousarray(mask)) for layer, mask in sorted(masks.items()))
    values: dict[tuple[int, int], Document] = {}
    for statistics in overview.head_statistics:
        values.setdefault((statistics.layer, statistics.head), {}).update(statistics.values, names=statistics.names)
    for place, links in overview.links.items():
        values.setdefault(place, {}).update(coverage=links.mass_covered, links=_links_document(links))
    for place, cells in weights.items():
        values.setdefault(place, {})["grid"] = np.ascontiguousarray(cells, np.float32)
    heads = tuple(
        OverviewHead(layer=layer, head=head, **fields_of_head) for (layer, head), fields_of_head in values.items()
    )
    return document_of(OverviewDocument, overview, grid, layers=layers, heads=heads)


def _links_document(links: Links) -> tuple[tuple[tuple[int, float], ...], ...]:
    """Return the links that have a weight, as the shortest decimals that read back to the same float32."""
    return tuple(
        tuple((key, float(str(weight))) for key, weight in zip(keys, weights, strict=True) if weight > 0)
        for keys, weights in zip(links.keys.tolist(), links.weights, strict=True)
    )


def _row_document(row: LongRow) -> OverviewDocument:
    """Return one query's exact weights as a document of the same schema."""
    heads = tuple(
        OverviewHead(layer=layer, head=head, query=row.query, weights=np.ascontiguousarray(weights, np.float32))
        for (layer, head), weights in row.weights.items()
    )
    keys = None if row.key_axis == row.tokens else row.key_axis
    return document_of(OverviewDocument, row, heads=heads, key_tokens=keys)


# --- reading -----------------------------------------------------------------------------------------------------


def overview_from_document(document: object, source: str = "this overview") -> Overview | LongRow:
    """Return an overview, or the row of one query, from parsed JSON. Raises AttnctlError for other or inconsistent JSON."""
    with document_read(OverviewDocument, document, source, "an overview", "a damaged overview") as overview:
        heads = {(head.layer, head.head): head for head in overview.heads}
        if len(heads) < len(overview.heads):
            raise ValueError("it holds a head twice")
        read = _read_overview if all(head.query is None for head in overview.heads) else _read_row
        return read(overview, heads)


def _read_overview(overview: OverviewDocument, heads: dict[tuple[int, int], OverviewHead]) -> Overview:
    n_q = len(overview.tokens)
    n_k = n_q if overview.key_tokens is None else len(overview.key_tokens)
    return Overview(
        value_of(Subject, overview),
        grid=_read_grid(overview, heads, n_q, n_k),
        head_statistics=tuple(
            HeadStatistics(
                *place,
                {name: getattr(head, name) for name in STATISTICS},
                head.names or (),
                any(name.endswith("?") for name in head.names or ()),  # as the format marks them
            )
            for place, head in heads.items()
            if head.entropy is not None
        ),
        links={place: _read_links(head.links, n_q, n_k) for place, head in heads.items() if head.links is not None},
    )


def _read_grid(
    overview: OverviewDocument, heads: dict[tuple[int, int], OverviewHead], n_q: int, n_k: int
) -> PooledGrid | None:
    if overview.rows is None or overview.columns is None or overview.pool is None:
        if overview.rows is None:
            return None
        raise ValueError("it has rows, but no columns or no pool")
    for part, n in (*((part, n_q) for part in overview.rows), *((part, n_k) for part in overview.columns)):
        if any(not a < b <= n for a, b in part.ranges):
            raise ValueError(f"{part.name[:40]!r} holds tokens {part.ranges}, of {n}")
    shape = len(overview.rows), len(overview.columns)
    weights = {
        place: _of_shape(finite_floats(head.grid, "a grid"), shape)
        for place, head in heads.items()
        if head.grid is not UNSET
    }
    masks = {layer.layer: _of_shape(true_or_false(layer.mask, "a mask"), shape) for layer in overview.layers}
    return PooledGrid(overview.pool, overview.rows, overview.columns, weights, masks)


def _of_shape(array: Shaped, shape: tuple[int, ...]) -> Shaped:
    if array.shape != shape:
        raise ValueError(f"a grid has shape {array.shape}, not {shape}")
    return array


def _read_links(rows: tuple[tuple[tuple[int, float], ...], ...], n_q: int, n_k: int) -> Links:
    """Return the strongest keys of each query; shorter rows are filled with weights of 0."""
    if len(rows) != n_q:
        raise ValueError(f"there are links of {len(rows)} queries, for {n_q} tokens")
    count = max((len(row) for row in rows), default=0)
    if count > n_k:
        raise ValueError(f"a query has {count} links, to {n_k} keys")
    limits.check_memory(40.0 * n_q * count, f"a table of {count:,} links for {n_q:,} tokens", "give a smaller file")
    links = np.array(list(zip_longest(*rows, fillvalue=(0, 0))), np.float64).reshape(count, n_q, 2)
    keys, weights = links[..., 0].T.astype(np.int64), links[..., 1].T  # (n_q, count)
    if keys.size and keys.max() >= n_k:
        raise ValueError(f"a link goes to key {keys.max()}, of {n_k}")
    return Links(keys, finite_floats(weights))


def _read_row(overview: OverviewDocument, heads: dict[tuple[int, int], OverviewHead]) -> LongRow:
    queries = {head.query for head in overview.heads}
    if len(queries) > 1 or not queries <= set(range(len(overview.tokens))):
        raise ValueError(f"the rows of queries {queries} do not stand in one document of {len(overview.tokens)} tokens")
    n_k = len(overview.tokens if overview.key_tokens is None else overview.key_tokens)
    weights = {place: _of_shape(finite_floats(head.weights, "the weights"), (n_k,)) for place, head in heads.items()}
    query = queries.pop()
    assert query is not None
    return LongRow(value_of(Subject, overview), query, weights)
