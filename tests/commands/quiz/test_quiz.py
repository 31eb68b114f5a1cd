"""The quiz: its questions come from the trace, its answers from the mathematics, its marking from both."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pexpect
import pytest
from msgspec import structs

import attnctl
from attnctl import attention
from attnctl.commands.quiz.compute import MAKERS, questions_of_trace, quiz_questions, removal_question
from attnctl.commands.quiz.result import QuizQuestion, is_right, number_in
from attnctl.models import attend, open_model
from tests.conftest import Result, spawned

TEXT = "Alice will eat pizza"
Run = Callable[..., Result]


def test_every_kind_is_asked_and_true() -> None:
    trace = attend(TEXT, model="random", causal=True, n_heads=2)
    asked = quiz_questions(trace, 40, seed=3)
    assert asked == quiz_questions(trace, 40, seed=3) != quiz_questions(trace, 40, seed=4)
    assert all("“eat”" in q.text for q in quiz_questions(trace, 6, query=2))
    assert len({q.text + "".join(q.facts) for q in asked}) == len(asked) > len(MAKERS)
    assert {q.kind for q in asked} == {
        "strongest", "softmax", "sum", "scaled", "unscaled", "temperature", "mask", "context",
    }  # fmt: skip
    weights, scores = trace.layers[0].weights, trace.layers[0].scores
    names = [token.text for token in trace.tokens]
    for q in asked:
        i = next(at for at, name in enumerate(names) if f"“{name}”" in q.text.split("weight on")[0])
        head = int(q.text.rpartition("head ")[2].rstrip(")?,").split(")")[0])
        row = weights[head, i]
        if q.kind == "strongest":
            assert q.answer == names[int(row.argmax())] and len(q.choices) == i + 1
        elif q.kind in ("softmax", "sum"):
            j = names.index(q.text.rpartition("“")[2].partition("”")[0])
            assert abs(float(q.answer) - row[j]) < 0.02
            told = np.array(
                [float(fact.split()[1].replace("?", "nan")) for fact in q.facts]
            )  # what there is to work with
            worked = np.exp(told)[j] / np.exp(told).sum() if q.kind == "softmax" else 1 - np.nansum(told)
            assert float(q.answer) == pytest.approx(worked, abs=1e-6)
        elif q.kind == "mask":
            assert q.answer == i + 1
        elif q.kind == "unscaled":
            bare = attention.softmax(scores[head, i].astype(np.float64)[: i + 1]).max()
            assert q.answer == ("larger" if bare > row.max() else "smaller")


def test_the_first_question_is_where_the_headline_looks_before_any_number_is_shown() -> None:
    asked = quiz_questions(attend(TEXT, "demo"), 5)
    assert asked[0].kind == "prediction" and asked[0].answer == "Alice" and asked[0].choices == tuple(TEXT.split())
    assert not asked[0].facts and "0." not in asked[0].text and "a verb to its subject" in asked[0].text
    assert "Alice 1.00" in asked[0].why and [q.kind for q in asked].count("prediction") == 1
    assert quiz_questions(attend(TEXT, "random"), 1)[0].kind != "prediction"  # no role is known to guess by


@pytest.mark.parametrize("text", ["Alice will eat pizza", "Mei sings", "The nurse checks the chart"])
def test_no_answer_is_a_weight_next_to_0_or_1(text: str) -> None:
    for q in (q for seed in range(5) for q in quiz_questions(attend(text, "demo"), 12, seed=seed)):
        if q.kind in ("sum", "softmax"):
            assert 0.02 < float(q.answer) < 0.98, q
        if q.kind == "context":
            assert not any(" 1.00 × " in fact for fact in q.facts), q


def test_a_number_next_to_nothing_has_no_sign() -> None:
    asked = quiz_questions(attend(TEXT, model="random", scale=1e-4), 40)
    assert "0.00" in repr(asked) and not re.search(r"-0\.00(?!\d)", repr(asked))


def test_names_are_made_once_for_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were made again for each of layers × heads × queries: half a minute for 600 words."""
    made: list[str] = []

    def counted(text: str) -> str:
        made.append(text)
        return text

    monkeypatch.setattr("attnctl.commands.quiz.compute.visible_text", counted)
    assert quiz_questions(attend("word " * 60, model="random", causal=True, n_heads=4), 2)
    assert len(made) < 3 * 60


def test_what_cannot_be_asked_is_not() -> None:
    bare = attend(TEXT, model="random", temperature=2.0)
    assert not {"softmax", "unscaled"} & {q.kind for q in quiz_questions(bare, 20)}
    odd = replace(bare.layers[0], mask=np.array([[1, 0, 1, 0], [1, 1, 0, 1], [0, 1, 1, 1], [1, 1, 0, 1]], bool))
    assert "mask" not in {q.kind for q in quiz_questions(replace(bare, layers=(odd,)), 20)}  # nobody could count it


CHOICE = QuizQuestion("k", "?", (), "eat", ("Alice", "eat", "a"), why="")
THE = QuizQuestion("k", "?", (), "The", ("The", "dog", "saw", "a"), why="")
NUMBER = QuizQuestion("k", "?", (), 0.42, tolerance=0.015, why="")


@pytest.mark.parametrize(
    ("question", "given", "good"),
    [
        (CHOICE, "eat", True), (CHOICE, " EAT \n", True), (CHOICE, "b", True), (CHOICE, "c", False), (CHOICE, "Alice", False),
        (CHOICE, "a", False), (CHOICE, "d", None), (CHOICE, "pizza", None), (CHOICE, "", None),
        (NUMBER, "0.42", True), (NUMBER, ".43", True), (NUMBER, "0,41", True), (NUMBER, "42 %", True), (NUMBER, "42%", True),
        # "a" is what a reader types for the first choice, and a word of many sentences
        (THE, "a", True), (structs.replace(THE, answer="a"), "a", True), (structs.replace(THE, answer="a"), "d", True),
        (structs.replace(THE, answer="dog"), "a", False),
        (NUMBER, "0.45", False), (NUMBER, "−0.42", False), (NUMBER, "nan", False), (NUMBER, "much", None), (NUMBER, "", None),
    ],
)  # fmt: skip
def test_marking(question: QuizQuestion, given: str, good: bool | None) -> None:
    assert is_right(question, given) is good


def test_numbers_as_people_write_them() -> None:
    assert [number_in(text) for text in ("−1,5", "3e-1", "7 %", "one")] == [-1.5, 0.3, 0.07, None]


def test_it_works_in_a_pipe(run: Run) -> None:
    asked = run("quiz", TEXT, "--model", "random", "--json", "-n", "6", "--seed", "5").json["questions"]
    answers = "\n".join(str(q["answer"]) for q in asked).encode()
    result = run("quiz", TEXT, "--model", "random", "-n", "6", "--seed", "5", stdin=answers)
    assert result.code == 0 and result.err == "" and result.out.endswith("\n  6 of 6 right\n")
    assert all(line == line.rstrip() and len(line) <= 80 for line in result.out.splitlines())
    result = run("quiz", TEXT, "--model", "random", "-n", "6", "--seed", "5", stdin=b"\nhm\n")
    assert result.code == 0 and result.out.endswith("\n  0 of 6 right, 2 answered\n")


def test_at_a_terminal_it_asks_again_and_ends_quietly() -> None:
    child = spawned("quiz", TEXT, "--model", "random", "-n", "2")
    for answer, said in (("certainly not an answer", "That is not an answer"), ("", "passed"), (None, "0 of 2 right")):
        child.expect("> ")
        child.sendeof() if answer is None else child.sendline(answer)
        child.expect(said)
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


def test_an_interrupt_ends_it_with_130() -> None:
    child = spawned("quiz", TEXT, "--model", "random")
    child.expect("> ")
    child.sendintr()
    child.expect("attnctl: interrupted")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 130


def asked_of(kind: str, **how: Any) -> list[QuizQuestion]:
    trace = attend("Alice will eat pizza with Bob", model="random", n_heads=4, **how)
    return [q for q in quiz_questions(trace, 150) if q.kind == kind]


@pytest.mark.parametrize(
    ("how", "rule", "why"),
    [
        ({"causal": True}, "no token may look at the ones after it.", "itself and those before it"),
        ({"window": 2}, "; none may look 2 tokens away or farther.", "itself and up to 1 on either side"),
        ({"causal": True, "window": 2}, "after it, and none may look 2 tokens", "itself and up to 1 before it"),
    ],
)
def test_what_a_mask_leaves_can_be_counted_from_the_question(how: dict[str, Any], rule: str, why: str) -> None:
    asked = asked_of("mask", **how)
    assert asked and any(rule in q.text for q in asked) and all(why in q.why for q in asked)
    for q in asked:
        at = int(q.text.partition("is number ")[2].partition(";")[0])
        seen = [j for j in range(6) if (j <= at or "causal" not in how) and abs(at - j) < how.get("window", 6)]
        assert q.answer == len(seen)


def test_a_missing_weight_is_never_below_zero() -> None:
    """Twelve rounded weights may add up to more than 1."""
    trace = attend("one two three four five six seven eight nine ten", model="random", n_heads=8)
    asked = [q for q in quiz_questions(trace, 300) if q.kind == "sum"]
    assert asked and all(float(q.answer) >= 0 for q in asked) and not any("= -0" in q.why for q in asked)


def test_a_scale_above_one_lies_the_other_way() -> None:
    assert all("farther apart" in q.why and q.answer == "larger" for q in asked_of("unscaled"))
    asked = asked_of("unscaled", scale=3.0)
    assert asked and all("closer together" in q.why and q.answer == "smaller" for q in asked)


def test_the_last_question_is_which_head_s_removal_costs_most() -> None:
    found = attnctl.effects("demo", "Bob likes ____ , because he is hungry")
    question = removal_question(found, random.Random(1))
    worst = min(found.heads, key=lambda one: one.log_probability)
    assert question is not None and question.answer == f"head {worst.head} of layer {worst.layer}"
    assert question.answer in question.choices and len(question.facts) == len(question.choices)
    assert removal_question(attnctl.effects("demo", "Alice will ____ pizza"), random.Random(1)) is None  # none matters
    unlikely = structs.replace(found, baseline=structs.replace(found.baseline, probability=0.0033))
    assert removal_question(unlikely, random.Random(1)) is None  # it asked about a word "with 0 %"
    same = tuple(structs.replace(found.heads[0], layer=one.layer, head=one.head) for one in found.heads)
    assert (
        removal_question(structs.replace(found, heads=same), random.Random(1)) is None
    )  # which nobody could tell apart
    trace = attend(TEXT, model="demo")
    asked, plain = (questions_of_trace(trace, 5, 1, model=each) for each in (open_model("demo"), None))
    assert asked[:4] == plain[:4] and [asked[4].kind == "removal", plain[4].kind == "removal"] == [True, False]
