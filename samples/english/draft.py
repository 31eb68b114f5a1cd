"""Hold a sentence under construction: its words, its links, its random draws, and the agents in it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from attnctl.text.english import PAST_OTHERS, QUESTION_OF, SUBJECT_VERB, VERB_SUBJECT, Link
from samples.english.lexicon import number_of

Item = TypeVar("Item")
Fact = tuple[str, str, str]  # subject, verb, object


@dataclass
class Sentence:
    """The words of a sentence, its links, and who did what to whom."""

    words: list[str] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    loose: set[int] = field(default_factory=set)  # places of words whose links are not all noted

    def add_word(self, *words: str) -> int:
        """Append words, or none. Return the index of the last one."""
        self.words.extend(words)
        return len(self.words) - 1

    def link(self, relation: str, query: int, key: int) -> None:
        """Record that the word at `query` belongs to the word at `key`."""
        self.links.append(Link(relation, query, key))

    def add_loose(self, *words: str) -> int:
        """Append words without all their links. Return the index of the last one."""
        self.loose |= set(range(len(self.words), len(self.words) + len(words)))
        return self.add_word(*words)

    def insert(self, index: int, inner: Sentence) -> None:
        """Insert another sentence's words and links before the word at `index`."""
        wide = len(inner.words)
        self.links = [Link(r, q + wide * (q >= index), k + wide * (k >= index)) for r, q, k in self.links]
        self.links += [Link(r, q + index, k + index) for r, q, k in inner.links]
        self.loose = {p + wide * (p >= index) for p in self.loose} | {p + index for p in inner.loose}
        self.words[index:index] = inner.words

    def answers(self) -> list[Link]:
        """Return the links that answer questions: the sentence's own, and links from subjects to their verbs.

        A subject is linked to the verb of the main clause and not to that of its relative clause, and to neither if it is an
        object.
        """
        question = QUESTION_OF[SUBJECT_VERB]
        verbs = {link.query: link for link in self.links if QUESTION_OF[link.relation] == question}
        for relation, verb, subject in sorted(self.links, key=lambda link: link.relation == PAST_OTHERS):
            earlier = verbs[subject].key if subject in verbs else verb
            if (relation == VERB_SUBJECT and subject not in verbs) or (relation == PAST_OTHERS and earlier > subject):
                verbs[subject] = Link(SUBJECT_VERB, subject, verb)
        return [*(link for link in self.links if QUESTION_OF[link.relation] != question), *verbs.values()]

    @property
    def text(self) -> str:
        """Return the written sentence."""
        return " ".join(self.words)


class Draw(random.Random):
    """Random choices, the same for the same seed on every machine."""

    def chance(self, p: float) -> bool:
        """Return True with probability p."""
        return self.random() < p

    def one(self, items: Sequence[Item]) -> Item:
        """Return one of the items."""
        return items[int(self.random() * len(items))]

    def early(self, items: Sequence[Item], power: float = 3.0) -> Item:
        """Return one of the items, more often an early one: lists have their most common words first."""
        return items[int(self.random() ** power * len(items))]


@dataclass(frozen=True)
class Agent:
    """Someone or something that a sentence is about."""

    head: int  # the index of its word
    word: str
    group: str
    gender: str = "n"  # m, f, n, or x: a person of either
    plural: bool = False
    person: int = 3
    habit: int = 0
    far: bool = False  # other nouns stand between it and what follows
    origin: int | None = None  # of a pronoun, the index of the noun it stands for

    def pronoun(self, case: int) -> str:
        """Return the pronoun of the agent: case 0 he, 1 him, 2 his, 3 himself."""
        if self.person == 1:
            return (("I", "me", "my", "myself"), ("we", "us", "our", "ourselves"))[self.plural][case]
        if self.person == 2:
            return ("you", "you", "your", "yourself")[case]
        if self.plural:
            return ("they", "them", "their", "themselves")[case]
        return {
            "m": ("he", "him", "his", "himself"),
            "f": ("she", "her", "her", "herself"),
            "n": ("it", "it", "its", "itself"),
        }["fm"[number_of(self.word, "sex", 2)] if self.gender == "x" else self.gender][case]
