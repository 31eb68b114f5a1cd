"""oneDNN's products equal torch's own, and nothing else is touched."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers", reason="attnctl[hf] is not installed")

import torch

from attnctl.models.huggingface.batches.packed_linear import PackedLinear, packed_products, packing_mode
from tests.models.huggingface import architectures as zoo


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(9, 15, 32), (40, 32), (3, 32)])
def test_products_are_those_of_torch(shape: tuple[int, ...], bias: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    layer = torch.nn.Linear(32, 48, bias=bias)
    x = torch.randn(*shape, generator=generator)
    with torch.no_grad():
        plain = layer(x)
        mode = packing_mode(zoo.build("llama"))
        with packed_products(mode):
            torch.testing.assert_close(layer(x), plain, atol=1e-5, rtol=1e-5)
            assert layer(x.double().float()[:0]).shape == (0, *shape[1:-1], 48)


def test_with_gradients_or_halves_torch_does_it_alone() -> None:
    layer, x = torch.nn.Linear(32, 48), torch.randn(40, 32)
    mode = PackedLinear()
    with packed_products(mode):
        layer(x).sum().backward()
        with torch.no_grad():
            layer.bfloat16()(x.bfloat16())
    assert layer.weight.grad is not None
    assert not mode._packed
    assert packing_mode(zoo.build("llama", dtype=torch.bfloat16)) is None
