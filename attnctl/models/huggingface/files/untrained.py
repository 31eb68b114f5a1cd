"""A checkpoint as it was before training: the same architecture and tokenizer, its parameters drawn anew."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from attnctl.errors import AttnctlError, in_one_line
from attnctl.models.huggingface.checkpoint import Checkpoint


def untrained_checkpoint(model: Checkpoint, seed: int = 0) -> Checkpoint:
    """The checkpoint with parameters as its architecture initialises them. Raises AttnctlError where that fails."""
    import torch

    network = model.network
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            model_class: Any = type(network)
            fresh = model_class(copy.deepcopy(network.config))
        except Exception as error:
            raise AttnctlError(f"{type(network).__name__} cannot be built untrained ({in_one_line(error)})") from error
    fresh = fresh.to(device=network.device, dtype=network.dtype).eval().requires_grad_(False)
    return replace(model, network=fresh)
