"""How far an intervention moves a prediction: every head ablated in turn, every edge cut, and what that changes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from attnctl.argument_types import checked
from attnctl.attention import Array
from attnctl.readings.traces.trace import ModelInfo, WithAxes
from attnctl.text import counted, quoted_beginning
from attnctl.tokens import Token


@dataclass(frozen=True)
class Word:
    """What is predicted: a text and the ids that spell it."""

    text: str
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Outcome:
    """A prediction as it stands; the log-probability in nats, the sum over the target's tokens where it has several.

    A model that predicts nothing has a distance only: 1 - cosine of its final states and those with nothing changed.
    """

    log_probability: float | None = None
    probability: float | None = None
    logit: float | None = None
    logit_difference: float | None = None
    distance: float | None = None
    best: tuple[str, float] | None = None  # the likeliest first token, and its probability


@dataclass(frozen=True)
class Effect:
    """What one intervention does: after minus before. `after` is the prediction under it."""

    log_probability: float | None
    logit_difference: float | None
    distance: float | None
    after: Outcome

    @property
    def absolute_size(self) -> float:
        """How much it does: of the logit difference, the log-probability, or the distance, whichever is measured."""
        measured = (self.logit_difference, self.log_probability, self.distance)
        return abs(next((value for value in measured if value is not None), 0.0))

    @property
    def signed_size(self) -> float:
        """The signed number that heads are ranked and coloured by."""
        measured = (self.logit_difference, self.log_probability, self.distance)
        return next((value for value in measured if value is not None), 0.0)


@dataclass(frozen=True)
class HeadEffect:
    """One head: where it looks from the watched position, what it writes to the prediction, what its removal does."""

    layer: int
    head: int
    key: int
    weight: float
    writes: float | None
    effect: Effect


@dataclass(frozen=True)
class EdgeEffect:
    """One key cut from one query; `key` None stands for all the edges named, cut together."""

    query: int
    key: int | None
    effect: Effect


@dataclass(frozen=True)
class SpanEffect:
    """One part of the text, tokens [start, end), cut from what comes after it, or from the watched query alone."""

    name: str
    start: int
    end: int
    effect: Effect


@dataclass(frozen=True)
class Effects(WithAxes):
    """What the attention over one text does for one prediction."""

    text: str
    tokens: tuple[Token, ...]
    model: ModelInfo
    how: str
    query: int
    target: Word | None
    against: Word | None
    baseline: Outcome
    heads: tuple[HeadEffect, ...] = ()
    edges: tuple[EdgeEffect, ...] = ()
    spans: tuple[SpanEffect, ...] = ()
    kendall_tau: float | None = None
    approximation: tuple[float, int] | None = None  # rank correlation with exact ablation, over so many heads
    contributions: Contributions | None = None
    key_tokens: tuple[Token, ...] | None = None
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        measured = (("head", self.heads), ("edge", self.edges), ("span", self.spans))
        held = ", ".join(counted(len(found), name) for name, found in measured if found) or "nothing measured"
        return f"Effects in {quoted_beginning(self.text)} by {self.model.name}: {held}"

    @checked
    def strongest(self, top: int | None = None) -> tuple[HeadEffect, ...]:
        """The heads, those that do most first; with `top` only so many."""
        return tuple(sorted(self.heads, key=lambda one: (-one.effect.absolute_size, one.layer, one.head)))[:top]


CutEffect = TypeVar("CutEffect", EdgeEffect, SpanEffect)


def strongest_cuts(rows: Sequence[CutEffect], top: int | None) -> tuple[CutEffect, ...]:
    """The `top` edges or spans that do most (None: all), in the order they have."""
    if top is None:
        return tuple(rows)
    most = sorted(range(len(rows)), key=lambda at: (-rows[at].effect.absolute_size, at))[:top]
    return tuple(rows[at] for at in sorted(most))


def kendall_tau(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Kendall's τ-b of two rankings (Kendall 1945), ties counted; None for fewer than two, or where one is all ties."""
    x, y = np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64)  # (n,)
    both = x_pairs = y_pairs = 0.0
    for at in range(1, len(x)):
        a, b = np.sign(x[at] - x[:at]), np.sign(y[at] - y[:at])  # (at,)
        both += float((a * b).sum())
        x_pairs += float(np.abs(a).sum())
        y_pairs += float(np.abs(b).sum())
    return None if not x_pairs or not y_pairs else both / float(np.sqrt(x_pairs * y_pairs))


def spearman_rho(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Spearman's rank correlation, ties sharing their mean rank; None for fewer than two, or where one is all ties."""
    a, b = _mean_ranks(one), _mean_ranks(other)  # (n,)
    if len(a) < 2 or not a.std() or not b.std():
        return None
    return float(np.corrcoef(a, b)[0, 1])


def _mean_ranks(values: Sequence[float]) -> Array:
    _, place, count = np.unique(np.asarray(values, dtype=np.float64), return_inverse=True, return_counts=True)
    ends = np.cumsum(count)  # (distinct,)
    return (ends - (count - 1) / 2)[place]  # (n,)


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
