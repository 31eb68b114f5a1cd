"""Add verbs with their auxiliaries, agreeing with their subject, and choose verbs for each kind of agent."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from attnctl.text.english import HELPER, PAST_OTHERS, VERB_SUBJECT
from samples.english import lexicon as classes
from samples.english.draft import Agent, Draw, Sentence
from samples.english.lexicon import Verb, lexicon, number_of, words_of

ADVERBS = words_of("adverbs")
MODALS = words_of("modals")
NOT_MODALS = words_of("not modals")


def be(agent: Agent, past: bool) -> str:
    """Return the form of `be` for this subject."""
    if agent.person == 1 and not agent.plural:
        return "was" if past else "am"
    many = agent.plural or agent.person == 2
    return ("were" if many else "was") if past else ("are" if many else "is")


_WITH = {"has": "'s", "have": "'ve", "had": "'d", "will": "'ll", "would": "'d", "is": "'s", "are": "'re", "am": "'m"}
CLITIC_OF = dict.fromkeys(["I", "you", "he", "she", "it", "we", "they", "who"], _WITH)
CLITICS_OF_BE = {form: _WITH[form] for form in ("is", "are", "am")}


def third(agent: Agent) -> bool:
    """Return whether the verb of this subject takes an -s."""
    return agent.person == 3 and not agent.plural


def verb_group(d: Draw, s: Sentence, verb: Verb, agent: Agent, tense: str = "any") -> int:
    """Add a verb with its auxiliaries, and sometimes an adverb, agreeing with its subject. Return its index, linked."""
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
    index = helped(s, before, word)
    s.link(PAST_OTHERS if agent.far else VERB_SUBJECT, index, agent.head)
    return index


def helped(s: Sentence, helpers: Sequence[str], verb: str) -> int:
    """Append auxiliaries and adverbs, and their verb. Return its index."""
    index = s.add_word(*helpers, verb)
    for helper in range(index - len(helpers), index):
        s.link(HELPER, helper, index)
    return index


def finite(d: Draw, s: Sentence, verb: Verb, agent: Agent) -> int:
    """Add a verb in the past or the present. Return its index, linked."""
    before = [d.one(ADVERBS)] if d.chance(0.2) else []
    index = helped(s, before, verb.forms[2] if d.chance(0.3) else verb.forms[1] if third(agent) else verb.forms[0])
    s.link(PAST_OTHERS if agent.far else VERB_SUBJECT, index, agent.head)
    return index


OWN_VERB = 0.3  # how often someone does what is their own


ANIMAL_VERBS = words_of("animal verbs")
THING_VERBS = words_of("thing verbs")


def verb_for(d: Draw, agent: Agent, frame: str) -> Verb:
    """Return a verb that this subject does, more often one of its own."""
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
    of_habit = [w for w in usual if number_of(w, "own", 4) == agent.habit % 4]
    return (
        by[d.one(of_habit if of_habit and d.chance(0.75) else usual)] if usual else d.one(classes.verbs_by(frame, None))
    )


@cache
def _common_alone() -> tuple[Verb, ...]:
    """Return the common verbs without an object whose prepositions are listed by hand."""
    return tuple(v for v in lexicon().verbs if v.forms[0] in classes.OWN_PREPOSITIONS and "i" in v.frames)


@cache
def _common(habit: int | None) -> tuple[Verb, ...]:
    """Return the common verbs whose objects are listed by hand, of one habit or of any."""
    common = tuple(v for v in lexicon().verbs if v.forms[0] in classes.OWN_OBJECTS and "t" in v.frames)
    return tuple(v for v in common if habit in (None, v.habit)) or common
