"""What architectures outside the interface put out, as weights: windows laid out, scores through the softmax."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attnctl import limits
from attnctl.errors import AttnctlError
from attnctl.models.huggingface.capture import capture
from attnctl.models.huggingface.put_out import from_window
from tests.tools.sweep.families import Family, build
from tests.tools.sweep.modes import ids


def test_columns_of_a_window_are_put_where_their_keys_are() -> None:
    window = torch.arange(1.0, 13).reshape(1, 1, 4, 3)  # one token before and after
    assert from_window(window, 1)[0, 0].tolist() == [[2, 3, 0, 0], [4, 5, 6, 0], [0, 7, 8, 9], [0, 0, 10, 11]]


def longformer() -> Any:
    return build(Family("longformer", "base"))


@pytest.mark.parametrize(("n", "everywhere"), [(12, 1), (8, 3)])  # 8 columns for 8 keys, and they are not those keys
def test_tokens_that_are_seen_everywhere_are_refused(n: int, everywhere: int) -> None:
    """Their columns come before the window's, and their rows elsewhere."""
    network, mask = longformer(), torch.zeros(1, n)
    mask[0, :everywhere] = 1
    with torch.no_grad(), pytest.raises(AttnctlError, match=r"\(global attention\) before those"), capture(network):
        network(input_ids=ids(1, n), global_attention_mask=mask)


def test_two_streams_of_a_layer_are_refused() -> None:
    """XLNet as it generates: one stream knows the token that it asks for, the other does not."""
    network = build(Family("xlnet", "causal"))
    with pytest.raises(AttnctlError, match="numbers of 2 streams at once"), capture(network):
        network.generate(ids(1, 5), max_new_tokens=2, do_sample=False)


def test_a_text_whose_windows_do_not_fit_laid_out_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ALWAYS_FREE_BYTES", 0)
    monkeypatch.setattr(limits, "free_memory", lambda: 1000.0)
    network = longformer()
    with (
        torch.no_grad(),
        pytest.raises(AttnctlError, match="laying windows out .* give a shorter text"),
        capture(network),
    ):
        network(input_ids=ids(1, 12))
