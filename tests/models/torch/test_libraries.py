"""Models of another library, by their own names: the weights are those that the library itself returns."""

import pytest
import torch

pytest.importorskip("x_transformers", reason="x-transformers is not installed")

import attnctl
from tests.tools.torch_libraries import CASES

ROWS = [name for name in CASES if name.startswith("x-transformers")]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ROWS)
def test_the_weights_are_those_of_the_library(name: str) -> None:
    """`python -m tests.tools.torch_libraries` has more libraries, which need torchvision."""
    torch.manual_seed(0)
    model, forward, expected = CASES[name]()
    with torch.no_grad(), attnctl.capture(model) as traces:
        forward()
    for call, other in zip(traces, expected(), strict=True):
        assert (call.weights - other).abs().max() < 1e-6
    assert not traces.unseen


def test_whether_the_mask_of_a_library_holds() -> None:
    model, _, _ = CASES["x-transformers, decoder"]()
    ids = torch.randint(0, 50, (2, 9))
    assert attnctl.mask(model, ids, expect="causal").holds
    shown = torch.ones(2, 9, dtype=torch.bool)
    shown[1, 6:] = False
    found = attnctl.mask(model, ids, mask=shown, expect="causal")
    assert found.holds and {group.sentence for group in found.groups} == {"causal", "causal, padding 6–8 hidden"}
