"""What goes with what: the qualities of each class of nouns, the objects of each class of verbs, and their prepositions."""

from __future__ import annotations

from functools import cache

from attnctl.training.english.lexicon import Noun, Verb, lexicon, number_of
from attnctl.training.english.tables import pairs_of, words_of

# what is said of a thing of each class
QUALITIES = pairs_of("qualities")
BIG = words_of("big")
SMALL = words_of("small")
FRAGILE = frozenset(words_of("fragile"))

OBJECTS = pairs_of("objects")
OWN_OBJECTS = pairs_of("own objects")

PREPOSITIONS = words_of("prepositions")
OWN_PREPOSITIONS = pairs_of("own prepositions")
NOUN_PREPOSITIONS = pairs_of("noun prepositions")


@cache
def qualities(group: str) -> tuple[str, ...]:
    """What is said of nouns of this class: the table's words, and some more adjectives that are drawn once and for all."""
    own = QUALITIES.get(group, "").split()
    return tuple(own * 3 + [word for word, groups in _drawn_adjectives() if group in groups])


@cache
def _drawn_adjectives() -> tuple[tuple[str, frozenset[str]], ...]:
    """Each adjective of the lexicon with four classes of nouns that it goes with."""
    lex = lexicon()
    listed = {word for words in QUALITIES.values() for word in words.split()} | {
        f for verb in lex.verbs for f in verb.forms
    }
    groups = sorted(lex.nouns)
    return tuple(
        (row[0], frozenset(groups[number_of(row[0], f"class{at}", len(groups))] for at in range(4)))
        for row in lex.adjectives
        if row[0] not in listed
    )


@cache
def objects_of(verb: Verb) -> tuple[Noun, ...]:
    """The nouns that this verb is done to: of its own classes, else of three that its class of verbs allows."""
    lex, base = lexicon(), verb.forms[0]
    groups = OWN_OBJECTS.get(base, "").split()
    if not groups:
        some = OBJECTS[verb.group].split()
        groups = [some[number_of(base, f"object{at}", len(some))] for at in range(2)]
    return tuple(noun for group in groups for noun in lex.nouns[group])


@cache
def prepositions_of(base: str) -> tuple[str, ...]:
    """The prepositions that go with this verb, by its base."""
    own = OWN_PREPOSITIONS.get(base, "").split()
    return tuple(own) or tuple(PREPOSITIONS[number_of(base, f"preposition{at}", len(PREPOSITIONS))] for at in range(2))


@cache
def noun_prepositions(noun: str) -> tuple[str, ...]:
    """The prepositions that go with this noun."""
    own = NOUN_PREPOSITIONS.get(noun, "").split()
    return tuple(own) or (
        "of",
        "of",
        ("for", "from", "with", "in", "near", "about", "behind", "on")[number_of(noun, "noun", 8)],
    )


@cache
def verbs_by(frame: str, habit: int | None) -> tuple[Verb, ...]:
    """The verbs that are used this way, of one habit or of any."""
    return tuple(v for v in lexicon().verbs if frame in v.frames and habit in (None, v.habit))
