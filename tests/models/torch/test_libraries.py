"""Models of another library, by their own names: the weights are those that the library itself returns."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

pytest.importorskip("x_transformers", reason="x-transformers is not installed")

import attnctl
from tests.conftest import attend
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


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_heads_that_take_turns_at_shared_keys(kv_heads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Query head 1 of 4 was given key head 0 of 2, as in torch and transformers; in x-transformers it has key head 1."""
    from x_transformers import Attention

    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    module = Attention(dim=8, heads=4, dim_head=4, kv_heads=kv_heads)
    x = torch.randn(1, 5, 8)
    output, steps = module(x, return_intermediates=True)
    save_file(module.state_dict(), "w.safetensors")
    np.save("X.npy", x[0].numpy())
    trace = attend("a b c d e", "w.safetensors", embeddings="X.npy", n_heads=4)
    np.testing.assert_allclose(trace.layers[0].weights, steps.post_softmax_attn[0].numpy(force=True), rtol=0, atol=2e-7)
    np.testing.assert_allclose(trace.layers[0].output, output[0].numpy(force=True), rtol=0, atol=4e-7)
    assert ("modulo" in " ".join(trace.notes)) == (kv_heads == 2)


@pytest.mark.parametrize("option", ["return_embeddings", "output_attentions"])
def test_a_class_of_transformers_without_its_weights_in_the_output_is_read_as_a_module(option: str) -> None:
    """As Enformer of enformer-pytorch 0.8.12, which takes no `output_attentions`: a TypeError told nobody what to do.

    Chronos-2 of chronos-forecasting 2.3.2 takes it, but no `return_dict`.
    """
    transformers = pytest.importorskip("transformers")

    class Own(transformers.PreTrainedModel):  # type: ignore[name-defined, misc]
        config_class = transformers.PretrainedConfig

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.attention = torch.nn.ModuleDict({name: torch.nn.Linear(8, 8) for name in "qkv"})
            self.post_init()

        def attended(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = (self.attention[name](x) for name in "qkv")
            return (q @ k.mT).softmax(-1) @ v

        if option == "output_attentions":

            def forward(self, x: torch.Tensor, output_attentions: bool = False) -> torch.Tensor:
                return self.attended(x)
        else:

            def forward(self, x: torch.Tensor, return_embeddings: bool = False) -> torch.Tensor:  # type: ignore[misc]
                return self.attended(x)

    torch.manual_seed(0)
    model, x = Own(transformers.PretrainedConfig(attn_implementation="eager")).eval(), torch.randn(2, 5, 8)
    with torch.no_grad(), attnctl.capture(model) as traces:
        model(x)
        q, k = (model.attention[name](x).double() for name in "qk")
    (call,) = traces
    assert (call.weights[:, 0] - (q @ k.mT).softmax(-1)).abs().max() < 1e-6
