"""Where a walk through the steps looks: the query asked for is the query shown."""

from __future__ import annotations

import numpy as np
import pytest

from attnctl.errors import UsageError
from attnctl.layer import LayerTrace
from attnctl.readings.questions.headline import headline
from attnctl.text.tokens import Token
from attnctl.trace import Trace
from attnctl.trace.model_info import ModelInfo
from attnctl.trace.steps import check_names, narrow_trace, walk_steps
from attnctl.trace.subject import Subject
from tests.conftest import SAMPLES, attend


@pytest.mark.parametrize("kind", ["matrix", "checkpoint"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("strength", [0.1, 30.0])
@pytest.mark.parametrize("own", [0.0, 50.0])  # what a token's score of itself has more
def test_the_query_asked_for_is_the_query_shown(
    kind: str, causal: bool, whole: bool, strength: float, own: float
) -> None:
    dice = np.random.default_rng(0)
    for n in range(1, 7):
        scores = dice.normal(size=(dice.integers(1, 4), n, n)) * strength + np.eye(n) * own  # (heads, n, n)
        mask = np.tri(n, dtype=bool) if causal else None
        scores = scores if mask is None else np.where(mask, scores, -np.inf)
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights = (shares / shares.sum(axis=-1, keepdims=True)).astype(np.float32)  # (heads, n, n)
        rows = tuple(range(n)) if whole else tuple(dice.permutation(n)[: n // 2 + 1].tolist())
        kept = None if mask is None else mask[list(rows)]
        heads = tuple(range(len(weights)))
        layer = LayerTrace(0, heads, heads, weights=weights[:, list(rows)], mask=kept, rows=None if whole else rows)
        tokens = tuple(Token(f"w{at}", at, special=bool(dice.integers(2))) for at in range(n))
        trace = Trace(
            Subject("", tokens, ModelInfo("random", kind, n_heads=len(heads), causal=causal)), layers=(layer,)
        )
        for row, query in enumerate(rows):
            found = headline(trace, query=query)
            assert found is not None and found.query == query
            assert found.weight == layer.weights[found.head, row, found.key]
            assert layer.mask is None or layer.mask[row, found.key]
        everywhere = headline(trace)
        assert everywhere is not None and everywhere.query in rows
        assert headline(trace, query=n) is None


def test_matrices_are_a_step_where_they_are_asked_for() -> None:
    trace = attend("Alice will eat pizza", n_heads=4, n_kv_heads=2, d_model=8, d_k=3)
    assert all(step.name != "matrices" for step in walk_steps(trace))
    shown = list(walk_steps(trace, [3], ["matrices"]))
    assert [(step.layer, step.head) for step in shown] == [(0, 3)]
    parts = {part.name: np.asarray(part.array) for part in shown[0].parts}
    layer = trace.layers[0]
    assert trace.embeddings is not None and layer.queries is not None and layer.context is not None
    assert [array.shape for array in parts.values()] == [(8, 3), (8, 3), (8, 3), (3, 8)]
    assert list(parts) == ["W_Q", "W_K", "W_V", "W_O"]
    np.testing.assert_allclose(trace.embeddings @ parts["W_Q"], layer.queries[3], atol=1e-5)
    own = [layer.context[at] @ next(iter(walk_steps(trace, [at], ["matrices"]))).parts[-1].array for at in range(4)]
    np.testing.assert_allclose(sum(own), layer.output, atol=1e-4)
    kept = [narrow_trace(trace, [step]).layers[0].parameters for step in ("matrices", "keys")]
    assert kept[0] and not kept[1]


def test_a_scale_says_who_set_it() -> None:
    for model, who in (
        ("random", "the scale that was asked for"),
        (str(SAMPLES / "journey.safetensors"), "the scale that its file or an option sets"),
    ):
        trace = attend("Your journey starts", model=model, scale=0.3)
        (step,) = walk_steps(trace, None, ["scaled"])
        assert step.sentence == f"Multiplied by {who}."


def test_the_difference_of_two_maps_is_no_step() -> None:
    with pytest.raises(UsageError, match="no step 'difference'.* they are tokens, embeddings, "):
        check_names(["weights", "difference"])
