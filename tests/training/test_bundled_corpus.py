"""The bundled corpus is what the grammar of samples/english writes, and holds nothing that its models are tested on."""

from __future__ import annotations

import lzma
from itertools import chain

import pytest

from attnctl.text import english
from attnctl.text.english import HELD_OUT, SENTENCES, WORDS, read_sentences
from samples.english import __main__ as command
from samples.english.grammar import sentences
from samples.english.language import word_lines
from samples.english.marked import content_words, kept_out
from tests.training.test_bundled_models import EVERYDAY


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


def test_training_shares_no_sentence_and_no_fact_with_what_is_measured() -> None:
    parts = ("both", "masked-word", "next-word")
    trained = {content_words(block.split()[1::10]) for block in read_sentences(SENTENCES, *parts)}
    assert len(trained) > 60_000
    assert not trained & kept_out() and not trained & {content_words(s.words) for s in EVERYDAY}
    train = {fact for s in sentences(4000, 3) for fact in s.facts}
    test = {fact for s in sentences(500, 2, held_out_only=True) for fact in s.facts}
    assert test and not train & test
