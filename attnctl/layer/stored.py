"""Attention of one layer whose arrays are stored: a trace's, a matrix's; and the arrays of a call by their names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attnctl import attention
from attnctl.arrays import Bools, Floats, as_numpy
from attnctl.attention import Array, Attended, Call
from attnctl.errors import AttnctlError
from attnctl.layer import PER_ROW, SHARED_PARAMETERS, LayerAttention
from attnctl.text import number_list

if TYPE_CHECKING:
    from attnctl.blockwise import Ranges, RowStatistics


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
