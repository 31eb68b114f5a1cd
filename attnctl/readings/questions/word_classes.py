"""The possible classes of each word of a sentence (noun, verb, pronoun, …), and the usual gender of a name.

A bundled list of words and a short list of function words give the classes of a word; the words beside it in its sentence
then exclude some of them: no verb follows "the".
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from itertools import count

from attnctl.text import plain_letters

NOUN, VERB, ADJECTIVE, DETERMINER, PREPOSITION, PRONOUN, AUXILIARY = (
    "noun", "verb", "adjective", "determiner", "preposition", "pronoun", "auxiliary",
)  # fmt: skip

# kinds of the bundled list of words → classes
_CLASSES = dict.fromkeys(("noun", "nouns", "mass", "name"), NOUN) | {"adjective": ADJECTIVE}
_CLASSES |= dict.fromkeys(("base", "third", "past", "ing", "participle"), VERB)

# the words of the closed classes, which have few words
_FUNCTION_WORDS = {
    DETERMINER: "the a an this that these those my your his her its our their some every each no any most many few several "
    "all both",
    PREPOSITION: "in on at to of with from for by under over behind near into onto about after before between without "
    "above across against along among around below beneath beside beyond despite during except inside off opposite "
    "like outside past since through throughout toward towards until upon via within",
    PRONOUN: "i you he she it we they me him her us them who everyone everybody someone somebody anyone anybody nobody "
    "something everything anything nothing",
    VERB: "is are was were am be been has have had like do does did",
    AUXILIARY: "will would can could may might must shall should do does did to don't won't can't didn't doesn't",
    "other": "yesterday today tomorrow tonight not and or but because if when than as so too very what which whom whose how "
    "why where",
}
_CLASSES_OF_FUNCTION_WORDS = {
    word: frozenset(kind for kind, words in _FUNCTION_WORDS.items() if word in words.split())
    for line in _FUNCTION_WORDS.values()
    for word in line.split()
}
SHORT = 4  # words: a sentence as short as this must have a verb, even an unlisted one; a longer text may be a list
_SUBJECTS = frozenset(("i", "you", "he", "she", "it", "we", "they", "who"))


FEW_SEARCHES = 16  # words: up to these, a search in the text of the list is faster than reading its lines
_searches = count()


def word_set(words: str) -> frozenset[str]:
    """Return the words of a line."""
    return frozenset(words.split())


@cache
def word_classes(word: str) -> frozenset[str]:
    """Return the classes that a word may have without its sentence.

    An unlisted word with a capital is a name. Any other unlisted word may have every open class; a mark has no class.
    """
    folded = word.lower()
    if folded in _CLASSES_OF_FUNCTION_WORDS:
        return _CLASSES_OF_FUNCTION_WORDS[folded]
    if listed := _listed_classes(word) | _listed_classes(folded):
        return listed
    if not word[:1].isalpha() or _kinds_and_gender(folded)[0]:  # a class that no relation needs: adverbs, numerals, …
        return frozenset()
    return frozenset([NOUN]) if word[:1].isupper() else frozenset([NOUN, VERB, ADJECTIVE])


def classes_in_sentence(words: Sequence[str]) -> list[frozenset[str]]:
    """Return the classes that each word may have in its sentence.

    No verb follows a determiner or a preposition, even with adjectives between. After a subject pronoun, an auxiliary or
    "to", a word that may be a verb is not a noun.
    """
    result: list[frozenset[str]] = []
    in_noun_phrase = False  # a determiner or a preposition began one, and no noun has ended it
    for i, word in enumerate(words):
        classes = word_classes(word)
        if i and word[:1].isupper() and NOUN in classes:  # a name, even if the word without its capital is not
            classes = frozenset([NOUN])
        if VERB in classes and (in_noun_phrase or i and result[i - 1] == {ADJECTIVE} and NOUN in classes):
            classes = classes - {VERB} or frozenset([NOUN])
        elif i and VERB in classes and (words[i - 1].lower() in _SUBJECTS or AUXILIARY in result[i - 1]):
            classes -= {NOUN, ADJECTIVE}
        begins = DETERMINER in classes or PREPOSITION in classes and AUXILIARY not in classes
        noun_follows = i + 1 < len(words) and word_classes(words[i + 1]) == {NOUN}
        in_noun_phrase = begins or in_noun_phrase and (classes == {ADJECTIVE} or ADJECTIVE in classes and noun_follows)
        result.append(classes)
    return _with_a_verb(result)


def _with_a_verb(classes: list[frozenset[str]]) -> list[frozenset[str]]:
    """Return the classes of a sentence's words, changed so that it has a verb and a noun: "Dogs bark", "Rivals compete"."""
    pairs = list(zip(range(1, len(classes)), classes, classes[1:], strict=False))
    if len(classes) <= SHORT and not any(VERB in classes_of_word for classes_of_word in classes):
        for i, before, classes_of_word in pairs:
            if NOUN in classes_of_word and before & {NOUN, PRONOUN}:
                classes[i] = classes_of_word | {VERB}
    for i, classes_of_word, after in pairs:
        if classes_of_word == {VERB} and after == {VERB}:
            classes[i - 1] = classes_of_word | {NOUN}
        # "the bus stop is near": between "the", a noun and a verb the word is a noun
        within = i > 2 and DETERMINER in classes[i - 3] and classes[i - 2] == {NOUN}
        if within and after == {VERB} and classes[i - 1] >= {NOUN, VERB}:
            classes[i - 1] -= {VERB}
    return classes


@cache
def grammatical_number(word: str) -> str | None:
    """Return "singular" or "plural" for a noun or name in the list; None for a word that may be both or is not listed."""
    kinds = {*_kinds_and_gender(word)[0].split(), *_kinds_and_gender(word.lower())[0].split()}
    singular, plural = bool(kinds & {"noun", "mass", "name"}), "nouns" in kinds
    return None if singular == plural else "singular" if singular else "plural"


@cache
def usual_gender(name: str) -> str | None:
    """Return the gender of most people with this name: f, m, or x for either; None for a name that the list lacks."""
    gender = _kinds_and_gender(plain_letters(name))[1]
    return gender if gender in ("f", "m", "x") else None


def is_name(word: str) -> bool:
    """Return whether a word is a listed name, or a word with a capital that no list of words holds."""
    if usual_gender(word) is not None:
        return word[:1].isupper()
    return word[:1].isupper() and not _listed_classes(word.lower()) and word_classes(word) == {NOUN}


@cache
def _list_of_words() -> str:
    return files("attnctl.text.english").joinpath("words.tsv").read_text(encoding="utf-8")


def _kinds_and_gender(word: str) -> tuple[str, str]:
    """Return the kinds and the gender of a word in the list; empty texts for a word that is not listed."""
    if next(_searches) >= FEW_SEARCHES:
        return _kinds_and_genders().get(word, ("", ""))
    text = _list_of_words()
    start = text.find(f"\n{word}\t")
    _, kinds, gender, *_ = text[start + 1 : text.find("\n", start + 1)].split("\t") if start >= 0 else ("", "", "")
    return kinds, gender


@cache
def _kinds_and_genders() -> dict[str, tuple[str, str]]:
    """Return the kinds and the gender of every word in the list."""
    lines = (line.split("\t") for line in reversed(_list_of_words().split("\n")) if line and not line.startswith("#"))
    return {word: (kinds, gender) for word, kinds, gender, *_ in lines}


def _listed_classes(word: str) -> frozenset[str]:
    """Return the classes of a word in the list."""
    return frozenset(_CLASSES[kind] for kind in _kinds_and_gender(word)[0].split() if kind in _CLASSES)
