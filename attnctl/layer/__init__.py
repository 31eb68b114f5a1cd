"""LayerAttention: the attention of one layer as a reading sees it, stored in a trace or computed from queries and keys.

Both kinds answer the same questions: rows, blocks, pooled cells, statistics of each row, the strongest links. The
weights of a short text are built, and then used like stored ones; those of a long text are never built (`SweptLayer`),
unless all are requested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from attnctl.attention import Array
from attnctl.blockwise import (
    RowStatistics,
    even_parts,
    hidden_below,
    pool_weights,
    single_tokens,
    statistics_of_rows,
    visible_mask,
)
from attnctl.blockwise.rows import (
    streaming_change_of_weights,
    strongest_keys,
    weights_at_offset,
    weights_on_copies,
)
from attnctl.checks.tolerances import FLOAT_SUM
from attnctl.errors import AttnctlError
from attnctl.runtime.arrays import MEMORY, Bools, Floats, as_numpy
from attnctl.text import number_list

if TYPE_CHECKING:
    from attnctl.blockwise import Ranges, Tick


ROWS = 256  # queries whose weights are in memory at once


class LayerAttention:
    """The attention of one layer, for some heads of the model.

    It computes its answers from its weights (heads, rows, n_k): an array, or an object with `[head, first:last]` and
    `[[heads]]` that reads rows when they are needed.
    """

    layer: int
    heads: tuple[int, ...]
    kv_heads: tuple[int, ...]  # the key/value head that each head reads
    stored: Array  # the weights
    scaled_scores: Floats | None  # (heads, rows, n_k), if known
    mask: Bools | None  # (rows, n_k), true where a query sees a key; None if it sees all
    rows: tuple[int, ...] | None = None  # the queries with stored rows; None: all, in order
    values: Array | None  # (heads, n_k, d_v), if known
    parameters: Mapping[str, Floats]  # the matrices of queries, keys, values and output for these heads, if known
    tick: Tick | None  # receives the share of the layer's work that was just done
    window: int | None = None  # how many keys back a query sees, if a computed layer has a window
    is_finite = False  # whether the arrays of CHECKED are known to hold only finite numbers

    @property
    def n_q(self) -> int:
        """Return the number of queries of the text; for a part of the text, the number up to its last row."""
        return int(self.stored.shape[-2]) if self.rows is None else max(self.rows) + 1

    @property
    def n_k(self) -> int:
        """Return the number of keys."""
        return int(self.stored.shape[-1])

    @property
    def positions(self) -> Array:
        """Return the position of each query among the keys → (n_q,): its own index if the keys are the same tokens."""
        return np.arange(self.n_q)

    @property
    def output_matrix(self) -> Floats | None:
        """Return W_O (heads · d_v, d_out) of all heads; None if it is unknown, or if other operations follow W_O."""
        return self.parameters.get("W_O")

    @property
    def memory_bytes(self) -> float:
        """Return about how many bytes of memory it uses."""
        return 4.0 * len(self.heads) * self.n_q * self.n_k

    def forget_steps(self) -> None:
        """Drop what was computed for a reading, and its memory; it is computed again when it is needed."""

    def select_heads(self, heads: Sequence[int]) -> LayerAttention:
        """Return the same layer for some heads. Raises AttnctlError for a head that is not here."""
        raise NotImplementedError

    def record(self, rows: Sequence[int] | None = None) -> LayerTrace:
        """Return every known array of this layer, for some queries (None: all), as NumPy."""
        raise NotImplementedError

    # --- questions ---

    def all_weights(self) -> Floats:
        """Return all the weights → (heads, rows, n_k), before dropout. Memory grows with them."""
        if isinstance(self.stored, np.ndarray):
            return self.stored
        return np.concatenate([block for *_, block in self._blocks()], axis=1)

    def rows_of(self, queries: Sequence[int]) -> Floats:
        """Return the exact weights of some queries → (heads, rows, n_k)."""
        places = self._row_places(queries)
        if isinstance(self.stored, np.ndarray):
            return self.stored[:, places]
        single = [np.stack([self.stored[head, row : row + 1] for head in range(len(self.heads))]) for row in places]
        return np.concatenate(single, axis=1)  # (heads, rows, n_k)

    def block(self, a: int, b: int, c: int, d: int) -> Floats:
        """Return the exact weights of queries [a, b) on keys [c, d) → (heads, b - a, d - c)."""
        return self.rows_of(range(a, b))[..., c:d]

    def weights_at(self, rows: Array, columns: Array) -> Floats:
        """Return exact weights of small grids: queries (grids, r), keys (grids, c) → (heads, grids, r, c)."""
        rows = self._grid_places(rows)
        if isinstance(self.stored, np.ndarray):
            return self.stored[:, rows[:, :, None], columns[:, None, :]]
        weights = np.zeros((len(self.heads), *rows.shape, columns.shape[1]), np.float32)
        for lo, hi, block in self._blocks():
            grids, r = np.nonzero((rows >= lo) & (rows < hi))
            if len(grids):
                weights[:, grids, r] = block[:, (rows[grids, r] - lo)[:, None], columns[grids]]
        return weights  # (heads, grids, r, c)

    def pooled(self, rows: Sequence[Ranges], columns: Sequence[Ranges], how: str = "mean") -> Floats:
        """Return the weights between parts of the text → (heads, rows, columns), as `sweep.pool_between_parts` does."""
        queries, keys = single_tokens(rows), single_tokens(columns)
        if queries is not None and keys is not None:
            return self.rows_of(queries)[..., keys]
        self._all_rows("pooled cells")
        return pool_weights(self._blocks(), rows, columns, how)  # type: ignore[no-any-return]

    def statistics(self, marks: Array | None = None, grid: int = 1) -> RowStatistics:
        """Return the statistics of each row, and the whole pooled to at most grid × grid even cells.

        `marks` ([heads,] marks, n_k) are true for the keys of a set, or factors of the weights.
        """
        self._all_rows("statistics")
        blocks = [
            statistics_of_rows(block, self.positions[lo:hi], marks, self.logits_of(range(lo, hi)))
            for lo, hi, block in self._blocks()
        ]
        by_row = [
            None if parts[0] is None else np.concatenate(parts, axis=-1)
            for parts in zip(*(block[2:] for block in blocks), strict=True)
        ]
        pooled = self.pooled(even_parts(0, self.n_q, grid), even_parts(0, self.n_k, grid), "mass")
        return RowStatistics(None, pooled, *by_row)

    def logits_of(self, queries: Sequence[int]) -> Floats | None:
        """Return the logits of some queries → (heads, rows, n_k): what the softmax is taken of; None if they are unknown.

        They are the scaled scores, with soft cap and bias, before temperature and sinks, and -inf where a key is hidden.
        """
        if self.scaled_scores is None:
            return None
        places = self._row_places(queries)
        return masked_scores(self.scaled_scores[:, places], None if self.mask is None else self.mask[places])

    def logits_of_heads(self, queries: Sequence[int]) -> Floats | None:
        """Return the logits of one query of each head → (heads, n_k), as `logits_of` does."""
        if self.scaled_scores is None:
            return None
        places, heads = self._row_places(queries), np.arange(len(self.heads))
        return masked_scores(self.scaled_scores[heads, places], None if self.mask is None else self.mask[places])

    def links(self, count: int) -> tuple[Array, Floats]:
        """Return the `count` keys with the largest weights of each query, and these weights: (heads, n_q, count) each."""
        self._all_rows("the strongest links")
        strongest = [strongest_keys(block, min(count, self.n_k)) for *_, block in self._blocks()]
        return tuple(np.concatenate(parts, axis=1) for parts in zip(*strongest, strict=True))  # type: ignore[return-value]

    def visible_at(self, rows: Array, columns: Array) -> Bools:
        """Return the mask of small grids: queries (grids, r), keys (grids, c) → (grids, r, c)."""
        if self.mask is None:
            return np.ones((*rows.shape, columns.shape[1]), bool)
        return self.mask[self._grid_places(rows)[:, :, None], columns[:, None, :]]  # type: ignore[no-any-return]

    def visible_parts(self, rows: Sequence[Ranges], columns: Sequence[Ranges]) -> Bools | None:
        """Return whether any query of a row part sees any key of a column part → (rows, columns); None if always true."""
        if (mask := self.mask) is None:
            return None
        queries, keys = single_tokens(rows), single_tokens(columns)
        if queries is not None and keys is not None:
            visible = mask[self._row_places(queries)][:, keys]  # (rows, columns)
        else:
            self._all_rows("parts of the mask")
            visible = visible_mask(lambda lo, hi: mask[lo:hi], rows, columns)
        return None if visible.all() else visible

    def visible_counts(self) -> Array:
        """Return the number of keys that each query sees → (n_q,)."""
        self._all_rows("counts of keys")
        return np.full(self.n_q, self.n_k) if self.mask is None else self.mask.sum(-1)

    def seen_keys(self) -> Bools:
        """Return whether any query sees a key → (n_k,)."""
        self._all_rows("statistics")
        return np.ones(self.n_k, bool) if self.mask is None else np.asarray(self.mask.any(0), bool)

    def at_offset(self, offset: int) -> Floats:
        """Return each query's weight on the key `offset` positions away → (heads, n_q), NaN without such a key."""
        return weights_at_offset(self.weights_at, self.positions, self.n_k, offset)  # type: ignore[no-any-return]

    def on_copies(self, ids: Sequence[int], shift: int = 0) -> Floats:
        """Return each query's mass on tokens after other copies of its token → (heads, n_q): see `weights_on_copies`."""
        return weights_on_copies(self.weights_at, self.visible_at, ids, shift)  # type: ignore[no-any-return]

    def streaming_change(self, first: int, last: int) -> Floats | None:
        """Return how far contexts move with a few keys: `blockwise.rows.streaming_change_of_call` → (heads, queries).

        Return None if the values are unknown.
        """
        if self.values is None:
            return None
        values, places = as_numpy(self.values), self.positions  # (heads, n_k, d_v), (n_q,)
        changes = []
        for lo in range(int((places < first + last).sum()), self.n_q, ROWS):
            weights = self.rows_of(range(lo, min(lo + ROWS, self.n_q)))  # (heads, rows, n_k)
            mass = weights.sum(-1)  # (heads, rows)
            sinks = np.where(mass < 1 - FLOAT_SUM, 1 - mass, 0)
            positions = places[lo : lo + ROWS]
            change = streaming_change_of_weights(
                weights, values, positions, first, last, context=None, sinks=sinks
            )  # (heads, rows)
            changes.append(np.where(np.isnan(change), 1, change))  # nothing is left of the row
        result: Floats = np.concatenate([np.zeros((len(self.heads), 0), np.float32), *changes], -1)  # (heads, queries)
        return result

    # --- other weights ---

    def without_keys(self, keys: Sequence[int]) -> LayerAttention:
        """Return the layer with some keys and the learned sink hidden; rows share their attention among the other keys."""
        factors = np.ones(self.n_k, np.float32)
        factors[list(keys)] = 0
        mask = factors[None] > 0 if self.mask is None else self.mask & (factors > 0)
        visible = np.broadcast_to(mask, self.stored.shape[-2:])  # (rows, n_k)
        return self._with_weights(changed_weights(self.stored, np.tile(factors, (len(self.heads), 1))), visible)

    def reweighted(self, factors: Array) -> LayerAttention:
        """Return the layer with each key's weight times a factor (heads, n_k) of 0 or more; rows sum to 1 again."""
        return self._with_weights(changed_weights(self.stored, np.asarray(factors, np.float32)), self.mask)

    def select_keys(self, keys: Sequence[int] | Array) -> LayerAttention:
        """Return the layer with some of its keys, by their positions: the weight of the other keys is missing."""
        mask = None if self.mask is None else self.mask[:, list(keys)]
        return self._with_weights(changed_weights(self.stored, keys=np.asarray(keys)), mask)

    def _with_weights(self, weights: Array, mask: Bools | None) -> LayerTrace:
        """Return a layer of the same heads and queries with other weights, and nothing else."""
        return LayerTrace(
            self.layer, self.heads, self.kv_heads, weights=weights, mask=mask, rows=self.rows, tick=self.tick
        )

    # --- places ---

    def _blocks(self) -> Iterator[tuple[int, int, Floats]]:
        """Yield the weights a block of rows at a time: first row, last + 1, (heads, rows, n_k)."""
        rows = int(self.stored.shape[-2])
        step = max(1, MEMORY // (24 * len(self.heads) * self.n_k))
        for lo in range(0, rows, step):
            hi = min(lo + step, rows)
            if isinstance(self.stored, np.ndarray):
                yield lo, hi, self.stored[:, lo:hi]  # (heads, rows, n_k)
            else:
                yield lo, hi, np.stack([self.stored[head, lo:hi] for head in range(len(self.heads))])
            if self.tick is not None:
                self.tick((hi - lo) / rows)

    def position_of(self, head: int) -> int:
        """Return the position of `head` in the arrays. Raises AttnctlError if it is not here."""
        if head not in self.heads:
            raise AttnctlError(f"head {head} of layer {self.layer} is not there: it has {number_list(self.heads)}")
        return self.heads.index(head)

    def _head_places(self, heads: Sequence[int]) -> list[int]:
        """Return the positions of heads in the arrays. Raises AttnctlError for a head that is not here."""
        return [self.position_of(head) for head in heads]

    def _row_places(self, queries: Sequence[int]) -> list[int]:
        """Return the positions of queries in the rows. Raises AttnctlError for a query that is not here."""
        if self.rows is None:
            return list(queries)
        for query in queries:
            if query not in self.rows:
                raise AttnctlError(f"query {query} is not in this trace: it holds {number_list(self.rows)}")
        return [self.rows.index(query) for query in queries]

    def _grid_places(self, rows: Array) -> Array:
        """Return the rows of the queries of small grids (grids, r) → (grids, r). Raises as `_row_places` does."""
        return rows if self.rows is None else np.reshape(self._row_places(rows.ravel().tolist()), rows.shape)

    def _all_rows(self, subject: str) -> None:
        if self.rows is not None:
            raise AttnctlError(f"{subject} need every query, and layer {self.layer} of this trace holds some alone")


@dataclass(frozen=True)
class RowsOnDemand:
    """Weights (heads, n_q, n_k) with rows that are made when needed: `[head, first:last]`, or `[[heads]]` for some."""

    read: Callable[[int, int, int], Floats]  # head, first row, last + 1 → (rows, n_k)
    heads: tuple[int, ...]  # their numbers, for `read`
    n_q: int
    n_k: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return (heads, n_q, n_k)."""
        return len(self.heads), self.n_q, self.n_k

    def __getitem__(self, index: list[int] | tuple[int, slice]) -> Array:
        """Return rows of one head (rows, n_k), or the weights of some heads."""
        if isinstance(index, list):
            return replace(self, heads=tuple(self.heads[place] for place in index))
        place, rows = index
        first, last, _ = rows.indices(self.n_q)
        return self.read(self.heads[place], first, last)


def masked_scores(scaled_scores: Floats, mask: Bools | None, bias: Array | None = None) -> Floats:
    """Return scaled scores (…, n_k) with -inf where the mask, which broadcasts, or the bias of a call hides a key."""
    hidden = scaled_scores <= hidden_below(bias)  # (…, n_k)
    result: Floats = np.where(hidden if mask is None else hidden | ~mask, -np.inf, scaled_scores)  # (…, n_k)
    return result


def changed_weights(stored: Array, factors: Floats | None = None, keys: Array | None = None) -> Array:
    """Return weights (heads, rows, n_k) times a factor (heads, n_k), rows summing to 1 again, for some `keys`.

    An array is changed at once, other weights when their rows are read.
    """

    def change(weights: Floats, factors: Floats | None) -> Floats:
        weights = weights if factors is None else rescaled_rows(weights * factors[..., None, :])
        return weights if keys is None else weights[..., keys]

    if isinstance(stored, np.ndarray):
        return change(stored, factors)
    heads, n_q, n_k = stored.shape
    return RowsOnDemand(
        lambda head, first, last: change(stored[head, first:last], None if factors is None else factors[head]),
        *(tuple(range(heads)), n_q, n_k if keys is None else len(keys)),
    )


def rescaled_rows(weights: Floats) -> Floats:
    """Return each row of weights (..., n_q, n_k) divided by its sum; a row of zeros stays zeros."""
    total = weights.sum(axis=-1, keepdims=True)  # (..., n_q, 1)
    return np.asarray(weights / np.where(total == 0, 1, total), dtype=weights.dtype)  # (..., n_q, n_k)


# --- recorded --------------------------------------------------------------------------------------------------------

Level = Literal["text", "layer", "head"]


@dataclass(frozen=True, slots=True)
class TraceArray:
    """The description of one array of a trace.

    `level` is the JSON object that holds the array; the arrays of a head have the heads as first axis in a LayerTrace
    and in NPZ. `axes` are what the other axes count: rows (the stored queries), keys, tokens, or sizes of vectors.
    `step` names the step that shows the array.
    """

    name: str
    level: Level
    axes: tuple[str, ...]
    step: str
    meaning: str = ""
    parameter: bool = False  # one of the model's own, in `LayerTrace.parameters`
    boolean: bool = False


def _trace_array(level: Level, axes: tuple[str, ...], step: str, meaning: str, boolean: bool = False) -> Any:
    """Return a field of LayerTrace that is an array of a trace."""
    return field(default=None, metadata={"array": TraceArray("", level, axes, step, meaning, boolean=boolean)})


def _parameter_array(name: str, level: Level, *axes: str) -> TraceArray:
    return TraceArray(name, level, axes, "matrices", parameter=True)


@dataclass(eq=False, repr=False)
class LayerTrace(LayerAttention):
    """The stored attention of one layer. The arrays hold the heads `heads` and the queries `rows`; an absent array is None.

    The axes of an array follow its level: arrays of a head have the heads first. Keys and values are stored once for
    each query head, as that head reads them, even if heads share them.
    """

    layer: int
    heads: tuple[int, ...]
    kv_heads: tuple[int, ...]
    # in the order of the mathematics, as in the JSON document
    input: Floats | None = _trace_array(
        "layer", ("tokens", "d_model"), "input", "X of this layer, where it is not the embeddings"
    )
    rope_angles: Floats | None = _trace_array(
        "layer", ("tokens", "d_k / 2"), "rope", "Radians by which each pair of dimensions is turned"
    )
    mask: Bools | None = _trace_array(
        "layer", ("rows", "keys"), "mask", "True where a query may look; absent where nothing is masked", True
    )
    queries_before_rope: Floats | None = _trace_array("head", ("rows", "d_k"), "rope", "Q before the rotary positions")
    keys_before_rope: Floats | None = _trace_array("head", ("keys", "d_k"), "rope", "K before the rotary positions")
    queries: Floats | None = _trace_array("head", ("rows", "d_k"), "queries", "Q")
    keys: Floats | None = _trace_array("head", ("keys", "d_k"), "keys", "K")
    values: Floats | None = _trace_array("head", ("keys", "d_v"), "values", "V")
    scores: Floats | None = _trace_array("head", ("rows", "keys"), "scores", "Q Kᵀ")
    bias: Floats | None = _trace_array("head", ("rows", "keys"), "scaled", "Added to the scaled scores")
    scaled_scores: Floats | None = _trace_array(
        "head", ("rows", "keys"), "scaled", "Scores × scale, soft cap and bias, before mask and temperature"
    )
    weights: Floats | None = _trace_array(
        *("head", ("rows", "keys"), "weights"),
        "Softmax of the masked scaled scores / temperature, before dropout; rows sum to 1, less what a sink takes",
    )
    sink_weights: Floats | None = _trace_array("head", ("rows",), "weights", "What a learned sink takes of each row")
    dropped_weights: Floats | None = _trace_array("head", ("rows", "keys"), "dropout", "Weights after dropout")
    context: Floats | None = _trace_array("head", ("rows", "d_v"), "context", "Weights V")
    gate: Floats | None = _trace_array(
        "head", ("rows",), "gate", "How far a learned gate after the context is open: ‖gated context‖ / ‖context‖"
    )
    output: Floats | None = _trace_array("layer", ("tokens", "d_out"), "output", "What attention adds")
    residual: Floats | None = _trace_array("layer", ("tokens", "d_model"), "residual", "Input + output")
    rows: tuple[int, ...] | None = None
    parameters: Mapping[str, Floats] = field(default_factory=dict)  # W_Q (heads, d_model, d_k), …, W_O
    tick: Tick | None = None

    def arrays_kept(self) -> Iterator[tuple[TraceArray, Floats | Bools]]:
        """Yield the arrays that this layer has, with parameters, in the order of TRACE_ARRAYS."""
        of_fields, of_parameters = vars(self), self.parameters
        for name, array in (_BY_NAME if of_parameters else _FIELDS_BY_NAME).items():
            if (value := of_fields.get(name)) is not None or (value := of_parameters.get(name)) is not None:
                yield array, value

    def with_fields(self, names: Sequence[str], parameters: Mapping[str, Floats]) -> LayerTrace:
        """Return the layer with only these of its arrays, by their names, and these parameters."""
        held = vars(self)
        arrays = {name: held[name] for name in names if held[name] is not None}
        layer = LayerTrace(
            self.layer, self.heads, self.kv_heads, rows=self.rows, tick=self.tick, parameters=parameters, **arrays
        )
        layer.is_finite = self.is_finite
        return layer

    def __repr__(self) -> str:
        arrays = ", ".join(f"{array.name} {value.shape}" for array, value in self.arrays_kept())
        rows = "" if self.rows is None else f", queries {number_list(self.rows)}"
        return f"layer {self.layer}, heads {number_list(self.heads)}{rows}: {arrays or 'nothing kept'}"

    @property
    def stored(self) -> Array:
        """Return the weights. Raises AttnctlError if they were not stored."""
        if self.weights is None:
            raise AttnctlError(
                f"layer {self.layer} of this trace holds no weights: write it without narrowing its steps"
            )
        return self.weights

    def head_weights(self, head: int) -> Floats:
        """Return the weights of one head: (rows, n_k). Raises AttnctlError if they were not stored."""
        weights: Floats = self.stored[self.position_of(head)]  # (rows, n_k)
        return weights

    def row_of(self, query: int) -> int:
        """Return the row of query token `query` in the arrays. Raises AttnctlError if it was not stored."""
        return self._row_places([query])[0]

    def select_heads(self, heads: Sequence[int]) -> LayerTrace:
        """Return the same layer for some heads. Raises AttnctlError for a head that is not here."""
        if tuple(heads) == self.heads:
            return self
        places = self._head_places(heads)
        return replace(
            self,
            heads=tuple(heads),
            kv_heads=tuple(self.kv_heads[place] for place in places),
            parameters=narrow_arrays(self.parameters, places),
            **self.narrowed_arrays(places),
        )

    def record(self, rows: Sequence[int] | None = None) -> LayerTrace:
        """Return every known array of this layer, for some queries (None: all), with its weights in memory."""
        whole = self if isinstance(self.weights, np.ndarray) else replace(self, weights=self.all_weights())
        if rows is None:
            return whole
        return replace(whole, rows=tuple(rows), **whole.narrowed_arrays(rows=self._row_places(rows)))

    def narrowed_arrays(
        self, heads: list[int] | None = None, rows: list[int] | slice | None = None
    ) -> dict[str, Array]:
        """Return the fields that are arrays, for some heads and rows by their positions (None: all)."""
        return narrow_arrays({array.name: value for array, value in self.field_arrays()}, heads, rows)

    def field_arrays(self) -> Iterator[tuple[TraceArray, Array]]:
        """Yield the arrays that this layer has, without parameters."""
        return ((array, value) for array, value in self.arrays_kept() if not array.parameter)


_OF_FIELDS = [replace(entry.metadata["array"], name=entry.name) for entry in fields(LayerTrace) if entry.metadata]
TRACE_ARRAYS = (
    TraceArray("embeddings", "text", ("tokens", "d_model"), "embeddings", "X: what the first layer reads"),
    *_OF_FIELDS[:-2],
    _parameter_array("W_Q", "head", "d_model", "d_k"),
    _parameter_array("b_Q", "head", "d_k"),
    _parameter_array("W_K", "head", "d_model", "d_k"),
    _parameter_array("b_K", "head", "d_k"),
    _parameter_array("W_V", "head", "d_model", "d_v"),
    _parameter_array("b_V", "head", "d_v"),
    _parameter_array("W_O", "layer", "heads · d_v", "d_out"),
    _parameter_array("b_O", "layer", "d_out"),
    *_OF_FIELDS[-2:],  # output, residual
)
LAYER_TRACE_ARRAYS = TRACE_ARRAYS[1:]
FIELD_ARRAYS = tuple(_OF_FIELDS)
CHECKED = ("scores", "scaled_scores", "weights")  # arrays that show numbers too large for float32
HEAD_FIELD_ARRAYS = tuple(array for array in FIELD_ARRAYS if array.level == "head")
_BY_NAME = {array.name: array for array in LAYER_TRACE_ARRAYS}
_FIELDS_BY_NAME = {array.name: array for array in FIELD_ARRAYS}


def narrow_arrays(
    arrays: Mapping[str, Array], heads: list[int] | None = None, rows: list[int] | slice | None = None
) -> dict[str, Array]:
    """Return the arrays of a layer, by their names, for some heads and query rows, by their positions (None: all)."""
    result = dict(arrays)
    for name, array in arrays.items():
        of_head = _BY_NAME[name].level == "head"
        if heads is not None and of_head:
            array = array[heads]
        if rows is not None and _BY_NAME[name].axes[0] == "rows":
            array = array[:, rows] if of_head else array[rows]
        result[name] = array
    return result


def layer_of_weights(layer: int, weights: Array, mask: Bools | None = None) -> LayerTrace:
    """Return a layer with known weights of all heads (heads, n_q, n_k) and their mask (n_q, n_k)."""
    heads = tuple(range(weights.shape[0]))
    return LayerTrace(layer, heads, heads, weights=weights, mask=mask)
