"""Write sentences in which only the meaning shows what "it" is: the cat sat on the mat because it is warm, or hungry."""

from __future__ import annotations

from attnctl.text.english import (
    ADJECTIVE,
    MEANING,
    MODIFIER,
    OBJECT_VERB,
    PREPOSITION,
    VERB_SUBJECT,
    WITHIN,
)
from samples.english import lexicon as classes
from samples.english.draft import Agent, Draw, Sentence
from samples.english.lexicon import Noun, lexicon, words_of
from samples.english.phrases import noun_phrase
from samples.english.verbs import be, finite, helped, verb_group

# who does what where: the subject's class, verbs, prepositions ("" for an object), the other's class
SCENES = [
    ("animal", "sit lie sleep rest stand stay wait jump play", "on", "surface furniture"),
    ("animal", "hide sleep wait stay lie", "in under behind", "container furniture room plant vehicle"),
    ("animal", "stand stay wait drink play walk", "near at by", "water plant building vehicle land"),
    ("animal", "drink swim jump", "from in into", "water"),
    ("animal", "eat steal find smell want drop", "", "food"),
    ("animal", "cross climb enter leave reach", "", "road water plant land building"),
    ("animal", "bite break damage destroy carry chew hit", "", "clothes text toy tool thing furniture"),
    ("animal", "chase follow watch avoid hear", "", "vehicle toy device"),
    ("animal", "run walk jump fly", "into to across over through", "building road water land room"),
    ("vehicle", "stop wait stand arrive park stay", "at near in", "building water land road"),
    ("vehicle", "cross leave reach enter", "", "road building place"),
    ("food", "stay lie stand remain", "in on", "container furniture"),
    ("drink", "stay stand remain", "in", "container"),
    ("thing", "stand lie fall stay", "on near in", "furniture surface container"),
    ("device", "stand lie stay", "on in near", "furniture room surface"),
    ("text", "lie stay remain", "in on under", "container furniture"),
    ("clothes", "lie hang stay", "in on", "container furniture"),
    ("tool", "lie stay hang", "in on", "container furniture room"),
    ("plant", "grow stand", "near in", "water building land"),
    ("animal", "look bark shout", "at", "vehicle device toy"),
    ("device", "hit damage break", "", "clothes furniture"),
]  # fmt: skip

HOLDS = words_of("holds")
HELD = words_of("held")
LINKS = words_of("links")


def by_meaning(d: Draw, s: Sentence) -> None:
    """Add one such sentence."""
    kind = d.random()
    if kind < 0.62:
        _scene(d, s)
    elif kind < 0.86:
        _fits(d, s)
    else:
        _breaks(d, s)


def of_group(d: Draw, group: str) -> Noun:
    """Return a noun of this class, more often a common one."""
    return d.early(lexicon().nouns[group])


def _scene(d: Draw, s: Sentence) -> None:
    group, verbs, prepositions, groups = d.one(SCENES)
    other_group = d.one(groups.split())
    first, second = of_group(d, group), of_group(d, other_group)
    a = noun_phrase(d, s, first, plural=d.chance(0.18), determiner=_the(d), adjectives=0.06)
    by = lexicon().by_verb
    verb = by[d.one([v for v in verbs.split() if v in by])]
    index = finite(d, s, verb, a) if d.chance(0.75) else verb_group(d, s, verb, a)
    preposition = d.one(prepositions.split() or [""])
    before = s.add_word(preposition) if preposition else None
    b = noun_phrase(d, s, second, plural=d.chance(0.18), determiner=_the(d), adjectives=0.06)
    if before is None:
        s.link(OBJECT_VERB, b.head, index)
    else:
        s.link(PREPOSITION, before, index)
        s.link(WITHIN, b.head, before)
    s.facts.append((a.word, verb.forms[0], b.word))
    of_first = d.chance(0.5)
    meant, second_noun = (first, second) if of_first else (second, first)
    only = [quality for quality in qualities_of(meant) if quality not in qualities_of(second_noun)]
    if only:
        _because(d, s, a if of_first else b, d.one(only), "")


def qualities_of(noun: Noun) -> list[str]:
    """Return the qualities of a noun: those of its class, and those of fragile things."""
    return classes.QUALITIES.get(noun.group, "").split() + (
        classes.QUALITIES["fragile"].split() * 2 if noun.singular in classes.FRAGILE else []
    )


def _the(d: Draw) -> str | None:
    return "the" if d.chance(0.8) else None


def _fits(d: Draw, s: Sentence) -> None:
    """Add "the trophy does not fit in the suitcase because it is too big", or "the suitcase does not hold the trophy"."""
    thing, two = of_group(d, d.one(HELD)), of_group(d, d.one(HOLDS))
    fit = d.chance(0.68)
    a = noun_phrase(d, s, thing if fit else two, plural=d.chance(0.1), determiner=_the(d), adjectives=0.04)
    does = d.one(
        ["does not", "did not", "doesn't", "didn't", "will not", "won't", "would not", "could not", "cannot", "can't"]
    )
    if a.plural:
        does = does.replace("doesn't", "don't").replace("does", "do")
    verb = d.one(["fit", "fit", "fit", "go"]) if fit else d.one(["hold", "contain", "carry", "take"])
    index = helped(s, does.split(), verb)
    s.link(VERB_SUBJECT, index, a.head)
    before = s.add_word(d.one(["in", "in", "into", "inside", "through"])) if fit else None
    b = noun_phrase(d, s, two if fit else thing, plural=d.chance(0.1), determiner=_the(d), adjectives=0.04)
    if before is None:
        s.link(OBJECT_VERB, b.head, index)
    else:
        s.link(PREPOSITION, before, index)
        s.link(WITHIN, b.head, before)
    s.facts.append((a.word, verb, b.word))
    content, holder = (a, b) if fit else (b, a)
    big = d.chance(0.5)
    word = d.one(classes.BIG if big else classes.SMALL)
    _because(d, s, content if big else holder, word, "too" if d.chance(0.85) else "so")


def _breaks(d: Draw, s: Sentence) -> None:
    """Add "the ball broke the window because it was fragile", or "hard"."""
    lex = lexicon()
    breaker = d.one([of_group(d, "toy"), of_group(d, "tool"), of_group(d, "vehicle"), of_group(d, "animal")])
    fragile = [n for group in ("container", "thing", "food") for n in lex.nouns[group] if n.singular in classes.FRAGILE]
    two = d.one(fragile)
    a = noun_phrase(d, s, breaker, plural=False, determiner=_the(d), adjectives=0.05)
    verb = lex.by_verb[d.one(["break", "crack", "damage", "destroy", "hit"])]
    index = finite(d, s, verb, a)
    b = noun_phrase(d, s, two, plural=d.chance(0.2), determiner=_the(d), adjectives=0.05)
    s.link(OBJECT_VERB, b.head, index)
    s.facts.append((a.word, verb.forms[0], b.word))
    of_first = d.chance(0.5)
    words = (
        "hard heavy fast strong"
        if of_first and breaker.group != "animal"
        else classes.QUALITIES["animal"]
        if of_first
        else classes.QUALITIES["fragile"]
    )
    _because(d, s, a if of_first else b, d.one(words.split()), "")


def _because(d: Draw, s: Sentence, meant: Agent, quality: str, degree: str) -> None:
    """Add "because it is warm": the quality shows which of the two is meant."""
    if d.chance(0.1):
        s.add_word(",")
    s.add_word(d.one(LINKS))
    pronoun = s.add_word(meant.pronoun(0))
    s.link(MEANING, pronoun, meant.head)
    kind = d.random()
    if kind < 0.8:
        verb = be(meant, d.chance(0.55))
    elif kind < 0.92:
        verb = d.one(["looked", "seemed", "felt", "became", "got"])
    else:
        verb = "look" if meant.plural else "looks"
    s.link(VERB_SUBJECT, s.add_word(verb), pronoun)
    if degree or d.chance(0.3):
        index = s.add_word(degree or d.one(["very", "so", "too", "really", "not", "quite"]))
        s.link(MODIFIER, index, index + 1)
    s.link(ADJECTIVE, s.add_word(quality), pronoun)
