"""Names of heads, taken from a measurement over many texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

Names = dict[tuple[int, int], tuple[str, ...]]  # (layer, head) →


@dataclass(frozen=True)
class HeadNames:
    """Names for the heads of `model`; `head_grid` holds its numbers of layers and heads, `legend` explains the names."""

    model: str
    head_grid: tuple[int, int]
    by_head: Names
    legend: str


@runtime_checkable
class NamesHeads(Protocol):
    """A table of measurements that gives names to heads."""

    def head_names(self) -> HeadNames:
        """Return the names of the heads, with the model that they belong to."""
