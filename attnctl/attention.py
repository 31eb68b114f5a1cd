"""The mathematics of attention: each step is a small pure function for any array library.

The code follows the Python Array API standard, so the same lines run on NumPy, on torch (any device, autograd
included) and on array-api-strict. Sources: Vaswani et al. 2017 (attention), Su et al. 2021 (RoPE), Ainslie
et al. 2023 (grouped heads), Gemma 2 (soft cap), gpt-oss (attention sinks).

Shapes: i is the query (row), j the key (column); any leading axes before `heads` are a batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, NamedTuple

Array = Any  # an array of any library that follows the standard: NumPy, torch and others share no Python type


def array_namespace(x: Array) -> ModuleType:
    """Return the array library of `x`: the namespace of the Python Array API standard with its operations."""
    if hasattr(x, "__array_namespace__"):
        namespace: ModuleType = x.__array_namespace__()
        return namespace
    import array_api_compat.torch as torch_namespace  # torch tensors do not name their namespace themselves

    return torch_namespace


def swap_last(x: Array) -> Array:
    """Return `x` (..., a, b) with its last two axes exchanged: (..., b, a)."""
    return array_namespace(x).matrix_transpose(x)


def device_of(x: Array) -> object:
    """Return the device of `x`, as its library names it."""
    device: object = x.device
    return device


# --- before the scores -------------------------------------------------------------------------------------------


def project_heads(x: Array, w: Array, b: Array | None = None) -> Array:
    """Return queries, keys or values: x (..., n, d_model), w (heads, d_model, d), b (heads, d) → (..., heads, n, d)."""
    xp = array_namespace(x)
    if x.ndim > 2 and xp.__name__ != "numpy":  # one product for all: faster in torch; last bits differ
        heads, d_model, d = w.shape
        side_by_side = xp.reshape(xp.permute_dims(w, (1, 0, 2)), (d_model, heads * d))  # (d_model, heads · d)
        y = split_heads(x @ side_by_side, heads)  # (..., heads, n, d)
    else:
        y = xp.expand_dims(x, axis=-3) @ w  # (..., heads, n, d)
    return y if b is None else y + xp.expand_dims(b, axis=-2)  # (..., heads, n, d)


def sinusoidal_positions(positions: Array, d_model: int) -> Array:
    """Return sinusoidal positions (Vaswani et al. 2017): positions (n,) float → (n, d_model), sines and cosines in turn."""
    xp = array_namespace(positions)
    pair = xp.arange((d_model + 1) // 2, dtype=positions.dtype, device=device_of(positions))  # (d_model / 2,)
    angle = positions[:, None] * xp.exp(pair * (-2.0 * math.log(10000.0) / d_model))  # (n, d_model / 2)
    pairs = xp.stack([xp.sin(angle), xp.cos(angle)], axis=-1)  # (n, d_model / 2, 2)
    return xp.reshape(pairs, (positions.shape[0], -1))[:, :d_model]  # (n, d_model)


def rope_angles(positions: Array, d: int, theta: float = 10000.0) -> Array:
    """Return the angle in radians by which each pair of dimensions is rotated: positions (n,) float → (n, d / 2)."""
    xp = array_namespace(positions)
    pair = xp.arange(d // 2, dtype=positions.dtype, device=device_of(positions))  # (d / 2,)
    return positions[:, None] * xp.exp(pair * (-2.0 * math.log(theta) / d))  # (n, d / 2)


def rotate_positions(x: Array, angles: Array, pairs: str = "half") -> Array:
    """Return `x` with rotary position embedding (Su et al. 2021): x (..., n, d), angles (n, r / 2) → (..., n, d).

    The first r ≤ d dimensions are rotated, the others stay as they are. `pairs` names which two dimensions form a pair:
    "half" is (k, k + r/2), as in Llama's checkpoints; "interleaved" is (2k, 2k + 1), as in the paper. Raises ValueError
    for another name.
    """
    xp = array_namespace(x)
    r = 2 * angles.shape[-1]
    rotated, unrotated = x[..., :r], x[..., r:]  # (..., n, r), (..., n, d - r)
    cos, sin = xp.cos(angles), xp.sin(angles)  # (n, r / 2)
    if pairs == "half":
        a, b = rotated[..., : r // 2], rotated[..., r // 2 :]  # (..., n, r / 2)
        rotated = xp.concat([a * cos - b * sin, b * cos + a * sin], axis=-1)  # (..., n, r)
    elif pairs == "interleaved":
        a, b = rotated[..., 0::2], rotated[..., 1::2]  # (..., n, r / 2)
        rotated = xp.stack([a * cos - b * sin, b * cos + a * sin], axis=-1)  # (..., n, r / 2, 2)
        rotated = xp.reshape(rotated, x.shape[:-1] + (r,))  # (..., n, r)
    else:
        raise ValueError(f'pairs is "half" or "interleaved", not {pairs!r}')
    return rotated if r == x.shape[-1] else xp.concat([rotated, unrotated], axis=-1)  # (..., n, d)


def split_heads(x: Array, n_heads: int) -> Array:
    """Return each row cut into heads: x (..., n, heads · d) → (..., heads, n, d); the inverse of `concatenate_heads`."""
    xp = array_namespace(x)
    *batch, n, width = x.shape
    axes = [*range(len(batch)), len(batch) + 1, len(batch), len(batch) + 2]
    return xp.permute_dims(xp.reshape(x, (*batch, n, n_heads, width // n_heads)), axes)  # (..., heads, n, d)


def share_heads(x: Array, n_heads: int) -> Array:
    """Return each key/value head repeated for its group of query heads: (..., kv_heads, n, d) → (..., n_heads, n, d).

    Raises ValueError if `n_heads` is not a multiple of kv_heads.
    """
    kv_heads = x.shape[-3]
    if kv_heads == n_heads:
        return x
    if n_heads % kv_heads:
        raise ValueError(f"{n_heads} query heads cannot share {kv_heads} key/value heads evenly")
    return array_namespace(x).repeat(x, n_heads // kv_heads, axis=-3)  # (..., n_heads, n, d)


# --- from scores to weights --------------------------------------------------------------------------------------


def scores(queries: Array, keys: Array) -> Array:
    """Return `Q Kᵀ`: queries (..., heads, n_q, d_k), keys (..., heads, n_k, d_k) → (..., heads, n_q, n_k)."""
    return queries @ swap_last(keys)  # (..., heads, n_q, n_k)


def default_scale(d_k: int) -> float:
    """Return `1/√d_k`: a score then has the variance of a single product (Vaswani et al. 2017, section 3.2.1)."""
    return 1.0 / math.sqrt(d_k)


def scale_scores(raw: Array, scale: float, soft_cap: float | None = None, bias: Array | None = None) -> Array:
    """Return the scaled scores (..., heads, n_q, n_k): scores × scale, soft cap, bias.

    The soft cap limits them to ±soft_cap by tanh (Gemma 2); the bias is added after it (ALiBi, T5).
    """
    xp = array_namespace(raw)
    y = raw * scale  # (..., heads, n_q, n_k)
    if soft_cap is not None:
        y = xp.tanh(y / soft_cap) * soft_cap  # (..., heads, n_q, n_k)
    return y if bias is None else y + bias  # (..., heads, n_q, n_k)


def visible_gaps(causal: bool, window: int | None) -> tuple[float, float]:
    """Return the smallest and the largest gap i - j, in tokens, at which query i sees key j; infinite without a limit.

    `causal` hides the future, `window` hides the keys that are `window` or more tokens away.
    """
    largest = math.inf if window is None else window - 1
    return (0 if causal else -largest), largest


def visibility_mask(
    queries: Array, keys: Array, *, causal: bool = False, window: int | None = None, mask: Array | None = None
) -> Array | None:
    """Return the mask, true where a query sees a key → (..., n_q, n_k); None if every query sees every key.

    `queries` (..., n_q) and `keys` (..., n_k) are positions in one count. `causal` and `window` are those of
    `visible_gaps`; `mask` (..., n_q, n_k) hides the keys for which it is false, such as padding.
    """
    if not causal and window is None:
        return mask
    xp = array_namespace(queries)
    gap = xp.expand_dims(queries, axis=-1) - xp.expand_dims(keys, axis=-2)  # (..., n_q, n_k)
    smallest, largest = visible_gaps(causal, window)
    visible = gap >= smallest  # (..., n_q, n_k)
    if window is not None:
        visible = visible & (gap <= largest)
    return visible if mask is None else visible & mask  # (..., n_q, n_k)


def softmax(
    scaled_scores: Array, mask: Array | None = None, sinks: Array | None = None, temperature: float = 1.0
) -> Array:
    """Return the weights, each row's shares of attention, in the shape of the scores (..., heads, n_q, n_k).

    Each row sums to 1. `mask` broadcasts to the scores. `sinks` are a score for each head (heads,) or each query
    (..., heads, n_q): a sink takes weight and gives nothing back, so a row may sum to less than 1 (gpt-oss). The
    computation is in float32 or wider. A row without visible keys is 0.
    """
    xp = array_namespace(scaled_scores)
    dtype = scaled_scores.dtype
    is_half = xp.finfo(dtype).bits < 32
    x = xp.astype(scaled_scores, xp.float32) if is_half else scaled_scores  # (..., heads, n_q, n_k)
    x = x / temperature if temperature != 1.0 else x
    if mask is not None:
        x = xp.where(mask, x, xp.asarray(-math.inf, dtype=x.dtype, device=device_of(x)))  # (..., heads, n_q, n_k)
    sink = None if sinks is None else xp.astype(sink_column(sinks), x.dtype) / temperature  # (..., heads, 1 or n_q, 1)
    kernel = _library_softmax if hasattr(xp, "softmax") else _portable_softmax
    weights = kernel(x, sink)  # (..., heads, n_q, n_k)
    return xp.astype(weights, dtype) if is_half else weights


def sink_column(sinks: Array) -> Array:
    """Return sinks (heads,) or (..., heads, n_q) as a column beside the scores: (..., heads, 1 or n_q, 1)."""
    return sinks[:, None, None] if sinks.ndim == 1 else sinks[..., None]


def _portable_softmax(x: Array, sink: Array | None) -> Array:
    """Return the softmax by the functions of the standard alone.

    Hidden scores in x (..., heads, n_q, n_k) are -inf already; `sink` is (..., heads, 1 or n_q, 1).
    """
    xp = array_namespace(x)
    top = xp.max(x, axis=-1, keepdims=True)  # (..., heads, n_q, 1)
    if sink is not None:
        top = xp.maximum(top, sink)
    lowest = xp.asarray(xp.finfo(x.dtype).min, dtype=x.dtype, device=device_of(x))
    top = xp.maximum(top, lowest)  # finite, also in a row without visible keys
    differences = x - top  # (..., heads, n_q, n_k)
    # to fill new memory takes as long as to compute
    exponentials = xp.exp(differences, **{"out": differences} if xp.__name__ == "numpy" else {})
    total = xp.sum(exponentials, axis=-1, keepdims=True)  # (..., heads, n_q, 1)
    if sink is not None:
        total = total + xp.exp(sink - top)
    total = xp.where(total == 0, xp.ones_like(total), total)
    exponentials /= total
    return exponentials  # (..., heads, n_q, n_k)


def _library_softmax(x: Array, sink: Array | None) -> Array:
    """Return the softmax by the library's own kernel: it is faster, and rounds as models of that library round.

    Hidden scores in x (..., heads, n_q, n_k) are -inf already; `sink` is (..., heads, 1 or n_q, 1).
    """
    xp = array_namespace(x)
    if sink is not None:
        column = xp.broadcast_to(sink, (*x.shape[:-1], 1))  # (..., heads, n_q, 1)
        return xp.softmax(xp.concat([x, column], axis=-1), -1)[..., :-1]  # (..., heads, n_q, n_k)
    weights = xp.softmax(x, -1)  # (..., heads, n_q, n_k)
    if not xp.any(xp.isnan(weights[..., :1])):
        return weights
    blind = xp.all(x == -math.inf, axis=-1, keepdims=True)  # (..., heads, n_q, 1)
    zeros = xp.zeros_like(x)  # a row of -inf gives NaN, here and in the gradient
    return xp.where(blind, zeros, xp.softmax(xp.where(blind, zeros, x), -1))  # (..., heads, n_q, n_k)


def drop_weights(weights: Array, keep: Array, p: float) -> Array:
    """Return the weights after dropout: 0 where `keep` is false, the others × 1/(1 - p)."""
    xp = array_namespace(weights)
    return xp.where(keep, weights / (1.0 - p), xp.zeros_like(weights))


# --- after the weights -------------------------------------------------------------------------------------------


def context(weights: Array, values: Array) -> Array:
    """Return `weights V`: weights (..., heads, n_q, n_k), values (..., heads, n_k, d_v) → (..., heads, n_q, d_v)."""
    return weights @ values  # (..., heads, n_q, d_v)


def concatenate_heads(contexts: Array) -> Array:
    """Return the contexts of the heads side by side: (..., heads, n, d_v) → (..., n, heads · d_v)."""
    xp = array_namespace(contexts)
    *batch, heads, n, d = contexts.shape
    axes = [*range(len(batch)), len(batch) + 1, len(batch), len(batch) + 2]
    return xp.reshape(xp.permute_dims(contexts, axes), (*batch, n, heads * d))  # (..., n, heads · d_v)


def project_output(side_by_side: Array, w_o: Array | None, b_o: Array | None = None) -> Array:
    """Return contexts side by side (..., n, heads · d_v) times w_o (heads · d_v, d_out), plus b_o → (..., n, d_out)."""
    y = side_by_side if w_o is None else side_by_side @ w_o  # (..., n, d_out)
    return y if b_o is None else y + b_o  # (..., n, d_out)


# --- the whole call ----------------------------------------------------------------------------------------------


class Attended(NamedTuple):
    """The results of one call of attention, step by step; `mask` is None if every query sees every key."""

    scores: Array  # (..., heads, n_q, n_k)
    scaled_scores: Array  # (..., heads, n_q, n_k)
    mask: Array | None  # (..., n_q, n_k)
    weights: Array  # (..., heads, n_q, n_k), before dropout
    dropped: Array | None  # (..., heads, n_q, n_k), after dropout
    context: Array  # (..., heads, n_q, d_v)


@dataclass(frozen=True, eq=False)
class Call:
    """One call of attention: its inputs, and everything that real models do to a score, each with a neutral default."""

    queries: Array  # (..., heads, n_q, d_k)
    keys: Array  # (..., kv_heads, n_k, d_k)
    values: Array  # (..., kv_heads, n_k, d_v)
    scale: float | None = None  # None: 1/√d_k
    soft_cap: float | None = None  # limits scaled scores to ±soft_cap
    bias: Array | None = None  # broadcasts to (..., heads, n_q, n_k)
    causal: bool = False  # hides the keys after a query
    window: int | None = None  # hides the keys that are this many tokens away, or more
    offset: int | None = None  # the position of the first query among the keys; None: n_k - n_q
    mask: Array | None = None  # broadcasts to (..., n_q, n_k), true where a query sees a key
    sinks: Array | None = None  # (heads,), or for each query (..., heads, n_q)
    temperature: float = 1.0
    keep: Array | None = None  # (..., heads, n_q, n_k), false where dropout sets a weight to 0
    dropout: float = 0.0  # the probability by which `keep` was drawn

    @property
    def effective_scale(self) -> float:
        """Return the factor on the scores: `scale`, or 1/√d_k by default."""
        return default_scale(self.queries.shape[-1]) if self.scale is None else self.scale

    @property
    def bends_scores(self) -> bool:
        """Return whether a score is more than scaled before the softmax: by a soft cap or a bias."""
        return self.soft_cap is not None or self.bias is not None

    def scaled_part(self, raw: Array, bias: Array | None) -> Array:
        """Return the scaled scores of `raw`, some of this call's scores; `bias` is the bias of these scores."""
        return scale_scores(raw, self.effective_scale, self.soft_cap, bias)

    @property
    def n_q(self) -> int:
        """Return the number of queries."""
        return int(self.queries.shape[-2])

    @property
    def n_k(self) -> int:
        """Return the number of keys."""
        return int(self.keys.shape[-2])

    @property
    def first_position(self) -> int:
        """Return the position of the first query among the keys: `offset`; n_k - n_q by default, as with a cache."""
        return self.n_k - self.n_q if self.offset is None else self.offset

    @property
    def query_positions(self) -> Array:
        """Return the position of each query among the keys → (n_q,), integer."""
        return array_namespace(self.queries).arange(self.n_q, device=device_of(self.queries)) + self.first_position

    @property
    def key_positions(self) -> Array:
        """Return the position of each key, 0 … n_k - 1 → (n_k,), integer."""
        return array_namespace(self.keys).arange(self.n_k, device=device_of(self.keys))


def attend(queries: Array, keys: Array, values: Array, **how: Any) -> Attended:
    """Return every step of attention: queries (..., heads, n_q, d_k), keys and values (..., kv_heads, n_k, d_k | d_v).

    Keywords are the fields of `Call`. Memory grows with n_q · n_k: for long texts see `attnctl.blockwise`.
    Raises ValueError, naming both shapes, if two arrays do not fit each other.
    """
    call = Call(queries, keys, values, **how)
    check_shapes(call)
    return run_call(call)


def check_shapes(call: Call) -> None:
    """Raise ValueError, naming both shapes, if two arrays of a call do not fit each other."""
    queries, keys, values = (tuple(part.shape) for part in (call.queries, call.keys, call.values))
    for name, shape in (("queries", queries), ("keys", keys), ("values", values)):
        if len(shape) < 3:
            raise ValueError(f"{name} have shape {shape}: they are (..., heads, n, d)")
    if queries[-1] != keys[-1]:
        raise ValueError(f"queries have shape {queries} and keys {keys}: their last axes, d_k, differ")
    if keys[-3:-1] != values[-3:-1]:
        raise ValueError(
            f"keys have shape {keys} and values {values}: their heads and numbers of keys must be the same"
        )
    if queries[:-3] != keys[:-3] or keys[:-3] != values[:-3]:
        raise ValueError(f"queries have shape {queries}, keys {keys} and values {values}: their batches differ")
    if queries[-3] % max(keys[-3], 1):
        raise ValueError(
            f"queries have shape {queries} and keys {keys}: {queries[-3]} query heads cannot share {keys[-3]} key/value "
            "heads evenly"
        )
    grid = (*queries[:-1], keys[-2])  # (..., heads, n_q, n_k)
    for name, array, whole in (
        ("bias", call.bias, grid),
        ("keep", call.keep, grid),
        ("mask", call.mask, (*grid[:-3], *grid[-2:])),
        ("sinks", call.sinks, queries[-3:-2] if call.sinks is None or call.sinks.ndim == 1 else queries[:-1]),
    ):
        if array is not None and not broadcasts_to(tuple(array.shape), whole):
            raise ValueError(f"{name} has shape {tuple(array.shape)}, which does not broadcast to {whole}")


def broadcasts_to(shape: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Return whether an array of `shape` broadcasts to the shape `whole`."""
    pairs = zip(reversed(shape), reversed(whole), strict=False)
    return len(shape) <= len(whole) and all(size in (1, whole_size) for size, whole_size in pairs)


def run_call(call: Call) -> Attended:
    """Return the results of all steps of one call, in order."""
    n_heads = call.queries.shape[-3]
    keys, values = share_heads(call.keys, n_heads), share_heads(call.values, n_heads)  # (..., heads, n_k, d)
    raw = scores(call.queries, keys)  # (..., heads, n_q, n_k)
    scaled_scores = _in_wider_type(call.scaled_part(raw, call.bias), call.queries)  # (..., heads, n_q, n_k)
    mask = visible_keys(call)  # (..., n_q, n_k)
    # a mask for a batch has no axis for the heads
    mask_of_heads = mask if mask is None or mask.ndim <= 2 else array_namespace(mask).expand_dims(mask, axis=-3)
    weights = softmax(scaled_scores, mask_of_heads, call.sinks, call.temperature)  # (..., heads, n_q, n_k)
    dropped = None if call.keep is None else drop_weights(weights, call.keep, call.dropout)  # (..., heads, n_q, n_k)
    used = weights if dropped is None else dropped  # (..., heads, n_q, n_k)
    return Attended(raw, scaled_scores, mask, weights, dropped, context(used, values))


def _in_wider_type(scaled_scores: Array, queries: Array) -> Array:
    """Return scaled scores in the queries' type if that type is wider.

    Under torch's autocast a product is narrower than its factors.
    """
    xp = array_namespace(queries)
    narrower = xp.finfo(scaled_scores.dtype).bits < xp.finfo(queries.dtype).bits
    return xp.astype(scaled_scores, queries.dtype) if narrower else scaled_scores


def visible_keys(call: Call) -> Array | None:
    """Return the mask of a call with causality and window in it → (..., n_q, n_k); None if every query sees every key."""
    if not call.causal and call.window is None:
        return call.mask
    return visibility_mask(
        call.query_positions, call.key_positions, causal=call.causal, window=call.window, mask=call.mask
    )


def select_call(call: Call, heads: list[int] | None = None, rows: list[int] | None = None) -> Call:
    """Return the same call for some query heads and query rows only: nothing else is computed.

    `heads` and `rows` are indices of the call's heads and queries. A causal mask stays right for rows in any order.
    """
    call = call if heads is None else _heads_of_call(call, heads)
    return call if rows is None else _rows_of_call(call, rows)


def _heads_of_call(call: Call, heads: list[int]) -> Call:
    """Return the call for some query heads, each with its own key/value head."""
    xp, device = array_namespace(call.queries), device_of(call.queries)
    n_heads = call.queries.shape[-3]
    group = n_heads // call.keys.shape[-3]
    index = xp.asarray(heads, device=device)
    kv_index = xp.asarray([head // group for head in heads], device=device)

    def select(array: Array | None) -> Array | None:
        """Return the chosen heads of an array (..., heads, n_q, n_k); do not change an array that all heads share."""
        has_heads = array is not None and array.ndim >= 3 and array.shape[-3] == n_heads
        return xp.take(array, index, axis=-3) if has_heads else array

    sinks = call.sinks
    return replace(
        call,
        queries=xp.take(call.queries, index, axis=-3),  # (..., chosen, n_q, d_k)
        keys=xp.take(call.keys, kv_index, axis=-3),  # (..., chosen, n_k, d_k)
        values=xp.take(call.values, kv_index, axis=-3),  # (..., chosen, n_k, d_v)
        bias=select(call.bias),
        keep=select(call.keep),
        sinks=None if sinks is None else xp.take(sinks, index, axis=0 if sinks.ndim == 1 else -2),
    )


def _rows_of_call(call: Call, rows: list[int]) -> Call:
    """Return the call for some queries. Its mask holds causality and window, since rows need not be neighbours."""
    xp = array_namespace(call.queries)
    index = xp.asarray(rows, device=device_of(call.queries))

    def select(array: Array | None) -> Array | None:
        """Return the chosen rows of an array (..., n_q, n_k); do not change an array that all queries share."""
        has_rows = array is not None and array.shape[-2] == call.n_q
        return xp.take(array, index, axis=-2) if has_rows else array

    positions, keys = call.query_positions[index], call.key_positions  # (rows,), (n_k,)
    sinks = call.sinks
    return replace(
        call,
        queries=xp.take(call.queries, index, axis=-2),  # (..., heads, rows, d_k)
        bias=select(call.bias),
        keep=select(call.keep),
        mask=visibility_mask(positions, keys, causal=call.causal, window=call.window, mask=select(call.mask)),
        sinks=sinks if sinks is None or sinks.ndim == 1 else xp.take(sinks, index, axis=-1),  # (..., heads, rows)
        causal=False,
        window=None,
        offset=None,
    )
