"""Show the words of a speech with their times, the links of a target with its source, and the heads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from attnctl.commands.align.result import LISTED_HEADS, NO_SPACES, AlignedSpeech, AlignedText, AlignedWord, heads_listed
from attnctl.render.forms import Column, Form, Line, Table
from attnctl.text import visible_text

CUE_CHARACTERS, CUE_PAUSE = 42, 0.8  # characters of a subtitle's line, and seconds of silence that end it
CHOSEN = {
    "named": "the checkpoint's own alignment heads",
    "auto": "those that follow the sound best",
    "given": "as given",
}


def align_forms(aligned: AlignedSpeech | AlignedText) -> Iterator[Form]:
    """Return the spoken text, the time of each word, and the heads; for texts, the source of each token of the target."""
    if isinstance(aligned, AlignedText):
        yield from text_forms(aligned)
        return
    language = "" if aligned.language is None else f", language {aligned.language}"
    origin = "the text is given" if aligned.given else f"written down by {visible_text(aligned.model.name)}"
    yield f"{visible_text(aligned.audio)}: {aligned.seconds:.1f} s{language}; {origin}"
    yield Line(visible_text(aligned.text), "bold")
    yield ""
    yield words_table(aligned)
    yield ""
    yield Line(f"Read from heads {heads_listed(aligned.heads)}: {CHOSEN[aligned.chosen]}.")
    yield Line(f"Heads that follow the sound best: {heads_listed(aligned.found_heads)}.")
    if aligned.named_heads:
        named = heads_listed(aligned.named_heads)
        yield Line(
            f"The checkpoint names {named}: {aligned.common_heads} of these {len(aligned.named_heads)} are among the best "
            f"{LISTED_HEADS}."
        )


def alignment_table(aligned: AlignedSpeech | AlignedText) -> Table:
    """Return a row for each word, or for each token of the target."""
    return links_table(aligned) if isinstance(aligned, AlignedText) else words_table(aligned)


def words_table(aligned: AlignedSpeech) -> Table:
    """Return a row for each word, the doubtful ones marked."""
    words = aligned.words
    confidences = [word.confidence for word in words]
    return Table(
        [
            Column("start", [word.start for word in words], format=".2f"),
            Column("end", [word.end for word in words], format=".2f"),
            Column("word", [visible_text(word.text) for word in words], "text", cut="end"),
            Column("confidence", confidences, "heat", format=".2f"),
            Column("", confidences, "bar", max_width=10, rank=0, name=""),
            Column("doubtful", ["doubtful" if word.doubtful else None for word in words], "text"),
        ]
    )


def text_forms(aligned: AlignedText) -> Iterator[Form]:
    """Return source and target, the source of each token, and the heads."""
    yield Line(visible_text(aligned.text.strip()), "bold")
    yield Line(visible_text(aligned.target.strip()), "bold")
    yield "the target is given" if aligned.given else f"written by {visible_text(aligned.model.name)}"
    yield ""
    yield links_table(aligned)
    yield ""
    how = "as given" if aligned.chosen == "given" else "those that align best"
    yield Line(f"Read from heads {heads_listed(aligned.heads)}: {how}.")
    scored = [f"{head.layer}.{head.head} ({head.score:.2f})" for head in aligned.found_heads]
    yield Line(["Heads that align best, with their scores:", *scored], between=" ")


def links_table(aligned: AlignedText) -> Table:
    """Return a row for each token of the target."""
    weights = [link.weight for link in aligned.links]
    return Table(
        [
            Column("target", [visible_text(link.text) for link in aligned.links], "text"),
            Column("source", [visible_text(link.source_text) for link in aligned.links], "text"),
            Column("weight", weights, "heat", format=".2f"),
            Column("", weights, "bar", max_width=10, rank=0, name=""),
        ]
    )


# --- subtitles ---------------------------------------------------------------------------------------------------


def subtitle_cues(words: Sequence[AlignedWord]) -> list[list[AlignedWord]]:
    """Return words as subtitles, one line at a time; a line also ends at the end of a sentence and before a pause."""
    cues: list[list[AlignedWord]] = []
    for word in words:
        cue = cues[-1] if cues else []
        long = sum(len(earlier.text) + 1 for earlier in cue) + len(word.text) > CUE_CHARACTERS
        if not cue or long or cue[-1].text[-1:] in ".!?。！？…" or word.start - cue[-1].end >= CUE_PAUSE:
            cues.append([word])
        else:
            cue.append(word)
    return cues


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
