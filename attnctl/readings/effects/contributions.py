"""Direct logit attribution: the logit of a word as a sum over what each part of a model wrote to the residual stream."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class ContributionPart:
    """What one part adds to a logit: the embedding, a head, an MLP, a bias, under the final norm's scale on this text.

    `keys`: of a head, the same by source token, Σⱼ weight · value · W_O · unembedding.
    """

    part: str  # embedding, head, mlp, bias, …
    value: float
    layer: int | None = None
    head: int | None = None
    keys: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Contributions:
    """The logit of a word (minus that of another), by the model itself and as the sum of its parts."""

    logit: float
    parts: tuple[ContributionPart, ...]
    notes: tuple[str, ...] = ()

    @property
    def sum_of_parts(self) -> float:
        """What the parts add up to."""
        return math.fsum(part.value for part in self.parts)
