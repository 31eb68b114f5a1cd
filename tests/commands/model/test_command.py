"""`attnctl model` from outside: the sizes by hand, and the figures of a model that attnctl trained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.conftest import Run, process
from tests.tools.screen import cells


def test_sizes_of_a_checkpoint_are_the_products_by_hand(at_terminal: Run) -> None:
    """Of 4 heads and 2 key/value heads, d_model 32 and d_k 8, two layers."""
    pytest.importorskip("transformers", reason="attnctl[hf] is not installed")
    lines = cells(at_terminal("model", "llama", columns=120).out)
    for name, heads in (("W_Q", 4), ("W_K", 2), ("W_V", 2), ("W_O", 4)):
        layer = heads * 32 * 8
        assert [name, "256", f"{layer:,}", f"{2 * layer:,}", f"{2 * layer / 1000:.2f} k"] in lines
    assert ["together", "3,072", "6,144", "6.14 k"] in lines and ["embedding", "274 × 32", "8,768", "8.77 k"] in lines
    assert ["heads", "4 a layer, sharing 2 key/value heads"] in lines and ["context", "512 tokens"] in lines
    assert ["one n × n", f"{512 * 512 * 4 / 1e6:.0f} MB"] in lines
    assert ["one token", f"{2 * 2 * (8 + 8) * 2} B", "2 layers × 2 heads × (8 + 8)"] in lines


def test_nothing_stands_beside_the_sizes_of_a_model_that_caches() -> None:
    """A process of its own: transformers writes a warning of an old name once."""
    made = process("model", "gpt2")
    assert made.returncode == 0 and made.stderr == b""


@pytest.mark.parametrize("shape", [(2, 8, 4), (8, 8)])
def test_the_card_of_weights_has_their_sizes_in_either_layout(
    at_terminal: Run, tmp_path: Path, shape: tuple[int, ...]
) -> None:
    """(heads, d_model, d_k), or (d_model, heads · d_k) with the number of heads in the metadata."""
    file = tmp_path / "w.safetensors"
    tensors = {name: np.ones(shape, np.float32) for name in ("W_Q", "W_K", "W_V")}
    save_file(tensors, file, {"n_heads": "2"})
    assert "1, of 2 heads, d_model 8, d_k 4" in at_terminal("model", str(file), columns=200).out
    save_file({"proj.weight": tensors["W_Q"]}, file)
    assert "has no configuration to read" in at_terminal("model", str(file), columns=200).err


def test_a_model_of_ones_own_says_how_it_was_made(at_terminal: Run, room: Path) -> None:
    told = dict(line for line in cells(at_terminal("model", "run", columns=120).out) if len(line) == 2)
    shapes = at_terminal("model", "run", "--json").json["shapes"]
    count = sum(a * b * (rest[0] if rest else 1) for a, b, *rest in shapes.values())
    assert told["parameters"].startswith(f"{count:,} (") and told["vocabulary"] == f"{shapes['embedding'][0]} words"
    assert told["training"] == "2 steps of 4 sentences, AdamW, lr 0.005, seed 0"
