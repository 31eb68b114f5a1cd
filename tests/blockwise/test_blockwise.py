"""Statistics of a matrix that is never built, held to the matrix built in float64."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from attnctl import attention, blockwise
from attnctl.attention import Call
from attnctl.blockwise import links, matrix, rows, sweep, tiles
from attnctl.layer import LayerAttention
from attnctl.layer.computed import ComputedLayer, Forward, SweptLayer
from attnctl.readings.head_statistics import STREAMING, head_statistics
from attnctl.text.tokens import Token
from tests.tools.pretend_cuda import pretend_cuda

KINDS = {
    "full": {},
    "causal": {"causal": True},
    "window": {"causal": True, "window": 37},
    "two-sided window": {"window": 50},
    "soft cap": {"causal": True, "soft_cap": 2.0},
    "scale, temperature": {"scale": 0.4, "temperature": 1.7},
    "soft cap, temperature": {"soft_cap": 3.0, "temperature": 0.6},
    "bias": {"causal": True, "bias": True},
    "sinks": {"causal": True, "sinks": True},
    "padding": {"mask": True},
    "causal, padding": {"causal": True, "mask": True},  # the first rows see nothing
    "causal, padding, sinks, window": {"causal": True, "mask": True, "sinks": True, "window": 90},
    "bias and padding of keys, sinks of queries": {"causal": True, "bias": "keys", "mask": "keys", "sinks": "queries"},
}


def make(n=300, heads=4, kv_heads=2, d=16, n_k=None, seed=0, strength=1.5, library=torch, **kind):
    """A call whose caps, windows, sinks and biases bite; a bias and a mask of "keys" are one row for all queries."""
    rng = np.random.default_rng(seed)
    n_k = n_k or n
    q, k, v = (
        rng.standard_normal(shape).astype(np.float32) * strength
        for shape in ((heads, n, d), (kv_heads, n_k, d), (kv_heads, n_k, d))
    )
    if bias := kind.pop("bias", None):
        kind["bias"] = rng.standard_normal((heads, 1 if bias == "keys" else n, n_k)).astype(np.float32)
    if sinks := kind.pop("sinks", None):
        kind["sinks"] = rng.standard_normal((heads, n) if sinks == "queries" else heads).astype(np.float32) + 3
    if mask := kind.pop("mask", None):
        kind["mask"] = np.broadcast_to(np.arange(n_k) >= n_k // 5, (1 if mask == "keys" else n, n_k)).copy()
        kind["mask"][:, n // 2] = False
    arrays = {"queries": q, "keys": k, "values": v} | kind
    if library is torch:
        arrays = {name: torch.from_numpy(a) if isinstance(a, np.ndarray) else a for name, a in arrays.items()}
    return Call(**arrays)


def exact(call):
    """The weights in float64 by the ordinary path → (heads, n_q, n_k)."""

    def wide(array):
        array = array.numpy() if isinstance(array, torch.Tensor) else array
        return array.astype(np.float64) if isinstance(array, np.ndarray) and array.dtype == np.float32 else array

    return attention.run_call(
        replace(call, **{f: wide(getattr(call, f)) for f in ("queries", "keys", "values", "bias", "mask", "sinks")})
    )


def close(found, wanted, tolerance=1e-5, floor=1e-6):
    """Each number to `tolerance` of its own size; one smaller than `floor` to `tolerance` of that."""
    found, wanted = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    assert found.shape == wanted.shape
    assert np.array_equal(np.isfinite(found), np.isfinite(wanted))
    good = np.isfinite(wanted)
    error = np.abs(found[good] - wanted[good]) / np.maximum(np.abs(wanted[good]), floor)
    assert (error <= tolerance).all(), f"off by {error.max():.2g} at {wanted[good][error.argmax()]:.6g}"


def entropy_by_hand(weights):
    """The entropy of each row (…, n_k), nats; a weight of 0 has no term."""
    return -(weights * np.log(np.where(weights > 0, weights, 1))).sum(-1)


def pooled_by_hand(weights, rows, columns, pool):
    """The weights (heads, n_q, n_k) between neighbouring edges → (heads, rows, columns)."""
    spans = [(slice(*row), slice(*column)) for row in pairwise(rows) for column in pairwise(columns)]
    cells = [[pool(head[span]) for span in spans] for head in weights]
    return np.reshape(cells, (len(weights), len(rows) - 1, len(columns) - 1))


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def swept(call):
    """The layer of a call, whose answers are found a block at a time, also where it is short."""
    return SweptLayer(0, tuple(range(call.queries.shape[0])), Forward(call))


@pytest.mark.grid
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("heads", "kv_heads", "n"), [(4, 2, 300), (3, 1, 122)])
def test_every_fact_equals_the_matrix(kind, heads, kv_heads, n, monkeypatch):
    if n == 122:  # blocks so small that every bin, window and diagonal straddles their borders
        monkeypatch.setattr(sweep, "SHARED", sweep.BlockSize(24, 24 * 22))
        monkeypatch.setattr(matrix, "ROWS", 23)
    call = make(n, heads, kv_heads, **KINDS[kind])
    steps = exact(call)
    w = steps.weights
    edges, rows = [0, 1, 7, n // 4, n // 2, n - 3, n], [0, n // 3, n - 10, n]
    marks = np.stack([np.arange(n) == 0, np.arange(n) % 7 == 3])
    found = sweep.measure_rows(call, key_edges=edges, row_edges=rows, marks=marks, rows=True)
    built, weights = matrix.measure_matrix(call, edges, rows, marks)
    close(weights, w)
    facts_equal_the_matrix(built, call, steps, edges, rows, marks)
    facts_equal_the_matrix(found, call, steps, edges, rows, marks)
    factors = np.random.default_rng(5).random((heads, 2, n), np.float32)  # of each head its own
    for of_heads in (
        sweep.measure_rows(call, marks=factors, rows=True),
        matrix.measure_matrix(call, edges, rows, factors)[0],
    ):
        close(of_heads.marked, np.swapaxes(w @ np.swapaxes(factors.astype(float), -1, -2), -1, -2))

    peaks = sweep.measure_rows(call, key_edges=edges, row_edges=rows, peaks=True).pooled
    close(peaks, pooled_by_hand(w, rows, edges, np.max))
    for bins in (edges, [*range(0, n, 5), n]):  # of many widths, and of one width but for the last
        alone = sweep.measure_rows(call, key_edges=bins, row_edges=rows).pooled
        close(alone, pooled_by_hand(w, rows, bins, lambda cell: cell.sum(1).mean()))


def facts_equal_the_matrix(found, call, steps, edges, rows, marks):
    """Hold every fact of the rows of a call to its `steps`, the matrix in float64."""
    w, n = steps.weights, call.n_k
    close(found.pooled, pooled_by_hand(w, rows, edges, lambda cell: cell.sum(1).mean()))
    j, i = np.arange(n), np.arange(n)[:, None]
    total = w.sum(-1)
    safe = np.where(total == 0, 1, total)
    largest = max(1.0, float(np.abs(steps.scaled_scores).max()) / call.temperature)
    close(found.entropy, entropy_by_hand(w), floor=largest / 10)  # 1e-6 × the largest logit
    close(found.distance, (w * np.abs(i - j)).sum(-1) / safe)
    mean = (w @ j / safe)[..., None]
    close(found.spread, np.sqrt((w * (j - mean) ** 2).sum(-1) / safe))
    close(found.marked, np.swapaxes(w @ marks.T.astype(float), -1, -2))
    close(found.largest, w.max(-1))
    close(found.mass, total)
    visible = True if steps.mask is None else steps.mask
    close(found.max_logit, np.where(visible, steps.scaled_scores, -np.inf).max(-1))
    close(found.min_logit, np.where(visible, steps.scaled_scores, np.inf).min(-1))
    # logsumexp: with it, scaled scores give back every weight
    with np.errstate(over="ignore", invalid="ignore"):
        again = np.exp(steps.scaled_scores / call.temperature - found.logsumexp[..., None])
    close(np.where(w > 0, again, 0), w)


def test_both_ways_agree_where_one_takes_over_from_the_other():
    call = make(512, causal=True)
    one, other = ComputedLayer.of_call(0, call), swept(call)
    assert type(one) is ComputedLayer and isinstance(ComputedLayer.of_call(0, make(513)), SweptLayer)
    steps = exact(call)
    wanted = entropy_by_hand(steps.weights)
    largest = float(np.abs(steps.scaled_scores).max())
    for layer in (one, other):
        np.testing.assert_allclose(layer.statistics().entropy, wanted, rtol=0, atol=1e-6 * largest)


@pytest.mark.parametrize("library", [np, torch])
def test_more_keys_than_queries(library):
    call = make(50, n_k=400, library=library, causal=True)
    w = exact(call).weights
    found = sweep.measure_rows(call, key_edges=[0, 300, 400], row_edges=[0, 50], rows=True)
    close(found.pooled[:, 0], np.stack([w[..., :300].sum(-1).mean(-1), w[..., 300:].sum(-1).mean(-1)], -1))
    distance = np.abs(np.arange(350, 400)[:, None] - np.arange(400))
    close(found.distance, (w * distance).sum(-1))
    close(ComputedLayer.of_call(0, call).at_offset(-1), w[:, np.arange(50), np.arange(349, 399)])


def test_fused_kernels_are_for_long_calls_on_a_device(monkeypatch):
    monkeypatch.setattr(tiles, "has_triton", lambda: True)
    with pretend_cuda():
        for d, there in ((16, True), (40, True), (256, True), (264, False)):
            q, k = (torch.zeros(1, 2048, d, dtype=torch.bfloat16, device="cuda") for _ in range(2))
            call = Call(q, k, k, soft_cap=1.0)
            assert tiles.is_fusible(call) == there
            short, here = replace(call, queries=q[:, :2000]), replace(call, queries=torch.zeros(1, 2048, d))
            for other in (short, here, replace(call, bias=q), replace(call, mask=q), replace(call, queries=q.double())):
                assert not tiles.is_fusible(other)


def test_half_precision_is_widened():
    call = make(600, causal=True)
    half = replace(call, queries=call.queries.bfloat16(), keys=call.keys.bfloat16())
    wide = replace(call, queries=half.queries.float(), keys=half.keys.float())
    one, other = (sweep.measure_rows(c, rows=True) for c in (half, wide))
    assert np.array_equal(one.entropy, other.entropy)


def test_a_previous_token_head_stands_exactly_one_token_back():
    n = 900
    angles = np.arange(n)[:, None] * np.exp(-np.arange(16) / 2)[None, :]
    turn = lambda x: np.concatenate([np.cos(x), np.sin(x)], -1).astype(np.float32)[None]  # noqa: E731
    call = Call(turn(angles - np.exp(-np.arange(16) / 2)), turn(angles), turn(angles), scale=60.0, causal=True)
    w = exact(call).weights[0, 1:]
    found = sweep.measure_rows(call, rows=True)
    gap = np.arange(1, n)[:, None] - np.arange(n)
    close(found.distance[0, 1:], (w * gap).sum(-1))
    assert 0.99 < found.distance[0, 1:].mean() < 1.5


@pytest.mark.parametrize(("n", "most"), [(1, 256), (256, 256), (257, 256), (1000, 256), (10, 3)])
def test_edges_cover_the_text_evenly(n, most):
    edges = blockwise.even_edges(n, most)
    widths = np.diff(edges)
    assert edges[0] == 0 and edges[-1] == n and len(widths) <= most
    assert (widths[:-1] == widths[0]).all() and 0 < widths[-1] <= widths[0]


def test_the_rank_of_a_grid():
    assert blockwise.effective_rank(np.eye(8)) == pytest.approx(8)
    assert blockwise.effective_rank(np.ones((3, 8, 8))) == pytest.approx(1, abs=1e-6)
    assert blockwise.effective_rank(np.zeros((4, 4))) == 1


# --- single weights, links, rows ---------------------------------------------------------------------------------


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("layer_of", [swept, lambda call: ComputedLayer.of_call(0, call)])  # by products, and built
@pytest.mark.parametrize("kind", KINDS)
def test_weights_at_an_offset_and_on_copies_of_a_token_need_no_row(kind, layer_of, half, monkeypatch):
    n = 150
    if half:  # a few pairs of copies at a time
        monkeypatch.setattr(rows, "COPIES", 40)
    call = make(n, **KINDS[kind])
    if half:
        call = replace(call, queries=call.queries.bfloat16(), keys=call.keys.bfloat16())
    ids = np.random.default_rng(1).integers(0, 40, n)
    steps = exact(replace(call, queries=call.queries.float(), keys=call.keys.float()))
    layer = layer_of(call)
    visible = True if steps.mask is None else np.asarray(steps.mask)
    logits = np.where(visible, steps.scaled_scores, -np.inf)[range(4), [149, 3, 75, 80]]  # a query of each head
    close(layer.logits_of_heads([149, 3, 75, 80]), logits, tolerance=1e-2 if half else 1e-5, floor=1.0)
    for offset in (0, -1, 1, -5):
        found = layer.at_offset(offset)
        there = np.arange(max(0, -offset), min(n, n - offset))
        close(found[:, there], steps.weights[:, there, there + offset])
        assert np.isnan(np.delete(found, there, axis=1)).all()
    mask = np.ones((n, n), bool) if steps.mask is None else np.asarray(steps.mask)
    for shift in (0, 1):  # 1: on what followed them
        wanted = np.full((4, n), np.nan)
        for i in range(n):
            js = [j + shift for j in range(n) if j != i and ids[j] == ids[i] and j + shift < n and j + shift != i]
            js = [j for j in js if mask[i, j]]
            if js:
                wanted[:, i] = steps.weights[:, i, js].sum(-1)
        close(layer.on_copies(ids, shift), wanted)


@pytest.mark.parametrize("library", [np, torch])
@pytest.mark.parametrize("kind", KINDS)
def test_context_chosen_rows_and_strongest_links_without_the_matrix(kind, library, monkeypatch):
    call = make(300, library=library, **KINDS[kind])
    steps = exact(call)
    w = steps.weights
    monkeypatch.setattr(rows, "MEMORY", 1 << 20)
    context = rows.fused_context(call)
    assert type(context) is type(call.queries)
    close(context, steps.context, floor=1)
    monkeypatch.setattr(links, "ELEMENTS", 1 << 14)  # blocks of at most 54 rows of a head
    monkeypatch.setattr(links, "ROWS", 128)
    keys, strongest = links.top_links(call, 25, sweep.measure_rows(call).logsumexp)
    close(strongest, -np.sort(-w, axis=-1)[..., :25])
    close(np.where(np.asarray(strongest) > 0, np.take_along_axis(w, np.asarray(keys), -1), 0), strongest)
    monkeypatch.setattr(rows, "MEMORY", 1 << 16)  # of 2 rows
    close(rows.exact_rows(call, [299, 0, 150, 7]), w[:, [299, 0, 150, 7]])


def test_context_of_queries_that_do_not_begin_with_the_keys():
    whole = make(300, **KINDS["causal"])
    for offset in (0, 5):  # as many queries as keys, that see `offset` keys more
        call = replace(whole, offset=offset)
        close(rows.fused_context(call), exact(call).context, floor=1)


# --- the context of the first tokens and the last alone ----------------------------------------------------------

FIRST, LAST = 3, 20


def change_by_hand(call):
    """How far the context of each row that loses something moves where every other key is hidden; one matrix for all."""
    steps = exact(call)
    places = np.arange(call.n_q)
    kept = (places[None] < FIRST) | (places[None] > places[:, None] - LAST)
    streamed = kept if steps.mask is None else kept & np.asarray(steps.mask)
    sinks = None if call.sinks is None else np.asarray(call.sinks, float)
    weights = attention.softmax(steps.scaled_scores, streamed, sinks, call.temperature)  # (heads, n_q, n_k)
    after = weights @ attention.share_heads(np.asarray(call.values, float), call.queries.shape[0])
    size = np.linalg.norm(steps.context, axis=-1)
    change = np.linalg.norm(after - steps.context, axis=-1) / np.where(size == 0, 1, size)
    return change[:, FIRST + LAST :]


@pytest.mark.parametrize("n", [600, 300])  # by keys near each query, and by weights that are built
@pytest.mark.parametrize("library", [np, torch])
@pytest.mark.parametrize("kind", KINDS)
def test_what_streaming_changes_is_the_renormalised_rest_of_each_row(kind, library, n):
    layer = ComputedLayer.of_call(0, make(n, library=library, **KINDS[kind] | {"causal": True}))
    wanted = change_by_hand(make(n, library=np, **KINDS[kind] | {"causal": True}))
    assert wanted.max() > 0.05
    for change, heads, loss in (
        (layer.streaming_change(FIRST, LAST), [0, 1, 2, 3], 1e-4),
        # the sum of a stored row tells of its sink to 1e-5
        (LayerAttention.streaming_change(layer, FIRST, LAST), [0, 1, 2, 3], 1e-2 if "sinks" in kind else 1e-4),
        (layer.select_heads([3, 1]).streaming_change(FIRST, LAST), [3, 1], 1e-4),
    ):
        np.testing.assert_allclose(change, wanted[heads], rtol=loss, atol=1e-5)
    short = ComputedLayer.of_call(0, make(FIRST + LAST, library=np, causal=True))
    assert np.asarray(short.streaming_change(FIRST, LAST)).shape == (4, 0)


@pytest.mark.parametrize("library", [np, torch])
def test_the_rest_of_a_row_that_looks_far_away_is_not_lost_in_its_sum(library):
    call = make(120, library=library, strength=0.2, causal=True)
    far = np.zeros((120, 120), np.float32)  # row 60 gives all but 1e-9, and row 90 all but 1e-60, to key 30
    far[60, 30], far[90, 30] = 22, 140
    for of_call in (call, replace(call, bias=far if library is np else torch.from_numpy(far))):
        wanted = change_by_hand(of_call)
        layer = ComputedLayer.of_call(0, of_call)
        np.testing.assert_allclose(layer.streaming_change(FIRST, LAST), wanted, rtol=1e-4, atol=1e-5)
        stored = np.array(LayerAttention.streaming_change(layer, FIRST, LAST))
        stored[:, 90 - FIRST - LAST] = wanted[:, 90 - FIRST - LAST]  # of this rest the weights hold nothing
        np.testing.assert_allclose(stored, wanted, rtol=1e-4, atol=1e-5)


def test_statistics_tell_of_streaming_and_of_the_offset():
    def layer_and_statistics(n, **how):
        layer = ComputedLayer.of_call(0, make(n, library=np, **how))
        return layer, head_statistics(layer, [Token(str(at), at) for at in range(n)])

    n = sum(STREAMING) + 40
    layer, found = layer_and_statistics(n, causal=True)
    change, weights = layer.streaming_change(*STREAMING), layer.all_weights()
    for head in found:
        assert head["streaming"] == pytest.approx(float(np.asarray(change)[head.head].mean()), rel=1e-5)
        masses = {-k: float(np.diagonal(weights[head.head], -k).mean()) for k in range(6)}
        best = max(masses, key=lambda offset: masses[offset])
        assert (head["offset"], head["at_offset"]) == (best, pytest.approx(masses[best], rel=1e-5))
    # those that see ahead no cache streams; and a text that fits into the cache loses nothing
    for _, none in (layer_and_statistics(n), layer_and_statistics(sum(STREAMING), causal=True)):
        assert all(head["streaming"] is None for head in none)


def test_of_equal_logits_the_first_is_named():
    call = make(60, d=16, strength=0.1)
    for place, factor in ((40, 1.0000005), (11, 1.0)):  # the later ones are larger by rounding
        call.queries[:, place] = call.keys[:, place] = 3 * factor
    (head, *_) = head_statistics(ComputedLayer.of_call(0, call), [Token(str(place), place) for place in range(60)])
    assert (head["max_logit_query"], head["max_logit_key"]) == (11, 11)


# --- long --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [{}, {"causal": True}, {"window": 900}], ids=str)
def test_random_rows_of_a_long_text_in_float64(kind):
    n = sweep.LONG + 100
    call = make(n, heads=2, kv_heads=1, d=32, **kind)
    assert sweep.block_size(call) == sweep.LOCAL
    found = sweep.measure_rows(call, rows=True, marks=[np.arange(n) == 0])
    some = sorted(np.random.default_rng(3).choice(n, 20, replace=False).tolist())
    steps = exact(attention.select_call(call, rows=some))
    w, j = steps.weights, np.arange(n)
    close(found.entropy[:, some], -(w * np.log(np.where(w > 0, w, 1))).sum(-1))
    close(found.marked[:, 0, some], w[..., 0])
    close(found.distance[:, some], (w * np.abs(np.array(some)[:, None] - j)).sum(-1))
    close(found.spread[:, some], np.sqrt((w * (j - (w @ j)[..., None]) ** 2).sum(-1)))
    close(found.min_logit[:, some], np.where(w > 0, steps.scaled_scores, np.inf).min(-1))


LIMITED = """
import resource, sys, torch
from attnctl import attention, blockwise
from attnctl.blockwise import rows, sweep
torch.set_num_threads(1)
n, heads = 8192, 2
q = torch.randn(heads, n, 16, generator=torch.Generator().manual_seed(0))
call = attention.Call(q, q, q, causal=True)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
cells = blockwise.even_parts(0, n, 128)
sweep.pool_between_parts(call, cells, cells)
rows.fused_context(call)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def test_no_matrix_is_ever_held():
    ran = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, check=True)
    matrix = 8192 * 8192 * 4  # one head's weights; eager holds several for every head
    assert int(ran.stdout) < matrix / 4


@pytest.mark.parametrize("strength", [1e9, 1e15, 1e19])
def test_no_share_is_above_one(strength):
    call = make(strength=strength, causal=True)
    for layer in (ComputedLayer.of_call(0, call), swept(call)):
        with np.errstate(all="raise", under="ignore", invalid="ignore"):
            own = layer.at_offset(0)
            copies = layer.on_copies([at % 3 for at in range(300)])
        assert np.nanmax(own) <= 1 and np.nanmax(copies) <= 1
