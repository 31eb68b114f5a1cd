"""A grammar of English sentences in which a word depends on words far away.

What a head learns is what the words make worth knowing: attention goes where the information is. So what someone eats
depends on who they are, how a sentence ends on its verb, where the cat ran on the cat and not on the dog it chased, and what
"he" likes on whether he is Alice's friend or the one she thanked. Openings, adverbs, auxiliaries, articles and relative
clauses move every word about, so that no fixed offset finds it.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from attnctl.training import lexicon as lex
from attnctl.training.lexicon import Agent, Forms, Verb

Item = TypeVar("Item")
Fact = tuple[str, str, str]  # subject, verb, object

VERB_SUBJECT, OBJECT_VERB = "verb → subject", "object → verb"
PAST_DISTRACTOR, PRONOUN = "verb → subject past a distractor", "pronoun → antecedent"
INNER_SUBJECT, MEANING = "verb → subject inside a relative clause", "it → its noun, by meaning"


class Link(NamedTuple):
    """In this sentence the word at `query` belongs to the word at `key`."""

    relation: str
    query: int
    key: int


@dataclass
class Sentence:
    """The words of a sentence, what belongs to what, and who did what to whom."""

    words: list[str] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)

    def add(self, *words: str) -> int:
        """Append words. → the index of the last of them."""
        self.words.extend(words)
        return len(self.words) - 1

    @property
    def text(self) -> str:
        """The sentence as it is written."""
        return " ".join(self.words).replace(" .", ".")


@dataclass(frozen=True)
class Habits:
    """How often each kind of sentence comes, and how strongly its words depend on each other: all probabilities."""

    pronouns: float
    meanings: float
    distractors: float
    taste: float  # the object is one that the subject likes
    habit: float  # the verb is the subject's own
    friends: float  # who meets whom depends on who they are
    manner: float  # the object is followed by the words that go with the verb


# A causal model sees a verb before its object: the subject's taste and the verb's manner make both worth looking back for.
NEXT_WORD = Habits(0.3, 0.0, 0.3, taste=0.95, habit=0.0, friends=0.8, manner=0.85)
# A model that sees both sides would read the verb off its object or its manner; here subject and verb give each other away.
MASKED_WORD = Habits(0.12, 0.12, 0.3, taste=1 / lex.TASTES, habit=0.95, friends=0.0, manner=0.15)

HELD_OUT = ("Alice", "eat", "pizza")


def held_out(fact: Fact) -> bool:
    """Whether this combination of subject, verb and object is kept out of training: one in eight, and the famous one."""
    return fact == HELD_OUT or zlib.crc32(" ".join(fact).encode()) % 8 == 0


def sentences(count: int, seed: int, habits: Habits = NEXT_WORD, *, held: bool = False) -> list[Sentence]:
    """`count` sentences, the same for the same seed; `held`: every fact of theirs is one that training never meets."""
    grammar = Grammar(seed, habits)

    def wanted(facts: Sequence[Fact]) -> bool:
        return all(map(held_out, facts)) if held else not any(map(held_out, facts))

    return [grammar.sentence(wanted) for _ in range(count)]


def openness(word: str) -> float:
    """How readily a new word comes in the place of this one: names and nouns first, verbs less, little words never."""
    if word in lex.AGENT_WORDS | lex.THING_WORDS | lex.PLACE_WORDS:
        return 1.0
    return 0.35 if word in lex.VERB_WORDS else 0.0


class Grammar:
    """Sentences at random."""

    def __init__(self, seed: int, habits: Habits) -> None:
        self.random = random.Random(seed)
        self.habits = habits

    def sentence(self, wanted: Callable[[Sequence[Fact]], bool]) -> Sentence:
        """One sentence whose facts are wanted. Its kind is drawn first, so that wanting changes no proportions."""
        h, draw = self.habits, self.random.random()
        distracted = self.chance(h.distractors)
        rest = 1 - h.pronouns - h.meanings
        if draw < h.pronouns:
            shape = self._pronoun
        elif draw < h.pronouns + h.meanings:
            shape = self._meaning
        elif draw < h.pronouns + h.meanings + 0.25 * rest:
            shape = self._move
        elif draw < h.pronouns + h.meanings + 0.3 * rest:
            shape = self._chase
        else:
            shape = self._transitive
        while True:
            s, tense = Sentence(), "any"
            if self.chance(0.35):
                tense = self.one(["any", "any", "past", "future"])
                s.add(*self.one(lex.OPENINGS[tense]).split())
            shape(s, tense, distracted)
            if wanted(s.facts):
                break
        if self.chance(0.9):
            s.add(".")
        return s

    def chance(self, p: float) -> bool:
        """True with probability p."""
        return self.random.random() < p

    def one(self, items: Sequence[Item]) -> Item:
        """One of the items."""
        return items[int(self.random.random() * len(items))]

    # --- whole sentences ---------------------------------------------------------------------------------------------

    def _transitive(self, s: Sentence, tense: str, distracted: bool) -> None:
        agent, at, other = self._subject(s, distracted)
        verb = self._deed(agent, liking=0.2)
        v = self._verb(s, verb.forms, agent.plural, tense)
        o = self._thing(s, verb.takes, agent.taste)
        s.links += [Link(PAST_DISTRACTOR if other else VERB_SUBJECT, v, at), Link(OBJECT_VERB, o, v)]
        s.facts.append((agent.lemma, verb.forms[0], s.words[o]))
        if self.chance(self.habits.manner):
            s.add(*verb.then)

    def _move(self, s: Sentence, tense: str, distracted: bool) -> None:
        agent, at, other = self._subject(s, distracted)
        forms = lex.MOVES[agent.taste] if self.chance(self.habits.habit) else self.one(lex.MOVES)
        v = self._verb(s, forms, agent.plural, tense)
        s.add(lex.WHERE[agent.taste] if self.chance(self.habits.taste) else self.one(lex.WHERE))
        s.links.append(Link(PAST_DISTRACTOR if other else VERB_SUBJECT, v, at))
        s.facts.append((agent.lemma, forms[0], other.lemma if other else "-"))

    def _chase(self, s: Sentence, tense: str, distracted: bool) -> None:
        agent = self.one(lex.AGENTS)
        close = self.chance(self.habits.friends)
        prey = [a for a in lex.AGENTS if a.lemma != agent.lemma]
        other = self.one([a for a in prey if not close or a.taste == (agent.taste + 1) % lex.TASTES])
        verb = lex.CHASES[agent.habit % 4] if self.chance(self.habits.habit) else self.one(lex.CHASES)
        at = s.add(*agent.words)
        v = self._verb(s, verb.forms, agent.plural, tense)
        o = s.add(*other.words)
        s.links += [Link(VERB_SUBJECT, v, at), Link(OBJECT_VERB, o, v)]
        s.facts.append((agent.lemma, verb.forms[0], other.lemma))
        if self.chance(self.habits.manner):
            s.add(*verb.then)

    def _pronoun(self, s: Sentence, tense: str, distracted: bool) -> None:
        """Alice thanked Bob because he likes tea: one of each gender, so that the pronoun tells who is meant."""
        first = self.one(lex.PEOPLE)
        close = self.chance(self.habits.friends)
        others = [a for a in lex.PEOPLE if a.gender != first.gender]
        second = self.one([a for a in others if not close or a.taste == (first.taste + 3) % lex.TASTES])
        verb = lex.SOCIAL[first.habit % 5] if self.chance(self.habits.habit) else self.one(lex.SOCIAL)
        at = s.add(*first.words)
        v = self._verb(s, verb.forms, False, tense)
        o = s.add(*second.words)
        s.links += [Link(VERB_SUBJECT, v, at), Link(OBJECT_VERB, o, v)]
        s.facts.append((first.lemma, verb.forms[0], second.lemma))
        s.add(*(verb.then if self.chance(0.7) else self.one(lex.SOCIAL).then))
        who, where = (first, at) if self.chance(0.5) else (second, o)
        pronoun = s.add("she" if who.gender == "f" else "he")
        deed = self._deed(who, liking=0.7)
        v = s.add(deed.forms[1] if self.chance(0.6) else deed.forms[2])
        o = self._thing(s, deed.takes, who.taste)
        s.links += [Link(PRONOUN, pronoun, where), Link(OBJECT_VERB, o, v)]
        s.facts.append((who.lemma, deed.forms[0], s.words[o]))
        if self.chance(0.6 * self.habits.manner):
            s.add(*deed.then)

    def _meaning(self, s: Sentence, tense: str, distracted: bool) -> None:
        """The cat sat on the mat because it was warm: what is said of "it" tells which of the two is meant."""
        agent = self.one(lex.BEASTS)
        place, plural, quality = self.one(lex.PLACES)
        many = plural is not None and self.chance(0.5)
        at = s.add(*agent.words)
        forms = lex.SITS[agent.taste % len(lex.SITS)] if self.chance(self.habits.habit) else self.one(lex.SITS)
        s.links.append(Link(VERB_SUBJECT, self._verb(s, forms, agent.plural, tense), at))
        there = s.add("on", "the", plural if many and plural else place)
        s.facts.append((agent.lemma, forms[0], place))
        s.add("because")
        of_place = self.chance(0.5)
        they = many if of_place else agent.plural
        it = s.add("they" if they else "it")
        # "looked" goes with both, so that the noun alone tells it from they
        s.add(
            self.one(["looked", "felt"]) if self.chance(0.6) else self.one(["are", "were"] if they else ["is", "was"])
        )
        s.add(quality if of_place else lex.MOODS[agent.taste])
        s.links.append(Link(MEANING, it, there if of_place else at))

    # --- their parts -------------------------------------------------------------------------------------------------

    def _subject(self, s: Sentence, distracted: bool) -> tuple[Agent, int, Agent | None]:
        """The subject, with another agent between it and its verb where `distracted`. → (agent, index, the other)."""
        agent = self.one(lex.NAMED if self.chance(0.5) else lex.NOUNS)
        at = s.add(*agent.words)
        if not distracted:
            return agent, at, None
        other = agent
        while other.lemma == agent.lemma:
            other = self.one(lex.NAMED if self.chance(0.5) else lex.NOUNS)
        kind = self.random.random()
        if kind < 0.25:  # the cat near the dog
            s.add(self.one(lex.BESIDE), *other.words)
            return agent, at, other
        verb = self.one(lex.CHASES).forms
        s.add("who" if len(agent.words) == 1 else "that")
        if kind < 0.8:  # the cat that chased the dog
            doer, whom, v = agent, other, self._finite(s, verb, agent.plural)
            s.add(*other.words)
            s.links.append(Link(INNER_SUBJECT, v, at))
        else:  # the cat that the dog chased
            doer, whom, there = other, agent, s.add(*other.words)
            s.links.append(Link(INNER_SUBJECT, self._finite(s, verb, other.plural), there))
        s.facts.append((doer.lemma, verb[0], whom.lemma))
        return agent, at, other

    def _deed(self, agent: Agent, liking: float) -> Verb:
        """What the agent does to a thing; with probability `liking`, likes it in their own way."""
        if self.chance(liking):
            forms = lex.LIKINGS[agent.taste] if self.chance(0.85) else self.one(lex.LIKINGS)
            return Verb(forms, self.one(list(lex.THINGS)))
        return lex.VERBS[agent.habit] if self.chance(self.habits.habit) else self.one(lex.VERBS)

    def _verb(self, s: Sentence, forms: Forms, plural: bool, tense: str) -> int:
        """A verb with its auxiliaries and now and then an adverb. → its index."""
        base, third, past, ing, participle = forms
        kind = self.random.random()
        before: list[str] = []
        word = past
        if tense == "future":
            before, word = ["will"], base
        elif tense == "past":
            if 0.7 <= kind < 0.85:
                before, word = ["did", "not"], base
            elif kind >= 0.85:
                before, word = ["were" if plural else "was"], ing
        elif kind < 0.3:
            before, word = self.one(lex.MODALS), base
        elif kind < 0.4:
            before, word = ["do" if plural else "does", "not"], base
        elif kind < 0.6:
            word = base if plural else third
        elif kind >= 0.9:
            before, word = ["have" if plural else "has"], participle
        elif kind >= 0.8:
            before, word = ["are" if plural else "is"], ing
        adverb = [self.one(lex.ADVERBS)] if self.chance(0.2) else []
        return s.add(*before, *adverb, word)

    def _finite(self, s: Sentence, forms: Forms, plural: bool) -> int:
        return s.add(forms[2] if self.chance(0.6) else forms[0] if plural else forms[1])

    def _thing(self, s: Sentence, kind: str, taste: int) -> int:
        """A thing of this kind that fits the taste, with article and adjective. → the index of its noun."""
        theirs = taste if self.chance(self.habits.taste) else int(self.random.random() * lex.TASTES)
        *article, noun = self.one(lex.THINGS[kind][theirs]).split()
        if self.chance(0.3 if article else 0.15):
            article = ["the"]
        if self.chance(0.15):
            article = ["a" if word == "an" else word for word in article] + [self.one(lex.ADJECTIVES)]
        return s.add(*article, noun)
