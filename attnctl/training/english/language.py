"""The grammar's sentences as a corpus: its whole vocabulary, which words are open ones, and which are easily mistaken."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from functools import cache

import numpy as np

from attnctl.shapes import CLITICS
from attnctl.training.corpus import Corpus, table_of
from attnctl.training.english import classes, phrases
from attnctl.training.english.lexicon import lexicon
from attnctl.training.english.phrases import Sentence
from attnctl.training.english.tables import lines_of, words_of

MOST_TWINS = 6

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
        *phrases.ADVERBS,
        *phrases.MODALS,
        *phrases.NOT_MODALS,
    }
    words -= {"i"}
    for nouns in lex.nouns.values():
        words |= {form for noun in nouns for form in (noun.singular, noun.plural) if form}
    words |= {form for verb in lex.verbs for form in verb.forms}
    words |= {form for row in lex.adjectives for form in row} | set(lex.adverbs) | set(lex.other)
    words |= {*lex.names["f"], *lex.names["m"], *lex.surnames, *lex.places, *lex.proper}
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
        *phrases.ADVERBS,
        *phrases.MODALS,
        *phrases.NOT_MODALS,
    }
    return share | dict.fromkeys(little, 0.0)


PREPOSITIONS = frozenset(words_of("language.prepositions"))


@cache
def asked() -> dict[str, float]:
    """How often each word is to be predicted: those that depend on others more often than those that come by chance."""
    lex = lexicon()
    share = dict.fromkeys(vocabulary(), 0.15)
    share |= dict.fromkeys((*lex.names["f"], *lex.names["m"], *lex.surnames, *lex.places, *lex.proper), 0.05)
    share |= {
        form: 0.25 for nouns in lex.nouns.values() for noun in nouns for form in (noun.singular, noun.plural) if form
    }
    share |= {form: 0.3 for row in lex.adjectives for form in row}
    share |= {word: 0.3 for said in classes.QUALITIES.values() for word in said.split()}
    share |= {form: 0.35 for verb in lex.verbs for form in verb.forms} | dict.fromkeys(PREPOSITIONS, 0.35)
    share |= {word: 0.35 for words in CONFUSED for word in words.split()}
    return share | dict.fromkeys([")", "]", "}", "”", "’"], 0.6) | dict.fromkeys([".", ",", "?", "!"], 0.05)


def twins() -> dict[str, set[str]]:
    """Words that are easily taken for each other: the forms of one word, and the little words that agree with others."""
    found: dict[str, set[str]] = defaultdict(set)
    lex = lexicon()
    sets = [words.split() for words in CONFUSED]
    sets += [[v.forms[0], v.forms[1]] for v in lex.verbs]
    for words in sets:
        for word in words:
            found[word] |= set(words) - {word}
    return found


def corpus_of(sentences: Iterable[Sentence]) -> Corpus:
    """The grammar's sentences as a Corpus."""
    some = list(sentences)
    corpus = table_of([s.words for s in some], vocabulary(), openness())
    ids = {word: at for at, word in enumerate(corpus.vocabulary)}
    stands = np.full_like(corpus.ids, -1)  # (sentences, length)
    settled = np.zeros_like(corpus.ids)  # (sentences, length)
    for row, s in enumerate(some):
        settled[row, sorted(s.settled)] = 1
        for at, word in s.stands_for.items():
            stands[row, at] = ids.get(word, -1)
    table = np.full((len(corpus.vocabulary), MOST_TWINS), -1, dtype=np.int64)  # (vocabulary, MOST_TWINS)
    for word, others in twins().items():
        known = sorted(ids[other] for other in others if other in ids)[:MOST_TWINS]
        if word in ids:
            table[ids[word], : len(known)] = known
    chosen = np.array([asked().get(word, 0.0) for word in corpus.vocabulary], dtype=np.float32)  # (vocabulary,)
    return replace(corpus, stands_for=stands, twins=table, asked=chosen, settled=settled)
