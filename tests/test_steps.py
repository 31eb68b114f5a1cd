"""Where a walk through the steps looks: the query asked for is the query shown."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from attnctl.layer import LayerTrace
from attnctl.readings.questions.focus import focus
from attnctl.readings.traces.trace import ModelInfo, Trace
from attnctl.steps import narrow_trace, walk_steps
from attnctl.tokens import Token
from tests.conftest import SAMPLES, attend


@st.composite
def random_traces(draw: st.DrawFn) -> Trace:
    """A trace of random weights, causal or not, whole or of some rows, peaky enough that rows attend to themselves."""
    n, heads = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    dice = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scores = dice.normal(size=(heads, n, n)) * draw(st.sampled_from([0.1, 3.0, 30.0]))  # (heads, n, n)
    scores += np.eye(n) * draw(st.sampled_from([0.0, 50.0]))
    mask = np.tri(n, dtype=bool) if draw(st.booleans()) else None  # (n, n)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = (shares / shares.sum(axis=-1, keepdims=True)).astype(np.float32)  # (heads, n, n)
    rows = draw(st.none() | st.lists(st.integers(0, n - 1), min_size=1, unique=True).map(tuple))
    if rows is not None:
        weights, mask = weights[:, list(rows)], None if mask is None else mask[list(rows)]
    tokens = tuple(Token(f"w{i}", i, special=draw(st.booleans())) for i in range(n))
    kind = draw(st.sampled_from(["matrix", "checkpoint"]))
    layer = LayerTrace(
        layer=0, heads=tuple(range(heads)), kv_heads=tuple(range(heads)), weights=weights, mask=mask, rows=rows
    )
    return Trace(
        text="", tokens=tokens, model=ModelInfo("random", kind, n_heads=heads, causal=mask is not None), layers=(layer,)
    )


@given(random_traces(), st.data())
def test_the_query_asked_for_is_the_query_shown(trace: Trace, data: st.DataObject) -> None:
    layer = trace.layers[0]
    query = data.draw(st.sampled_from(layer.rows or range(len(trace.tokens))))
    found = focus(trace, query=query)
    assert found is not None and found.query == query
    row = (layer.rows or tuple(range(len(trace.tokens)))).index(query)
    assert found.weight == layer.weights[found.head, row, found.key]
    assert layer.mask is None or layer.mask[row, found.key]


@given(random_traces())
def test_a_query_that_a_trace_has_no_row_of_is_no_focus(trace: Trace) -> None:
    assert focus(trace, query=len(trace.tokens)) is None
    everywhere = focus(trace)
    assert everywhere is not None and everywhere.query in (trace.layers[0].rows or range(len(trace.tokens)))


def test_matrices_are_a_step_where_they_are_asked_for() -> None:
    trace = attend("Alice will eat pizza", n_heads=4, n_kv_heads=2, d_model=8, d_k=3)
    assert all(step.name != "matrices" for step in walk_steps(trace))
    shown = list(walk_steps(trace, [3], ["matrices"]))
    assert [(step.layer, step.head) for step in shown] == [(0, 3)]
    parts = {part.name: np.asarray(part.array) for part in shown[0].parts}
    layer = trace.layers[0]
    assert trace.embeddings is not None and layer.queries is not None and layer.context is not None
    assert {name: array.shape for name, array in parts.items()} == dict.fromkeys(("W_Q", "W_K", "W_V"), (8, 3)) | {
        "W_O": (3, 8)
    }
    np.testing.assert_allclose(trace.embeddings @ parts["W_Q"], layer.queries[3], atol=1e-5)
    own = [layer.context[at] @ next(iter(walk_steps(trace, [at], ["matrices"]))).parts[-1].array for at in range(4)]
    np.testing.assert_allclose(sum(own), layer.output, atol=1e-4)
    assert (
        narrow_trace(trace, ["matrices"]).layers[0].parameters
        and not narrow_trace(trace, ["keys"]).layers[0].parameters
    )


def test_a_scale_says_who_set_it() -> None:
    for model, who in (
        ("random", "the scale that was asked for"),
        (str(SAMPLES / "journey.safetensors"), "the scale that its file or --scale sets"),
    ):
        trace = attend("Your journey starts", model=model, scale=0.3)
        (step,) = walk_steps(trace, None, ["scaled"])
        assert step.sentence == f"Multiplied by {who}."
