"""Write English sentences by a grammar in which a word depends on words far away.

Attention goes where the information is, so a head learns a relation if the relation helps to predict words. Therefore a
verb depends on its subject, an object on its verb, a preposition on the word it belongs to, an adjective on its noun. Each
sentence records which of its words answers which question about another word (`english.QUESTIONS`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attnctl.text.english import (
    INFINITIVE,
    OBJECT_VERB,
    PREPOSITION,
    SUBJECT_VERB,
    WITHIN,
    Link,
)
from samples.english import clauses
from samples.english import lexicon as classes
from samples.english.draft import Agent, Draw, Fact, Sentence
from samples.english.lexicon import HABITS, lexicon, number_of, words_of
from samples.english.marked import content_words, kept_out
from samples.english.meaning import by_meaning
from samples.english.patterns import bracketed, ended, quoted, repeated
from samples.english.phrases import ANYONE, given_name, name, noun_phrase, said_again
from samples.english.verbs import finite, verb_for, verb_group

LONGEST = 40  # words of a sentence
HELD_OUT = ("Alice", "eat", "pizza")


def held_out(fact: Fact) -> bool:
    """Return whether this combination of subject, verb and object is kept out of training: one in eight, and HELD_OUT."""
    return fact == HELD_OUT or number_of(" ".join(fact), "held", 8) == 0


def sentences(count: int, seed: int, kinds: Kinds | None = None, *, held_out_only: bool = False) -> list[Sentence]:
    """Return `count` sentences, the same for the same seed; with `held_out_only`, only facts that training never sees.

    `kinds` are how each kind is made and its weight; None: KINDS.
    """
    d = Draw(seed)

    def is_wanted(facts: Sequence[Fact]) -> bool:
        return all(map(held_out, facts)) if held_out_only else not any(map(held_out, facts))

    return [_sentence(d, is_wanted, KINDS if kinds is None else kinds) for _ in range(count)]


def _sentence(d: Draw, is_wanted: Callable[[Sequence[Fact]], bool], kinds: Kinds) -> Sentence:
    """Return one sentence with the wanted facts. Its kind is drawn first, so that the proportions stay."""
    draw = d.random() * sum(share for _, share in kinds)
    for make, share in kinds:  # noqa: B007 - the one at which it stops
        draw -= share
        if draw < 0:
            break
    while True:
        s = Sentence()
        make(d, s)
        if 1 < len(s.words) <= LONGEST and is_wanted(s.facts) and content_words(s.words) not in kept_out():
            return s


OPENINGS = {
    "any": [
        "today",
        "in the morning",
        "on monday",
        "after lunch",
        "at night",
        "now and then",
        "every day",
        "on sunday",
        "on fridays",
        "in may",
    ],
    "past": ["yesterday", "last week", "long ago", "last year", "one day", "in june"],
    "future": ["tomorrow", "next week", "soon", "next year"],
}
INTERJECTIONS = words_of("interjections")


def plain(d: Draw, s: Sentence) -> None:
    """Add a main clause, sometimes with an opening."""
    tense = opened(d, s)
    clauses.simple(d, s, tense=tense)
    ended(d, s)


def opened(d: Draw, s: Sentence) -> str:
    """Add a time, an adverb, a word of surprise, or nothing. Return the tense that fits it."""
    kind = d.random()
    tense = "any"
    if kind < 0.16:
        tense = d.one(["any", "any", "past", "future"])
        s.add_loose(*d.one(OPENINGS[tense]).split())
        if d.chance(0.4):
            s.add_word(",")
    elif kind < 0.2:
        s.add_word(d.early(lexicon().adverbs), ",")
    elif kind < 0.23:
        s.add_word(d.one(INTERJECTIONS) if d.chance(0.5) else d.one(lexicon().other), ",")
    return tense if tense == "future" else "any"


def described(d: Draw, s: Sentence) -> None:
    """Add a description of someone or something."""
    clauses.copular(d, s)
    ended(d, s)


def passive(d: Draw, s: Sentence) -> None:
    """Add a passive clause."""
    clauses.passive_voice(d, s, opened(d, s))
    ended(d, s)


def interrogative(d: Draw, s: Sentence) -> None:
    """Add a question."""
    clauses.question(d, s)
    ended(d, s, "?")


def ordered(d: Draw, s: Sentence) -> None:
    """Add an order or a request."""
    clauses.order(d, s)
    ended(d, s)


def existential(d: Draw, s: Sentence) -> None:
    """Add "there is something somewhere"."""
    clauses.there_is(d, s)
    ended(d, s)


def reported(d: Draw, s: Sentence) -> None:
    """Add "someone says or thinks something"."""
    clauses.saying(d, s)
    ended(d, s)


JOINTS = words_of("joints")


def joined(d: Draw, s: Sentence) -> None:
    """Add two clauses; the second is about someone or something in the first."""
    front = d.chance(0.2)
    if front:
        s.add_word(d.one(["when", "if", "because", "although", "before", "after", "while", "since"]))
    agents = clauses.simple(d, s)
    if not front and d.chance(0.12):
        clauses.and_does(d, s, agents[0])
    else:
        _next_clause(d, s, agents, front)
    ended(d, s)


def _next_clause(d: Draw, s: Sentence, agents: Sequence[Agent], front: bool) -> None:
    """Add a clause after another one that was about `agents`; `front`: the first clause began with its conjunction."""
    s.add_word(*([","] if front else [","] * d.chance(0.3) + [d.one(JOINTS)]))
    candidates = [
        agent for agent in agents if agent.word not in ANYONE and agent.person == 3 and agent.word != agent.pronoun(0)
    ]
    kind = d.random()
    if candidates and kind < 0.65:
        who = d.one(candidates)
        alone = all(agent.pronoun(0) != who.pronoun(0) for agent in candidates if agent is not who)
        meant = alone and len(candidates) > 1
        if kind < 0.42:
            clauses.simple(d, s, said_again(s, who, meant=meant))
        else:
            _done_to(d, s, who, meant=meant)
    else:
        clauses.simple(d, s)


REASONS = words_of("reasons")


def two_people(d: Draw, s: Sentence) -> None:
    """Add "Mary thanked Tom because he likes tea": one person of each gender, so that the pronoun is clear."""
    opened(d, s)
    sex = d.one("mf")

    def person(gender: str) -> Agent:
        lex = lexicon()
        if d.chance(0.75):
            head = given_name(d, gender)
            return Agent(s.add_word(head), head, "person", gender, habit=number_of(head, "habit", HABITS))
        nouns = [noun for noun in lex.nouns["person"] if noun.gender == gender]
        return noun_phrase(
            d, s, d.one(nouns), plural=False, determiner=d.one(["the", "the", "my", "a"]), adjectives=0.1
        )

    front = d.chance(0.12)
    if front:
        s.add_word(d.one(["when", "after", "before", "because"]))
    first = person(sex)
    verb = verb_for(d, first, "p")
    index = verb_group(d, s, verb, first) if d.chance(0.4) else finite(d, s, verb, first)
    second = person("f" if sex == "m" else "m")
    s.link(OBJECT_VERB, second.head, index)
    s.facts.append((first.word, verb.forms[0], second.word))
    s.add_word("," if front else d.one(REASONS))
    who = first if d.chance(0.5) else second
    if d.chance(0.85):
        clauses.simple(d, s, said_again(s, who, meant=True))
    else:
        _done_to(d, s, who, meant=True)
    ended(d, s)


def _done_to(d: Draw, s: Sentence, who: Agent, *, meant: bool) -> None:
    """Add an action of someone else: … saw her, … looked for it."""
    named = d.chance(0.5)
    doer = name(d, s) if named else noun_phrase(d, s, d.early(lexicon().nouns["animal"]), determiner="the")
    with_preposition = d.chance(0.3)
    verb = verb_for(d, doer, "i" if with_preposition else "t")
    index = verb_group(d, s, verb, doer) if d.chance(0.5) else finite(d, s, verb, doer)
    before = s.add_word(d.one(classes.prepositions_of(verb.forms[0]))) if with_preposition else None
    alone = doer.pronoun(0) != who.pronoun(0)
    pronoun = said_again(s, who, 1, meant=meant and alone)
    if before is None:
        s.link(OBJECT_VERB, pronoun.head, index)
    else:
        s.link(PREPOSITION, before, index)
        s.link(WITHIN, pronoun.head, before)


def meant(d: Draw, s: Sentence) -> None:
    """Add a sentence in which only the meaning shows what "it" is."""
    by_meaning(d, s)
    ended(d, s)


def listed(d: Draw, s: Sentence) -> None:
    """Add a sentence with a list: Alice, Bob and Tom …; the cat and the dog …; bread, milk and eggs."""
    lex = lexicon()
    if d.chance(0.6):
        places = _several(d, s)
        first, last = places[0], places[-1]
        agent = Agent(last, s.words[last], "person", "x", plural=True, habit=number_of(s.words[last], "habit", HABITS))
        clauses.simple(d, s, agent)
        # the verb belongs to the first of several, as in Universal Dependencies
        verbs = [link.query for link in s.links if link.key == last]
        s.links = [link if link.key != last else Link(INFINITIVE, link.query, first) for link in s.links]
        s.links += [Link(SUBJECT_VERB, place, verb) for verb in verbs[:1] for place in places]
    else:
        agents = clauses.transitive(d, s, after=False)
        group = agents[-1].group if agents[-1].group in lex.nouns else "thing"
        verbs = [link.key for link in s.links if link.relation == OBJECT_VERB]
        for sign in [","] * d.one([0, 1, 1, 2]) + ["and"]:
            s.add_word(sign)
            noun = noun_phrase(d, s, d.early(lex.nouns[group]))
            s.link(SUBJECT_VERB, noun.head, verbs[-1] if verbs else noun.head)
    ended(d, s)


def _several(d: Draw, s: Sentence) -> list[int]:
    """Add two or three agents that do something together. Return their places."""
    lex, places = lexicon(), []
    group = d.one(["person", "animal"]) if d.chance(0.5) else None
    for sign in ["", *[","] * d.one([0, 0, 0, 1]), "and"]:
        s.add_word(sign) if sign else None
        if group is None:
            places.append(s.add_word(given_name(d, d.one("fm"))))
        else:
            places.append(noun_phrase(d, s, d.early(lex.nouns[group]), adjectives=0.1).head)
        s.loose.add(places[-1])
    return places


Kinds = tuple[tuple[Callable[[Draw, Sentence], None], float], ...]
KINDS: Kinds = (
    (plain, 0.12), (joined, 0.1), (two_people, 0.1), (meant, 0.12), (passive, 0.04), (interrogative, 0.04),
    (ordered, 0.02), (existential, 0.02), (reported, 0.04), (listed, 0.02), (bracketed, 0.14), (quoted, 0.03),
    (repeated, 0.21),
)  # fmt: skip
# a model that reads from left to right cannot know what "it" is before it reads so, but can continue what it has read
KINDS_CAUSAL: Kinds = (
    (plain, 0.16), (described, 0.08), (joined, 0.12), (two_people, 0.11), (meant, 0.03), (passive, 0.04),
    (interrogative, 0.05), (ordered, 0.03), (existential, 0.02), (reported, 0.05), (listed, 0.02), (bracketed, 0.08),
    (quoted, 0.03), (repeated, 0.18),
)  # fmt: skip
