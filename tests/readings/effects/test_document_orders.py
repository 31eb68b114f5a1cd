"""Documents in several orders: how they are drawn, what the prompt then says, and what means tell of document and place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from rich.console import Console

from attnctl.errors import UsageError
from attnctl.readings.effects.answer_sources import AnswerSources, PartSource, PromptPart, prompt_parts
from attnctl.readings.effects.document_orders import (
    DocumentOrders,
    OrderSources,
    drawn_orders,
    movable_documents,
    prompt_in_order,
)
from attnctl.readings.traces.trace import ModelInfo
from attnctl.render.terminal.effects.document_orders import OrdersTable, orders_sentences, plain_orders
from attnctl.tokens import split_words

TEXT = "Read.\n[one] Paris is big.\n[two] Rome is old.\n[three] Oslo.\n\nWhich is old?"


def parts_of(text: str, kind: str | None = None) -> tuple[PromptPart, ...]:
    return prompt_parts(text, split_words(text), kind)


def test_orders_are_drawn_by_seed_and_stand_documents_anew() -> None:
    found = drawn_orders(6, 5, 3)
    assert found[0] == (0, 1, 2, 3, 4, 5) and len(set(found)) == 5 and found == drawn_orders(6, 5, 3)
    assert found != drawn_orders(6, 5, 4)
    assert all(sorted(order) == list(range(6)) for order in found)
    again = sum(
        a == b for one, order in enumerate(found) for other in found[:one] for a, b in zip(order, other, strict=True)
    )
    assert again <= 4  # of 60 pairs, where 10 are chance
    assert sorted(drawn_orders(3, 6, 0)) == [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]
    with pytest.raises(UsageError, match="2 documents have 2 orders"):
        drawn_orders(2, 3, 0)


def test_a_prompt_in_another_order_keeps_everything_else_in_place() -> None:
    parts = parts_of(TEXT)
    assert [part.name for part in parts] == ["(before)", "one", "two", "three", "after the documents"]
    documents = movable_documents(TEXT, parts)
    assert documents == (1, 2, 3)
    moved = prompt_in_order(TEXT, parts, documents, (2, 0, 1))
    assert moved.text == "Read.\n[three] Oslo.\n[one] Paris is big.\n[two] Rome is old.\n\nWhich is old?"
    assert moved.owners == (0, 3, 1, 2, 4)
    assert [moved.text[a:b] for name, a, b in moved.spans if name == "one"] == ["[one] Paris is big.\n"]
    assert [name for name, *_ in moved.spans] == ["(before)", "three", "one", "two", "after the documents"]
    as_given = prompt_in_order(TEXT, parts, documents, (0, 1, 2))
    assert (as_given.text, as_given.owners) == (TEXT, (0, 1, 2, 3, 4))


def test_what_cannot_be_moved() -> None:
    for text, said in (("a b c", "has none"), ("[one] a", "has one"), ("[one] a\n\nb", "has one")):
        with pytest.raises(UsageError, match=said):
            movable_documents(text, parts_of(text))
    paragraphs = "[one] a\n\nbetween\n\n[two] b\n\n[three] c"
    assert movable_documents(paragraphs, parts_of(paragraphs, "paragraphs")) == (2, 3)  # one stands alone


def found_in(order: tuple[int, ...], own: Any, place: Any, alone: bool = True) -> OrderSources:
    """Where document d stands at place p, it is looked at own[d] + place[p], and matters -10 · own[d]."""
    parts = [
        PartSource(
            PromptPart("abc"[d], 10 * p, 10 * p + 9, (p, p + 1)), own[d] + place[p], -10 * own[d], np.zeros(1), alone
        )
        for p, d in enumerate(order)
    ]
    found = AnswerSources("", ModelInfo("m", "checkpoint"), "x", (), np.zeros(1), tuple(parts[::-1]), {}, 3)
    return OrderSources(order, found)


def test_means_part_the_document_from_its_place() -> None:
    """A Latin square: each document stands at each place once, so that both effects come out as they went in."""
    own, place = (0.1, 0.3, 0.2), (0.05, 0.0, -0.05)
    orders = DocumentOrders((0, 1, 2), tuple(found_in(o, own, place) for o in ((0, 1, 2), (1, 2, 0), (2, 0, 1))), 0)
    assert [(one.name, one.orders) for one in orders.document_means()] == [("b", 3), ("c", 3), ("a", 3)]
    np.testing.assert_allclose([one.looks for one in orders.document_means()], (0.3, 0.2, 0.1), atol=1e-12)
    np.testing.assert_allclose([one.looks_bias for one in orders.place_means()], place, atol=1e-12)
    np.testing.assert_allclose([one.matters_bias or 0.0 for one in orders.place_means()], 0, atol=1e-12)
    assert orders.document_means()[0].looks_deviation == pytest.approx(0.05)
    assert orders.firsts() == {"b": 3}
    assert list(orders_sentences(orders)) == [
        "“b” matters most in 3 of 3 orders.",
        "Position bias: at place 1 of 3 a document is looked at 5.0 points more than it is on average.",
    ]
    console = Console(width=80, force_terminal=True, color_system=None)
    with console.capture() as shown:
        console.print(OrdersTable(orders))
    row = next(line for line in shown.get().splitlines() if line.startswith("b "))
    assert row.split() == ["b", "30.0", "%", "±", "5.0", "−3.00", "±", "0.00"]
    lines = list(plain_orders(orders))
    assert lines[0].startswith("document\tlooks") and lines[1].startswith("b\t0.3\t0.05\t-3\t") and lines[4] == ""
    assert lines[6].split("\t")[:3] == ["1", "0.25", "0.05"]


def test_what_was_measured_only_in_a_group_has_no_mean_of_what_matters() -> None:
    orders = DocumentOrders((0, 1, 2), (found_in((0, 1, 2), (0.1, 0.3, 0.2), (0, 0, 0), alone=False),), 0)
    assert [one.matters for one in orders.document_means()] == [None] * 3
    assert [one.matters_bias for one in orders.place_means()] == [None] * 3 and orders.firsts() == {}
    assert list(plain_orders(orders))[1].split("\t")[3:] == ["", "", "0"]
