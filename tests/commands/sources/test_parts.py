"""The parts of a prompt, and the search for those that matter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnctl.commands.sources.parts import NEGLIGIBLE, SearchProgress, prompt_parts, search_parts
from attnctl.errors import AttnctlError
from attnctl.text.tokens import split_words


def searched(effects: list[float], budget: int) -> SearchProgress:
    """The search over parts whose removals add up, each by its effect."""
    last = SearchProgress()

    def measure(groups: Sequence[tuple[int, ...]]) -> Iterator[np.ndarray]:
        yield from (np.array([sum(effects[part] for part in group)], np.float32) for group in groups)

    for last in search_parts(len(effects), measure, budget):
        assert last.measured <= budget
    return last


@given(st.lists(st.floats(-5, 5, width=32), min_size=1, max_size=20))
def test_every_part_alone_where_the_budget_allows(effects: list[float]) -> None:
    last = searched(effects, len(effects))
    assert last.measured == len(effects) and last.alone == set(range(len(effects)))
    assert [float(last.changes[part][0]) for part in range(len(effects))] == pytest.approx(effects)


@pytest.mark.parametrize("mattering", [(0, 7), (28, 35), (21, 56), (0,), (59,), (30, 31, 32)])
def test_few_of_sixty_are_found_with_few_measurements(mattering: tuple[int, ...]) -> None:
    effects = [0.0] * 60
    for size, part in enumerate(mattering, 1):
        effects[part] = -float(size)
    last = searched(effects, 30)
    assert last.alone >= set(mattering) and last.changes.keys() == set(range(60))
    assert all(float(last.changes[part][0]) == effects[part] for part in mattering)
    assert all(abs(float(last.changes[part][0])) < NEGLIGIBLE or part in last.alone for part in range(60))


def test_the_likely_parts_are_measured_first() -> None:
    effects = [0.0] * 60
    for part, size in ((5, 4.0), (23, 3.0), (47, 2.0), (11, 0.3)):
        effects[part] = -size
    asked: list[tuple[int, ...]] = []

    def measure(groups: Sequence[tuple[int, ...]]) -> Iterator[np.ndarray]:
        for group in groups:
            asked.append(group)
            yield np.array([sum(effects[part] for part in group)], np.float32)

    *_, last = search_parts(60, measure, 12, [47, 30, 5, 23, 8, 9, 10, 1, 2])
    assert asked[:6] == [(47,), (30,), (5,), (23,), (8,), (9,)]
    assert len(asked) == last.measured == 7 and len(asked[6]) == 54  # the others together weigh less than the third
    assert last.changes.keys() == set(range(60)) and last.alone == {47, 30, 5, 23, 8, 9}


TEXT = "[one] Paris is big.\n[two] Rome is old.\n[three] Oslo is cold."


def names(text: str, kind: str | None = None, messages: tuple[tuple[str, int, int], ...] = ()) -> list[str]:
    return [part.name for part in prompt_parts(text, split_words(text), kind, messages)]


PARAGRAPHS = TEXT.replace("\n", "\n\n")
TAGGED = "<document>\na\n\nb\n</document>\n<document>\nc\n\nd\n</document>\nWhere?"


HEADINGS = (
    "Documents:",
    "## Retrieved documents",
    "**Context:**",
    "Here are the passages found:",
    "<sources>",
    "**Facts**:\n",
)
LISTED = "- Paris.\n- Rome.\n  - in it\n  1. so\n  And old\n- Oslo.\n\nWhere?"
LISTED_PARTS = ["(before)", "document 0", "document 1", "document 2", "after the documents"]
NUMBERED = ["(before)", "document 1", "document 2", "after the documents"]


@pytest.mark.parametrize(
    ("text", "kind", "parts"),
    [
        (TEXT, None, ["one", "two", "three"]),
        ("a b.\n\nc d.", None, ["0 a b.", "1 c d."]),
        ("a b c", None, ["text"]),
        (TEXT, "lines", ["1 [one] Paris is big.", "2 [two] Rome is old.", "3 [three] Oslo is cold."]),
        # a question is no part of the last document
        (f"{TEXT}\n\nWhere is it cold?", None, ["one", "two", "three", "after the documents"]),
        (f"{TEXT}\n\nWhere is it cold?", "documents", ["one", "two", "three", "after the documents"]),
        (f"{PARAGRAPHS}\n\nWhere?", None, ["one", "two", "three", "after the documents"]),
        (
            f"{PARAGRAPHS.replace('is big', 'is' + chr(10) * 2 + 'big')}\n\nWhere?",
            None,
            ["one", "two", "three", "after the documents"],
        ),
        (f"{PARAGRAPHS.replace('is big', 'is' + chr(10) * 2 + 'big')}\n\nOslo is far.", None, ["one", "two", "three"]),
        (TAGGED, None, ["document 0", "document 1", "after the documents"]),
        (TAGGED, "documents", ["document 0", "document 1", "after the documents"]),
        ("Document 7: Paris.\nDocument 8: Rome.\n\nWhere?", None, ["document 7", "document 8", "after the documents"]),
        (
            "Read.\n\n**Passage [2]** Paris [1].\n[1] x\nPassage [3](Title: y) z",
            None,
            ["(before)", "passage 2", "passage 3"],
        ),
        ("[7] Paris.\n[8] Rome.", None, ["document 7", "document 8"]),
        ("<doc id=3>a</doc>\n<doc id='b.pdf'>b</doc>\nc", None, ["document 3", "b.pdf", "after the documents"]),
        (
            '<documents>\n<document index="3">\n<source>x</source>a</document>\n<document index="4">b</document>',
            None,
            ["(before)", "document 3", "document 4"],
        ),
        ("# One\n\na\n\n## Two\n\nb\n\nWhere is b?\n\nAnswer:", None, ["One", "Two", "after the sections"]),
        ("# One\n\na?\n\n## Two\n\nb", None, ["One", "Two"]),
        (
            'Read: [{"title": "Paris", "text": "[1] ]"}, {"id": 4}, {"a": [{}, {}]}]\nWhich?',
            None,
            ["(before)", "Paris", "document 4", "document 2", "after the documents"],
        ),
        ('{"documents": [{"text": "a"}, {"text": "b"}]}', "documents", ["document 0", "document 1"]),
        ('["Paris is big.", "Rome is old."]', None, ["document 0", "document 1"]),
        ('[{"a": 1}] [{"b": 1}, {"c": 2', None, ["text"]),  # one item, and a list without an end
        *((f"Answer.\n\n{heading}\n{LISTED}", None, LISTED_PARTS) for heading in HEADINGS),
        (f"Rules:\n{LISTED}", None, ["0 Rules: - Paris. - Rome. - in it 1. so And old…", "1 Where?"]),
        (
            "Context:\r\n\r\n3) Paris.\r\n4) Rome.\r\n\r\n   Old.\r\n5) Oslo.\r\nWhere?",
            "documents",
            ["(before)", "document 3", "document 4", "document 5", "after the documents"],
        ),
        ("Sources:\n(1) A\nlong one.\n(2) B\nas well.\n\nRules:\n1. Be brief.", None, NUMBERED),
        ("Facts:\n1. A.\n\nMore of A.\n\n2. B.\n\nMore of B.\n\nWhere?", None, NUMBERED),
        ("المصادر sources:\n• روما قديمة 🏛️\n• أوسلو\n", "documents", ["(before)", "document 0", "document 1"]),
        (
            "Documents:\n- a\n- b\nRules:\n- c\n- d",
            None,
            ["(before)", "document 0", "document 1", "after the documents"],
        ),
        ("Documents:\n- a\n- b\n\nc.\n- d", None, ["(before)", "document 0", "document 1", "after the documents"]),
        ("Documents:\n- only one\n\nWhere?", None, ["0 Documents: - only one", "1 Where?"]),
        ("Documents:\n1. a\n[7] b\n[8] c\n2. d", "documents", ["(before)", "document 7", "document 8"]),
        ("A list [1] and Document 7: in a line.", None, ["text"]),
    ],
)
def test_parts_of_a_text(text: str, kind: str | None, parts: list[str]) -> None:
    assert names(text, kind) == parts


def test_places_of_parts() -> None:
    tokens = split_words(TEXT)
    parts = prompt_parts(TEXT, tokens, None)
    ((a, b),) = parts[1].ranges
    assert " ".join(token.text for token in tokens[a:b]) == "[ two ] Rome is old ."
    assert TEXT[parts[2].start : parts[2].end] == "[three] Oslo is cold."
    tagged = prompt_parts(TAGGED, split_words(TAGGED), None)[1]
    assert TAGGED[tagged.start : tagged.end].endswith("d\n</document>")
    with pytest.raises(AttnctlError, match="no part"):
        prompt_parts("a", (), None)


def test_parts_of_messages() -> None:
    text = f"user: {TEXT}\nassistant: yes"
    messages = (("user 0", 6, 6 + len(TEXT)), ("assistant 1", len(text) - 3, len(text)))
    assert names(text, None, messages) == ["one", "two", "three", "assistant 1: yes"]
    lines = names(text, "lines", messages)
    assert (lines[0], lines[-1]) == ("user 0: 1 [one] Paris is big.", "assistant 1: yes")
    with pytest.raises(AttnctlError, match="no headings"):
        names(text, "headings", messages)
    both = (("user 0", 0, len(TEXT)), ("user 2", len(TEXT) + 1, 2 * len(TEXT) + 1))
    parts = names(f"{TEXT} {TEXT}", None, both)
    assert (parts[0], parts[-1]) == ("user 0: one", "user 2: three")  # both have parts of the same names
    whole = prompt_parts("What is: this?", split_words("What is: this?"), None, (("user 2", 0, 14),))
    assert [(part.name, part.message) for part in whole] == [("user 2: What is: this?", "user 2")]


def test_the_search_ends_when_the_first_three_are_settled() -> None:
    effects = [0.0] * 60
    for part, size in ((5, 4.0), (23, 3.0), (47, 2.0), (11, 0.3), (58, 0.2)):
        effects[part] = -size
    last = searched(effects, 60 - 1)
    assert last.alone >= {5, 23, 47} and last.measured < 36
    assert searched(effects, 60).measured == 60 and searched([1.0, 2.0, 3.0], 1).changes == {}
