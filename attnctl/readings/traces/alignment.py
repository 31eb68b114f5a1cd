"""Which token of one text is which of another: by place where the texts are the same, by word where they are not."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher

from attnctl.tokens import Token


def aligned_tokens(
    ours: Sequence[Token], theirs: Sequence[Token], our_text: str = "", their_text: str = ""
) -> list[int | None]:
    """For each of our tokens the index of theirs that is the same; None where there is none.

    Of one text, cut by two tokenizers, the token that begins at the same letter, or that covers it. Of two texts, the same
    words in the same order; between these, as many on either side stand for each other.
    """
    if our_text and our_text == their_text:
        return [_at_letter(token, theirs, our_text) for token in ours]
    our_names, their_names = ([_comparable_token(token) for token in side] for side in (ours, theirs))
    matcher = SequenceMatcher(None, our_names, their_names, autojunk=False)
    found: list[int | None] = [None] * len(ours)
    for kind, a, past_a, b, past_b in matcher.get_opcodes():
        if kind == "equal" or (kind == "replace" and past_a - a == past_b - b):
            for step in range(past_a - a):
                if ours[a + step].special == theirs[b + step].special:
                    found[a + step] = b + step
    return found


def _comparable_token(token: Token) -> tuple[bool, str]:
    return token.special, token.text.strip().casefold()


def _at_letter(token: Token, theirs: Sequence[Token], text: str) -> int | None:
    """The token of `theirs` that covers the first letter of `token`; of special ones the one of the same text."""
    if token.special or token.start is None or token.end is None:
        same = (at for at, other in enumerate(theirs) if other.special and other.text == token.text)
        return next(same, None)
    letters = (at for at in range(token.start, token.end) if not text[at : at + 1].isspace())
    first = next(letters, token.start)
    covering = (
        at
        for at, other in enumerate(theirs)
        if not other.special and other.start is not None and other.end is not None and other.start <= first < other.end
    )
    return next(covering, None)
