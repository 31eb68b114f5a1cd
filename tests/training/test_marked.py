"""The sentences marked by hand: there are two hundred, of every relation, and training meets none of them."""

from __future__ import annotations

from collections import Counter

from attnctl.training.english import draft, grammar
from attnctl.training.english.grammar import sentences
from attnctl.training.marked import content_words, kept_out, marked_sentences
from attnctl.training.relations import GOALS


def test_there_are_two_hundred_of_every_relation() -> None:
    marked = marked_sentences()
    assert len(marked) >= 200 and len({s.text for s in marked}) == len(marked)
    counts = Counter(link.relation for s in marked for link in s.links)
    assert set(counts) == set(GOALS) and min(counts.values()) >= 15
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

    def same(d: draft.Draw, s: draft.Sentence) -> None:
        made.append(d.one(["the cat sat on the mat because it is warm", "the dog ran home"]))
        s.add_word(*made[-1].split())

    monkeypatch.setattr(grammar, "KINDS", ((same, 1.0),))
    assert {s.text for s in sentences(30, 1)} == {"the dog ran home"} and len(set(made)) == 2


def test_no_sentence_of_the_corpus_is_one_of_them() -> None:
    assert not {content_words(s.words) for s in sentences(10_000, 1)} & kept_out()
