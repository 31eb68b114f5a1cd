"""The grammar of samples/english: what it keeps out of training, and that nothing but the words gives a relation away.

`python -m pytest tests/tools/grammar.py`, after a change to samples/english. That the bundled corpus is what the grammar writes
is held by tests/training/test_bundled_corpus.py: so long as it passes, none of these can fail.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from attnctl import english
from attnctl.english import SENTENCES, written_blocks
from samples.english import grammar, treebank
from samples.english.draft import Draw, Sentence
from samples.english.grammar import held_out, sentences
from samples.english.language import openness, vocabulary
from samples.english.lexicon import QUALITIES, lexicon
from samples.english.marked import content_words, kept_out, marked_sentences, read_marked
from samples.english.treebank import is_noun
from samples.english.unseen import UNSEEN_NAMES, UNSEEN_NOUNS, with_unseen_words

EVERYDAY = read_marked((Path(__file__).parents[1] / "training" / "everyday.txt").read_text(encoding="utf-8"))
MADE = sentences(4000, 3)


def links(relation: str) -> list[tuple[Sentence, english.Link]]:
    return [(s, link) for s in MADE for link in s.links if link.relation == relation]


def test_training_and_test_share_no_fact() -> None:
    train = {fact for s in MADE for fact in s.facts}
    test = {fact for s in sentences(500, 2, held_out_only=True) for fact in s.facts}
    assert test and not train & test
    assert held_out(("Alice", "eat", "pizza")) and ("Alice", "eat", "pizza") not in train


def test_every_word_is_in_the_vocabulary() -> None:
    known = set(vocabulary())
    assert not {word for s in MADE for word in s.words} - known
    assert len(known) > 8000


def test_links_join_the_words_they_say() -> None:
    for s, link in links(english.PRONOUN) + links(english.MEANING):
        assert s.words[link.query] in treebank.PRONOUNS and link.key < link.query
    lex = lexicon()
    for s, link in links(english.PRONOUN):
        sexes = [sex for sex in "fm" if s.words[link.key] in lex.names[sex]]
        if sexes:
            assert s.words[link.query] in (("she", "her") if sexes == ["f"] else ("he", "him"))
    brackets = {("(", ")"), ("[", "]"), ("{", "}"), ("“", "”"), ("‘", "’"), ('"', '"')}
    assert {(s.words[link.key], s.words[link.query]) for s, link in links(english.CLOSING)} <= brackets
    for s, link in links(english.INDUCTION):
        assert s.words[link.key - 1] == s.words[link.query] and link.key <= link.query
    known = [is_noun(s.words[link.key]) for s, link in links(english.DETERMINER) if link.key > link.query]
    assert len(known) == len(links(english.DETERMINER)) and sum(known) > 0.85 * len(known)  # some are verbs as well


def test_every_question_has_one_answer() -> None:
    s = Sentence(["the", "cat", "that", "chased", "the", "dog", "ran", "to", "the", "park"])
    for relation, query, key in [
        (english.DETERMINER, 0, 1), (english.REFERENCE, 2, 1), (english.VERB_SUBJECT, 3, 1), (english.OBJECT_VERB, 5, 3),
        (english.PAST_OTHERS, 6, 1), (english.PREPOSITION, 7, 6), (english.WITHIN, 9, 7),
    ]:  # fmt: skip
        s.link(relation, query, key)
    answers = set(s.answers())
    assert answers == {*s.links, english.Link(english.SUBJECT_VERB, 1, 6)}
    asked = [(link.query, english.QUESTION_OF[link.relation]) for link in answers]
    assert len(set(asked)) == len(asked)


def test_brackets_are_put_into_a_sentence_with_their_links() -> None:
    s, aside = Sentence(["cats", "sleep", "here"]), Sentence(["(", "x", ")"], loose={1})
    s.link(english.VERB_SUBJECT, 1, 0)
    aside.link(english.CLOSING, 2, 0)
    s.insert(1, aside)
    assert s.text == "cats ( x ) sleep here" and s.loose == {2}
    assert s.links == [(english.VERB_SUBJECT, 4, 0), (english.CLOSING, 3, 1)]


def nearest(s: Sentence, query: int) -> int:
    """The nearest noun, name or pronoun before a word."""
    return next((at for at in range(query - 1, -1, -1) if is_noun(s.words[at])), -1)


def test_verbs_agree_with_their_subjects() -> None:
    found, nouns = 0, [noun for some in lexicon().nouns.values() for noun in some]
    plurals, singulars = {noun.plural for noun in nouns if noun.plural}, {noun.singular for noun in nouns}
    for s, link in links(english.VERB_SUBJECT) + links(english.PAST_OTHERS):
        said, subject = s.words[link.query], s.words[link.key]
        told = (subject in plurals) != (subject in singulars) and subject not in ("you", "we", "they", "who")
        if said in ("is", "was", "are", "were") and told:
            assert (said in ("are", "were")) == (subject in plurals), s.text
            found += 1
    assert found > 150


def test_only_the_last_word_tells_what_it_is() -> None:
    """Half of the time the nearest noun is meant, and what is said of an animal is said of animals."""
    assert len(links(english.MEANING)) > 300
    right = [nearest(s, link.query) == link.key for s, link in links(english.MEANING)]
    assert 0.4 < sum(right) / len(right) < 0.6
    group = {n.singular: g for g, some in lexicon().nouns.items() for n in some}
    for s, link in links(english.MEANING):
        word, noun = s.words[-1 if s.words[-1] not in (".", "!") else -2], s.words[link.key]
        if noun in group and group[noun] in ("animal",) and not {"too", "so"} & set(s.words):
            assert word in QUALITIES["animal"].split() or word in ("hard", "heavy", "fast", "strong")


@pytest.mark.parametrize("relation", [english.VERB_SUBJECT, english.OBJECT_VERB, english.PAST_OTHERS, english.PRONOUN])
def test_no_fixed_offset_finds_it(relation: str) -> None:
    offsets = Counter(link.key - link.query for _, link in links(relation))
    assert offsets.total() > 150 and max(offsets.values()) < 0.65 * offsets.total()


def test_pronouns_are_balanced() -> None:
    """Neither the first nor the nearest person is right much more than half of the time."""
    right = [nearest(s, link.query) == link.key for s, link in links(english.PRONOUN)]
    assert len(right) > 400 and 0.35 < sum(right) / len(right) < 0.6


def test_unseen_words_are_unseen() -> None:
    strange = {*UNSEEN_NAMES["f"], *UNSEEN_NAMES["m"], *UNSEEN_NOUNS}
    assert len(strange - set(vocabulary())) > 35
    for s in MADE[:300]:
        new = with_unseen_words(s, random.Random(0))
        assert len(new.words) == len(s.words) and new.links == s.links
        left = {word for word in new.words if openness().get(word) == 1}
        spared = sum(link.relation in (english.PRONOUN, english.MEANING) for link in s.links)
        assert len(left) <= spared or len(set(s.words)) > 20


# --- sentences marked by hand, which no model was chosen by ------------------------------------------------------------


def test_there_are_two_hundred_of_every_relation() -> None:
    marked = marked_sentences()
    assert len(marked) >= 200 and len({s.text for s in marked}) == len(marked)
    counts = Counter(link.relation for s in marked for link in s.links)
    assert set(counts) == set(english.GOALS) and min(counts.values()) >= 15
    for text in (
        "The cat sat on the mat because it is warm",
        "The trophy does not fit in the suitcase because it is too small",
        "Mary thanked Tom because he likes tea",
        "Zara will devour a croissant",
        "The cat that chased the dog ran",
        "( a [ b ] c )",
    ):
        assert text in {s.text for s in marked}


def test_near_copies_are_kept_out() -> None:
    for near in (
        "the cat sat on the mat because it was warm .",
        "today a cat sat near the mat , since it is very warm",
        "Mary thanked Tom so that she likes his tea !",
    ):
        words = near.split()
        assert (content_words(words) in kept_out()) == ("today" not in words)
    assert content_words(["the", "dog", "sat", "on", "the", "mat", "because", "it", "was", "warm"]) not in kept_out()


def test_the_grammar_makes_none_of_them(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """A grammar that makes little else than one of them is asked again until it makes something else."""
    made: list[str] = []

    def same(d: Draw, s: Sentence) -> None:
        made.append(d.one(["the cat sat on the mat because it is warm", "the dog ran home"]))
        s.add_word(*made[-1].split())

    monkeypatch.setattr(grammar, "KINDS", ((same, 1.0),))
    assert {s.text for s in sentences(30, 1)} == {"the dog ran home"} and len(set(made)) == 2


def test_no_sentence_of_the_corpus_is_one_of_them() -> None:
    parts = ("both", "masked-word", "next-word")
    made = {content_words(block.split()[1::10]) for block in written_blocks(SENTENCES, *parts)}
    assert len(made) > 60_000 and not made & kept_out() and not made & {content_words(s.words) for s in EVERYDAY}
