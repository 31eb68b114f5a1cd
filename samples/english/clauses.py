"""Add whole clauses: actions, descriptions, questions, passives, orders, reported speech and wishes."""

from __future__ import annotations

from collections.abc import Callable

from attnctl.text.english import (
    ADJECTIVE,
    DETERMINER,
    HELPER,
    INFINITIVE,
    MODIFIER,
    OBJECT_VERB,
    PAST_OTHERS,
    PREPOSITION,
    SUBJECT_VERB,
    VERB_SUBJECT,
    WITHIN,
    Link,
)
from samples.english import lexicon as classes
from samples.english import phrases, verbs
from samples.english.draft import Agent, Draw, Sentence
from samples.english.lexicon import HABITS, Verb, lexicon, lines_of, words_of
from samples.english.phrases import (
    ANYONE,
    DEGREES,
    name,
    noun_phrase,
    place_phrase,
    said_again,
    subject,
    with_clause,
)
from samples.english.verbs import be, finite, helped, third, verb_for, verb_group


def transitive(
    d: Draw, s: Sentence, agent: Agent | None = None, tense: str = "any", *, after: bool = True
) -> list[Agent]:
    """Add "someone does something to something". Return the agents in it."""
    who = subject(d, s, things=0.06) if agent is None else agent
    verb = verb_for(d, who, "t")
    index = verb_group(d, s, verb, who, tense)
    thing = thing_done_to(d, s, verb, who, index)
    if after and d.chance(0.3):
        place_phrase(d, s, d.one(classes.prepositions_of(verb.forms[0])), index)
    elif after and d.chance(0.12):
        with_clause(d, s, thing)
    elif after and d.chance(0.2):
        time_phrase(d, s, index)
    return [who, thing]


def thing_done_to(d: Draw, s: Sentence, verb: Verb, who: Agent, index: int) -> Agent:
    """Add the object of the verb at `index`: a thing that goes with it, someone, or the subject itself."""
    person = "p" in verb.frames
    kind = d.random()
    if who.word not in ANYONE and who.gender != "x" and kind < 0.05 and person:
        s.link(OBJECT_VERB, said_again(s, who, 3).head, index)
        return who
    if person and kind < 0.3:
        thing = name(d, s) if d.chance(0.6) else noun_phrase(d, s, d.early(lexicon().nouns["person"]))
    else:
        owner = who if d.chance(0.22) and who.word not in ANYONE and who.gender != "x" else None
        thing = noun_phrase(d, s, d.early(classes.objects_of(verb)), determiner=owner)
    s.link(OBJECT_VERB, thing.head, index)
    s.facts.append((who.word, verb.forms[0], thing.word))
    return thing


def intransitive(d: Draw, s: Sentence, agent: Agent | None = None, tense: str = "any") -> list[Agent]:
    """Add "someone or something does something", often with a place."""
    who = subject(d, s) if agent is None else agent
    verb = verb_for(d, who, "i")
    index = verb_group(d, s, verb, who, tense)
    if d.chance(0.6):
        where = place_phrase(d, s, d.one(classes.prepositions_of(verb.forms[0])), index)
        return [who, where] if where.group != "place" else [who]
    if d.chance(0.4):
        s.link(HELPER, s.add_word(d.early(lexicon().adverbs)), index)
    elif d.chance(0.4):
        time_phrase(d, s, index)
    return [who]


TIMES = lines_of("times")


def time_phrase(d: Draw, s: Sentence, verb: int) -> None:
    """Add the time of the verb at `verb`: on mondays, before the storm, every day."""
    preposition, *words = d.one(TIMES).split()
    if preposition == "-":
        s.add_loose(*words)
        return
    index = s.add_word(preposition)
    s.link(PREPOSITION, index, verb)
    if words == ["-"]:
        phrases.within(s, index, noun_phrase(d, s, d.early(lexicon().nouns[d.one(["event", "meal", "time"])])))
        return
    head = s.add_word(*words)
    s.link(WITHIN, head, index)
    if words[0] in phrases.DETERMINERS:
        s.link(DETERMINER, head - 1, head)


COPULAS = lines_of("copulas")


def copular(d: Draw, s: Sentence, agent: Agent | None = None, tense: str = "any") -> list[Agent]:
    """Add "something is hot", "is a thing" or "is somewhere"."""
    who = subject(d, s, things=0.4, clauses=0.5) if agent is None else agent
    if d.chance(0.12) or tense == "future":
        modals = ["will", "can", "must", "may", "might", "should"] if tense != "future" else ["will"]
        index = helped(s, [d.one(modals)], "be")
    elif d.chance(0.08):
        index = helped(s, ["had" if d.chance(0.3) else "has" if third(who) else "have"], "been")
    elif d.chance(0.15):
        base, third_form, past = d.one(COPULAS).split()
        index = s.add_word(past if d.chance(0.5) else third_form if third(who) else base)
    else:
        form = be(who, d.chance(0.45))
        short = s.words[-1] in verbs.CLITIC_OF and form in verbs.CLITICS_OF_BE and d.chance(0.3)
        index = s.add_word(verbs.CLITICS_OF_BE[form] if short else form)
        if d.chance(0.1):
            s.link(HELPER, s.add_word("not"), index)
    s.link(PAST_OTHERS if who.far else VERB_SUBJECT, index, who.head)
    kind = d.random()
    if kind < 0.72:
        if d.chance(0.2):
            degree = s.add_word(d.one(DEGREES))
            s.link(MODIFIER, degree, degree + 1)
        s.link(
            ADJECTIVE, s.add_word(d.one(classes.qualities("person" if who.group == "anyone" else who.group))), who.head
        )
        if d.chance(0.12):
            s.add_word("and")
            s.link(
                ADJECTIVE,
                s.add_word(d.one(classes.qualities("person" if who.group == "anyone" else who.group))),
                who.head,
            )
        elif d.chance(0.1):
            compared(d, s)
    elif kind < 0.86:
        group = who.group if who.group in lexicon().nouns else "person"
        thing = noun_phrase(
            d,
            s,
            d.early(lexicon().nouns[group]),
            plural=who.plural,
            determiner="the" if who.plural else "a",
            adjectives=0.5,
        )
        s.link(SUBJECT_VERB, thing.head, index)
        if d.chance(0.2):
            with_clause(d, s, thing)
    else:
        place_phrase(d, s, d.one(["in", "on", "at", "near", "behind", "under", "from", "with"]), index)
    return [who]


def compared(d: Draw, s: Sentence) -> None:
    """Add "than …"."""
    degrees = [row for row in lexicon().adjectives if len(row) == 3]
    s.words[-1] = d.one(degrees)[1]
    than = s.add_word("than")
    s.link(WITHIN, than, than - 1)
    phrases.within(s, than, noun_phrase(d, s, d.early(lexicon().nouns[d.one(sorted(lexicon().nouns))]), adjectives=0.1))


def passive_voice(d: Draw, s: Sentence, tense: str = "any") -> list[Agent]:
    """Add "something is done", often "by someone"."""
    verb = (
        d.one(classes.verbs_by("t", None))
        if d.chance(0.5)
        else verb_for(d, Agent(0, "", "person", habit=int(d.random() * HABITS)), "t")
    )
    thing = noun_phrase(d, s, d.early(classes.objects_of(verb)))
    if d.chance(0.2):
        thing = with_clause(d, s, thing)
    helpers = ["will", "be"] if tense == "future" or d.chance(0.15) else [be(thing, d.chance(0.6))]
    if tense != "future" and d.chance(0.15):
        helpers = ["has" if third(thing) else "have", "been"] if d.chance(0.7) else ["had", "been"]
    index = helped(s, helpers, verb.forms[4])
    s.link(PAST_OTHERS if thing.far else VERB_SUBJECT, index, thing.head)
    if d.chance(0.6):
        by = s.add_word("by")
        s.link(PREPOSITION, by, index)
        doer = name(d, s) if d.chance(0.4) else noun_phrase(d, s, d.early(lexicon().nouns["person"]))
        return [thing, phrases.within(s, by, doer)]
    if d.chance(0.5):
        place_phrase(d, s, d.one(classes.prepositions_of(verb.forms[0])), index)
    return [thing]


def giving(d: Draw, s: Sentence, agent: Agent | None = None, tense: str = "any") -> list[Agent]:
    """Add "someone gives someone something" or "puts something somewhere"."""
    who = subject(d, s, things=0.02) if agent is None else agent
    by = lexicon().by_verb
    if d.chance(0.45):
        verb = by[d.one([v for v in ("put", "place", "leave", "hang", "throw", "push", "hide", "keep") if v in by])]
        index = verb_group(d, s, verb, who, tense)
        group = d.one(["text", "tool", "clothes", "toy", "food", "container"])
        thing = noun_phrase(d, s, d.early(lexicon().nouns[group]))
        s.link(OBJECT_VERB, thing.head, index)
        place_phrase(d, s, d.one(["on", "on", "in", "into", "under", "behind", "above", "beside"]), index)
        return [who, thing]
    verb = by[
        d.one(
            [v for v in ("give", "show", "send", "tell", "offer", "bring", "sell", "lend", "hand", "teach") if v in by]
        )
    ]
    index = verb_group(d, s, verb, who, tense)
    objects = classes.objects_of(verb)
    if d.chance(0.5):
        kind = d.random()
        if kind < 0.35:
            whom = phrases.speaker(d, s, LET)
        else:
            whom = name(d, s) if kind < 0.65 else noun_phrase(d, s, d.early(lexicon().nouns["person"]))
        s.link(OBJECT_VERB, whom.head, index)
        whom = with_clause(d, s, whom) if kind > 0.8 else whom
        thing = noun_phrase(d, s, d.early(objects))
    else:
        thing = noun_phrase(d, s, d.early(objects))
        to = s.add_word("to")
        s.link(PREPOSITION, to, index)
        whom = name(d, s) if d.chance(0.6) else noun_phrase(d, s, d.early(lexicon().nouns["person"]))
        phrases.within(s, to, whom)
    s.link(OBJECT_VERB, thing.head, index)
    s.facts.append((who.word, verb.forms[0], thing.word))
    return [who, whom]


LET = ("me", "him", "her", "them", "us")
SAYING = words_of("saying")


def saying(d: Draw, s: Sentence) -> list[Agent]:
    """Add "someone says (or thinks) that …"."""
    who = subject(d, s, things=0, clauses=0.12)
    by = lexicon().by_verb
    finite(d, s, by[d.one([v for v in SAYING if v in by])], who)
    if d.chance(0.6):
        s.add_loose("that" if d.chance(0.6) else d.one(["whether", "if", "why", "how", "when", "where"]))
    speaker = said_again(s, who) if d.chance(0.3) and who.word not in ANYONE else None
    simple(d, s, speaker)
    return [who]


def wanting(d: Draw, s: Sentence, agent: Agent | None = None, tense: str = "any") -> list[Agent]:
    """Add "someone wants to do something"."""
    who = subject(d, s, things=0) if agent is None else agent
    by = lexicon().by_verb
    verb_group(
        d,
        s,
        by[d.one([v for v in ("want", "try", "like", "need", "hope", "learn", "decide", "love") if v in by])],
        who,
        tense,
    )
    verb = verb_for(d, who, "t" if d.chance(0.7) else "i")
    index = helped(s, ["to"], verb.forms[0])
    s.link(INFINITIVE, index, who.head)
    if "t" in verb.frames:
        thing_done_to(d, s, verb, who, index)
    return [who]


def question(d: Draw, s: Sentence) -> list[Agent]:
    """Add a question: Does Emma like tea? Who ate the cake? Where does Paul live?"""
    kind = d.random()
    lex = lexicon()
    if kind < 0.25:
        word = s.add_word(d.one(["who", "who", "what"]))
        who = Agent(word, "who", "person", "x", habit=int(d.random() * HABITS))
        transitive(d, s, who, after=False)
        return []
    if kind < 0.5:
        s.add_word(d.one(["where", "when", "why", "how", "what"]))
    if d.chance(0.2):
        index = s.add_word(d.one(["is", "was"]))
        who = noun_phrase(d, s, d.early(lex.nouns[d.one(sorted(lex.nouns))]), plural=False)
        s.link(VERB_SUBJECT, index, who.head)
        s.link(
            ADJECTIVE, s.add_word(d.one(classes.qualities("person" if who.group == "anyone" else who.group))), who.head
        )
        return [who]
    helper = s.add_word("does")
    who = subject(d, s, things=0.1, clauses=0.08)
    verb = verb_for(d, who, "t" if kind > 0.5 else "i")
    base = d.one(["do", "did", "will", "can", "should", "would"]) if d.chance(0.6) else "do"
    s.words[helper] = "does" if base == "do" and third(who) else base
    index = s.add_word(verb.forms[0])
    s.link(HELPER, helper, index)
    s.link(PAST_OTHERS if who.far else VERB_SUBJECT, index, who.head)
    if "t" in verb.frames and kind > 0.5:
        thing_done_to(d, s, verb, who, index)
    return [who]


def order(d: Draw, s: Sentence) -> list[Agent]:
    """Add an order: Please close the window. Don't touch it."""
    before = d.one([[], ["please"], ["do", "not"], ["don't"], ["never"], ["let's"], ["let", d.one(LET)]])
    verb = d.one(classes.verbs_by("t", None))
    index = helped(s, before, verb.forms[0])
    thing = noun_phrase(d, s, d.early(classes.objects_of(verb)))
    s.link(OBJECT_VERB, thing.head, index)
    if d.chance(0.3):
        place_phrase(d, s, d.one(classes.prepositions_of(verb.forms[0])), index)
    return []


def there_is(d: Draw, s: Sentence) -> list[Agent]:
    """Add "there are three ducks on the pond"."""
    index = helped(s, ["there"], "is")
    lex = lexicon()
    noun = d.early(
        lex.nouns[d.one(["animal", "person", "plant", "vehicle", "thing", "container", "food", "device", "building"])]
    )
    thing = noun_phrase(d, s, noun, determiner=None)
    s.words[index] = be(thing, d.chance(0.45))
    s.link(VERB_SUBJECT, index, thing.head)
    if d.chance(0.25):  # … waiting for the bus
        verb = verb_for(d, thing, "i")
        index = s.add_word(verb.forms[3])
        s.link(INFINITIVE, index, thing.head)
        place_phrase(d, s, d.one(classes.prepositions_of(verb.forms[0])), index)
        return [thing]
    place_phrase(d, s, d.one(["in", "on", "under", "behind", "near"]), index)
    return [thing]


SIMPLE: tuple[tuple[Callable[..., list[Agent]], float], ...] = (
    (transitive, 0.46), (intransitive, 0.24), (copular, 0.18), (giving, 0.07), (wanting, 0.05),
)  # fmt: skip


def simple(d: Draw, s: Sentence, agent: Agent | None = None, tense: str = "any") -> list[Agent]:
    """Add a main clause."""
    draw = d.random()
    for clause, share in SIMPLE:
        draw -= share
        if draw < 0:
            return clause(d, s, agent, tense)
    return transitive(d, s, agent, tense)


def and_does(d: Draw, s: Sentence, who: Agent) -> None:
    """Add "and" or "but" with a second verb for the same subject."""
    s.add_word(*d.one(["and", "and", "and", "but", "or", "and then", ", then", "and also"]).split())
    verb = verb_for(d, who, "t" if d.chance(0.6) else "i")
    index = finite(d, s, verb, who)
    s.links[-1] = Link(INFINITIVE, index, who.head)  # as of every verb whose subject is another's
    if "t" in verb.frames:
        thing_done_to(d, s, verb, who, index)
    elif d.chance(0.6):
        place_phrase(d, s, d.one(classes.prepositions_of(verb.forms[0])), index)
