"""Which link a reader is shown first, what it is called, and how sure it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnctl
from attnctl.layer import LayerTrace
from attnctl.readings.questions import certainty
from attnctl.readings.questions.certainty import ANTECEDENT, OBJECT, SUBJECT, Certainty, Sentence, log_odds
from attnctl.readings.questions.headline import LARGEST, NO_OTHER, doubt_of, headline, other_headlines
from attnctl.readings.questions.word_classes import classes_in_sentence, is_name, usual_gender, word_classes
from attnctl.text.tokens import Token, split_words
from attnctl.trace import Trace
from attnctl.trace.model_info import ModelInfo
from attnctl.trace.subject import Subject
from tests.conftest import Run
from tests.tools.calibration import interval, outcomes, read_cases


def trace_of(words: str, *heads: list[list[float]], kind: str = "matrix", finds: Any = None) -> Trace:
    """One layer whose heads have these weights."""
    tokens = tuple(Token(word, at) for at, word in enumerate(words.split()))
    numbers = tuple(range(len(heads)))
    layer = LayerTrace(layer=0, heads=numbers, kv_heads=numbers, weights=np.array(heads, dtype=np.float32))
    return Trace(
        Subject(words, tokens, ModelInfo("m", kind, n_heads=len(heads), n_layers=1, finds=finds)), layers=(layer,)
    )


def link(line: Any) -> tuple[str, str]:
    """The words of a headline of the demo."""
    assert line is not None
    return line.query, line.key


# every token looks at "c" in the first head; in the second one row alone looks at "a"
COMMON = [[0.1, 0.0, 0.8, 0.1], [0.1, 0.0, 0.8, 0.1], [0.1, 0.0, 0.8, 0.1], [0.1, 0.0, 0.9, 0.0]]
OWN = [[0.7, 0.1, 0.1, 0.1], [0.0, 0.8, 0.1, 0.1], [0.1, 0.1, 0.7, 0.1], [0.6, 0.1, 0.1, 0.2]]


# --- models of which nothing was measured -------------------------------------------------------------------------


def test_the_largest_weight_on_no_sink_and_not_on_itself() -> None:
    line = headline(trace_of("a b c d", COMMON, OWN))
    assert line is not None and (line.head, line.query, line.key) == (1, 3, 0)
    assert line.weight == np.float32(0.6) and line.reason == LARGEST
    assert line.role == "" and line.certainty is None


def test_the_first_token_of_a_checkpoint_and_special_tokens_are_sinks() -> None:
    weights = [[0.9, 0.0, 0.1, 0.0], [0.9, 0.0, 0.1, 0.0], [0.1, 0.1, 0.7, 0.1], [0.55, 0.45, 0.0, 0.0]]
    trace = trace_of("a b c d", weights, kind="checkpoint")
    line = headline(trace)
    assert line is not None and (line.query, line.key) == (3, 1)
    special = tuple(replace(token, special=token.text in ("b", "c", "d")) for token in trace.tokens)
    alone = headline(trace.about(tokens=special))
    assert alone is not None and alone.reason == NO_OTHER


def test_no_reason_where_everything_was_asked_for() -> None:
    trace = trace_of("a b c d", COMMON, OWN)
    line = headline(trace, layer=0, head=0, query=1)
    assert line is not None and line.reason == "" and line.key == 2
    alone = headline(trace_of("a b c d", OWN), query=3)  # one layer, one head
    assert alone is not None and alone.reason == ""
    assert headline(trace, query=9) is None


# --- heads that were measured -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "query", "key", "role"),
    [
        ("Alice will eat pizza", "eat", "Alice", "verb → subject"),
        ("The nurse checks the chart", "checks", "nurse", "verb → subject"),
        ("The plumber fixes the sink", "fixes", "plumber", "verb → subject"),
        ("Mei sings", "sings", "Mei", "verb → subject"),
        ("Dogs bark", "bark", "Dogs", "verb → subject"),
        ("The keys on the table belong to Ana", "belong", "keys", "verb → subject past others"),
        ("Mary thanked Tom because he likes tea", "he", "Tom", "pronoun → antecedent"),
    ],
)
def test_a_sentence_is_about_who_does_what(text: str, query: str, key: str, role: str) -> None:
    trace = attnctl.attend(text)
    line = headline(trace)
    assert line is not None
    assert (trace.tokens[line.query].text, trace.tokens[line.key].text, line.role) == (query, key, role)
    assert line.certainty == "sure" and doubt_of(trace, line) == ""


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("The doctor told the patient that she was late", "“she” may stand for “doctor” as well."),
        ("Anna called Maria because she was ill", "“she” may stand for “Anna” as well."),
    ],
)
def test_two_candidates_of_one_kind_are_unsure(text: str, why: str) -> None:
    trace = attnctl.attend(text)
    line = headline(trace)
    assert line is not None and line.certainty == "unsure"
    assert doubt_of(trace, line) == why


def test_nothing_is_sure_in_a_text_that_the_model_cannot_read() -> None:
    line = attnctl.attend("Bonjour tout le monde").headline()
    assert line is not None and line.certainty == "unsure"


def test_no_induction_head_without_a_repetition_and_no_role_without_a_relation() -> None:
    for text in ("hello world", "purple umbrella , yellow raincoat"):
        line = attnctl.attend(text).headline()
        assert line is not None and (line.layer, line.head) != (1, 5), text
    line = attnctl.attend("hello world").headline()
    assert line is not None and line.role == "" and line.certainty == "unsure"


def test_a_model_that_was_changed_or_masked_otherwise_has_roles_and_no_certainty() -> None:
    for how in ({"causal": True}, {"off": "0.3"}):
        line = attnctl.attend("Alice will eat pizza", **how).headline()
        assert line is not None and line.role == "verb → subject" and line.certainty is None


def test_the_headline_within_a_query_and_a_head() -> None:
    trace = attnctl.attend("Alice will eat pizza")
    line = headline(trace, query=3)
    assert line is not None and (line.head, line.key, line.role) == (1, 2, "word → its verb")
    line = headline(trace, layer=1, head=0, query=2)
    assert line is not None and (line.key, line.role, line.reason) == (0, "verb → subject", "")
    line = headline(trace, layer=0, head=5)
    assert line is not None and (line.layer, line.head, line.role) == (0, 5, "")


@pytest.mark.parametrize(
    ("text", "drop", "query", "key"),
    [("Alice will eat pizza", "first", "pizza", "eat"), ("The boy near the trees laughs", "first", "laughs", "boy")],
)
def test_where_keys_are_left_out_it_is_the_best_of_the_others(
    text: str, drop: str, query: str, key: str, run: Run
) -> None:
    document = run("explain", text, "--drop", drop, "--json").json
    line = document["headline"]
    names = [document["tokens"][line["query"]]["text"], document["key_tokens"][line["key"]]["text"]]
    assert names == [query, key] and line["role"]
    assert f"“{query}” looks at “{key}”" in run("explain", text, "--drop", drop).out


def test_a_head_that_looks_elsewhere_is_never_sure_and_one_that_is_off_no_headline() -> None:
    trace = attnctl.attend("Running helps Paul relax")
    line = trace.headline()
    assert line is not None and (not line.sure or line.weight >= 0.5)
    line = attnctl.attend("Alice will eat pizza", off="1.0").headline()
    assert line is not None and (line.layer, line.head) != (1, 0)


def test_between_a_noun_and_a_verb_stands_a_noun() -> None:
    for text in ("The bus stop is near", "The train ride was short"):
        words = text.split()
        assert classes_in_sentence(words)[2] == {"noun"}, text
    assert "verb" in classes_in_sentence(["The", "dog", "barks", "loudly"])[2]


def test_other_links_are_sure_and_of_other_heads() -> None:
    trace = attnctl.attend("Alice will eat pizza")
    line = headline(trace)
    assert line is not None
    others = other_headlines(trace, line)
    assert [(other.query, other.key, other.certainty) for other in others] == [(3, 2, "sure")]


# --- the measurement ----------------------------------------------------------------------------------------------


def test_of_sentences_that_nothing_was_fitted_to_at_most_one_percent_are_sure_and_wrong() -> None:
    judged = list(outcomes(read_cases("headlines.txt", "demo"), "demo", certainty.measured()["demo"]))
    sure = [outcome for outcome in judged if outcome.line.sure]
    unsure = [outcome for outcome in judged if not outcome.line.sure]
    ordinary = [outcome for outcome in judged if not outcome.marked.ambiguous]
    assert len(judged) == 300
    assert sum(not outcome.right for outcome in sure) <= 0.01 * len(sure)
    assert sum(not outcome.right for outcome in unsure) >= 0.25 * len(unsure)
    assert sum(bool(outcome.line.sure) for outcome in ordinary) >= 0.85 * len(ordinary)
    right = sum(outcome.right or outcome.ambiguous and not outcome.line.sure for outcome in judged)
    assert right >= 57 / 60 * len(judged)
    page = (Path(attnctl.__file__).parent / "docs" / "models.md").read_text(encoding="utf-8")
    assert interval(sum(not outcome.right for outcome in sure), len(sure)) in page


def test_a_probability_is_a_logistic_regression_of_the_evidence() -> None:
    measured = Certainty({"subject": {"intercept": 1.0, "odds": 0.5}}, {"antecedent": 0.95, "others": 0.9})
    assert measured.probability(SUBJECT, {"odds": 2.0, "lead": 9.0}) == pytest.approx(1 / (1 + np.exp(-2.0)))
    assert (
        measured.is_sure(SUBJECT, 0.9) and not measured.is_sure(SUBJECT, 0.89) and not measured.is_sure(ANTECEDENT, 0.9)
    )
    assert log_odds(0.5) == 0 and log_odds(1.0) == 7 and log_odds(0.0) == -7


# --- words --------------------------------------------------------------------------------------------------------


def test_words_have_classes() -> None:
    words = {"eat": "verb", "pizza": "noun", "The": "determiner", "he": "pronoun", "Xyzzy": "noun"}
    assert all(kind in word_classes(word) for word, kind in words.items())
    assert word_classes("blorp") == {"noun", "verb", "adjective"} and word_classes("!") == frozenset()


@pytest.mark.parametrize(
    ("text", "word", "classes"),
    [
        ("The nurse checks the chart", "chart", {"noun"}),  # behind a determiner stands no verb
        ("The nurse checks the chart", "checks", {"noun", "verb"}),
        ("They watch birds", "watch", {"verb"}),  # behind a subject pronoun no noun
        ("We will cook the fish", "cook", {"verb"}),
        ("My aunt met Mark", "Mark", {"noun"}),  # a capital within a sentence: a name
        ("Dogs bark", "bark", {"noun", "verb"}),  # a sentence has a verb
    ],
)
def test_a_sentence_rules_classes_out(text: str, word: str, classes: set[str]) -> None:
    words = text.split()
    assert classes_in_sentence(words)[words.index(word)] == classes


def sentence(text: str) -> Sentence:
    return Sentence([Token(word) for word in text.split()])


def test_a_relation_joins_words_of_its_classes_in_their_order() -> None:
    known = sentence("Alice will eat pizza")
    assert known.fits(OBJECT, 3, 2) and not known.fits(OBJECT, 2, 3)
    assert known.fits(SUBJECT, 2, 0) and not known.fits(SUBJECT, 2, 1)
    storm = sentence("After the big storm , farmers repaired fences")
    assert not storm.fits(SUBJECT, 6, 3) and storm.fits(SUBJECT, 6, 5)  # behind a preposition stands no subject


@pytest.mark.parametrize(
    ("text", "key", "fits"),
    [
        ("Diego thanked Sofia because he", 0, True),
        ("Diego thanked Sofia because he", 2, False),  # Sofia is no he
        ("Zorblax thanked Quimbly because he", 2, True),
        ("The girls saw the boy because they", 1, True),
        ("The girls saw the boy because they", 4, False),  # one is not they
        ("The girls saw them", 1, False),  # that would be themselves
        ("At the market she", 2, False),  # a subject is named in another clause
    ],
)
def test_what_a_pronoun_may_stand_for(text: str, key: int, fits: bool) -> None:
    words = text.split()
    assert sentence(text).fits(ANTECEDENT, len(words) - 1, key) == fits


def test_names_and_their_usual_gender() -> None:
    names = "Diego m, Sofia f, José m, Ngozi f, Kwame m, Priya f, Kim x, Zorblax None, diego None, The None"
    for name, gender in map(str.split, names.split(", ")):
        assert str(usual_gender(name)) == gender, name
    assert is_name("Sofia") and is_name("Zorblax") and not is_name("The") and not is_name("pizza")
    assert [token.text for token in split_words("Hye-jin ate")][0] == "Hye"
