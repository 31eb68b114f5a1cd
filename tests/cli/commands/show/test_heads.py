"""`attnctl heads` from outside: which heads --top keeps, and what the table says of its order."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conftest import Result

Run = Callable[..., Result]


@pytest.mark.parametrize(("by", "heading"), [(None, "confid"), ("rank", "rank")])
def test_top_keeps_the_first_of_an_order_that_is_said(by: str | None, heading: str, run: Run) -> None:
    options = () if by is None else ("--by", by)
    every = run("heads", "Alice will eat pizza", "--json").json["heads"]
    kept = run("heads", "Alice will eat pizza", "--top", "3", "--json", *options).json["heads"]
    largest = sorted((one[by or "confidence"] for one in every), reverse=True)[:3]
    assert [one[by or "confidence"] for one in kept] == largest
    shown = run("heads", "Alice will eat pizza", "--top", "3", *options).out
    assert f"Sorted by {heading}, the largest first." in shown.replace("\n", " ")


def test_without_top_the_heads_are_in_the_order_of_the_model(run: Run) -> None:
    shown = run("heads", "Alice will eat pizza").out
    assert "Sorted" not in shown and "sink: 0.3 or more" in shown.replace("\n", " ")
