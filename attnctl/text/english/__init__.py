"""Read the bundled corpus: English sentences that a grammar wrote, their links, and their words.

`python -m samples.english` makes its three files again, byte for byte:

    words.tsv               every word: kinds, usual gender of a name, how replaceable it is, how often it is predicted
    sentences.conllu.xz     sentences to train on, CoNLL-U; the column DEPS holds the links of a word, by LABELS
    held-out.conllu.xz      sentences that training never sees, to measure what heads find, with their trees
"""

from __future__ import annotations

import lzma
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import NamedTuple

FOLDER = files("attnctl.text.english")
WORDS, SENTENCES, HELD_OUT = "words.tsv", "sentences.conllu.xz", "held-out.conllu.xz"
PART = "# newdoc id = "  # a comment that begins a part of the sentences
NOT_ASKED = "Asked=No"  # in MISC: not all links of this word are recorded

VERB_SUBJECT, PAST_OTHERS, OBJECT_VERB = "verb → subject", "verb → subject past others", "object → verb"
PRONOUN, MEANING = "pronoun → antecedent", "it → its noun, by meaning"
ADJECTIVE, DETERMINER, PREPOSITION = "adjective → noun", "determiner → noun", "preposition → what it belongs to"
CLOSING, INDUCTION = "closing mark → opening mark", "induction"
# relation that the bundled models should find → in which share of its links
GOALS = {
    VERB_SUBJECT: 0.95, PAST_OTHERS: 0.95, OBJECT_VERB: 0.95, PRONOUN: 0.95,
    MEANING: 0.85, ADJECTIVE: 0.85, DETERMINER: 0.85, PREPOSITION: 0.85,
    CLOSING: 0.95, INDUCTION: 0.9,
}  # fmt: skip
# relations that are learned beside these ten, but not measured
INFINITIVE, SUBJECT_VERB, HELPER = "infinitive → subject", "subject → verb", "helper → verb"
REFERENCE, MODIFIER, WITHIN = "reference → noun", "modifier → word", "noun → preposition"

# the name in DEPS of the word that another word belongs to
LABELS = {
    VERB_SUBJECT: "subject", PAST_OTHERS: "subject:past", INFINITIVE: "subject:infinitive",
    OBJECT_VERB: "verb:object", SUBJECT_VERB: "verb:subject", HELPER: "verb:helper",
    PRONOUN: "antecedent", MEANING: "antecedent:meaning", REFERENCE: "antecedent:reference",
    ADJECTIVE: "noun:adjective", DETERMINER: "noun:determiner", MODIFIER: "modified",
    PREPOSITION: "governor", WITHIN: "preposition", CLOSING: "opening", INDUCTION: "next",
}  # fmt: skip


class Question(NamedTuple):
    """A question that training asks about a word; a word of the same sentence is the answer."""

    head: int  # the head of the last layer from which the answer is predicted
    weights: tuple[float, float]  # weight in the loss of masked words and of next words, however rarely it is asked
    relations: tuple[str, ...]  # the links that answer it, from the asked word to the answer


# hard relations are asked separately from easy ones, so that they are not lost in the mean
QUESTIONS = (
    Question(0, (1.0, 1.0), (VERB_SUBJECT, INFINITIVE)),
    Question(0, (1.5, 1.5), (PAST_OTHERS,)),
    Question(1, (1.0, 1.0), (OBJECT_VERB, SUBJECT_VERB, HELPER)),
    Question(2, (1.0, 1.0), (PRONOUN,)),
    Question(2, (1.0, 1.0), (MEANING,)),
    Question(2, (1.0, 1.0), (REFERENCE,)),
    Question(3, (1.0, 1.5), (ADJECTIVE, DETERMINER, MODIFIER)),
    Question(4, (1.0, 1.0), (PREPOSITION, WITHIN)),
    Question(4, (4.5, 3.0), (CLOSING,)),
    Question(5, (12.0, 8.0), (INDUCTION,)),
)
QUESTION_OF = {relation: number for number, question in enumerate(QUESTIONS) for relation in question.relations}


class Link(NamedTuple):
    """A link of a sentence: the word at `query` belongs to the word at `key`."""

    relation: str
    query: int
    key: int


class GrammarWord(NamedTuple):
    """A word of the corpus: one line of `words.tsv`."""

    text: str
    kinds: str  # its classes and forms; a function word itself; "_" for marks around which anything may occur
    gender: str  # of a name: f, m, x for either; "_" for other words
    open: float  # from 0 to 1: how easily a new word can replace it
    asked: float  # how often it is predicted if words are masked


@cache
def words() -> tuple[GrammarWord, ...]:
    """Return every word of the grammar, sorted."""
    lines = FOLDER.joinpath(WORDS).read_text(encoding="utf-8").splitlines()
    rows = (line.split("\t") for line in lines if not line.startswith("# "))
    return tuple(
        GrammarWord(text, kinds, gender, float(open_), float(share)) for text, kinds, gender, open_, share in rows
    )


def read_sentences(file: str, *parts: str) -> Iterator[str]:
    """Yield the sentences of some parts of a file, SENTENCES or HELD_OUT, each as its lines of CoNLL-U."""
    part_texts = _held_out_parts() if file == HELD_OUT else _parts_of(file)
    for part in parts:
        yield from part_texts[part].rstrip("\n").split("\n\n")


@cache
def _held_out_parts() -> dict[str, str]:
    return _parts_of(HELD_OUT)  # a census asks for four parts, one after the other


def _parts_of(file: str) -> dict[str, str]:
    whole = lzma.decompress(FOLDER.joinpath(file).read_bytes()).decode()
    return dict(part.split("\n", 1) for part in whole.split(PART)[1:])


@cache
def links_of_word(deps: str) -> tuple[tuple[str, int], ...]:
    """Return the links in a word's column DEPS: relation, and position of the other word, from 0."""
    pairs = [link.split(":", 1) for link in deps.split("|")] if deps != "_" else []
    return tuple((_RELATIONS[label], int(place) - 1) for place, label in pairs)


_RELATIONS = {label: relation for relation, label in LABELS.items()}
