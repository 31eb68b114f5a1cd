"""Mentions of entities in the MISC column, as CorefUD writes them: Entity=(e1-person-1- … e1)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import NamedTuple

from attnctl.readings.census.words import Mention

PART = re.compile(r"\(([^()]+)(\))?|([^()]+)\)")
PIECE = re.compile(r"(.+)\[(\d+)/(\d+)\]")  # of a mention in several pieces: e3[1/2]
FIELDS = ("eid", "etype", "head", "other")  # of a file that does not say: # global.Entity = …

Node = tuple[str, int | None]  # its Entity, "" where there is none; its word, None of an empty node


class _Bracket(NamedTuple):
    """One pair of brackets: the entity, which piece of how many, the number of its head, its first and last node."""

    entity: str
    piece: int
    pieces: int
    head: str
    first: int
    last: int


def fields_of(said: str | None) -> tuple[str, ...]:
    """The parts of a mention by the value of `# global.Entity`."""
    return FIELDS if not said else tuple(said.split("-"))


def mentions_of(nodes: Sequence[Node], heads: Sequence[int], fields: Sequence[str] = ()) -> tuple[Mention, ...]:
    """The mentions that open and close within a sentence, in the order of their heads.

    `nodes` are the words and empty nodes as they stand, `heads` the words' heads, -1 for the root. What does not close,
    closes unopened, lacks one of its pieces, or has an empty node for its head (a zero) is no mention.
    """
    found: dict[tuple[str, int], Mention] = {}
    pieces: dict[str, list[_Bracket]] = {}
    for bracket in _brackets(nodes, fields or FIELDS):
        so_far = pieces.get(bracket.entity, []) if bracket.piece > 1 else []
        if len(so_far) != bracket.piece - 1:
            continue
        so_far = [*so_far, bracket]
        if bracket.piece < bracket.pieces:
            pieces[bracket.entity] = so_far
            continue
        pieces.pop(bracket.entity, None)
        mention = _mention_of_pieces(so_far, nodes, heads)
        if mention is not None:
            found[mention.entity, mention.head] = mention
    return tuple(sorted(found.values(), key=lambda mention: (mention.head, mention.first)))


def _brackets(nodes: Sequence[Node], fields: Sequence[str]) -> Iterator[_Bracket]:
    """The pairs of brackets, in the order in which they close."""
    opened: dict[str, list[tuple[int, str]]] = {}
    for at, (value, _) in enumerate(nodes):
        for part in PART.finditer(value):
            begins: str = part[1] or ""
            ends: str = part[3] or ""
            if begins:
                said = dict(zip(fields, begins.split("-"), strict=False))
                name, which = said.get("eid", begins), said.get("head", "")
                opened.setdefault(name, []).append((at, which))
            else:
                name = ends.split("-")[0]
            if (part[2] or not begins) and opened.get(name):
                first, which = opened[name].pop()
                piece = PIECE.fullmatch(name)
                entity, number, of = (piece[1], int(piece[2]), int(piece[3])) if piece else (name, 1, 1)
                yield _Bracket(entity, number, of, which, first, at)


def _mention_of_pieces(pieces: Sequence[_Bracket], nodes: Sequence[Node], heads: Sequence[int]) -> Mention | None:
    """The mention of some pieces, its head as the corpus says, or the first word whose own head lies outside."""
    own = [range(piece.first, piece.last + 1) for piece in pieces]
    first = next((word for at in chain(*own) if (word := nodes[at][1]) is not None), None)
    last = next((word for at in chain(*map(reversed, own[::-1])) if (word := nodes[at][1]) is not None), None)
    if first is None or last is None:
        return None
    which = int(pieces[0].head) if pieces[0].head.isdecimal() else 0
    if 1 <= which <= sum(map(len, own)):
        head = nodes[next(islice(chain(*own), which - 1, None))][1]
    else:
        words = {word for at in chain(*own) if (word := nodes[at][1]) is not None}
        head = next((word for word in sorted(words) if heads[word] not in words), last)
    return None if head is None else Mention(pieces[0].entity, first, last, head)
