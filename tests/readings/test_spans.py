"""Parts of a text: lines named by their number, in a time that grows with the text alone."""

from __future__ import annotations

import time

from hypothesis import given, settings
from hypothesis import strategies as st

from attnctl.readings.spans import spans_of


@settings(deadline=None)
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
