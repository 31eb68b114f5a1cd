"""LayerAttention: one layer's attention as a reading sees it, computed from queries and keys or stored as weights.

Both kinds answer the same questions: rows, blocks, pooled cells, statistics of each row, the strongest links. From queries
and keys the n × n weights are built only for a short text, or when all of them are asked for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attnctl import attention
from attnctl.arrays import Bools, Floats, as_numpy
from attnctl.attention import Array, Attended, Call
from attnctl.errors import AttnctlError
from attnctl.text import number_list

if TYPE_CHECKING:
    from attnctl.blockwise import Ranges, RowStatistics, Tick
    from attnctl.readings.traces.trace import ModelInfo, Prediction
    from attnctl.tokens import Token


class StopForward(BaseException):
    """Raised by a visitor that has seen all it wants: the model leaves out what would follow.

    No Exception, so that a network's own code cannot take it for an error and go on.
    """


@dataclass
class Run:
    """What a model tells of one text beside the attention of its layers; arrays are NumPy, one row a token."""

    tokens: tuple[Token, ...]
    embeddings: Array | None = None  # (n, d_model)
    key_tokens: tuple[Token, ...] | None = None
    predictions: tuple[Prediction, ...] = ()
    model: ModelInfo | None = None  # where a run says more than could be known before it
    notes: tuple[str, ...] = ()
    text: str = ""
    measure: str | None = None  # what stands in place of the weights
    gates: dict[int, Array] = field(default_factory=dict)  # by layer: how open gates after the context are (heads, n_q)

    @property
    def known_model(self) -> ModelInfo:
        """The model, which every source has named when a reading ends."""
        assert self.model is not None
        return self.model


PER_ROW = (
    *("queries_before_rope", "queries", "scores", "bias", "scaled_scores", "weights", "dropped_weights", "context"),
    *("sink_weights", "signed_weights", "gate"),
)
SHARED_PARAMETERS = ("W_O", "b_O")  # of all heads
ROWS = 256  # queries whose weights are held at once


@dataclass(eq=False)
class LayerAttention(ABC):
    """One layer's attention for the heads of the model that were chosen."""

    layer: int
    heads: tuple[int, ...]
    tick: Tick | None = field(default=None, kw_only=True)  # hears which share of the layer's work was just done

    @property
    @abstractmethod
    def kv_heads(self) -> tuple[int, ...]:
        """The key/value head that each head reads."""

    @property
    def held(self) -> tuple[int, ...] | None:
        """The queries whose rows are there; None where all are."""
        return None

    @property
    @abstractmethod
    def n_q(self) -> int:
        """How many queries the text has."""

    @property
    @abstractmethod
    def n_k(self) -> int:
        """How many keys the text has."""

    @abstractmethod
    def select_heads(self, heads: Sequence[int]) -> LayerAttention:
        """The same layer for some heads. Raises AttnctlError for a head that is not here."""

    @abstractmethod
    def arrays(self, rows: Sequence[int] | None = None) -> dict[str, Array]:
        """Every array that is known of this layer, by its name in a trace, for some queries (None: all); NumPy."""

    @property
    @abstractmethod
    def parameters(self) -> Mapping[str, Floats]:
        """The matrices that made queries, keys, values and output, where they are known, for these heads."""

    @property
    def output_matrix(self) -> Floats | None:
        """W_O (heads · d_v, d_out) of all heads of the model; None where it is not known, or not all that follows."""
        return self.parameters.get("W_O")

    @property
    @abstractmethod
    def values(self) -> Array | None:
        """What the weights are taken of → (heads, n_k, d_v), where known."""

    # --- questions ---

    @abstractmethod
    def rows(self, queries: Sequence[int]) -> Floats:
        """The exact weights of some queries → (heads, rows, n_k)."""

    @abstractmethod
    def weights_at(self, rows: Array, columns: Array) -> Floats:
        """Exact weights of small grids: queries (grids, r), keys (grids, c) → (heads, grids, r, c)."""

    @abstractmethod
    def pooled(self, rows: Sequence[Ranges], columns: Sequence[Ranges], how: str = "mean") -> Floats:
        """The weights between parts of the text → (heads, rows, columns); arguments as of `blockwise.pool_between_parts`."""

    @abstractmethod
    def statistics(self, marks: Array | None = None, grid: int = 1) -> RowStatistics:
        """Of each row, what `blockwise.measure_rows` finds with `rows`; pooled to at most grid × grid even cells."""

    @abstractmethod
    def links(self, count: int) -> tuple[Array, Floats]:
        """The `count` keys that each query attends to most, and their weights: two arrays (heads, n_q, count)."""

    @abstractmethod
    def weights(self) -> Floats:
        """All the weights → (heads, n_q, n_k). Memory grows with them."""

    @abstractmethod
    def visible_at(self, rows: Array, columns: Array) -> Bools:
        """The mask of small grids: queries (grids, r), keys (grids, c) → (grids, r, c)."""

    @abstractmethod
    def visible_parts(self, rows: Sequence[Ranges], columns: Sequence[Ranges]) -> Bools | None:
        """Whether any query of a row part may see any key of a column part → (rows, columns); None where all may."""

    @abstractmethod
    def visible_counts(self) -> Array:
        """How many keys each query may see → (n_q,)."""

    @property
    @abstractmethod
    def positions(self) -> Array:
        """Each query's position among the keys → (n_q,), integer."""

    def block(self, a: int, b: int, c: int, d: int) -> Floats:
        """The exact weights of queries [a, b) on keys [c, d) → (heads, b - a, d - c)."""
        return self.rows(range(a, b))[..., c:d]

    def at_offset(self, offset: int) -> Floats:
        """Each query's weight on the key `offset` places from itself: as of `blockwise.rows.at_offset` → (heads, n_q)."""
        from attnctl.blockwise.rows import weights_at_offset

        return weights_at_offset(self.weights_at, self.positions, self.n_k, offset)  # type: ignore[no-any-return]

    def on_copies(self, ids: Sequence[int], shift: int = 0) -> Floats:
        """Each query's mass on what follows the other copies of its token: as of `blockwise.rows.on_copies` → (heads, n)."""
        from attnctl.blockwise.rows import weights_on_copies

        return weights_on_copies(self.weights_at, self.visible_at, ids, shift)  # type: ignore[no-any-return]

    def streaming_change(self, first: int, last: int) -> Floats | None:
        """As of `blockwise.streaming.streaming_change_of_call`, of each query with more tokens before it → (heads, queries).

        None where the values are not known.
        """
        from attnctl.blockwise.rows import relative_change

        values = None if self.values is None else as_numpy(self.values)  # (heads, n_k, d_v)
        if values is None:
            return None
        places, keys = self.positions, np.arange(self.n_k)
        changes = []
        for lo in range(int((places < first + last).sum()), self.n_q, ROWS):
            rows = range(lo, min(lo + ROWS, self.n_q))
            weights = self.rows(rows)  # (heads, rows, n_k)
            kept = (keys < first) | (keys > places[rows.start : rows.stop, None] - last)  # (rows, n_k)
            left = weights * kept  # (heads, rows, n_k)
            lost = (weights - left).sum(-1, keepdims=True)  # (heads, rows, 1)
            left = left / np.maximum(1 - lost, np.finfo(np.float32).tiny)  # (heads, rows, n_k)
            changes.append(relative_change(left @ values, weights @ values))  # (heads, rows)
        found: Floats = np.concatenate([np.zeros((len(self.heads), 0), np.float32), *changes], -1)  # (heads, queries)
        return found

    # --- other weights over the same keys ---

    @abstractmethod
    def without_keys(self, keys: Sequence[int]) -> LayerAttention:
        """The layer with some keys hidden, and a sink too: each row shares all its attention among the rest."""

    @abstractmethod
    def reweighted(self, factors: Array) -> LayerAttention:
        """The layer with each key's weight times a factor (heads, n_k) of 0 or more, and each row made to sum to 1 again."""

    def _places(self, heads: Sequence[int]) -> list[int]:
        for head in heads:
            if head not in self.heads:
                held = number_list(self.heads)
                raise AttnctlError(f"head {head} of layer {self.layer} is not there: it has {held}")
        return [self.heads.index(head) for head in heads]


@dataclass(eq=False)
class NarrowedLayer(LayerAttention):
    """Another layer, stored or computed, with some of its keys: `kept` are their places in it."""

    whole: LayerAttention
    kept: Array  # (n_k,)

    @classmethod
    def of_layer(cls, layer: LayerAttention, kept: Sequence[int]) -> NarrowedLayer:
        """All heads of a layer."""
        return cls(layer.layer, layer.heads, layer, np.asarray(kept), tick=layer.tick)

    @property
    def kv_heads(self) -> tuple[int, ...]:
        """The key/value head that each head reads."""
        return self.whole.kv_heads

    @property
    def held(self) -> tuple[int, ...] | None:
        """The queries whose rows are there; None where all are."""
        return self.whole.held

    @property
    def n_q(self) -> int:
        """How many queries the text has."""
        return self.whole.n_q

    @property
    def n_k(self) -> int:
        """How many keys are left."""
        return len(self.kept)

    @property
    def positions(self) -> Array:
        """Each query's position among all keys → (n_q,)."""
        return self.whole.positions

    @property
    def parameters(self) -> Mapping[str, Floats]:
        """None: what is told of a narrowed layer is its weights."""
        return {}

    @property
    def values(self) -> Array | None:
        """Of the keys that are left → (heads, n_k, d_v), where known."""
        values = self.whole.values
        return None if values is None else values[:, self.kept]

    def select_heads(self, heads: Sequence[int]) -> NarrowedLayer:
        """The same layer for some heads. Raises AttnctlError for a head that is not here."""
        return replace(self, heads=tuple(heads), whole=self.whole.select_heads(heads))

    def arrays(self, rows: Sequence[int] | None = None) -> dict[str, Array]:
        """Weights and mask, for some queries (None: all); NumPy."""
        known = self.whole.arrays(rows)
        return {name: known[name][..., self.kept] for name in ("weights", "mask") if name in known}

    def rows(self, queries: Sequence[int]) -> Floats:
        """The exact weights of some queries → (heads, rows, n_k)."""
        return self.whole.rows(queries)[..., self.kept]

    def weights(self) -> Floats:
        """All the weights → (heads, n_q, n_k). Memory grows with them."""
        return self.whole.weights()[..., self.kept]

    def weights_at(self, rows: Array, columns: Array) -> Floats:
        """Exact weights of small grids: queries (grids, r), keys (grids, c) → (heads, grids, r, c)."""
        return self.whole.weights_at(rows, self.kept[columns])

    def visible_at(self, rows: Array, columns: Array) -> Bools:
        """The mask of small grids: queries (grids, r), keys (grids, c) → (grids, r, c)."""
        return self.whole.visible_at(rows, self.kept[columns])

    def pooled(self, rows: Sequence[Ranges], columns: Sequence[Ranges], how: str = "mean") -> Floats:
        """The weights between parts of the text → (heads, rows, columns); arguments as of `blockwise.pool_between_parts`."""
        return self.whole.pooled(rows, [self._in_whole(part) for part in columns], how)

    def visible_parts(self, rows: Sequence[Ranges], columns: Sequence[Ranges]) -> Bools | None:
        """Whether any query of a row part may see any key of a column part → (rows, columns); None where all may."""
        return self.whole.visible_parts(rows, [self._in_whole(part) for part in columns])

    def visible_counts(self) -> Array:
        """How many of the keys that are left each query may see → (n_q,)."""
        return self.visible_at(np.arange(self.n_q)[None], np.arange(self.n_k)[None])[0].sum(-1)

    def links(self, count: int) -> tuple[Array, Floats]:
        """The `count` keys that each query attends to most, and their weights: two arrays (heads, n_q, count)."""
        gone = self.whole.n_k - self.n_k
        keys, weights = self.whole.links(min(count + gone, self.whole.n_k))  # (heads, n_q, count + gone) each
        places = np.full(self.whole.n_k, -1)  # (keys of the whole layer,)
        places[self.kept] = np.arange(self.n_k)
        found = places[keys]
        best = np.argsort(found < 0, axis=-1, kind="stable")[..., : min(count, self.n_k)]  # (heads, n_q, count)
        return np.take_along_axis(found, best, -1), np.take_along_axis(weights, best, -1)

    def statistics(self, marks: Array | None = None, grid: int = 1) -> RowStatistics:
        """Raises AttnctlError: statistics are of whole rows."""
        raise AttnctlError(f"statistics need every key, and layer {self.layer} lacks some")

    def without_keys(self, keys: Sequence[int]) -> LayerAttention:
        """The layer with some keys hidden, and a sink too: each row shares all its attention among the rest."""
        hidden = np.ones(self.whole.n_k, bool)
        hidden[np.delete(self.kept, list(keys))] = False
        return replace(self, whole=self.whole.without_keys(np.flatnonzero(hidden).tolist()))

    def reweighted(self, factors: Array) -> LayerAttention:
        """The layer with each key's weight times a factor (heads, n_k) of 0 or more, and each row made to sum to 1 again."""
        every = np.zeros((len(self.heads), self.whole.n_k), np.float32)  # (heads, keys of the whole layer)
        every[:, self.kept] = factors
        return replace(self, whole=self.whole.reweighted(every))

    def _in_whole(self, part: Ranges) -> tuple[tuple[int, int], ...]:
        """The stretches of the whole layer's keys that a part of these is."""
        places = np.concatenate([self.kept[a:b] for a, b in part])
        stretches = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)
        return tuple((int(some[0]), int(some[-1]) + 1) for some in stretches)


def step_arrays(call: Call, steps: Attended) -> dict[str, Array]:
    """The arrays of one call by their names in a trace; keys and values once a query head."""
    n_heads = call.queries.shape[-3]
    arrays = {
        "queries": call.queries,
        "keys": attention.share_heads(call.keys, n_heads),
        "values": attention.share_heads(call.values, n_heads),
        "scores": steps.scores,
        "scaled_scores": steps.scaled_scores,
        "mask": steps.mask,
        "weights": steps.weights,
        "dropped_weights": steps.dropped,
        "context": steps.context,
    }
    known = {name: as_numpy(array) for name, array in arrays.items() if array is not None}
    if call.sinks is not None:
        known["sink_weights"] = share_of_sink(known["weights"])
    if call.bias is not None:
        known["bias"] = np.broadcast_to(as_numpy(call.bias), known["scores"].shape)
    if "mask" in known:
        known["mask"] = np.broadcast_to(known["mask"], known["scores"].shape[-2:])
    return known


def share_of_sink(weights: Floats) -> Floats:
    """What a learned sink takes of each row of weights (heads, n_q, n_k) → (heads, n_q)."""
    taken: Floats = np.clip(1 - weights.sum(-1, dtype=np.float64), 0, 1).astype(np.float32)  # (heads, n_q)
    return taken


def arrays_of_heads(arrays: dict[str, Array], heads: list[int], rows: list[int] | None) -> dict[str, Array]:
    """The same arrays for some heads, by their place, and some query rows."""
    every = next(array.shape[0] for name, array in arrays.items() if name != "mask")
    if heads != list(range(every)):
        arrays = {name: array if name == "mask" else array[heads] for name, array in arrays.items()}
    if rows is not None:
        arrays = {name: array[:, rows] if name in PER_ROW else array for name, array in arrays.items()}
        if "mask" in arrays:
            arrays["mask"] = arrays["mask"][rows]
    return arrays


@dataclass(eq=False)
class StoredLayer(LayerAttention):
    """A layer of weights (heads, rows, n_k): an array, or what answers `[head, first:last]` as one, read when it is needed.

    `held` are the queries that the rows belong to (None: every one, in order), `known` the other arrays by their names in a
    trace, `key_heads` the key/value head of each head.
    """

    stored: Array
    mask: Bools | None = None  # (rows, n_k)
    held: tuple[int, ...] | None = None
    known: Mapping[str, Array] = field(default_factory=dict)
    matrices: Mapping[str, Floats] = field(default_factory=dict)
    key_heads: tuple[int, ...] | None = None

    @classmethod
    def of_weights(cls, layer: int, weights: Array, **more: Any) -> StoredLayer:
        """All heads of some weights; `more` are other fields."""
        return cls(layer, tuple(range(weights.shape[0])), weights, **more)

    @property
    def kv_heads(self) -> tuple[int, ...]:
        """The key/value head that each head reads."""
        return self.heads if self.key_heads is None else self.key_heads

    @property
    def n_q(self) -> int:
        """How many queries the text has, or of a part of them, up to the last that is here."""
        return int(self.stored.shape[-2]) if self.held is None else max(self.held) + 1

    @property
    def n_k(self) -> int:
        """How many keys there are."""
        return int(self.stored.shape[-1])

    def select_heads(self, heads: Sequence[int]) -> StoredLayer:
        """The same layer for some heads. Raises AttnctlError for a head that is not here."""
        if tuple(heads) == self.heads:
            return self
        places = self._places(heads)
        return replace(
            self,
            heads=tuple(heads),
            stored=self.stored[places],
            known={name: array if name in PER_LAYER else array[places] for name, array in self.known.items()},
            matrices={n: a if n in SHARED_PARAMETERS else a[places] for n, a in self.matrices.items()},
            key_heads=None if self.key_heads is None else tuple(self.key_heads[place] for place in places),
        )

    def arrays(self, rows: Sequence[int] | None = None) -> dict[str, Array]:
        """Every array that is known of this layer, by its name in a trace, for some queries (None: all)."""
        arrays = {**self.known, "weights": self.weights()}
        if self.mask is not None:
            arrays["mask"] = self.mask
        if rows is not None:
            places = self._row_places(rows)
            arrays = {name: array[:, places] if name in PER_ROW else array for name, array in arrays.items()}
            if self.mask is not None:
                arrays["mask"] = self.mask[places]
            if "index_scores" in arrays:
                arrays["index_scores"] = arrays["index_scores"][places]
        return arrays

    @property
    def parameters(self) -> Mapping[str, Floats]:
        """The matrices that made queries, keys, values and output, where they are known, for these heads."""
        return self.matrices

    @property
    def values(self) -> Array | None:
        """What the weights are taken of → (heads, n_k, d_v), where known."""
        return self.known.get("values")

    def weights(self) -> Floats:
        """All the weights → (heads, rows, n_k). Memory grows with them."""
        if isinstance(self.stored, np.ndarray):
            return self.stored
        return np.concatenate([block for *_, block in self._blocks()], axis=1)

    def _blocks(self) -> Iterator[tuple[int, int, Floats]]:
        """The weights a block of rows at a time: first row, last + 1, (heads, rows, n_k)."""
        from attnctl.blockwise import MEMORY

        rows = int(self.stored.shape[-2])
        step = max(1, MEMORY // (24 * len(self.heads) * self.n_k))
        for lo in range(0, rows, step):
            hi = min(lo + step, rows)
            yield lo, hi, np.stack([self.stored[at, lo:hi] for at in range(len(self.heads))])  # (heads, rows, n_k)
            if self.tick is not None:
                self.tick((hi - lo) / rows)

    def _row_places(self, queries: Sequence[int]) -> list[int]:
        """Where queries stand in the rows. Raises AttnctlError for one that is not here."""
        if self.held is None:
            return list(queries)
        for query in queries:
            if query not in self.held:
                raise AttnctlError(f"query {query} is not in this trace: it holds {number_list(self.held)}")
        return [self.held.index(query) for query in queries]

    def _grid_places(self, rows: Array) -> Array:
        """Where the queries of small grids (grids, r) stand in the rows → (grids, r). Raises as `_row_places`."""
        return rows if self.held is None else np.reshape(self._row_places(rows.ravel().tolist()), rows.shape)

    def _all_rows(self, what: str) -> None:
        if self.held is not None:
            raise AttnctlError(f"{what} need every query, and layer {self.layer} of this trace holds some alone")

    def rows(self, queries: Sequence[int]) -> Floats:
        """The exact weights of some queries → (heads, rows, n_k)."""
        places = self._row_places(queries)
        if isinstance(self.stored, np.ndarray):
            return self.stored[:, places]
        single = [np.stack([self.stored[at, row : row + 1] for at in range(len(self.heads))]) for row in places]
        return np.concatenate(single, axis=1)  # (heads, rows, n_k)

    def weights_at(self, rows: Array, columns: Array) -> Floats:
        """Exact weights of small grids: queries (grids, r), keys (grids, c) → (heads, grids, r, c)."""
        rows = self._grid_places(rows)
        if isinstance(self.stored, np.ndarray):
            return self.stored[:, rows[:, :, None], columns[:, None, :]]
        found = np.zeros((len(self.heads), *rows.shape, columns.shape[1]), np.float32)
        for lo, hi, block in self._blocks():
            grids, r = np.nonzero((rows >= lo) & (rows < hi))
            if len(grids):
                found[:, grids, r] = block[:, (rows[grids, r] - lo)[:, None], columns[grids]]
        return found  # (heads, grids, r, c)

    def pooled(self, rows: Sequence[Ranges], columns: Sequence[Ranges], how: str = "mean") -> Floats:
        """The weights between parts of the text → (heads, rows, columns); arguments as of `blockwise.pool_between_parts`."""
        from attnctl.blockwise import pool_weights, single_tokens

        queries, keys = single_tokens(rows), single_tokens(columns)
        if queries is not None and keys is not None:
            return self.rows(queries)[..., keys]
        self._all_rows("pooled cells")
        return pool_weights(self._blocks(), rows, columns, how)  # type: ignore[no-any-return]

    def statistics(self, marks: Array | None = None, grid: int = 1) -> RowStatistics:
        """Of each row, what `blockwise.measure_rows` finds, without logsumexp; pooled to grid × grid even cells."""
        from attnctl.blockwise import RowStatistics, even_parts, statistics_of_rows

        self._all_rows("statistics")
        blocks = [statistics_of_rows(block, self.positions[lo:hi], marks) for lo, hi, block in self._blocks()]
        known = {
            name: np.concatenate([getattr(block, name) for block in blocks], axis=-1)
            for name in ("entropy", "distance", "spread", "marked", "largest", "kept")
        }
        return RowStatistics(
            None, self.pooled(even_parts(0, self.n_q, grid), even_parts(0, self.n_k, grid), "mass"), **known
        )

    def links(self, count: int) -> tuple[Array, Floats]:
        """The `count` keys that each query attends to most, and their weights: two arrays (heads, n_q, count)."""
        from attnctl.blockwise.rows import strongest_keys

        self._all_rows("the strongest links")
        found = [strongest_keys(block, min(count, self.n_k)) for *_, block in self._blocks()]
        return tuple(np.concatenate(parts, axis=1) for parts in zip(*found, strict=True))  # type: ignore[return-value]

    @property
    def positions(self) -> Array:
        """Each query's position among the keys → (n_q,): its own place where the keys are the same tokens."""
        return np.arange(self.n_q)

    def visible_at(self, rows: Array, columns: Array) -> Bools:
        """The mask of small grids: queries (grids, r), keys (grids, c) → (grids, r, c)."""
        if self.mask is None:
            return np.ones((*rows.shape, columns.shape[1]), bool)
        return self.mask[self._grid_places(rows)[:, :, None], columns[:, None, :]]  # type: ignore[no-any-return]

    def visible_parts(self, rows: Sequence[Ranges], columns: Sequence[Ranges]) -> Bools | None:
        """Whether any query of a row part may see any key of a column part → (rows, columns); None where all may."""
        from attnctl.blockwise import single_tokens, visible_mask

        if self.mask is None:
            return None
        queries, keys = single_tokens(rows), single_tokens(columns)
        if queries is not None and keys is not None:
            return self.mask[self._row_places(queries)][:, keys]
        self._all_rows("parts of the mask")
        ends = np.array([(part[0][0], part[-1][1] - 1) for part in rows])
        return visible_mask(self.mask, ends, columns)  # type: ignore[no-any-return]

    def visible_counts(self) -> Array:
        """How many keys each query may see → (n_q,)."""
        self._all_rows("counts of keys")
        return np.full(self.n_q, self.n_k) if self.mask is None else self.mask.sum(-1)

    def without_keys(self, keys: Sequence[int]) -> StoredLayer:
        """The layer with some keys hidden: each row shares all its attention among the rest."""
        kept = np.ones(self.n_k, np.float32)
        kept[list(keys)] = 0
        mask = kept[None] > 0 if self.mask is None else self.mask & (kept > 0)
        mask = np.broadcast_to(mask, self.stored.shape[-2:])
        return replace(self.reweighted(np.broadcast_to(kept, (len(self.heads), self.n_k))), mask=mask)

    def reweighted(self, factors: Array) -> StoredLayer:
        """The layer with each key's weight times a factor (heads, n_k) of 0 or more, and each row made to sum to 1 again."""
        factors = np.asarray(factors, np.float32)  # (heads, n_k)
        changed: Array = Reweighted(self.stored, factors)
        if isinstance(self.stored, np.ndarray):
            changed = rescaled_rows(self.stored * factors[:, None])  # (heads, rows, n_k)
        return replace(self, stored=changed, known={}, matrices={})


@dataclass(frozen=True)
class Reweighted:
    """Stored weights times a factor a key, each row made to sum to 1 again; computed when rows are read."""

    stored: Array  # (heads, rows, n_k)
    factors: Floats  # (heads, n_k)

    @property
    def shape(self) -> tuple[int, ...]:
        """(heads, rows, n_k)."""
        return tuple(self.stored.shape)

    def __getitem__(self, at: Any) -> Array:
        """`[head, first:last]` → (rows, n_k), or `[[heads]]` → some heads of it."""
        if isinstance(at, list):
            return Reweighted(self.stored[at], self.factors[at])
        head, rows = at
        return rescaled_rows(self.stored[head, rows] * self.factors[head])


def rescaled_rows(weights: Floats) -> Floats:
    """Each row of weights (..., n_q, n_k) divided by its sum; a row of zeros stays zeros."""
    total = weights.sum(axis=-1, keepdims=True)  # (..., n_q, 1)
    return np.asarray(weights / np.where(total == 0, 1, total), dtype=weights.dtype)  # (..., n_q, n_k)


# arrays that belong to no head
PER_LAYER = ("input", "rope_angles", "index_scores", "differential_lambda", "output", "residual")
