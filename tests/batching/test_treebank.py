"""Treebanks in compressed files: what stands before a damage is read, and the damage is told."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from attnctl.batching.treebank import Treebank
from tests.conftest import SAMPLES

WHOLE = (SAMPLES / "sentences.conllu").read_bytes()
SENTENCES = 12


@pytest.mark.parametrize("suffix", ["gz", "zst"])
@pytest.mark.parametrize(("name", "lost"), [("whole", 0), ("junk behind", 1), ("cut off", 1)])
def test_a_damaged_file_gives_its_sentences_up_to_the_damage(suffix: str, name: str, lost: int, tmp_path: Path) -> None:
    if suffix == "gz":
        packed = gzip.compress(WHOLE)
    else:
        pyarrow = pytest.importorskip("pyarrow")
        # a frame gives nothing until its block is whole: the second is the damaged one
        first, second = WHOLE[: WHOLE.index(b"\n\n") + 2], WHOLE[WHOLE.index(b"\n\n") + 2 :]
        packed = b"".join(pyarrow.compress(part, codec="zstd", asbytes=True) for part in (second, first))
    data = {"whole": packed, "junk behind": packed + b"junk", "cut off": packed[:-20]}[name]
    path = tmp_path / f"corpus.conllu.{suffix}"
    path.write_bytes(data)
    read = [item for item in Treebank([str(path)]) if item.error is None]
    told = [item.error for item in Treebank([str(path)]) if item.error is not None]
    assert len(read) in (range(SENTENCES - 2, SENTENCES + 1) if lost else [SENTENCES])
    assert len(told) == lost and all(error.startswith("damaged: ") for error in told)
