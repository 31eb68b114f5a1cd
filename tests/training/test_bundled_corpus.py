"""The bundled corpus is what the grammar of samples/english writes; tests/tools/grammar.py holds the grammar itself."""

from __future__ import annotations

import lzma
from itertools import chain

import numpy as np
import pytest

from attnctl import english
from attnctl.english import HELD_OUT, SENTENCES, WORDS, bundled_corpus
from samples.english import __main__ as command
from samples.english.grammar import sentences
from samples.english.language import word_lines


def stored(name: str) -> str:
    return lzma.decompress((english.FOLDER / name).read_bytes()).decode()


def test_the_grammar_writes_the_bundled_corpus_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the byte: all words, and the first sentences of each part; `python -m samples.english` writes all of it."""
    assert word_lines() == (english.FOLDER / WORDS).read_text(encoding="utf-8")
    monkeypatch.setattr(command, "MEASURED", 100)
    held_out = dict(part.split("\n", 1) for part in stored(HELD_OUT).split(english.PART)[1:])
    trained = dict(part.split("\n", 1) for part in stored(SENTENCES).split(english.PART)[1:])
    for part, blocks in chain(command.measured_parts(), command.trained_parts(3000)):
        assert (held_out | trained)[part].startswith("".join(f"{block}\n" for block in blocks)), part
    assert sum(trained[part].count("\n\n") for part in ("both", "masked-word")) == command.TRAINED
    assert sum(text.count("\n\n") for part, text in held_out.items() if part != "by hand") == 6 * 1000
    assert sum((english.FOLDER / name).stat().st_size for name in (SENTENCES, HELD_OUT)) < 3_000_000


@pytest.mark.parametrize("objective", ["masked-word", "next-word"])
def test_what_is_read_is_what_was_written(objective: str) -> None:
    corpus = bundled_corpus(objective)
    assert len(corpus.ids) == command.TRAINED and corpus.answers is not None and not (corpus.ids == 0).any()
    made = sentences(300, command.TRAINED_SEED, command.kinds_by_part()["both"])
    for s, ids, answers in zip(made, corpus.ids, corpus.answers, strict=False):
        n = len(s.words)
        assert [corpus.vocabulary[at] for at in ids[:n]] == s.words and (ids[n:] == -1).all()
        assert (answers[:n] < n).all() and (answers[n:] == -1).all()
        told = {(link.query, english.QUESTION_OF[link.relation]): link.key for link in s.answers()}
        for (at, question), place in np.ndenumerate(answers[:n]):
            assert told.get((at, question), at if place == at else -1) == place
            assert place == -1 or (at, question) in told or at not in s.loose
