"""A tokenizer.json whose steps make too much of a text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from attnctl.errors import AttnctlError
from attnctl.tokens import from_file


def tokenizer(folder: Path, **parts: Any) -> Path:
    each = {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": False}
    model = {"type": "WordLevel", "vocab": {"a": 0, "aa": 1, "b": 2}, "unk_token": "a"}
    settings = {"version": "1.0", "added_tokens": [], "pre_tokenizer": each, "model": model} | parts
    (folder / "tokenizer.json").write_text(json.dumps(settings))
    return folder / "tokenizer.json"


def replaced(pattern: str, content: str, kind: str = "String") -> dict[str, Any]:
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


CHAIN = [replaced(x, y * 10) for x, y in ("ab", "bc", "cd")]
GROWING = [replaced("a", "b" * 1000), replaced("x*", "b" * 900, "Regex"), {"type": "Sequence", "normalizers": CHAIN}]


@pytest.mark.parametrize("normalizer", GROWING)
def test_a_normalizer_that_makes_a_thousand_characters_of_one_is_refused(tmp_path: Path, normalizer: Any) -> None:
    """It took a minute, and eight gigabytes, of two thousand characters."""
    with pytest.raises(AttnctlError, match=r"\(its normalizer is [0-9] steps that make a character up to [19],?000?\)"):
        from_file(tokenizer(tmp_path, normalizer=normalizer))


def test_a_text_that_grows_as_far_as_any_in_use_is_read(tmp_path: Path) -> None:
    assert len(from_file(tokenizer(tmp_path, normalizer=replaced("a", "b" * 60)))("a" * 30)) == 1800


@pytest.mark.parametrize(("sequences", "marks", "ids"), [(5000, 0, 1), (0, 2, 9999)])
def test_a_template_of_endless_parts_is_refused(tmp_path: Path, sequences: int, marks: int, ids: int) -> None:
    pair = [{"Sequence": {"id": part, "type_id": 0}} for part in "AB"]
    single = pair[:1] * sequences + [{"SpecialToken": {"id": "s", "type_id": 0}}] * marks
    special = {"s": {"id": "s", "ids": [0] * ids, "tokens": ["a"] * ids}}
    template = {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}
    path = tokenizer(tmp_path, post_processor={"type": "Sequence", "processors": [template]})
    with pytest.raises(AttnctlError, match=r"\(its post_processor puts more than 64 parts around a text\)"):
        from_file(path)
