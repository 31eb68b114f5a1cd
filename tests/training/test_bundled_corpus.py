"""The bundled corpus is what the grammar of samples/english writes; tests/tools/grammar.py holds the grammar itself."""

from __future__ import annotations

import lzma
from itertools import chain

import pytest

from attnctl import english
from attnctl.english import HELD_OUT, SENTENCES, WORDS
from samples.english import __main__ as command
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
