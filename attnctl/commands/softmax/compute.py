"""Parse the scores of a softmax and their factor, and compute every step to the weights."""

from __future__ import annotations

import math
import re

import numpy as np
import numpy.typing as npt

from attnctl import attention
from attnctl.checks import limits
from attnctl.commands.softmax.result import ScaledWeights, Softmax
from attnctl.errors import AttnctlError, UsageError, option_name

FACTORS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
CALM = 8.0  # larger scores have exponentials too long to read: the largest score is subtracted first


Doubles = npt.NDArray[np.float64]


def scores_of(text: str, error: type[AttnctlError] = UsageError) -> list[float]:
    """Return scores with spaces or commas between them, such as "8.1 1.2" or "[8.1, -inf]", as numbers.

    Raises `error` for a word that is not a number or may be two, for no scores, too many, or only masked scores.
    """
    words = text.strip(" []\n").split()
    for word in words if len(words) > 1 else ():
        if re.search(r"\d,\d", word):  # a decimal comma in many countries
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
        reason = "no such option" if option else "this is not a number"
        raise error(f"{part[:40]!r}: {reason}; scores are numbers such as 8.1 or -2") from None
    if math.isnan(x) or x == math.inf:
        raise error(f"{part[:40]!r}: a score is a finite number, or -inf where it is masked")
    return x


def factor_of(scale: str | None, d_k: int | None) -> float:
    """Return the factor of the scores: `scale`, or 1/√d_k, or 1. Raises UsageError for a factor that is not a number."""
    if scale == "auto" and d_k is None:
        raise UsageError(f"it is 1/√d_k: give {option_name('d_k')}, too", option="scale", value="auto")
    factor = limits.scale_factor(scale)
    if factor is None:
        factor = 1.0 if d_k is None else 1 / math.sqrt(d_k)
    if not math.isfinite(factor):
        raise UsageError("it is a finite number", option="scale", value=scale)
    return factor


def scores_times(scores: Doubles, scale: float) -> Doubles:
    """Return scores × scale; masked scores stay -inf. Shape: (n,)."""
    return np.where(np.isfinite(scores), unmasked_scores(scores) * scale, -np.inf)


def unmasked_scores(scores: Doubles) -> Doubles:
    """Return the scores, with 0 in place of masked ones. Shape: (n,)."""
    return np.where(np.isfinite(scores), scores, 0.0)


def work_out_softmax(
    scores: Doubles, labels: tuple[str, ...] | None = None, scale: float = 1.0, temperature: float = 1.0
) -> Softmax:
    """Return the softmax of scores (n,), -inf for a masked score, with every step; all in float64.

    Raises UsageError if float64 cannot hold the sums, or if there is not one label for each score.
    """
    n, visible, unmasked, scales = len(scores), np.isfinite(scores), unmasked_scores(scores), sorted({*FACTORS, scale})
    if labels is not None and len(labels) != n:
        raise UsageError(f"has {len(labels)} names for {n} scores: give one a score", option="tokens")
    size = float(np.abs(unmasked).max())
    if not math.isfinite(
        size * max(1.0, *map(abs, scales)) / min(1.0, temperature) * 2 * n
    ):  # the sums must be finite, too
        raise UsageError(f"scores up to {size:g} × {scale:g} / {temperature:g} are too large to work with")
    weights = {factor: attention.softmax(unmasked * factor, visible, temperature=temperature) for factor in scales}
    scaled, shares, total = scores_times(scores, scale) / temperature, weights[scale], unmasked.sum()
    top = float(scaled.max())
    shift = top if abs(top) > CALM else 0.0  # changes no weight
    exponentials = np.exp(scaled - shift)
    positive = shares[shares > 0]
    return Softmax(
        labels=labels,
        scores=scores,
        scale=scale,
        temperature=temperature,
        scaled=scaled,
        exponent_shift=shift,
        exponentials=exponentials,
        sum=float(exponentials.sum()),
        weights=tuple(shares.tolist()),
        entropy=float(abs(-(positive * np.log(positive)).sum())),
        divided_by_sum=None if abs(total) <= 1e-12 * size else tuple((unmasked / total).tolist()),
        scales=tuple(ScaledWeights(factor, row) for factor, row in weights.items()),
    )
