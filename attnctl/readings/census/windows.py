"""Documents of parsed sentences read in windows, so that a mention can look at an antecedent in an earlier sentence.

Clark et al. (2019) cut documents to what the model reads. Here sentences that follow one another share a window until the
next would not fit, and none stands in two: a mention whose antecedents all stand before its window is counted, and no case.
"""

from __future__ import annotations

from collections.abc import Sequence

from attnctl.readings.census.parsed_sentence import Mention, ParsedSentence

# of the mentions of documents: the first of their entity, those whose antecedents stand before the window, those not read
MENTION_COUNTS = ("documents", "windows", "mentions", "new", "outside", "unread")


def windows_of_sizes(sizes: Sequence[int], most: int) -> list[range]:
    """Which sentences share a window: neighbours whose sizes add up to `most` at most; one larger by itself is in none."""
    windows: list[range] = []
    start, room = 0, most
    for at, size in enumerate(sizes):
        if size > room or size > most:
            windows.append(range(start, at))
            start, room = (at, most) if size <= most else (at + 1, most)
        room -= size if size <= most else 0
    return [window for window in (*windows, range(start, len(sizes))) if window]


def joined_sentences(sentences: Sequence[ParsedSentence]) -> ParsedSentence:
    """Several sentences as one text, a space between them, their mentions in order; of their trees nothing is left."""
    spans, mentions, start, words = [], [], 0, 0
    for sentence in sentences:
        spans += [(start + a, start + b) for a, b in sentence.spans]
        mentions += [
            Mention(one.entity, words + one.first, words + one.last, words + one.head) for one in sentence.mentions
        ]
        start, words = start + len(sentence.text) + 1, words + len(sentence.forms)
    return ParsedSentence(
        " ".join(sentence.text for sentence in sentences),
        tuple(spans),
        tuple(form for sentence in sentences for form in sentence.forms),
        tuple(tag for sentence in sentences for tag in sentence.tags),
        (-1,) * words,
        ("root",) * words,
        tuple(mentions),
        sentences[0].half,
    )


def mention_counts(sentences: Sequence[ParsedSentence], windows: Sequence[range]) -> dict[str, int]:
    """MENTION_COUNTS of one document that is read in these windows."""
    counts = dict.fromkeys(MENTION_COUNTS, 0) | {"documents": 1, "windows": len(windows)}
    window_of = {at: number for number, window in enumerate(windows) for at in window}
    seen: dict[str, int | None] = {}  # entity → the last window that it was mentioned in
    for at, sentence in enumerate(sentences):
        here = window_of.get(at)
        for mention in sentence.mentions:
            counts["mentions"] += 1
            if here is None:
                counts["unread"] += 1
            elif mention.entity not in seen:
                counts["new"] += 1
            elif seen[mention.entity] != here:
                counts["outside"] += 1
            seen[mention.entity] = here
    return counts
