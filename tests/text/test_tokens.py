"""Text to tokens in any language, and tokens shown without harm."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st

from attnctl.errors import AttnctlError
from attnctl.text import visible_text
from attnctl.text.tokens import from_file, split_characters, split_words

ENGLAND = "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f"


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Alice will eat pizza.", ["Alice", "will", "eat", "pizza", "."]),
        ("don't pay 3.14 (or 1,000)!", ["don't", "pay", "3.14", "(", "or", "1,000", ")", "!"]),
        ("The ____ sat on [MASK]", ["The", "____", "sat", "on", "[MASK]"]),
        ("我爱你 hello世界", ["我", "爱", "你", "hello", "世", "界"]),
        ("नमस्ते दुनिया", ["नमस्ते", "दुनिया"]),
        ("one\r\ntwo\tthree", ["one", "two", "three"]),
        ("e\u0301te\u0301 👩‍👩‍👧 👍🏽 🇩🇪🇫🇷", ["e\u0301te\u0301", "👩‍👩‍👧", "👍🏽", "🇩🇪", "🇫🇷"]),
        (f"the {ENGLAND} flag", ["the", ENGLAND, "flag"]),
        ("مرحبا بالعالم", ["مرحبا", "بالعالم"]),
        ("", []),
    ],
)
def test_words(text: str, tokens: list[str]) -> None:
    assert [token.text for token in split_words(text)] == tokens


@settings(max_examples=40)
@given(st.text())
@example("a\r\nb")
def test_spans_give_back_the_text(text: str) -> None:
    for tokenize in (split_words, split_characters):
        tokens = tokenize(text)
        assert all(text[t.start : t.end] == t.text for t in tokens)
        assert all(a.end <= b.start for a, b in zip(tokens, tokens[1:], strict=False))
    assert "".join(token.text for token in split_characters(text)) == text


def test_a_character_keeps_its_marks() -> None:
    """As UAX 29 has it: the voiced marks of half-width katakana, and a Hangul syllable taken apart."""
    for text in ("ｶﾞﾊﾟ", "e\u0301a\u0300", unicodedata.normalize("NFD", "한국")):
        parts = [token.text for token in split_characters(text)]
        assert len(parts) == 2 and all(len(unicodedata.normalize("NFKC", part)) == 1 for part in parts)


def test_the_same_word_has_the_same_id() -> None:
    assert [token.id for token in split_words("the cat and the dog")] == [0, 1, 2, 0, 3]


@settings(max_examples=40)
@given(st.text(min_size=1))
def test_what_is_shown_is_one_harmless_line(text: str) -> None:
    out = visible_text(text)
    assert out and len(out.splitlines()) == 1
    assert not any(c in out for c in "\x1b\x07\n\r\t\x9b\u202e\u2066\u2028")
    assert visible_text("a\u202eb") == "a\\u202eb" and visible_text("a\U000e0067b") == "a\\U000e0067b"


@pytest.mark.parametrize("text", ["a " * 50, "é " * 50, "é\u0301 " * 50, "\0" * 50, "日" * 50])
def test_a_text_of_too_many_tokens_is_left_before_they_are_made(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """30 MB of nothing took minutes: each of its bytes became a token."""
    monkeypatch.setattr("attnctl.checks.limits.TEXT_TOKENS", 40)
    for split in (split_words, split_characters):
        with pytest.raises(AttnctlError, match="more than the 40 tokens"):
            split(text)


def test_a_tokenizer_file_larger_than_any_in_use_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tokenizer.json"
    tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="a")).save(str(path))
    assert from_file(path)("b")
    monkeypatch.setattr("attnctl.checks.limits.TOKENIZER_BYTES", path.stat().st_size - 1)
    with pytest.raises(AttnctlError, match=r"tokenizer\.json") as refused:
        from_file(path)
    assert "\n" not in str(refused.value)
