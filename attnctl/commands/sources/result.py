"""The sources of an answer: the document that `attnctl sources --json` writes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Annotated, Any

import numpy as np

from attnctl.checks.document_fields import ALWAYS, Box, Correlation, Index, Part, Share, about
from attnctl.commands.sources.parts import NEGLIGIBLE, RESTS
from attnctl.formats import DocumentToken, JsonDocument, ResultModel, flat_records
from attnctl.readings import kendall_tau
from attnctl.runtime.arrays import Floats
from attnctl.text import counted, quoted_beginning

_CHANGE = "Change of the answer's log-probability, after minus before, nats."


class PartSource(Part, kw_only=True):
    """What one part of the prompt does for the answer."""

    name: str
    message: Annotated[
        str | None, about("For a whole message of a conversation: its role and its number in it, from 0.")
    ] = None
    start: Annotated[
        Index | None, about("First character in the rendered prompt; absent for a region of a picture.")
    ] = None
    end: Annotated[Index | None, about("One past the last.")] = None
    box: Annotated[Box | None, about("For a region of a picture: left, top, right, bottom in its pixels.")] = None
    looks: Annotated[Share, about("Share of the answer's attention, over all heads and layers.")]
    relative: Annotated[
        float | None,
        about(
            "For a region of a picture: its share of the attention of the prompt's last token, where the answer begins, "
            "divided by its share when the prompt asks for a general description instead (Zhang et al. 2025)."
        ),
    ] = None
    matters: Annotated[float, about(f"{_CHANGE} Tokens after the part cannot see it.")]
    alone: Annotated[bool, about("False: measured together with its neighbours, which do not matter.")]
    predicts_answer: Annotated[
        bool,
        about(
            "True: the prompt's last token lies inside the part. It predicts the first token of the answer and still sees "
            "the part, so `matters` measures the part only for the other tokens of the answer."
        ),
    ]
    writes: Annotated[
        float | None,
        about(
            "What all heads add to the answer's log-probability by reading the part directly, nats, to first order. Absent "
            "if the logits of the architecture are not a sum over its heads."
        ),
    ] = None
    removed: Annotated[float | None, about(f"{_CHANGE} The prompt is rendered without the part.")] = None

    @property
    def is_measured(self) -> bool:
        """Return whether `matters` is the whole effect of this part alone."""
        return self.alone and not self.predicts_answer


class AnswerToken(DocumentToken, kw_only=True):
    """A token of the answer."""

    log_probability: float
    source: Annotated[Index | None, about("The part (its index in `parts`) whose loss costs this token most.")] = None


class Answer(Part):
    """The answer whose sources are searched for."""

    text: str
    given: Annotated[bool, about("False: the model's own answer, always its likeliest token.")]
    tokens: tuple[AnswerToken, ...]
    log_probability: Annotated[float, about("Of the whole answer, nats: the sum over its tokens.")]
    per_token: Annotated[
        Share, about("Probability of a token, the geometric mean over the answer: exp(log_probability / tokens).")
    ]


class AnswerSources(JsonDocument, kw_only=True, tag="attnctl.sources/1"):
    """The parts of a prompt that an answer came from: what it looks at, and what matters to it."""

    id: Annotated[str | int | None, about("The id of the item, in a batch.")] = None
    prompt: Annotated[str, about("The prompt as the model read it.")]
    model: ResultModel
    answer: Answer
    parts: Annotated[tuple[PartSource, ...], about("What matters most first.")]
    apart: Annotated[dict[str, Share], about("Shares of attention that belong to no part, by name.")]
    together: Annotated[
        float | None,
        about(f"{_CHANGE} All parts are hidden. Measured if no part alone halves the probability of the answer."),
    ] = None
    rests: Annotated[
        bool | None,
        about(
            "Whether the answer rests on the prompt: with a part hidden, or all of them, its probability falls to a half "
            f"or less (by {RESTS} nats). Absent if this was not measured: false needs a prompt whose last token is in no "
            "part, since a part that predicts the answer cannot be hidden whole."
        ),
        ALWAYS,
    ] = None
    agreement: Annotated[
        dict[str, Correlation],
        about("Kendall's τ between two columns, over the parts that are `alone` and not `predicts_answer`."),
    ]
    forwards: Annotated[Index, about("Passes through the network after the first.")]
    notes: tuple[str, ...]

    def to_records(self) -> list[dict[str, Any]]:
        """Return a flat record for each part of the prompt, what matters most first."""
        return flat_records(self.parts)

    def __repr__(self) -> str:
        counts = f"{counted(len(self.parts), 'part')}, {counted(self.forwards, 'forward')}"
        return f"AnswerSources of {quoted_beginning(self.answer.text)} by {self.model.name}: {counts}"


def rests_on_prompt(parts: Sequence[PartSource], together: float | None) -> bool | None:
    """Return whether hiding a part, or all parts `together`, changes the answer by -RESTS; None if that is not measured.

    A part that predicts the answer cannot be hidden whole, so with such a part the result is never False.
    """
    if any(part.matters <= -RESTS for part in parts) or (together is not None and together <= -RESTS):
        return True
    return None if together is None or any(part.predicts_answer for part in parts) else False


def probability_of_token(log_probability: float, count: int) -> float:
    """Return the geometric mean of the probabilities of an answer's `count` tokens, from their joint log-probability."""
    return math.exp(min(0.0, log_probability / count))


def rank_agreement(parts: Sequence[PartSource]) -> dict[str, float]:
    """Return Kendall's τ between columns where it is defined; the larger a value, the more its part supports the answer.

    It is over the parts whose effect was measured whole and alone.
    """
    parts = [part for part in parts if part.is_measured]
    columns: dict[str, list[float]] = {
        "looks": [part.looks for part in parts],
        "writes": [part.writes or 0.0 for part in parts],
        "matters": [-part.matters for part in parts],
    }
    if any(part.writes is None for part in parts):
        del columns["writes"]
    if all(part.removed is not None for part in parts):
        columns["removed"] = [-(part.removed or 0.0) for part in parts]
    taus = {f"{a}-{b}": kendall_tau(columns[a], columns[b]) for a, b in combinations(columns, 2)}
    return {name: tau for name, tau in taus.items() if tau is not None}


def first_sources(parts: Sequence[PartSource], changes: Sequence[Floats], count: int) -> tuple[int | None, ...]:
    """Return for each of `count` answer tokens the index of the part whose loss costs it most; None if no part's loss does.

    `changes` holds for each part the change of each token of the answer without the part: (count,).
    """
    if not parts:
        return (None,) * count
    both = zip(parts, changes, strict=True)
    costs = np.array([np.where(part.alone, change, 0) for part, change in both], np.float64)  # (parts, count)
    worst, lowest_cost = costs.argmin(axis=0).tolist(), costs.min(axis=0)  # (count,) each
    return tuple(part if cost < -NEGLIGIBLE else None for part, cost in zip(worst, lowest_cost, strict=True))
