"""Which token of one text is which of another."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from attnctl.readings.comparison import aligned_tokens
from attnctl.text.tokens import Token, split_words


def test_two_tokenizers_of_one_text_meet_at_their_letters() -> None:
    text = "unbelievable tea"
    pieces = (Token("[CLS]", special=True), Token("un", start=0, end=2), Token("believable", start=2, end=12),
              Token(" tea", start=12, end=16), Token("[SEP]", special=True))  # fmt: skip
    assert aligned_tokens(pieces, split_words(text), text, text) == [None, 0, 0, 1, None]
    assert aligned_tokens(split_words(text), pieces, text, text) == [1, 3]


def test_the_bytes_of_a_letter_meet_in_order() -> None:
    """Each byte's token covers the whole letter: only the first of each had a partner."""
    text = "天 a天"
    bytes_of = [Token("天", start=0, end=1)] * 3 + [Token(" a", start=1, end=3)] + [Token("天", start=3, end=4)] * 3
    merged = [Token("天", start=0, end=1)] * 2 + [Token(" a", start=1, end=3), Token("天", start=3, end=4)]
    assert aligned_tokens(bytes_of, list(bytes_of), text, text) == [0, 1, 2, 3, 4, 5, 6]
    assert aligned_tokens(bytes_of, merged, text, text) == [0, 1, 1, 2, 3, 3, 3]
    assert aligned_tokens(merged, bytes_of, text, text) == [0, 1, 3, 4]


def aligned(one: str, other: str) -> list[int | None]:
    return aligned_tokens(split_words(one), split_words(other), one, other)


def test_two_texts_meet_at_their_words_by_the_fewest_changes() -> None:
    """The longest run that two texts share, "the cat", left "chased" without its like on the other side."""
    one, other = "Alice thanked Bob because he likes tea", "Today Alice thanked Eve because he likes some tea"
    assert aligned(one, other) == [1, 2, 3, 4, 5, 6, 8] and aligned("a b", "c d e") == [None, None]
    assert aligned("The cat chased the mouse", "The mouse chased the cat") == [0, 1, 2, 3, 4]
    assert aligned("Alice eats pizza today", "Today Alice eats pizza") == [1, 2, 3, None]
    words = [f"w{at}" for at in range(3000)]  # in time, where they are long
    longer = " ".join(["new", *words[:1500], "other", *words[1500:]])
    assert aligned(" ".join(words), longer) == [*range(1, 1501), *range(1502, 3002)]


@settings(deadline=None, max_examples=50)
@given(*[st.lists(st.sampled_from("abc"), max_size=7).map(" ".join)] * 2)
def test_either_side_says_the_same(one: str, other: str) -> None:
    there, back = aligned(one, other), aligned(other, one)
    assert there == [back.index(at) if at in back else None for at in range(len(there))]
    assert [at for at in there if at is not None] == sorted({at for at in there if at is not None})
