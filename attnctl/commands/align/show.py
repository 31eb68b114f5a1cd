"""Show the words of a speech with their times, the links of a target with its source, and the heads."""

from __future__ import annotations

from collections.abc import Iterator

from attnctl.commands.align.result import (
    LISTED_HEADS,
    AlignedSpeech,
    AlignedText,
    AlignmentScore,
    LinkScore,
    heads_listed,
)
from attnctl.render import Column, Form, Line, Table
from attnctl.text import counted, visible_text

CHOSEN = {
    "named": "the checkpoint's own alignment heads",
    "auto": "those that follow the sound best",
    "given": "as given",
}

SCORED = (
    "precision: links that are possible; recall: sure links that are found; AER, the alignment error rate: "
    "1 - (links that are sure + links that are possible) / (links + sure links)."
)


def align_forms(aligned: AlignedSpeech | AlignedText | AlignmentScore) -> Iterator[Form]:
    """Return the spoken text, the time of each word, and the heads; for texts, the source of each token of the target."""
    if isinstance(aligned, AlignmentScore):
        yield Line(f"{visible_text(aligned.links)}, scored against {visible_text(aligned.gold)}", "bold")
        yield score_table(aligned.score)
        yield Line(SCORED)
        return
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


def alignment_table(aligned: AlignedSpeech | AlignedText | AlignmentScore) -> Table:
    """Return a row for each word, or for each token of the target; or the score of links."""
    if isinstance(aligned, AlignmentScore):
        return score_table(aligned.score)
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
    if aligned.score is not None:
        yield ""
        yield Line(f"Links of words: {aligned.pharaoh}")
        yield score_table(aligned.score)


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


def score_table(score: LinkScore) -> Table:
    """Return the one row of a score."""
    counts = (("pairs", score.pairs), ("links", score.links), ("sure", score.sure), ("possible", score.possible))
    shares = (("precision", score.precision), ("recall", score.recall), ("AER", score.aer))
    return Table(
        [
            *(Column(heading, [count], rank=rank) for rank, (heading, count) in enumerate(counts)),
            *(Column(heading, [share], format=".3f", name=heading.lower()) for heading, share in shares),
        ]
    )


def score_sentence(score: LinkScore) -> str:
    """Return a score as a sentence."""
    named = (("precision", score.precision), ("recall", score.recall), ("alignment error rate", score.aer))
    shares = ", ".join(f"{name} {share:.3f}" for name, share in named if share is not None)
    return f"{counted(score.links, 'link')} of words, {counted(score.sure, 'sure one')} in the gold alignment: {shares}"
