"""The state of a training: the network's parameters, its optimizer, and the step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from attnctl.commands.train.corpus import Corpus
from attnctl.commands.train.objectives import Batches
from attnctl.commands.train.recipe import Recipe

if TYPE_CHECKING:
    from attnctl.attention import Array


@dataclass
class Training:
    """A network, its optimizer, and the step that they have reached."""

    recipe: Recipe
    corpus: Corpus
    parameters: dict[str, Tensor]
    optimizer: torch.optim.AdamW
    batches: Batches
    pieces: Tensor | None = None  # (vocabulary, most pieces) the pieces of each word's letters, -1 after its last
    step: int = 0
    losses: list[float] = field(default_factory=list)  # of the steps since the last report

    def parameter_arrays(self) -> dict[str, Array]:
        """Return the parameters as NumPy arrays."""
        return {name: tensor.detach().cpu().numpy() for name, tensor in self.parameters.items()}
