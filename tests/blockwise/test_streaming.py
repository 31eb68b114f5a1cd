"""What a head's output is where it sees only the first tokens and the last, against the whole matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attnctl import attention
from attnctl.arrays import as_numpy
from attnctl.layer import LayerAttention
from attnctl.layer.computed import ComputedLayer
from attnctl.readings.head_statistics import STREAMING, head_statistics
from attnctl.tokens import Token
from tests.blockwise.test_blockwise import KINDS, make

FIRST, LAST = 3, 20


def by_hand(call: Any) -> np.ndarray:
    """Scores with every other key hidden, one matrix for all rows; the rows that lose something."""
    steps = attention.run_call(call)
    n = call.n_q
    at = np.arange(n)
    kept = (at[None] < FIRST) | (at[None] > at[:, None] - LAST)
    values = as_numpy(attention.share_heads(call.values, call.queries.shape[0]))
    weights = as_numpy(steps.weights)
    lost = np.where(kept, 0, weights).sum(-1, keepdims=True)
    after = np.where(kept, weights, 0) / np.maximum(1 - lost, 1e-30) @ values
    before = weights @ values
    size = np.linalg.norm(before, axis=-1)
    change = np.linalg.norm(after - before, axis=-1) / np.where(size == 0, 1, size)
    return np.asarray(change[:, FIRST + LAST :])


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_renormalised_rest_of_each_row(kind: str) -> None:
    call = make(600, heads=4, kv_heads=2, library=np, **KINDS[kind] | {"causal": True})
    layer = ComputedLayer.of_call(0, call)
    wanted = by_hand(call)
    assert wanted.max() > 0.05
    for found in (layer.streaming_change(FIRST, LAST), LayerAttention.streaming_change(layer, FIRST, LAST)):
        np.testing.assert_allclose(found, wanted, rtol=1e-2, atol=1e-4)  # what is left may be a thousandth of a row
    some = layer.select_heads([3, 1]).streaming_change(FIRST, LAST)
    np.testing.assert_allclose(some, wanted[[3, 1]], rtol=1e-2, atol=1e-4)


def test_nothing_changes_where_nothing_is_dropped() -> None:
    layer = ComputedLayer.of_call(0, make(23, heads=4, kv_heads=2, library=np, causal=True))
    assert np.asarray(layer.streaming_change(FIRST, LAST)).shape == (4, 0)


def statistics(n: int, **how: Any) -> Any:
    call = make(n, heads=4, kv_heads=2, library=np, **how)
    return head_statistics(ComputedLayer.of_call(0, call), [Token(str(at), at) for at in range(n)])


def test_the_statistics_of_heads() -> None:
    n = sum(STREAMING) + 40
    call = make(n, heads=4, kv_heads=2, library=np, causal=True)
    change = ComputedLayer.of_call(0, call).streaming_change(*STREAMING)
    weights = as_numpy(attention.run_call(call).weights)
    for head in statistics(n, causal=True):
        assert head["streaming"] == pytest.approx(float(np.asarray(change)[head.head].mean()), rel=1e-5)
        masses = {-k: float(np.diagonal(weights[head.head], -k).mean()) for k in range(6)}
        best = max(masses, key=lambda offset: masses[offset])
        assert (head["offset"], head["at_offset"]) == (best, pytest.approx(masses[best], rel=1e-5))
    assert all(head["streaming"] is None for head in statistics(n))  # which see ahead: no cache streams them
    assert all(head["streaming"] is None for head in statistics(sum(STREAMING), causal=True))
