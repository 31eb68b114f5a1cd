"""Which of the relations that a head was measured to find a pronoun asks for."""

from __future__ import annotations

import pytest

from attnctl.readings.questions.focus import other_name, relation_of_pronoun, usual_gender
from attnctl.tokens import split_words

FINDS = ("pronoun → antecedent", "it → its noun, by meaning", "own token")


@pytest.mark.parametrize(
    ("word", "finds", "relation"),
    [
        ("it", FINDS, FINDS[1]), ("They", FINDS, FINDS[1]), ("she", FINDS, FINDS[0]), ("it", FINDS[:1], FINDS[0]),
        ("he", FINDS[1:], FINDS[1]), ("it", (*FINDS[2:], FINDS[0]), FINDS[0]), ("cat", FINDS, ""), ("it", (), ""),
    ],
)  # fmt: skip
def test_the_relation_that_fits_the_pronoun(word: str, finds: tuple[str, ...], relation: str) -> None:
    assert relation_of_pronoun(finds, word) == relation


@pytest.mark.parametrize(
    ("name", "gender"),
    [
        ("Diego", "m"), ("Sofia", "f"), ("José", "m"), ("Ngozi", "f"), ("Kwame", "m"), ("Priya", "f"), ("Kim", "x"),
        ("Zorblax", None), ("diego", None), ("The", None),
    ],
)  # fmt: skip
def test_names_have_a_usual_gender(name: str, gender: str | None) -> None:
    assert usual_gender(name) == gender


@pytest.mark.parametrize(
    ("text", "key", "other"),
    [
        ("Diego thanked Sofia because he", 0, None),  # Sofia is no he
        ("Diego thanked Sofia because he", 2, None),
        ("Diego thanked Bruno because he", 2, "Diego"),
        ("Diego thanked Bruno because she", 2, None),
        ("Zorblax thanked Quimbly because he", 0, "Quimbly"),
        ("Zorblax thanked Quimbly because she", 2, "Zorblax"),
        ("Zorblax thanked Sofia because he", 0, None),
        ("Zorblax thanked Sofia because she", 2, "Zorblax"),
        ("Kim thanked Sofia because she", 2, "Kim"),
        ("The nurse thanked Sofia because she", 3, None),  # of names alone
        ("Sofia thanked Sofia because she", 2, None),
        ("Zorblax thanked Quimbly because it", 2, None),
    ],
)
def test_a_name_that_a_pronoun_may_stand_for_as_well(text: str, key: int, other: str | None) -> None:
    tokens = split_words(text)
    assert other_name(tokens, len(tokens) - 1, key) == other
