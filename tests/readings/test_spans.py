"""Parts of a text: lines named by their number, in a time that grows with the text alone."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnctl.errors import UsageError
from attnctl.readings.spans import parts_of, spans_of
from attnctl.tokens import Token


@settings(deadline=None, max_examples=50)
@given(st.text("ab \t\r\n", max_size=40))
def test_lines_are_those_that_hold_something(text: str) -> None:
    found = spans_of("lines", text)
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    assert [text[a:b] for _, a, b in found] == [line for _, line in lines]
    assert [int(name.split()[0]) for name, *_ in found] == [number for number, _ in lines]


def test_a_line_of_spaces_is_read_once() -> None:
    """Each of its spaces was looked at from each other one: a megabyte of them took for ever."""
    begun = time.process_time()
    assert len(spans_of("lines", " " * 200_000 + "\n" + "a\n" * 50_000)) == 50_000
    assert time.process_time() - begun < 10


def test_tokens_of_another_text_have_no_parts_of_this_one() -> None:
    own = [Token("<s>", special=True), Token("Once"), Token("upon")]
    with pytest.raises(UsageError, match="none of these tokens stands in it"):
        parts_of("lines", "Il était\nune fois", own)
    assert parts_of("lines", "Il", [Token("<s>", special=True)])[0].name == "(special)"
