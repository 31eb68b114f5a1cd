"""Which token of one text is which of another: by place where the texts are the same, by word where they are not."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher

from attnctl.tokens import Token

MOST_CELLS = 1_000_000  # pairs of tokens of two texts that are weighed against each other: a quarter of a second
Name = tuple[bool, str]  # whether a token is special, and its text


def aligned_tokens(
    ours: Sequence[Token], theirs: Sequence[Token], our_text: str = "", their_text: str = ""
) -> list[int | None]:
    """For each of our tokens the index of theirs that is the same; None where there is none.

    Of one text, cut by two tokenizers, the token that begins at the same letter, or that covers it. Of two texts, the same
    words in the same order; between these, as many on either side stand for each other.
    """
    if our_text and our_text == their_text:
        return [_at_letter(token, theirs, our_text) for token in ours]
    our_names, their_names = (
        [(token.special, token.text.strip().casefold()) for token in side] for side in (ours, theirs)
    )
    found: list[int | None] = [None] * len(ours)
    a = b = 0  # what comes after the pair before
    for past_a, past_b in [*_equal_pairs(our_names, their_names), (len(ours), len(theirs))]:
        if past_a - a == past_b - b:
            for step in range(past_a - a):
                if ours[a + step].special == theirs[b + step].special:
                    found[a + step] = b + step
        if past_a < len(ours):
            found[past_a] = past_b
        a, b = past_a + 1, past_b + 1
    return found


def _equal_pairs(ours: Sequence[Name], theirs: Sequence[Name]) -> list[tuple[int, int]]:
    """(our index, their index) of equal names where as few as can be are put in, taken out or replaced; in order.

    Of two lists that are too long for that, of the longest runs that they share. Either list may be the first.
    """
    if list(theirs) < list(ours):  # of several ways that are as short, the same one from either side
        return [(i, j) for j, i in _equal_pairs(theirs, ours)]
    if len(ours) * len(theirs) > MOST_CELLS:
        blocks = SequenceMatcher(None, ours, theirs, autojunk=False).get_matching_blocks()
        return [(a + step, b + step) for a, b, size in blocks for step in range(size)]
    # the changes that are left from each place of ours, the last first: one row a place, one entry a place of theirs
    rest = [list(range(len(theirs), -1, -1))]
    for name in reversed(ours):
        below, row = rest[-1], [rest[-1][-1] + 1]
        for j in range(len(theirs) - 1, -1, -1):
            row.append(min(below[j + 1] + (name != theirs[j]), below[j] + 1, row[-1] + 1))
        rest.append(row[::-1])
    rest.reverse()
    pairs, i, j = [], 0, 0
    while i < len(ours) and j < len(theirs):
        if rest[i][j] == rest[i + 1][j + 1] + (ours[i] != theirs[j]):
            pairs += [(i, j)] * (ours[i] == theirs[j])
            i, j = i + 1, j + 1
        elif rest[i][j] == rest[i + 1][j] + 1:
            i += 1
        else:
            j += 1
    return pairs


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
