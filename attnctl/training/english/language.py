"""The grammar's sentences as a corpus: its vocabulary, which words are open ones, which are hidden, and who answers what."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from functools import cache

import numpy as np

from attnctl.arrays import Ids
from attnctl.models.builtin.vocabulary import CLITICS, Phrasing, number_kinds
from attnctl.training.corpus import Corpus, table_of
from attnctl.training.english import draft, phrases, verbs
from attnctl.training.english import lexicon as classes
from attnctl.training.english.draft import Sentence
from attnctl.training.english.lexicon import lexicon, lines_of, words_of

# little words that agree with another word, or that open and close; each is easily taken for the others of its set
CONFUSED = lines_of("confused")

PUNCTUATION = words_of("punctuation")


@cache
def function_words() -> frozenset[str]:
    """Words that are of no class in the lexicon."""
    return frozenset(words_of("function words"))


@cache
def vocabulary() -> tuple[str, ...]:
    """All words of the grammar, sorted."""
    lex = lexicon()
    words = {
        "I",
        *function_words(),
        *CLITICS,
        *PUNCTUATION,
        *phrases.DEGREES,
        *verbs.ADVERBS,
        *verbs.MODALS,
        *verbs.NOT_MODALS,
    }
    words -= {"i"}
    for nouns in lex.nouns.values():
        words |= {form for noun in nouns for form in (noun.singular, noun.plural) if form}
    words |= {form for verb in lex.verbs for form in verb.forms}
    words |= {form for row in lex.adjectives for form in row} | set(lex.adverbs) | set(lex.other)
    words |= set(lex.capitalized)
    words |= (
        {word for said in classes.QUALITIES.values() for word in said.split()} | set(classes.BIG) | set(classes.SMALL)
    )
    return tuple(sorted(words))


@cache
def openness() -> dict[str, float]:
    """How readily a new word comes in the place of each: names and nouns first, verbs less, little words never."""
    lex = lexicon()
    share = dict.fromkeys(vocabulary(), 1.0)
    share |= {form: 0.5 for row in lex.adjectives for form in row} | dict.fromkeys(lex.adverbs, 0.5)
    share |= {form: 0.5 for verb in lex.verbs for form in verb.forms}
    share |= {word: 0.3 for said in classes.QUALITIES.values() for word in said.split()}
    little = {
        "I",
        *function_words(),
        *CLITICS,
        *PUNCTUATION,
        *phrases.DEGREES,
        *verbs.ADVERBS,
        *verbs.MODALS,
        *verbs.NOT_MODALS,
    }
    return share | dict.fromkeys(little, 0.0)


PREPOSITIONS = frozenset(words_of("language.prepositions"))


@cache
def asked_shares() -> dict[str, float]:
    """How often each word is to be predicted: those that depend on others more often than those that come by chance."""
    lex = lexicon()
    share = dict.fromkeys(vocabulary(), 0.15)
    share |= dict.fromkeys(lex.capitalized, 0.05)
    share |= {
        form: 0.25 for nouns in lex.nouns.values() for noun in nouns for form in (noun.singular, noun.plural) if form
    }
    share |= {form: 0.3 for row in lex.adjectives for form in row}
    share |= {word: 0.3 for said in classes.QUALITIES.values() for word in said.split()}
    share |= {form: 0.35 for verb in lex.verbs for form in verb.forms} | dict.fromkeys(PREPOSITIONS, 0.35)
    share |= {word: 0.35 for words in CONFUSED for word in words.split()}
    return share | dict.fromkeys([")", "]", "}", "”", "’"], 0.6) | dict.fromkeys([".", ",", "?", "!"], 0.05)


def word_kinds() -> dict[str, str]:
    """What each word of the grammar is: a little word is a kind of its own, of any other its classes and forms."""
    lex = lexicon()
    found: dict[str, set[str]] = defaultdict(set)
    for nouns in lex.nouns.values():
        for noun in nouns:
            found[noun.singular].add("mass" if noun.plural is None else "noun")
            found[noun.plural or noun.singular].add("mass" if noun.plural is None else "nouns")
    for verb in lex.verbs:
        for form, name in zip(verb.forms, ("base", "third", "past", "ing", "participle"), strict=True):
            found[form].add(name)
    named = {
        "adjective": [form for row in lex.adjectives for form in row] + " ".join(classes.QUALITIES.values()).split(),
        "adverb": lex.adverbs,
        "other": lex.other,
        "name": lex.capitalized,
    }
    for name, words in named.items():
        for word in words:
            found[word].add(name)
    kinds = {word: " ".join(sorted(names)) for word, names in found.items()}
    return kinds | {word: word for word in (*function_words(), *PUNCTUATION, *CLITICS, "I")}


# between brackets or quotation marks anything may stand, and around them
UNSAID_KINDS = frozenset('()[]{}“”‘’"')


def corpus_of(sentences: Iterable[Sentence]) -> Corpus:
    """The grammar's sentences as a Corpus."""
    some = list(sentences)
    corpus = table_of([s.words for s in some], vocabulary(), openness())
    answers = np.full((*corpus.ids.shape, len(draft.QUESTIONS)), -1, np.int8)  # (sentences, length, questions)
    for row, s in enumerate(some):
        answers[row, : len(s.words)] = _answers(s)
    chosen = np.array([asked_shares().get(word, 0.0) for word in corpus.vocabulary], dtype=np.float32)  # (vocabulary,)
    kinds = {word: kind for word, kind in word_kinds().items() if word not in UNSAID_KINDS}
    phrasing = Phrasing.of_sentences(corpus.ids, number_kinds(map(kinds.get, corpus.vocabulary)))
    return replace(corpus, answers=answers, asked=chosen, phrasing=phrasing)


_HEADS = [question.head for question in draft.QUESTIONS]
_FIRST = [_HEADS.index(head) for head in sorted(set(_HEADS))]  # by head, its first question


def _answers(s: Sentence) -> Ids:
    """The places of the words that answer each word's questions, -1 where it is not asked: (words, questions).

    A head none of whose questions has another answer is asked, as its first question, for the word itself, unless the word
    is loose.
    """
    places = np.full((len(s.words), len(draft.QUESTIONS)), -1)  # (words, questions)
    places[:, _FIRST] = np.arange(len(s.words))[:, None]  # (words, heads)
    places[sorted(s.loose)] = -1
    for (at, question), place in s.answers().items():
        places[at, _FIRST[_HEADS[question]]] = -1
        places[at, question] = place
    return places
