"""Where an answer came from: what each part of a prompt is looked at for it, and what the answer is without the part.

The search is apart from the model: it asks a function for the answer's log-probabilities under a group of parts removed.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, pairwise
from typing import Annotated

import numpy as np

from attnctl.arrays import Floats
from attnctl.document_fields import Box, Index, Part, Share, about
from attnctl.errors import AttnctlError
from attnctl.readings.spans import REGIONS, REST, Span, box_of, parts_of, span_owners, spans_of
from attnctl.text import counted, quoted_beginning
from attnctl.tokens import Token
from attnctl.trace.model_info import ModelInfo

_CLOSING = re.compile(r"</(document|doc)\s*>", re.IGNORECASE)
TEMPLATE, SINK = "(template)", "(first token)"

# A group of parts that moves the answer by less, in nats, is not split: no part in it was found to matter
NEGLIGIBLE = 0.02
SETTLED = 3  # parts that each weigh more than any group left: the search is over


@dataclass(frozen=True)
class PromptPart:
    """A part of a prompt: its name, its tokens in stretches [a, b), and its place.

    The place is characters [start, end) of the rendered prompt, or of a region of a picture a box in it.
    """

    name: str
    ranges: tuple[tuple[int, int], ...]
    start: int | None = None
    end: int | None = None
    box: tuple[int, int, int, int] | None = None

    def share_of(self, values: Floats) -> float:
        """The sum of the values (n_k,) at its tokens; of a text but for the prompt's first, which is told apart."""
        first = 1 if self.box is None else 0
        return sum(float(values[max(a, first) : b].sum()) for a, b in self.ranges)


_CHANGE = "Change of the answer's log-probability, after minus before, nats."


class PartSource(Part, kw_only=True):
    """What one part of the prompt does for the answer."""

    name: str
    start: Annotated[
        Index | None, about("First character of the rendered prompt; absent of a region of a picture.")
    ] = None
    end: Annotated[Index | None, about("One past the last.")] = None
    box: Annotated[Box | None, about("Of a region of a picture: left, top, right, bottom in its pixels.")] = None
    looks: Annotated[Share, about("Share of the answer's attention, over all heads and layers.")]
    relative: Annotated[
        float | None,
        about(
            "Of a region of a picture: share of the attention of the prompt's last token, with which the answer begins, "
            "over the share that it has where the prompt asks for a general description instead (Zhang et al. 2025)."
        ),
    ] = None
    matters: Annotated[float, about(f"{_CHANGE} Nothing behind the part can see it.")]
    alone: Annotated[bool, about("False: measured with its neighbours, together they do not matter.")]
    writes: Annotated[
        float | None,
        about(
            "What all heads add to the answer's log-probability by reading the part directly, nats, to first order. Absent "
            "where the architecture's logits are no sum over its heads."
        ),
    ] = None
    removed: Annotated[float | None, about(f"{_CHANGE} The prompt is rendered without the part.")] = None


@dataclass(frozen=True)
class AnswerSources:
    """A prompt, the answer to it, and what each part of the prompt does for the answer, what matters most first.

    `changes` are what `matters` of each part is for each token of the answer; `apart` shares of the answer's attention
    that no part has: the first token, the template, the answer itself.
    """

    prompt: str
    model: ModelInfo
    answer: str
    answer_tokens: tuple[Token, ...]
    log_probabilities: Floats  # (m,), of each answer token after those before it
    parts: tuple[PartSource, ...]
    changes: tuple[Floats, ...]  # (m,) each
    apart: dict[str, float]
    forwards: int  # passes through the network beside the first
    given: bool = False  # the answer was given, not generated
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        held = f"{counted(len(self.parts), 'part')}, {counted(self.forwards, 'forward')}"
        return f"AnswerSources of {quoted_beginning(self.answer)} by {self.model.name}: {held}"

    @property
    def log_probability(self) -> float:
        """Of the whole answer, nats."""
        return float(self.log_probabilities.sum())

    def rank_agreement(self) -> dict[str, float]:
        """Kendall's τ over parts between the columns, each the larger the more it is for the answer; where it is defined."""
        from attnctl.readings.rank_correlation import kendall_tau

        columns: dict[str, list[float]] = {
            "looks": [part.looks for part in self.parts],
            "writes": [part.writes or 0.0 for part in self.parts],
            "matters": [-part.matters for part in self.parts],
        }
        if any(part.writes is None for part in self.parts):
            del columns["writes"]
        if all(part.removed is not None for part in self.parts):
            columns["removed"] = [-(part.removed or 0.0) for part in self.parts]
        taus = {f"{a}-{b}": kendall_tau(columns[a], columns[b]) for a, b in combinations(columns, 2)}
        return {name: tau for name, tau in taus.items() if tau is not None}

    def first_sources(self) -> tuple[int | None, ...]:
        """Of each answer token, the place in `parts` of the part whose loss costs it most; None where none costs any."""
        if not self.parts:
            return (None,) * len(self.answer_tokens)
        both = zip(self.parts, self.changes, strict=True)
        costs = np.array([np.where(part.alone, change, 0) for part, change in both], np.float64)  # (parts, m)
        worst, least = costs.argmin(axis=0).tolist(), costs.min(axis=0)  # (m,) each
        return tuple(at if cost < -NEGLIGIBLE else None for at, cost in zip(worst, least, strict=True))


# --- parts of a prompt -------------------------------------------------------------------------------------------


def prompt_parts(
    text: str, tokens: Sequence[Token], kind: str | None, messages: Sequence[Span] = ()
) -> tuple[PromptPart, ...]:
    """The parts of a prompt: of each message, or of the whole text, those that `kind` names.

    Without a `kind` a message is cut into its documents where it has such, into its paragraphs where it has several, and
    else is one part. Raises AttnctlError where no part holds a token, UsageError for a kind that the text does not have.
    """
    if messages and kind is not None and kind not in ("paragraphs", "lines", "headings", "documents"):
        spans = spans_of(kind, text)
    elif messages:
        if kind is not None and all(_or_none(kind, text[start:end]) is None for _, start, end in messages):
            spans_of(kind, text[messages[0][1] : messages[0][2]])  # raises: no message has such parts
        spans = [span for message in messages for span in _spans_within(message, text, kind)]
    else:
        spans = _spans_of_kind(kind, text) if kind is not None else _natural_spans(text)
    parts = parts_of_spans(spans, tokens)
    inner = [part.name.rpartition(": ")[2] for part in parts]
    if messages and len(set(inner)) == len(inner):  # told apart without the message that they are in
        return tuple(replace(part, name=name) for part, name in zip(parts, inner, strict=True))
    return parts


def parts_of_spans(spans: Sequence[Span], tokens: Sequence[Token]) -> tuple[PromptPart, ...]:
    """The parts that spans of a prompt are, in the order of the text; those that hold no token are none.

    Raises AttnctlError where spans overlap, or none holds a token.
    """
    spans = sorted(spans, key=lambda span: span[1:])
    for (one, _, end), (other, start, _) in pairwise(spans):
        if start < end:
            raise AttnctlError(f"the spans {one!r} and {other!r} overlap at character {start}")
    held: dict[int, list[int]] = {}
    for at, owner in enumerate(span_owners(spans, tokens)):
        if owner >= 0:
            held.setdefault(owner, []).append(at)
    parts = [
        PromptPart(name, ((held[at][0], held[at][-1] + 1),), start, end)
        for at, (name, start, end) in enumerate(spans)
        if at in held
    ]
    if not parts:
        raise AttnctlError("no part of the prompt holds a token")
    return tuple(parts)


def _natural_spans(text: str) -> list[Span]:
    """Documents where a text has marked ones, else paragraphs where there are several, else the whole."""
    for kind in ("documents", "paragraphs"):
        found = _or_none(kind, text)
        if found is not None and len(found) > 1:
            return found
    return [("text", 0, len(text))]


def _closed_documents(documents: list[Span], text: str) -> list[Span]:
    """The last document ends at its closing tag, or at a blank line where no other holds one: a question may follow."""
    *others, (name, start, end) = documents
    inside = [text[a:b].strip() for other, a, b in others if other != "(before)"]
    closing = _CLOSING.search(text, start, end)
    edge = closing.end() if closing else text.find("\n\n", start, end)
    if edge < 0 or not text[edge:end].strip() or (not closing and any("\n\n" in part for part in inside)):
        return documents
    return [*others, (name, start, edge), ("after the documents", edge, end)]


def _spans_of_kind(kind: str, text: str) -> list[Span]:
    found = spans_of(kind, text)
    return _closed_documents(found, text) if kind == "documents" else found


def _or_none(kind: str, text: str) -> list[Span] | None:
    try:
        return _spans_of_kind(kind, text)
    except AttnctlError:
        return None


def _spans_within(message: Span, text: str, kind: str | None) -> Iterator[Span]:
    """The parts of one message, named after it; the message itself where it has no such parts."""
    name, start, end = message
    found = _natural_spans(text[start:end]) if kind is None else _or_none(kind, text[start:end])
    if found is None or len(found) < 2:
        yield message
        return
    for inner, a, b in found:
        yield f"{name}: {inner}", start + a, start + b


def picture_parts(kind: str | None, text: str, tokens: Sequence[Token]) -> tuple[PromptPart, ...]:
    """The regions of a picture that `kind` names (None: nine); what lies in none is no part. Errors of `parts_of`."""
    named = parts_of(kind or REGIONS, text, tokens)
    return tuple(PromptPart(one.name, one.ranges, box=box_of(one.ranges, tokens)) for one in named if one.name != REST)


# --- the search --------------------------------------------------------------------------------------------------

Measure = Callable[
    [Sequence[int]], Floats
]  # places of parts, in order → change of each answer token's log-probability (m,)


@dataclass
class Found:
    """What is known of each part so far: its change (m,), and whether it was measured alone."""

    changes: dict[int, Floats] = field(default_factory=dict)
    alone: set[int] = field(default_factory=set)
    measured: int = 0


def search_parts(count: int, measure: Measure, budget: int, likely: Sequence[int] = ()) -> Iterator[Found]:
    """What each of `count` parts does, within `budget` measurements; yields what is known after each of them.

    With enough of a budget every part is left out alone. Else the `likely` ones are, up to half of the budget, and of the
    others groups of neighbours: the one that changes the answer most is split in two first. A group whose parts together
    change it by less than NEGLIGIBLE is not split, and none is once SETTLED parts each change it more than the largest
    group left.
    """
    found = Found()

    def effect_told(group: tuple[int, ...]) -> float:
        change = measure(group)
        found.measured += 1
        found.changes |= dict.fromkeys(group, change)
        if len(group) == 1:
            found.alone.add(group[0])
        return abs(float(change.sum()))

    alone = tuple(range(count)) if count <= budget else tuple(likely[: budget // 2])
    for part in alone:
        effect_told((part,))
        yield found
    rest = tuple(part for part in range(count) if part not in alone)
    waiting = [(-float("inf"), rest)] if rest else []
    if alone and rest:
        waiting = [(-effect_told(rest), rest)]
        yield found
    while waiting and found.measured + 2 <= budget:
        size, group = heapq.heappop(waiting)
        singles = sorted((abs(float(found.changes[at].sum())) for at in found.alone), reverse=True)
        if -size < NEGLIGIBLE or (len(singles) >= SETTLED and -size < singles[SETTLED - 1]):
            break
        middle = len(group) // 2
        for half in (group[middle:], group[:middle]):
            change = effect_told(half)
            yield found
            if len(half) > 1:
                heapq.heappush(waiting, (-change, half))
