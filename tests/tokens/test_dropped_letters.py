"""Letters that a tokenizer drops: the pieces after them are shown as pieces, and a line says so.

The right pieces and ids are those of the tokenizers library; the right places are counted by hand.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from attnctl.text.tokens import from_file
from tests.conftest import Run

PIECES = ["a", "b", "c", "f", "i", "ab", "abc", "t", "h", "e", "th", "the"]
MERGES = [("a", "b"), ("ab", "c"), ("t", "h"), ("th", "e")]


def saved(path: Path, normalizer: Any = None, **model: Any) -> str:
    vocabulary = {piece: number for number, piece in enumerate([*PIECES, "[UNK]"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=MERGES, **model))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.save(str(path))
    return str(path)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("xab the", [("ab", 5, None), ("the", 11, (4, 7))]),  # the library names "xa" as the place of ab
        ("the axb", [("the", 11, (0, 3)), ("ab", 5, None)]),
        ("abc the", [("abc", 6, (0, 3)), ("the", 11, (4, 7))]),
        ("☃ ab", [("ab", 5, (2, 4))]),
    ],
)
def test_a_piece_after_a_dropped_letter_has_no_place(text: str, tokens: list[Any], tmp_path: Path) -> None:
    found = from_file(saved(tmp_path / "t.json"))(text)
    assert [(t.text, t.id, None if t.start is None else (t.start, t.end)) for t in found] == tokens


@pytest.mark.parametrize("text", ["xab the ☃", "ab ☃"])
def test_a_line_names_the_letters(text: str, run: Run, tmp_path: Path) -> None:
    file = saved(tmp_path / "t.json")
    says = "dropped letters that it has no piece for: " + ("x, ☃" if text[0] == "x" else "☃")
    for command in ("heatmap", "heads"):
        assert says in run(command, text, "--model", "random", "--tokenizer", file).err
    lines = tmp_path / "lines.txt"
    lines.write_text(f"{text}\nab the\n")
    batch = run("batch", lines, "--model", "random", "--tokenizer", file)
    assert batch.err.count(says) == 1 and "line 1" in batch.err


@pytest.mark.parametrize("kind", ["known", "accents", "ligature", "unknown token", "punctuation"])
def test_other_tokenizers_drop_nothing(kind: str, run: Run, tmp_path: Path) -> None:
    lower = normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()])
    text = {"known": "abc the", "accents": "ÁBC thé", "ligature": "ﬁ the", "unknown token": "xab the"}.get(
        kind, "ab, the."
    )
    file = saved(tmp_path / "t.json", lower, **({"unk_token": "[UNK]"} if kind == "unknown token" else {}))
    found = run("heatmap", text, "--model", "random", "--tokenizer", file)
    assert "dropped letters" not in found.err
    assert all(token.start is not None for token in from_file(file)(text))
