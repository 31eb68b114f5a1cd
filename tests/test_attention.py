"""The mathematics, held to independent references, to published figures, and to what must always be true."""

from __future__ import annotations

import array_api_strict
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from attnctl import attention as a
from tests.conftest import SAMPLES

JOURNEY = load_file(SAMPLES / "journey.safetensors")
X = JOURNEY["embedding"]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def qkv(heads: int = 4, kv_heads: int = 4, n: int = 7, m: int = 7, d: int = 8) -> tuple[np.ndarray, ...]:
    return normal(heads, n, d, seed=1), normal(kv_heads, m, d, seed=2), normal(kv_heads, m, d, seed=3)


# --- published figures -------------------------------------------------------------------------------------------


def test_journey_without_weights() -> None:
    steps = a.attend(X[None], X[None], X[None], scale=1.0)
    np.testing.assert_allclose(steps.scores[0, 1], [0.9544, 1.4950, 1.4754, 0.8434, 0.7070, 1.0865], atol=5e-5)
    np.testing.assert_allclose(steps.weights[0, 1], [0.1385, 0.2379, 0.2333, 0.1240, 0.1082, 0.1581], atol=5e-5)
    contexts = [
        [0.4421, 0.5931, 0.5790],
        [0.4419, 0.6515, 0.5683],
        [0.4431, 0.6496, 0.5671],
        [0.4304, 0.6298, 0.5510],
        [0.4671, 0.5910, 0.5266],
        [0.4177, 0.6503, 0.5645],
    ]
    np.testing.assert_allclose(steps.context[0], contexts, atol=5e-5)


def test_journey_with_weights() -> None:
    torch.manual_seed(123)
    for name in ("W_Q", "W_K", "W_V"):  # the sample is what the book draws
        np.testing.assert_array_equal(JOURNEY[name], torch.rand(3, 2).numpy())
    q, k, v = (a.project_heads(X, JOURNEY[name][None]) for name in ("W_Q", "W_K", "W_V"))
    steps = a.attend(q, k, v)
    np.testing.assert_allclose(q[0, 1], [0.4306, 1.4551], atol=5e-5)
    np.testing.assert_allclose(steps.scores[0, 1], [1.2705, 1.8524, 1.8111, 1.0795, 0.5577, 1.5440], atol=5e-5)
    np.testing.assert_allclose(steps.weights[0, 1], [0.1500, 0.2264, 0.2199, 0.1311, 0.0906, 0.1820], atol=5e-5)
    contexts = [[0.2996, 0.8053], [0.3061, 0.8210], [0.3058, 0.8203], [0.2948, 0.7939], [0.2927, 0.7891], [0.2990, 0.8040]]  # fmt: skip
    np.testing.assert_allclose(steps.context[0], contexts, atol=5e-5)


@pytest.mark.parametrize(
    ("scores", "weights"),
    [([1, 1.1], [0.475, 0.525]), ([10, 11], [0.269, 0.731]), ([100, 110], [0.000045, 0.999955])],
)
def test_softmax_of_the_lessons(scores: list[float], weights: list[float]) -> None:
    np.testing.assert_allclose(a.softmax(np.asarray(scores, np.float32)), weights, atol=5e-4, rtol=2e-2)


def test_small_sums_of_the_lessons() -> None:
    value = np.asarray([[[6.2, 1.4, 7.9]]])
    np.testing.assert_allclose(a.context(np.asarray([[[0.27]]]), value)[0, 0], [1.67, 0.378, 2.13], atol=5e-3)
    w_q = np.asarray([[[0.3, -0.1], [-0.2, 0.7], [0.4, 0.2]]])
    # a well-known lesson prints [0.30, 0.61] here
    np.testing.assert_allclose(a.project_heads(np.asarray([[0.2, 0.8, 0.9]]), w_q)[0, 0], [0.26, 0.72], atol=1e-12)


# --- independent references --------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_context_equals_the_fused_kernel(causal: bool, kv_heads: int) -> None:
    q, k, v = (torch.from_numpy(x) for x in qkv(kv_heads=kv_heads))
    fused = torch.nn.functional.scaled_dot_product_attention(
        q[None], k[None], v[None], is_causal=causal, enable_gqa=True, scale=0.3
    )
    ours = a.attend(q, k, v, causal=causal, scale=0.3)
    torch.testing.assert_close(ours.context, fused[0], atol=1e-6, rtol=1e-5)
    on_numpy = a.attend(*qkv(kv_heads=kv_heads), causal=causal, scale=0.3)
    np.testing.assert_allclose(on_numpy.context, ours.context.numpy(), atol=1e-6)


def test_weights_and_output_equal_multihead_attention() -> None:
    torch.manual_seed(0)
    theirs = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x = torch.randn(1, 5, 8)
    out, weights = theirs(x, x, x, average_attn_weights=False)
    w, b = theirs.in_proj_weight.detach().numpy(), theirs.in_proj_bias.detach().numpy()
    parts = [w[at * 8 : at * 8 + 8].reshape(2, 4, 8).transpose(0, 2, 1) for at in range(3)]
    biases = [b[at * 8 : at * 8 + 8].reshape(2, 4) for at in range(3)]
    steps = a.attend(*(a.project_heads(x[0].numpy(), w, b) for w, b in zip(parts, biases, strict=True)))
    np.testing.assert_allclose(steps.weights, weights[0].detach().numpy(), atol=1e-6)
    w_o, b_o = theirs.out_proj.weight.detach().numpy().T, theirs.out_proj.bias.detach().numpy()
    np.testing.assert_allclose(
        a.project_output(a.concatenate_heads(steps.context), w_o, b_o), out[0].detach().numpy(), atol=1e-6
    )


EVERYTHING = [
    {},
    {"causal": True},
    {"causal": True, "window": 3},
    {"window": 2},
    {"scale": 1.0, "soft_cap": 2.0},
    {"temperature": 0.5},
    {"sinks": [0.5, -1.0, 2.0, 0.0]},
]


@pytest.mark.parametrize("how", EVERYTHING, ids=str)
def test_the_same_lines_run_on_the_strict_array_api(how: dict) -> None:
    def arrays(xp: object, x: np.ndarray) -> object:
        return xp.asarray(x)  # type: ignore[attr-defined]

    made = {}
    for name, xp in (("numpy", np), ("strict", array_api_strict), ("torch", torch)):
        own = {k: arrays(xp, np.asarray(v, np.float32)) if k == "sinks" else v for k, v in how.items()}
        steps = a.attend(*(arrays(xp, x) for x in qkv(kv_heads=2)), **own)
        made[name] = [np.asarray(part) for part in (steps.weights, steps.context)]
    for name in ("strict", "torch"):
        for ours, theirs in zip(made["numpy"], made[name], strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_rope_and_positions_run_on_the_strict_array_api() -> None:
    x = normal(2, 5, 6)
    at = np.arange(5, dtype=np.float32)
    for pairs in ("half", "interleaved"):
        strict = a.rotate_positions(array_api_strict.asarray(x), a.rope_angles(array_api_strict.asarray(at), 4), pairs)
        np.testing.assert_allclose(a.rotate_positions(x, a.rope_angles(at, 4), pairs), np.asarray(strict), atol=1e-6)
    np.testing.assert_allclose(
        a.sinusoidal_positions(at, 7), np.asarray(a.sinusoidal_positions(array_api_strict.asarray(at), 7)), atol=1e-6
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"keys": (4, 7, 6)}, r"queries have shape \(4, 7, 8\) and keys \(4, 7, 6\): their last axes"),
        ({"values": (4, 6, 8)}, r"keys have shape \(4, 7, 8\) and values \(4, 6, 8\)"),
        (
            {"queries": (3, 7, 8), "keys": (2, 7, 8), "values": (2, 7, 8)},
            "3 query heads cannot share 2 key/value heads",
        ),
        ({"queries": (7, 8)}, r"queries have shape \(7, 8\): they are"),
        ({"queries": (2, 4, 7, 8)}, "their batches differ"),
        ({"mask": (7, 6)}, r"mask has shape \(7, 6\), which does not broadcast to \(7, 7\)"),
        ({"bias": (3, 7, 7)}, r"bias has shape \(3, 7, 7\), which does not broadcast to \(4, 7, 7\)"),
        ({"sinks": (3,)}, r"sinks has shape \(3,\), which does not broadcast to \(4,\)"),
    ],
)
def test_shapes_that_do_not_fit_are_both_named(changes: dict[str, tuple[int, ...]], said: str) -> None:
    shapes = {"queries": (4, 7, 8), "keys": (4, 7, 8), "values": (4, 7, 8)} | changes
    with pytest.raises(ValueError, match=said):
        a.attend(**{name: np.ones(shape, np.float32) for name, shape in shapes.items()})


def test_sinks_take_weight_as_one_more_key_would() -> None:
    q, k, v = qkv(heads=2, kv_heads=2)
    sinks = np.asarray([0.3, 2.0], np.float32)
    steps = a.attend(q, k, v, sinks=sinks)
    with_key = np.concatenate([steps.scaled_scores, np.broadcast_to(sinks[:, None, None], (2, 7, 1))], axis=-1)
    e = np.exp(with_key.astype(np.float64))
    np.testing.assert_allclose(steps.weights, (e / e.sum(-1, keepdims=True))[..., :-1], atol=1e-6)


def test_rope_depends_on_distance_alone() -> None:
    q, k = normal(1, 1, 8), normal(1, 1, 8, seed=4)

    def score(i: int, j: int, pairs: str) -> float:
        turned = (
            a.rotate_positions(x, a.rope_angles(np.asarray([at], np.float64), 8), pairs) for x, at in ((q, i), (k, j))
        )
        return float(a.scores(*turned)[0, 0, 0])

    for pairs in ("half", "interleaved"):
        assert score(3, 1, pairs) == pytest.approx(score(12, 10, pairs), abs=1e-5)
        assert score(3, 1, pairs) != pytest.approx(score(3, 2, pairs), abs=1e-3)


def test_rope_equals_llamas() -> None:
    transformers = pytest.importorskip("transformers.models.llama.modeling_llama")
    q, k = torch.from_numpy(normal(2, 6, 8)), torch.from_numpy(normal(2, 6, 8, seed=1))
    angles = a.rope_angles(torch.arange(6.0), 8)
    both = torch.cat([angles, angles], dim=-1)
    theirs, _ = transformers.apply_rotary_pos_emb(q[None], k[None], both.cos()[None], both.sin()[None])
    torch.testing.assert_close(a.rotate_positions(q, angles), theirs[0])


# --- what must always be true ------------------------------------------------------------------------------------

sizes = st.integers(1, 9)


@settings(max_examples=60, deadline=None)
@given(n=sizes, m=sizes, d=sizes, seed=st.integers(0, 1000), size=st.sampled_from([1e-3, 1.0, 50.0]))
def test_rows_sum_to_one_and_ignore_a_shift(n: int, m: int, d: int, seed: int, size: float) -> None:
    q, k, v = normal(2, n, d, seed=seed) * size, normal(2, m, d, seed=seed + 1), normal(2, m, d, seed=seed + 2)
    steps = a.attend(q, k, v)
    assert (steps.weights >= 0).all()
    np.testing.assert_allclose(steps.weights.sum(-1), 1, atol=1e-5)
    np.testing.assert_allclose(a.softmax(steps.scaled_scores + np.float32(2.0)), steps.weights, atol=1e-4)


@settings(max_examples=40, deadline=None)
@given(n=st.integers(2, 9), seed=st.integers(0, 1000), window=st.one_of(st.none(), st.integers(1, 9)))
def test_the_future_has_no_weight(n: int, seed: int, window: int | None) -> None:
    q, k, v = (normal(1, n, 4, seed=seed + at) for at in range(3))
    weights = a.attend(q, k, v, causal=True, window=window).weights[0]
    i, j = np.indices((n, n))
    hidden = (j > i) | (i - j >= (window or n))
    assert (weights[hidden] == 0).all() and (weights[~hidden] > 0).all()
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)


@settings(max_examples=40, deadline=None)
@given(n=st.integers(2, 8), seed=st.integers(0, 1000), data=st.data())
def test_permuting_tokens_permutes_rows(n: int, seed: int, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(n)))
    q, k, v = (normal(2, n, 4, seed=seed + at) for at in range(3))
    plain = a.attend(q, k, v)
    permuted = a.attend(q[:, order], k[:, order], v[:, order])
    np.testing.assert_allclose(permuted.weights, plain.weights[:, order][:, :, order], atol=1e-5)
    np.testing.assert_allclose(permuted.context, plain.context[:, order], atol=1e-5)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 100), causal=st.booleans(), window=st.one_of(st.none(), st.integers(1, 6)), data=st.data())
def test_chosen_heads_and_rows_equal_the_whole(
    seed: int, causal: bool, window: int | None, data: st.DataObject
) -> None:
    heads = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True))
    rows = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=7, unique=True))
    call = a.Call(
        normal(4, 7, 5, seed=seed),
        normal(2, 7, 5, seed=seed + 1),
        normal(2, 7, 3, seed=seed + 2),
        causal=causal,
        window=window,
        bias=normal(4, 7, 7, seed=seed + 3),
        sinks=normal(4, seed=seed),
        soft_cap=3.0,
    )
    whole, part = a.run_call(call), a.run_call(a.select_call(call, heads, rows))
    np.testing.assert_allclose(part.weights, whole.weights[heads][:, rows], atol=1e-6)
    np.testing.assert_allclose(part.context, whole.context[heads][:, rows], atol=1e-5)


def test_a_row_with_nothing_to_look_at_is_zero() -> None:
    q, k, v = qkv(n=2, m=3)
    steps = a.attend(q, k, v, mask=np.asarray([[False, False, False], [True, False, True]]))
    assert (steps.weights[:, 0] == 0).all() and (steps.context[:, 0] == 0).all()
    np.testing.assert_allclose(steps.weights[:, 1].sum(-1), 1, atol=1e-6)


def test_a_cache_shifts_the_diagonal() -> None:
    q, k, v = qkv()
    whole = a.attend(q, k, v, causal=True)
    last = a.attend(q[:, -2:], k, v, causal=True)
    np.testing.assert_allclose(last.weights, whole.weights[:, -2:], atol=1e-6)


def test_low_precision_rows_still_sum_to_one() -> None:
    q, k, v = (torch.from_numpy(x).bfloat16() for x in qkv(n=300, m=300))
    weights = a.softmax(a.scale_scores(a.scores(q, k), 0.35))
    assert weights.dtype == torch.bfloat16
    in_32 = a.softmax(a.scale_scores(a.scores(q, k), 0.35).float())
    torch.testing.assert_close(weights.float(), in_32, rtol=2**-8, atol=1e-6)


def test_huge_scores_neither_overflow_nor_warn() -> None:
    q, k, v = qkv()
    weights = a.attend(q * np.float32(1e4), k, v, scale=1.0).weights
    assert np.isfinite(weights).all()


def test_gradients_flow() -> None:
    q, k, v = (torch.from_numpy(x).requires_grad_() for x in qkv(n=3, m=3))
    a.attend(q, k, v, causal=True).context.sum().backward()
    assert all(x.grad is not None and torch.isfinite(x.grad).all() for x in (q, k, v))


@given(heads=st.integers(1, 4), n=st.integers(1, 5), d=st.integers(1, 4))
def test_split_heads_undoes_concatenate(heads: int, n: int, d: int) -> None:
    x = normal(heads, n, d)
    np.testing.assert_array_equal(a.split_heads(a.concatenate_heads(x), heads), x)


def test_sinks_of_each_query() -> None:
    """One column of scores beside the keys', (heads, n_q): for chosen rows and heads, and in batches, the same numbers."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(2, 3, 5, 4)).astype(np.float32) for _ in range(3))
    sinks = rng.normal(size=(2, 3, 5)).astype(np.float32)
    found = a.attend(q, k, v, sinks=sinks)
    whole = np.concatenate([found.scaled_scores, sinks[..., None]], -1)
    whole = np.exp(whole - whole.max(-1, keepdims=True))
    np.testing.assert_allclose(found.weights, (whole / whole.sum(-1, keepdims=True))[..., :-1], atol=1e-6)
    part = a.select_call(a.Call(q, k, v, sinks=sinks), [2, 0], [4, 1])
    np.testing.assert_allclose(a.run_call(part).weights, found.weights[:, [2, 0]][:, :, [4, 1]], atol=1e-6)
    with pytest.raises(ValueError, match="sinks has shape"):
        a.attend(q, k, v, sinks=sinks[..., :3])
