"""LayerAttention: one layer's attention as a reading sees it, stored as weights or computed from queries and keys.

Both kinds answer the same questions: rows, blocks, pooled cells, statistics of each row, the strongest links. Weights of a
short text are built, and answer as stored ones do; those of a long one never are (`SweptLayer`), unless all are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attnctl.arrays import MEMORY, Bools, Floats, as_numpy
from attnctl.attention import Array
from attnctl.blockwise import RowStatistics, even_parts, pool_weights, single_tokens, statistics_of_rows, visible_mask
from attnctl.blockwise.rows import relative_change, strongest_keys, weights_at_offset, weights_on_copies
from attnctl.errors import AttnctlError
from attnctl.text import number_list

if TYPE_CHECKING:
    from attnctl.blockwise import Ranges, Tick
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


ROWS = 256  # queries whose weights are held at once


class LayerAttention:
    """One layer's attention for the heads of the model that were chosen.

    It reads its answers off its weights (heads, rows, n_k): an array, or what answers `[head, first:last]` and `[[heads]]`
    as one, read when it is needed.
    """

    layer: int
    heads: tuple[int, ...]
    kv_heads: tuple[int, ...]  # the key/value head that each head reads
    stored: Array  # the weights
    mask: Bools | None  # (rows, n_k), true where a query may look; None where it may anywhere
    held: tuple[int, ...] | None = None  # the queries whose rows are there; None where all are, in order
    values: Array | None  # what the weights are taken of (heads, n_k, d_v), where known
    parameters: Mapping[
        str, Floats
    ]  # matrices that made queries, keys, values and output, where known, for these heads
    tick: Tick | None  # hears which share of the layer's work was just done

    @property
    def n_q(self) -> int:
        """How many queries the text has, or of a part of them, up to the last that is here."""
        return int(self.stored.shape[-2]) if self.held is None else max(self.held) + 1

    @property
    def n_k(self) -> int:
        """How many keys there are."""
        return int(self.stored.shape[-1])

    @property
    def positions(self) -> Array:
        """Each query's position among the keys → (n_q,): its own place where the keys are the same tokens."""
        return np.arange(self.n_q)

    @property
    def output_matrix(self) -> Floats | None:
        """W_O (heads · d_v, d_out) of all heads of the model; None where it is not known, or not all that follows."""
        return self.parameters.get("W_O")

    @property
    def memory_bytes(self) -> float:
        """About how much memory it holds."""
        return 4.0 * len(self.heads) * self.n_q * self.n_k

    def select_heads(self, heads: Sequence[int]) -> LayerAttention:
        """The same layer for some heads. Raises AttnctlError for a head that is not here."""
        raise NotImplementedError

    def arrays(self, rows: Sequence[int] | None = None) -> dict[str, Array]:
        """Every array that is known of this layer, by its name in a trace, for some queries (None: all); NumPy."""
        raise NotImplementedError

    # --- questions ---

    def weights(self) -> Floats:
        """All the weights → (heads, rows, n_k), before dropout. Memory grows with them."""
        if isinstance(self.stored, np.ndarray):
            return self.stored
        return np.concatenate([block for *_, block in self._blocks()], axis=1)

    def rows(self, queries: Sequence[int]) -> Floats:
        """The exact weights of some queries → (heads, rows, n_k)."""
        places = self._row_places(queries)
        if isinstance(self.stored, np.ndarray):
            return self.stored[:, places]
        single = [np.stack([self.stored[at, row : row + 1] for at in range(len(self.heads))]) for row in places]
        return np.concatenate(single, axis=1)  # (heads, rows, n_k)

    def block(self, a: int, b: int, c: int, d: int) -> Floats:
        """The exact weights of queries [a, b) on keys [c, d) → (heads, b - a, d - c)."""
        return self.rows(range(a, b))[..., c:d]

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
        """The weights between parts of the text → (heads, rows, columns); arguments as of `sweep.pool_between_parts`."""
        queries, keys = single_tokens(rows), single_tokens(columns)
        if queries is not None and keys is not None:
            return self.rows(queries)[..., keys]
        self._all_rows("pooled cells")
        return pool_weights(self._blocks(), rows, columns, how)  # type: ignore[no-any-return]

    def statistics(self, marks: Array | None = None, grid: int = 1) -> RowStatistics:
        """Of each row, what `blockwise.sweep.measure_rows` finds with `rows`; pooled to at most grid × grid even cells."""
        self._all_rows("statistics")
        blocks = [statistics_of_rows(block, self.positions[lo:hi], marks) for lo, hi, block in self._blocks()]
        known = {
            name: np.concatenate([getattr(block, name) for block in blocks], axis=-1)
            for name in ("entropy", "distance", "spread", "marked", "largest", "kept")
        }
        pooled = self.pooled(even_parts(0, self.n_q, grid), even_parts(0, self.n_k, grid), "mass")
        return RowStatistics(None, pooled, **known)

    def links(self, count: int) -> tuple[Array, Floats]:
        """The `count` keys that each query attends to most, and their weights: two arrays (heads, n_q, count)."""
        self._all_rows("the strongest links")
        found = [strongest_keys(block, min(count, self.n_k)) for *_, block in self._blocks()]
        return tuple(np.concatenate(parts, axis=1) for parts in zip(*found, strict=True))  # type: ignore[return-value]

    def visible_at(self, rows: Array, columns: Array) -> Bools:
        """The mask of small grids: queries (grids, r), keys (grids, c) → (grids, r, c)."""
        if self.mask is None:
            return np.ones((*rows.shape, columns.shape[1]), bool)
        return self.mask[self._grid_places(rows)[:, :, None], columns[:, None, :]]  # type: ignore[no-any-return]

    def visible_parts(self, rows: Sequence[Ranges], columns: Sequence[Ranges]) -> Bools | None:
        """Whether any query of a row part may see any key of a column part → (rows, columns); None where all may."""
        if self.mask is None:
            return None
        queries, keys = single_tokens(rows), single_tokens(columns)
        if queries is not None and keys is not None:
            shown = self.mask[self._row_places(queries)][:, keys]  # (rows, columns)
        else:
            self._all_rows("parts of the mask")
            shown = visible_mask(self.mask, np.array([(part[0][0], part[-1][1] - 1) for part in rows]), columns)
        return None if shown.all() else shown

    def visible_counts(self) -> Array:
        """How many keys each query may see → (n_q,)."""
        self._all_rows("counts of keys")
        return np.full(self.n_q, self.n_k) if self.mask is None else self.mask.sum(-1)

    def at_offset(self, offset: int) -> Floats:
        """Each query's weight on the key `offset` places from itself: as of `blockwise.rows.at_offset` → (heads, n_q)."""
        return weights_at_offset(self.weights_at, self.positions, self.n_k, offset)  # type: ignore[no-any-return]

    def on_copies(self, ids: Sequence[int], shift: int = 0) -> Floats:
        """Each query's mass on what follows the other copies of its token: as of `blockwise.rows.on_copies` → (heads, n)."""
        return weights_on_copies(self.weights_at, self.visible_at, ids, shift)  # type: ignore[no-any-return]

    def streaming_change(self, first: int, last: int) -> Floats | None:
        """As of `blockwise.rows.streaming_change_of_call`, of each query with more tokens before it → (heads, queries).

        None where the values are not known.
        """
        if self.values is None:
            return None
        values, places, keys = (
            as_numpy(self.values),
            self.positions,
            np.arange(self.n_k),
        )  # (heads, n_k, d_v), (n_q,), …
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

    # --- other weights ---

    def without_keys(self, keys: Sequence[int]) -> LayerAttention:
        """The layer with some keys hidden, and a sink too: each row shares all its attention among the rest."""
        kept = np.ones(self.n_k, np.float32)
        kept[list(keys)] = 0
        mask = kept[None] > 0 if self.mask is None else self.mask & (kept > 0)
        shown = np.broadcast_to(mask, self.stored.shape[-2:])  # (rows, n_k)
        return self._with_weights(ChangedWeights.of(self.stored, np.tile(kept, (len(self.heads), 1))), shown)

    def reweighted(self, factors: Array) -> LayerAttention:
        """The layer with each key's weight times a factor (heads, n_k) of 0 or more, and each row made to sum to 1 again."""
        return self._with_weights(ChangedWeights.of(self.stored, np.asarray(factors, np.float32)), self.mask)

    def select_keys(self, kept: Sequence[int]) -> LayerAttention:
        """The layer with some of its keys, by their places: its rows lack what the others take."""
        mask = None if self.mask is None else self.mask[:, list(kept)]
        return self._with_weights(ChangedWeights.of(self.stored, kept=np.asarray(kept)), mask)

    def _with_weights(self, stored: Array, mask: Bools | None) -> StoredLayer:
        """Other weights of the same heads and queries, of which nothing else is known."""
        return StoredLayer(
            self.layer, self.heads, stored, mask=mask, held=self.held, key_heads=self.kv_heads, tick=self.tick
        )

    # --- places ---

    def _blocks(self) -> Iterator[tuple[int, int, Floats]]:
        """The weights a block of rows at a time: first row, last + 1, (heads, rows, n_k)."""
        rows = int(self.stored.shape[-2])
        step = max(1, MEMORY // (24 * len(self.heads) * self.n_k))
        for lo in range(0, rows, step):
            hi = min(lo + step, rows)
            if isinstance(self.stored, np.ndarray):
                yield lo, hi, self.stored[:, lo:hi]  # (heads, rows, n_k)
            else:
                yield lo, hi, np.stack([self.stored[at, lo:hi] for at in range(len(self.heads))])
            if self.tick is not None:
                self.tick((hi - lo) / rows)

    def _head_places(self, heads: Sequence[int]) -> list[int]:
        """Where heads stand in the arrays. Raises AttnctlError for one that is not here."""
        for head in heads:
            if head not in self.heads:
                held = number_list(self.heads)
                raise AttnctlError(f"head {head} of layer {self.layer} is not there: it has {held}")
        return [self.heads.index(head) for head in heads]

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


@dataclass(frozen=True)
class ChangedWeights:
    """Stored weights, changed when their rows are read: times a factor a key, each row made to sum to 1 again; some keys."""

    stored: Array  # (heads, rows, n_k)
    factors: Floats | None = None  # (heads, n_k)
    kept: Array | None = None  # the places of the keys that are left

    @classmethod
    def of(cls, stored: Array, factors: Floats | None = None, kept: Array | None = None) -> Array:
        """The weights so changed: at once where they are an array."""
        changed = cls(stored, factors, kept)
        return changed._changed(stored, factors) if isinstance(stored, np.ndarray) else changed

    @property
    def shape(self) -> tuple[int, ...]:
        """(heads, rows, n_k)."""
        return (*self.stored.shape[:-1], self.stored.shape[-1] if self.kept is None else len(self.kept))

    def __getitem__(self, at: Any) -> Array:
        """`[head, first:last]` → (rows, n_k), or `[[heads]]` → some heads of it."""
        if isinstance(at, list):
            return ChangedWeights(self.stored[at], None if self.factors is None else self.factors[at], self.kept)
        head, rows = at
        return self._changed(self.stored[head, rows], None if self.factors is None else self.factors[head])

    def _changed(self, weights: Floats, factors: Floats | None) -> Floats:
        """Weights (…, rows, n_k) by their factors (…, n_k)."""
        weights = weights if factors is None else rescaled_rows(weights * factors[..., None, :])
        return weights if self.kept is None else weights[..., self.kept]


def rescaled_rows(weights: Floats) -> Floats:
    """Each row of weights (..., n_q, n_k) divided by its sum; a row of zeros stays zeros."""
    total = weights.sum(axis=-1, keepdims=True)  # (..., n_q, 1)
    return np.asarray(weights / np.where(total == 0, 1, total), dtype=weights.dtype)  # (..., n_q, n_k)


# --- stored ----------------------------------------------------------------------------------------------------------

# arrays with a row a query, those that belong to no head, and matrices of all heads
PER_ROW = (
    *("queries_before_rope", "queries", "scores", "bias", "scaled_scores", "weights", "dropped_weights", "context"),
    *("sink_weights", "signed_weights", "gate"),
)
PER_LAYER = ("input", "rope_angles", "mask", "index_scores", "differential_lambda", "output", "residual")
SHARED_PARAMETERS = ("W_O", "b_O")


@dataclass(eq=False)
class StoredLayer(LayerAttention):
    """A layer of weights that are there; `known` are the other arrays by their names in a trace."""

    layer: int
    heads: tuple[int, ...]
    stored: Array
    mask: Bools | None = None
    held: tuple[int, ...] | None = None
    known: Mapping[str, Array] = field(default_factory=dict)
    parameters: Mapping[str, Floats] = field(default_factory=dict)
    key_heads: tuple[int, ...] | None = None  # the key/value head of each head; None: each its own
    tick: Tick | None = None

    def __post_init__(self) -> None:
        self.kv_heads = self.heads if self.key_heads is None else self.key_heads
        self.values = self.known.get("values")

    @classmethod
    def of_weights(cls, layer: int, weights: Array, **more: Any) -> StoredLayer:
        """All heads of some weights; `more` are other fields."""
        return cls(layer, tuple(range(weights.shape[0])), weights, **more)

    def select_heads(self, heads: Sequence[int]) -> StoredLayer:
        """The same layer for some heads. Raises AttnctlError for a head that is not here."""
        if tuple(heads) == self.heads:
            return self
        places = self._head_places(heads)
        return replace(
            self,
            heads=tuple(heads),
            stored=self.stored[places],
            known=narrow_arrays(self.known, places),
            parameters={n: a if n in SHARED_PARAMETERS else a[places] for n, a in self.parameters.items()},
            key_heads=tuple(self.kv_heads[place] for place in places),
        )

    def arrays(self, rows: Sequence[int] | None = None) -> dict[str, Array]:
        """Every array that is known of this layer, by its name in a trace, for some queries (None: all)."""
        mask = {} if self.mask is None else {"mask": self.mask}
        places = None if rows is None else self._row_places(rows)
        return narrow_arrays({**self.known, "weights": self.weights(), **mask}, rows=places)


def narrow_arrays(
    arrays: Mapping[str, Array], heads: list[int] | None = None, rows: list[int] | None = None
) -> dict[str, Array]:
    """The same arrays, by their names in a trace, of some heads and query rows, by their places (None: all)."""
    found = dict(arrays)
    for name, array in arrays.items():
        if heads is not None and name not in PER_LAYER:
            array = array[heads]
        if rows is not None and name in PER_ROW:
            array = array[:, rows]
        found[name] = array[rows] if rows is not None and name in ("mask", "index_scores") else array
    return found
