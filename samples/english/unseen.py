"""Make sentences with names and nouns that the grammar never makes, and that a trained model has not seen."""

from __future__ import annotations

import random
from functools import cache

from attnctl.text.english import MEANING, PRONOUN
from samples.english.draft import Sentence
from samples.english.language import openness, vocabulary
from samples.english.lexicon import lexicon, pairs_of, words_of

UNSEEN_NAMES = {sex: names.split() for sex, names in pairs_of("unseen names").items()}  # f, m
UNSEEN_NOUNS = words_of("unseen nouns")


@cache
def _plural_nouns() -> frozenset[str]:
    """Return every plural of the grammar's nouns."""
    return frozenset(noun.plural for group in lexicon().nouns.values() for noun in group if noun.plural)


def sex_of_name(word: str) -> str | None:
    """Return f or m for a given name that is mostly used for one sex, None for any other word."""
    return next((sex for sex in "fm" if word in lexicon().names[sex]), None)


def with_unseen_words(sentence: Sentence, draw: random.Random) -> Sentence:
    """Return the sentence with names and nouns that training never sees.

    If a pronoun finds its noun by gender or by meaning, that noun or the other keeps its word: with two unknown words nobody
    could tell which is "she", or which is hungry. A repeated word stays the same word, a man's name a man's name.
    """
    spared: set[str] = set()
    familiar = frozenset(vocabulary())
    words = sentence.words
    for link in sentence.links:
        if link.relation in (PRONOUN, MEANING):
            both = [
                index for index in range(link.query) if openness().get(words[index]) == 1 and words[index] not in spared
            ]
            spared.add(words[draw.choice(both)] if both else words[link.key])
    names = {sex: [name for name in group if name not in familiar] for sex, group in UNSEEN_NAMES.items()}
    nouns = [noun for noun in UNSEEN_NOUNS if noun not in familiar]
    for group in (*names.values(), nouns):
        draw.shuffle(group)
    new: dict[str, str] = {}
    for word in words:
        if (
            word not in spared
            and word not in new
            and openness().get(word) == 1
            and (supply := names[sex_of_name(word) or draw.choice("fm")] if word[0].isupper() else nouns)
        ):
            new[word] = supply.pop() if word[0].isupper() else supply.pop() + "s" * (word in _plural_nouns())
    return Sentence([new.get(word, word) for word in words], sentence.links, sentence.facts)
