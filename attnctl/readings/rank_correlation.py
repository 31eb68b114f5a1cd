"""How well two rankings agree."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnctl.attention import Array


def kendall_tau(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return Kendall's τ-b of two rankings (Kendall 1945), ties counted; None for fewer than two values, or all ties."""
    x, y = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)  # (n,)
    both = x_pairs = y_pairs = 0.0
    for index in range(1, len(x)):
        a, b = np.sign(x[index] - x[:index]), np.sign(y[index] - y[:index])  # (index,)
        both += float((a * b).sum())
        x_pairs += float(np.abs(a).sum())
        y_pairs += float(np.abs(b).sum())
    return None if not x_pairs or not y_pairs else both / float(np.sqrt(x_pairs * y_pairs))


def spearman_rho(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation, ties share their mean rank; None for fewer than two values, or all ties."""
    a, b = _mean_ranks(first), _mean_ranks(second)  # (n,)
    if len(a) < 2 or not a.std() or not b.std():
        return None
    return float(np.corrcoef(a, b)[0, 1])


def _mean_ranks(values: Sequence[float]) -> Array:
    _, place, count = np.unique(np.asarray(values, dtype=np.float64), return_inverse=True, return_counts=True)
    ends = np.cumsum(count)  # (distinct,)
    return (ends - (count - 1) / 2)[place]  # (n,)
