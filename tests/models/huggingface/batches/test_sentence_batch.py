"""The weights of several texts in one pass: the model's own kernel runs until it has been checked. About 2 s."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("transformers", reason="attnctl[hf] is not installed")

import torch

from attnctl.arrays import as_numpy
from attnctl.models import open_model
from attnctl.models.huggingface.attention_interface import watch_attention
from attnctl.models.huggingface.checkpoint import Checkpoint
from attnctl.models.huggingface.padded_batch import weights_of_several
from tests.tools import folders

SHORT, LONG = "the cat sat", "the cat sat on the mat because it was warm"


@pytest.mark.parametrize("case", ["llama", "bert", "mistral, window"])
def test_a_kernel_is_run_until_it_was_held_against_calls_of_a_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    model = open_model(str(folders.write(tmp_path / "model", case)))
    assert isinstance(model, Checkpoint)
    runs: list[int] = []
    kernel = torch.nn.functional.scaled_dot_product_attention

    def counted_kernel(*args: torch.Tensor, **how: object) -> torch.Tensor:
        runs.append(1)
        return kernel(*args, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counted_kernel)

    def weights_of(*texts: str) -> list[np.ndarray]:
        kept: list[np.ndarray] = []
        runs.clear()
        weights_of_several(model, [model.tokenize(text) for text in texts], lambda _, own: kept.append(as_numpy(own)))
        return kept

    fused = model.network.config._attn_implementation == "sdpa"
    first = weights_of(SHORT)
    assert len(runs) == fused * len(first)
    for texts, is_checked in (((SHORT,), True), ((LONG,), False), ((SHORT, LONG), False), ((SHORT, LONG), True)):
        found = weights_of(*texts)
        assert len(runs) == fused * (not is_checked) * len(found)
        if texts[0] == SHORT:
            n = first[0].shape[-1]
            for own, alone in zip(found, first, strict=True):
                assert np.abs(own[:1, :, :n, :n] - alone).max() < 1e-6
    with watch_attention(model.network, lambda *_: None):  # who watches beside it sees the model's own kernel
        weights_of(SHORT)
        assert len(runs) == fused * len(first)
