"""--words, --measure and `check`, as typed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attnctl.measures import measure_named, measure_names
from attnctl.models import check as checking
from attnctl.models import open_model
from attnctl.source import record_trace
from tests.conftest import Run

MODEL = ["--model", "random", "--layers", "3", "--heads", "2", "--d-model", "8"]
TEXT = "Alice will eat pizza"


@pytest.mark.parametrize("measure", measure_names())
def test_measures_are_named_wherever_they_are_shown(measure: str, run: Run) -> None:
    done = run("explain", TEXT, *MODEL, "--measure", measure, "--layer", "2", "--json")
    assert done.json["measure"] == measure
    assert [part["layer"] for part in done.json["layers"]] == [2]
    np.testing.assert_allclose(np.sum(done.json["layers"][0]["heads"][0]["weights"], axis=-1), 1, rtol=1e-5)
    walk = run("explain", TEXT, *MODEL, "--measure", measure, "--layer", "2").out
    named = measure_named(measure)
    assert f"comes from: {named.formula}" in walk and named.sentence[:30] in walk
    assert not any(part in walk for part in ("softmax(", "pays", "exp(score)"))


def test_words_on_the_command_line(run: Run) -> None:
    chars = [*MODEL, "--tokenizer", "chars", "--words"]
    tokens = run("explain", TEXT, *chars, "--query", "eat", "--json").json["tokens"]
    assert [token["text"] for token in tokens if token["text"].strip()] == TEXT.split()
    assert "Alice" in run("heatmap", TEXT, *chars).out


def test_check(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    done = run("check", TEXT, *MODEL, "--causal")
    assert done.code == 0 and "✗" not in done.out and "✓ context against torch's fused kernel" in done.out
    model = open_model("random", causal=True)

    def wrong(*given: Any, **how: Any) -> Any:
        trace = record_trace(model, TEXT)
        trace.layers[0].weights[0, 1] *= 0.5
        trace.layers[0].context[0, 1] += 0.5
        trace.layers[0].weights[0, 3, 0] = np.nan
        return trace

    monkeypatch.setattr(checking, "record_trace", wrong)
    bad = run("check", TEXT, "--model", "random")
    assert bad.code == 4
    marks = {line[2:9]: line[0] for line in bad.out.splitlines()}
    assert marks["context"] == marks["row sum"] == marks["rows wi"] == "✗" and marks["labels "] == "✓"


@pytest.mark.parametrize("how", [["--temperature", "2"], ["--dropout", "0.2", "--temperature", "0.5"]])
def test_a_temperature_and_dropout_pass_the_check(how: list[str], run: Run) -> None:
    """Both were ✗: the kernel was asked for neither."""
    found = run("check", TEXT, "--model", "random", "--causal", *how)
    assert found.code == 0 and "✗" not in found.out
    assert ("the fused kernel drops other weights" in found.out) == ("--dropout" in how)
