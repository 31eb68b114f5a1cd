"""A checkpoint as it is opened: it can be watched, lets texts share a forward, and can be had as before its training."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnctl.errors import AttnctlError, in_one_line
from attnctl.layer.interventions import Intervention
from attnctl.models.huggingface.checkpoint import Checkpoint

if TYPE_CHECKING:
    from attnctl.models.huggingface.padded_batch import PaddedTexts
    from attnctl.models.huggingface.watched import WatchedNetwork


class OpenedCheckpoint(Checkpoint):
    """A checkpoint with what is built on checkpoints."""

    def with_heads_off(self, heads: Mapping[int, tuple[int, ...]]) -> Checkpoint:
        """Return this checkpoint with these heads (layer → heads) off in every run, and no others.

        Raises AttnctlError for an architecture whose heads cannot be switched off.
        """
        from attnctl.models.huggingface.watched import check_switchable

        check_switchable(self.network)
        return replace(self, info=self.info.with_heads_off(heads), intervention=Intervention(heads) if heads else None)

    def watch(self, text: str, query: str | None, base: Intervention) -> WatchedNetwork:
        """Return the text with the watched position: `query`, the mask of a masked model, or the last token.

        Raises AttnctlError for an architecture whose heads cannot be switched off, UsageError for an unknown query.
        """
        from attnctl.models.huggingface.watched import watch_network

        return watch_network(self, text, query, base)

    def shared_pass(self) -> PaddedTexts | None:
        """Return how texts share a forward, padded to one length; None if each is read alone."""
        from attnctl.models.huggingface.padded_batch import PaddedTexts, can_batch

        return PaddedTexts(self) if can_batch(self) else None

    def before_training(self, seed: int) -> Checkpoint:
        """Return this checkpoint with newly initialised parameters. Raises AttnctlError if its network cannot be built."""
        import torch

        network = self.network
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            try:
                model_class: Any = type(network)
                fresh = model_class(copy.deepcopy(network.config))
            except Exception as error:
                raise AttnctlError(
                    f"{type(network).__name__} cannot be built untrained ({in_one_line(error)})"
                ) from error
        fresh = fresh.to(device=network.device, dtype=network.dtype).eval().requires_grad_(False)
        return replace(self, network=fresh)
