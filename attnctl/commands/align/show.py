"""The words of a speech with their times, the links of a target with its source, and the heads that they were read from."""

from __future__ import annotations

from collections.abc import Iterator

from attnctl.commands.align.result import AlignedText
from attnctl.commands.align.word_times import LISTED_HEADS, AlignedSpeech, heads_listed
from attnctl.render.forms import Column, Form, Line, Table
from attnctl.text import visible_text

CHOSEN = {
    "named": "the checkpoint's own alignment heads",
    "auto": "those that go along with the sound best",
    "given": "as given",
}


def align_forms(found: AlignedSpeech | AlignedText) -> Iterator[Form]:
    """What was said, each word's time, and the heads; of texts, what each token of the target was made from."""
    if isinstance(found, AlignedText):
        yield from text_forms(found)
        return
    language = "" if found.language is None else f", language {found.language}"
    said = "the text is given" if found.given else f"written down by {visible_text(found.model.name)}"
    yield f"{visible_text(found.audio)}: {found.seconds:.1f} s{language}; {said}"
    yield Line(visible_text(found.text), "bold")
    yield ""
    yield words_table(found)
    yield ""
    yield Line(f"Read from heads {heads_listed(found.heads)}: {CHOSEN[found.chosen]}.")
    yield Line(f"Heads that go along with the sound best: {heads_listed(found.found_heads)}.")
    if found.named_heads:
        named = heads_listed(found.named_heads)
        yield Line(
            f"The checkpoint names {named}: {found.common_heads} of these {len(found.named_heads)} are among the best "
            f"{LISTED_HEADS}."
        )


def alignment_table(found: AlignedSpeech | AlignedText) -> Table:
    """A row a word, or a token of the target."""
    return links_table(found) if isinstance(found, AlignedText) else words_table(found)


def words_table(found: AlignedSpeech) -> Table:
    """Return a row for each word, the doubtful ones marked."""
    words = found.words
    sure = [word.confidence for word in words]
    return Table(
        [
            Column("start", [word.start for word in words], told=".2f"),
            Column("end", [word.end for word in words], told=".2f"),
            Column("word", [visible_text(word.text) for word in words], "text", cut="end"),
            Column("confidence", sure, "heat", told=".2f"),
            Column("", sure, "bar", most=10, rank=0, name=""),
            Column("doubtful", ["doubtful" if word.doubtful else None for word in words], "text"),
        ]
    )


def text_forms(found: AlignedText) -> Iterator[Form]:
    """Source and target, what each token was made from, and the heads."""
    yield Line(visible_text(found.text.strip()), "bold")
    yield Line(visible_text(found.target.strip()), "bold")
    yield "the target is given" if found.given else f"written by {visible_text(found.model.name)}"
    yield ""
    yield links_table(found)
    yield ""
    how = "as given" if found.chosen == "given" else "those that align best"
    yield Line(f"Read from heads {heads_listed(found.heads)}: {how}.")
    scored = [f"{one.layer}.{one.head} ({one.score:.2f})" for one in found.found_heads]
    yield Line(["Heads that align best, with their scores:", *scored], between=" ")


def links_table(found: AlignedText) -> Table:
    """A row a token of the target."""
    weights = [link.weight for link in found.links]
    return Table(
        [
            Column("target", [visible_text(link.text) for link in found.links], "text"),
            Column("source", [visible_text(link.source_text) for link in found.links], "text"),
            Column("weight", weights, "heat", told=".2f"),
            Column("", weights, "bar", most=10, rank=0, name=""),
        ]
    )
