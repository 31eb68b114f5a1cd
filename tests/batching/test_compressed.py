"""gzip and zstd are taken off as a file is read; what stands before a damage is read, and the damage is one line."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from attnctl.batching.texts import TextStream
from attnctl.errors import AttnctlError
from tests.batching.test_texts import put, texts


def test_gzip_and_zstd_are_told_by_their_bytes(tmp_path: Path) -> None:
    plain = "".join(f"line {at}\n" for at in range(5000))
    expected = texts(put(tmp_path / "a.txt", plain))
    assert texts(put(tmp_path / "a.txt.gz", gzip.compress(plain.encode()))) == expected
    assert texts(put(tmp_path / "unnamed", gzip.compress(plain.encode()))) == expected
    with pytest.raises(AttnctlError, match="is damaged"):
        list(TextStream(str(put(tmp_path / "b.gz", gzip.compress(plain.encode())[:-40]))))
    pa = pytest.importorskip("pyarrow")
    packed = pa.compress(plain.encode(), "zstd", asbytes=True)
    assert texts(put(tmp_path / "a.txt.zst", packed)) == expected
    assert texts(put(tmp_path / "two.zst", packed + packed))[5000] == (5000, None, "line 0")


def test_a_damaged_text_of_a_folder_is_an_error_of_its_own(tmp_path: Path) -> None:
    put(tmp_path / "in/a.txt.gz", gzip.compress(b"one text" * 999)[:-9])
    put(tmp_path / "in/b.txt", "another")
    damaged, whole = TextStream(str(tmp_path / "in"))
    assert str(damaged.error).startswith("the file is damaged: ") and whole.text == "another"
