"""How many tokens a table of positions is for."""

from __future__ import annotations

import pytest
import torch

from attnctl.models.huggingface.network import usable_positions
from tests.tools.sweep.families import Family, build
from tests.tools.sweep.modes import ids

AFTER_PADDING = ["camembert", "esm", "ibert", "longformer", "luke", "mpnet", "prophetnet", "roberta", "xmod"]


@pytest.mark.parametrize("kind", [*AFTER_PADDING, "bert", "biogpt", "gpt2", "opt"])
def test_positions_that_begin_after_the_padding_tokens_id(kind: str) -> None:
    """A text as long as is said is read, and one a token longer is not."""
    network = build(Family(kind, "causal" if kind in ("prophetnet", "biogpt") else "base"))
    longest = usable_positions(network, network.config.max_position_embeddings) or 0
    assert (longest < network.config.max_position_embeddings) is (kind in AFTER_PADDING)
    with torch.no_grad():
        network(input_ids=ids(1, longest))
        with pytest.raises(Exception, match=r"index|size|expand|shape"):
            network(input_ids=ids(1, longest + 1))
