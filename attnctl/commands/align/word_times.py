"""The times of the words of a speech, from the cross attention of heads that follow the sound.

The method of Radford et al. 2023 (Robust Speech Recognition via Large-Scale Weak Supervision): the weights of the alignment
heads over the frames that hold sound, standardised over the tokens, smoothed by a median over 7 frames, averaged over the
heads, and the cheapest monotonic path through them (dynamic time warping). A word begins LEAD_SECONDS after the path reaches
it, since the heads turn to a word before it is said.

The path leads through pauses too, and gives each to a word beside it. So a pause is cut from the ends of a word by the
loudness of its frames; where a noise or a tone hides the pause, a word of more than a second at the edge of speech is
shortened as openai-whisper does it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from attnctl.commands.align.result import FRAME_SECONDS, REPEATED
from attnctl.runtime.arrays import Floats

MEDIAN_FRAMES = 7
# how long before a word begins Whisper base's heads look at it, median: 51 ms for 159 words of a synthetic voice, 56 and
# 45 ms for others at two speeds (times of the voice), 50 ms for 71 words that a person reads (times of an acoustic model)
LEAD_SECONDS = 0.05
PAUSE_SECONDS = 0.3  # how long the quiet end of a word must be to be a pause: the closures of p, t and k are shorter
# a longer word at the edge of speech is shortened; the longest of 730 ordinary words has 0.86
LONG_SECONDS = 1.0
# shares of a word's loudness: the lowest limit between quiet and loud frames, the highest, and the highest in a long word
QUIETEST, LOUDEST_QUIET, LOUDEST_QUIET_OF_LONG = 0.02, 0.2, 0.7
LONGEST_REPEATED = 12  # tokens of the longest repeated part
SENTENCE_ENDS = ".。!！?？"
# punctuation that belongs to the next word, and to the word before
BEFORE, AFTER = "\"'“¿([{-«", "\"'.。,，!！?？:：;”)]}、»…"


def standardised_weights(weights: Floats, frames: int) -> Floats:
    """Return weights (heads, tokens, all frames) of the first `frames`, standardised over tokens, smoothed over time."""
    cut = weights[..., :frames].astype(np.float32)
    cut = cut / np.maximum(cut.sum(axis=-1, keepdims=True), 1e-30)  # (heads, tokens, frames)
    spread = np.maximum(cut.std(axis=-2, keepdims=True), 1e-10)
    return median_filter((cut - cut.mean(axis=-2, keepdims=True)) / spread)


def median_filter(array: Floats, width: int = MEDIAN_FRAMES) -> Floats:
    """Return each number's median with its neighbours along the last axis, mirrored at its ends."""
    half = min(width // 2, array.shape[-1] - 1)
    padded = np.pad(array, [(0, 0)] * (array.ndim - 1) + [(half, half)], mode="reflect")
    shifted = [padded[..., start : start + array.shape[-1]] for start in range(2 * half + 1)]
    return np.median(np.stack(shifted), axis=0).astype(np.float32)


def warping_paths(cost: Floats) -> list[tuple[Floats, Floats]]:
    """Return the cheapest monotonic path through each matrix (matrices, n, m): its rows and columns, first to last."""
    count, n, m = cost.shape
    total = np.full((count, n + 1, m + 1), np.inf)
    total[:, 0, 0] = 0
    # 0: along both axes, 1: from the row above, 2: from the column before
    step = np.zeros((count, n + 1, m + 1), np.int8)
    step[:, 0, :], step[:, :, 0] = 2, 1
    for both in range(2, n + m + 1):  # an anti-diagonal at a time
        i = np.arange(max(1, both - m), min(n, both - 1) + 1)
        j = both - i
        before = np.stack([total[:, i - 1, j - 1], total[:, i - 1, j], total[:, i, j - 1]])  # (3, matrices, cells)
        diagonal = (before[0] < before[1]) & (before[0] < before[2])
        kind = np.where(diagonal, 0, np.where((before[1] < before[0]) & (before[1] < before[2]), 1, 2))
        step[:, i, j] = kind
        total[:, i, j] = cost[:, i - 1, j - 1] + np.take_along_axis(before, kind[None], 0)[0]
    paths = []
    for steps in step:
        i, j, way = n, m, []
        while i or j:
            way.append((i - 1, j - 1))
            kind = steps[i, j]
            i, j = i - (kind != 2), j - (kind != 1)
        rows, columns = np.array(way[::-1]).T
        paths.append((rows, columns))
    return paths


def head_scores(weights: Floats, standardised: Floats) -> Floats:
    """Return how well heads follow the sound, by weights (heads, tokens, frames), raw and standardised: (heads,).

    The score is taken along the head's own best path: the mean of its standardised weights × the share of its weights there.
    A head that does not move has a low mean, a head that looks everywhere a low share.
    """
    triples = zip(weights, standardised, warping_paths(-standardised), strict=True)
    scores = [raw[path].sum() / raw.sum() * standard[path].mean() for raw, standard, path in triples]
    return np.array(scores, np.float32)


def token_starts(path: tuple[Floats, Floats]) -> Floats:
    """Return the frame at which the path reaches each of its rows."""
    rows, columns = path
    return columns[np.diff(rows, prepend=-1) > 0]


def words_of_pieces(decode: Callable[[list[int]], str], ids: Sequence[int], spaces: bool) -> list[tuple[str, int, int]]:
    """Return (word, first token, last token + 1) of each word; bytes are joined, punctuation belongs to its word."""
    pieces: list[tuple[str, int, int]] = []  # pieces of whole characters
    start = 0
    for end in range(1, len(ids) + 1):
        text = decode(list(ids[start:end]))
        if "\ufffd" in text and end < len(ids) and end - start < 8:
            continue
        pieces.append((text, start, end))
        start = end
    words: list[tuple[str, int, int]] = []
    for text, first, end in pieces:
        bare, last = text.strip(), words[-1][0].strip() if words else ""
        begins = not spaces or text[:1].isspace()
        closes = bool(bare) and all(letter in AFTER for letter in bare) and not (begins and bare in ("'", '"'))
        opened = all(letter in BEFORE for letter in last) and bool(words) and words[-1][0][:1].isspace()  # or a space
        if words and (closes or opened or not begins):
            words[-1] = words[-1][0] + text, words[-1][1], end
        else:
            words.append((text, first, end))
    return [(text.strip(), first, end) for text, first, end in words if text.strip()]


def without_pauses(
    texts: Sequence[str], spans: Sequence[tuple[float, float]], loudness: Floats
) -> list[tuple[float, float]]:
    """Return where each word begins and ends, counted in frames as `spans` are, without the pauses at its ends.

    A word at the edge of speech or of a sentence that is then still longer than LONG_SECONDS is shortened to twice the
    median word, as in openai-whisper.
    """
    pause, long = round(PAUSE_SECONDS / FRAME_SECONDS), round(LONG_SECONDS / FRAME_SECONDS)
    cut = [_loud_part(start, end, loudness, pause) for start, end in spans]
    lengths = [end - start for start, end in cut if end > start]
    usual = 2 * min(0.7 / FRAME_SECONDS, float(np.median(lengths))) if lengths else 0.0
    for index, (start, end) in enumerate(cut):
        if end - start <= max(long, usual):
            continue
        if index == 0 or texts[index - 1][-1:] in SENTENCE_ENDS:
            cut[index] = end - usual, end
        elif index == len(cut) - 1 or texts[index][-1:] in SENTENCE_ENDS:
            cut[index] = start, start + usual
    return cut


def _loud_part(start: float, end: float, loudness: Floats, pause: int) -> tuple[float, float]:
    """Return `start` and `end` without the quiet frames at either end, if there are `pause` or more."""
    first_frame = int(start)
    part = loudness[first_frame : int(end)]
    if len(part) <= pause:
        return start, end
    level, floor = (float(np.quantile(part, share)) for share in (1 - 3 / len(part), 0.2))
    loudest_quiet = LOUDEST_QUIET_OF_LONG if len(part) * FRAME_SECONDS > LONG_SECONDS else LOUDEST_QUIET
    limit = min(max(math.sqrt(level * floor), QUIETEST * level), loudest_quiet * level)
    loud = np.flatnonzero(part > limit)
    if not len(loud):
        return start, end
    first, last = int(loud[0]), int(loud[-1]) + 1
    begins = first_frame + first if first >= pause else start
    return begins, first_frame + last if len(part) - last >= pause else end


def repeated_tokens(ids: Sequence[int]) -> list[bool]:
    """Return which tokens are part of a run of up to LONGEST_REPEATED tokens that stands REPEATED times in a row."""
    repeated = [False] * len(ids)
    for period in range(1, LONGEST_REPEATED + 1):
        run = 0
        for index in range(period, len(ids)):
            run = run + 1 if ids[index] == ids[index - period] else 0
            if run >= period * (REPEATED - 1):
                repeated[index - run - period + 1 : index + 1] = [True] * (run + period)
    return repeated
