"""`--off`: a model with some of its heads off, in every command that runs one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import attnctl
from attnctl.formats.storage import from_json
from attnctl.trace.steps import walk_steps
from tests.conftest import Run

TEXT = "Alice will eat"


@pytest.fixture
def off(run: Run) -> str:
    """The head of the demo whose absence does most to the prediction."""
    best = run("ablate", TEXT, "--json").json["heads"][0]
    return f"{best['layer']}.{best['head']}"


def test_the_prediction_is_that_of_ablate(run: Run, off: str) -> None:
    best = run("ablate", TEXT, "--json").json["heads"][0]["best"]
    trace = run("explain", TEXT, "--json", "--off", off, "--predict", "eat").json
    assert trace["predictions"][0]["text"] == best["text"]
    assert trace["predictions"][0]["probability"] == pytest.approx(best["probability"], rel=1e-5)
    assert trace["model"]["name"] == f"demo without {off}"
    assert f"Off (layer.head): {off}." in trace["notes"][-1]


def test_compare_of_without_and_with(run: Run, off: str) -> None:
    Path("text.txt").write_text(TEXT)
    result, typed = (
        run("compare", "demo-causal", "demo-causal", *words, "--off", off) for words in (["--file", "text.txt"], [TEXT])
    )
    assert result.code == 0 and typed == result
    assert f"B  demo-causal without {off}" in result.out
    first, second = result.err.splitlines()[:2]
    assert first.startswith("attnctl: note: demo-causal continues with")
    assert second.startswith(f"attnctl: note: demo-causal without {off} continues with")


def test_in_python_the_residual_stream_lacks_what_the_head_wrote() -> None:
    whole, without = attnctl.attend(TEXT), attnctl.attend(TEXT, off="0.1")
    layer, other = whole.layers[0], without.layers[0]
    width = layer.context.shape[-1]
    lost = layer.context[1] @ layer.parameters["W_O"][width : 2 * width]
    np.testing.assert_allclose(other.output, layer.output - lost, atol=1e-5)
    np.testing.assert_array_equal(other.context, layer.context)


def test_what_is_shown_of_a_head_that_is_off_adds_up(run: Run) -> None:
    """The contexts side by side, times W_O, are the output: a head that is off stands there as zeros."""
    trace = attnctl.attend("Alice will eat pizza", off="1.2,1.4")
    assert trace.model.off == {1: (2, 4)} and trace.model.card_name == "demo"
    assert '"off":"1.2, 1.4","finds":[{"layer":1,' in trace.to_json()
    assert from_json(trace.to_json().encode()).model == trace.model
    (step,) = (step for step in walk_steps(trace, None, ["output"]) if step.layer == 1)
    side_by_side, output = (part.array for part in step.parts)
    np.testing.assert_allclose(side_by_side @ trace.layers[1].parameters["W_O"], output, atol=1e-4)
    assert step.sentence.endswith("Heads 2 and 4 are off: 0 replaces their contexts.")
    assert "is off" not in run("explain", "Alice will eat pizza", "--off", "1.2", "--layer", "0").out


def test_a_copy_of_a_model_keeps_its_heads_off() -> None:
    """It was a wrapper, of which dataclasses.replace made no copy, or one with every head."""
    model = attnctl.open_model("demo", off="1.2")
    again = replace(model, predict="eat")
    assert again.info.off == {1: (2,)}
    whole, without = attnctl.attend(TEXT), attnctl.attend(TEXT, again)
    assert np.abs(whole.layers[1].output - without.layers[1].output).max() > 1e-3
