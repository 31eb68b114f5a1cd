"""Cut a prompt into parts, and search for the parts that matter.

The search does not know the model: it calls a function that returns how the answer changes without a group of parts.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from attnctl.arrays import Floats
from attnctl.errors import AttnctlError
from attnctl.readings.spans import REGIONS, REST, Span, box_of, parts_of, span_owners, spans_of
from attnctl.tokens import Token

_CLOSING = re.compile(r"</(document|doc)\s*>", re.IGNORECASE)
TEMPLATE, SINK = "(template)", "(first token)"

# nats; a group of parts that changes the answer by less is not split: no part in it matters
NEGLIGIBLE = 0.02
SETTLED = 3  # the search ends when this many parts each matter more than any remaining group


@dataclass(frozen=True)
class PromptPart:
    """A part of a prompt: its name, its tokens as ranges [a, b), and its place.

    The place is characters [start, end) of the rendered prompt, or for a region of a picture a box in it.
    """

    name: str
    ranges: tuple[tuple[int, int], ...]
    start: int | None = None
    end: int | None = None
    box: tuple[int, int, int, int] | None = None

    def share_of(self, values: Floats) -> float:
        """Return the sum of the values (n_k,) at its tokens, without the first token of a text, listed separately."""
        first = 1 if self.box is None else 0
        return sum(float(values[max(a, first) : b].sum()) for a, b in self.ranges)


# --- parts of a prompt -------------------------------------------------------------------------------------------


def prompt_parts(
    text: str, tokens: Sequence[Token], kind: str | None, messages: Sequence[Span] = ()
) -> tuple[PromptPart, ...]:
    """Return the parts of a prompt: the parts of `kind` in each message, or in the whole text.

    Without a `kind`, a message is cut into its documents if they are marked, else into its paragraphs if it has several,
    else it is one part. Raises AttnctlError if no part holds a token, UsageError for a kind that the text does not have.
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
    if messages and len(set(inner)) == len(inner):  # the names are unique without the name of the message
        return tuple(replace(part, name=name) for part, name in zip(parts, inner, strict=True))
    return parts


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


def _natural_spans(text: str) -> list[Span]:
    """Return the documents of a text if they are marked, else its paragraphs if it has several, else the whole text."""
    for kind in ("documents", "paragraphs"):
        spans = _or_none(kind, text)
        if spans is not None and len(spans) > 1:
            return spans
    return [("text", 0, len(text))]


def _closed_documents(documents: list[Span], text: str) -> list[Span]:
    """Return the documents with the end of the last one cut off, since a question may follow it.

    The last document ends at its closing tag, or at a blank line if no other document holds one.
    """
    *earlier, (name, start, end) = documents
    contents = [text[a:b].strip() for other, a, b in earlier if other != "(before)"]
    closing = _CLOSING.search(text, start, end)
    last_end = closing.end() if closing else text.find("\n\n", start, end)
    if last_end < 0 or not text[last_end:end].strip() or (not closing and any("\n\n" in part for part in contents)):
        return documents
    return [*earlier, (name, start, last_end), ("after the documents", last_end, end)]


def _spans_of_kind(kind: str, text: str) -> list[Span]:
    spans = spans_of(kind, text)
    return _closed_documents(spans, text) if kind == "documents" else spans


def _or_none(kind: str, text: str) -> list[Span] | None:
    try:
        return _spans_of_kind(kind, text)
    except AttnctlError:
        return None


def _spans_within(message: Span, text: str, kind: str | None) -> Iterator[Span]:
    """Yield the parts of one message, with its name before theirs; the message itself if it has no such parts."""
    name, start, end = message
    spans = _natural_spans(text[start:end]) if kind is None else _or_none(kind, text[start:end])
    if spans is None or len(spans) < 2:
        yield message
        return
    for inner, a, b in spans:
        yield f"{name}: {inner}", start + a, start + b


def picture_parts(kind: str | None, text: str, tokens: Sequence[Token]) -> tuple[PromptPart, ...]:
    """Return the regions of a picture that `kind` names (None: nine), without what lies in none. Errors as in `parts_of`."""
    parts = parts_of(kind or REGIONS, text, tokens)
    return tuple(
        PromptPart(part.name, part.ranges, box=box_of(part.ranges, tokens)) for part in parts if part.name != REST
    )


# --- the search --------------------------------------------------------------------------------------------------

Measure = Callable[
    [Sequence[int]], Floats
]  # indexes of parts, ascending → change of each answer token's log-probability (m,)


@dataclass
class SearchProgress:
    """The results of a search so far: the change of each part (m,), and which parts were measured alone."""

    changes: dict[int, Floats] = field(default_factory=dict)
    alone: set[int] = field(default_factory=set)
    measured: int = 0


def search_parts(count: int, measure: Measure, budget: int, likely: Sequence[int] = ()) -> Iterator[SearchProgress]:
    """Measure what each of `count` parts does, within `budget` measurements; yield the results so far after each.

    If the budget suffices, every part is hidden alone, the `likely` ones first. Otherwise the `likely` parts are hidden alone, up to half of the
    budget, and the others in groups of neighbours. The group that changes the answer most is split in two first. A group
    that changes it by less than NEGLIGIBLE is not split. The search ends when SETTLED parts each change the answer more
    than the largest remaining group.
    """
    progress = SearchProgress()

    def effect_of(group: tuple[int, ...]) -> float:
        change = measure(group)
        progress.measured += 1
        progress.changes |= dict.fromkeys(group, change)
        if len(group) == 1:
            progress.alone.add(group[0])
        return abs(float(change.sum()))

    alone = tuple(likely or range(count)) if count <= budget else tuple(likely[: budget // 2])
    for part in alone:
        effect_of((part,))
        yield progress
    remaining = tuple(part for part in range(count) if part not in alone)
    waiting = [(-float("inf"), remaining)] if remaining else []
    if alone and remaining:
        waiting = [(-effect_of(remaining), remaining)]
        yield progress
    while waiting and progress.measured + 2 <= budget:
        size, group = heapq.heappop(waiting)
        singles = sorted((abs(float(progress.changes[part].sum())) for part in progress.alone), reverse=True)
        if -size < NEGLIGIBLE or (len(singles) >= SETTLED and -size < singles[SETTLED - 1]):
            break
        middle = len(group) // 2
        for half in (group[middle:], group[:middle]):
            change = effect_of(half)
            yield progress
            if len(half) > 1:
                heapq.heappush(waiting, (-change, half))
