"""Mentions of entities in the MISC column, as CorefUD writes them: Entity=(e1-person-1- … e1)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from attnctl.readings.census.parsed_sentence import Mention

PART = re.compile(r"\(([^()]+)(\))?|([^()]+)\)")
FIELDS = ("eid", "etype", "head", "other")  # of a file that does not say: # global.Entity = …


def fields_of(said: str | None) -> tuple[str, ...]:
    """The parts of a mention by the value of `# global.Entity`."""
    return FIELDS if not said else tuple(said.split("-"))


def mentions_of(values: Sequence[str], heads: Sequence[int], fields: Sequence[str] = ()) -> tuple[Mention, ...]:
    """The mentions that open and close within a sentence, in the order of their heads.

    `values` are the words' Entity, "" where there is none; `heads` the words' heads, -1 for the root. What does not
    close, closes unopened, or is in several parts is no mention.
    """
    fields = fields or FIELDS
    opened: dict[str, list[tuple[int, str]]] = {}
    found = []
    for at, value in enumerate(values):
        for part in PART.finditer(value):
            begins: str = part[1] or ""
            both, ends = part[2], part[3]
            if begins:
                parts = dict(zip(fields, begins.split("-"), strict=False))
                name, which = parts.get("eid", begins), parts.get("head", "")
                if both:
                    found.append(_mention_of_entity(name, at, at, which, heads))
                else:
                    opened.setdefault(name, []).append((at, which))
            elif opened.get(name := ends.split("-")[0]):
                first, which = opened[name].pop()
                found.append(_mention_of_entity(name, first, at, which, heads))
    whole = {(mention.entity, mention.head): mention for mention in found if "[" not in mention.entity}
    return tuple(sorted(whole.values(), key=lambda mention: (mention.head, mention.first)))


def _mention_of_entity(name: str, first: int, last: int, which: str, heads: Sequence[int]) -> Mention:
    """The mention, its head as the corpus says, or the first word whose own head lies outside."""
    if which.isdigit() and first <= first + int(which) - 1 <= last:
        return Mention(name, first, last, first + int(which) - 1)
    outside = (at for at in range(first, last + 1) if not first <= heads[at] <= last)
    return Mention(name, first, last, next(outside, last))
