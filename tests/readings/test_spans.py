"""Parts of a text: lines named by their number, in a time that grows with the text alone."""

from __future__ import annotations

import csv
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnctl.errors import AttnctlError, UsageError
from attnctl.readings.spans import parts_of, spans_of
from attnctl.text.tokens import Token, split_words


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


@settings(deadline=None, max_examples=200)
@given(st.text("aB1 .!?…。」\"'\n\r\t🙂ا", max_size=60))
def test_sentences_hold_all_that_is_no_white_space(text: str) -> None:
    spans = [(a, b) for _, a, b in spans_of("sentences", text)]
    assert all(a < b for a, b in spans) and all(b <= a for (_, b), (a, _) in pairwise(spans))
    assert all(text[a:b] == text[a:b].strip() for a, b in spans)
    assert "".join("".join(text[a:b].split()) for a, b in spans) == "".join(text.split())


@pytest.mark.parametrize(
    "sentences",
    [
        ["Mr. Lee paid 3.14 dollars to J. R. Poe, e.g. for tea.", "He left."],
        ["“Stop!” he said.", "“Why?!”", "Nobody knew..."],
        ["今天很好。", "我去了「北京。」", "你呢？"],
        ["great movie.", "loved it.", "would watch again"],
        ["1. Buy milk", "2. Sleep", "The end"],
        ["« Non ! » dit-il.", "Oui, le no. 5."],
        ["It was wrapped\nhere.", "Next"],
        ["هل نمت؟", "نعم."],
    ],
)
@pytest.mark.parametrize("between", [" ", "\n", "\n\n"])
def test_sentences_end_where_a_reader_ends_them(sentences: list[str], between: str) -> None:
    if sentences[0] == "1. Buy milk" and between == " ":
        between = "\n"  # an item of a list has no mark at its end
    text = between.join(sentences)
    assert [text[a:b] for _, a, b in spans_of("sentences", text)] == sentences


@pytest.mark.parametrize("text", ["." * 300_000, ". " * 100_000, "a." * 100_000, '"' * 300_000, "a\n \n" * 100_000])
def test_sentences_take_a_time_that_grows_with_the_text(text: str) -> None:
    begun = time.process_time()
    spans_of("sentences", text)
    assert time.process_time() - begun < 10


def test_tokens_of_another_text_have_no_parts_of_this_one() -> None:
    own = [Token("<s>", special=True), Token("Once"), Token("upon")]
    with pytest.raises(UsageError, match="none of these tokens stands in it"):
        parts_of("lines", "Il était\nune fois", own)
    assert parts_of("lines", "Il", [Token("<s>", special=True)])[0].name == "(special)"


PATCHES = [
    Token("a"),
    *(Token(f"r{y}c{x}", box=(10.0 * x, 5.0 * y, 10.0 * x + 10, 5.0 * y + 5)) for y in range(2) for x in range(3)),
]


def test_regions_of_a_picture_hold_the_patches_whose_middle_lies_in_them(tmp_path: Path) -> None:
    nine = {part.name: part.ranges for part in parts_of("regions", "a", PATCHES)}
    assert nine == {
        "upper left": ((1, 2),), "upper middle": ((2, 3),), "upper right": ((3, 4),),
        "lower left": ((4, 5),), "lower middle": ((5, 6),), "lower right": ((6, 7),), "(rest)": ((0, 1),),
    }  # fmt: skip
    own = tmp_path / "own.csv"
    own.write_text("name,left,top,right,bottom\nleft half,0,0,15.5,10\n")
    found = {part.name: part.ranges for part in parts_of(str(own), "a", PATCHES)}
    assert found == {"(rest)": ((0, 1), (3, 4), (6, 7)), "left half": ((1, 3), (4, 6))}


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("all,0,0,30,10\nleft,0,0,10,10\n", "'all' and 'left' overlap at r0c0"),
        ("none,90,90,99,99\n", "no token of a picture lies in these regions"),
        ("back,9,0,3,10\n", r"region 0 \(back\) is empty"),
        ("words,a,b,c,d\n", "needs left, top, right, bottom in pixels"),
    ],
)
def test_regions_that_cannot_be_are_refused(tmp_path: Path, rows: str, said: str) -> None:
    (tmp_path / "own.csv").write_text(f"name,left,top,right,bottom\n{rows}")
    with pytest.raises(AttnctlError, match=said):
        parts_of(str(tmp_path / "own.csv"), "a", PATCHES)


def test_a_text_has_no_regions() -> None:
    with pytest.raises(UsageError, match="none of these tokens stands in one"):
        parts_of("regions", "a", [Token("a", start=0, end=1)])


@pytest.mark.parametrize("limit", [131_072, 1 << 26])  # of a field: batch raises it for its texts
def test_spans_with_bare_carriage_returns_and_a_name_as_long_as_a_text(limit: int, tmp_path: Path) -> None:
    """What else is not a list of spans stands in tests/refusals.txt."""
    text, path = "Alice will eat pizza", tmp_path / "spans.csv"
    path.write_bytes(b"name,start,end\rwho,0,5\rwhat,6,20\r")
    assert [part.name for part in parts_of(str(path), text, split_words(text))][:2] == ["who", "what"]
    path.write_bytes(b"name,start,end\n" + b"x" * 200_000 + b",0,5\n")
    before = csv.field_size_limit(limit)
    try:
        with pytest.raises(AttnctlError, match=r"\A.*\Z"):
            parts_of(str(path), text, split_words(text))
    finally:
        csv.field_size_limit(before)
