"""Add the parts of a sentence around its verbs: noun phrases, prepositional phrases, pronouns, relative clauses.

Each part is appended to a Sentence, which records its words and their links.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from attnctl.text.english import (
    ADJECTIVE,
    DETERMINER,
    MODIFIER,
    OBJECT_VERB,
    PREPOSITION,
    PRONOUN,
    REFERENCE,
    WITHIN,
)
from samples.english import lexicon as classes
from samples.english.draft import Agent, Draw, Sentence
from samples.english.lexicon import HABITS, Noun, lexicon, number_of, pairs_of, words_of
from samples.english.verbs import finite, verb_for, verb_group

# --- nouns -------------------------------------------------------------------------------------------------------

SINGULAR = words_of("singular")
PLURAL = words_of("plural")
MASS = words_of("mass")
DETERMINERS = frozenset(words_of("determiners"))
DEGREES = words_of("degrees")
_VOWELS = {word: int(x) for word, x in pairs_of("vowels").items()}


def article(before: str) -> str:
    """Return `a` or `an`, for the following word."""
    return "an" if _VOWELS.get(before, int(before[0].lower() in "aeiou")) else "a"


def noun_phrase(d: Draw, s: Sentence, noun: Noun, *, plural: bool | None = None,
                determiner: str | Agent | None = None, adjectives: float = 0.22) -> Agent:  # fmt: skip
    """Add a noun with its determiner and adjectives. If the determiner is an Agent, add a possessive of it."""
    many = noun.plural is not None and (d.chance(0.28) if plural is None else plural)
    many = many or noun.plural == noun.singular and noun.singular.endswith("s")  # trousers
    word = noun.plural if many and noun.plural else noun.singular
    described: list[str] = []
    compound = -1  # which of these is a noun
    if d.chance(adjectives):
        described = [d.one(classes.qualities(noun.group)) for _ in range(2 if d.chance(0.2) else 1)]
    if d.chance(0.04):
        described.insert(0, d.one(DEGREES[:2] + DEGREES[3:4])) if described else None
    elif d.chance(0.04):  # a burning house, a stolen car
        described.append(d.early(lexicon().verbs).forms[d.one((3, 4))])
    elif d.chance(0.04):  # a kitchen table
        described.append(d.early(lexicon().nouns[d.one(sorted(lexicon().nouns))]).singular)
        compound = len(described) - 1
    first = described[0] if described else word
    det: int | None = None
    possessive: list[int] = []
    if isinstance(determiner, Agent):
        possessive = [s.add_word(determiner.pronoun(2))]  # his, their, …
        if determiner.person == 3 and determiner.gender != "x":
            s.link(REFERENCE, possessive[0], determiner.head if determiner.origin is None else determiner.origin)
    elif determiner is None and d.chance(0.06):  # Tom's dog
        index = s.add_word(given_name(d, d.one("fm")), "'s")
        possessive = [index - 1, index]
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
    for index in possessive:
        s.link(MODIFIER, index, head)
    for number, index in enumerate(places):
        if number == compound:
            s.link(MODIFIER, index, head)
        else:
            s.link(*((MODIFIER, index, index + 1) if s.words[index] in DEGREES else (ADJECTIVE, index, head)))
    gender = noun.gender if noun.gender != "n" or noun.group != "person" else "x"
    return Agent(head, word, noun.group, gender, many, habit=noun.habit)


def given_name(d: Draw, sex: str) -> str:
    """Return a given name: one of the most common, or any."""
    names = lexicon().names[sex]
    return d.early(names, 3.5) if d.chance(0.4) else d.one(names)


def name(d: Draw, s: Sentence) -> Agent:
    """Add a person's name, sometimes with a title or a family name."""
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
    sex = "x" if d.chance(0.06) else sex
    word = given_name(d, sex)
    head = s.add_word(word)
    if kind > 0.95:
        s.add_loose(d.one(lex.surnames))
    return Agent(head, word, "person", sex, habit=number_of(word, "habit", HABITS))


ANYONE = words_of("anyone")
THINGS = words_of("things")


SPEAKERS = ("I", "I", "you", "we", "they", "he", "she", "it", "someone")


def speaker(d: Draw, s: Sentence, words: Sequence[str] = SPEAKERS) -> Agent:
    """Add I, you, we, they, he, she or it without an antecedent; or someone, everyone."""
    word = d.one(words)
    if word == "someone":
        word = d.one(ANYONE)
    index = s.add_word(word)
    plural = word in ("we", "they")
    person = {"I": 1, "we": 1, "you": 2}.get(word, 3)
    gender = {"he": "m", "she": "f", "it": "n"}.get(word, "x")
    return Agent(index, word, "anyone", gender, plural, person)


def bare_subject(d: Draw, s: Sentence, *, things: float = 0.2) -> Agent:
    """Add a subject without clauses of its own."""
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


# --- around the verb ---------------------------------------------------------------------------------------------

PLACE_GROUPS = pairs_of("place groups")


def place_phrase(d: Draw, s: Sentence, preposition: str, belongs: int, plural: bool | None = None) -> Agent:
    """Add a preposition and its noun, linked to the word at `belongs`."""
    index = s.add_word(preposition)
    s.link(PREPOSITION, index, belongs)
    lex = lexicon()
    if preposition in ("with", "for", "to", "from", "of", "about", "by", "near") and d.chance(0.25):
        word = (
            given_name(d, d.one("fm")) if preposition in ("with", "for", "by") or d.chance(0.5) else d.one(lex.places)
        )
        return within(s, index, Agent(s.add_word(word), word, "place"))
    groups = PLACE_GROUPS.get(preposition, "building place land furniture water road plant").split()
    where = within(s, index, noun_phrase(d, s, d.early(lex.nouns[d.one(groups)]), adjectives=0.12, plural=plural))
    if d.chance(0.08):  # in a hospital near the river
        place_phrase(d, s, d.one(classes.noun_prepositions(where.word)), where.head)
    return where


def within(s: Sentence, preposition: int, agent: Agent) -> Agent:
    """Record that this noun belongs to the preposition before it. Return the noun."""
    s.link(WITHIN, agent.head, preposition)
    return agent


def said_again(s: Sentence, agent: Agent, case: int = 0, *, meant: bool = False) -> Agent:
    """Add a pronoun for an earlier agent; `meant`: another agent would fit the pronoun too."""
    index = s.add_word(agent.pronoun(case))
    if agent.person == 3:
        s.link(PRONOUN if meant else REFERENCE, index, agent.head if agent.origin is None else agent.origin)
    return replace(agent, head=index, far=False, origin=agent.head if agent.origin is None else agent.origin)


def relative(d: Draw, agent: Agent) -> str:
    """Return the pronoun that begins a relative clause."""
    return d.one(["who", "who", "that"] if agent.group == "person" else ["that", "that", "which"])


def with_clause(d: Draw, s: Sentence, agent: Agent) -> Agent:
    """Add a relative clause or a prepositional phrase to the agent. Return the agent with the nouns after it."""
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
        possession = noun_phrase(d, s, noun, determiner="", plural=many, adjectives=0.1)
        finite(d, s, verb_for(d, possession, "i"), possession)
    elif kind < 0.54:
        s.link(REFERENCE, s.add_word(relative(d, agent)), agent.head)
        verb = verb_for(d, agent, "i")
        index = verb_group(d, s, verb, agent) if d.chance(0.4) else finite(d, s, verb, agent)
        if d.chance(0.75):
            place_phrase(d, s, d.one(classes.prepositions_of(verb.forms[0])), index, plural=many)
    elif kind < 0.8:
        s.link(REFERENCE, s.add_word(relative(d, agent)), agent.head)
        verb = verb_for(d, agent, "t")
        index = verb_group(d, s, verb, agent) if d.chance(0.3) else finite(d, s, verb, agent)
        companion = (
            name(d, s)
            if d.chance(0.2)
            else noun_phrase(
                d, s, d.early(classes.objects_of(verb)) if d.chance(0.7) else noun, adjectives=0.1, plural=many
            )
        )
        s.link(OBJECT_VERB, companion.head, index)
        s.facts.append((agent.word, verb.forms[0], companion.word))
    else:
        if d.chance(0.7):
            s.link(REFERENCE, s.add_word(relative(d, agent)), agent.head)
        companion = (
            name(d, s)
            if d.chance(0.25)
            else speaker(d, s, SPEAKERS[1:4])
            if d.chance(0.3)
            else noun_phrase(d, s, d.early(lex.nouns[d.one(["person", "animal"])]), adjectives=0.1, plural=many)
        )
        verb = verb_for(d, companion, "t")
        verb_group(d, s, verb, companion) if d.chance(0.2) else finite(d, s, verb, companion)
        s.facts.append((companion.word, verb.forms[0], agent.word))
    return replace(agent, far=True)


def subject(d: Draw, s: Sentence, *, clauses: float = 0.5, things: float = 0.2) -> Agent:
    """Add a subject, sometimes with a clause or a phrase after it."""
    agent = bare_subject(d, s, things=things)
    if agent.word != agent.pronoun(0) and agent.word not in ANYONE and d.chance(clauses):
        apart = d.chance(0.1)  # between commas
        s.add_word(*[","] * apart)
        agent = with_clause(d, s, agent)
        s.add_word(*[","] * apart)
    return agent
