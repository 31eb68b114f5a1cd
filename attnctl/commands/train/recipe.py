"""Recipes: all settings of a training run except its corpus, and the recipes of the bundled models."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

GRAMMAR = "grammar"


@dataclass(frozen=True)
class Recipe:
    """All settings that a training run depends on, except its corpus."""

    objective: str = "masked-word"
    corpus: str = GRAMMAR
    layers: int = 1
    heads: int = 4
    d_model: int = 32
    d_k: int | None = None  # of a head; None: d_model / heads
    bias: bool = False
    rope_theta: float | None = None  # None: learned positions
    tied: bool = False
    steps: int = 8000
    batch_size: int = 128
    lr: float = 5e-3
    seed: int = 0
    device: str = "auto"
    candidates: int | None = None  # wrong words drawn for the loss beside the true ones; None: all words
    first_window: int | None = None  # the first layer sees fewer words than this on each side; None: all
    pieces: int | None = None  # rows for the letters of unknown words; None: words of one shape are read alike
    min_length: int = 32  # learned positions, even if every sentence of the corpus is shorter

    @property
    def causal(self) -> bool:
        """Return whether the network may look only at earlier words."""
        return self.objective == "next-word"

    @cached_property
    def checkpoints(self) -> frozenset[int]:
        """Return the steps whose weights are saved: 1, 2, 5, 10, … while much changes, then every twentieth of the run."""
        even = max(1, self.steps // 20)
        early = {m * 10**e for e in range(7) for m in (1, 2, 5) if m * 10**e < even}
        return frozenset({0, self.steps} | early | set(range(even, self.steps + 1, even)))

    @property
    def report_every(self) -> int:
        """Return the number of steps between two reports."""
        return max(1, self.steps // 100)


# the recipes of the two bundled models
_SAME = Recipe(
    layers=2,
    heads=6,
    d_model=64,
    d_k=16,
    rope_theta=3000.0,
    batch_size=112,
    lr=5e-3,
    candidates=512,
    tied=True,
    bias=True,
    pieces=1024,
)
DEFAULTS = {
    "masked-word": replace(_SAME, first_window=4, steps=26_000),
    "next-word": replace(_SAME, objective="next-word", steps=18_000),
}
# recipes for the user's own text: a small network, trained in a few minutes
OWN_TEXT = {
    "masked-word": Recipe("masked-word", "text", d_model=64, bias=True, steps=4000),
    "next-word": Recipe("next-word", "text"),
}
