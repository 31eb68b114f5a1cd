"""Traces: everything shown can be recomputed from the file, in any form, and bad files are refused in one line."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnctl
from attnctl.errors import AttnctlError
from attnctl.formats.storage import from_json
from tests.conftest import attend


def made(**how: Any) -> attnctl.Trace:
    return attend("Alice will eat pizza", **how)


def test_everything_shown_can_be_recomputed_in_float64() -> None:
    document = json.loads(made(n_heads=2, n_layers=2, causal=True).to_json())
    x = np.asarray(document["embeddings"])
    for layer in document["layers"]:
        mask, contexts = np.asarray(layer["mask"]), []
        for head in layer["heads"]:
            q, k, v = (x @ np.asarray(head[name]) for name in ("W_Q", "W_K", "W_V"))
            np.testing.assert_allclose(q, head["queries"], atol=1e-5)
            scores = q @ k.T
            np.testing.assert_allclose(scores, head["scores"], atol=1e-4)
            scaled = scores * document["model"]["scale"]
            np.testing.assert_allclose(scaled, head["scaled_scores"], atol=1e-4)
            e = np.where(mask, np.exp(scaled), 0)
            weights = e / e.sum(-1, keepdims=True)
            np.testing.assert_allclose(weights, head["weights"], atol=1e-5)
            contexts.append(weights @ v)
            np.testing.assert_allclose(contexts[-1], head["context"], atol=1e-5)
        output = np.concatenate(contexts, -1) @ np.asarray(layer["W_O"])
        np.testing.assert_allclose(output, layer["output"], atol=1e-5)
        x = x + output
        np.testing.assert_allclose(x, layer["residual"], atol=1e-4)


def test_lone_surrogates_in_json_become_replacement_characters() -> None:
    text = made().to_json().replace('"text":"Alice"', '"text":"Al\\ud800ice"')
    assert from_json(text).tokens[0].text == "Al\ufffdice"


def test_pickles_are_never_opened(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "exploded",))

    buffer = io.BytesIO()
    np.savez(buffer, trace=np.asarray([Bomb()], dtype=object))
    (tmp_path / "bomb.npz").write_bytes(buffer.getvalue())
    with pytest.raises(AttnctlError, match="never unpickles"):
        attnctl.load(tmp_path / "bomb.npz")
    assert not (tmp_path / "exploded").exists()


def test_numbers_that_are_not_finite_are_not_written_over_what_was_there(tmp_path: Path) -> None:
    trace = made()
    (tmp_path / "run.json").write_text("before")
    for value in (np.nan, np.inf):
        trace.layers[0].weights[0, 0, 0] = value
        with pytest.raises(AttnctlError, match="layer 0: weights: a number is not finite"):
            trace.save(tmp_path / "run.json")
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    assert (tmp_path / "run.json").read_text() == "before"


def test_a_trace_prints_in_a_few_lines() -> None:
    trace = attend("Alice will eat pizza " * 9, "random", n_layers=7, n_heads=2, d_model=16)
    printed = str(trace).splitlines()
    assert len(printed) == 6 and all(len(line) < 300 for line in printed)
    assert printed[0].startswith("Trace of 'Alice will eat") and "36 tokens" in printed[0]
    assert "layer 0, heads 0, 1: queries (2, 36, 8)" in printed[1] and printed[5] == "  … 3 more layers"


def test_the_weights_of_one_head() -> None:
    trace = attend("Alice will eat", model="random", n_heads=4, head=[1, 3])
    (layer,) = trace.layers
    np.testing.assert_array_equal(layer.head_weights(3), layer.weights[1])
    with pytest.raises(AttnctlError, match="it has 1, 3"):
        layer.head_weights(0)
    with pytest.raises(AttnctlError, match="holds no weights"):
        replace(layer, weights=None).head_weights(1)
