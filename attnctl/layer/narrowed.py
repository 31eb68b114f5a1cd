"""A layer without some of its keys: each row as it was, less what those keys took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from attnctl.arrays import Bools, Floats
from attnctl.attention import Array
from attnctl.errors import AttnctlError
from attnctl.layer import LayerAttention

if TYPE_CHECKING:
    from attnctl.blockwise import Ranges, RowStatistics


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
