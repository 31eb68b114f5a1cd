"""The arrays of one call by their names in a trace, for the heads and query rows that were chosen."""

from __future__ import annotations

import numpy as np

from attnctl import attention
from attnctl.arrays import Floats, as_numpy
from attnctl.attention import Array, Attended, Call
from attnctl.layer import PER_ROW


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
