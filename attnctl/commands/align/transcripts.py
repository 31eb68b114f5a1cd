"""The words of a speech as other programs read them: subtitles, TextGrid of Praat, CTM, labels of Audacity.

- SRT, and WebVTT (W3C), where each word of a cue has its own time.
- TextGrid, the long text form (Praat's manual, "TextGrid file formats"): two tiers of intervals, words and segments, which
  cover the whole sound without a gap. praatio writes it.
- CTM (NIST's SCTK, "ctm"): recording, channel, start, duration, word, confidence, between blanks. Kaldi writes it too.
- Labels of Audacity (its manual, "Importing and Exporting Labels"): start, end, text, between tabs.

A segment ends at the end of a sentence, and before a pause. JSON has the words of each segment as whisperX writes them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from attnctl.commands.align.result import NO_SPACES, AlignedSpeech, AlignedWord, SegmentWord, SpokenSegment
from attnctl.errors import AttnctlError
from attnctl.text import visible_text

CUE_CHARACTERS, CUE_PAUSE = 42, 0.8  # characters of a subtitle's line, and seconds of silence that end it
LONE_PAUSE = 2.0  # seconds of silence over which a word that would be alone in a subtitle joins its neighbours
SENTENCE_ENDS = ".!?。！？…"
SHORTEST = 0.001  # seconds of an interval: Praat keeps one interval for each start

FORMS = ("srt", "vtt", "textgrid", "ctm", "txt")


def transcript(aligned: AlignedSpeech, form: str) -> bytes:
    """Return the words of a speech in one of FORMS."""
    if form in ("srt", "vtt"):
        return subtitles(aligned, form).encode()
    return {"textgrid": text_grid, "ctm": time_marks, "txt": labels}[form](aligned).encode()


def check_form(form: str) -> None:
    """Raise AttnctlError, before any work, for a form whose library is not installed."""
    if form == "textgrid":
        _praatio()


# --- segments ---------------------------------------------------------------------------------------------------------


def segments_of_words(words: Sequence[AlignedWord]) -> list[list[AlignedWord]]:
    """Return the words of each segment: it ends at the end of a sentence, and before a pause of CUE_PAUSE."""
    segments: list[list[AlignedWord]] = []
    for word in words:
        last = segments[-1][-1] if segments else None
        if last is None or last.text[-1:] in SENTENCE_ENDS or word.start - last.end >= CUE_PAUSE:
            segments.append([])
        segments[-1].append(word)
    return segments


def spoken_segments(words: Sequence[AlignedWord], language: str | None) -> tuple[SpokenSegment, ...]:
    """Return segments with their words, under the names that whisperX has for them."""
    return tuple(
        SpokenSegment(
            start=segment[0].start,
            end=segment[-1].end,
            text=joined_words(segment, language),
            words=tuple(SegmentWord(word.text, word.start, word.end, word.confidence) for word in segment),
        )
        for segment in segments_of_words(words)
    )


def joined_words(words: Sequence[AlignedWord], language: str | None) -> str:
    """Return words as a text, with spaces between them if the language is written with spaces."""
    return ("" if language in NO_SPACES else " ").join(word.text for word in words)


# --- subtitles --------------------------------------------------------------------------------------------------------


def subtitle_cues(words: Sequence[AlignedWord]) -> list[list[AlignedWord]]:
    """Return words as subtitles of one line each, with two words or more unless a word is spoken all alone."""
    cues = [cue for segment in segments_of_words(words) for cue in _cues_of_segment(segment)]
    index = 0
    while index < len(cues):
        if len(cues[index]) == 1 and (other := _neighbour(cues, index)) is not None:
            first, second = sorted((index, other))
            cues[first : second + 1] = [cues[first] + cues[second]]
            index = max(first, 0)
        else:
            index += 1
    return cues


def _cues_of_segment(segment: Sequence[AlignedWord]) -> list[list[AlignedWord]]:
    """Return the words of a segment as cues of CUE_CHARACTERS at most; a last word is never alone if there are others."""
    cues: list[list[AlignedWord]] = [[]]
    for word in segment:
        length = sum(len(earlier.text) + 1 for earlier in cues[-1]) + len(word.text)
        if len(cues[-1]) > 1 and length > CUE_CHARACTERS:
            cues.append([])
        cues[-1].append(word)
    if len(cues) > 1 and len(cues[-1]) == 1:
        before = cues[-2]
        cues[-2:] = [before[:-1], [before[-1], *cues[-1]]] if len(before) > 2 else [before + cues[-1]]
    return cues


def _neighbour(cues: Sequence[Sequence[AlignedWord]], index: int) -> int | None:
    """Return the index of the cue that is nearest in time to a cue; None if none is within LONE_PAUSE."""
    cue = cues[index]
    gaps = {index - 1: cue[0].start - cues[index - 1][-1].end} if index else {}
    gaps |= {index + 1: cues[index + 1][0].start - cue[-1].end} if index + 1 < len(cues) else {}
    nearest = min(gaps, key=lambda other: gaps[other], default=None)
    return nearest if nearest is not None and gaps[nearest] <= LONE_PAUSE else None


def clock(seconds: float, point: str = ".") -> str:
    """Return a time as 00:01:02.340, with a comma in SRT."""
    whole = round(1000 * seconds)
    return f"{whole // 3_600_000:02}:{whole // 60_000 % 60:02}:{whole // 1000 % 60:02}{point}{whole % 1000:03}"


WORD_JOINER = "\u2060"  # without width, and no place for a line to break
# what readers of SRT take for markup: <b>, </font>, {\an8}, and the arrow between two times
SRT_MARKUP = re.compile(r"<(?=[^\W\d]|/)|\{(?=\\)|--(?=>)")


def _escaped_word(word: str, form: str) -> str:
    """Return a word for srt or vtt, in which nothing is markup. SRT has no escapes: there a word joiner parts the markup."""
    text = visible_text(word)
    if form == "srt":
        return SRT_MARKUP.sub(lambda match: match[0] + WORD_JOINER, text)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def subtitles(aligned: AlignedSpeech, form: str) -> str:
    """Return the words as a file of subtitles, srt or vtt; in vtt each word has its own time."""
    spaced, vtt, cues = aligned.language not in NO_SPACES, form == "vtt", []
    for number, cue in enumerate(subtitle_cues(aligned.words), 1):
        point, end = "." if vtt else ",", max(cue[-1].end, cue[0].start + 0.001)
        times = f"{clock(cue[0].start, point)} --> {clock(end, point)}"
        texts = [_escaped_word(word.text, form) for word in cue]
        if vtt:
            pairs = zip(texts[1:], cue, cue[1:], strict=False)
            later = [
                f"<{clock(word.start)}>{text}" if word.start > earlier.start else text for text, earlier, word in pairs
            ]
            texts = [texts[0], *later]
        cues.append(f"{number}\n{times}\n{(' ' if spaced else '').join(texts)}\n")
    return ("WEBVTT\n\n" if vtt else "") + "\n".join(cues)


# --- intervals --------------------------------------------------------------------------------------------------------


def text_grid(aligned: AlignedSpeech) -> str:
    """Return the words and segments as two tiers of a TextGrid, in the long text form.

    A word without a length gets SHORTEST, and the words after it begin later if they must. Raises AttnctlError if praatio
    is not installed.
    """
    grids = _praatio()
    words = _parted([(word.start, word.end, visible_text(word.text)) for word in aligned.words])
    counts = [len(segment) for segment in segments_of_words(aligned.words)]
    segments, first = [], 0
    for count in counts:
        text = joined_words(aligned.words[first : first + count], aligned.language)
        segments.append((words[first][0], words[first + count - 1][1], visible_text(text)))
        first += count
    end = max([aligned.seconds, *(last for _, last, _ in words[-1:])])
    grid = grids.Textgrid(0, end)
    for name, intervals in (("words", words), ("segments", segments)):
        grid.addTier(grids.IntervalTier(name, intervals, 0, end))
    with TemporaryDirectory() as folder:  # praatio writes files alone
        path = Path(folder) / "words.TextGrid"
        grid.save(str(path), "long_textgrid", includeBlankSpaces=True, minimumIntervalLength=None)
        return path.read_text(encoding="utf-8")


def _praatio() -> Any:
    """Return praatio's module of TextGrids. Raises AttnctlError if it is not installed."""
    try:
        from praatio import textgrid
    except ImportError:
        raise AttnctlError("a TextGrid needs praatio: pip install 'attnctl[media]'") from None
    return textgrid


def _parted(intervals: Sequence[tuple[float, float, str]]) -> list[tuple[float, float, str]]:
    """Return intervals that do not overlap, each SHORTEST at least."""
    parted: list[tuple[float, float, str]] = []
    for start, end, text in intervals:
        begins = max(start, parted[-1][1]) if parted else start
        parted.append((begins, max(end, round(begins + SHORTEST, 6)), text))
    return parted


def time_marks(aligned: AlignedSpeech, name: str | None = None) -> str:
    """Return the words as CTM: recording, channel 1, start, duration, word, confidence, a line each.

    The recording's `name` is by default that of its file, without suffix.
    """
    recording = _without_blanks(Path(aligned.audio).stem if name is None else name).replace(";", "_")  # ;; is a comment
    lines = (
        (recording, "1", f"{word.start:.3f}", f"{word.end - word.start:.3f}", _without_blanks(word.text))
        + (f"{word.confidence:.4f}",)
        for word in aligned.words
    )
    return "".join(" ".join(line) + "\n" for line in lines)


def _without_blanks(text: str) -> str:
    """Return a text that can be shown, with _ in place of blanks."""
    return "_".join(visible_text(text).split()) or "_"


def labels(aligned: AlignedSpeech) -> str:
    """Return the words as labels of Audacity: start, end and word, with tabs between them."""
    return "".join(f"{word.start:.6f}\t{word.end:.6f}\t{visible_text(word.text)}\n" for word in aligned.words)
