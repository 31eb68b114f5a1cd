"""A layer answers alike whether its weights are computed from queries and keys or stored."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from attnctl import attention
from attnctl.blockwise import even_parts
from attnctl.errors import AttnctlError
from attnctl.layer import LayerAttention, LayerTrace, RowsOnDemand, layer_of_weights
from attnctl.layer.computed import ComputedLayer
from attnctl.models.huggingface.attention_call import mask_and_bias
from attnctl.readings.head_statistics import head_statistics
from attnctl.runtime.arrays import as_numpy
from attnctl.text.tokens import Token
from tests.blockwise.test_blockwise import KINDS, close, make

N = 530  # long enough for a sweep


class Rows:
    """Weights that answer `[head, first:last]` and `[[heads]]` alone, as from a file."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.shape = array, array.shape

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, list):
            return Rows(self.array[at])
        head, rows = at
        assert isinstance(head, int) and isinstance(rows, slice)
        return self.array[head, rows]


def layers(kind: str, n: int = N) -> list[LayerAttention]:
    """The same layer computed, stored in memory, and stored elsewhere."""
    call = make(n, heads=4, kv_heads=2, library=np, **KINDS[kind])
    steps = attention.run_call(call)
    mask = None if steps.mask is None else np.broadcast_to(as_numpy(steps.mask), (n, n))
    stored = replace(layer_of_weights(3, as_numpy(steps.weights), mask), kv_heads=(0, 0, 1, 1))
    return [ComputedLayer.of_call(3, call), stored, replace(stored, weights=Rows(stored.weights))]


def shown(layer: LayerAttention, rows: Any, columns: Any) -> Any:
    parts = layer.visible_parts(rows, columns)
    return np.ones((len(rows), len(columns)), bool) if parts is None else parts


PARTS = [((0, 100),), ((150, 400),)], [((0, 1), (90, 200)), ((1, 90),)]
COLUMNS = [((0, 53),), ((53, 107),), ((100, 101),), ((400, 401),), ((265, 266),)]
QUESTIONS = {
    "rows": lambda layer: layer.rows_of([5, 0, 400]),
    "block": lambda layer: layer.block(100, 110, 3, 90),
    "cells": lambda layer: layer.weights_at(np.array([[5, 400], [7, 0]]), np.array([[0, 5, 2], [7, 3, 1]])),
    "pooled": lambda layer: layer.pooled(*PARTS, "mean"),
    "largest": lambda layer: layer.pooled(*PARTS, "max"),
    "mass": lambda layer: layer.pooled(*PARTS, "mass"),
    "a grid": lambda layer: layer.pooled(*[even_parts(0, N, 13)] * 2),
    "a row": lambda layer: layer.pooled([((150, 151),)], [((0, 1), (90, 200))]),
    "a column": lambda layer: layer.pooled([((150, 400),)], [((120, 121),)]),
    "offset": lambda layer: layer.at_offset(-1),
    "duplicates": lambda layer: layer.on_copies([at % 9 for at in range(N)]),
    "copies": lambda layer: layer.on_copies([at % 9 for at in range(N)], 1),
    "no copies": lambda layer: layer.on_copies(range(N)),
    "links": lambda layer: layer.links(4)[1],
    "weights": lambda layer: layer.all_weights(),
    "some heads": lambda layer: layer.select_heads([3, 1]).rows_of([200]),
    "visible counts": lambda layer: layer.visible_counts(),
    "visible parts": lambda layer: shown(layer, PARTS[0], COLUMNS),
    "visible row": lambda layer: shown(layer, [((120, 121),)], COLUMNS),
    "visible cells": lambda layer: shown(layer, [((120, 121),)], COLUMNS[2:]),
}


@pytest.mark.grid
@pytest.mark.parametrize("kind", KINDS)
def test_every_question_is_answered_alike(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnctl.layer.MEMORY", 1 << 20)  # several blocks
    computed, *others = layers(kind)
    for ask in QUESTIONS.values():
        wanted = ask(computed)
        for layer in others:
            close(ask(layer), wanted, tolerance=1e-4)


def test_the_shares_of_the_work_come_to_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnctl.layer.MEMORY", 1 << 20)  # several blocks
    for layer in layers("causal"):
        shares: list[float] = []
        layer.tick = shares.append
        layer.pooled(PARTS[0], COLUMNS[:2])
        assert len(shares) > 1 and sum(shares) == pytest.approx(1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("long", [0, 1000])  # tokens from which no more is computed than was asked for
@pytest.mark.parametrize("rows", [None, [38, 20]])
def test_a_record_holds_every_step(
    kind: str, long: int, rows: list[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnctl.layer.computed.LONG", long)
    layer, heads = layers(kind, 40)[0], [3, 1]
    call = layer.forward.call
    steps, record = attention.run_call(call), layer.select_heads(heads).record(rows)
    at = np.ix_(heads, rows or range(40))
    for name in ("scores", "scaled_scores", "weights", "context"):
        close(getattr(record, name), getattr(steps, name)[at], tolerance=1e-4)
    np.testing.assert_array_equal(record.keys, call.keys[[1, 0]])
    wanted = {
        "mask": None if steps.mask is None else np.broadcast_to(steps.mask, (40, 40))[rows or range(40)],
        "bias": None if call.bias is None else np.broadcast_to(call.bias, steps.scores.shape)[at],
        "sink_weights": None if call.sinks is None else 1 - steps.weights[at].sum(-1),
    }
    for name, array in wanted.items():
        found = getattr(record, name)
        assert (found is None) == (array is None), name
        if array is not None:
            np.testing.assert_allclose(found, array, atol=1e-6)


@pytest.mark.parametrize("kind", ["causal", "sinks", "padding"])
def test_statistics_are_alike(kind: str) -> None:
    marks = np.stack([np.arange(N) == 0, np.arange(N) % 7 == 3])
    one, *others = (layer.statistics(marks, 16) for layer in layers(kind))
    for other in others:
        for name in ("entropy", "distance", "spread", "marked", "pooled"):
            close(getattr(other, name), getattr(one, name), tolerance=1e-3, floor=1e-3)


@pytest.mark.grid
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [40, N])  # built, and swept
def test_the_extreme_logits_are_those_of_the_scaled_scores(kind: str, n: int) -> None:
    layer = layers(kind, n)[0]
    steps = attention.run_call(layer.forward.call)
    visible = np.ones((n, n), bool) if steps.mask is None else steps.mask
    padding = np.broadcast_to(~visible.any(0), (n, n)).T  # rows of tokens that no query sees
    expected = np.where(visible & ~padding, steps.scaled_scores, -np.inf)
    trace = replace(layer.record(), parameters={})
    for some in (layer.select_heads([3, 1]), trace.select_heads([3, 1])):
        for head in head_statistics(some, [Token(str(at), at) for at in range(n)]):
            logits = expected[head.head]
            place = np.unravel_index(logits.argmax(), logits.shape)
            assert (head["max_logit_query"], head["max_logit_key"]) == place
            assert head["max_logit"] == pytest.approx(logits.max(), rel=1e-5)
            assert head["min_logit"] == pytest.approx(logits[logits > -np.inf].min(), rel=1e-5)
    for other in (layer.reweighted(np.ones((4, n), np.float32)), layers(kind, n)[1]):  # no softmax of known scores
        assert head_statistics(other, [Token(str(at), at) for at in range(n)])[0]["max_logit"] is None


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("n", [40, N])  # built, and swept
def test_keys_that_a_mask_hides_from_one_head_have_no_logit(dtype: str, n: int) -> None:
    """A mask that differs from head to head becomes a bias of the lowest numbers of its type."""
    q, k, v = torch.randn(3, 2, n, 8, generator=torch.Generator().manual_seed(0)).to(getattr(torch, dtype))
    shown = torch.ones(1, 2, n, n, dtype=torch.bool).tril()
    shown[0, 1, :, n // 2 :] = False
    mask, bias = mask_and_bias(shown, n, n, q.dtype)
    call = attention.Call(q, k, v, mask=mask[0], bias=bias[0], temperature=0.1)
    logits = (q.float() @ k.float().mT) * 8**-0.5
    for head in head_statistics(ComputedLayer.of_call(0, call), [Token(str(at), at) for at in range(n)]):
        seen = logits[head.head][shown[0, head.head]]
        assert head["max_logit"] == pytest.approx(float(seen.max()), rel=1e-2)
        assert head["min_logit"] == pytest.approx(float(seen.min()), rel=1e-2)


@pytest.mark.parametrize("kind", ["full", "causal", "sinks", "bias", "bias and padding of keys, sinks of queries"])
@pytest.mark.parametrize("n", [40, N])  # built, and swept
def test_other_weights_over_the_same_keys_are_alike(kind: str, n: int) -> None:
    factors = np.random.default_rng(0).random((4, n)).astype(np.float32) + 0.1
    computed, stored, elsewhere = layers(kind, n)
    rows, every = [n - 1, n - 2, n // 2], np.arange(n)[None]
    for change in (lambda layer: layer.without_keys([0, 2]), lambda layer: layer.reweighted(factors)):
        wanted = change(computed)
        for layer in (stored, elsewhere):
            changed = change(layer)
            close(changed.rows_of(rows), wanted.rows_of(rows), tolerance=1e-4)
            close(changed.all_weights(), wanted.all_weights(), tolerance=1e-4)
            np.testing.assert_array_equal(changed.visible_at(every, every), wanted.visible_at(every, every))
        sums = wanted.rows_of(rows).sum(-1)
        close(sums, np.ones_like(sums), tolerance=1e-5)
    assert isinstance(elsewhere.reweighted(factors).stored, RowsOnDemand)


def test_a_layer_without_some_keys_answers_as_the_columns_that_are_left() -> None:
    kept = [at for at in range(N) if at not in (0, 7, 300)]
    rows, columns = [((0, 100),), ((150, 400),)], [((0, 1), (90, 200)), ((250, 480),)]
    queries, keys = np.array([[5, 400]]), np.array([[0, 5, 299]])
    swept, stored, elsewhere = layers("causal")
    direct = layer_of_weights(3, stored.weights[..., kept], stored.mask[:, kept])
    for layer in (swept.select_keys(kept), stored.select_keys(kept), elsewhere.select_keys(kept)):
        assert layer.n_k == len(kept)
        for how in ("mean", "max", "mass"):
            close(layer.pooled(rows, columns, how), direct.pooled(rows, columns, how), tolerance=1e-4)
        np.testing.assert_array_equal(layer.visible_parts(rows[:1], columns), direct.visible_parts(rows[:1], columns))
        np.testing.assert_array_equal(layer.visible_at(queries, keys), direct.visible_at(queries, keys))
        close(layer.weights_at(queries, keys), direct.weights_at(queries, keys), tolerance=1e-4)
        close(layer.links(3)[1][:, 300:], direct.links(3)[1][:, 300:], tolerance=1e-4)
        close(layer.all_weights(), direct.all_weights(), tolerance=1e-4)
        close(layer.record([7]).weights, direct.rows_of([7]), tolerance=1e-4)
        np.testing.assert_array_equal(layer.record([7]).mask, direct.mask[[7]])
        assert layer.select_heads([1]).block(1, 3, 0, 2).shape == (1, 2, 2)
    with pytest.raises(AttnctlError, match="statistics need every key, and layer 3 lacks some"):
        swept.select_keys(kept).statistics()


def test_some_rows_are_found_by_their_queries() -> None:
    _, *whole = layers("causal")
    queries, keys, held = np.array([[400], [7]]), np.array([[300, 3], [5, 2]]), (5, 7, 400)
    for layer in whole:
        assert isinstance(layer, LayerTrace) and layer.mask is not None
        some = layer.rows_of(held)
        weights = some if isinstance(layer.weights, np.ndarray) else Rows(some)
        part = replace(layer, weights=weights, mask=layer.mask[list(held)], rows=held)
        np.testing.assert_array_equal(part.weights_at(queries, keys), layer.weights_at(queries, keys))
        np.testing.assert_array_equal(part.visible_at(queries, keys), layer.visible_at(queries, keys))
        cell = [((400, 401),)], [((3, 4),)]
        np.testing.assert_array_equal(part.pooled(*cell), layer.pooled(*cell))
        np.testing.assert_array_equal(part.visible_parts(*cell), layer.visible_parts(*cell))
        assert part.reweighted(np.ones((4, N))).n_k == N
        for ask in (part.weights_at, part.visible_at):
            with pytest.raises(AttnctlError, match="query 6 is not in this trace: it holds 5, 7, 400"):
                ask(np.array([[6]]), np.array([[0]]))
        with pytest.raises(AttnctlError, match="counts of keys need every query"):
            part.visible_counts()


def test_what_is_not_there_is_named() -> None:
    stored = LayerTrace(2, (0,), (0,), weights=np.eye(3, dtype=np.float32)[None], rows=(1, 4, 5))
    assert stored.rows_of([4]).shape == (1, 1, 3)
    with pytest.raises(AttnctlError, match="query 0 is not in this trace: it holds 1, 4, 5"):
        stored.rows_of([0])
    with pytest.raises(AttnctlError, match="head 1 of layer 2 is not there: it has 0"):
        stored.select_heads([1])
    with pytest.raises(AttnctlError, match="need every query"):
        stored.links(2)
