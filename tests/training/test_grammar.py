"""The grammar: what it keeps out of training, and that nothing but the words themselves gives a relation away."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from attnctl.training import grammar, lexicon
from attnctl.training.grammar import MASKED_WORD, NEXT_WORD, Habits, held_out, sentences
from attnctl.training.relations import with_unseen_words

SENTENCES = sentences(3000, 3)


def test_the_same_seed_gives_the_same_sentences() -> None:
    assert [s.text for s in sentences(50, 7)] == [s.text for s in sentences(50, 7)]
    assert [s.text for s in sentences(50, 7)] != [s.text for s in sentences(50, 8)]


@pytest.mark.parametrize("habits", [NEXT_WORD, MASKED_WORD])
def test_training_and_test_share_no_fact(habits: Habits) -> None:
    train = {fact for s in sentences(3000, 1, habits) for fact in s.facts}
    test = {fact for s in sentences(500, 2, habits, held=True) for fact in s.facts}
    assert not train & test
    assert held_out(("Alice", "eat", "pizza")) and ("Alice", "eat", "pizza") not in train


def test_links_join_the_words_they_say() -> None:
    for s in SENTENCES:
        for link in s.links:
            query, key = s.words[link.query], s.words[link.key]
            assert link.query > link.key
            if link.relation == grammar.OBJECT_VERB:
                assert key in lexicon.VERB_WORDS and query in lexicon.THING_WORDS | lexicon.AGENT_WORDS
            elif link.relation == grammar.PRONOUN:
                gender = next(a.gender for a in lexicon.AGENTS if a.words[-1] == key)
                assert (query, gender) in (("he", "m"), ("she", "f"))
            else:
                assert query in lexicon.VERB_WORDS and key in lexicon.AGENT_WORDS


@pytest.mark.parametrize("relation", [grammar.VERB_SUBJECT, grammar.OBJECT_VERB, grammar.PAST_DISTRACTOR])
def test_no_fixed_offset_finds_it(relation: str) -> None:
    offsets = Counter(link.key - link.query for s in SENTENCES for link in s.links if link.relation == relation)
    assert max(offsets.values()) < 0.65 * offsets.total()


def test_pronouns_are_balanced() -> None:
    """Neither the first nor the nearest person is right much more than half of the time."""
    nearest = []
    for s in SENTENCES:
        for link in s.links:
            if link.relation == grammar.PRONOUN:
                nearest.append(link.key == max(i for i in range(link.query) if s.words[i] in lexicon.AGENT_WORDS))
    assert len(nearest) > 500 and 0.44 < sum(nearest) / len(nearest) < 0.56


def test_the_object_tells_of_the_subject() -> None:
    """A subject's taste shows in what it eats, or there would be nothing to learn."""
    alice = Counter(
        o for s in SENTENCES for who, verb, o in s.facts if who == "Emma" and verb in ("eat", "cook", "buy", "share")
    )
    assert sum(n for o, n in alice.items() if o in ("apple", "banana")) > 0.7 * alice.total() > 0


def test_unseen_words_are_unseen() -> None:
    known = {word for s in sentences(5000, 1) for word in s.words}
    assert not known & {*lexicon.UNSEEN_NAMES, *lexicon.UNSEEN_NOUNS}
    for s in SENTENCES[:300]:
        strange = with_unseen_words(s, random.Random(0))
        left = [w for w in strange.words if w in lexicon.AGENT_WORDS | lexicon.THING_WORDS]
        assert len(left) == sum(link.relation == grammar.PRONOUN for link in s.links)
        assert len(strange.words) == len(s.words)
