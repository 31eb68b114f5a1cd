"""The parts of a prompt, and the search for those that matter."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnctl.errors import AttnctlError
from attnctl.readings.effects.answer_sources import NEGLIGIBLE, Found, prompt_parts, search_parts
from attnctl.tokens import split_words


def found(effects: list[float], budget: int) -> Found:
    """The search over parts whose removals add up, each by its effect."""
    last = Found()
    for last in search_parts(
        len(effects), lambda group: np.array([sum(effects[at] for at in group)], np.float32), budget
    ):
        assert last.measured <= budget
    return last


@given(st.lists(st.floats(-5, 5, width=32), min_size=1, max_size=20))
def test_every_part_alone_where_the_budget_allows(effects: list[float]) -> None:
    last = found(effects, len(effects))
    assert last.measured == len(effects) and last.alone == set(range(len(effects)))
    assert [float(last.changes[at][0]) for at in range(len(effects))] == pytest.approx(effects)


@pytest.mark.parametrize("mattering", [*combinations(range(0, 60, 7), 2), (0,), (59,), (30, 31, 32)])
def test_few_of_sixty_are_found_with_few_measurements(mattering: tuple[int, ...]) -> None:
    effects = [0.0] * 60
    for size, at in enumerate(mattering, 1):
        effects[at] = -float(size)
    last = found(effects, 30)
    assert last.alone >= set(mattering) and last.changes.keys() == set(range(60))
    assert all(float(last.changes[at][0]) == effects[at] for at in mattering)
    assert all(abs(float(last.changes[at][0])) < NEGLIGIBLE or at in last.alone for at in range(60))


def test_the_likely_parts_are_measured_first() -> None:
    effects = [0.0] * 60
    for at, size in ((5, 4.0), (23, 3.0), (47, 2.0), (11, 0.3)):
        effects[at] = -size
    asked: list[tuple[int, ...]] = []

    def measure(group: Sequence[int]) -> np.ndarray:
        asked.append(tuple(group))
        return np.array([sum(effects[at] for at in group)], np.float32)

    *_, last = search_parts(60, measure, 12, [47, 30, 5, 23, 8, 9, 10, 1, 2])
    assert asked[:6] == [(47,), (30,), (5,), (23,), (8,), (9,)]
    assert len(asked) == last.measured == 7 and len(asked[6]) == 54  # the others together weigh less than the third
    assert last.changes.keys() == set(range(60)) and last.alone == {47, 30, 5, 23, 8, 9}


def test_no_budget_finds_nothing() -> None:
    assert found([1.0, 2.0, 3.0], 1).changes == {}


TEXT = "[one] Paris is big.\n[two] Rome is old.\n[three] Oslo is cold."


def names(text: str, kind: str | None = None, messages: tuple[tuple[str, int, int], ...] = ()) -> list[str]:
    return [part.name for part in prompt_parts(text, split_words(text), kind, messages)]


def test_parts_of_a_text() -> None:
    assert names(TEXT) == ["one", "two", "three"]
    assert names("a b.\n\nc d.") == ["0 a b.", "1 c d."] and names("a b c") == ["text"]
    assert names(TEXT, "lines") == ["1 [one] Paris is big.", "2 [two] Rome is old.", "3 [three] Oslo is cold."]
    parts = prompt_parts(TEXT, split_words(TEXT), None)
    tokens = split_words(TEXT)
    assert [" ".join(t.text for t in tokens[a:b]) for a, b in (part.tokens for part in parts)][
        1
    ] == "[ two ] Rome is old ."
    assert TEXT[parts[2].start : parts[2].end] == "[three] Oslo is cold."


def test_parts_of_messages() -> None:
    text = f"user: {TEXT}\nassistant: yes"
    messages = (("0 user", 6, 6 + len(TEXT)), ("1 assistant", len(text) - 3, len(text)))
    assert names(text, None, messages) == ["one", "two", "three", "1 assistant"]
    assert (
        names(text, "lines", messages)[0] == "1 [one] Paris is big."
        and names(text, "lines", messages)[-1] == "1 assistant"
    )
    with pytest.raises(AttnctlError, match="no headings"):
        names(text, "headings", messages)


def test_parts_without_tokens() -> None:
    with pytest.raises(AttnctlError, match="no part"):
        prompt_parts("a", (), None)


def test_the_question_is_no_part_of_the_last_document() -> None:
    for kind in (None, "documents"):
        assert names(f"{TEXT}\n\nWhere is it cold?", kind) == ["one", "two", "three", "after the documents"]
    assert names(TEXT.replace("\n", "\n\n") + "\n\nWhere?")[-1] == "after the documents"
    assert names(TEXT.replace("is big", "is\n\nbig") + "\n\nWhere?")[-1] == "three"  # nobody can tell where it ends


def test_a_document_ends_at_its_closing_tag() -> None:
    text = "<document>\na\n\nb\n</document>\n<document>\nc\n\nd\n</document>\nWhere?"
    for kind in (None, "documents"):
        parts = prompt_parts(text, split_words(text), kind)
        assert [part.name for part in parts] == ["document 0", "document 1", "after the documents"]
        assert text[parts[1].start : parts[1].end].endswith("d\n</document>")


def test_parts_of_two_messages_with_the_same_names() -> None:
    text = f"{TEXT} {TEXT}"
    both = (("0 user", 0, len(TEXT)), ("2 user", len(TEXT) + 1, len(text)))
    assert names(text, None, both)[:1] == ["0 user: one"] and names(text, None, both)[-1] == "2 user: three"


def test_the_search_ends_when_the_first_three_are_settled() -> None:
    effects = [0.0] * 60
    for at, size in ((5, 4.0), (23, 3.0), (47, 2.0), (11, 0.3), (58, 0.2)):
        effects[at] = -size
    last = found(effects, 60 - 1)
    assert last.alone >= {5, 23, 47} and last.measured < 36
    assert found(effects, 60).measured == 60
