"""Which token of one text is which of another."""

from __future__ import annotations

from attnctl.readings.traces.alignment import aligned_tokens
from attnctl.tokens import Token, split_words


def test_two_tokenizers_of_one_text_meet_at_their_letters() -> None:
    text = "unbelievable tea"
    pieces = (Token("[CLS]", special=True), Token("un", start=0, end=2), Token("believable", start=2, end=12),
              Token(" tea", start=12, end=16), Token("[SEP]", special=True))  # fmt: skip
    assert aligned_tokens(pieces, split_words(text), text, text) == [None, 0, 0, 1, None]
    assert aligned_tokens(split_words(text), pieces, text, text) == [1, 3]


def test_two_texts_meet_at_their_words() -> None:
    one, other = "Alice thanked Bob because he likes tea", "Today Alice thanked Eve because he likes some tea"
    assert aligned_tokens(split_words(one), split_words(other), one, other) == [1, 2, 3, 4, 5, 6, 8]
    assert aligned_tokens(split_words(other), split_words(one), other, one) == [None, 0, 1, 2, 3, 4, 5, None, 6]
    assert aligned_tokens(split_words("a b"), split_words("c d e"), "a b", "c d e") == [None, None]
