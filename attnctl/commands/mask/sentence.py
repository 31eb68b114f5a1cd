"""Recognise a mask, and say in a sentence what it lets through."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnctl.commands.mask.intervals import IntervalMask, band, interval_mask, outer, same
from attnctl.runtime.arrays import Bools, Ints
from attnctl.text import counted

SEE = ": see the picture"
OTHER = f"other{SEE}"
ONE = "one token: nothing to hide"
LISTED = 4  # segments or blocks that a sentence names


def mask_sentence(mask: Bools | IntervalMask, padding: Bools | None = None, block_name: str = "tokens") -> str:
    """Return a sentence for a mask (n_q, n_k): "causal, window 512, image tokens 3–258 both ways".

    `padding` (n_k,) marks the keys that are padding, None: those that no query sees, at either end. The rows of padding
    queries do not count. `block_name` names the tokens that see each other both ways.
    """
    mask = interval_mask(mask)
    n_q, n_k = mask.shape
    hidden = _unseen_ends(mask) if padding is None else padding
    queries = ~hidden if n_q == n_k else np.ones(n_q, np.bool_)
    if hidden.all() or not queries.any():
        return "nothing: every key is hidden"
    core, positions = mask.cut(queries, ~hidden), np.flatnonzero(~hidden)
    if n_q == n_k:
        words = [ONE if core.is_full and core.shape == (1, 1) else _pattern(core, positions, block_name)]
    else:
        words = ["full" if core.is_full else OTHER]
    if hidden.any():
        is_seen = mask.cut(queries, hidden).pairs > 0
        words.append(f"padding {ranges(np.flatnonzero(hidden))} {'visible' if is_seen else 'hidden'}")
    return ", ".join(words)


def _unseen_ends(mask: IntervalMask) -> Bools:
    """Return the keys (n_k,) at either end that no query sees."""
    seen = np.flatnonzero(mask.queries_of_keys())
    hidden = np.ones(mask.shape[1], np.bool_)
    if len(seen):
        hidden[seen[0] : seen[-1] + 1] = False
    return hidden


def _farthest(mask: IntervalMask) -> tuple[int, int]:
    """Return how many tokens before it, and how many behind it, a query of the mask sees at most; below 0 for none."""
    if not mask.pairs:
        return 0, 0
    return int((mask.query - mask.first).max()), int((mask.last - mask.query).max())


def _pattern(mask: IntervalMask, positions: Ints, block_name: str) -> str:
    """Return the words for a mask (n, n) without padding; `positions` (n,) are the places of its tokens in the text."""
    if mask.is_full:
        return "full"
    n, shape = mask.shape[0], mask.shape
    if not mask.keys_of_queries().all():
        return OTHER  # a token that sees nothing, not even itself
    # a segment ends where no query before it sees a key behind, and no query behind a key before
    starts = np.searchsorted(mask.query, np.arange(n))  # (n,), of the intervals of each query
    first, last = (
        mask.first[starts],
        mask.last[np.append(starts[1:], len(mask.query)) - 1],
    )  # (n,), the keys that a query sees
    before, behind = np.maximum.accumulate(last)[:-1], np.minimum.accumulate(first[::-1])[::-1][1:]  # (n - 1,)
    place = np.arange(1, n)
    cuts = np.flatnonzero((before < place) & (behind >= place)) + 1
    if len(cuts) == n - 1:
        return "each token alone"
    if len(cuts):
        return _segments(mask, positions, cuts.tolist(), block_name)
    back, ahead = _farthest(mask)
    if mask.key == band(shape, back, ahead).key:
        return _band_words(n, back, ahead)
    lower = mask & band(shape, n, 0)
    if (blocks := _blocks(mask, last)) is not None:
        number = np.full(n, -1)  # (n,), of each token's block
        for index, (start, end) in enumerate(blocks):
            number[start : end + 1] = index
        inside = same(number, number >= 0)
        for reach in (n - 1, max(0, _farthest(lower - inside)[0]), back):
            if mask.key in (
                (inside | band(shape, reach, 0)).key,
                ((inside | band(shape, n, 0)) & band(shape, reach, n)).key,
            ):
                base = "causal" if reach == n - 1 else f"causal, window {reach + 1}"
                if len(blocks) == 1 and blocks[0][0] == 0 and block_name == "tokens":
                    return f"{base}, prefix of {blocks[0][1] + 1} tokens both ways"
                return f"{base}, {block_name} {_listed([(positions[a], positions[b]) for a, b in blocks])} both ways"
    everywhere: Bools = (mask.keys_of_queries() == n) & (mask.queries_of_keys() == n)
    if everywhere.any():
        every = outer(everywhere, np.ones(n, np.bool_)) | outer(np.ones(n, np.bool_), everywhere)
        back, ahead = (max(0, side) for side in _farthest(mask - every))
        if mask.key == (every | band(shape, back, ahead)).key:
            return f"{_band_words(n, back, ahead)}, {block_name} {ranges(positions[everywhere])} everywhere"
    if mask.key == lower.key:
        hidden = n * (n + 1) // 2 - mask.pairs
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


def _segments(mask: IntervalMask, positions: Ints, cuts: Sequence[int], block_name: str) -> str:
    """Return the words for a mask whose tokens fall into segments that do not see each other."""
    borders = [0, *cuts, mask.shape[0]]
    spans = [(first, last - 1) for first, last in zip(borders, borders[1:], strict=False)]
    named = [(positions[first], positions[last]) for first, last in spans]
    begin, longest = f"{len(spans)} segments apart", max(last - first + 1 for first, last in spans)
    number = np.repeat(np.arange(len(spans)), np.diff(borders))  # (n,), of each token's segment
    back, ahead = _farthest(mask)
    if mask.key == (band(mask.shape, back, ahead) & same(number)).key:
        words = "full" if back == ahead == longest - 1 else _band_words(longest, back, ahead)
        return f"{begin} ({_listed(named)}), {words} in each"
    inner = [
        _pattern(mask.square(first, last), positions[first : last + 1], block_name)
        if last > first
        else "alone"
        if mask.square(first, first).pairs
        else "hidden from itself"
        for first, last in spans
    ]
    kinds = set(inner) - {"alone"}
    if len(kinds) == 1 and not any("both ways" in words for words in kinds):
        return f"{begin} ({_listed(named)}), {kinds.pop()} in each"
    each = [f"{_listed([span])} {words.removesuffix(SEE)}" for span, words in zip(named, inner, strict=True)]
    more = [f"… {len(each) - LISTED} more"] * (len(each) > LISTED)
    return f"{begin}: {'; '.join(each[:LISTED] + more)}"


def _blocks(mask: IntervalMask, farthest: Ints) -> list[tuple[int, int]] | None:
    """Return the runs of tokens (first, last) that see each other both ways; None if the future is seen otherwise.

    `farthest` (n,) is the last key that each query sees.
    """
    is_own = (mask.first <= mask.query) & (mask.query <= mask.last)
    onward = np.full(len(farthest), -1)  # (n,), the last of the keys that a query sees from itself on without a gap
    onward[mask.query[is_own]] = mask.last[is_own]
    blocks, row = [], 0
    while row < len(farthest):
        last = int(farthest[row])
        if last > row:
            if onward[row : last + 1].min() < last:
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
