"""What heads are called after what was measured of them elsewhere, over many texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

Names = dict[tuple[int, int], tuple[str, ...]]  # (layer, head) →


@dataclass(frozen=True)
class HeadNames:
    """Names for heads of `model`, which has so many layers and heads; `legend` is a sentence that says what they tell."""

    model: str
    head_grid: tuple[int, int]
    by_head: Names
    legend: str


@runtime_checkable
class NamesHeads(Protocol):
    """A table of what heads do, after which they can be called."""

    def head_names(self) -> HeadNames:
        """Return the names."""
