"""How word pieces are shown, and which of them are one word: held against transformers' own `word_ids` and offsets."""

from __future__ import annotations

import json
import unicodedata
from itertools import groupby, pairwise
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import attnctl
from attnctl.formats.documents.trace_json import trace_to_json
from attnctl.models.huggingface.tokenizer import Pieces
from attnctl.source import Changes, TraceSource, prepare
from attnctl.text.tokens import Token, from_encoding
from attnctl.trace import word_groups
from tests.tools import folders

TEXTS = (
    "我爱北京天安门",
    "Alice doesn't eat pizza.",
    "我 爱  北京, 3.50",
    "cafe\u0301s ｶﾞｽ 🍕",
    "a <mask> b",
    unicodedata.normalize("NFD", "한국 é"),
)


def _letters(*more: str) -> list[str]:
    found = {letter for text in TEXTS for letter in unicodedata.normalize("NFKC", text) if not letter.isspace()}
    return [*more, *sorted(found), *(f"##{letter}" for letter in sorted(found))]


def word_piece() -> Tokenizer:
    made = Tokenizer(models.WordPiece({piece: at for at, piece in enumerate(_letters("[UNK]"))}, unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    return made


def unigram(split: bool = True) -> Tokenizer:
    scores = {"<unk>": -10.0, "▁": -2.0, "北京": -3.0, "天安门": -3.0} | dict.fromkeys(_letters(), -4.0)
    made = Tokenizer(models.Unigram([*scores.items()], unk_id=0, byte_fallback=False))
    made.normalizer = normalizers.NFKC()
    made.pre_tokenizer = pre_tokenizers.Metaspace(split=split)
    made.decoder = decoders.Metaspace()
    return made


def byte_level(prefix: bool = False) -> Tokenizer:
    made = Tokenizer(models.BPE({letter: at for at, letter in enumerate(folders.ALPHABET)}, []))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=prefix), decoders.ByteLevel()
    return made


KINDS = {
    "WordPiece": word_piece,
    "Unigram": unigram,
    "bytes": byte_level,
    "bytes, a space before": lambda: byte_level(True),
}


def tokens_of(tokenizer: Tokenizer, text: str) -> tuple[Token, ...]:
    return Pieces("x", tokenizer, {}).tokenize_text(text)


def is_within_word(text: str, place: int) -> bool:
    """Return whether a character, a number or, beside a mark, a word goes on at a place: by another library's Unicode."""
    import regex

    if any(match.start() < place < match.end() for match in regex.finditer(r"\X", text)):
        return True
    word = any(match.start() < place < match.end() for match in regex.finditer(r"\w+", text))
    return word and regex.match(r"\p{M}.|.\p{M}|\d\d", text[place - 1 : place + 1]) is not None


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", KINDS)
def test_words_are_those_of_the_tokenizer(kind: str, text: str) -> None:
    """Its borders, but for those inside a character or a word of the regex library's, between digits, and at spaces."""
    tokenizer = KINDS[kind]()
    tokenizer.add_special_tokens(["<mask>"])
    wanted = PreTrainedTokenizerFast(tokenizer_object=tokenizer)(text)
    groups = [[at for at, _ in group] for _, group in groupby(enumerate(wanted.word_ids()), lambda one: one[1])]
    for tokens in (tokens_of(tokenizer, text), from_encoding(text, tokenizer.encode(text), tokenizer)):
        assert [token.id for token in tokens] == wanted["input_ids"]
        found = word_groups(tokens, text)
        starts = [group[0] for group in found]
        assert [at for group in found for at in group] == [at for group in groups for at in group]
        assert set(starts) <= {group[0] for group in groups}
        for before, group in pairwise(groups):
            place = tokens[group[0]].start
            if group[0] not in starts:
                pieces = [text[tokens[part[0]].start : tokens[part[-1]].end] for part in (before, group)]
                assert not all(piece.strip(" ") for piece in pieces) or is_within_word(text, place), (before, group)
            elif place is not None and not tokens[group[0]].special:
                assert not is_within_word(text, place), (before, group)


@pytest.mark.parametrize(
    ("tokenizer", "text", "shown"),
    [
        (unigram(), "我爱北京", [" ", "我", "爱", "北京"]),
        (unigram(), "我 爱", [" ", "我", " ", "爱"]),
        (byte_level(True), "ab é", [" ", "a", "b", " ", "é₁", "é₂"]),
        (byte_level(True), "é", [" ", "é₁", "é₂"]),
        (byte_level(), "a  b", ["a", " ", " ", "b"]),
        (unigram(), "e\u0301 ｶﾞ", [" ", "e\u0301", " ", "ｶﾞ"]),
        (unigram(), unicodedata.normalize("NFD", "한국"), [" ", *(unicodedata.normalize("NFD", one) for one in "한국")]),
        (word_piece(), "cafe\u0301s", ["c", "a", "f", "e\u0301", "s"]),
        (byte_level(), "e\u0301", ["e", "\u0301₁", "\u0301₂"]),
    ],
)  # fmt: skip
def test_a_piece_is_shown_by_what_it_covers(tokenizer: Tokenizer, text: str, shown: list[str]) -> None:
    """A lone space marker covers no letter, and a letter keeps the marks that the normalizer joins to it or drops."""
    tokens = tokens_of(tokenizer, text)
    assert [token.text for token in tokens] == shown
    for token, offsets in zip(tokens, tokenizer.encode(text).offsets, strict=True):
        assert token.start == offsets[0]
        if token.text.strip() and token.text[-1] not in "₁₂":
            assert text[token.start : token.end].strip() == token.text


@pytest.mark.parametrize("kind", ["WordPiece", "Unigram"])
def test_an_unknown_letter_is_no_special_token(kind: str) -> None:
    """Its id is that of <unk>, which is one: it fell out of its word, and out of the map with --drop special."""
    tokenizer, text = KINDS[kind](), "ab ☃b ☃"
    mark = "<unk>" if kind == "Unigram" else "[UNK]"
    tokenizer.add_special_tokens([mark])
    tokens = Pieces("x", tokenizer, {"unk_token": mark}).tokenize_text(text)
    assert [token.text for token in tokens if token.unknown] == [text[t.start : t.end] for t in tokens if t.unknown]
    assert any(token.unknown for token in tokens) and not any(token.special for token in tokens)
    assert [token.word for token in tokens] == tokenizer.encode(text).word_ids
    (typed,) = [
        token for token in Pieces("x", tokenizer, {"unk_token": mark}).tokenize_text(f"a {mark}") if token.special
    ]
    assert typed.text == mark and not typed.unknown


def test_a_space_marker_that_a_model_writes_is_seen() -> None:
    tokenizer = unigram()
    ids = tokenizer.encode("我 爱").ids
    written = Pieces("x", tokenizer, {}).continued_tokens((), ids)
    assert [token.text for token in written] == [" ", "我", " ", "爱"]


def test_a_tokenizer_that_splits_no_text_has_the_words_of_the_text() -> None:
    text = "我 ab c."
    tokens = tokens_of(unigram(split=False), text)
    assert [token.text for token in tokens] == [" ", "我", " ", "a", "b", " ", "c", "."]
    assert word_groups(tokens, text) == [[0, 1], [2, 3, 4], [5, 6], [7]]


def test_words_of_a_trace_in_a_file_are_those_of_the_model(tmp_path: Path) -> None:
    text = "isn't 3.50 at"
    trace = attnctl.attend(text, folders.write(tmp_path / "model", "llama"))
    path = tmp_path / "trace.json"
    path.write_bytes(trace_to_json(trace))
    word_ids = folders.tokenizer().encode(text).word_ids
    assert [token.get("word") for token in json.loads(path.read_text())["tokens"]] == word_ids
    merged = prepare(TraceSource(attnctl.load(path)), Changes(words=True)).trace()
    assert [token.text for token in merged.tokens] == ["isn", "'t", "3", ".", "50", "at"]
    columns = [trace.layers[0].weights[..., np.array(word_ids) == word].sum(-1) for word in range(6)]  # (heads, n) each
    rows = [np.stack(columns, -1)[:, np.array(word_ids) == word].mean(1) for word in range(6)]
    np.testing.assert_allclose(merged.layers[0].weights, np.stack(rows, 1), rtol=0, atol=1e-6)
