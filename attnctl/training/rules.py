"""Rules that need no learning: the best fixed offset, the nearest word of the right kind, the first one.

A head that "finds subjects" may only count positions, so each of its figures stands beside theirs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache

from attnctl.training.english import draft
from attnctl.training.english.draft import Link, Sentence
from attnctl.training.english.language import function_words
from attnctl.training.english.lexicon import lexicon
from attnctl.training.english.tables import words_of

Rule = Callable[[Sentence, int], int]

OPENING = frozenset('([{“‘"')
PRONOUNS = frozenset(words_of("pronouns"))


@cache
def noun_forms() -> frozenset[str]:
    """Nouns, names and pronouns: what a verb's subject, or what a pronoun stands for, can be."""
    lex = lexicon()
    found = {form for some in lex.nouns.values() for noun in some for form in (noun.singular, noun.plural) if form}
    found |= set(lex.capitalized)
    return frozenset(found - verbs_only() - function_words() | PRONOUNS)


@cache
def verbs_only() -> frozenset[str]:
    """Verb forms that are no plural or singular of a common noun: those in -ed and -ing, and what is mostly a verb."""
    lex = lexicon()
    named = {form for some in lex.nouns.values() for noun in some[:60] for form in (noun.singular, noun.plural) if form}
    return frozenset({form for verb in lex.verbs for form in verb.forms} - named)


@cache
def verb_forms() -> frozenset[str]:
    """Verb forms, the forms of be among them."""
    return verbs_only() | {"is", "are", "was", "were", "am", "be", "been"}


def kind_of_word(relation: str) -> Callable[[str], bool]:
    """Whether a word can be what this relation looks for."""
    if relation == draft.OBJECT_VERB:
        return verb_forms().__contains__
    if relation == draft.PREPOSITION:
        return lambda word: word in verb_forms() or is_noun(word)
    if relation == draft.CLOSING:
        return OPENING.__contains__
    if relation == draft.INDUCTION:
        return lambda word: True
    return is_noun


def is_noun(word: str) -> bool:
    """Whether a word is a noun, a name or a pronoun; a capital makes a name of what is not known."""
    return (
        word in noun_forms()
        or word.lower() in noun_forms()
        or (word[:1].isupper() and word.lower() not in function_words())
    )


def candidate_places(relation: str, sentence: Sentence, query: int) -> Sequence[int]:
    """Where such words stand on the side that the relation looks to, the nearest first; [-1] where there is none."""
    wanted, n = kind_of_word(relation), len(sentence.words)
    after, before = range(query + 1, n), range(query - 1, -1, -1)
    if relation == draft.DETERMINER:
        sides = [*after]
    elif relation == draft.ADJECTIVE:
        sides = sorted([*before, *after], key=lambda at: (abs(at - query), at < query))
    else:
        sides = [*before]
    return [at for at in sides if wanted(sentence.words[at])] or [-1]


def best_offset(links: Iterable[Link]) -> int:
    """The distance that fits these links most often."""
    return Counter(link.key - link.query for link in links).most_common(1)[0][0]
