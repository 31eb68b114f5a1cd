"""Which of the relations that a head was measured to find a pronoun asks for."""

from __future__ import annotations

import pytest

from attnctl.readings.questions.roles import relation_of_pronoun

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
