"""What heads are called after what was measured of them elsewhere, over many texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from attnctl.errors import UsageError
from attnctl.readings.questions.headline import roles_of_heads
from attnctl.trace.model_info import ModelInfo

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


def names_around(info: ModelInfo, names: HeadNames | None) -> tuple[Names, Names]:
    """Return the names that stand before those of a text, and behind them: of the model's own evaluation, or `names`.

    Raises UsageError if `names` are of a model of other sizes.
    """
    if names is None:
        return roles_of_heads(info), {}
    if names.head_grid != (info.n_layers, info.n_heads):
        layers, heads = names.head_grid
        raise UsageError(
            f"is of {names.model}, {layers} layers of {heads} heads: {info.name} has {info.n_layers} of {info.n_heads}",
            option="census",
        )
    return {}, names.by_head
