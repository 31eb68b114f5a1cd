"""A corpus to train on that is none: refused before it fills the memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnctl import limits
from attnctl.errors import AttnctlError
from attnctl.training.corpus import read_lines, split_lines


def test_a_line_that_is_no_sentence_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """250 MB of nothing took 23 GB: each of its bytes became a word."""
    monkeypatch.setattr(limits, "CORPUS_LINE_CHARACTERS", 1000)
    path = tmp_path / "sparse.txt"
    path.write_bytes(b"Alice will eat\n" + bytes(1001))
    with pytest.raises(AttnctlError, match=r"line 2 has 1,001 characters, of the 1,000 .* give it one sentence a line"):
        read_lines(str(path))


def test_a_folder_is_held_to_what_a_file_may_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text("Alice will eat\n" * 10)
    assert len(read_lines(str(tmp_path))) == 40
    monkeypatch.setattr(limits, "CORPUS_BYTES", 500)
    with pytest.raises(AttnctlError, match="is larger than"):
        read_lines(str(tmp_path))


def test_a_word_is_kept_once() -> None:
    one, other = split_lines(["pizza tastes good", "Alice likes pizza"])
    assert one[0] == other[2] and one[0] is other[2]
