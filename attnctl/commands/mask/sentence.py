"""Recognise a mask, and say in a sentence what it lets through."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnctl.arrays import Bools, Ints
from attnctl.text import counted

SEE = ": see the picture"
OTHER = f"other{SEE}"
ONE = "one token: nothing to hide"
LISTED = 4  # segments or blocks that a sentence names


def mask_sentence(mask: Bools, padding: Bools | None = None, block_name: str = "tokens") -> str:
    """Return a sentence for a mask (n_q, n_k): "causal, window 512, image tokens 3–258 both ways".

    `padding` (n_k,) marks the keys that are padding, None: those that no query sees, at either end. The rows of padding
    queries do not count. `block_name` names the tokens that see each other both ways.
    """
    n_q, n_k = mask.shape
    hidden = _unseen_ends(mask) if padding is None else padding
    queries = ~hidden if n_q == n_k else np.ones(n_q, np.bool_)
    if hidden.all() or not queries.any():
        return "nothing: every key is hidden"
    core, positions = mask[queries][:, ~hidden], np.flatnonzero(~hidden)
    if n_q == n_k:
        words = [ONE if core.all() and core.size == 1 else _pattern(core, positions, block_name)]
    else:
        words = ["full" if core.all() else OTHER]
    if hidden.any():
        is_seen = bool(mask[queries][:, hidden].any())
        words.append(f"padding {ranges(np.flatnonzero(hidden))} {'visible' if is_seen else 'hidden'}")
    return ", ".join(words)


def band(n: int, back: int, ahead: int) -> Bools:
    """Return a mask (n, n) in which a query sees `back` tokens before it and `ahead` behind it."""
    gap = np.arange(n)[:, None] - np.arange(n)
    return (gap <= back) & (gap >= -ahead)


def _unseen_ends(mask: Bools) -> Bools:
    """Return the keys (n_k,) at either end that no query sees."""
    seen = np.flatnonzero(mask.any(0))
    hidden = np.ones(mask.shape[1], np.bool_)
    if len(seen):
        hidden[seen[0] : seen[-1] + 1] = False
    return hidden


def _pattern(mask: Bools, positions: Ints, block_name: str) -> str:
    """Return the words for a mask (n, n) without padding; `positions` (n,) are the places of its tokens in the text."""
    if mask.all():
        return "full"
    if not mask.any(1).all():
        return OTHER  # a token that sees nothing, not even itself
    gap = np.arange(len(mask))[:, None] - np.arange(len(mask))
    # a segment ends where no query before it sees a key behind, and no query behind a key before
    first, last = mask.argmax(1), len(mask) - 1 - mask[:, ::-1].argmax(1)  # (n,), the keys that a query sees
    before, behind = np.maximum.accumulate(last)[:-1], np.minimum.accumulate(first[::-1])[::-1][1:]  # (n - 1,)
    place = np.arange(1, len(mask))
    cuts = np.flatnonzero((before < place) & (behind >= place)) + 1
    if len(cuts) == len(mask) - 1:
        return "each token alone" if mask.diagonal().all() else OTHER
    if len(cuts):
        return _segments(mask, positions, cuts.tolist(), block_name)
    back, ahead = int(gap[mask].max()), int(-gap[mask].min())
    if np.array_equal(mask, band(len(mask), back, ahead)):
        return _band_words(len(mask), back, ahead)
    lower, n = np.tril(mask), len(mask)
    if (blocks := _blocks(mask)) is not None:
        inside = np.zeros_like(mask)
        for first, last in blocks:
            inside[first : last + 1, first : last + 1] = True
        outside = lower & ~inside
        back = int(gap[outside].max()) if outside.any() else 0
        for reach in (n - 1, back, int(gap[mask].max())):
            if np.array_equal(mask, inside | band(n, reach, 0)) or np.array_equal(
                mask, (inside | (gap >= 0)) & (gap <= reach)
            ):
                base = "causal" if reach == n - 1 else f"causal, window {reach + 1}"
                if len(blocks) == 1 and blocks[0][0] == 0 and block_name == "tokens":
                    return f"{base}, prefix of {blocks[0][1] + 1} tokens both ways"
                return f"{base}, {block_name} {_listed([(positions[a], positions[b]) for a, b in blocks])} both ways"
    everywhere: Bools = np.logical_and(mask.all(0), mask.all(1))
    if everywhere.any():
        rest = mask & ~everywhere & ~everywhere[:, None]
        back, ahead = int(gap[rest].max(initial=0)), int(-gap[rest].min(initial=0))
        if np.array_equal(mask, band(n, back, ahead) | everywhere | everywhere[:, None]):
            return f"{_band_words(n, back, ahead)}, {block_name} {ranges(positions[everywhere])} everywhere"
    if np.array_equal(mask, lower):
        hidden = n * (n + 1) // 2 - int(mask.sum())
        return f"causal, {counted(hidden, 'pair')} hidden besides: see the picture"
    return OTHER


def _band_words(n: int, back: int, ahead: int) -> str:
    if ahead == 0:
        return "causal" if back >= n - 1 else f"causal, window {back + 1}"
    if back == 0:
        return "only the future" + (f", window {ahead + 1}" if ahead < n - 1 else "")
    if back == ahead:
        return f"window of {counted(back, 'token')} to each side"
    return f"{counted(back, 'token')} back" + (f", {ahead} ahead" if back < n - 1 else f" (all), {ahead} ahead")


def _segments(mask: Bools, positions: Ints, cuts: Sequence[int], block_name: str) -> str:
    """Return the words for a mask whose tokens fall into segments that do not see each other."""
    borders = [0, *cuts, len(mask)]
    spans = [(first, last - 1) for first, last in zip(borders, borders[1:], strict=False)]
    named = [(positions[first], positions[last]) for first, last in spans]
    begin, longest = f"{len(spans)} segments apart", max(last - first + 1 for first, last in spans)
    gap = np.arange(len(mask))[:, None] - np.arange(len(mask))
    number = np.repeat(np.arange(len(spans)), np.diff(borders))  # (n,), of each token's segment
    back, ahead = int(gap[mask].max()), int(-gap[mask].min())
    if np.array_equal(mask, band(len(mask), back, ahead) & (number[:, None] == number)):
        words = "full" if back == ahead == longest - 1 else _band_words(longest, back, ahead)
        return f"{begin} ({_listed(named)}), {words} in each"
    inner = [
        _pattern(mask[first : last + 1, first : last + 1], positions[first : last + 1], block_name)
        if last > first
        else "alone"
        if mask[first, first]
        else "hidden from itself"
        for first, last in spans
    ]
    kinds = set(inner) - {"alone"}
    if len(kinds) == 1 and not any("both ways" in words for words in kinds):
        return f"{begin} ({_listed(named)}), {kinds.pop()} in each"
    each = [f"{_listed([span])} {words.removesuffix(SEE)}" for span, words in zip(named, inner, strict=True)]
    more = [f"… {len(each) - LISTED} more"] * (len(each) > LISTED)
    return f"{begin}: {'; '.join(each[:LISTED] + more)}"


def _blocks(mask: Bools) -> list[tuple[int, int]] | None:
    """Return the runs of tokens (first, last) that see each other both ways; None if the future is seen otherwise."""
    farthest = mask.shape[1] - 1 - mask[:, ::-1].argmax(1)  # (n,), the last key that a query sees
    blocks, row = [], 0
    while row < len(mask):
        last = int(farthest[row])
        if last > row:
            together = mask[row : last + 1, row : last + 1]
            if not np.array_equal(np.triu(together), np.triu(np.ones_like(together))):
                return None
            blocks.append((row, last))
        row = max(row, last) + 1
    return blocks or None


def ranges(indices: Ints | Sequence[int]) -> str:
    """Return "0–3, 7" for whole numbers in rising order."""
    breaks = np.flatnonzero(np.diff(indices) > 1) + 1
    return _listed([(part[0], part[-1]) for part in np.split(np.asarray(indices), breaks)])


def _listed(spans: Sequence[tuple[int, int]]) -> str:
    words = [f"{first}–{last}" if last > first else str(first) for first, last in spans]
    return ", ".join(words[:LISTED] + [f"… {len(words) - LISTED} more"] * (len(words) > LISTED))
