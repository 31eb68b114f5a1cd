"""Patterns of tokenizers that may take for ever: known by their form, and held to a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

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
    with pytest.raises(AttnctlError, match=r"it takes more than 0\.01 seconds"):
        tokenize(("a" * 90 + " ") * 500)


@pytest.mark.parametrize(
    "normalizer",
    [
        {"type": "Replace", "pattern": {"String": "a"}, "content": "b" * 1000},
        {"type": "Replace", "pattern": {"Regex": "x*"}, "content": "b" * 900},
        {"type": "Sequence", "normalizers": [{"type": "Replace", "pattern": {"String": x}, "content": y * 10} for x, y in ("ab", "bc", "cd")]},
    ],
)  # fmt: skip
@pytest.mark.parametrize("length", [20, 20_000])
def test_a_text_that_grows_a_thousandfold_is_refused(tmp_path: Path, normalizer: Any, length: int) -> None:
    """It took a minute, and eight gigabytes, of two thousand characters."""
    with pytest.raises(AttnctlError, match=rf"fails on this text \(it makes [0-9,]+ characters of {length:,} charac"):
        from_file(tokenizer(tmp_path, normalizer=normalizer))("a" * length)


def test_a_text_that_grows_as_far_as_any_in_use_is_read(tmp_path: Path) -> None:
    grows = {"type": "Replace", "pattern": {"String": "a"}, "content": "b" * 60}
    assert len(from_file(tokenizer(tmp_path, normalizer=grows))("a" * 30)) == 1800
    rare = {"type": "Replace", "pattern": {"String": "x"}, "content": "b" * 900}  # and the text has none
    assert len(from_file(tokenizer(tmp_path, normalizer=rare))("a" * 5000)) == 5000


@pytest.mark.parametrize(
    ("single", "ids"), [(5000 * [{"Sequence": {"id": "A", "type_id": 0}}], 1), (2 * [{"SpecialToken": {"id": "s", "type_id": 0}}], 9999)]
)  # fmt: skip
def test_a_template_of_endless_parts_is_refused(tmp_path: Path, single: list[Any], ids: int) -> None:
    pair = [{"Sequence": {"id": part, "type_id": 0}} for part in "AB"]
    special = {"s": {"id": "s", "ids": [0] * ids, "tokens": ["a"] * ids}}
    template = {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}
    path = tokenizer(tmp_path, post_processor={"type": "Sequence", "processors": [template]})
    with pytest.raises(AttnctlError, match=r"\(its post_processor puts more than 64 parts around a text\)"):
        from_file(path)
