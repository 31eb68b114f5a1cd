"""The grammar: what it keeps out of training, and that nothing but the words themselves gives a relation away."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from attnctl.training import relations
from attnctl.training.english import draft
from attnctl.training.english.grammar import held_out, sentences
from attnctl.training.english.language import corpus_of, openness, vocabulary
from attnctl.training.english.lexicon import QUALITIES, lexicon
from attnctl.training.relations import UNSEEN_NAMES, UNSEEN_NOUNS, with_unseen_words

SENTENCES = sentences(4000, 3)


def links(relation: str) -> list[tuple[draft.Sentence, draft.Link]]:
    return [(s, link) for s in SENTENCES for link in s.links if link.relation == relation]


def test_the_same_seed_gives_the_same_sentences_in_every_process() -> None:
    code = "from attnctl.training.english.grammar import sentences; print([s.text for s in sentences(300, 7)])"
    found = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, check=True, env=os.environ | {"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1
    assert [s.text for s in sentences(50, 7)] != [s.text for s in sentences(50, 8)]


def test_training_and_test_share_no_fact() -> None:
    train = {fact for s in SENTENCES for fact in s.facts}
    test = {fact for s in sentences(500, 2, held=True) for fact in s.facts}
    assert test and not train & test
    assert held_out(("Alice", "eat", "pizza")) and ("Alice", "eat", "pizza") not in train


def test_every_word_is_in_the_vocabulary() -> None:
    known = set(vocabulary())
    assert not {word for s in SENTENCES for word in s.words} - known
    corpus = corpus_of(SENTENCES[:100])
    assert not (corpus.ids == 0).any() and len(corpus.vocabulary) > 8000


def test_links_join_the_words_they_say() -> None:
    for s, link in links(draft.PRONOUN) + links(draft.MEANING):
        assert s.words[link.query] in relations.PRONOUNS and link.key < link.query
    lex = lexicon()
    for s, link in links(draft.PRONOUN):
        sexes = [sex for sex in "fm" if s.words[link.key] in lex.names[sex]]
        if sexes:
            assert s.words[link.query] in (("she", "her") if sexes == ["f"] else ("he", "him"))
    for s, link in links(draft.CLOSING):
        assert (s.words[link.key], s.words[link.query]) in [
            ("(", ")"), ("[", "]"), ("{", "}"), ("“", "”"), ("‘", "’"), ('"', '"')
        ]  # fmt: skip
    for s, link in links(draft.INDUCTION):
        assert s.words[link.key - 1] == s.words[link.query] and link.key <= link.query
    known = [relations.is_noun(s.words[link.key]) for s, link in links(draft.DETERMINER) if link.key > link.query]
    assert len(known) == len(links(draft.DETERMINER)) and sum(known) > 0.85 * len(known)  # some are verbs as well


def test_every_question_has_one_answer() -> None:
    s = draft.Sentence(["the", "cat", "that", "chased", "the", "dog", "ran", "to", "the", "park"])
    for relation, query, key in [
        (draft.DETERMINER, 0, 1), (draft.REFERENCE, 2, 1), (draft.VERB_SUBJECT, 3, 1), (draft.OBJECT_VERB, 5, 3),
        (draft.PAST_OTHERS, 6, 1), (draft.PREPOSITION, 7, 6), (draft.WITHIN, 9, 7),
    ]:  # fmt: skip
        s.link(relation, query, key)
    subject, past, verb, _, _, meant, noun, phrase, *_ = range(len(draft.QUESTIONS))
    assert s.answers() == {
        (0, noun): 1, (1, verb): 6, (2, meant): 1, (3, subject): 1, (5, verb): 3, (6, past): 1, (7, phrase): 6,
        (9, phrase): 7,
    }  # fmt: skip


def test_brackets_are_put_into_a_sentence_with_their_links() -> None:
    s, aside = draft.Sentence(["cats", "sleep", "here"]), draft.Sentence(["(", "x", ")"], loose={1})
    s.link(draft.VERB_SUBJECT, 1, 0)
    aside.link(draft.CLOSING, 2, 0)
    s.insert(1, aside)
    assert s.text == "cats ( x ) sleep here" and s.loose == {2}
    assert s.links == [(draft.VERB_SUBJECT, 4, 0), (draft.CLOSING, 3, 1)]


def test_answers_stand_in_the_sentences_that_are_asked() -> None:
    corpus = corpus_of(SENTENCES[:500])
    assert corpus.answers is not None
    for s, ids, answers in zip(SENTENCES, corpus.ids, corpus.answers, strict=False):
        n = len(s.words)
        assert (answers[:n] < n).all() and (answers[n:] == -1).all() and (ids[n:] == -1).all()
        idle = answers[:n] == np.arange(n)[:, None]  # (n, questions)
        assert not idle[sorted(s.loose)].any() or any(link.query == link.key for link in s.links)


def test_verbs_agree_with_their_subjects() -> None:
    found = 0
    for s, link in links(draft.VERB_SUBJECT) + links(draft.PAST_OTHERS):
        if s.words[link.query] in ("is", "was", "are", "were") and s.words[link.key] not in (
            "you",
            "we",
            "they",
            "who",
        ):
            plural = s.words[link.key] in {n.plural for some in lexicon().nouns.values() for n in some if n.plural}
            singular = s.words[link.key] in {n.singular for some in lexicon().nouns.values() for n in some}
            if plural != singular:
                assert (s.words[link.query] in ("are", "were")) == plural, s.text
                found += 1
    assert found > 150


def test_only_the_last_word_tells_what_it_is() -> None:
    """Half of the time the nearest noun is meant, and what is said of an animal is said of animals."""
    assert len(links(draft.MEANING)) > 300
    nearest = [
        relations.candidate_places(draft.MEANING, s, link.query)[0] == link.key for s, link in links(draft.MEANING)
    ]
    assert 0.4 < sum(nearest) / len(nearest) < 0.6
    group = {n.singular: g for g, some in lexicon().nouns.items() for n in some}
    for s, link in links(draft.MEANING):
        word, noun = s.words[-1 if s.words[-1] not in (".", "!") else -2], s.words[link.key]
        if noun in group and group[noun] in ("animal",) and not {"too", "so"} & set(s.words):
            assert word in QUALITIES["animal"].split() or word in ("hard", "heavy", "fast", "strong")


@pytest.mark.parametrize("relation", [draft.VERB_SUBJECT, draft.OBJECT_VERB, draft.PAST_OTHERS, draft.PRONOUN])
def test_no_fixed_offset_finds_it(relation: str) -> None:
    offsets = Counter(link.key - link.query for _, link in links(relation))
    assert offsets.total() > 150 and max(offsets.values()) < 0.65 * offsets.total()


def test_pronouns_are_balanced() -> None:
    """Neither the first nor the nearest person is right much more than half of the time."""
    nearest = [
        relations.candidate_places(draft.PRONOUN, s, link.query)[0] == link.key for s, link in links(draft.PRONOUN)
    ]
    assert len(nearest) > 400 and 0.35 < sum(nearest) / len(nearest) < 0.6


def test_unseen_words_are_unseen() -> None:
    strange = {*UNSEEN_NAMES["f"], *UNSEEN_NAMES["m"], *UNSEEN_NOUNS}
    assert len(strange - set(vocabulary())) > 35
    for s in SENTENCES[:300]:
        new = with_unseen_words(s, random.Random(0))
        assert len(new.words) == len(s.words) and new.links == s.links
        left = {word for word in new.words if openness().get(word) == 1}
        spared = sum(link.relation in (draft.PRONOUN, draft.MEANING) for link in s.links)
        assert len(left) <= spared or len(set(s.words)) > 20
