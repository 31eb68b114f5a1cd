"""How far an intervention moves a prediction: every head ablated in turn, every edge cut, and what that changes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar

import numpy as np

from attnctl.argument_types import checked
from attnctl.attention import Array
from attnctl.document_fields import ALWAYS, Box, Correlation, Count, Index, Part, Share, about
from attnctl.text import counted, quoted_beginning
from attnctl.tokens import Token
from attnctl.trace import WithAxes
from attnctl.trace.model_info import ModelInfo


class Word(Part):
    """What is predicted: a text, the id of its first token, and of all where it is several."""

    text: str
    id: Index
    ids: Annotated[tuple[Index, ...], about("Where it is several tokens.")] = ()

    @property
    def all_ids(self) -> tuple[int, ...]:
        """The ids that spell it, one or several."""
        return self.ids or (self.id,)


def spelled_word(text: str, ids: Sequence[int]) -> Word:
    """The word that these ids spell."""
    return Word(text, ids[0], tuple(ids) if len(ids) > 1 else ())


class LikelyToken(Part):
    """The likeliest first token."""

    text: str
    probability: Share


DISTANCE = about("1 - cosine of the final states, where nothing is predicted.")


class Outcome(Part):
    """A prediction as it stands; the log-probability in nats, the sum over the target's tokens where it has several."""

    log_probability: float | None = None
    probability: Annotated[Share | None, about("Of the target.")] = None
    logit: float | None = None
    logit_difference: float | None = None
    distance: Annotated[float | None, DISTANCE] = None
    best: LikelyToken | None = None


class Effect(Part, kw_only=True):
    """What one intervention does: after minus before."""

    log_probability: Annotated[float | None, about("After minus before, in nats.")] = None
    logit_difference: Annotated[float | None, about("After minus before.")] = None
    distance: Annotated[float | None, DISTANCE] = None
    probability: Annotated[Share | None, about("Of the target, under the intervention.")] = None
    best: Annotated[LikelyToken | None, about("The likeliest first token, under the intervention.")] = None

    @property
    def absolute_size(self) -> float:
        """How much it does: of the logit difference, the log-probability, or the distance, whichever is measured."""
        return abs(self.signed_size)

    @property
    def signed_size(self) -> float:
        """The signed number that heads are ranked and coloured by."""
        measured = (self.logit_difference, self.log_probability, self.distance)
        return next((value for value in measured if value is not None), 0.0)


class Looks(Part):
    """The key that a head looks at most."""

    key: Index
    weight: Share


class HeadEffect(Effect):
    """One head ablated: where it looks from the watched position, what it writes to the prediction."""

    layer: Index
    head: Index
    looks: Looks
    writes: Annotated[float | None, about("Direct contribution to the logit, or the logit difference.")] = None


class EdgeEffect(Effect):
    """One key cut from one query, the watched one unless another is named; together: all the edges named."""

    key: Index | None = None
    query: Index | None = None
    together: bool = False


class SpanEffect(Effect):
    """One part of the text or picture hidden from every token beside it, or from the watched query alone.

    Its tokens lie within [start, end); those of a region of a picture are not all that lie there.
    """

    name: str
    start: Index
    end: Count
    token_count: Count
    looked_at: Annotated[Share, about("Of the watched query's weight on it, a mean over all layers and heads.")]
    box: Box | None = None


class Agreement(Part):
    """How far where heads look agrees with what they do."""

    kendall_tau: Correlation | None = None


class Approximation(Part):
    """How far the approximation agrees with exact ablation, over so many heads."""

    rank_correlation: float
    heads: Count


class ContributionPart(Part, kw_only=True):
    """What one part adds to a logit: the embedding, a head, an MLP, a bias, under the final norm's scale on this text."""

    part: Literal["embedding", "head", "mlp", "bias"]
    layer: Index | None = None
    head: Index | None = None
    value: float
    # weight · value · W_O · unembedding
    keys: Annotated[tuple[float, ...] | None, about("Of a head, by source token.")] = None


@dataclass(frozen=True)
class Contributions:
    """The logit of a word (minus that of another), by the model itself and as the sum of its parts.

    Where the model caps its logits, the sum is that of `logit_before_cap`; elsewhere this is None.
    """

    logit: float
    parts: tuple[ContributionPart, ...]
    notes: tuple[str, ...] = ()
    logit_before_cap: float | None = None

    @property
    def summed_logit(self) -> float:
        """The logit that the parts add up to."""
        return self.logit if self.logit_before_cap is None else self.logit_before_cap

    @property
    def sum_of_parts(self) -> float:
        """What the parts add up to."""
        return math.fsum(part.value for part in self.parts)


@dataclass(frozen=True, kw_only=True)
class Effects(WithAxes):
    """What the attention over one text does for one prediction."""

    text: str
    tokens: tuple[Token, ...]
    model: ModelInfo
    how: Annotated[str, about("", enum=["mean", "resample", "zero"])]
    query: Annotated[Index, about("The watched position.")]
    target: Word | None = None
    against: Word | None = None
    baseline: Outcome
    heads: tuple[HeadEffect, ...] = ()
    edges: tuple[EdgeEffect, ...] = ()
    spans: tuple[SpanEffect, ...] = ()
    agreement: Agreement | None = None
    approximation: Approximation | None = None
    contributions: Contributions | None = None
    key_tokens: tuple[Token, ...] | None = None
    notes: Annotated[tuple[str, ...], ALWAYS] = ()

    def __repr__(self) -> str:
        measured = (("head", self.heads), ("edge", self.edges), ("span", self.spans))
        held = ", ".join(counted(len(found), name) for name, found in measured if found) or "nothing measured"
        return f"Effects in {quoted_beginning(self.text)} by {self.model.name}: {held}"

    @checked
    def strongest(self, top: int | None = None) -> tuple[HeadEffect, ...]:
        """The heads, those that do most first; with `top` only so many."""
        return tuple(sorted(self.heads, key=lambda one: (-one.absolute_size, one.layer, one.head)))[:top]


CutEffect = TypeVar("CutEffect", EdgeEffect, SpanEffect)


def strongest_cuts(rows: Sequence[CutEffect], top: int | None) -> tuple[CutEffect, ...]:
    """The `top` edges or spans that do most (None: all), in the order they have."""
    if top is None:
        return tuple(rows)
    most = sorted(range(len(rows)), key=lambda at: (-rows[at].absolute_size, at))[:top]
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
