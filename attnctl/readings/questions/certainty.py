"""How probable it is that a head's link between two words is right, from a measurement on marked sentences.

A head that was measured to find subjects does not find every subject. The evidence for a link is its weight, its lead over
the second key, words that the model does not know, other words that would fit as well. For each family of relations a
logistic regression on this evidence was fitted on sentences that were marked by hand and not used in training
(`python -m tests.tools.calibration`); certainty.json holds its coefficients.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import NamedTuple

import numpy as np

from attnctl.readings.questions.head_roles import measured_checkpoint
from attnctl.readings.questions.word_classes import (
    ADJECTIVE,
    AUXILIARY,
    DETERMINER,
    NOUN,
    PREPOSITION,
    PRONOUN,
    VERB,
    classes_in_sentence,
    grammatical_number,
    is_name,
    usual_gender,
    word_classes,
    word_set,
)
from attnctl.runtime.arrays import Floats
from attnctl.text.tokens import Token
from attnctl.trace.model_info import ModelInfo

PAST = "past others"  # the end of the name of a relation that passes over other nouns
MOST_ODDS = 7.0  # the largest log odds of a weight: those of 0.999


class Family(NamedTuple):
    """Relations of one kind: how their names begin, which words they join, and on which side of the query the key is."""

    name: str
    starts: tuple[str, ...]
    query: frozenset[str]
    key: frozenset[str]
    sides: tuple[int, ...]


ANTECEDENT = Family("antecedent", ("pronoun →", "it →"), frozenset({PRONOUN}), frozenset({NOUN, PRONOUN}), (-1,))
POSSESSIVE = Family("possessive", ("pronoun →",), frozenset({DETERMINER}), frozenset({NOUN, PRONOUN}), (-1,))
SUBJECT = Family("subject", ("verb → subject",), frozenset({VERB}), frozenset({NOUN, PRONOUN}), (-1,))
OBJECT = Family("object", ("word →", "object →"), frozenset({NOUN, PRONOUN}), frozenset({VERB}), (-1,))
SUBJECT_VERB = Family("verb of subject", ("subject →",), SUBJECT.key, SUBJECT.query, (1,))
VERB_OBJECT = Family("object of verb", ("verb → object",), OBJECT.key, OBJECT.query, (1,))
DESCRIBED = Family("described", ("adjective →",), frozenset({ADJECTIVE}), frozenset({NOUN}), (-1, 1))
DETERMINED = Family("determined", ("determiner →",), frozenset({DETERMINER}), frozenset({NOUN}), (1,))
GOVERNOR = Family("governor", ("preposition →",), frozenset({PREPOSITION}), frozenset({NOUN, VERB}), (-1,))
OPENING = Family("opening mark", ("closing mark →",), frozenset(), frozenset(), (-1,))
REPEATED = Family("repeated", ("induction",), frozenset(), frozenset(), (-1,))
FAMILIES = (
    ANTECEDENT,
    POSSESSIVE,
    SUBJECT,
    SUBJECT_VERB,
    OBJECT,
    VERB_OBJECT,
    DESCRIBED,
    DETERMINED,
    GOVERNOR,
    OPENING,
    REPEATED,
)
_MARKS = dict(zip(')]}”’"', '([{“‘"', strict=True))  # closing mark → opening mark

ASKING_PRONOUNS = word_set("it they he she him her them")
POSSESSIVES = word_set("his her its their")
_GENDERS = {"he": "m", "him": "m", "his": "m", "she": "f", "her": "f"}
_PLURAL = word_set("they them their")
_OBJECTS = word_set("me him her us them")
_SUBJECTS = word_set("i you he she it we they everyone everybody someone somebody nobody everything something nothing")
_ADVERBS = word_set("not never always often also just only already")
_CONJUNCTIONS = word_set(", ; : and or but because if when while as so that who which than though although")
_COPULAS = word_set(
    "is are was were am be been being become becomes became becoming get gets got getting seem seems seemed "
    "stay stays stayed remain remains remained"
)
_HELPERS = word_set("has have had do does did")
_ASKING = word_set("who whom whose what which when where why how")
_OF_OWNER = word_set("' 's ’ ’s")
_COORDINATING = word_set("and or nor")
_ENDS = word_set(". ! ? ; :")
# nouns that often stand beside a verb without being its object: "sings every morning"
_TIMES = word_set("morning mornings evening evenings night nights noon day days week weeks month months year years")


class Sentence:
    """A sentence for the certainty of its links: its words, the classes of each, and whether the model knows it."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self.words = [token.text for token in tokens]
        self.unknown = [token.unknown for token in tokens]
        self.classes = classes_in_sentence(self.words)
        self.small = [word.lower() for word in self.words]

    def family_of(self, role: str, query: int) -> Family | None:
        """Return the family of a link with this role: of a pronoun's, by whether the word at `query` is a possessive."""
        families = [family for family in FAMILIES if role.startswith(family.starts)]
        return next((family for family in families if self.asks(family, query)), None) or next(iter(families), None)

    def fits(self, family: Family, query: int, key: int) -> bool:
        """Return whether a relation of this family can join two words, by their classes and their order."""
        if family.query and not (self.classes[query] & family.query and self.classes[key] & family.key):
            return False
        if query == key or (1 if key > query else -1) not in family.sides:
            return False
        if family is OPENING:
            return _MARKS.get(self.words[query]) == self.words[key]
        if family is REPEATED:  # an induction head looks at what came after the same word before
            return key > 0 and self.words[key - 1].lower() == self.words[query].lower()
        if family in (ANTECEDENT, POSSESSIVE):  # a word that may be a verb is not an antecedent
            return self.asks(family, query) and VERB not in self.classes[key] and self._may_mean(query, key)
        if family in (OBJECT, VERB_OBJECT):
            return self._may_be_object(*((query, key) if family is OBJECT else (key, query)))
        if family in (SUBJECT, SUBJECT_VERB):
            return self._may_have_subject(*((query, key) if family is SUBJECT else (key, query)))
        return True

    def _may_be_object(self, word: int, verb: int) -> bool:
        """Return False for "We met the boys' dog" (boys), "the leaking tap" (leaking), "the dog we met barks" (barks)."""
        if (
            self.is_owner(word)
            or self.asks(POSSESSIVE, word)
            or self.is_participle(verb)
            and self._is_within_phrase(verb)
        ):
            return False
        return not (word == verb + 1 and self.has_bare_relative(verb))

    def _may_have_subject(self, verb: int, key: int) -> bool:
        """Return whether a verb may have the word at `key` as its subject: no other word must be it."""
        if not self.is_subject(key) or self._is_asked_before_subject(verb, key):
            return False
        is_unlisted = NOUN not in word_classes(self.words[key])  # "building" is a noun, "leaking" is none
        if verb == key + 1 and self.small[key].endswith("ing") and (self.is_participle(key) or is_unlisted):
            return not any(VERB in classes for classes in self.classes[verb + 1 :])  # "The leaking tap annoyed Mary"
        if verb == key + 1 and VERB in self.classes[key] and self.has_bare_relative(key):
            return False  # "This jacket Elena chose faded"
        last = self.last_before(verb)  # "The phone we bought rang", "The letter Anna wrote": not the phone bought
        if last > key and (self.small[last] in _SUBJECTS or self.phrase_start(last) <= key):
            return False
        return not (last > key + 1 or last == key + 1 and self._is_name(last)) or not (
            self.phrase_start(last) == key + 1 and NOUN in self.classes[last] and self.is_subject(last)
        )

    def is_owner(self, i: int) -> bool:
        """Return whether the noun at `i` owns another: "Alice" in "Alice's dog", "boys" in "the boys' teacher"."""
        mark, owned = i + 1, i + 2
        if owned >= len(self.words) or self.small[mark] not in _OF_OWNER:
            return False
        if self.small[mark].endswith("s"):
            return True
        return self.small[i].endswith("s") and self.words[owned][:1].isalpha() and not {*self.words[:i]} & {"'", "‘"}

    def _is_asked_before_subject(self, query: int, key: int) -> bool:
        """Return whether the key is asked for, and the subject stands behind the verb: "Who did the police arrest?"."""
        return (
            "?" in self.words[query:]
            and any(word in _ASKING for word in self.small[max(key - 2, 0) : key + 1])
            and query - key == 1
            and (self.small[query] in _COPULAS or AUXILIARY in self.classes[query] or self.small[query] in _HELPERS)
            and query + 1 < len(self.words)
            and bool(self.classes[query + 1] & {DETERMINER, NOUN, PRONOUN})
        )

    def asks(self, family: Family, query: int) -> bool:
        """Return whether the word at `query` can look for a word of this family: "her" before a noun is a possessive."""
        if family not in (ANTECEDENT, POSSESSIVE):
            return True
        word = self.small[query]
        follows = self.classes[query + 1] if query + 1 < len(self.words) else frozenset[str]()
        owns = word in POSSESSIVES and (word != "her" or bool(follows & {NOUN, ADJECTIVE}))
        return owns if family is POSSESSIVE else word in ASKING_PRONOUNS and not owns

    def role_name(self, relations: Sequence[str], query: int, key: int) -> str:
        """Return which of a head's relations the link is: past other nouns or not, from "it" or from another pronoun."""
        between = range(min(query, key) + 1, max(query, key))
        passes_others = any(self.classes[j] & {NOUN, PRONOUN} for j in between)
        of_thing = self.small[query] == "it"
        fitting = [relation for relation in relations if relation.endswith(PAST) == passes_others] or list(relations)
        return ([relation for relation in fitting if relation.startswith("it →") == of_thing] or fitting)[0]

    def _may_mean(self, pronoun: int, key: int) -> bool:
        """Return whether the gender of the pronoun allows the word at `key`; an unknown gender allows every word."""
        word, meant = self.words[key], self.small[pronoun]
        if self.asks(ANTECEDENT, pronoun):
            if meant in _OBJECTS and self.in_one_clause(key, pronoun):
                return False  # in "Ann saw her", "her" is not Ann: that would be "herself"
            if not any(VERB in classes for classes in self.classes[:pronoun]):
                return False  # "At the market she …": the person is named in an earlier clause
        if grammatical_number(word) == ("singular" if meant in _PLURAL else "plural"):
            return False
        if PRONOUN in self.classes[key]:  # "he" may mean an earlier "he" or "him"
            return word.lower() in ASKING_PRONOUNS and _GENDERS.get(word.lower()) == _GENDERS.get(meant)
        gender = _GENDERS.get(meant)
        if gender is None:
            return meant in _PLURAL or not (is_name(word) and usual_gender(word))
        return usual_gender(word) in (gender, "x", None) if is_name(word) else True

    def is_noun(self, i: int) -> bool:
        """Return whether the word at `i` is a noun and nothing else."""
        return 0 <= i < len(self.words) and self.classes[i] == {NOUN}

    def has_meaning(self, i: int) -> bool:
        """Return whether the word at `i` has a meaning of its own: a noun, an adjective or a verb, not "it", "the", "is"."""
        classes = self.classes[i]
        return bool(classes) and classes <= {NOUN, VERB, ADJECTIVE} and self.small[i] not in _COPULAS | _HELPERS

    def are_alike(self, first: int, second: int) -> bool:
        """Return whether both words may be names, or both may be other words."""
        return not {True, False} <= {self._is_name(first), self._is_name(second)}

    def is_alike_name(self, i: int) -> bool:
        """Return whether the word at `i` is certainly a name."""
        return self._is_name(i) is True

    def _is_name(self, i: int) -> bool | None:
        """Return whether a word is a name; None for an unlisted first word, whose capital may mean nothing."""
        word = self.words[i]
        if i or usual_gender(word) is not None:
            return is_name(word)
        return None if is_name(word) else False

    def is_subject(self, i: int) -> bool:
        """Return whether the word at `i` can be a subject: a noun or a pronoun, not behind a preposition, no "them"."""
        if self.words[i].lower() in _OBJECTS or not self.classes[i] & {NOUN, PRONOUN}:
            return False
        if self.behind_preposition(i) or self.is_owner(i):
            return False
        return not (self.is_participle(i) and self._is_within_phrase(i) and NOUN in self.classes[i + 1])

    def last_before(self, verb: int) -> int:
        """Return the place of the last word before a verb that is no auxiliary and no adverb; -1 without such a word."""
        before = verb - 1
        while before >= 0 and (AUXILIARY in self.classes[before] or self.small[before] in _HELPERS | _ADVERBS):
            before -= 1
        return before

    def in_one_clause(self, subject: int, last: int) -> bool:
        """Return whether one verb, and neither a mark nor a conjunction, stands between two words."""
        between = range(subject + 1, last)
        verbs = sum(VERB in self.classes[i] for i in between)
        return verbs == 1 and not any(self.words[i].lower() in _CONJUNCTIONS for i in between)

    def behind_preposition(self, noun: int) -> bool:
        """Return whether a preposition stands before the noun with only determiners and adjectives between."""
        before = noun - 1
        while before >= 0 and self.classes[before] & {DETERMINER, ADJECTIVE}:
            before -= 1
        return before >= 0 and PREPOSITION in word_classes(self.words[before])

    # --- constructions in which a head often takes another word for the one that it looks for ---

    def phrase_start(self, noun: int) -> int:
        """Return the place of the first word of a noun's phrase: its determiners, adjectives and participles."""
        start = noun
        while start > 0 and (self.classes[start - 1] & {DETERMINER, ADJECTIVE} or self.is_participle(start - 1)):
            start -= 1
        return start

    def is_participle(self, i: int) -> bool:
        """Return whether the word at `i` may be a participle before a noun: "leaking", "stolen"."""
        return bool(
            i + 1 < len(self.words)
            and self.small[i].endswith(("ing", "ed", "en", "wn", "rn"))
            and len(self.small[i]) > 4
            and word_classes(self.words[i + 1]) & {NOUN, ADJECTIVE}
            and not self.classes[i] & {DETERMINER, PREPOSITION, PRONOUN}
        )

    def _is_within_phrase(self, i: int) -> bool:
        """Return whether a determiner or an adjective stands before the word at `i`."""
        return i > 0 and bool(self.classes[i - 1] & {DETERMINER, ADJECTIVE}) and VERB not in self.classes[i - 1]

    def skips_subject(self, key: int, query: int) -> bool:
        """Return whether another word that may be the subject, and no verb, stands between a subject and its verb."""
        between = range(key + 1, query)
        subjects = [j for j in between if self.is_subject(j)]
        return bool(subjects) and not any(VERB in self.classes[j] and NOUN not in self.classes[j] for j in between)

    def clause_start(self, i: int) -> int:
        """Return the place of the first word of the clause that holds the word at `i`: behind a mark or a conjunction."""
        start = i
        while (
            start > 0
            and self.small[start - 1] not in _CONJUNCTIONS - _COORDINATING
            and self.words[start - 1] not in _ENDS
        ):
            start -= 1
        return start

    def begins_with_gerund(self, i: int) -> bool:
        """Return whether the clause of the word at `i` begins with a word in -ing: "Eating sugar damages teeth"."""
        start = self.clause_start(i)
        return start < i and self.small[start].endswith("ing") and len(self.small[start]) > 4

    def is_coordinated(self, i: int) -> bool:
        """Return whether "and" or "or" joins the noun at `i` to a noun before or behind it."""
        start, behind = self.phrase_start(i), self.small[i + 1 : i + 2]
        return start > 1 and self.small[start - 1] in _COORDINATING or bool(behind) and behind[0] in _COORDINATING

    def has_bare_relative(self, i: int) -> bool:
        """Return whether, in the clause up to `i`, a new phrase follows a noun without a verb: "The letter Anna wrote …"."""
        start = self.clause_start(i)
        for noun in range(start, i):
            if VERB in self.classes[noun] and NOUN not in self.classes[noun]:
                return False
            follows = self.classes[noun + 1] if noun + 1 < len(self.words) else frozenset[str]()
            begins = follows & {DETERMINER, PRONOUN} or is_name(self.words[noun + 1])
            if NOUN in self.classes[noun] and not self.is_owner(noun) and begins and self.small[start] not in _ASKING:
                return True
        return False

    def rivals(self, family: Family, query: int, key: int) -> list[int]:
        """Return the other words to which the relation could join the query."""
        return [j for j in range(len(self.words)) if j != key and self.fits(family, query, j)]


def evidence(sentence: Sentence, family: Family, query: int, key: int, row: Floats) -> dict[str, float]:
    """Return the evidence for a link, by name; `row` (n,) holds the query's weights."""
    weight, own_weight = float(row[key]), float(row[query])
    other_weights = np.delete(row, [query, key])
    second = float(other_weights.max()) if other_weights.size else 0.0
    between = range(min(query, key) + 1, max(query, key))
    classes = sentence.classes
    rivals = sentence.rivals(family, query, key)
    return {
        "odds": log_odds(weight),
        "lead": weight - second,
        "own": own_weight,
        "unknown_query": float(sentence.unknown[query]),
        "unknown_key": float(sentence.unknown[key]),
        "unknown_words": math.log2(1 + sum(sentence.unknown)),
        "query_of_other_class": float(not classes[query] <= family.query),
        "key_of_other_class": float(not classes[key] <= family.key),
        "query_before_noun": float(sentence.is_noun(query + 1)),
        "query_before_other_noun": float(query + 1 < len(row) and {NOUN} < classes[query + 1]),
        "key_before_noun": float(sentence.is_noun(key + 1) and key + 1 != query),
        "key_after_noun": float(sentence.is_noun(key - 1)),
        "key_behind_preposition": float(sentence.behind_preposition(key)),
        "query_behind_preposition": float(sentence.behind_preposition(query)),
        "query_after_verb": float(query > 0 and VERB in classes[query - 1]),
        "subject_before_key": float(any(sentence.is_subject(j) for j in range(key))),
        "rivals": float(min(len(rivals), 3)),
        "rivals_alike": float(min(sum(sentence.are_alike(j, key) for j in rivals), 2)),
        "rivals_between": float(min(sum(j in between for j in rivals), 2)),
        "verbs_between": float(min(sum(VERB in classes[j] for j in between), 2)),
        "marks_between": float(min(sum(not sentence.words[j][:1].isalnum() for j in between), 2)),
        "of_time": float(bool({sentence.words[query].lower(), sentence.words[key].lower()} & _TIMES)),
        "copula": float(sentence.words[key].lower() in _COPULAS),
        "question": float("?" in sentence.words),
        "asked_first": float("?" in sentence.words and bool({*sentence.small[:2]} & _ASKING)),
        "gerund_first": float(sentence.begins_with_gerund(max(query, key))),
        "coordinated_key": float(sentence.is_coordinated(key)),
        "or": float("or" in sentence.small or "nor" in sentence.small),
        "bare_relative": float(sentence.has_bare_relative(max(query, key))),
        "skips_subject": float(key < query and sentence.skips_subject(key, query)),
        "verb_after_key": float(query == key + 1 and VERB in classes[query]),
        "name_rival": float(any(sentence.is_alike_name(j) for j in rivals) and not sentence.is_alike_name(key)),
        "participle_key": float(sentence.is_participle(key)),
        "participle_query": float(sentence.is_participle(query)),
        "participle_before_key": float(sentence.is_participle(key - 1)) if key else 0.0,
        "sentences": math.log2(1 + sum(word in _ENDS for word in sentence.words[:-1])),
        "sentence_between": float(any(sentence.words[j] in _ENDS for j in between)),
        "distance": math.log2(abs(query - key)),
        "words": math.log2(len(sentence.words)),
    }


def log_odds(share: float) -> float:
    """Return the logarithm of share / (1 - share), held within ±MOST_ODDS."""
    return min(max(math.log(max(share, 1e-9) / max(1 - share, 1e-9)), -MOST_ODDS), MOST_ODDS)


# --- what was measured -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Certainty:
    """The certainty of a model's links: a logistic regression for each family, and the probability from which one is sure.

    `coefficients` holds family → name of a piece of evidence → its coefficient, and "intercept". Empty: not measured.
    `sure_from` holds the smallest sure probability of a family, and under "others" that of all families not named.
    `right` holds family → (probability, share) by rising probability: of the marked links up to this probability, down to
    the one before it, this share is right.
    """

    coefficients: Mapping[str, Mapping[str, float]]
    sure_from: Mapping[str, float] = field(default_factory=dict)
    right: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)

    @property
    def is_measured(self) -> bool:
        """Return whether links of this model were marked and counted."""
        return bool(self.coefficients)

    def probability(self, family: Family, evidence: Mapping[str, float]) -> float:
        """Return the probability, 0 to 1, that a link is right; without a measurement, a number that only orders links."""
        coefficients = self.coefficients.get(family.name)
        if coefficients is None:
            return 1 / (1 + math.exp(-evidence["odds"]))
        total = coefficients["intercept"] + sum(value * coefficients.get(name, 0.0) for name, value in evidence.items())
        return 1 / (1 + math.exp(-min(max(total, -30.0), 30.0)))

    def is_sure(self, family: Family, probability: float) -> bool:
        """Return whether a link of this family and probability is called sure."""
        return probability >= self.sure_from.get(family.name, self.sure_from.get("others", math.inf))

    def share_right(self, family: Family, probability: float) -> float:
        """Return which share of marked links of this family was right, with about this probability."""
        steps = self.right.get(family.name, ())
        return next((share for end, share in steps if probability <= end), probability)


UNMEASURED = Certainty({})


@cache
def measured() -> dict[str, Certainty]:
    """Return the measurements of the bundled models and of checkpoints, by their names."""
    text = files("attnctl.readings.questions").joinpath("certainty.json").read_text(encoding="utf-8")
    return {name: Certainty(**values) for name, values in json.loads(text).items()}


def certainty_of_model(model: ModelInfo) -> Certainty:
    """Return the measurement of a bundled model as it was trained, or of a measured checkpoint; UNMEASURED for others."""
    if model.nature.is_network:
        checkpoint = measured_checkpoint(model) if model.off is None else None
        return UNMEASURED if checkpoint is None else measured().get(checkpoint.name, UNMEASURED)
    as_trained = model.nature.is_demo and bool(model.causal) == model.name.endswith("causal")
    return measured().get(model.name, UNMEASURED) if as_trained else UNMEASURED
