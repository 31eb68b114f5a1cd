"""A layer whose weights follow from queries and keys: of a model that runs. No n × n weights unless all are asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from attnctl import attention
from attnctl.arrays import LONG, Bools, Floats, as_numpy, place_array
from attnctl.attention import Array, Attended, Call
from attnctl.layer import SHARED_PARAMETERS, LayerAttention, StoredLayer, arrays_of_heads, step_arrays

if TYPE_CHECKING:
    from attnctl.blockwise import Ranges, RowStatistics


@dataclass(eq=False)
class Forward:
    """One layer of a model as it runs: its call for all heads, and what the model knows beside it. Made once, then shared.

    `after` takes the context (heads, n, d_v) to the layer's output and the residual stream after it, (n, d_model) each;
    None for a model that goes on by itself.
    """

    call: Call
    input: Array | None = None  # (n, d_model)
    queries_before_rope: Array | None = None  # (heads, n, d_k)
    keys_before_rope: Array | None = None  # (kv_heads, n, d_k)
    rope_angles: Array | None = None  # (n, d_k / 2), radians
    parameters: Mapping[str, Floats] = field(default_factory=dict)
    difference: float | None = None  # λ of differential attention: heads h and h + heads / 2 are a pair
    output_matrix: Callable[[], Floats | None] | None = None  # W_O (heads · d_v, d_out), asked for where it is wanted
    index_scores: Array | None = None  # (n, n_k), by which an indexer picked the keys of the mask
    after: Callable[[Array], tuple[Array, Array | None]] | None = None

    @cached_property
    def all_steps(self) -> Attended:
        """Every step for all heads and rows: memory grows with n_q · n_k."""
        return attention.run_call(self.call)

    @property
    def has_steps(self) -> bool:
        """Whether a reading has had every step computed."""
        return "all_steps" in self.__dict__

    def forget_steps(self) -> None:
        """Let go of every step, and of their memory."""
        self.__dict__.pop("all_steps", None)

    @property
    def context_so_far(self) -> Array | None:
        """The context (heads, n_q, d_v) where a reading has had every step computed; None where not."""
        return self.all_steps.context if self.has_steps else None

    @cached_property
    def context_of_heads(self) -> Array:
        """What the model goes on with (heads, n_q, d_v): of the steps, or by a kernel that holds no n × n weights."""
        if (known := self.context_so_far) is not None:
            return known
        from attnctl.blockwise.rows import fused_context

        return fused_context(self.call)

    @cached_property
    def output_and_residual(self) -> tuple[Array | None, Array | None]:
        """What the layer puts out, and the residual stream after it: (n, d_model) each, None where the model keeps them."""
        return (None, None) if self.after is None else self.after(self.context_of_heads)


@dataclass(eq=False)
class ComputedLayer(LayerAttention):
    """A layer whose weights follow from queries and keys; `forward` is shared by every selection of its heads."""

    forward: Forward
    changed: Call | None = None  # the call of these heads, where their weights are other than the model's

    @classmethod
    def of_call(cls, layer: int, call: Call, **beside: Any) -> ComputedLayer:
        """All heads of a call; `beside` are the other fields of Forward."""
        return cls(layer, tuple(range(call.queries.shape[-3])), Forward(call, **beside))

    @cached_property
    def kv_heads(self) -> tuple[int, ...]:
        """The key/value head that each head reads."""
        group = self.forward.call.queries.shape[-3] // self.forward.call.keys.shape[-3]
        return tuple(head // group for head in self.heads)

    @property
    def n_q(self) -> int:
        """How many queries there are."""
        return self.forward.call.n_q

    @property
    def n_k(self) -> int:
        """How many keys there are."""
        return self.forward.call.n_k

    @cached_property
    def call(self) -> Call:
        """The call of the chosen heads alone."""
        if self.changed is not None:
            return self.changed
        return self.forward.call if self._all_heads else attention.select_call(self.forward.call, list(self.heads))

    @property
    def _all_heads(self) -> bool:
        return self.heads == tuple(range(self.forward.call.queries.shape[-3]))

    def streaming_change(self, first: int, last: int) -> Floats | None:
        """As of `blockwise.streaming.streaming_change_of_call`, without n × n weights → (heads, queries)."""
        if self.changed is not None:
            return super().streaming_change(first, last)
        from attnctl.blockwise.rows import streaming_change_of_call

        context = self.forward.context_of_heads[list(self.heads)]  # (heads, n_q, d_v)
        found: Floats = streaming_change_of_call(self.call, context, first, last)
        return found

    def select_heads(self, heads: Sequence[int]) -> ComputedLayer:
        """The same layer for some heads. Raises AttnctlError for a head that is not here."""
        places = self._places(heads)
        changed = None if self.changed is None else attention.select_call(self.changed, places)
        return replace(self, heads=tuple(heads), changed=changed)

    def arrays(self, rows: Sequence[int] | None = None) -> dict[str, Array]:
        """Every array that is known of this layer, by its name in a trace, for some queries (None: all); NumPy."""
        call, heads, chosen = self.forward.call, list(self.heads), None if rows is None else list(rows)
        if self.changed is not None or (call.n_q > LONG and (rows is not None or not self._all_heads)):
            narrow = attention.select_call(self.call, None, chosen)  # what was asked for, not every n × n
            known = step_arrays(narrow, attention.run_call(narrow))
        else:
            known = arrays_of_heads(step_arrays(call, self.forward.all_steps), heads, chosen)
        if self.changed is not None:
            return {name: known[name] for name in ("weights", "mask") if name in known}
        return known | self._beside(heads, chosen) | self._differences(chosen)

    def _differences(self, rows: list[int] | None) -> dict[str, Array]:
        """Of differential attention, weights of the first head of each head's pair - λ × those of the second, and λ."""
        factor, call = self.forward.difference, self.forward.call
        if factor is None:
            return {}
        half = call.queries.shape[-3] // 2
        pairs = sorted({head % half for head in self.heads})
        if self.forward.has_steps and rows is None:
            weights = as_numpy(self.forward.all_steps.weights)[[*pairs, *(pair + half for pair in pairs)]]
        else:
            narrow = attention.select_call(replace(call, keep=None), [*pairs, *(pair + half for pair in pairs)], rows)
            weights = as_numpy(attention.run_call(narrow).weights)  # (2 · pairs, rows, n_k)
        signed = weights[: len(pairs)] - np.float32(factor) * weights[len(pairs) :]  # (pairs, rows, n_k)
        signed = signed[[pairs.index(head % half) for head in self.heads]]  # (heads, rows, n_k)
        return {"signed_weights": signed, "differential_lambda": np.array([factor], np.float32)}

    def _beside(self, heads: list[int], rows: list[int] | None) -> dict[str, Array]:
        """What the model knows of the layer beside its attention."""
        forward = self.forward
        output, residual = forward.output_and_residual
        known = {
            "input": forward.input,
            "queries_before_rope": forward.queries_before_rope,
            "keys_before_rope": forward.keys_before_rope,
            "rope_angles": forward.rope_angles,
            "output": output,
            "residual": residual,
        }
        arrays = {name: as_numpy(array) for name, array in known.items() if array is not None}
        if forward.index_scores is not None:
            arrays["index_scores"] = as_numpy(forward.index_scores if rows is None else forward.index_scores[rows])
        if "keys_before_rope" in arrays:
            arrays["keys_before_rope"] = arrays["keys_before_rope"][list(self.kv_heads)]
        if "queries_before_rope" in arrays:
            arrays |= arrays_of_heads({"queries_before_rope": arrays["queries_before_rope"]}, heads, rows)
        return arrays

    @property
    def parameters(self) -> Mapping[str, Floats]:
        """The matrices that made queries, keys, values and output, where they are known, for these heads."""
        if self.changed is not None:
            return {}
        whole = dict(self.forward.parameters)  # of all heads the very same arrays: who writes them often may know them
        if self._all_heads and self.kv_heads == self.heads:
            return whole
        heads = {"Q": list(self.heads)}
        return {
            name: array if name in SHARED_PARAMETERS else array[heads.get(name[-1], list(self.kv_heads))]
            for name, array in whole.items()
        }

    @property
    def output_matrix(self) -> Floats | None:
        """W_O (heads · d_v, d_out) of all heads of the model; None where it is not known, or not all that follows."""
        asked = self.forward.output_matrix
        return self.forward.parameters.get("W_O") if asked is None else asked()

    @property
    def values(self) -> Array | None:
        """What the weights are taken of → (heads, n_k, d_v)."""
        return attention.share_heads(self.call.values, len(self.heads))

    @property
    def _is_built(self) -> bool:
        """Whether all the weights are there, or are few enough to be simply built."""
        from attnctl.blockwise import is_short

        return self.changed is None and (self.forward.has_steps or is_short(self.forward.call))

    def weights(self) -> Floats:
        """All the weights → (heads, n_q, n_k), before dropout. Memory grows with them."""
        if self.changed is not None or (not self._all_heads and not self._is_built):
            return as_numpy(attention.run_call(replace(self.call, keep=None)).weights)  # type: ignore[no-any-return]
        return as_numpy(self.forward.all_steps.weights)[list(self.heads)]  # type: ignore[no-any-return]

    def rows(self, queries: Sequence[int]) -> Floats:
        """The exact weights of some queries → (heads, rows, n_k)."""
        if self._is_built:
            return self.weights()[:, list(queries)]
        from attnctl.blockwise.rows import exact_rows

        return exact_rows(self.call, queries)  # type: ignore[no-any-return]

    def weights_at(self, rows: Array, columns: Array) -> Floats:
        """Exact weights of small grids: queries (grids, r), keys (grids, c) → (heads, grids, r, c)."""
        from attnctl.blockwise.rows import weights_between

        return weights_between(self.call, self._logsumexp, rows, columns)  # type: ignore[no-any-return]

    @cached_property
    def _logsumexp(self) -> Array:
        from attnctl.blockwise import measure_rows

        return measure_rows(self.call).logsumexp

    def pooled(self, rows: Sequence[Ranges], columns: Sequence[Ranges], how: str = "mean") -> Floats:
        """The weights between parts of the text → (heads, rows, columns); arguments as of `blockwise.pool_between_parts`."""
        from attnctl.blockwise import pool_between_parts, pool_weights, single_tokens

        queries, keys = single_tokens(rows), single_tokens(columns)
        if queries is not None and keys is not None:
            return self.rows(queries)[..., keys]
        if self._is_built:
            return pool_weights([(0, self.n_q, self.weights())], rows, columns, how)  # type: ignore[no-any-return]
        return pool_between_parts(self.call, rows, columns, how, self.tick)  # type: ignore[no-any-return]

    def statistics(self, marks: Array | None = None, grid: int = 1) -> RowStatistics:
        """Of each row, what `blockwise.measure_rows` finds with `rows`; pooled to at most grid × grid even cells."""
        from attnctl.blockwise import Wanted, even_edges, measure_rows

        edges = even_edges(self.n_k, grid), even_edges(self.n_q, grid)
        found = measure_rows(self.call, Wanted(*edges, marks, rows=True), tick=self.tick)
        self.__dict__["_logsumexp"] = found.logsumexp
        return found

    def links(self, count: int) -> tuple[Array, Floats]:
        """The `count` keys that each query attends to most, and their weights: two arrays (heads, n_q, count)."""
        from attnctl.blockwise.rows import top_links

        return top_links(self.call, count)

    @property
    def positions(self) -> Array:
        """Each query's position among the keys → (n_q,), integer."""
        return np.arange(self.n_q) + self.forward.call.first_position

    def visible_at(self, rows: Array, columns: Array) -> Bools:
        """The mask of small grids: queries (grids, r), keys (grids, c) → (grids, r, c)."""
        from attnctl.blockwise.rows import grids_visible

        return grids_visible(self.call, rows, columns)  # type: ignore[no-any-return]

    def visible_parts(self, rows: Sequence[Ranges], columns: Sequence[Ranges]) -> Bools | None:
        """Whether any query of a row part may see any key of a column part → (rows, columns); None where all may."""
        from attnctl.blockwise import parts_visible

        return parts_visible(self.call, rows, columns)  # type: ignore[no-any-return]

    def visible_counts(self) -> Array:
        """How many keys each query may see → (n_q,)."""
        from attnctl.blockwise import count_visible

        return count_visible(self.call)

    def as_stored(self) -> StoredLayer:
        """The weights and the mask alone, as a layer of their own. Memory grows with them."""
        mask = attention.visible_keys(self.call)  # (n_q, n_k)
        mask = None if mask is None else np.broadcast_to(as_numpy(mask), (self.n_q, self.n_k))
        return StoredLayer(self.layer, self.heads, self.weights(), mask=mask, key_heads=self.kv_heads, tick=self.tick)

    def without_keys(self, keys: Sequence[int]) -> LayerAttention:
        """The layer with some keys hidden, and a sink too: each row shares all its attention among the rest."""
        if self._is_built:
            return self.as_stored().without_keys(keys)
        kept: Array = np.ones(self.n_k, bool)
        kept[list(keys)] = False
        mask = place_array(np.broadcast_to(kept, (self.n_q, self.n_k)), self.call.queries)
        mask = mask if self.call.mask is None else self.call.mask & mask
        return replace(self, changed=replace(self.call, mask=mask, sinks=None, keep=None))

    def reweighted(self, factors: Array) -> LayerAttention:
        """The layer with each key's weight times a factor (heads, n_k) of 0 or more, and each row made to sum to 1 again."""
        if self._is_built:
            return self.as_stored().reweighted(factors)
        logs = np.log(np.maximum(as_numpy(factors), 1e-30)).astype(np.float32)  # (heads, n_k)
        bias = place_array(logs[:, None] * np.float32(self.call.temperature), self.call.queries)  # (heads, 1, n_k)
        bias = bias if self.call.bias is None else self.call.bias + bias
        return replace(self, changed=replace(self.call, bias=bias, sinks=None, keep=None))
