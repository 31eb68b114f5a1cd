"""The parts of a sentence: noun phrases, verbs with their auxiliaries, prepositional phrases, pronouns.

Each part is appended to a Sentence, which keeps its words and what belongs to what.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import NamedTuple, TypeVar

from attnctl.training.english import classes
from attnctl.training.english.lexicon import HABITS, Noun, Verb, lexicon, number_of
from attnctl.training.english.tables import pairs_of, words_of

Item = TypeVar("Item")
Fact = tuple[str, str, str]  # subject, verb, object

VERB_SUBJECT, PAST_OTHERS, OBJECT_VERB = "verb → subject", "verb → subject past others", "object → verb"
PRONOUN, MEANING = "pronoun → antecedent", "it → its noun, by meaning"
ADJECTIVE, DETERMINER, PREPOSITION = "adjective → noun", "determiner → noun", "preposition → what it belongs to"
CLOSING, INDUCTION = "closing mark → opening mark", "induction"
# relations that are learned beside these ten, and not measured
INFINITIVE, SUBJECT_VERB, HELPER = "infinitive → subject", "subject → verb", "helper → verb"
REFERENCE, MODIFIER, WITHIN = "reference → noun", "modifier → word", "noun → preposition"


class Question(NamedTuple):
    """What a word can be asked in training; a word of the same sentence answers it."""

    head: int  # the head of the last layer from which the answer is predicted
    weight: float  # how much the question counts in the loss, however rarely it is asked
    relations: tuple[str, ...]  # the links that answer it, from the word asked to the word that answers


# hard relations are asked apart from easy ones, so that they are not lost in the mean
QUESTIONS = (
    Question(0, 1.0, (VERB_SUBJECT, INFINITIVE)),
    Question(0, 1.5, (PAST_OTHERS,)),
    Question(1, 1.0, (OBJECT_VERB, SUBJECT_VERB, HELPER)),
    Question(2, 1.0, (PRONOUN,)),
    Question(2, 1.0, (MEANING,)),
    Question(2, 1.0, (REFERENCE,)),
    Question(3, 1.0, (ADJECTIVE, DETERMINER, MODIFIER)),
    Question(4, 1.0, (PREPOSITION, WITHIN)),
    Question(4, 3.0, (CLOSING,)),
    Question(5, 6.0, (INDUCTION,)),
)
QUESTION_OF = {relation: number for number, question in enumerate(QUESTIONS) for relation in question.relations}


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
    loose: set[int] = field(default_factory=set)  # places of words whose links are not all noted

    def add_word(self, *words: str) -> int:
        """Append words, or none. → the index of the last of them."""
        self.words.extend(words)
        return len(self.words) - 1

    def link(self, relation: str, query: int, key: int) -> None:
        """Note that the word at `query` belongs to the word at `key`."""
        self.links.append(Link(relation, query, key))

    def add_loose(self, *words: str) -> int:
        """Append words whose links are not noted. → the index of the last of them."""
        self.loose |= set(range(len(self.words), len(self.words) + len(words)))
        return self.add_word(*words)

    def insert(self, at: int, inner: Sentence) -> None:
        """Put another sentence's words and links before the word at `at`."""
        wide = len(inner.words)
        self.links = [Link(r, q + wide * (q >= at), k + wide * (k >= at)) for r, q, k in self.links]
        self.links += [Link(r, q + at, k + at) for r, q, k in inner.links]
        self.loose = {p + wide * (p >= at) for p in self.loose} | {p + at for p in inner.loose}
        self.words[at:at] = inner.words

    def answers(self) -> dict[tuple[int, int], int]:
        """The place of the word that answers a question, by the places of the word and of the question in QUESTIONS.

        A subject is asked for the verb of the main clause rather than for that of its relative clause, and for neither
        where it is an object.
        """
        found: dict[tuple[int, int], int] = {}
        for link in self.links:
            found[link.query, QUESTION_OF[link.relation]] = link.key
        asked = QUESTION_OF[SUBJECT_VERB]
        for link in self.links:
            if link.relation == VERB_SUBJECT:
                found.setdefault((link.key, asked), link.query)
        for link in self.links:
            if link.relation == PAST_OTHERS and found.get((link.key, asked), link.query) > link.key:
                found[link.key, asked] = link.query
        return found

    @property
    def text(self) -> str:
        """The sentence as it is written."""
        return " ".join(self.words)


class Draw(random.Random):
    """Choices at random, the same for the same seed on every machine."""

    def chance(self, p: float) -> bool:
        """True with probability p."""
        return self.random() < p

    def one(self, items: Sequence[Item]) -> Item:
        """One of the items."""
        return items[int(self.random() * len(items))]

    def early(self, items: Sequence[Item], power: float = 3.0) -> Item:
        """One of the items, rather one of the first: lists have their commonest words first."""
        return items[int(self.random() ** power * len(items))]


@dataclass(frozen=True)
class Agent:
    """Someone or something that a sentence speaks of."""

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
        """The pronoun for it: case 0 he, 1 him, 2 his, 3 himself."""
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


# --- nouns -------------------------------------------------------------------------------------------------------

SINGULAR = words_of("singular")
PLURAL = words_of("plural")
MASS = words_of("mass")
DETERMINERS = frozenset(words_of("determiners"))
DEGREES = words_of("degrees")
_VOWELS = {word: int(x) for word, x in pairs_of("vowels").items()}


def article(before: str) -> str:
    """`a` or `an`, as the word that follows wants it."""
    return "an" if _VOWELS.get(before, int(before[0].lower() in "aeiou")) else "a"


def noun_phrase(d: Draw, s: Sentence, noun: Noun, *, plural: bool | None = None,
                determiner: str | Agent | None = None, adjectives: float = 0.22) -> Agent:  # fmt: skip
    """A noun with its determiner and adjectives. A determiner that is an Agent: whose it is, said by a possessive."""
    many = noun.plural is not None and (d.chance(0.28) if plural is None else plural)
    many = many or noun.plural == noun.singular and noun.singular.endswith("s")  # trousers
    word = noun.plural if many and noun.plural else noun.singular
    described: list[str] = []
    if d.chance(adjectives):
        described = [d.one(classes.qualities(noun.group)) for _ in range(2 if d.chance(0.2) else 1)]
    if d.chance(0.04):
        described.insert(0, d.one(DEGREES[:2] + DEGREES[3:4])) if described else None
    first = described[0] if described else word
    det: int | None = None
    own: list[int] = []
    if isinstance(determiner, Agent):
        own = [possessive(s, determiner)]
    elif determiner is None and d.chance(0.06):  # Tom's dog
        at = s.add_word(d.early(lexicon().names[d.one("fm")]), "'s")
        own = [at - 1, at]
    else:
        kinds = PLURAL if many else MASS if noun.plural is None else SINGULAR
        picked = d.one(kinds) if determiner is None else determiner
        bare = determiner is None and (many or noun.plural is None) and d.chance(0.35)
        if not bare and picked:
            det = s.add_word(article(first) if picked == "a" else picked)
    places = [s.add_word(adjective) for adjective in described]
    head = s.add_word(word)
    if det is not None:
        s.link(DETERMINER if s.words[det] in DETERMINERS else MODIFIER, det, head)
    for at in own:
        s.link(MODIFIER, at, head)
    for at in places:
        s.link(*((MODIFIER, at, at + 1) if s.words[at] in DEGREES else (ADJECTIVE, at, head)))
    gender = noun.gender if noun.gender != "n" or noun.group != "person" else "x"
    return Agent(head, word, noun.group, gender, many, habit=noun.habit)


def possessive(s: Sentence, owner: Agent) -> int:
    """`his`, `their`, …: whose the coming noun is. → its index."""
    at = s.add_word(owner.pronoun(2))
    if owner.person == 3 and owner.gender != "x":
        s.link(REFERENCE, at, owner.head if owner.origin is None else owner.origin)
    return at


def name(d: Draw, s: Sentence) -> Agent:
    """Someone by name, now and then with a title or a family name."""
    sex, kind = d.one("fm"), d.random()
    lex = lexicon()
    if kind < 0.1:
        title = d.one(
            ("mr", "dr", "uncle", "king", "prince", "sir")
            if sex == "m"
            else ("mrs", "ms", "miss", "dr", "aunt", "queen")
        )
        word = d.one(lex.surnames)
        head = s.add_word(title, word)
        s.link(MODIFIER, head - 1, head)
        return Agent(head, word, "person", sex if title != "dr" else "x", habit=number_of(word, "habit", HABITS))
    word = d.early(lex.names[sex], 3.5)
    head = s.add_word(word)
    if kind > 0.95:
        s.add_loose(d.one(lex.surnames))
    return Agent(head, word, "person", sex, habit=number_of(word, "habit", HABITS))


ANYONE = words_of("anyone")
THINGS = words_of("things")


SPEAKERS = ("I", "I", "you", "we", "they", "he", "she", "it", "someone")


def speaker(d: Draw, s: Sentence, words: Sequence[str] = SPEAKERS) -> Agent:
    """I, you, we, they, he, she or it, of whom nothing was said before; or someone, everyone."""
    word = d.one(words)
    if word == "someone":
        word = d.one(ANYONE)
    at = s.add_word(word)
    plural = word in ("we", "they")
    person = {"I": 1, "we": 1, "you": 2}.get(word, 3)
    gender = {"he": "m", "she": "f", "it": "n"}.get(word, "x")
    return Agent(at, word, "anyone", gender, plural, person)


def bare_subject(d: Draw, s: Sentence, *, things: float = 0.2) -> Agent:
    """A subject without clauses of its own."""
    lex, kind = lexicon(), d.random()
    if kind < 0.3:
        return name(d, s)
    if kind < 0.42:
        return speaker(d, s)
    if kind < 0.44:
        word = d.one(lex.places + lex.proper + lex.other)
        return Agent(s.add_word(word), word, "place", habit=number_of(word, "habit", HABITS))
    group = (
        "person"
        if kind < 0.68
        else "animal"
        if kind < 1 - things
        else d.one(sorted(lex.nouns))
        if d.chance(0.3)
        else d.one(THINGS)
    )
    return noun_phrase(d, s, d.early(lex.nouns[group]))


# --- verbs -------------------------------------------------------------------------------------------------------

ADVERBS = words_of("adverbs")
MODALS = words_of("modals")
NOT_MODALS = words_of("not modals")


def be(agent: Agent, past: bool) -> str:
    """The form of `be` for this subject."""
    if agent.person == 1 and not agent.plural:
        return "was" if past else "am"
    many = agent.plural or agent.person == 2
    return ("were" if many else "was") if past else ("are" if many else "is")


_WITH = {"has": "'s", "have": "'ve", "had": "'d", "will": "'ll", "would": "'d", "is": "'s", "are": "'re", "am": "'m"}
CLITIC_OF = dict.fromkeys(["I", "you", "he", "she", "it", "we", "they", "who"], _WITH)
CLITICS_OF_BE = {form: _WITH[form] for form in ("is", "are", "am")}


def third(agent: Agent) -> bool:
    """Whether its verb takes an -s."""
    return agent.person == 3 and not agent.plural


def verb_group(d: Draw, s: Sentence, verb: Verb, agent: Agent, tense: str = "any") -> int:
    """A verb with its auxiliaries, and now and then an adverb, agreeing with its subject. → its index, linked."""
    base, s_form, past, ing, participle = verb.forms
    kind = d.random() * (0.4 if agent.far and d.chance(0.6) else 1.0)  # rather alone, and in the past: nothing agrees
    before: list[str] = []
    word = past if kind < 0.18 else s_form if third(agent) else base
    if tense == "future":
        before, word = ["will"], base
    elif kind >= 0.94:
        before, word = ["had" if d.chance(0.35) else "has" if third(agent) else "have"], participle
    elif kind >= 0.9:
        before, word = [be(agent, d.chance(0.4))], ing
    elif kind >= 0.84:
        does = ("does", "do")[not third(agent)] if d.chance(0.5) else "did"
        before = [does, "not"] if d.chance(0.5) else [does + "n't"]
        word = base
    elif kind >= 0.73:
        before, word = d.one([[d.one(MODALS)]] * 4 + [[d.one(NOT_MODALS)], [d.one(MODALS), "not"]]), base
    if before and s.words and s.words[-1] in CLITIC_OF and d.chance(0.3):  # I'm, they'll
        before[0] = CLITIC_OF[s.words[-1]].get(before[0], before[0])
    if d.chance(0.28):
        before.append(d.one(ADVERBS) if d.chance(0.7) else d.early(lexicon().adverbs))
    at = helped(s, before, word)
    s.link(PAST_OTHERS if agent.far else VERB_SUBJECT, at, agent.head)
    return at


def helped(s: Sentence, helpers: Sequence[str], verb: str) -> int:
    """Append auxiliaries and adverbs, and the verb that they belong to. → its index."""
    at = s.add_word(*helpers, verb)
    for helper in range(at - len(helpers), at):
        s.link(HELPER, helper, at)
    return at


def finite(d: Draw, s: Sentence, verb: Verb, agent: Agent) -> int:
    """A verb in the past or the present. → its index, linked."""
    before = [d.one(ADVERBS)] if d.chance(0.2) else []
    at = helped(s, before, verb.forms[2] if d.chance(0.3) else verb.forms[1] if third(agent) else verb.forms[0])
    s.link(PAST_OTHERS if agent.far else VERB_SUBJECT, at, agent.head)
    return at


OWN_VERB = 0.3  # how often someone does what is their own

ANIMAL_VERBS = words_of("animal verbs")
THING_VERBS = words_of("thing verbs")


def verb_for(d: Draw, agent: Agent, frame: str) -> Verb:
    """A verb that this subject does, rather one of its own."""
    lex = lexicon()
    if agent.group in ("person", "group", "place", "anyone"):
        habit = agent.habit if agent.group == "person" and d.chance(OWN_VERB) else None
        if frame == "t" and d.chance(0.45):
            return d.early(_common(habit), 2.0)
        if frame == "i" and d.chance(0.4):
            return d.early(_common_alone(), 1.5)
        return d.early(classes.verbs_by(frame, habit), 3.0)
    words = ANIMAL_VERBS if agent.group == "animal" else THING_VERBS
    by = lex.by_verb
    usual = [w for w in words if w in by and frame in by[w].frames]
    mine = [w for w in usual if number_of(w, "own", 4) == agent.habit % 4]
    return by[d.one(mine if mine and d.chance(0.75) else usual)] if usual else d.one(classes.verbs_by(frame, None))


@cache
def _common_alone() -> tuple[Verb, ...]:
    """The verbs without an object whose prepositions are listed by hand, the commonest."""
    return tuple(v for v in lexicon().verbs if v.forms[0] in classes.OWN_PREPOSITIONS and "i" in v.frames)


@cache
def _common(habit: int | None) -> tuple[Verb, ...]:
    """The verbs whose objects are listed by hand, the commonest, of one habit or of any."""
    found = tuple(v for v in lexicon().verbs if v.forms[0] in classes.OWN_OBJECTS and "t" in v.frames)
    return tuple(v for v in found if habit in (None, v.habit)) or found


# --- around the verb ---------------------------------------------------------------------------------------------

PLACE_GROUPS = pairs_of("place groups")


def place_phrase(d: Draw, s: Sentence, preposition: str, belongs: int, plural: bool | None = None) -> Agent:
    """A preposition and its noun, belonging to the word at `belongs`."""
    at = s.add_word(preposition)
    s.link(PREPOSITION, at, belongs)
    lex = lexicon()
    if preposition in ("with", "for", "to", "from", "of", "about", "by", "near") and d.chance(0.25):
        word = (
            d.early(lex.names[d.one("fm")])
            if preposition in ("with", "for", "by") or d.chance(0.5)
            else d.one(lex.places)
        )
        return within(s, at, Agent(s.add_word(word), word, "place"))
    groups = PLACE_GROUPS.get(preposition, "building place land furniture water road plant").split()
    return within(s, at, noun_phrase(d, s, d.early(lex.nouns[d.one(groups)]), adjectives=0.12, plural=plural))


def within(s: Sentence, preposition: int, agent: Agent) -> Agent:
    """Note that this noun belongs to the preposition before it. → the same."""
    s.link(WITHIN, agent.head, preposition)
    return agent


def said_again(s: Sentence, agent: Agent, case: int = 0, *, meant: bool = False) -> Agent:
    """A pronoun for someone or something that stands before; `meant`: there is someone else whom it might be."""
    at = s.add_word(agent.pronoun(case))
    if agent.person == 3:
        s.link(PRONOUN if meant else REFERENCE, at, agent.head if agent.origin is None else agent.origin)
    return replace(agent, head=at, far=False, origin=agent.head if agent.origin is None else agent.origin)


def relative(d: Draw, agent: Agent) -> str:
    """The pronoun with which a relative clause begins."""
    return d.one(["who", "who", "that"] if agent.group == "person" else ["that", "that", "which"])


def with_clause(d: Draw, s: Sentence, agent: Agent) -> Agent:
    """The agent with a relative clause or a prepositional phrase after it. → the agent, other nouns now after it."""
    lex, kind = lexicon(), d.random()
    many = d.chance(0.6) != agent.plural  # rather of the other number, so that the nearest noun misleads the verb
    noun = d.early(lex.nouns["person" if d.chance(0.5) else "animal" if d.chance(0.5) else d.one(THINGS)])
    if kind < 0.36:
        place_phrase(
            d,
            s,
            d.one(classes.noun_prepositions(agent.word))
            if agent.group != "person" or d.chance(0.6)
            else d.one(["with", "near", "behind", "from", "in"]),
            agent.head,
            plural=many,
        )
    elif kind < 0.44 and agent.group == "person":
        s.link(REFERENCE, s.add_word("whose"), agent.head)
        own = noun_phrase(d, s, noun, determiner="", plural=many, adjectives=0.1)
        finite(d, s, verb_for(d, own, "i"), own)
    elif kind < 0.54:
        s.link(REFERENCE, s.add_word(relative(d, agent)), agent.head)
        verb = verb_for(d, agent, "i")
        at = verb_group(d, s, verb, agent) if d.chance(0.4) else finite(d, s, verb, agent)
        if d.chance(0.75):
            place_phrase(d, s, d.one(classes.prepositions_of(verb.forms[0])), at, plural=many)
    elif kind < 0.8:
        s.link(REFERENCE, s.add_word(relative(d, agent)), agent.head)
        verb = verb_for(d, agent, "t")
        at = verb_group(d, s, verb, agent) if d.chance(0.3) else finite(d, s, verb, agent)
        other = (
            name(d, s)
            if d.chance(0.2)
            else noun_phrase(
                d, s, d.early(classes.objects_of(verb)) if d.chance(0.7) else noun, adjectives=0.1, plural=many
            )
        )
        s.link(OBJECT_VERB, other.head, at)
        s.facts.append((agent.word, verb.forms[0], other.word))
    else:
        if d.chance(0.7):
            s.link(REFERENCE, s.add_word(relative(d, agent)), agent.head)
        other = (
            name(d, s)
            if d.chance(0.25)
            else speaker(d, s, SPEAKERS[1:4])
            if d.chance(0.3)
            else noun_phrase(d, s, d.early(lex.nouns[d.one(["person", "animal"])]), adjectives=0.1, plural=many)
        )
        verb = verb_for(d, other, "t")
        verb_group(d, s, verb, other) if d.chance(0.2) else finite(d, s, verb, other)
        s.facts.append((other.word, verb.forms[0], agent.word))
    return replace(agent, far=True)


def subject(d: Draw, s: Sentence, *, clauses: float = 0.5, things: float = 0.2) -> Agent:
    """A subject, now and then with a clause or a phrase after it."""
    agent = bare_subject(d, s, things=things)
    if agent.word != agent.pronoun(0) and agent.word not in ANYONE and d.chance(clauses):
        apart = d.chance(0.1)  # between commas
        s.add_word(*[","] * apart)
        agent = with_clause(d, s, agent)
        s.add_word(*[","] * apart)
    return agent
