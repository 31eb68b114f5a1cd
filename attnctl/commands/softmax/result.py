"""The softmax of a few scores, every step from the scores to the weights, and what plain division would give."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attnctl import attention, limits
from attnctl.argument_types import scale_of
from attnctl.errors import AttnctlError, UsageError, option_name

FACTORS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
CALM = 8.0  # scores up to here have exponentials that can be read; beyond, the largest is taken off first


Doubles = npt.NDArray[np.float64]


def scores_of(text: str, error: type[AttnctlError] = UsageError) -> list[float]:
    """Return scores with spaces or commas between them, such as "8.1 1.2" or "[8.1, -inf]", as numbers.

    Raises `error` for a word that is no number or may be two, for no scores, too many, or only masked ones.
    """
    words = text.strip(" []\n").split()
    for word in words if len(words) > 1 else ():
        if re.search(r"\d,\d", word):  # in much of the world a decimal
            first = re.sub(r"(\d),(\d)", r"\1.\2", word, count=1)
            raise error(f"{word} may be {first}, or several scores: write a point, or a space after the comma")
    parts = text.replace(",", " ").strip(" []\n").split()
    if not parts:
        raise error("there are no scores: give some, such as 8.1 1.2 3.0 6.5")
    numbers = [_score_value(part, error) for part in parts]
    if len(numbers) > limits.SOFTMAX_SCORES:
        raise error(f"{len(numbers)} scores are more than can be shown: give at most {limits.SOFTMAX_SCORES}")
    if not any(math.isfinite(x) for x in numbers):
        raise error("every score is masked: give at least one number")
    return numbers


def _score_value(part: str, error: type[AttnctlError]) -> float:
    try:
        x = limits.decimal_number(part.replace("−", "-").replace("∞", "inf").strip())
    except ValueError:
        option = part.startswith("-") and part[1:2].isalpha() or part.startswith("--")
        what = "no such option" if option else "this is no number"
        raise error(f"{part[:40]!r}: {what}; scores are numbers such as 8.1 or -2") from None
    if math.isnan(x) or x == math.inf:
        raise error(f"{part[:40]!r}: a score is a finite number, or -inf where it is masked")
    return x


def factor_of(scale: str | None, d_k: int | None) -> float:
    """What the scores are multiplied by: `scale`, or 1/√d_k; 1 without either. Raises UsageError for no such number."""
    if scale == "auto" and d_k is None:
        raise UsageError(f"it is 1/√d_k: give {option_name('d_k')}, too", option="scale", value="auto")
    factor = scale_of(scale, False)
    if factor is None:
        factor = 1.0 if d_k is None else 1 / math.sqrt(d_k)
    if not math.isfinite(factor):
        raise UsageError("it is a finite number", option="scale", value=scale)
    return factor


@dataclass(frozen=True)
class SoftmaxSteps:
    """Scores (n,) with -inf for a masked one, and every step from there to the weights; all in float64.

    Raises UsageError for scores whose sums float64 does not hold, and where `labels` are not one a score.
    """

    scores: Doubles  # (n,)
    labels: tuple[str, ...] | None = None
    scale: float = 1.0
    temperature: float = 1.0

    def __post_init__(self) -> None:
        n = len(self.scores)
        if self.labels is not None and len(self.labels) != n:
            raise UsageError(f"has {len(self.labels)} names for {n} scores: give one a score", option="tokens")
        top = float(np.abs(self.unmasked_scores).max())
        most = max(1.0, *map(abs, self.scales_compared)) / min(1.0, self.temperature)
        if not math.isfinite(top * most * 2 * n):  # sums and differences of all of them, too
            raise UsageError(f"scores up to {top:g} × {self.scale:g} / {self.temperature:g} are too large to work with")

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
