"""Describe the words of the grammar: vocabulary, the kind of each word, how replaceable it is, how often it is hidden."""

from __future__ import annotations

from collections import defaultdict
from functools import cache

from attnctl.models.builtin.vocabulary import CLITICS
from samples.english import lexicon as classes
from samples.english import phrases, verbs
from samples.english.lexicon import WORD_LIST, lexicon, lines_of, words_of

# little words that agree with another word, or that open and close; each is easily taken for the others of its set
CONFUSED = lines_of("confused")

PUNCTUATION = words_of("punctuation")


@cache
def function_words() -> frozenset[str]:
    """Return the words that belong to no class of the lexicon."""
    return frozenset(words_of("function words"))


@cache
def vocabulary() -> tuple[str, ...]:
    """Return all words of the grammar, sorted."""
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
        {word for listed in classes.QUALITIES.values() for word in listed.split()}
        | set(classes.BIG)
        | set(classes.SMALL)
    )
    return tuple(sorted(words))


@cache
def openness() -> dict[str, float]:
    """Return how easily a new word can replace each word: names and nouns first, verbs less, function words never."""
    lex = lexicon()
    share = dict.fromkeys(vocabulary(), 1.0)
    share |= {form: 0.5 for row in lex.adjectives for form in row} | dict.fromkeys(lex.adverbs, 0.5)
    share |= {form: 0.5 for verb in lex.verbs for form in verb.forms}
    share |= {word: 0.3 for listed in classes.QUALITIES.values() for word in listed.split()}
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
    """Return how often each word is predicted: a word that depends on others more often than a random one."""
    lex = lexicon()
    share = dict.fromkeys(vocabulary(), 0.15)
    share |= dict.fromkeys(lex.capitalized, 0.05)
    share |= {
        form: 0.25 for nouns in lex.nouns.values() for noun in nouns for form in (noun.singular, noun.plural) if form
    }
    share |= {form: 0.3 for row in lex.adjectives for form in row}
    share |= {word: 0.3 for listed in classes.QUALITIES.values() for word in listed.split()}
    share |= {form: 0.35 for verb in lex.verbs for form in verb.forms} | dict.fromkeys(PREPOSITIONS, 0.35)
    share |= {word: 0.35 for words in CONFUSED for word in words.split()}
    return share | dict.fromkeys([")", "]", "}", "”", "’"], 0.6) | dict.fromkeys([".", ",", "?", "!"], 0.05)


def word_kinds() -> dict[str, str]:
    """Return the kind of each word: a function word is its own kind, any other word has its classes and forms."""
    lex = lexicon()
    names_of: dict[str, set[str]] = defaultdict(set)
    for nouns in lex.nouns.values():
        for noun in nouns:
            names_of[noun.singular].add("mass" if noun.plural is None else "noun")
            names_of[noun.plural or noun.singular].add("mass" if noun.plural is None else "nouns")
    for verb in lex.verbs:
        for form, name in zip(verb.forms, ("base", "third", "past", "ing", "participle"), strict=True):
            names_of[form].add(name)
    named = {
        "adjective": [form for row in lex.adjectives for form in row] + " ".join(classes.QUALITIES.values()).split(),
        "adverb": lex.adverbs,
        "other": lex.other,
        "name": lex.capitalized,
    }
    for name, words in named.items():
        for word in words:
            names_of[word].add(name)
    kinds = {word: " ".join(sorted(names)) for word, names in names_of.items()}
    kinds |= {word: word for word in (*function_words(), *PUNCTUATION, *CLITICS, "I")}
    return kinds | dict.fromkeys(AROUND_ANYTHING, "_")


# between brackets or quotation marks anything may stand, and around them
AROUND_ANYTHING = '()[]{}“”‘’"'


def word_lines() -> str:
    """Return the lines of the word file: each word with its kinds, a name's usual gender, its openness and its share."""
    sources = [line for line in WORD_LIST.read_text(encoding="utf-8").splitlines() if line.startswith("# ")]
    kinds, genders = word_kinds(), {name: sex for sex, names in lexicon().names.items() for name in names}
    lines = [
        f"{word}\t{kinds.get(word, '_')}\t{genders.get(word, '_')}\t{openness()[word]:g}\t{asked_shares()[word]:g}"
        for word in vocabulary()
    ]
    return "\n".join([*sources, *lines]) + "\n"
