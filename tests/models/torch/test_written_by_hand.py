"""Attention that models write themselves, against an explicit softmax in float64."""

import pytest
import torch

import attnctl
from tests.models.torch.written_by_hand import MODELS, B, D, N, Written
from tests.models.torch.written_by_strangers import STRANGERS

EXACT = 1e-6  # float32 against float64


def texts() -> torch.Tensor:
    return torch.randn(B, N, D, generator=torch.Generator().manual_seed(1))


def built(kind: type[Written]) -> Written:
    torch.manual_seed(0)
    return kind().eval()


@pytest.mark.parametrize("kind", [*MODELS, *STRANGERS])
@pytest.mark.parametrize("mode", ["eval", "train"])
def test_weights_are_those_of_an_explicit_softmax(kind: type[Written], mode: str) -> None:
    model = built(kind).train(mode == "train")
    with attnctl.capture(model) as traces:
        model(texts())
    assert not traces.unseen
    assert [call.weights.shape for call in traces] == [weights.shape for weights in model.expected]
    for call, expected in zip(traces, model.expected, strict=True):
        assert (call.weights - expected).abs().max() < EXACT


@pytest.mark.parametrize("kind", [*MODELS, *STRANGERS])
def test_capture_changes_nothing(kind: type[Written]) -> None:
    model = built(kind).train()
    torch.manual_seed(3)
    plain = model(texts())
    torch.manual_seed(3)
    with attnctl.capture(model):
        watched = model(texts())
    assert torch.equal(plain, watched)


@pytest.mark.parametrize("kind", STRANGERS)
def test_tokens_that_look_at_each_other_are_self_attention(kind: type[Written]) -> None:
    """Also where the scores are no product: distances, a network for each pair."""
    model = built(kind)
    with attnctl.capture(model) as traces:
        model(texts())
    assert {call.kind for call in traces} == {"self"}
