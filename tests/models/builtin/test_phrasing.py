"""What a trained model says of sentences unlike those it was trained on."""

from __future__ import annotations

import numpy as np
import pytest

from attnctl.models.builtin.vocabulary import ANY, Phrasing, number_kinds
from attnctl.tokens import Token

WORDS = ["[UNK]", "the", "dog", "cat", "sees", "why", "zorp"]
KINDS = number_kinds([None, "the", "noun", "noun", "verb", "why", None])


def tokens(text: str) -> list[Token]:
    return [Token(word, WORDS.index(word)) for word in text.split()]


@pytest.fixture
def phrasing() -> Phrasing:
    rows = [[WORDS.index(word) for word in text.split()] for text in 2 * ["the dog sees the cat", "the cat sees"]]
    ids = np.array([row + [-1] * (5 - len(row)) for row in rows])
    return Phrasing.of_sentences(ids, KINDS)


def test_kinds_that_were_met_are_no_news(phrasing: Phrasing) -> None:
    assert phrasing.doubt("demo", tokens("the cat sees the dog")) is None  # of the same kinds, though never met itself
    assert phrasing.doubt("demo", tokens("the dog sees")) is None


def test_a_sentence_of_new_turns_is_doubted_and_named(phrasing: Phrasing) -> None:
    said = phrasing.doubt("demo", tokens("sees why the why dog dog"))
    assert said is not None and said.endswith("are new to it)") and '"sees why"' in said
    assert phrasing.doubt("demo", tokens("sees the cat")) is None  # one or two new turns are none too many


def test_words_of_any_kind_say_nothing(phrasing: Phrasing) -> None:
    assert KINDS[0] == ANY
    assert phrasing.doubt("demo", tokens("zorp zorp zorp zorp zorp")) is None


def test_what_a_file_says_is_read_back(phrasing: Phrasing) -> None:
    told = phrasing.as_metadata()
    again = Phrasing.of_metadata(told, len(WORDS))
    assert again is not None and again.met == phrasing.met and np.array_equal(again.kinds, phrasing.kinds)


@pytest.mark.parametrize("damage", [{}, {"kinds": "?"}, {"met": "AAAA"}, {"kinds": "AAAA"}])
def test_damaged_metadata_says_nothing(phrasing: Phrasing, damage: dict[str, str]) -> None:
    told = phrasing.as_metadata() | damage if damage else {}
    assert Phrasing.of_metadata(told, len(WORDS)) is None
