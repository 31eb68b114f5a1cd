"""Words, value norms, rollout and sinks, against arithmetic done by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attnctl.attention import Call
from attnctl.errors import AttnctlError, UsageError
from attnctl.layer import LayerTrace
from attnctl.layer.computed import ComputedLayer
from attnctl.measures import joins_heads, measure_named, measure_names, needs_of
from attnctl.measures.value_norm import value_lengths
from attnctl.models import attend, open_model
from attnctl.readings.parked_attention import sink_sentence
from attnctl.source import Changes, TextSource, TraceSource, prepare, record_trace
from attnctl.source.zoom import read_heatmap
from attnctl.text.tokens import Token
from attnctl.trace import Trace, by_words, word_groups
from attnctl.trace.model_info import ModelInfo
from attnctl.trace.subject import Subject
from tests.conftest import Result

value_norm = measure_named("value-norm").function


def rolled_out(trace: Trace) -> Trace:
    return prepare(TraceSource(trace), Changes("rollout"), range(trace.model.n_layers)).trace(predictions=False)


# [CLS] un|believ|able , isn ' t it
PIECES = (
    Token("[CLS]", 0, 0, 0, special=True),
    Token("un", 1, 0, 2),
    Token("believ", 2, 2, 8),
    Token("able", 3, 8, 12),
    Token(",", 4, 12, 13),
    Token("isn't", 5, 13, 19),
    Token("it", 6, 19, 22),
)
TEXT = "unbelievable, isn't it"


def trace_of(weights: np.ndarray, **more: object) -> Trace:
    """A trace of (heads, n, n) weights over the pieces."""
    heads = tuple(range(len(weights)))
    layer = LayerTrace(0, heads, heads, weights=weights.astype(np.float32), **more)
    return Trace(Subject(TEXT, PIECES, ModelInfo("x", "checkpoint", n_heads=len(heads), n_layers=1)), (layer,))


def random_weights(heads: int = 2, n: int = 7) -> np.ndarray:
    return np.random.default_rng(0).dirichlet(np.ones(n), size=(heads, n)).astype(np.float32)


def test_pieces_of_a_word() -> None:
    weights = random_weights()
    merged = by_words(trace_of(weights, mask=np.tri(7, dtype=bool)))
    assert [t.text for t in merged.tokens] == ["[CLS]", "unbelievable", ",", "isn't", "it"]
    got = merged.layers[0].weights
    assert got.shape == (2, 5, 5)
    np.testing.assert_allclose(got.sum(-1), 1, rtol=1e-6)
    np.testing.assert_allclose(got[0, 3, 1], weights[0, 5, 1:4].sum(), rtol=1e-6)
    np.testing.assert_allclose(got[1, 1, 4], weights[1, 1:4, 6].mean(), rtol=1e-6)
    assert merged.layers[0].mask.tolist() == np.tri(5, dtype=bool).tolist()
    assert "Clark et al. 2019" in merged.notes[-1]


def test_words_of_chosen_rows() -> None:
    trace = trace_of(random_weights())
    layer = replace(trace.layers[0], rows=(2, 5), weights=trace.layers[0].weights[:, [2, 5]])
    merged = by_words(replace(trace, layers=(layer,)))
    assert merged.layers[0].rows == (1, 3)
    np.testing.assert_allclose(merged.layers[0].weights[:, 1, 2], layer.weights[:, 1, 4], rtol=1e-6)


def test_spaces_cjk_and_split_characters() -> None:
    text = "ab 中文 🍕"
    pieces = [("a", 0, 1), ("b", 1, 2), (" 中", 2, 4), ("文", 4, 5), (" ", 5, 6), ("🍕₁", 6, 7), ("🍕₂", 6, 7)]
    tokens = [Token(shown, 0, start, end) for shown, start, end in pieces]
    assert word_groups(tokens, text) == [[0, 1], [2], [3], [4, 5, 6]]
    assert word_groups([Token("new"), Token("er")], "newer") == [[0], [1]]


def test_value_norm_by_hand() -> None:
    weights = np.full((1, 2, 2), 0.5, dtype=np.float32)
    values = np.array([[[3.0, 4.0], [0.0, 15.0]]], dtype=np.float32)
    tokens = (Token("a"), Token("b"))
    layer = LayerTrace(0, (0,), (0,), weights=weights, values=values)
    trace = Trace(Subject("a b", tokens, ModelInfo("x", "matrix")), (layer,))
    got = prepare(TraceSource(trace), Changes("value-norm")).trace()
    np.testing.assert_allclose(got.layers[0].weights[0], [[0.25, 0.75]] * 2)
    assert got.layers[0].values is None and "without W_O" in got.notes[-1] and got.measure == "value-norm"
    sent = replace(layer, parameters={"W_O": np.diag([1.0, 0.0]).astype(np.float32)})
    np.testing.assert_allclose(value_norm(sent).all_weights()[0], [[1, 0]] * 2)
    with pytest.raises(UsageError, match="gives none"):
        value_norm(replace(layer, values=None))


@pytest.mark.parametrize("library", [np.asarray, torch.from_numpy])
def test_lengths_of_values_are_those_of_their_products_with_the_output_matrix(library: Callable[..., Any]) -> None:
    rng = np.random.default_rng(0)
    q, k, v, w_o = (
        rng.standard_normal(shape).astype(np.float32) for shape in ((4, 40, 8), (2, 40, 8), (2, 40, 8), (32, 24))
    )
    layer = ComputedLayer.of_call(0, Call(library(q), library(k), library(v)), output_matrix=lambda: w_o)
    wanted = [np.linalg.norm(v[head // 2].astype(float) @ w_o[8 * head : 8 * head + 8], axis=-1) for head in range(4)]
    np.testing.assert_allclose(value_lengths(layer), wanted, rtol=1e-10)
    np.testing.assert_allclose(value_lengths(layer.select_heads([3, 1])), np.array(wanted)[[3, 1]], rtol=1e-10)


@pytest.mark.parametrize("kind", [{"causal": True, "rope_theta": 1e4}, {"window": 60, "temperature": 1.7}])
def test_value_norm_and_keys_left_out_need_no_matrix(kind: dict[str, object]) -> None:
    model, layers = open_model("random", d_model=16, n_heads=2, **kind), []
    model.run(model.tokenize(" ".join(f"w{at % 90}" for at in range(520))), layers.append)
    swept = layers[0]
    stored = swept.record()
    rows = [0, 100, 519]
    for change in (value_norm, lambda layer: layer.without_keys([0, 7])):
        np.testing.assert_allclose(change(swept).rows_of(rows), change(stored).rows_of(rows), rtol=2e-4, atol=1e-7)


def test_rollout_by_hand() -> None:
    trace = attend("Alice will eat pizza", "random", n_layers=3, n_heads=2, d_model=8)
    got = rolled_out(trace)
    expected = np.eye(4)
    for layer, rolled in zip(trace.layers, got.layers, strict=True):
        mean = (layer.weights[0] + layer.weights[1]) / 2
        expected = (mean + np.eye(4)) / 2 @ expected
        np.testing.assert_allclose(rolled.weights[0], expected, rtol=1e-5)
    assert got.layers[-1].heads == (0,) and "Abnar" in got.notes[-1]
    near = rolled_out(attend("Alice will eat pizza", "random", d_model=8, window=2, n_layers=2)).layers
    assert near[0].mask.sum() < near[1].mask.sum() and not near[1].weights[0][~near[1].mask].any()
    with pytest.raises(AttnctlError, match="layer 0 is not in this trace"):
        rolled_out(replace(trace, layers=trace.layers[1:]))
    with pytest.raises(UsageError, match="layer 0 of random is not there whole"):
        rolled_out(attend("Alice will eat pizza", "random", n_layers=3, n_heads=2, d_model=8, query="eat"))
    with pytest.raises(UsageError, match="give no head="):
        rolled_out(attend("Alice will eat pizza", "random", n_heads=2, d_model=8, head=0))


def test_the_sink_is_stated() -> None:
    weights = np.zeros((1, 7, 7))
    weights[0, :, 0] = 0.75
    weights[0, :, 3] = 0.25
    trace = trace_of(weights)
    assert sink_sentence(trace) == "Of the attention of layer 0, head 0, 75 % goes to the first token, [CLS]."
    ended = trace.about(tokens=(*PIECES[:3], Token("[SEP]", special=True), *PIECES[4:]))
    assert sink_sentence(ended).endswith("75 % goes to the first token, [CLS], 25 % to the other special ones ([SEP]).")
    one = replace(
        trace.about(tokens=PIECES[:1]), layers=(replace(trace.layers[0], weights=np.ones((1, 1, 1), np.float32)),)
    )
    assert sink_sentence(one) is None


@pytest.mark.parametrize(
    "how", [{}, {"causal": True, "n_layers": 2}, {"dropout": 0.5}, {"off": "0.1"}, {"window": 2}], ids=str
)
def test_value_zeroing_by_hand(how: dict[str, object]) -> None:
    model = open_model("random" if how else "demo", **({"d_model": 8, "n_heads": 2} | how if how else {}))
    text = "Alice will eat pizza"
    trace = attend(text, model)
    got = prepare(TextSource(model, text), Changes("value-zeroing")).trace()
    assert got.measure == "value-zeroing" and "Mohebbi" in got.notes[-1] and len(got.layers) == len(trace.layers)
    for layer, zeroed in zip(trace.layers, got.layers, strict=True):
        x = trace.embeddings if layer.input is None else layer.input  # (n, d_model)
        own, expected = layer_output(layer, x, layer.values, "off" in how), np.zeros((4, 4))
        for j in range(4):
            values = layer.values.copy()
            values[:, j] = 0
            other = layer_output(layer, x, values, "off" in how)
            lengths = np.linalg.norm(own, axis=-1) * np.linalg.norm(other, axis=-1)  # (n,)
            expected[:, j] = 1 - (own * other).sum(-1) / np.where(lengths, lengths, 1)
            expected[~own.any(-1) & ~other.any(-1), j] = 0
        sums = expected.sum(-1, keepdims=True)
        # a row whose every weight was dropped has nothing to share out
        np.testing.assert_allclose(zeroed.weights[0], expected / np.where(sums > 1e-12, sums, np.inf), atol=1e-6)


def test_value_zeroing_tells_how_far_it_is() -> None:
    said, shares = [], []

    @contextmanager
    def bar(what: str) -> Iterator[Callable[[float], None]]:
        said.append(what)
        yield shares.append

    for layers in (None, 1):
        source = TextSource(open_model("random", n_layers=2, d_model=8, n_heads=2), "Alice will eat pizza")
        source.progress = bar
        prepare(source, Changes("value-zeroing"), layers)
        assert sum(shares) == pytest.approx(len(said)) and len(shares) % 4 == 0
    assert said == ["4 tokens, 2 layers", "4 tokens, 1 layer"]


def test_value_zeroing_of_outputs_of_zeros() -> None:
    """They turn wholly where one alone is zero, not at all where both are; a row of which nothing turns stays empty."""
    layer = LayerTrace(0, (0,), (0,), weights=np.full((1, 3, 3), 1 / 3, np.float32))
    own = np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    zeroed = np.array([[[0, 1], [0, 0], [1, 0]], [[2, 0], [0, 0], [0, 0]], [[0, 0], [0, 0], [0, 0]]], float)
    found = measure_named("value-zeroing").function(layer, own, [zeroed[:1], zeroed[1:]])
    np.testing.assert_allclose(found.weights[0], [[0.5, 0, 0.5], [0, 0, 0], [1, 0, 0]])
    assert found.mask is None


def layer_output(layer: LayerTrace, x: np.ndarray, values: np.ndarray, second_off: bool) -> np.ndarray:
    """What a layer of a built-in model hands on: (n, d_out)."""
    weights = layer.weights if layer.dropped_weights is None else layer.dropped_weights  # (heads, n, n)
    context = weights.astype(np.float64) @ values  # (heads, n, d_v)
    if second_off:
        context[1] = 0
    mixed = np.concatenate(list(context), -1)  # (n, heads · d_v)
    mixed = mixed @ layer.parameters["W_O"] if "W_O" in layer.parameters else mixed
    mixed = mixed + layer.parameters.get("b_O", 0)
    return x + mixed if layer.residual is not None else mixed  # (n, d_out)


def test_value_zeroing_needs_a_model_that_runs(tmp_path: Path) -> None:
    np.savez(tmp_path / "qkv.npz", **dict.fromkeys("QKV", np.eye(2, dtype=np.float32)))
    small = open_model("random", d_model=8, n_heads=2)
    for source, said in (
        (TraceSource(trace_of(random_weights())), "give the text and its model, not x"),
        (TextSource(open_model(qkv=str(tmp_path / "qkv.npz")), "a b"), "runs a model's layers again, and .* has none"),
        (TextSource(small, "word " * 2049), "runs every layer once for each of 2,049 tokens, at most 2,048"),
    ):
        with pytest.raises(UsageError, match=said):
            prepare(source, Changes("value-zeroing"))
    said: list[str] = []
    prepare(TextSource(small, "word " * 130), Changes("value-zeroing"), say=said.extend)
    assert "130 tokens" in said[0]


def test_what_is_asked_of_a_measure_by_its_name() -> None:
    assert [measure_named(name).name for name in measure_names()] == ["rollout", "value-norm", "value-zeroing"]
    named = (None, "weights", *measure_names())
    assert [name for name in named if joins_heads(name)] == ["rollout", "value-zeroing"]
    assert [needs_of(name) for name in named] == [None, None, "layers", "values", "network"]
    given = TextSource(open_model("random"), "Alice will eat")
    assert prepare(given, Changes("weights")).source is given


def test_a_map_of_all_heads_is_not_called_head_0(run: Callable[..., Result], tmp_path: Path) -> None:
    """Two layers of rollout or value zeroing stood under "head 0"."""
    written = run("heatmap", "Alice will eat", "--measure", "value-zeroing", "-o", tmp_path / "z.svg")
    assert written.code == 0 and "all heads" in (tmp_path / "z.svg").read_text()
    grid = read_heatmap(record_trace(open_model("demo"), "Alice will eat"))
    assert (
        grid.panel_name(3) == "head 3"
        and replace(grid, overview=grid.overview.about(measure="rollout")).panel_name(0) == "all heads"
    )
