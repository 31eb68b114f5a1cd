"""The softmax of a few scores, every step from the scores to the weights, and what plain division would give."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attnctl import __version__, attention

SCHEMA = "attnctl.softmax/1"
FACTORS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
CALM = 8.0  # scores up to here have exponentials that can be read; beyond, the largest is taken off first


Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SoftmaxSteps:
    """Scores (n,) with -inf for a masked one, and every step from there to the weights; all in float64."""

    scores: Doubles  # (n,)
    labels: tuple[str, ...] | None = None
    scale: float = 1.0
    temperature: float = 1.0

    @property
    def visible(self) -> npt.NDArray[np.bool_]:
        """Which scores are not masked: (n,)."""
        return np.isfinite(self.scores)

    @property
    def unmasked_scores(self) -> Doubles:
        """The scores, 0 where they are masked: (n,)."""
        return np.where(self.visible, self.scores, 0.0)  # (n,)

    @property
    def scaled_scores(self) -> Doubles:
        """Scores × scale, masked ones -inf: (n,)."""
        return np.where(self.visible, self.unmasked_scores * self.scale, -np.inf)  # (n,)

    @property
    def scaled(self) -> Doubles:
        """Scores × scale ÷ temperature, masked ones -inf: (n,)."""
        return self.scaled_scores / self.temperature  # (n,)

    @property
    def exponent_shift(self) -> float:
        """What is taken off before the exponential, which changes no weight: 0 where the numbers are readable without."""
        top = float(self.scaled.max())
        return top if abs(top) > CALM else 0.0

    @property
    def exponentials(self) -> Doubles:
        """exp(scaled - shift): (n,)."""
        return np.exp(self.scaled - self.exponent_shift)

    @property
    def weights(self) -> Doubles:
        """The softmax: (n,), summing to 1."""
        return self.weights_scaled_by(self.scale)

    def weights_scaled_by(self, scale: float) -> Doubles:
        """The softmax under another scale: (n,)."""
        weights: Doubles = attention.softmax(self.unmasked_scores * scale, self.visible, temperature=self.temperature)
        return weights

    @property
    def divided_by_sum(self) -> Doubles | None:
        """What dividing each score by the plain sum gives: (n,), or None where the sum is 0; masked ones 0."""
        total = self.unmasked_scores.sum()
        return (
            None if abs(total) <= 1e-12 * np.abs(self.unmasked_scores).max() else self.unmasked_scores / total
        )  # (n,)

    @property
    def scales_compared(self) -> tuple[float, ...]:
        """The scales to set side by side, the chosen one among them."""
        return tuple(sorted({*FACTORS, self.scale}))

    @property
    def entropy(self) -> float:
        """Entropy of the weights, in nats."""
        some = self.weights[self.weights > 0]
        return float(abs(-(some * np.log(some)).sum()))

    def softmax_document(self) -> dict[str, object]:
        """The JSON document; a masked score is null, and so is a share that plain division cannot give."""
        return {
            "schema": SCHEMA,
            "attnctl": __version__,
            **({} if self.labels is None else {"labels": list(self.labels)}),
            "scores": _finite_or_null(self.scores),
            "scale": self.scale,
            "temperature": self.temperature,
            "scaled_scores": _finite_or_null(self.scaled),
            "shift": self.exponent_shift,
            "exponentials": _finite_or_null(self.exponentials),
            "sum": float(self.exponentials.sum()),
            "weights": _finite_or_null(self.weights),
            "entropy": self.entropy,
            "divided_by_sum": None if self.divided_by_sum is None else _finite_or_null(self.divided_by_sum),
            "scales": [
                {"scale": s, "weights": _finite_or_null(self.weights_scaled_by(s))} for s in self.scales_compared
            ],
        }


def _finite_or_null(array: Doubles) -> list[float | None]:
    return [float(x) if np.isfinite(x) else None for x in array]
