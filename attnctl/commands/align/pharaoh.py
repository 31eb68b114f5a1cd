"""Word alignments in the Pharaoh format: a line for each pair of sentences, `0-0 1-2`, source-target, counted from 0.

fast_align, SimAlign, eflomal, awesome-align and Marian write it. The numbers count the words between blanks. A human's
gold alignment has sure links, `1-2`, and possible ones, `1p2`.

Scores by Och and Ney 2003 (A Systematic Comparison of Various Statistical Alignment Models): of links A, sure links S and
possible links P, which include S, precision is |A ∩ P| / |A|, recall |A ∩ S| / |S|, and the alignment error rate
1 - (|A ∩ S| + |A ∩ P|) / (|A| + |S|). Several pairs are scored as one set of links.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from attnctl.checks import limits
from attnctl.commands.align.result import AlignmentScore, Link, LinkScore
from attnctl.errors import AttnctlError, UsageError, option_name
from attnctl.runtime.files import decode_text, read_bytes
from attnctl.text import counted

FEWEST_PAIRS = 3  # in fewer, the first words may be without a link by chance
_LINK = re.compile(r"(\d{1,9})([-p])(\d{1,9})", re.ASCII)


class Links(NamedTuple):
    """The links of one pair of sentences; `possible` includes the sure ones."""

    sure: frozenset[Link]
    possible: frozenset[Link]


def pharaoh_line(links: Iterable[Link]) -> str:
    """Return links as a line of Pharaoh, in the order of the target's words."""
    return " ".join(f"{source}-{target}" for source, target in sorted(links, key=lambda link: link[::-1]))


def read_pharaoh(path: str, first: int = 0, option: str | None = None) -> list[Links]:
    """Return the links of each line of a file, or of standard input for "-", whose words are counted from `first`.

    Raises AttnctlError, with the line, for anything but links.
    """
    name = "standard input" if path == "-" else path
    text = decode_text(read_bytes(path, limits.CORPUS_BYTES), name)
    lines = text.removesuffix("\n").split("\n") if text else []
    return [_links_of_line(line, first, f"{name}, line {number}") for number, line in enumerate(lines, 1)]


def _links_of_line(line: str, first: int, where: str) -> Links:
    sure, possible = set[Link](), set[Link]()
    before, bar, pairs = line.rpartition("|||")  # Marian writes the translation before
    for word in pairs.split():
        match = _LINK.fullmatch(word)
        if match is None:
            raise AttnctlError(
                f"{where}: {word[:40]!r} is no link: a link is 0-0 (source-target), or 1p2 if it is possible"
            )
        link = int(match[1]) - first, int(match[3]) - first
        if min(link) < 0:
            raise AttnctlError(f"{where}: {word} is no link of words that are counted from {first}")
        possible.add(link)
        if match[2] == "-":
            sure.add(link)
    words = len(before.split())
    last = max((link[1] for link in possible), default=-1)
    if bar and last > words:  # Marian links the end of the translation, too, as the word after the last
        raise AttnctlError(
            f"{where}: it links word {last + first} of a translation of {counted(words, 'word')}: with a vocabulary of "
            "SentencePiece, Marian counts pieces, and --no-spm-decode writes them in place of words"
        )
    return Links(frozenset(sure), frozenset(possible))


def read_gold(path: str, first: int, pairs: int) -> list[Links]:
    """Return a gold alignment of so many pairs of sentences. Raises UsageError if the file has another number of lines."""
    gold = read_pharaoh(path, first)
    if len(gold) != pairs:
        there = "is 1 pair" if pairs == 1 else f"are {pairs:,} pairs"
        why = f"it has {counted(len(gold), 'line')}, one for each pair of sentences, and there {there}"
        raise UsageError(why, option="gold", value=path)
    return gold


def check_words(gold: Links, sources: int, targets: int, path: str, first: int) -> None:
    """Raise UsageError if a gold alignment links a word beyond those of its source or its target."""
    for side, count, last in (
        ("source", sources, max((link[0] for link in gold.possible), default=-1)),
        ("target", targets, max((link[1] for link in gold.possible), default=-1)),
    ):
        if last >= count:
            hint = "" if first else f" (does it count from 1? {option_name('gold_from', 1)})"
            why = f"it links word {last + first} of the {side}, which has {counted(count, 'word')}{hint}"
            raise UsageError(why, option="gold", value=path)


def gold_notes(gold: Sequence[Links], path: str, first: int) -> tuple[str, ...]:
    """Return a note if a gold alignment of several pairs seems to count words from 1, and is read as if from 0."""
    links = [link for pair in gold for link in pair.possible]
    if first or len(gold) < FEWEST_PAIRS or not links or min(map(min, links)) < 1:
        return ()
    return (f"No link of {path} has a word 0: if it counts from 1, say {option_name('gold_from', 1)}.",)


def score_links(links: Sequence[Iterable[Link]], gold: Sequence[Links]) -> LinkScore:
    """Return precision, recall and alignment error rate of the links of each pair against its gold alignment."""
    chosen = [frozenset(of_pair) for of_pair in links]
    count, sure = sum(map(len, chosen)), sum(len(pair.sure) for pair in gold)
    right = sum(len(of_pair & pair.possible) for of_pair, pair in zip(chosen, gold, strict=True))
    right_sure = sum(len(of_pair & pair.sure) for of_pair, pair in zip(chosen, gold, strict=True))
    return LinkScore(
        pairs=len(gold),
        links=count,
        sure=sure,
        possible=sum(len(pair.possible) for pair in gold),
        precision=right / count if count else None,
        recall=right_sure / sure if sure else None,
        aer=1 - (right_sure + right) / (count + sure) if count + sure else None,
    )


def score_files(path: str, gold_path: str, first: int = 0) -> AlignmentScore:
    """Return the score of a file of links, counted from 0, against a gold alignment whose words are counted from `first`."""
    links = [pair.possible for pair in read_pharaoh(path)]
    if not links:
        raise AttnctlError(f"{path} is empty: it holds no links")
    gold = read_gold(gold_path, first, len(links))
    return AlignmentScore(
        links=path, gold=gold_path, score=score_links(links, gold), notes=gold_notes(gold, gold_path, first)
    )
