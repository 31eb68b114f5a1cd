"""Compute the attention of a layer from queries and keys, in a model that runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from attnctl import attention
from attnctl.attention import Array, Attended, Call
from attnctl.blockwise import RowStatistics, count_visible, even_edges, parts_visible, seen_keys, single_tokens
from attnctl.blockwise.rows import (
    exact_rows,
    fused_context,
    grids_visible,
    masses_on_copies,
    scores_of_heads,
    streaming_change_of_call,
    streaming_change_of_weights,
)
from attnctl.errors import AttnctlError
from attnctl.layer import LayerAttention, LayerTrace, masked_scores, narrow_arrays
from attnctl.runtime.arrays import LONG, Bools, Floats, as_numpy, place_array

if TYPE_CHECKING:
    from attnctl.blockwise import Ranges, Tick

PLAIN = 512 * 512  # weights of a head, up to which the whole matrix is built


@dataclass(eq=False)
class Forward:
    """One layer of a model while it runs: its call for all heads, and what else the model knows. Made once, then shared.

    `after` turns the context (heads, n, d_v) into the layer's output and the residual stream after it, (n, d_model)
    each; None for a model that computes these itself.
    """

    call: Call
    arrays: Mapping[str, Array] = field(default_factory=dict)  # arrays of all heads by their names in a trace
    parameters: Mapping[str, Floats] = field(default_factory=dict)
    output_matrix: Callable[[], Floats | None] | None = None  # returns W_O (heads · d_v, d_out), read when needed
    after: Callable[[Array], tuple[Array, Array | None]] | None = None
    own_context: Array | None = None  # the context (heads, n_q, d_v) that the model has computed itself

    @cached_property
    def all_steps(self) -> Attended:
        """Return every step for all heads and rows: memory grows with n_q · n_k."""
        return attention.run_call(self.call)

    @property
    def has_steps(self) -> bool:
        """Return whether a reading has computed every step."""
        return "all_steps" in self.__dict__

    @property
    def context_so_far(self) -> Array | None:
        """Return the context (heads, n_q, d_v) if a reading has computed every step; else None."""
        return self.all_steps.context if self.has_steps else None

    @cached_property
    def context_of_heads(self) -> Array:
        """Return the context (heads, n_q, d_v): from the steps, the model itself, or a fused kernel."""
        if not self.has_steps and self.own_context is not None:
            return self.own_context
        if self.has_steps or is_short(self.call):
            return self.all_steps.context
        return fused_context(self.call)

    @cached_property
    def output_and_residual(self) -> tuple[Array | None, Array | None]:
        """Return the layer's output, and the residual stream after it: (n, d_model) each, None if the model keeps them."""
        return (None, None) if self.after is None else self.after(self.context_of_heads)

    @property
    def rows_after(self) -> Array:
        """Return the rows (…, n, d_model) that the next layer reads: the residual stream, or the output if there is none."""
        output, residual = self.output_and_residual
        return output if residual is None else residual


def is_short(call: Call) -> bool:
    """Return whether a call is short enough to build the whole matrix."""
    return call.n_q * call.n_k <= PLAIN


@dataclass(eq=False)
class ComputedLayer(LayerAttention):
    """A layer with weights computed from queries and keys; every selection of its heads shares `forward`."""

    layer: int
    heads: tuple[int, ...]
    forward: Forward
    tick: Tick | None = field(default=None, kw_only=True)

    @staticmethod
    def of_call(layer: int, call: Call, **fields: Any) -> ComputedLayer:
        """Return all heads of a call, its weights built if they are few; `fields` are the other fields of Forward."""
        kind = ComputedLayer if is_short(call) else SweptLayer
        return kind(layer, tuple(range(call.queries.shape[-3])), Forward(call, **fields))

    @property
    def _all_heads(self) -> bool:
        return self.heads == tuple(range(self.forward.call.queries.shape[-3]))

    @cached_property
    def kv_heads(self) -> tuple[int, ...]:  # type: ignore[override]  # computed when needed
        """Return the key/value head that each head reads."""
        group = self.forward.call.queries.shape[-3] // self.forward.call.keys.shape[-3]
        return tuple(head // group for head in self.heads)

    @cached_property
    def call(self) -> Call:
        """Return the call of the chosen heads alone."""
        return self.forward.call if self._all_heads else attention.select_call(self.forward.call, list(self.heads))

    @cached_property
    def stored(self) -> Array:
        """Return the weights before dropout → (heads, n_q, n_k)."""
        every = as_numpy(self.forward.all_steps.weights)  # (all heads, n_q, n_k)
        return every if self._all_heads else every[list(self.heads)]

    @cached_property
    def mask(self) -> Bools | None:  # type: ignore[override]
        """Return true where a query sees a key → (n_q, n_k); None if every query sees every key."""
        mask = self.forward.all_steps.mask
        return None if mask is None else np.broadcast_to(as_numpy(mask), (self.n_q, self.n_k))

    @property
    def n_q(self) -> int:
        """Return the number of queries."""
        return self.forward.call.n_q

    @property
    def n_k(self) -> int:
        """Return the number of keys."""
        return self.forward.call.n_k

    @property
    def window(self) -> int | None:  # type: ignore[override]
        """Return how many keys back a query sees; None for all."""
        return self.forward.call.window

    @property
    def positions(self) -> Array:
        """Return the position of each query among the keys → (n_q,), integer."""
        return np.arange(self.n_q) + self.forward.call.first_position

    @property
    def values(self) -> Array | None:  # type: ignore[override]
        """Return the values of these heads → (heads, n_k, d_v)."""
        return attention.share_heads(self.call.values, len(self.heads))

    @property
    def parameters(self) -> Mapping[str, Floats]:  # type: ignore[override]
        """Return the matrices of queries, keys, values and output for these heads, if they are known."""
        whole = dict(self.forward.parameters)  # for all heads the same objects, so that a writer can recognise them
        if self._all_heads and self.kv_heads == self.heads:
            return whole
        shared = {name: array for name, array in whole.items() if name[-1] in "KV"}
        separate = {name: array for name, array in whole.items() if name not in shared}
        return whole | narrow_arrays(separate, list(self.heads)) | narrow_arrays(shared, list(self.kv_heads))

    @property
    def output_matrix(self) -> Floats | None:
        """Return W_O (heads · d_v, d_out) of all heads; None if it is unknown, or if W_O is not the last step."""
        read = self.forward.output_matrix
        return self.forward.parameters.get("W_O") if read is None else read()

    def logits_of(self, queries: Sequence[int]) -> Floats | None:
        """Return the logits of some queries → (heads, rows, n_k), as `LayerAttention` does."""
        rows, call = list(queries), self.forward.call
        scores = as_numpy(self.forward.all_steps.scaled_scores)[np.ix_(self.heads, rows)]  # (heads, rows, n_k)
        return masked_scores(scores, None if self.mask is None else self.mask[rows], call.bias)

    def logits_of_heads(self, queries: Sequence[int]) -> Floats | None:
        """Return the logits of one query of each head → (heads, n_k), as `LayerAttention` does."""
        scores, visible = scores_of_heads(self.call, queries)
        return masked_scores(scores, visible, self.call.bias)

    @property
    def memory_bytes(self) -> float:
        """Return about how many bytes of memory the queries, keys and values use."""
        call = self.forward.call
        arrays = (call.queries, call.keys, call.values, call.bias, call.mask)
        return float(sum(array.nbytes for array in arrays if array is not None))

    @property
    def can_lag(self) -> bool:
        """Return whether a network on the CPU has computed this layer, and computes its others by itself."""
        return self.forward.own_context is not None and self.forward.call.queries.device.type == "cpu"

    def to_lag(self) -> ComputedLayer:
        """Return the layer for another thread, while the network goes on: nothing that is asked of it reaches the network.

        Its steps are its own (the network would go on with their context), and W_O, known only now, is read.
        """
        matrix = self.output_matrix
        return replace(self, forward=replace(self.forward, output_matrix=lambda: matrix))

    def forget_steps(self) -> None:
        """Drop the steps, and with them the weights and the mask."""
        self.forward.__dict__.pop("all_steps", None)
        for name in ("stored", "mask", "_built"):
            self.__dict__.pop(name, None)

    def select_heads(self, heads: Sequence[int]) -> ComputedLayer:
        """Return the same layer for some heads. Raises AttnctlError for a head that is not here."""
        self._head_places(heads)
        return replace(self, heads=tuple(heads))

    # --- answers from queries and keys ---

    @property
    def _in_numpy(self) -> bool:
        """Return whether a short text's questions are answered without torch."""
        return isinstance(self.forward.call.queries, np.ndarray)

    @cached_property
    def _built(self) -> Floats | None:
        """Return the weights of a short text (heads, n_q, n_k), of which single weights are read; None for a long text."""
        if self._in_numpy or self.forward.has_steps:
            return np.asarray(self.stored)
        from attnctl.blockwise.products import weights_between

        every = np.arange(self.n_q)[None], np.arange(self.n_k)[None]
        return weights_between(self.call, self._logsumexp, *every)[:, 0]  # type: ignore[no-any-return]

    @cached_property
    def _logsumexp(self) -> Array:
        from attnctl.blockwise.sweep import measure_rows

        return measure_rows(self.call).logsumexp

    def weights_at(self, rows: Array, columns: Array) -> Floats:
        """Return exact weights of small grids: queries (grids, r), keys (grids, c) → (heads, grids, r, c)."""
        if self._built is not None:
            weights: Floats = self._built[:, rows[:, :, None], columns[:, None, :]]
            return weights
        from attnctl.blockwise.products import weights_between

        return weights_between(self.call, self._logsumexp, rows, self._in_call(columns))  # type: ignore[no-any-return]

    def on_copies(self, ids: Sequence[int], shift: int = 0) -> Floats:
        """Return each query's mass on tokens after other copies of its token → (heads, n_q): see `weights_on_copies`."""
        if self._built is not None:
            return super().on_copies(ids, shift)
        from attnctl.blockwise.products import mass_between

        def masses(rows: Array, columns: Array, counts: Array) -> Array:
            return mass_between(self.call, self._logsumexp, rows, self._in_call(columns), counts)

        return masses_on_copies(masses, self.visible_at, ids, shift)  # type: ignore[no-any-return]

    def at_offset(self, offset: int) -> Floats:
        """Return each query's weight on the key `offset` positions away → (heads, n_q), NaN without such a key."""
        if self._built is not None:
            return super().at_offset(offset)
        from attnctl.blockwise.products import weights_at_offset

        return weights_at_offset(self.call, self._logsumexp, offset)  # type: ignore[no-any-return]

    def _in_call(self, keys: Array) -> Array:
        """Return the positions of keys among those of the call."""
        return keys

    def statistics(self, marks: Array | None = None, grid: int = 1) -> RowStatistics:
        """Return the statistics of each row, and the whole pooled to at most grid × grid even cells."""
        if self._in_numpy:
            return super().statistics(marks, grid)
        from attnctl.blockwise.matrix import measure_matrix

        edges = even_edges(self.n_k, grid), even_edges(self.n_q, grid)
        statistics, self.__dict__["_built"] = measure_matrix(self.call, *edges, marks)
        return statistics

    def visible_at(self, rows: Array, columns: Array) -> Bools:
        """Return the mask of small grids: queries (grids, r), keys (grids, c) → (grids, r, c)."""
        return grids_visible(self.call, rows, self._in_call(columns))  # type: ignore[no-any-return]

    def visible_counts(self) -> Array:
        """Return the number of keys that each query sees → (n_q,)."""
        return count_visible(self.call)

    def seen_keys(self) -> Bools:
        """Return whether any query sees a key → (n_k,)."""
        return np.asarray(seen_keys(self.call), bool)

    def streaming_change(self, first: int, last: int) -> Floats | None:
        """Return `blockwise.rows.streaming_change_of_call` of these heads, without n × n weights → (heads, queries)."""
        context = self.forward.context_of_heads  # (heads, n_q, d_v)
        context = context if self._all_heads else context[list(self.heads)]
        call = self.call
        if self._built is not None and call.sinks is None and not self._in_numpy:
            weights = place_array(self._built, call.queries)
            of_weights: Floats = streaming_change_of_weights(
                weights, call.values, self.positions, first, last, context=context, sinks=None
            )
            if not np.isnan(of_weights).any():
                return of_weights
        change: Floats = streaming_change_of_call(call, context, first, last)
        return change

    def record(self, rows: Sequence[int] | None = None) -> LayerTrace:
        """Return every known array of this layer, for some queries (None: all), as NumPy."""
        forward, chosen = self.forward, None if rows is None else list(rows)
        heads = None if self._all_heads else list(self.heads)
        if self.n_q > LONG and not (chosen is None and heads is None):
            call = attention.select_call(self.call, None, chosen)  # only these rows and heads, not every n × n
            steps = step_arrays(call, attention.run_call(call))
        else:
            steps = narrow_arrays(step_arrays(forward.call, forward.all_steps), heads, chosen)
        extra = dict(zip(("output", "residual"), forward.output_and_residual, strict=True)) | dict(forward.arrays)
        arrays = {name: as_numpy(array) for name, array in extra.items() if array is not None}
        return LayerTrace(
            self.layer,
            self.heads,
            self.kv_heads,
            rows=None if rows is None else tuple(rows),
            parameters=self.parameters,
            **steps | narrow_arrays(arrays, heads, chosen),
        )


@dataclass(eq=False)
class SweptLayer(ComputedLayer):
    """A layer of a long text: its n × n weights are never in memory, unless all are requested.

    Sweeps over its keys, or single rows, give the same exact answers as whole weights.
    """

    changed: Call | None = None  # the call of these heads, if their weights differ from the model's
    kept_keys: Array | None = None  # the positions of the remaining keys, if some are left out
    _in_numpy, _built = False, None

    @cached_property
    def call(self) -> Call:
        """Return the call of the chosen heads alone, over all keys."""
        return super().call if self.changed is None else self.changed

    @property
    def n_k(self) -> int:
        """Return the number of keys that are not left out."""
        return self.call.n_k if self.kept_keys is None else len(self.kept_keys)

    @property
    def parameters(self) -> Mapping[str, Floats]:  # type: ignore[override]
        """Return the matrices of queries, keys, values and output for these heads, if they are known."""
        return super().parameters if self.changed is None and self.kept_keys is None else {}

    def select_heads(self, heads: Sequence[int]) -> SweptLayer:
        """Return the same layer for some heads. Raises AttnctlError for a head that is not here."""
        places = self._head_places(heads)
        changed = None if self.changed is None else attention.select_call(self.changed, places)
        return replace(self, heads=tuple(heads), changed=changed)

    def record(self, rows: Sequence[int] | None = None) -> LayerTrace:
        """Return every known array of this layer, for some queries (None: all), as NumPy."""
        if self.changed is None and self.kept_keys is None:
            return super().record(rows)
        call = attention.select_call(replace(self.call, keep=None), None, None if rows is None else list(rows))
        steps = attention.run_call(call)
        trace = LayerTrace(
            self.layer,
            self.heads,
            self.kv_heads,
            weights=as_numpy(steps.weights),
            mask=None if steps.mask is None else np.broadcast_to(as_numpy(steps.mask), steps.weights.shape[-2:]),
            rows=None if rows is None else tuple(rows),
        )
        return trace if self.kept_keys is None else trace.select_keys(self.kept_keys).record()

    def all_weights(self) -> Floats:
        """Return all the weights → (heads, n_q, n_k), before dropout. Memory grows with them."""
        if self.changed is None and (self._all_heads or self.forward.has_steps):
            return self._remaining_columns(as_numpy(self.forward.all_steps.weights)[list(self.heads)])
        return self._remaining_columns(as_numpy(attention.run_call(replace(self.call, keep=None)).weights))

    def rows_of(self, queries: Sequence[int]) -> Floats:
        """Return the exact weights of some queries → (heads, rows, n_k)."""
        return self._remaining_columns(exact_rows(self.call, queries))

    def pooled(self, rows: Sequence[Ranges], columns: Sequence[Ranges], how: str = "mean") -> Floats:
        """Return the weights between parts of the text → (heads, rows, columns), as `sweep.pool_between_parts` does."""
        from attnctl.blockwise.sweep import pool_between_parts

        queries, keys = single_tokens(rows), single_tokens(columns)
        if queries is not None and keys is not None:
            return self.rows_of(queries)[..., keys]
        grid, logsumexp = pool_between_parts(self.call, rows, self._in_whole(columns), how, self.tick)
        if logsumexp is not None:
            self.__dict__["_logsumexp"] = logsumexp  # for the strongest links
        return grid  # type: ignore[no-any-return]

    def statistics(self, marks: Array | None = None, grid: int = 1) -> RowStatistics:
        """Return the statistics of each row, and the whole pooled to at most grid × grid even cells.

        Raises AttnctlError if keys are left out: statistics are about whole rows.
        """
        from attnctl.blockwise.sweep import measure_rows

        self._every_key("statistics")
        keys, queries = even_edges(self.n_k, grid), even_edges(self.n_q, grid)
        statistics = measure_rows(self.call, key_edges=keys, row_edges=queries, marks=marks, rows=True, tick=self.tick)
        self.__dict__["_logsumexp"] = statistics.logsumexp
        # other weights are no softmax of the model's scores
        return statistics if self.changed is None else statistics._replace(max_logit=None, min_logit=None)

    def streaming_change(self, first: int, last: int) -> Floats | None:
        """Return `blockwise.rows.streaming_change_of_call` of these heads → (heads, queries)."""
        if self.changed is None:
            return super().streaming_change(first, last)
        return LayerAttention.streaming_change(self, first, last)

    def links(self, count: int) -> tuple[Array, Floats]:
        """Return the `count` keys with the largest weights of each query, and these weights: (heads, n_q, count) each."""
        from attnctl.blockwise.links import top_links

        if self.kept_keys is None:
            return top_links(self.call, count, self._logsumexp)
        n_left_out = self.call.n_k - self.n_k
        more = min(count + n_left_out, self.call.n_k)
        keys, weights = top_links(self.call, more, self._logsumexp)  # (heads, n_q, more) each
        places = np.full(self.call.n_k, -1)  # (all keys,)
        places[self.kept_keys] = np.arange(self.n_k)
        remaining = places[keys]
        best = np.argsort(remaining < 0, axis=-1, kind="stable")[..., : min(count, self.n_k)]  # (heads, n_q, count)
        return np.take_along_axis(remaining, best, -1), np.take_along_axis(weights, best, -1)

    def visible_parts(self, rows: Sequence[Ranges], columns: Sequence[Ranges]) -> Bools | None:
        """Return whether any query of a row part sees any key of a column part → (rows, columns); None if all do."""
        return parts_visible(self.call, rows, self._in_whole(columns))  # type: ignore[no-any-return]

    def visible_counts(self) -> Array:
        """Return the number of keys that each query sees → (n_q,)."""
        self._every_key("counts of keys")
        return super().visible_counts()

    def seen_keys(self) -> Bools:
        """Return whether any query sees a key → (n_k,)."""
        self._every_key("statistics")
        return super().seen_keys()

    def without_keys(self, keys: Sequence[int]) -> SweptLayer:
        """Return the layer with some keys, and a sink, hidden: each row shares its attention among the other keys."""
        visible: Array = np.ones(self.n_k, bool)
        visible[list(keys)] = False
        mask = place_array(np.broadcast_to(visible, (self.n_q, self.n_k)), self.call.queries)
        mask = mask if self.call.mask is None else self.call.mask & mask
        return replace(self, changed=replace(self.call, mask=mask, sinks=None, keep=None))

    def reweighted(self, factors: Array) -> SweptLayer:
        """Return the layer with each key's weight times a factor (heads, n_k) of 0 or more; rows sum to 1 again."""
        logs = np.log(np.maximum(as_numpy(factors), 1e-30)).astype(np.float32)  # (heads, n_k)
        bias = place_array(logs[:, None] * np.float32(self.call.temperature), self.call.queries)  # (heads, 1, n_k)
        bias = bias if self.call.bias is None else self.call.bias + bias
        return replace(self, changed=replace(self.call, bias=bias, sinks=None, keep=None))

    def select_keys(self, keys: Sequence[int] | Array) -> SweptLayer:
        """Return the layer with some of its keys, by their positions: the weight of the other keys is missing."""
        return replace(self, kept_keys=np.asarray(keys))

    def at_offset(self, offset: int) -> Floats:
        """Return each query's weight on the key `offset` positions away → (heads, n_q), NaN without such a key."""
        return super().at_offset(offset) if self.kept_keys is None else LayerAttention.at_offset(self, offset)

    def _in_call(self, keys: Array) -> Array:
        """Return the positions of remaining keys among those of the call."""
        return keys if self.kept_keys is None else self.kept_keys[keys]

    def _every_key(self, subject: str) -> None:
        if self.kept_keys is not None:
            raise AttnctlError(f"{subject} need every key, and layer {self.layer} lacks some")

    def _remaining_columns(self, array: Array) -> Floats:
        """Return the columns of an array (…, all keys) for the keys that are not left out."""
        columns: Floats = array if self.kept_keys is None else array[..., self.kept_keys]
        return columns

    def _in_whole(self, parts: Sequence[Ranges]) -> Sequence[Ranges]:
        """Return parts of the remaining keys as stretches of all keys."""
        if self.kept_keys is None:
            return parts
        result = []
        for part in parts:
            places = np.concatenate([self.kept_keys[a:b] for a, b in part])
            stretches = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)
            result.append(tuple((int(stretch[0]), int(stretch[-1]) + 1) for stretch in stretches))
        return result


def step_arrays(call: Call, steps: Attended) -> dict[str, Array]:
    """Return the arrays of one call by their names in a trace; keys and values once for each query head."""
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
    result = {name: as_numpy(array) for name, array in arrays.items() if array is not None}
    if call.sinks is not None:
        result["sink_weights"] = share_of_sink(result["weights"])
    if call.bias is not None:
        result["bias"] = np.broadcast_to(as_numpy(call.bias), result["scores"].shape)
    if "mask" in result:
        result["mask"] = np.broadcast_to(result["mask"], result["scores"].shape[-2:])
    return result


def share_of_sink(weights: Floats) -> Floats:
    """Return the weight that a learned sink takes in each row of weights (heads, n_q, n_k) → (heads, n_q)."""
    share: Floats = np.clip(1 - weights.sum(-1, dtype=np.float64), 0, 1).astype(np.float32)  # (heads, n_q)
    return share
