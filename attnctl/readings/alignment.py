"""When each word of a speech was said: by the cross attention of heads that go along with the sound.

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
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from attnctl.arrays import Floats
from attnctl.document_fields import ALWAYS, Part, Portion, about
from attnctl.errors import UsageError
from attnctl.readings.head_place import HeadPlace
from attnctl.text import visible_text
from attnctl.trace.model_info import ModelInfo

FRAME_SECONDS = 0.02
MEDIAN_FRAMES = 7
# how long before a word begins Whisper base's heads turn to it, in the median: 51 ms of 159 words of a synthetic voice,
# 56 and 45 ms of others at two speeds (its own times), 50 ms of 71 words that a person reads (those of an acoustic model)
LEAD_SECONDS = 0.05
AUTO_HEADS = 6  # of the best, for `auto`
LISTED_HEADS = 10  # of the best, to be held against those that a checkpoint names
PAUSE_SECONDS = 0.3  # how long the quiet end of a word must be to be a pause: the closures of p, t and k are shorter
LONG_SECONDS = (
    1.0  # of a word at the edge of speech, which is then shortened; the longest of 730 ordinary words has 0.86
)
# of a word's loudness: where the limit between quiet and loud frames may be, at most in a word and in a long one
QUIETEST, LOUDEST_QUIET, LOUDEST_QUIET_OF_LONG = 0.02, 0.2, 0.7
IMPROBABLE = (
    0.08  # a word below this is doubtful: 2 of 730 ordinary words of a synthetic voice, as bench_align speaks them
)
REPEATED, LONGEST_REPEATED = 4, 12  # how often the same tokens must follow each other to be doubtful, and how many
SENTENCE_ENDS = ".。!！?？"
CUE_CHARACTERS, CUE_PAUSE = 42, 0.8  # of a subtitle: a line, and seconds of silence that end it
BEFORE, AFTER = "\"'“¿([{-«", "\"'.。,，!！?？:：;”)]}、»…"  # punctuation that belongs to the word behind it, before it
NO_SPACES = ("zh", "ja", "th", "lo", "my", "yue", "km", "bo")  # languages that are written without spaces


class AlignedWord(Part):
    """A word, and when it was said."""

    text: str
    start: Annotated[float, about("Seconds.", minimum=0)]
    end: Annotated[float, about("Seconds.", minimum=0)]
    confidence: Annotated[Portion, about("The geometric mean of its tokens' probabilities.")]
    doubtful: Annotated[
        bool,
        ALWAYS,
        about(f"Its confidence is below {IMPROBABLE:g}, or the same tokens follow each other {REPEATED} times."),
    ] = False


class ScoredHead(HeadPlace):
    """A head, and how well it goes along with the sound."""

    score: Annotated[
        float, about("Mean of its standardised weights along its best monotonic path × the share of its weights there.")
    ]


@dataclass(frozen=True, eq=False)
class AlignedWindow:
    """Up to 30 seconds of sound: the tokens of its text, and their way along the frames."""

    start: float  # seconds
    tokens: tuple[str, ...]
    weights: Floats  # (tokens + 1, frames): standardised, smoothed, mean of the heads; the last row is the end's
    path: tuple[Floats, Floats]  # rows and frames of the path


@dataclass(frozen=True, eq=False)
class AlignedSpeech:
    """The words of a speech with their times, and the heads that they were read from."""

    audio: str
    seconds: float
    text: str
    given: bool
    language: str | None
    model: ModelInfo
    words: tuple[AlignedWord, ...]
    chosen: str
    heads: tuple[HeadPlace, ...]
    named_heads: tuple[HeadPlace, ...]
    found_heads: tuple[ScoredHead, ...]
    windows: tuple[AlignedWindow, ...]
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"AlignedSpeech of {self.audio}: {len(self.words)} words in {self.seconds:.1f} s, {self.model.name}"

    @property
    def common_heads(self) -> int:
        """How many of the heads that the checkpoint names are among those found."""
        found = {(one.layer, one.head) for one in self.found_heads}
        return sum((one.layer, one.head) in found for one in self.named_heads)


def standardised_weights(weights: Floats, frames: int) -> Floats:
    """Weights (heads, tokens, all frames) cut to the first `frames`, standardised over the tokens, smoothed over time."""
    cut = weights[..., :frames].astype(np.float32)
    cut = cut / np.maximum(cut.sum(axis=-1, keepdims=True), 1e-30)  # (heads, tokens, frames)
    spread = np.maximum(cut.std(axis=-2, keepdims=True), 1e-10)
    return median_filter((cut - cut.mean(axis=-2, keepdims=True)) / spread)


def median_filter(array: Floats, width: int = MEDIAN_FRAMES) -> Floats:
    """Each number's median with its neighbours along the last axis, which is mirrored at its ends."""
    half = min(width // 2, array.shape[-1] - 1)
    padded = np.pad(array, [(0, 0)] * (array.ndim - 1) + [(half, half)], mode="reflect")
    shifted = [padded[..., at : at + array.shape[-1]] for at in range(2 * half + 1)]
    return np.median(np.stack(shifted), axis=0).astype(np.float32)


def warping_paths(cost: Floats) -> list[tuple[Floats, Floats]]:
    """The cheapest monotonic path through each matrix (matrices, n, m): its rows and its columns, from first to last."""
    count, n, m = cost.shape
    total = np.full((count, n + 1, m + 1), np.inf)
    total[:, 0, 0] = 0
    step = np.zeros(
        (count, n + 1, m + 1), np.int8
    )  # 0: along both axes, 1: from the row above, 2: from the column before
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
    """How well heads go along with the sound, by weights (heads, tokens, frames) as they are, and standardised: (heads,).

    Along a head's own best path: the mean of its standardised weights × the share of its weights there. One that stays where
    it is has a low mean, one that looks everywhere a low share.
    """
    told = zip(weights, standardised, warping_paths(-standardised), strict=True)
    return np.array([own[path].sum() / own.sum() * one[path].mean() for own, one, path in told], np.float32)


def token_starts(path: tuple[Floats, Floats]) -> Floats:
    """The frame at which the path reaches each of its rows."""
    rows, columns = path
    return columns[np.diff(rows, prepend=-1) > 0]


def words_of_pieces(decode: Callable[[list[int]], str], ids: Sequence[int], spaces: bool) -> list[tuple[str, int, int]]:
    """(word, first token, token behind its last) of each word: tokens of bytes joined, punctuation with its word."""
    pieces: list[tuple[str, int, int]] = []  # of whole characters
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

    A word that is longer than LONG_SECONDS after that, at the edge of speech or of a sentence, becomes twice as long as the
    median word, as in openai-whisper.
    """
    pause, long = round(PAUSE_SECONDS / FRAME_SECONDS), round(LONG_SECONDS / FRAME_SECONDS)
    cut = [_loud_part(start, end, loudness, pause) for start, end in spans]
    lengths = [end - start for start, end in cut if end > start]
    usual = 2 * min(0.7 / FRAME_SECONDS, float(np.median(lengths))) if lengths else 0.0
    for at, (start, end) in enumerate(cut):
        if end - start <= max(long, usual):
            continue
        if at == 0 or texts[at - 1][-1:] in SENTENCE_ENDS:
            cut[at] = end - usual, end
        elif at == len(cut) - 1 or texts[at][-1:] in SENTENCE_ENDS:
            cut[at] = start, start + usual
    return cut


def _loud_part(start: float, end: float, loudness: Floats, pause: int) -> tuple[float, float]:
    """Return `start` and `end` without the quiet frames at either end, where they are `pause` or more."""
    first_frame = int(start)
    own = loudness[first_frame : int(end)]
    if len(own) <= pause:
        return start, end
    level, floor = (float(np.quantile(own, share)) for share in (1 - 3 / len(own), 0.2))
    most = LOUDEST_QUIET_OF_LONG if len(own) * FRAME_SECONDS > LONG_SECONDS else LOUDEST_QUIET
    limit = min(max(math.sqrt(level * floor), QUIETEST * level), most * level)
    loud = np.flatnonzero(own > limit)
    if not len(loud):
        return start, end
    first, last = int(loud[0]), int(loud[-1]) + 1
    begins = first_frame + first if first >= pause else start
    return begins, first_frame + last if len(own) - last >= pause else end


def repeated_tokens(ids: Sequence[int]) -> list[bool]:
    """Return which tokens are part of a run of up to LONGEST_REPEATED tokens that stands REPEATED times in a row."""
    found = [False] * len(ids)
    for period in range(1, LONGEST_REPEATED + 1):
        run = 0
        for at in range(period, len(ids)):
            run = run + 1 if ids[at] == ids[at - period] else 0
            if run >= period * (REPEATED - 1):
                found[at - run - period + 1 : at + 1] = [True] * (run + period)
    return found


# --- subtitles ---------------------------------------------------------------------------------------------------


def subtitle_cues(words: Sequence[AlignedWord]) -> list[list[AlignedWord]]:
    """Words as subtitles show them: a line at a time, which also ends with a sentence and before a pause."""
    cues: list[list[AlignedWord]] = []
    for word in words:
        cue = cues[-1] if cues else []
        long = sum(len(one.text) + 1 for one in cue) + len(word.text) > CUE_CHARACTERS
        if not cue or long or cue[-1].text[-1:] in ".!?。！？…" or word.start - cue[-1].end >= CUE_PAUSE:
            cues.append([word])
        else:
            cue.append(word)
    return cues


def clock(seconds: float, point: str = ".") -> str:
    """00:01:02.340, with a comma in SRT."""
    whole = round(1000 * seconds)
    return f"{whole // 3_600_000:02}:{whole // 60_000 % 60:02}:{whole // 1000 % 60:02}{point}{whole % 1000:03}"


def subtitles(found: AlignedSpeech, form: str) -> str:
    """The words as a file of subtitles, srt or vtt; in vtt each word has its own time."""
    spaced, vtt, cues = found.language not in NO_SPACES, form == "vtt", []
    for number, cue in enumerate(subtitle_cues(found.words), 1):
        point, end = "." if vtt else ",", max(cue[-1].end, cue[0].start + 0.001)
        times = f"{clock(cue[0].start, point)} --> {clock(end, point)}"
        texts = [visible_text(one.text) for one in cue]
        if vtt:
            texts = [text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") for text in texts]
            pairs = zip(texts[1:], cue, cue[1:], strict=False)
            later = [f"<{clock(at.start)}>{text}" if at.start > last.start else text for text, last, at in pairs]
            texts = [texts[0], *later]
        cues.append(f"{number}\n{times}\n{(' ' if spaced else '').join(texts)}\n")
    return ("WEBVTT\n\n" if vtt else "") + "\n".join(cues)


# --- heads ----------------------------------------------------------------------------------------------------------


def parsed_heads(spec: str, info: ModelInfo) -> tuple[HeadPlace, ...]:
    """The heads that "4.2,5.1" names. Raises UsageError where it names none, or one that is not there."""
    found: dict[tuple[int, int], HeadPlace] = {}
    for part in spec.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,4})\.([0-9]{1,4})\s*", part)
        if match is None:
            raise UsageError(f"--heads {spec[:40]!r}: it is named, auto, or heads as layer.head: 4.2,5.1")
        place = int(match[1]), int(match[2])
        found[place] = HeadPlace(*place)
    return checked_heads(tuple(found.values()), info, "--heads")


def checked_heads(heads: tuple[HeadPlace, ...], info: ModelInfo, where: str) -> tuple[HeadPlace, ...]:
    """The heads, all of which are there. Raises UsageError for one that is not."""
    layers, count = info.n_layers or 0, info.n_heads or 0
    for one in heads:
        if one.layer >= layers or one.head >= count:
            raise UsageError(
                f"{where}: no head {one.layer}.{one.head} in {info.name}: it has {layers} layers of {count} heads"
            )
    return heads


def heads_listed(heads: Sequence[HeadPlace]) -> str:
    """3.1, 4.2: layer and head of each."""
    return ", ".join(f"{one.layer}.{one.head}" for one in heads)
