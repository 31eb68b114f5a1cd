"""Patterns of tokenizers that may take for ever: known by their form, and held to a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from attnctl import limits
from attnctl.errors import AttnctlError
from attnctl.tokens import GuardedTokenizer, from_file, may_explode

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
    ["(a+)+$", "(?:a|b*)*c", "([a-z]{2,})+!", r"(\s*\w)*", "(a|aa)+$", "(?:a|a){1,40}b", r"a*a*a*(?!a)\w", "(a*b*)c*d"],
)
def test_patterns_that_repeat_what_repeats_are_guarded(pattern: str) -> None:
    assert may_explode(pattern)


def tokenizer(folder: Path, pattern: str = ".", **parts: Any) -> Path:
    each = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    model = {"type": "WordLevel", "vocab": {"a": 0, "aa": 1, "b": 2}, "unk_token": "a"}
    settings = {"version": "1.0", "added_tokens": [], "pre_tokenizer": each, "model": model} | parts
    (folder / "tokenizer.json").write_text(json.dumps(settings))
    return folder / "tokenizer.json"


def test_a_pattern_that_takes_too_long_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TOKENIZER_SECONDS", 0.02)
    tokenize = from_file(tokenizer(tmp_path, "(a+)+$"))
    with pytest.raises(AttnctlError, match="fails on this text .*it takes more than 0.02 seconds"):
        tokenize("a" * 21 + "b")


def test_a_guarded_tokenizer_reads_as_the_plain_one(tmp_path: Path) -> None:
    plain = tokenizers.Tokenizer.from_file(str(tokenizer(tmp_path, "(a+)+b")))
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
    with pytest.raises(AttnctlError, match=r"it takes more than 0\.01 seconds"):
        tokenize(("a" * 90 + " ") * 500)


def replaced(pattern: str, content: str, kind: str = "String") -> dict[str, Any]:
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


CHAIN = [replaced(x, y * 10) for x, y in ("ab", "bc", "cd")]
GROWING = [replaced("a", "b" * 1000), replaced("x*", "b" * 900, "Regex"), {"type": "Sequence", "normalizers": CHAIN}]


@pytest.mark.parametrize("normalizer", GROWING)
@pytest.mark.parametrize("length", [20, 20_000])
def test_a_text_that_grows_a_thousandfold_is_refused(tmp_path: Path, normalizer: Any, length: int) -> None:
    """It took a minute, and eight gigabytes, of two thousand characters."""
    with pytest.raises(AttnctlError, match=rf"fails on this text \(it makes [0-9,]+ characters of {length:,} charac"):
        from_file(tokenizer(tmp_path, normalizer=normalizer))("a" * length)


def test_a_text_that_grows_as_far_as_any_in_use_is_read(tmp_path: Path) -> None:
    assert len(from_file(tokenizer(tmp_path, normalizer=replaced("a", "b" * 60)))("a" * 30)) == 1800
    rare = replaced("x", "b" * 900)  # and the text has none
    assert len(from_file(tokenizer(tmp_path, normalizer=rare))("a" * 5000)) == 5000


@pytest.mark.parametrize(("sequences", "marks", "ids"), [(5000, 0, 1), (0, 2, 9999)])
def test_a_template_of_endless_parts_is_refused(tmp_path: Path, sequences: int, marks: int, ids: int) -> None:
    pair = [{"Sequence": {"id": part, "type_id": 0}} for part in "AB"]
    single = pair[:1] * sequences + [{"SpecialToken": {"id": "s", "type_id": 0}}] * marks
    special = {"s": {"id": "s", "ids": [0] * ids, "tokens": ["a"] * ids}}
    template = {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}
    path = tokenizer(tmp_path, post_processor={"type": "Sequence", "processors": [template]})
    with pytest.raises(AttnctlError, match=r"\(its post_processor puts more than 64 parts around a text\)"):
        from_file(path)
