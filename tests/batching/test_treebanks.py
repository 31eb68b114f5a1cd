"""A treebank: several files as one corpus, and what is damaged in them."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from attnctl.batching import TreebankStream, sentence_of
from tests.batching.test_texts import compressed, put
from tests.conftest import SAMPLES
from tests.formats.test_conllu import GOOD, read


def test_several_files_are_one_corpus_and_one_that_ends_early_leaves_the_others(tmp_path: Path) -> None:
    import pyarrow as pa

    data = f"{GOOD}\n\n".encode()
    cut = gzip.compress(data * 500, compresslevel=0)
    files = {"a": data, "b.gz": gzip.compress(data + b"nonsense\n\n" + data), "c.gz": cut[: len(cut) // 2]}
    for name, packed in (files | {"d": pa.compress(data, "zstd", asbytes=True)}).items():
        (tmp_path / name).write_bytes(packed)
    bank = TreebankStream([str(tmp_path / name) for name in ("a", "b.gz", "c.gz", "d")])
    items = list(bank)
    assert [item.number for item in items] == list(range(len(items))) and bank.share_read() == 1.0
    assert [item.error is None for item in items[:4]] == [True, True, False, True] and len(items) > 100
    assert items[1].where == f"{tmp_path / 'b.gz'}, line 1" and items[0].id == "s1"
    assert (items[-2].error or "").startswith("damaged: ")
    assert {sentence_of(item) for item in items if item.error is None} == {read(GOOD)}


@pytest.mark.parametrize("form", ["gz", "zst"])
def test_a_damaged_treebank_gives_its_sentences_up_to_the_damage(form: str, tmp_path: Path) -> None:
    first, mark, rest = (SAMPLES / "sentences.conllu").read_bytes().partition(b"\n\n")
    # a frame of zstd gives nothing until its block is whole: the second is the damaged one
    packed = compressed(rest, form) + compressed(first + mark, form)
    for data, count, lost in ((packed, 12, 0), (packed + b"junk", 12, 1), (packed[:-20], 11, 1)):
        items = list(TreebankStream([str(put(tmp_path / f"corpus.conllu.{form}", data))]))
        told = [item.error for item in items if item.error is not None]
        assert len(told) == lost and all(error.startswith("damaged: ") for error in told)
        assert len(items) - lost in (count, count - 1) if lost else len(items) == count
