"""The words of a speech with their times, the links of a target with its source, and the heads that give them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from attnctl.checks.document_fields import (
    ALWAYS,
    Amount,
    Count,
    HeadPlace,
    Index,
    Matrix,
    Part,
    Portion,
    Share,
    Whole,
    about,
)
from attnctl.checks.selection import selected_heads
from attnctl.formats import JsonDocument, ResultModel, ResultTokens, flat_records
from attnctl.runtime.arrays import Floats
from attnctl.text import quoted_beginning
from attnctl.trace import ModelInfo

FRAME_SECONDS = 0.02
AUTO_HEADS = 6  # the number of best heads for `auto`
LISTED_HEADS = 10  # the number of best heads that are compared with the heads that a checkpoint names
# a word with a lower confidence is doubtful: 2 of 730 ordinary words of a synthetic voice, as bench_align speaks them
IMPROBABLE = 0.08
REPEATED = 4  # the same tokens this many times in a row are doubtful
NO_SPACES = ("zh", "ja", "th", "lo", "my", "yue", "km", "bo")  # languages that are written without spaces


class AlignedWord(Part):
    """A word, and the time when it was spoken."""

    text: str
    start: Annotated[float, about("Seconds.", minimum=0)]
    end: Annotated[float, about("Seconds.", minimum=0)]
    confidence: Annotated[Portion, about("The geometric mean of its tokens' probabilities.")]
    doubtful: Annotated[
        bool,
        ALWAYS,
        about(f"Its confidence is below {IMPROBABLE:g}, or the same tokens follow each other {REPEATED} times."),
    ] = False


class SegmentWord(Part):
    """A word of a segment, under the names that whisperX has."""

    word: str
    start: Annotated[float, about("Seconds.", minimum=0)]
    end: Annotated[float, about("Seconds.", minimum=0)]
    score: Annotated[Portion, about("Its confidence.")]


class SpokenSegment(Part):
    """A part of a speech up to the end of a sentence or a pause, as whisperX has it."""

    start: Annotated[float, about("Seconds.", minimum=0)]
    end: Annotated[float, about("Seconds.", minimum=0)]
    text: str
    words: tuple[SegmentWord, ...]


class ScoredHead(HeadPlace):
    """A head, and how well it follows the sound."""

    score: Annotated[
        float, about("Mean of its standardised weights along its best monotonic path × the share of its weights there.")
    ]


@dataclass(frozen=True, eq=False)
class AlignedWindow:
    """Up to 30 seconds of sound: the tokens of its text, and their path along the frames."""

    start: float  # seconds
    tokens: tuple[str, ...]
    weights: Floats  # (tokens + 1, frames): standardised, smoothed, mean over the heads; the last row is for the end
    path: tuple[Floats, Floats]  # rows and frames of the path


class AlignedSpeech(JsonDocument, kw_only=True, eq=False, tag="attnctl.alignment/1"):
    """The times of the words of a speech, from the cross attention of some heads."""

    audio: Annotated[str, about("The name of the file.")]
    seconds: Annotated[Amount, about("Its length.")]
    text: str
    given: Annotated[bool, about("False: the model's own.")]
    language: Annotated[str | None, about("As Whisper calls it: en, de.")] = None
    model: ResultModel
    words: tuple[AlignedWord, ...]
    segments: Annotated[
        tuple[SpokenSegment, ...],
        about("The same words, in sentences and between pauses, as programs for whisperX's JSON read them."),
    ] = ()
    chosen: Annotated[
        Literal["named", "auto", "given"],
        about("named: heads that the checkpoint names; auto: the best heads; given: heads that the user named."),
    ]
    heads: Annotated[tuple[HeadPlace, ...], about("The heads that the times were read from.")]
    named_heads: Annotated[tuple[HeadPlace, ...], about("The alignment heads that the checkpoint names.")] = ()
    found_heads: Annotated[tuple[ScoredHead, ...], about("The heads that follow the sound best, best first.")]
    common_heads: Annotated[Index, about("How many of named_heads are among found_heads.")]
    notes: tuple[str, ...]

    def to_records(self) -> list[dict[str, Any]]:
        """Return a flat record for each word: text, start, end, confidence, doubtful."""
        return flat_records(self.words)

    def __repr__(self) -> str:
        return f"AlignedSpeech of {self.audio}: {len(self.words)} words in {self.seconds:.1f} s, {self.model.name}"


class AlignedLink(Part):
    """A token of the target, and the source token with the largest weight in its row."""

    text: str
    source: Annotated[Index, about("Its index in sources.")]
    source_text: str
    weight: Annotated[Share, about("Mean over the heads.")]


Link = tuple[int, int]  # a word of the source, and a word of the target, from 0


class LinkScore(Part):
    """How well links between words agree with a human's, by Och and Ney 2003."""

    pairs: Annotated[Count, about("Pairs of sentences; all their links are scored as one set.")]
    links: Annotated[Whole, about("Links that are scored.")]
    sure: Annotated[Whole, about("Sure links of the gold alignment.")]
    possible: Annotated[Whole, about("Its possible links, the sure ones included.")]
    precision: Annotated[Portion | None, about("Share of the links that are possible; absent without links.")] = None
    recall: Annotated[Portion | None, about("Share of the sure links that are found; absent without sure links.")] = (
        None
    )
    aer: Annotated[
        Portion | None,
        about("Alignment error rate: 1 - (links that are sure + links that are possible) / (links + sure links)."),
    ] = None


class AlignmentScore(JsonDocument, kw_only=True, eq=False, tag="attnctl.alignment-score/1"):
    """The score of a file of links against a gold alignment."""

    links: Annotated[str, about("The file of links.")]
    gold: Annotated[str, about("The file of the gold alignment.")]
    score: LinkScore
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        aer = "none" if self.score.aer is None else f"{self.score.aer:.3f}"
        return f"AlignmentScore of {self.links}: {self.score.pairs:,} pairs, alignment error rate {aer}"


class AlignmentHead(HeadPlace):
    """A head, and how well it separates the tokens of the source."""

    score: Annotated[
        Share,
        about(
            "Mean over the target's tokens of the largest weight on the source × the share of them with a source of their "
            "own. Only tokens with a letter or a digit count."
        ),
    ]


class AlignedText(JsonDocument, kw_only=True, eq=False, tag="attnctl.text-alignment/1"):
    """The source token of each token of the target, from the attention of some heads."""

    text: Annotated[str, about("The source.")]
    target: str
    given: Annotated[bool, about("False: the model's own.")]
    model: ResultModel
    sources: Annotated[
        ResultTokens,
        about("The tokens of the source, without special ones and white space; or its words."),
    ]
    links: Annotated[tuple[AlignedLink, ...], about("One for each token of the target, in its order.")]
    weights: Annotated[Matrix, about("Weight of each token of the target on each of sources, mean over the heads.")]
    pharaoh: Annotated[
        str,
        about(
            "The links of words between blanks, as source-target from 0: 0-0 1-2. Each word of the target has the source "
            "word with the largest weight, summed over its tokens, mean over the target word's tokens."
        ),
    ]
    chosen: Annotated[Literal["auto", "given"], about("auto: the best heads; given: heads that the user named.")]
    heads: Annotated[tuple[HeadPlace, ...], about("The heads that the links were read from.")]
    found_heads: Annotated[tuple[AlignmentHead, ...], about("The heads that align best, best first.")]
    sinks: Annotated[
        tuple[Index, ...],
        about("Indices in sources that take attention which no token needs: no link is made to them."),
    ] = ()
    score: Annotated[LinkScore | None, about("The score of pharaoh, if there is a gold alignment.")] = None
    notes: tuple[str, ...]

    def to_records(self) -> list[dict[str, Any]]:
        """Return a flat record for each token of the target: text, source, source_text, weight."""
        return flat_records(self.links)

    def __repr__(self) -> str:
        return f"AlignedText of {quoted_beginning(self.target)}: {len(self.links)} links, {self.model.name}"


# --- heads ----------------------------------------------------------------------------------------------------------


def align_heads(spec: str | Iterable[tuple[int, int]], info: ModelInfo) -> tuple[HeadPlace, ...]:
    """Return the heads that "4.2,5.1", or pairs, select. Raises UsageError for anything else, and if one does not exist."""
    places = selected_heads(spec, info.n_layers or 1, info.n_heads or 1, info.name, "heads", "named, auto, or ")
    return tuple(HeadPlace(*place) for place in places)


def heads_listed(heads: Sequence[HeadPlace]) -> str:
    """Return layer and head of each, as 3.1, 4.2."""
    return ", ".join(f"{head.layer}.{head.head}" for head in heads)
