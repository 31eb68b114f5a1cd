"""Write the grammar's sentences as CoNLL-U: their trees, and all their links in the column DEPS."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache

from attnctl.text import english
from attnctl.text.english import LABELS, NOT_ASKED, Link
from samples.english.draft import Sentence
from samples.english.language import function_words
from samples.english.lexicon import lexicon, words_of

PRONOUNS = frozenset(words_of("pronouns"))

# link → relation of the tree, and whether the word at its key depends on the one at its query; what comes first has the
# first claim
TREE_RELATIONS = {
    english.PAST_OTHERS: ("nsubj:past", True),
    english.OBJECT_VERB: ("obj", False),
    english.PRONOUN: ("dep:antecedent", False),
    english.MEANING: ("dep:meaning", False),
    english.VERB_SUBJECT: ("nsubj", True),
    english.ADJECTIVE: ("amod", False),
    english.DETERMINER: ("det", False),
    english.PREPOSITION: ("dep:preposition", False),
    english.CLOSING: ("dep:closing", False),
    english.INDUCTION: ("dep:induction", False),
}


def trained_block(sentence: Sentence) -> str:
    """Return the lines of a training sentence: its words, and the links that answer questions."""
    deps = deps_of(sentence.answers())
    lines = [
        f"{index + 1}\t{word}\t_\t_\t_\t_\t_\t_\t{deps.get(index, '_')}\t{NOT_ASKED if index in sentence.loose else '_'}"
        for index, word in enumerate(sentence.words)
    ]
    return "\n".join(lines) + "\n"


def measured_block(sentence: Sentence) -> str:
    """Return the lines of a test sentence: its words with their tags, its tree, and its links."""
    deps, tree = deps_of(sentence.links), dependencies(sentence)
    lines = [
        f"{index + 1}\t{word}\t_\t{tag_of(word)}\t_\t_\t{head + 1}\t{relation}\t{deps.get(index, '_')}\t_"
        for index, (word, (head, relation)) in enumerate(zip(sentence.words, tree, strict=True))
    ]
    return "\n".join(lines) + "\n"


def deps_of(links: Sequence[Link]) -> dict[int, str]:
    """Return the column DEPS of each word that has links."""
    columns: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for relation, query, key in links:
        columns[query].append((key + 1, LABELS[relation]))
    return {query: "|".join(f"{place}:{label}" for place, label in sorted(labels)) for query, labels in columns.items()}


def dependencies(sentence: Sentence) -> list[tuple[int, str]]:
    """Return each word's head (from 0, -1 for the root) and relation: its links, or else `dep` to the root.

    If a word would get a second head, the link is reversed (`acl:`: a verb depends on the noun that it describes). If that
    is impossible too, the link is left out. Relations that come first in TREE_RELATIONS have priority.
    """
    heads: dict[int, tuple[int, str]] = {}
    named = [link for link in sentence.links if link.relation in TREE_RELATIONS]
    for link in sorted(named, key=lambda link: list(TREE_RELATIONS).index(link.relation)):
        name, key_depends = TREE_RELATIONS[link.relation]
        ends = (link.key, link.query) if key_depends else (link.query, link.key)
        for (word, head), label in ((ends, name), (ends[::-1], f"acl:{name.replace(':', '-')}")):
            if word not in heads and word not in _above(head, heads):
                heads[word] = head, label
                break
    free = [index for index in range(len(sentence.words)) if index not in heads]
    governing = {head for head, _ in heads.values()}
    root = next((index for index in free if index in governing), free[0])
    defaults = [(root, "punct" if tag_of(word) == "PUNCT" else "dep") for word in sentence.words]
    return [
        heads.get(index, (-1, "root") if index == root else defaults[index]) for index in range(len(sentence.words))
    ]


def _above(word: int, heads: dict[int, tuple[int, str]]) -> Iterator[int]:
    """Yield the word, its head, the head of that head, and so on to the root."""
    yield word
    while word in heads:
        word = heads[word][0]
        yield word


def tag_of(word: str) -> str:
    """Return the tag of a word of the grammar, X for a function word."""
    if not word[0].isalnum():
        return "X" if word[0] == "'" and len(word) > 1 else "PUNCT"
    if word in PRONOUNS:
        return "PRON"
    return "VERB" if word in verb_forms() else "NOUN" if is_noun(word) else "X"


@cache
def noun_forms() -> frozenset[str]:
    """Return nouns, names and pronouns: the possible subjects of a verb and antecedents of a pronoun."""
    lex = lexicon()
    columns = {form for nouns in lex.nouns.values() for noun in nouns for form in (noun.singular, noun.plural) if form}
    columns |= set(lex.capitalized)
    return frozenset(columns - verbs_only() - function_words() | PRONOUNS)


@cache
def verbs_only() -> frozenset[str]:
    """Return verb forms that are not forms of a common noun: forms in -ed and -ing, and words that are mostly verbs."""
    lex = lexicon()
    named = {
        form for nouns in lex.nouns.values() for noun in nouns[:60] for form in (noun.singular, noun.plural) if form
    }
    return frozenset({form for verb in lex.verbs for form in verb.forms} - named)


@cache
def verb_forms() -> frozenset[str]:
    """Return verb forms, including the forms of be."""
    return verbs_only() | {"is", "are", "was", "were", "am", "be", "been"}


def is_noun(word: str) -> bool:
    """Return whether a word is a noun, a name or a pronoun; an unknown word with a capital is a name."""
    return (
        word in noun_forms()
        or word.lower() in noun_forms()
        or (word[:1].isupper() and word.lower() not in function_words())
    )
