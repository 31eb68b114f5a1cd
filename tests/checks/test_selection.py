"""The grammar of selections: what each form means, and what is refused in one style."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnctl.checks.selection import (
    chosen_indices,
    find_edge,
    find_several,
    find_token,
    heads_by_layer,
    keys_left_out,
    selected_heads,
    selected_indices,
    token_range,
)
from attnctl.errors import UsageError, options_as_flags
from attnctl.text.tokens import Token, split_words

TOKENS = split_words("3 is more than 2, not 1-2 the cat and the dog")
PATCHES = [Token(f"p{x}", box=(8 * x, 0, 8 * x + 8, 8)) for x in range(3)]
COUNT = 9
INDICES = st.integers(-COUNT, COUNT - 1)


@st.composite
def items(draw: st.DrawFn, count: int = COUNT) -> tuple[str, list[int]]:
    """One item of the grammar for `count` things, and the indices that it means by Python's own slices."""
    every = list(range(count))
    form = draw(st.sampled_from(("index", "end", "range", "rest")))
    first = draw(st.integers(0, count - 1))
    if form == "end":
        back = draw(st.integers(1, count))
        return f"-{back}", [every[-back]]
    if form == "rest":
        return f"{first}-", every[first:]
    last = draw(st.integers(first, count - 1))
    return (f"{first}-{last}", every[first : last + 1]) if form == "range" else (str(first), [every[first]])


SPACE = st.sampled_from(("", " "))


@given(st.lists(items(), min_size=1, max_size=4), SPACE)
def test_items_with_commas_are_their_indices_in_order(parts: list[tuple[str, list[int]]], space: str) -> None:
    wanted = f"{space},{space}".join(item for item, _ in parts)
    meant = list(dict.fromkeys(index for _, indices in parts for index in indices))
    assert selected_indices(wanted, COUNT, "layer", "demo") == tuple(meant)
    assert chosen_indices(meant, COUNT, "layer", "demo") == tuple(meant)


@given(items(), items())
def test_heads_have_the_same_items_on_both_sides_of_the_point(
    layers: tuple[str, list[int]], heads: tuple[str, list[int]]
) -> None:
    meant = tuple((layer, head) for layer in layers[1] for head in heads[1])
    assert selected_heads(f"{layers[0]}.{heads[0]}", COUNT, COUNT, "demo", "off") == meant
    assert selected_heads(meant, COUNT, COUNT, "demo", "off") == meant
    assert heads_by_layer(reversed(meant)) == {layer: tuple(sorted(heads[1])) for layer in sorted(layers[1])}


@given(items(len(TOKENS)))
def test_rows_and_tokens_have_the_same_items(item: tuple[str, list[int]]) -> None:
    wanted, meant = item
    assert list(range(*token_range(wanted, len(TOKENS), "rows"))) == meant
    assert find_several(TOKENS, wanted) == meant


@given(st.lists(INDICES, max_size=5))
def test_indices_of_python_count_from_the_end_too(wanted: list[int]) -> None:
    meant = tuple(dict.fromkeys(list(range(COUNT))[index] for index in wanted))
    assert selected_indices(wanted, COUNT, "head", "demo") == meant


@given(st.text(max_size=12) | st.from_regex(r"[-+0-9.,* ]{0,12}", fullmatch=True))
def test_any_text_is_indices_that_exist_or_one_line(wanted: str) -> None:
    for select in (
        lambda: chosen_indices(wanted, COUNT, "head", "demo"),
        lambda: [index for place in selected_heads(wanted, COUNT, COUNT, "demo", "off") for index in place],
        lambda: range(*token_range(wanted, COUNT, "rows")),
        lambda: find_several(TOKENS[:COUNT], wanted),
    ):
        try:
            assert all(0 <= index < COUNT for index in select())
        except UsageError as error:
            assert error.option is not None and "\n" not in str(error)


def test_all_and_nothing_are_every_index() -> None:
    for every in (None, "all", " all "):
        assert selected_indices(every, 3, "layer", "demo") is None
        assert chosen_indices(every, 3, "layer", "demo") == (0, 1, 2)
    assert token_range(None, 3, "rows") == token_range("all", 3, "rows") == (0, 3)
    assert selected_heads("1.*,0.all", 2, 2, "demo", "off") == ((1, 0), (1, 1), (0, 0), (0, 1))


def test_a_number_is_an_index_and_text_names_a_token() -> None:
    for query, at in (("than", 3), ("THAN", 3), ("0", 0), ("-1", 14), ("2", 2), ("text:3", 0), (",", 5)):
        assert find_token(TOKENS, query) == at, query
    assert find_several(TOKENS, "is,-1,4") == [1, 14, 4] and find_several(TOKENS, "1-3,2") == [1, 2, 3]
    assert find_several(PATCHES, "9,3") == [1] and find_several(PATCHES, "2,1") == [0]
    assert find_edge(TOKENS, TOKENS[:3], "dog → is") == find_edge(TOKENS, TOKENS, "-1>1") == (14, 1)


def test_keys_to_drop_are_named_by_rule_text_or_index() -> None:
    keys = [Token("[CLS]", special=True), *split_words("the cat the 1")]
    for drop, out in ((["first"], (0,)), (["special", "the"], (0, 1, 3)), (["1"], (1,)), (["text:1"], (4,))):
        assert keys_left_out(keys, drop) == out


# what is selected, and the one line that refuses it on the command line
REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: selected_indices("7", 2, "layer", "demo"), "--layer 7: demo has layers 0 to 1"),
    (lambda: selected_indices([7], 2, "layer", "demo"), "--layer 7: demo has layers 0 to 1"),
    (lambda: selected_indices("0,-3", 2, "layer", "demo"), "--layer -3: demo has layers 0 to 1"),
    (lambda: selected_indices("0-9", 1, "layer", "dot"), "--layer 0-9: dot has layer 0 only"),
    (lambda: selected_indices("5-", 2, "head", "demo"), "--head 5-: demo has heads 0 to 1"),
    (lambda: selected_indices("3-1", 9, "head", "demo"), "--head 3-1: from 3 down to 1 is not a range"),
    (lambda: selected_indices("a-b", 2, "layer", "demo"), "--layer a-b: it reads 3, 0-5, 1,4,7, -1 or all"),
    (lambda: selected_indices("", 2, "layer", "demo"), "--layer '': it reads 3, 0-5, 1,4,7, -1 or all"),
    (lambda: selected_indices("0,,1", 2, "layer", "demo"), "--layer 0,,1: it reads 3, 0-5, 1,4,7, -1 or all"),
    (lambda: selected_indices("-2--1", 2, "layer", "demo"), "--layer -2--1: it reads 3, 0-5, 1,4,7, -1 or all"),
    (lambda: selected_indices("1.0", 2, "head", "demo"), "--head 1.0: head 0 of layer 1 is --layer 1 --head 0"),
    (lambda: selected_indices([4], 4, "row", "this call", "rows"), "--rows 4: this call has rows 0 to 3"),
    (lambda: token_range("30-29", 40, "rows"), "--rows 30-29: from 30 down to 29 is not a range"),
    (lambda: token_range("3-99", 40, "columns"), "--columns 3-99: the text has tokens 0 to 39"),
    (
        lambda: token_range("1,4", 40, "rows"),
        "--rows 1,4: it reads 3, 3000-3099 (the last one too), 3000-, -1 or all",
    ),
    (lambda: selected_heads("9.0", 2, 6, "demo", "off"), "--off 9.0: demo has layers 0 to 1"),
    (lambda: selected_heads("0.9", 2, 6, "demo", "off"), "--off 0.9: demo has heads 0 to 5 in each layer"),
    (lambda: selected_heads([(0, 9)], 2, 6, "demo", "off"), "--off 0.9: demo has heads 0 to 5 in each layer"),
    (lambda: selected_heads("1.5-3", 2, 6, "demo", "off"), "--off 1.5-3: from 5 down to 3 is not a range"),
    (lambda: selected_heads("3", 2, 6, "demo", "off"), "--off 3: it is heads as layer.head: 23.3,0.5"),
    (
        lambda: selected_heads("best", 2, 6, "t5", "heads", "named, auto, or "),
        "--heads best: it is named, auto, or heads as layer.head: 23.3,0.5",
    ),
    (lambda: find_token(TOKENS, "70"), "--query 70: the text has tokens 0 to 14"),
    (lambda: find_token(TOKENS, "9,100"), "--query 100: the text has tokens 0 to 14"),
    (lambda: find_token(TOKENS, "3-1"), "--query 3-1: from 3 down to 1 is not a range"),
    (lambda: find_token(TOKENS[:3], "cow"), "--query cow: no token has this text: the tokens are 3 is more"),
    (lambda: find_token(TOKENS, "the"), "--query the: it stands at several places: name one by its index (10, 13)"),
    (lambda: find_token(TOKENS, "is,than"), "--query is,than: it names 2 tokens, and one is needed here"),
    (lambda: find_token(TOKENS, " "), "--query is empty: name a token by its text or its index"),
    (lambda: find_token(TOKENS[:3], "8", "predict"), "--predict 8: the text has tokens 0 to 2"),
    (
        lambda: find_token(split_words("99 red balloons"), "99"),
        "--query 99: the text has tokens 0 to 2; the token '99' is text:99",
    ),
    (
        lambda: find_token(PATCHES, "30,3"),
        "--query 30,3: no patch is there: the model sees 0,0 to 23,7 of the picture",
    ),
    (lambda: find_edge(TOKENS, TOKENS, "cat"), '--edge cat: it reads QUERY→KEY, as "gave→Mary" or "11>2"'),
    (lambda: find_edge(TOKENS, TOKENS, "cat>99"), "--edge 99: the text has tokens 0 to 14"),
    (lambda: keys_left_out(TOKENS[:2], ["cow"]), "--drop cow: no token has this text: the tokens are 3 is"),
    (lambda: keys_left_out(TOKENS[:1], ["first"]), "dropping every key leaves nothing to show"),
]


@pytest.mark.parametrize(("select", "line"), REFUSED)
def test_what_cannot_be_selected_is_refused_in_one_style(select: Callable[[], object], line: str) -> None:
    with options_as_flags({}):
        with pytest.raises(UsageError) as error:
            select()
        assert str(error.value) == line
