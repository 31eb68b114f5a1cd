"""The fused kernels against the sweep on the CPU, on a CUDA device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from attnctl.blockwise import sweep, tiles
from tests.blockwise.test_blockwise import KINDS, close, make

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here"),
]

FUSED = ["full", "causal", "two-sided window", "soft cap, temperature", "sinks"]


def on_device(call):
    arrays = {name: getattr(call, name) for name in ("queries", "keys", "values", "sinks", "bias", "mask")}
    return replace(call, **{name: array.to("cuda") for name, array in arrays.items() if array is not None})


def compare(call, tolerance=1e-4, **wanted):
    moved = on_device(call)
    assert tiles.is_fusible(moved)
    wide = replace(call, **{name: getattr(call, name).float() for name in ("queries", "keys", "values")})
    expected, found = sweep.measure_rows(wide, **wanted), sweep.measure_rows(moved, **wanted)
    for name in expected._fields:
        one, other = getattr(expected, name), getattr(found, name)
        assert (one is None) == (other is None), name
        if one is not None:
            close(other, one, tolerance, floor=1e-2 if name in ("entropy", "spread") else 1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("kind", FUSED)
def test_every_fact_equals_the_sweep_on_the_cpu(kind, dtype):
    n = 2100
    call = make(n, 6, 2, d=64, strength=0.7, **KINDS[kind])
    call = replace(call, **{name: getattr(call, name).to(dtype) for name in ("queries", "keys", "values")})
    edges, row_edges = [0, 1, 7, n // 4, n // 2, n - 3, n], [0, n // 3, n - 10, n]
    marks = np.arange(n) % np.array([[n], [7], [2]]) == 0
    for wanted in (
        {"key_edges": edges, "row_edges": row_edges, "marks": marks, "rows": True},
        {"key_edges": edges, "row_edges": row_edges, "peaks": True},
        {"key_edges": edges, "row_edges": row_edges},
        {"rows": True},
        {},
    ):
        compare(call, **wanted)


@pytest.mark.parametrize("d", [16, 40, 80, 128, 256])
def test_sizes_of_heads(d):
    call = make(2100, 2, 1, d=d, causal=True, strength=0.5)
    compare(
        replace(call, queries=call.queries.half(), keys=call.keys.half()),
        key_edges=[0, 100, 2100],
        row_edges=[0, 2100],
        rows=True,
    )


def test_more_keys_than_queries():
    call = make(300, n_k=20_000, d=32, causal=True, strength=0.7)
    compare(
        replace(call, queries=call.queries.half(), keys=call.keys.half()),
        key_edges=[0, 9_000, 20_000],
        row_edges=[0, 300],
        rows=True,
    )


def test_a_call_with_a_bias_or_a_mask_goes_the_other_way():
    for kind in ("bias", "padding"):
        assert not tiles.is_fusible(on_device(make(2100, 2, 1, **KINDS[kind])))
