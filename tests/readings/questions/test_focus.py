"""Which layer, head and query are shown where none is asked for: by one rule, which is said; and what a pronoun asks for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attnctl.layer import LayerTrace
from attnctl.readings.questions.focus import (
    LARGEST,
    OUTSTANDING,
    focus,
    may_relate,
    other_name,
    relation_of_pronoun,
    usual_gender,
    word_classes,
)
from attnctl.readings.traces.trace import ModelInfo, Trace
from attnctl.tokens import Token, split_words


def trace_of(words: str, *heads: list[list[float]], kind: str = "matrix", finds: Any = None) -> Trace:
    """One layer whose heads have these weights."""
    tokens = tuple(Token(word, at) for at, word in enumerate(words.split()))
    numbers = tuple(range(len(heads)))
    layer = LayerTrace(layer=0, heads=numbers, kv_heads=numbers, weights=np.array(heads, dtype=np.float32))
    return Trace(words, tokens, ModelInfo("m", kind, n_heads=len(heads), n_layers=1, finds=finds), layers=(layer,))


# every token looks at "c" in the first head; in the second one row alone looks at "a"
COMMON = [[0.1, 0.0, 0.8, 0.1], [0.1, 0.0, 0.8, 0.1], [0.1, 0.0, 0.8, 0.1], [0.1, 0.0, 0.9, 0.0]]
OWN = [[0.7, 0.1, 0.1, 0.1], [0.0, 0.8, 0.1, 0.1], [0.1, 0.1, 0.7, 0.1], [0.6, 0.1, 0.1, 0.2]]


def test_a_link_of_its_own_says_more_than_a_column_at_which_all_look() -> None:
    found = focus(trace_of("a b c d", COMMON, OWN))
    assert found is not None and (found.head, found.query, found.key) == (1, 3, 0)
    assert found.weight == np.float32(0.6) and found.reason == OUTSTANDING


def test_the_first_token_of_a_checkpoint_and_special_ones_are_no_place_to_open_on() -> None:
    weights = [[0.9, 0.0, 0.1, 0.0], [0.9, 0.0, 0.1, 0.0], [0.1, 0.1, 0.7, 0.1], [0.55, 0.45, 0.0, 0.0]]
    trace = trace_of("a b c d", weights, kind="checkpoint")
    found = focus(trace)
    assert found is not None and (found.query, found.key) == (3, 1)
    special = tuple(replace(token, special=token.text in ("b", "c", "d")) for token in trace.tokens)
    alone = focus(replace(trace, tokens=special))
    assert alone is not None and alone.reason == LARGEST


def test_nothing_is_said_where_nothing_was_chosen() -> None:
    trace = trace_of("a b c d", COMMON, OWN)
    found = focus(trace, layer=0, head=0, query=1)
    assert found is not None and found.reason == "" and found.key == 2
    alone = focus(trace_of("a b c d", OWN), query=3)  # one layer, one head
    assert alone is not None and alone.reason == ""


def test_a_head_that_was_measured_comes_first_where_its_relation_is_there() -> None:
    object_verb = [[0.4, 0.2, 0.2, 0.2], [0.3, 0.3, 0.2, 0.2], [0.3, 0.2, 0.3, 0.2], [0.1, 0.1, 0.6, 0.2]]
    trace = trace_of(
        "Alice will eat pizza", OWN, object_verb, finds=((0, 0, "verb → subject"), (0, 1, "object → verb"))
    )
    found = focus(trace)
    assert found is not None and (found.head, found.query, found.key) == (1, 3, 2)
    assert "object → verb" in found.reason
    none_there = focus(trace_of("of to by in", OWN, object_verb, finds=((0, 1, "object → verb"),)))
    assert none_there is not None and none_there.reason == OUTSTANDING


def test_a_pronoun_is_looked_at_before_all() -> None:
    rows = [[0.2] * 5] * 4 + [[0.1, 0.1, 0.6, 0.1, 0.1]]
    trace = trace_of(
        "Mary thanked Tom because he", rows, rows, finds=((0, 1, "pronoun → antecedent"), (0, 0, "object → verb"))
    )
    found = focus(trace)
    assert found is not None and (found.head, found.query, found.key) == (1, 4, 2)


def test_words_have_classes_and_a_relation_has_its_own_in_their_order() -> None:
    words = {"eat": "verb", "pizza": "noun", "The": "determiner", "he": "pronoun", "Xyzzy": "noun"}
    assert all(kind in word_classes(word) for word, kind in words.items())
    words = ["Alice", "will", "eat", "pizza"]
    assert may_relate("object → verb", words, 3, 2) and not may_relate("object → verb", words, 2, 3)
    assert may_relate("verb → subject", words, 2, 0) and not may_relate("verb → subject", words, 2, 1)
    assert not may_relate("induction", words, 3, 2)


def test_what_stands_behind_a_preposition_is_no_subject() -> None:
    """The headline is a link that can be, of which its head is sure: another than a verb's to a noun in a phrase."""
    words = "After the big storm , farmers repaired fences"
    split = words.split()
    assert not may_relate("verb → subject", split, 6, 3) and may_relate("verb → subject", split, 6, 5)
    rows = [[0.125] * 8 for _ in split]
    subject, verb = [list(row) for row in rows], [list(row) for row in rows]
    subject[6] = [0, 0, 0, 0.8, 0, 0.2, 0, 0]
    verb[7] = [0.1, 0.1, 0, 0, 0, 0.1, 0.7, 0]
    found = focus(trace_of(words, subject, verb, finds=((0, 0, "verb → subject"), (0, 1, "object → verb"))))
    assert found is not None and (found.head, found.query, found.key) == (1, 7, 6)
    verb[7] = [0.1, 0.1, 0.1, 0.1, 0, 0.1, 0.45, 0.05]
    subject[6] = [0, 0, 0, 0.3, 0.1, 0.6, 0, 0]
    found = focus(trace_of(words, subject, verb, finds=((0, 1, "object → verb"), (0, 0, "verb → subject"))))
    assert found is not None and (found.head, found.query, found.key) == (0, 6, 5)


PRONOUN = ((0, 0, "pronoun → antecedent"), (0, 0, "it → its noun, by meaning"))


@pytest.mark.parametrize(
    ("words", "row", "said"),
    [
        ("We should help them", [0.3, 0.0, 0.0, 0.7], ""),  # most stays with the pronoun: no antecedent was found
        ("We should help them", [0.7, 0.0, 0.0, 0.3], "pronoun → antecedent"),
        ("The cat sees it", [0.0, 0.9, 0.0, 0.1], "it → its noun, by meaning"),  # the relation that fits the word
        ("say : she them", [0.1, 0.8, 0.0, 0.1], ""),  # a mark is nobody
        ("what is it him", [0.9, 0.0, 0.0, 0.1], ""),  # nor is a word of another class
        ("Zorp zorps zorped him", [0.0, 0.9, 0.0, 0.1], "pronoun → antecedent"),  # no class is known of an unknown word
    ],
)
def test_a_pronoun_s_head_is_named_where_it_finds_one(words: str, row: list[float], said: str) -> None:
    trace = trace_of(words, [[1.0, 0.0, 0.0, 0.0]] * 3 + [row], kind="demo", finds=PRONOUN)
    found = focus(trace)
    assert found is not None
    assert found.reason == (f"the head was measured to find {said}" if said else found.reason)
    assert bool(said) == ("measured" in found.reason)


FINDS = ("pronoun → antecedent", "it → its noun, by meaning", "own token")


def test_the_relation_that_fits_the_pronoun_and_the_usual_gender_of_a_name() -> None:
    for word, finds, relation in (
        ("it", FINDS, FINDS[1]), ("They", FINDS, FINDS[1]), ("she", FINDS, FINDS[0]), ("it", FINDS[:1], FINDS[0]),
        ("he", FINDS[1:], FINDS[1]), ("it", (*FINDS[2:], FINDS[0]), FINDS[0]), ("cat", FINDS, ""), ("it", (), ""),
    ):  # fmt: skip
        assert relation_of_pronoun(finds, word) == relation, (word, finds)
    names = "Diego m, Sofia f, José m, Ngozi f, Kwame m, Priya f, Kim x, Zorblax None, diego None, The None"
    for name, gender in map(str.split, names.split(", ")):
        assert str(usual_gender(name)) == gender, name


@pytest.mark.parametrize(
    ("text", "key", "other"),
    [
        ("Diego thanked Sofia because he", 0, None),  # Sofia is no he
        ("Diego thanked Bruno because he", 2, "Diego"),
        ("Zorblax thanked Quimbly because he", 0, "Quimbly"),
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
