"""What each head of a model was measured to find, as its weights file says; and which of them a sentence asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnctl.readings.traces.trace import ModelInfo
from attnctl.tokens import Token

if TYPE_CHECKING:
    from attnctl.text import Document

LEAST = 0.6  # of its held-out sentences that a head must be right on to bear the relation's name

PRONOUNS = frozenset(("it", "they", "he", "she", "him", "her", "them"))
_OF_PRONOUNS = ("it →", "pronoun →")


def roles_sentence(figures: Document) -> str | None:
    """`1.2 pronoun -> antecedent; …` of the figures in a weights file, the surest first; None where no head is sure.

    Raises KeyError, TypeError, ValueError where they are no figures.
    """
    known = [row for row in figures.values() if float(row["held_out"]) >= LEAST]
    sure = sorted(known, key=lambda row: -round(row["held_out"], 2))
    # of equals the one that was measured first, which is the simpler
    text = "; ".join(f"{int(row['layer'])}.{int(row['head'])} {row['relation']}" for row in sure)
    return text.replace("→", "->") or None  # in JSON: text that is all ASCII is written far faster


def roles_of_heads(info: ModelInfo) -> dict[tuple[int, int], tuple[str, ...]]:
    """(layer, head) → what it finds, the surest first."""
    found: dict[tuple[int, int], tuple[str, ...]] = {}
    for part in (info.finds or "").split("; "):
        place, _, relation = part.partition(" ")
        layer, _, head = place.partition(".")
        if relation and layer.isdecimal() and head.isdecimal():
            at = (int(layer), int(head))
            found[at] = (*found.get(at, ()), relation.replace("->", "→"))
    return found


def of_pronoun(info: ModelInfo, tokens: Sequence[Token], query: int | None = None) -> tuple[int, int, int] | None:
    """(layer, head, query) of the head that finds what a pronoun stands for; None where there is none of either.

    The pronoun is the token at `query`, or where that is None the last one.
    """
    said = [at for at, token in enumerate(tokens) if at > 1 and query in (None, at) and token.text.lower() in PRONOUNS]
    for start in _starts_for(tokens[said[-1]].text) if said else ():
        for (layer, head), relations in roles_of_heads(info).items():
            if any(relation.startswith(start) for relation in relations):
                return layer, head, said[-1]
    return None


def relation_of_pronoun(finds: Sequence[str], word: str) -> str:
    """Of the relations that a head was measured to find, the one that fits the pronoun `word`; empty where none does."""
    starts = _starts_for(word) if word.lower() in PRONOUNS else ()
    return next((relation for start in starts for relation in finds if relation.startswith(start)), "")


def _starts_for(pronoun: str) -> tuple[str, ...]:
    """How the names of the relations begin that ask what a pronoun stands for, the best fitting first."""
    return _OF_PRONOUNS if pronoun.lower() in ("it", "they") else _OF_PRONOUNS[::-1]
