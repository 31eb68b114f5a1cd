"""Patterns of tokenizers that may take for ever: known by their form, and held to a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from attnctl import limits
from attnctl.errors import AttnctlError
from attnctl.tokens import from_file
from attnctl.tokens.guarded_tokenizer import GuardedTokenizer, may_explode

IN_USE = [
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",  # GPT-2
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}]*[\p{Ll}\p{Lm}]+(?i:'s|'t|'re)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s+",  # o200k
    r" ?[^(\s|[.,!?…。，、।۔،])]+",  # BLOOM
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*",
    r"(\[[^\]]+]|Br?|Cl?|N|O|>>?|\*|\$|%[0-9]{2}|[0-9])",  # molecules
]


@pytest.mark.parametrize("pattern", IN_USE)
def test_patterns_in_use_are_let_be(pattern: str) -> None:
    assert not may_explode(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        r"(a+)+$",
        r"(?:a|b*)*c",
        r"((x+x+))+y",
        r"([a-z]{2,})+!",
        r"(\s*\w)*",
        r"(a|aa)+$",
        "(?:a|a){1,40}b",
        r"a*a*a*(?!a)\w",
        "(a*b*)c*d",
    ],
)
def test_patterns_that_repeat_what_repeats_are_guarded(pattern: str) -> None:
    assert may_explode(pattern)


def tokenizer(folder: Path, pattern: str) -> Path:
    settings: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
        "model": {"type": "WordLevel", "vocab": {"a": 0, "aa": 1}, "unk_token": "a"},
    }
    path = folder / "t.json"
    path.write_text(json.dumps(settings))
    return path


def test_a_pattern_that_takes_too_long_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TOKENIZER_SECONDS", 0.02)
    tokenize = from_file(tokenizer(tmp_path, "(a+)+$"))
    with pytest.raises(AttnctlError, match="fails on this text .*its pattern takes more than 0.02 seconds"):
        tokenize("a" * 21 + "b")


def test_a_guarded_tokenizer_reads_as_the_plain_one(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    path = tokenizer(tmp_path, "(a+)+b")
    plain = tokenizers.Tokenizer.from_file(str(path))
    guarded = GuardedTokenizer(plain)
    for text in ("aa", "xaab aa", ""):
        assert guarded.encode(text).ids == plain.encode(text).ids
        assert guarded.encode(text, add_special_tokens=False).offsets == plain.encode(text).offsets
    assert guarded.token_to_id("aa") == 1


def test_a_long_text_is_held_to_the_time_whatever_the_pattern(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern that takes its time at each of many places took a minute."""
    monkeypatch.setattr(limits, "TOKENIZER_SECONDS", 0.01)
    tokenize = from_file(tokenizer(tmp_path, r"a*a*(?!a)\d"))
    assert tokenize("aaa")
    with pytest.raises(AttnctlError, match=r"its pattern takes more than 0\.01 seconds"):
        tokenize(("a" * 90 + " ") * 500)
