"""The built-in grammar's sentences as CoNLL-U, what belongs to what written as dependencies."""

from __future__ import annotations

from collections.abc import Iterator

from attnctl.formats.conllu import line_of
from attnctl.readings.census.words import HALVES
from attnctl.training import relations
from attnctl.training.english import draft
from attnctl.training.english.draft import Sentence
from attnctl.training.english.grammar import sentences

SEEDS = {"choose": 991, "score": 992}  # of relations.SEEDS: validation and held out
# link → relation, and whether the word at its key depends on the one at its query; what comes first has the first claim
LABELS = {
    draft.PAST_OTHERS: ("nsubj:past", True),
    draft.OBJECT_VERB: ("obj", False),
    draft.PRONOUN: ("dep:antecedent", False),
    draft.MEANING: ("dep:meaning", False),
    draft.VERB_SUBJECT: ("nsubj", True),
    draft.ADJECTIVE: ("amod", False),
    draft.DETERMINER: ("det", False),
    draft.PREPOSITION: ("dep:preposition", False),
    draft.CLOSING: ("dep:closing", False),
    draft.INDUCTION: ("dep:induction", False),
}


def treebank_text(count: int, causal: bool = False) -> str:
    """`count` sentences to choose heads on and `count`, held out of training, to score them on, as CoNLL-U.

    They are those of `attnctl evaluate`'s own table, for a model that sees both sides or what came before (`causal`).
    """
    parts = []
    for half in HALVES:
        for number, sentence in enumerate(sentences(count, SEEDS[half], held=half == "score", causal=causal)):
            parts.append(f"# sent_id = {half}-{number}\n# census = {half}\n{sentence_text(sentence)}\n")
    return "".join(parts)


def sentence_text(sentence: Sentence) -> str:
    """A sentence's `# text` and its words, a line each."""
    words = sentence.words
    lines = [f"# text = {' '.join(words)}"]
    for at, (word, (head, relation)) in enumerate(zip(words, dependencies(sentence), strict=True)):
        lines.append(line_of(at + 1, word, tag_of(word), head + 1, relation))
    return "\n".join(lines) + "\n"


def dependencies(sentence: Sentence) -> list[tuple[int, str]]:
    """Each word's head (from 0, -1 for the root) and relation: its links, and `dep` to the root where it has none.

    Where a word would get a second head, the link is turned round (`acl:`: a verb depends on the noun it says more of);
    where that would not do either, it is left out. What LABELS has first has the first claim.
    """
    heads: dict[int, tuple[int, str]] = {}
    named = [link for link in sentence.links if link.relation in LABELS]
    for link in sorted(named, key=lambda link: list(LABELS).index(link.relation)):
        name, key_depends = LABELS[link.relation]
        ends = (link.key, link.query) if key_depends else (link.query, link.key)
        for (word, head), label in ((ends, name), (ends[::-1], f"acl:{name.replace(':', '-')}")):
            if word not in heads and word not in _above(head, heads):
                heads[word] = head, label
                break
    free = [at for at in range(len(sentence.words)) if at not in heads]
    governing = {head for head, _ in heads.values()}
    root = next((at for at in free if at in governing), free[0])
    rest = [(root, "punct" if tag_of(word) == "PUNCT" else "dep") for word in sentence.words]
    return [heads.get(at, (-1, "root") if at == root else rest[at]) for at in range(len(sentence.words))]


def _above(word: int, heads: dict[int, tuple[int, str]]) -> Iterator[int]:
    """The word, its head, that one's head, …"""
    yield word
    while word in heads:
        word = heads[word][0]
        yield word


def tag_of(word: str) -> str:
    """The tag of a word of the grammar, X for the little ones."""
    if not word[0].isalnum():
        return "X" if word[0] == "'" and len(word) > 1 else "PUNCT"
    if word in relations.PRONOUNS:
        return "PRON"
    return "VERB" if word in relations.verb_forms() else "NOUN" if relations.is_noun(word) else "X"
