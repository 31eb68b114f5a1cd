"""Cut a prompt into parts, and search for the parts that matter.

The search does not know the model: it calls a function that returns how the answer changes without a group of parts.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf

from attnctl.errors import AttnctlError
from attnctl.readings.spans import (
    AFTER,
    BEFORE,
    KINDS,
    REGIONS,
    REST,
    Span,
    box_of,
    first_words,
    parts_of,
    span_owners,
    spans_of,
)
from attnctl.runtime.arrays import Floats
from attnctl.text.tokens import Token

_ASKS = re.compile(r"(?:question|query|task|instructions?|q)\b[^\n]{0,20}:", re.IGNORECASE)
_CLOSING = re.compile(r"</(document|doc)\s*>", re.IGNORECASE)
CUT_KINDS = ("paragraphs", "lines", "headings", "documents")  # parts of a message, as --spans names them
MARKED_KINDS = ("headings", "documents")  # these have names of their own
AFTER_SECTIONS = "after the sections"
TEMPLATE, SINK = "(template)", "(first token)"

# nats; a group of parts that changes the answer by less is not split: no part in it matters
NEGLIGIBLE = 0.02
# nats; an answer rests on a part if hiding it halves the probability of the answer, or more. A sum over the answer's tokens:
# a fact is often one token of a long answer, whose mean over tokens would hide it. Below it, other words for the same
# question move the answer as much.
RESTS = 0.69
# of a group's effect, expected of its later and its earlier half: together they often have more than the group
KEPT = 0.9, 0.55
SETTLED = 3  # the search ends when this many parts each matter more than any remaining group


@dataclass(frozen=True)
class PromptPart:
    """A part of a prompt: its name, its tokens as ranges [a, b), and its place.

    The place is characters [start, end) of the rendered prompt, or for a region of a picture a box in it. `message` is the
    role and number of the message that the part is: "user 1".
    """

    name: str
    ranges: tuple[tuple[int, int], ...]
    start: int | None = None
    end: int | None = None
    box: tuple[int, int, int, int] | None = None
    message: str | None = None

    def share_of(self, values: Floats) -> float:
        """Return the sum of the values (n_k,) at its tokens, without the first token of a text, listed separately."""
        first = 1 if self.box is None else 0
        return sum(float(values[max(a, first) : b].sum()) for a, b in self.ranges)


# --- parts of a prompt -------------------------------------------------------------------------------------------


def prompt_parts(
    text: str, tokens: Sequence[Token], kind: str | None, messages: Sequence[Span] = ()
) -> tuple[PromptPart, ...]:
    """Return the parts of a prompt: the parts of `kind` in each message, or in the whole text.

    Without a `kind`, a message is cut into its documents if they are marked, else by its headings, else into its paragraphs
    if it has several, else it is one part. A part of a conversation is named by the role and number of its message, and its
    own name or first words; a document by its own name, if no other has that name. Raises AttnctlError if no part holds a
    token, UsageError for a kind that the text does not have.
    """
    if not messages or (kind is not None and kind not in CUT_KINDS):
        spans = _natural_spans(text)[1] if kind is None else _spans_of_kind(kind, text)
        return parts_of_spans(spans, tokens)
    if kind is not None and all(_or_none(kind, text[start:end]) is None for _, start, end in messages):
        spans_of(kind, text[messages[0][1] : messages[0][2]])  # raises: no message has such parts
    spans, marked = [], list[str]()  # names of documents and sections, without their message
    for name, start, end in messages:
        inner_kind, inner = _natural_spans(text[start:end]) if kind is None else (kind, _or_none(kind, text[start:end]))
        if inner is None or len(inner) < 2:
            spans.append((f"{name}: {first_words(text[start:end])}", start, end))
            continue
        marked += [inner_name for inner_name, _, _ in inner] if inner_kind in MARKED_KINDS else []
        spans += [(f"{name}: {inner_name}", start + a, start + b) for inner_name, a, b in inner]
    parts, whole = parts_of_spans(spans, tokens), {(start, end): name for name, start, end in messages}
    parts = tuple(replace(part, message=whole.get((part.start or 0, part.end or 0))) for part in parts)
    own_names = set(marked)
    if len(own_names) < len(marked):
        return parts
    return tuple(
        replace(part, name=own) if part.message is None and (own := part.name.partition(": ")[2]) in own_names else part
        for part in parts
    )


def parts_of_spans(spans: Sequence[Span], tokens: Sequence[Token]) -> tuple[PromptPart, ...]:
    """Return the spans of a prompt as parts, in the order of the text; spans without a token are left out.

    Raises AttnctlError if spans overlap, or if no span holds a token.
    """
    spans = sorted(spans, key=lambda span: span[1:])
    for (name, _, end), (next_name, start, _) in pairwise(spans):
        if start < end:
            raise AttnctlError(f"the spans {name!r} and {next_name!r} overlap at character {start}")
    tokens_of: dict[int, list[int]] = {}
    for index, owner in enumerate(span_owners(spans, tokens)):
        if owner >= 0:
            tokens_of.setdefault(owner, []).append(index)
    parts = [
        PromptPart(name, ((tokens_of[index][0], tokens_of[index][-1] + 1),), start, end)
        for index, (name, start, end) in enumerate(spans)
        if index in tokens_of
    ]
    if not parts:
        raise AttnctlError("no part of the prompt holds a token")
    return tuple(parts)


def _natural_spans(text: str) -> tuple[str, list[Span]]:
    """Return the documents of a text if they are marked, else its sections or paragraphs if it has several, and their kind.

    A text without any is one part.
    """
    for kind in ("documents", "headings", "paragraphs"):
        spans = _or_none(kind, text)
        if spans is not None and len(spans) > 1:
            return kind, spans
    return "text", [("text", 0, len(text))]


def _closed_spans(spans: list[Span], text: str, behind: str) -> list[Span]:
    """Return documents or sections with the end of the last one cut off as `behind`, since a question may follow it.

    The last one ends at its closing tag; at a blank line if no other holds one; or before a last paragraph that asks.
    """
    *earlier, (name, start, end) = spans
    if name == behind:
        return spans
    contents = [text[a:b].strip() for other, a, b in earlier if other != BEFORE]
    closing = _CLOSING.search(text, start, end)
    if closing is not None:
        last_end = closing.end()
    elif any("\n\n" in part for part in contents):
        last_end = _start_of_question(text, start, end)
    else:
        last_end = text.find("\n\n", start, end)
    if last_end < 0 or not text[last_end:end].strip():
        return spans
    return [*earlier, (name, start, last_end), (behind, last_end, end)]


def _start_of_question(text: str, start: int, end: int) -> int:
    """Return the start of a last paragraph that asks, which "Answer:" may follow; -1 if the last one does not ask."""
    paragraphs = [(a + start, text[a + start : b + start]) for _, a, b in spans_of("paragraphs", text[start:end])]
    if len(paragraphs) > 1 and paragraphs[-1][1].lower().startswith("answer"):
        paragraphs.pop()
    place, last = paragraphs[-1]
    return place if len(paragraphs) > 1 and ("?" in last or _ASKS.match(last)) else -1


def _spans_of_kind(kind: str, text: str) -> list[Span]:
    spans = spans_of(kind, text)
    if kind in MARKED_KINDS:
        return _closed_spans(spans, text, AFTER if kind == "documents" else AFTER_SECTIONS)
    return [(first_words(name), start, end) for name, start, end in spans] if kind in KINDS else spans


def _or_none(kind: str, text: str) -> list[Span] | None:
    try:
        return _spans_of_kind(kind, text)
    except AttnctlError:
        return None


def picture_parts(kind: str | None, text: str, tokens: Sequence[Token]) -> tuple[PromptPart, ...]:
    """Return the regions of a picture that `kind` names (None: nine), without what lies in none. Errors as in `parts_of`."""
    parts = parts_of(kind or REGIONS, text, tokens)
    return tuple(
        PromptPart(part.name, part.ranges, box=box_of(part.ranges, tokens)) for part in parts if part.name != REST
    )


# --- the search --------------------------------------------------------------------------------------------------

# groups of parts, each its indexes, ascending → for each group the change of each answer token's log-probability (m,)
Measure = Callable[[Sequence[tuple[int, ...]]], Iterator[Floats]]


Round = tuple[tuple[int, ...], ...]  # groups of parts that are measured in one call


@dataclass
class SearchProgress:
    """The results of a search so far: the change of each part (m,), and which parts were measured alone."""

    changes: dict[int, Floats] = field(default_factory=dict)
    alone: set[int] = field(default_factory=set)
    measured: int = 0
    coming: tuple[Round, ...] = ()  # what is likely to be measured still


def search_parts(count: int, measure: Measure, budget: int, likely: Sequence[int] = ()) -> Iterator[SearchProgress]:
    """Measure what each of `count` parts does, within `budget` measurements; yield the results so far after each.

    If the budget suffices, every part is hidden alone, the `likely` ones first. Otherwise the `likely` parts are hidden
    alone, up to half of the budget, and the others in groups of neighbours. The group that changes the answer most is
    split in two first. A group that changes it by less than NEGLIGIBLE is not split. The search ends when SETTLED parts
    each change the answer more than the largest remaining group.
    """
    progress, waiting = SearchProgress(), list[Waiting]()

    def effect_of(group: tuple[int, ...]) -> float:
        return abs(float(progress.changes[group[0]].sum()))

    def measured(groups: Sequence[tuple[int, ...]], expected: Sequence[float]) -> Iterator[SearchProgress]:
        for count, (group, change) in enumerate(zip(groups, measure(groups), strict=True), 1):
            progress.measured += 1
            progress.changes |= dict.fromkeys(group, change)
            if len(group) == 1:
                progress.alone.add(group[0])
            else:
                heapq.heappush(waiting, (-effect_of(group), group))
            room = budget - progress.measured
            progress.coming = _rounds_to_come(groups[count:], expected[count:], waiting, effects_alone(), room)
            yield progress

    def effects_alone() -> list[float]:
        return [effect_of((part,)) for part in progress.alone]

    alone = tuple(likely or range(count)) if count <= budget else tuple(likely[: budget // 2])
    remaining = tuple(part for part in range(count) if part not in alone)
    if remaining and not alone:
        waiting.append((-inf, remaining))
    first = [*((part,) for part in alone), *([remaining] if alone and remaining else [])]
    yield from measured(first, [inf] * len(first))
    while taken := _next_group(waiting, effects_alone(), budget - progress.measured):
        yield from measured(_halves(taken[1]), _effects_of_halves(-taken[0]))


Waiting = tuple[float, tuple[int, ...]]  # minus the effect of a group, and the group


def _next_group(waiting: list[Waiting], alone: list[float], room: int) -> Waiting | None:
    """Take from the heap the group to split next; None if the search is over.

    `alone` are the effects of single parts, `room` is how many more measurements the budget has.
    """
    if not waiting or room < 2:
        return None
    effect = -waiting[0][0]
    if effect < NEGLIGIBLE or (len(alone) >= SETTLED and effect < sorted(alone, reverse=True)[SETTLED - 1]):
        return None
    return heapq.heappop(waiting)


def _halves(group: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    middle = len(group) // 2
    return group[middle:], group[:middle]


def _effects_of_halves(effect: float) -> tuple[float, ...]:
    return tuple(share * effect for share in KEPT)


def _rounds_to_come(
    begun: Sequence[tuple[int, ...]], expected: Sequence[float], waiting: list[Waiting], alone: list[float], room: int
) -> tuple[Round, ...]:
    """Return the groups to measure still, round after round, if each half of a group keeps its share (KEPT) of the effect.

    `expected` are the effects of the groups that are `begun`; inf: unknown, then one half of a group matters as much as any
    part so far.
    """
    waiting, alone, coming = list(waiting), list(alone), list[Round]()
    most = max(alone, default=inf) / KEPT[0]
    groups, effects = tuple(begun), expected
    while True:
        coming += [groups] if groups else []
        room -= len(groups)
        for group, effect in zip(groups, effects, strict=True):
            if len(group) > 1:
                heapq.heappush(waiting, (-(most if effect == inf else effect), group))
            elif effect < inf:
                alone.append(effect)
        taken = _next_group(waiting, alone, room)
        if taken is None:
            return tuple(coming)
        groups, effects = _halves(taken[1]), _effects_of_halves(-taken[0])
