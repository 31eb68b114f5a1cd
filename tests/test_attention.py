"""The mathematics, held to independent references, to published figures, and to what must always be true."""

from __future__ import annotations

import math
from typing import Any

import array_api_strict
import numpy as np
import pytest
import torch
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


# --- independent references --------------------------------------------------------------------------------------


def by_hand(
    queries, keys, values, scale=None, soft_cap=None, bias=None, causal=False, window=None, offset=None, mask=None, sinks=None,
    temperature=1.0, keep=None, dropout=0.0,
) -> tuple[np.ndarray, ...]:  # fmt: skip
    """Attention as its definition has it, one weight at a time, in float64: scaled scores, weights, context."""
    (heads, n_q, d), n_k = queries.shape, keys.shape[1]
    scaled, weights = np.zeros((2, heads, n_q, n_k))
    first = n_k - n_q if offset is None else offset
    for h, i, j in np.ndindex(heads, n_q, n_k):
        score = math.fsum(queries[h, i].astype(float) * keys[h * len(keys) // heads, j])
        score *= d**-0.5 if scale is None else scale
        score = score if soft_cap is None else soft_cap * math.tanh(score / soft_cap)
        scaled[h, i, j] = score if bias is None else score + np.broadcast_to(bias, weights.shape)[h, i, j]
        gap = i + first - j
        hidden = (causal and gap < 0) or (window and abs(gap) >= window)
        if not hidden and (mask is None or np.broadcast_to(mask, (n_q, n_k))[i, j]):
            weights[h, i, j] = math.exp(scaled[h, i, j] / temperature)
    sums = weights.sum(-1, keepdims=True)
    if sinks is not None:
        sums += np.exp((sinks[:, None] if sinks.ndim == 1 else sinks)[..., None] / temperature)
    weights /= np.where(sums == 0, 1, sums)
    dropped = weights if keep is None else weights * keep / (1 - dropout)
    return scaled, weights, dropped @ np.repeat(values, heads // len(values), axis=0).astype(float)


HOW: list[dict[str, Any]] = [
    {},
    {"causal": True, "n": 4},
    {"causal": True, "window": 3},
    {"window": 2, "n": 3},
    {"causal": True, "offset": 1, "n": 4},
    {"scale": 1.0, "soft_cap": 2.0},
    {"temperature": 0.5, "sinks": normal(4)},
    {"sinks": normal(4, 7), "window": 4},
    {"bias": normal(4, 7, 7), "causal": True, "scale": 0.1},
    {"bias": normal(4, 1, 7), "soft_cap": 0.5, "temperature": 2.0, "n": 4},
    {"mask": normal(7, 7) > 0.8},  # also rows with nothing to look at
    {"mask": normal(1, 7) > 0, "causal": True, "window": 4},
    {"keep": normal(4, 7, 7) > 0, "dropout": 0.25},
]


@pytest.mark.parametrize("how", HOW, ids=lambda how: ", ".join(how) or "plain")
@pytest.mark.parametrize("xp", [np, array_api_strict, torch], ids=["numpy", "strict", "torch"])
def test_every_library_does_what_the_definition_says(how: dict[str, Any], xp: Any) -> None:
    """One text, and a batch of it and another, with a mask of its own."""
    n, how = how.get("n", 7), {name: part for name, part in how.items() if name != "n"}
    one = dict(zip(("queries", "keys", "values"), qkv(kv_heads=2, n=n), strict=True)) | how
    other = one | {name: one[name][:, ::-1] for name in ("queries", "keys", "values")}
    if "mask" in how:
        other["mask"] = ~one["mask"]
    batch = one | {name: np.stack([one[name], other[name]]) for name in one if one[name] is not other[name]}
    wanted = [by_hand(**one), by_hand(**other)]
    for call, answers in ((one, wanted[0]), (batch, [np.stack(pair) for pair in zip(*wanted, strict=True)])):
        steps = a.attend(
            **{key: xp.asarray(part) if isinstance(part, np.ndarray) else part for key, part in call.items()}
        )
        for found, answer in zip((steps.scaled_scores, steps.weights, steps.context), answers, strict=True):
            np.testing.assert_allclose(np.asarray(found), answer, atol=2e-6)


@pytest.mark.parametrize("batched", [False, True])
def test_weights_and_output_equal_multihead_attention(batched: bool) -> None:
    torch.manual_seed(0)
    theirs = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval().requires_grad_(False)
    for bias in (theirs.in_proj_bias, theirs.out_proj.bias):
        torch.nn.init.normal_(bias)  # zero as they are made
    x = torch.randn(2, 5, 8)
    wanted = theirs(x, x, x, average_attn_weights=False)
    matrices = theirs.in_proj_weight.reshape(3, 2, 4, 8).mT  # (3, heads, d_model, d)
    biases = theirs.in_proj_bias.reshape(3, 2, 4)
    own = [theirs.out_proj.weight.T, theirs.out_proj.bias]
    if not batched:
        x, matrices, biases, *own = (part.numpy() for part in (x[1], matrices, biases, *own))
    steps = a.attend(*(a.project_heads(x, w, b) for w, b in zip(matrices, biases, strict=True)))
    joined = a.concatenate_heads(steps.context)
    np.testing.assert_array_equal(np.asarray(a.split_heads(joined, 2)), np.asarray(steps.context))
    output = a.project_output(joined, *own)
    for found, theirs_ in zip((output, steps.weights), wanted, strict=True):
        np.testing.assert_allclose(np.asarray(found), theirs_ if batched else theirs_[1], atol=1e-6)


@pytest.mark.parametrize("xp", [np, array_api_strict, torch], ids=["numpy", "strict", "torch"])
def test_positions_equal_their_formulas(xp: Any) -> None:
    """RoPE turns a pair of dimensions as a complex number, and passes over those beyond the angles."""
    x, at = normal(2, 5, 6), np.arange(5, dtype=np.float32) + 3
    frequencies = 10.0 ** (-np.arange(2))  # of theta 100, in 4 dimensions
    np.testing.assert_allclose(
        np.asarray(a.rope_angles(xp.asarray(at), 4, 100.0)), at[:, None] * frequencies, rtol=1e-6
    )
    turn = np.exp(1j * at[:, None] * frequencies)  # (n, pairs)
    for pairs, first, second in (("half", [0, 1], [2, 3]), ("interleaved", [0, 2], [1, 3])):
        wanted = x.copy()
        turned = (x[..., first] + 1j * x[..., second]) * turn
        wanted[..., first], wanted[..., second] = turned.real, turned.imag
        found = a.rotate_positions(xp.asarray(x), a.rope_angles(xp.asarray(at), 4, 100.0), pairs)
        np.testing.assert_allclose(np.asarray(found), wanted, atol=1e-6)
        whole = a.rotate_positions(xp.asarray(x[..., :4].copy()), a.rope_angles(xp.asarray(at), 4, 100.0), pairs)
        np.testing.assert_allclose(np.asarray(whole), wanted[..., :4], atol=1e-6)
    for width in (6, 7):
        waves = [[(math.sin, math.cos)[k % 2](p / 10000 ** (2 * (k // 2) / width)) for k in range(width)] for p in at]
        np.testing.assert_allclose(np.asarray(a.sinusoidal_positions(xp.asarray(at), width)), waves, atol=1e-6)


def test_rope_equals_llamas() -> None:
    transformers = pytest.importorskip("transformers.models.llama.modeling_llama")
    q, k = torch.from_numpy(normal(2, 6, 8)), torch.from_numpy(normal(2, 6, 8, seed=1))
    angles = a.rope_angles(torch.arange(6.0), 8)
    both = torch.cat([angles, angles], dim=-1)
    theirs, _ = transformers.apply_rotary_pos_emb(q[None], k[None], both.cos()[None], both.sin()[None])
    torch.testing.assert_close(a.rotate_positions(q, angles), theirs[0])


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
        ({"sinks": (4, 3)}, r"sinks has shape \(4, 3\), which does not broadcast to \(4, 7\)"),
        ({"keep": (2, 4, 7, 7)}, r"keep has shape \(2, 4, 7, 7\), which does not broadcast to \(4, 7, 7\)"),
    ],
)
def test_shapes_that_do_not_fit_are_both_named(changes: dict[str, tuple[int, ...]], said: str) -> None:
    shapes = {"queries": (4, 7, 8), "keys": (4, 7, 8), "values": (4, 7, 8)} | changes
    with pytest.raises(ValueError, match=said):
        a.attend(**{name: np.ones(shape, np.float32) for name, shape in shapes.items()})


# --- what must always be true ------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", HOW, ids=lambda how: ", ".join(how) or "plain")
@pytest.mark.parametrize(("heads", "rows"), [([2, 0], None), (None, [4, 1, 2]), ([3, 2, 1], [0, 6]), (None, None)])
def test_chosen_heads_and_rows_equal_the_whole(
    how: dict[str, Any], heads: list[int] | None, rows: list[int] | None
) -> None:
    how = {name: part for name, part in how.items() if name != "n"}
    call = a.Call(*qkv(kv_heads=2), **how)
    whole, part = a.run_call(call), a.run_call(a.select_call(call, heads, rows))
    at = np.ix_(heads or range(4), rows or range(7))
    np.testing.assert_allclose(part.weights, whole.weights[at], atol=1e-6)
    np.testing.assert_allclose(part.context, whole.context[at], atol=1e-6)


def test_low_precision_rows_still_sum_to_one() -> None:
    q, k, v = (torch.from_numpy(x).bfloat16() for x in qkv(n=300, m=300))
    weights = a.softmax(a.scale_scores(a.scores(q, k), 0.35))
    assert weights.dtype == torch.bfloat16
    in_32 = a.softmax(a.scale_scores(a.scores(q, k), 0.35).float())
    torch.testing.assert_close(weights.float(), in_32, rtol=2**-8, atol=1e-6)


def test_huge_scores_neither_overflow_nor_warn() -> None:
    q, k, v = qkv()
    weights = a.attend(q * np.float32(1e4), k, v, scale=1.0).weights
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_bias_that_hides_a_whole_row_gives_zeros(library: str) -> None:
    """It gave NaN, and a mask of the same cells 0."""
    q, k, v = np.random.default_rng(0).normal(size=(3, 2, 4, 3)).astype(np.float32)
    bias = np.zeros((4, 4), np.float32)
    bias[1], bias[2, 3] = -np.inf, -np.inf
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(np.float32(3)) + bias
    exponentials = np.exp(np.where(np.isneginf(scores), -np.inf, scores))
    total = exponentials.sum(-1, keepdims=True)
    right = exponentials / np.where(total == 0, 1, total)
    if library == "torch":
        torch = pytest.importorskip("torch")
        q, k, v, bias = map(torch.from_numpy, (q, k, v, bias))
        q.requires_grad_()
    found = a.attend(q, k, v, bias=bias)
    if library == "torch":
        found.context.sum().backward()
        assert bool(q.grad.isfinite().all())
    np.testing.assert_allclose(
        np.asarray(found.weights.detach() if library == "torch" else found.weights), right, atol=1e-6
    )
    nan = np.full((1, 2, 3), np.nan, np.float32)  # scores that are no numbers stay so
    assert np.isnan(a.attend(nan, nan, nan).weights).all()
