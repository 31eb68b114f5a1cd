"""oneDNN's products equal torch's own, and nothing else is touched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="attnctl[hf] is not installed")

import torch

import attnctl
from attnctl.arrays import as_numpy
from attnctl.models import open_model
from attnctl.models.huggingface.packed_linear import PackedLinear, packed_products, packing_mode
from attnctl.models.huggingface.padded_batch import weights_of_several
from tests.tools import architectures as zoo
from tests.tools import folders


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


TEXT = "Alice eats pizza with Bob " * 2


def batch_weights(model: Any) -> np.ndarray:
    return [trace.layers[-1].weights for trace in attnctl.batch([TEXT] * 4, model)][0]


def census_weights(model: Any) -> np.ndarray:
    kept: list[np.ndarray] = []
    weights_of_several(model, [model.tokenize(TEXT)] * 4, lambda _, weights: kept.append(as_numpy(weights)[0]))
    return kept[-1]


def part_measures(model: Any) -> np.ndarray:
    found = attnctl.sources("Alice eats pizza with Bob\n" * 2, model, answer="pizza", spans="lines")
    return np.array([found.log_probability, *(part.matters for part in found.parts)], dtype=float)


@pytest.mark.parametrize("measure", [batch_weights, census_weights, part_measures])
def test_a_network_changed_in_place_is_read_as_it_is_now(tmp_path: Path, measure: Callable[[Any], np.ndarray]) -> None:
    """Not with the weights of the first run; `.data` changes a tensor without raising its version."""
    model: Any = open_model(str(folders.write(tmp_path / "model", "llama")))
    before = measure(model)
    for parameter in model.network.parameters():
        parameter.data.mul_(1.5)
    changed = measure(model)
    assert np.abs(changed - before).max() > 0.01
    model.network.save_pretrained(tmp_path / "model")
    np.testing.assert_allclose(changed, measure(open_model(str(tmp_path / "model"))), atol=1e-5)
