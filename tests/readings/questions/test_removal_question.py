"""The quiz's question on what matters is true, and asked where a head carries a prediction."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from msgspec import structs

import attnctl
from attnctl.readings.questions.quiz import is_right, removal_question

TEXTS = (
    "Alice will ____ pizza",
    "The cat sat on the ____",
    "The dogs ____ tired",
    "Bob likes ____ , because he is hungry",
)


def test_the_answer_is_the_head_whose_removal_costs_most() -> None:
    asked = 0
    for text in TEXTS:
        found = attnctl.effects("demo", text)
        question = removal_question(found, random.Random(1))
        if question is None:
            continue
        asked += 1
        worst = min(found.heads, key=lambda one: one.log_probability)
        assert question.answer == f"head {worst.head} of layer {worst.layer}"
        assert question.answer in question.choices and len(question.facts) == len(question.choices)
        assert is_right(question, question.answer)
    assert asked


def test_nothing_is_asked_where_heads_cannot_be_told_apart() -> None:
    found = attnctl.effects("demo", TEXTS[0])
    same = tuple(structs.replace(found.heads[0], layer=one.layer, head=one.head) for one in found.heads)
    assert removal_question(replace(found, heads=same), random.Random(1)) is None


def test_the_quiz_asks_it_last(run: Callable[..., Any]) -> None:
    asked = [run("quiz", text, "--json").json["questions"] for text in TEXTS]
    assert any(questions[-1]["kind"] == "removal" for questions in asked)
    assert all(len(questions) == 5 for questions in asked)
    assert all(q["kind"] != "removal" for q in run("quiz", TEXTS[0], "--json", "--head", "0").json["questions"])
