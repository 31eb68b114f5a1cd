"""The bundled corpus: English sentences that a grammar wrote, what belongs to what in them, and the words that they use.

`python -m samples.english` makes its three files again, byte for byte:

    words.tsv               every word: its kinds, the usual gender of a name, how open it is, how often it is asked for
    sentences.conllu.xz     sentences to train on, CoNLL-U; what a word belongs to is in the column DEPS, by LABELS
    held-out.conllu.xz      sentences that training never meets, to measure what heads find, with their trees as well
"""

from __future__ import annotations

import lzma
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from importlib.resources import files
from itertools import islice
from typing import NamedTuple

import numpy as np

from attnctl.commands.train.corpus import Corpus, table_of
from attnctl.readings.census.words import HALVES

FOLDER = files("attnctl.english")
WORDS, SENTENCES, HELD_OUT = "words.tsv", "sentences.conllu.xz", "held-out.conllu.xz"
PART = "# newdoc id = "  # a comment that begins a part of the sentences
NOT_ASKED = "Asked=No"  # in MISC: a word whose links are not all noted

VERB_SUBJECT, PAST_OTHERS, OBJECT_VERB = "verb → subject", "verb → subject past others", "object → verb"
PRONOUN, MEANING = "pronoun → antecedent", "it → its noun, by meaning"
ADJECTIVE, DETERMINER, PREPOSITION = "adjective → noun", "determiner → noun", "preposition → what it belongs to"
CLOSING, INDUCTION = "closing mark → opening mark", "induction"
# relations that are learned beside these ten, and not measured
INFINITIVE, SUBJECT_VERB, HELPER = "infinitive → subject", "subject → verb", "helper → verb"
REFERENCE, MODIFIER, WITHIN = "reference → noun", "modifier → word", "noun → preposition"

# what DEPS calls the word that another belongs to
LABELS = {
    VERB_SUBJECT: "subject", PAST_OTHERS: "subject:past", INFINITIVE: "subject:infinitive",
    OBJECT_VERB: "verb:object", SUBJECT_VERB: "verb:subject", HELPER: "verb:helper",
    PRONOUN: "antecedent", MEANING: "antecedent:meaning", REFERENCE: "antecedent:reference",
    ADJECTIVE: "noun:adjective", DETERMINER: "noun:determiner", MODIFIER: "modified",
    PREPOSITION: "governor", WITHIN: "preposition", CLOSING: "opening", INDUCTION: "next",
}  # fmt: skip


class Question(NamedTuple):
    """What a word can be asked in training; a word of the same sentence answers it."""

    head: int  # the head of the last layer from which the answer is predicted
    weights: tuple[float, float]  # how much it counts in the loss of masked words, of next words, however rarely asked
    relations: tuple[str, ...]  # the links that answer it, from the word asked to the word that answers


# hard relations are asked apart from easy ones, so that they are not lost in the mean
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
    """In this sentence the word at `query` belongs to the word at `key`."""

    relation: str
    query: int
    key: int


class GrammarWord(NamedTuple):
    """A word of the corpus, as a line of `words.tsv` says it."""

    text: str
    kinds: str  # its classes and forms, or of a little word itself; "_" of marks around which anything may stand
    gender: str  # of a name: f, m, x for either; "_" of other words
    open: float  # from 0 to 1: how readily a new word comes in this one's place
    asked: float  # how often it is to be predicted where words are masked


@cache
def words() -> tuple[GrammarWord, ...]:
    """Every word that the grammar knows, sorted."""
    lines = FOLDER.joinpath(WORDS).read_text(encoding="utf-8").splitlines()
    rows = (line.split("\t") for line in lines if not line.startswith("# "))
    return tuple(
        GrammarWord(text, kinds, gender, float(open_), float(asked)) for text, kinds, gender, open_, asked in rows
    )


def written_blocks(file: str, *parts: str) -> Iterator[str]:
    """The sentences of some parts of a file, each as its lines of words."""
    whole = lzma.decompress(FOLDER.joinpath(file).read_bytes()).decode()
    found = dict(part.split("\n", 1) for part in whole.split(PART)[1:])
    for part in parts:
        yield from found[part].rstrip("\n").split("\n\n")


@cache
def links_said(deps: str) -> tuple[tuple[str, int], ...]:
    """What a word's column DEPS says: relations, and the place of the word that it belongs to, from 0."""
    said = [one.split(":", 1) for one in deps.split("|")] if deps != "_" else []
    return tuple((_RELATIONS[label], int(place) - 1) for place, label in said)


_RELATIONS = {label: relation for relation, label in LABELS.items()}
_HEADS = [question.head for question in QUESTIONS]
_FIRST = np.array([_HEADS.index(head) for head in _HEADS])  # (questions,), the first question of each one's head


def bundled_corpus(objective: str) -> Corpus:
    """The sentences to train on, in the proportions for this objective.

    A word is asked the questions that its links answer; a head that has no other question for it is asked, as its first
    question, for the word itself, unless not all its links are noted.
    """
    pieces: list[list[str]] = []
    deps: list[str] = []  # of every word of every sentence
    misc: list[str] = []
    for block in written_blocks(SENTENCES, "both", objective):
        columns = block.split()
        pieces.append(columns[1::10])
        deps += columns[8::10]
        misc += columns[9::10]
    known = words()
    corpus = table_of(pieces, [word.text for word in known], {word.text: word.open for word in known})
    real = corpus.ids >= 0  # (sentences, length)
    own = np.nonzero(real)[1]  # (words,), the place of each
    distinct = {said: number for number, said in enumerate(dict.fromkeys(deps))}
    told = np.full((len(distinct), len(QUESTIONS)), -1, np.int8)  # (distinct, questions)
    for said, number in distinct.items():
        for relation, place in links_said(said):
            told[number, QUESTION_OF[relation]] = place
    asked_of = told[[distinct[said] for said in deps]]  # (words, questions)
    loose = np.array([said == NOT_ASKED for said in misc])  # (words,)
    for first in np.unique(_FIRST):
        idle = (asked_of[:, first == _FIRST] < 0).all(1) & ~loose  # (words,)
        asked_of[idle, first] = own[idle]
    answers = np.full((*corpus.ids.shape, len(QUESTIONS)), -1, np.int8)  # (sentences, length, questions)
    answers[real] = asked_of
    special = len(corpus.vocabulary) - len(known)
    asked = np.array([0.0] * special + [word.asked for word in known], dtype=np.float32)  # (vocabulary,)
    return replace(corpus, answers=answers, asked=asked)


def treebank_text(count: int, causal: bool = False) -> str:
    """`count` sentences to choose heads on and `count`, held out of training, to score them on, as CoNLL-U.

    They are those of `attnctl evaluate`'s own table, for a model that sees both sides or what came before (`causal`).
    """
    found = []
    for half in HALVES:
        blocks = written_blocks(HELD_OUT, f"{half} {'next-word' if causal else 'masked-word'}")
        for number, block in enumerate(islice(blocks, count)):
            said = " ".join(block.split()[1::10])
            found.append(f"# sent_id = {half}-{number}\n# census = {half}\n# text = {said}\n{block}\n\n")
    return "".join(found)
