"""Sentences with names and nouns that the grammar never makes, and that a trained model has not seen."""

from __future__ import annotations

import random
from functools import cache

from attnctl.english import MEANING, PRONOUN
from samples.english.draft import Sentence
from samples.english.language import openness, vocabulary
from samples.english.lexicon import lexicon, pairs_of, words_of

UNSEEN_NAMES = {sex: names.split() for sex, names in pairs_of("unseen names").items()}  # f, m
UNSEEN_NOUNS = words_of("unseen nouns")


@cache
def _plural_nouns() -> frozenset[str]:
    """Return every plural of the grammar's nouns."""
    return frozenset(noun.plural for some in lexicon().nouns.values() for noun in some if noun.plural)


def sex_of_name(word: str) -> str | None:
    """Return f or m for a given name that is mostly used for one sex, None for any other word."""
    return next((sex for sex in "fm" if word in lexicon().names[sex]), None)


def with_unseen_words(sentence: Sentence, draw: random.Random) -> Sentence:
    """Return the sentence with names and nouns that training never has.

    Where a pronoun has to find its noun by gender or by meaning, that noun or the other keeps its word: of two strangers
    nobody could tell which is "she", or which is hungry. What is repeated stays the same word, a man's name a man's.
    """
    spared: set[str] = set()
    known = frozenset(vocabulary())
    words = sentence.words
    for link in sentence.links:
        if link.relation in (PRONOUN, MEANING):
            both = [at for at in range(link.query) if openness().get(words[at]) == 1 and words[at] not in spared]
            spared.add(words[draw.choice(both)] if both else words[link.key])
    names = {sex: [name for name in some if name not in known] for sex, some in UNSEEN_NAMES.items()}
    nouns = [noun for noun in UNSEEN_NOUNS if noun not in known]
    for some in (*names.values(), nouns):
        draw.shuffle(some)
    new: dict[str, str] = {}
    for word in words:
        if (
            word not in spared
            and word not in new
            and openness().get(word) == 1
            and (own := names[sex_of_name(word) or draw.choice("fm")] if word[0].isupper() else nouns)
        ):
            new[word] = own.pop() if word[0].isupper() else own.pop() + "s" * (word in _plural_nouns())
    return Sentence([new.get(word, word) for word in words], sentence.links, sentence.facts)
