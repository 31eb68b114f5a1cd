"""Queries, keys and values from files: other lengths, names, axes, and which corner causality means.

The right values are numpy's in float64, and those of torch's kernel.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attnctl.errors import AttnctlError, UsageError
from attnctl.models import open_model
from attnctl.source import TextSource, TraceSource, prepare
from attnctl.trace import Trace
from tests.cli.conftest import _here as _here
from tests.conftest import Refused, Run, attend

HEADS, KV, N_Q, N_K, D = 4, 2, 2, 5, 3


def qkv(n_q: int = N_Q, n_k: int = N_K, heads: int = HEADS, kv_heads: int = KV) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    sizes = {"Q": (heads, n_q, D), "K": (kv_heads, n_k, D), "V": (kv_heads, n_k, D)}
    return {name: rng.normal(size=size).astype(np.float32) for name, size in sizes.items()}


def weights(parts: dict[str, Any], offset: int | None = None) -> Any:
    """Softmax of Q Kᵀ / √d in float64; causal if an offset is given: query i sees keys up to i + offset."""
    q, k = parts["Q"].astype(np.float64), parts["K"].astype(np.float64)
    k = np.repeat(k, len(q) // len(k), 0)
    scores = q @ k.swapaxes(-1, -2) / D**0.5
    if offset is not None:
        scores[:, np.arange(scores.shape[2]) > np.arange(scores.shape[1])[:, None] + offset] = -np.inf
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def trace_of(text: str | None = None, **options: Any) -> Trace:
    model: Any = open_model(qkv="w.npz", **options)
    return prepare(TextSource(model, model.own_text if text is None else text)).trace()


def test_queries_of_another_length_look_at_all_keys(run: Run) -> None:
    parts = qkv()
    np.savez("w.npz", **parts)
    trace = trace_of("le chat")
    np.testing.assert_allclose(trace.layers[0].weights, weights(parts), atol=1e-7)
    context = weights(parts) @ np.repeat(parts["V"], 2, 0)
    np.testing.assert_allclose(trace.layers[0].context, context, atol=1e-6)
    assert [token.text for token in trace.key_axis] == list("01234")
    for command in ("heatmap", "heads", "explain", "view"):
        done = run(command, "le chat", "--qkv", "w.npz", "--key-tokens", "the cat sat on it", "-o", f"{command}.json")
        assert done.code == (0 if command != "view" else 2), done.err
    drawn = run("heatmap", "le chat", "--qkv", "w.npz", "--key-tokens", "the cat sat on it", "--head", "3").out
    assert drawn.splitlines()[0].split("\t")[4:] == ["0:the", "1:cat", "2:sat", "3:on", "4:it"]
    assert run("explain", "explain.json").code == 0


@pytest.mark.parametrize(("offset", "rows"), [(None, "3 4"), (0, "0 1"), (1, "1 2")])
def test_the_corner_of_causality(offset: int | None, rows: str) -> None:
    """Of 2 queries and 5 keys, the last query is at the last key, as with a cache; torch begins both at 0."""
    parts = qkv()
    np.savez("w.npz", **parts)
    trace = trace_of(causal=True, offset=offset)
    first = N_K - N_Q if offset is None else offset
    np.testing.assert_allclose(trace.layers[0].weights, weights(parts, first), atol=1e-7)
    assert [token.text for token in trace.tokens] == rows.split()
    note = " ".join(trace.notes)
    assert "dropped" not in note
    assert ("stands at the last of the 5 keys" in note) == (offset is None) and ("offset=0" in note) == (offset is None)
    assert trace_of("one two three four five", causal=True, offset=offset).text == "one two three four five"
    again = TraceSource(trace)
    np.testing.assert_array_equal(prepare(again).trace().layers[0].weights, trace.layers[0].weights)


@pytest.mark.parametrize("upper_left", [True, False])
def test_the_corners_are_those_of_torch(upper_left: bool) -> None:
    torch = pytest.importorskip("torch")
    from torch.nn.attention import bias

    parts = qkv(kv_heads=HEADS)
    np.savez("w.npz", **parts)
    q, k, v = (torch.from_numpy(parts[name])[None] for name in "QKV")
    mask = bias.causal_upper_left(N_Q, N_K) if upper_left else bias.causal_lower_right(N_Q, N_K)
    right = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)[0]
    trace = trace_of(causal=True, offset=0 if upper_left else None)
    np.testing.assert_allclose(trace.layers[0].context, right, atol=1e-6)


@pytest.mark.parametrize(
    "names",
    ["qkv", ("query", "key", "value"), ("queries", "keys", "values"), ("query_states", "key_states", "value_states")],
)
@pytest.mark.parametrize("batch", [(), (1,)])
def test_names_and_an_axis_of_one_text(names: Any, batch: tuple[int, ...]) -> None:
    parts = qkv()
    np.savez(
        "w.npz", **{name: part.reshape(*batch, *part.shape) for name, part in zip(names, parts.values(), strict=True)}
    )
    np.testing.assert_allclose(trace_of("a b").layers[0].weights, weights(parts), atol=1e-7)


def test_the_axes_of_jax_are_told_or_follow_from_the_shapes() -> None:
    """jax.nn.dot_product_attention takes (batch, n, heads, d)."""
    parts = qkv(3, 5, 4, 4)
    np.savez("w.npz", **{name: part.swapaxes(0, 1)[None] for name, part in parts.items()})
    trace = trace_of("a b c")  # 3 heads cannot share 5
    np.testing.assert_allclose(trace.layers[0].weights, weights(parts), atol=1e-7)
    assert "Q (1, 3, 4, 3) is read as (1, n, heads, d)." in trace.notes
    square = qkv(4, 4, 2, 2)
    np.savez("w.npz", **{name: part[None] for name, part in square.items()})
    note = " ".join(trace_of("a b c d").notes)
    assert "Q (1, 2, 4, 3) is read as (1, heads, n, d); JAX and flax write (1, n, heads, d)" in note
    np.savez("w.npz", **{name: part[0] for name, part in square.items()})
    assert not trace_of("a b c d").notes


def test_what_does_not_fit_is_refused(refused: Refused) -> None:
    parts = qkv()
    np.savez("w.npz", **parts)
    assert "--key-tokens 'a b': w.npz has 5 keys, and these are 2 names" in refused(
        "heatmap", "x y", "--qkv", "w.npz", "--key-tokens", "a b", code=2
    )
    assert "--offset has no effect without --causal or --window" in refused(
        "heatmap", "x y", "--qkv", "w.npz", "--offset", "1", code=2
    )
    with pytest.raises(UsageError, match="offset.* has no effect here: queries and keys are the same tokens"):
        attend("a b", "random", offset=1)
    for change, says in (
        ({"q": parts["Q"], "query": parts["Q"], "Q": None}, r"more than one Q \(q, query\)"),
        ({"Q": np.stack([parts["Q"]] * 3)}, r"\(3, 4, 2, 3\), a batch of 3 texts: choose one"),
        ({"V": parts["V"][:, :4]}, r"K \(2, 5, 3\) and V \(2, 4, 3\) do not fit each other"),
        ({"K": parts["K"][..., :2]}, r"Q \(4, 2, 3\) and K \(2, 5, 2\) do not fit each other"),
        ({"K": None}, r"has no K: it holds Q, V"),
        ({"Q": parts["Q"][:3, :1]}, "3 query heads cannot share 2"),
    ):
        np.savez("w.npz", **{name: part for name, part in (parts | change).items() if part is not None})
        with pytest.raises(AttnctlError, match=says):
            open_model(qkv="w.npz")


def test_rows_without_words_are_numbered_as_the_keys(run: Run) -> None:
    np.savez("w.npz", **qkv())
    bare = run("heatmap", "--qkv", "w.npz", "--causal", "--head", "0")
    assert [line.split("\t")[3] for line in bare.out.splitlines()[1:]] == ["3", "4"] and "--offset 0" in bare.err
