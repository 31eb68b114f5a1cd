"""The tokens of GGUF files are llama.cpp's: stored answers of llama_tokenize, and its own where it is installed."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from attnctl.models.gguf.header import read_header
from attnctl.models.gguf.pretokenizers import PRE_TOKENIZERS
from attnctl.models.gguf.tokenizer import GgufTokenizer, read_tokenizer
from tests.tools import gguf_tokens
from tests.tools.gguf_tokens import TEXTS, Vocabulary
from tests.tools.llamacpp import LACKS, LlamaCpp, library_file

STORED = json.loads((Path(__file__).parent / "llamacpp_tokens.json").read_text("utf-8"))
VOCABULARIES = gguf_tokens.vocabularies(base64.b64decode(STORED["charsmap"]))


def tokenizer_of(vocabulary: Vocabulary, folder: Path) -> GgufTokenizer:
    path = gguf_tokens.write_vocabulary(folder / "vocabulary.gguf", vocabulary)
    return read_tokenizer(read_header(path), "vocabulary")


def test_the_ids_of_each_kind_and_name_are_llama_cpps(tmp_path: Path) -> None:
    assert VOCABULARIES.keys() == STORED["names"].keys()
    first_names = {form: name for name, form in reversed(PRE_TOKENIZERS.items())}
    for name, form in PRE_TOKENIZERS.items():  # names of one form have one answer
        assert STORED["names"][f"gpt2 {name}"] == STORED["names"][f"gpt2 {first_names[form]}"]
    others = [name for name in VOCABULARIES if name.removeprefix("gpt2 ") not in PRE_TOKENIZERS]
    for name in [*(f"gpt2 {name}" for name in first_names.values()), *others]:
        made = tokenizer_of(VOCABULARIES[name](), tmp_path)
        answer = STORED["answers"][STORED["names"][name]]
        for text, ids in zip(TEXTS, answer, strict=True):
            assert made.tokenizer.encode(text).ids == ids, (name, text)
        assert made.notes == ()


@pytest.mark.skipif(library_file() is None, reason=LACKS)
def test_the_stored_ids_are_those_of_the_installed_llama_cpp(tmp_path: Path) -> None:
    for name in ("gpt2 llama-bpe", "gpt2 deepseek-llm", "llama without a first space", "t5", "bert", "gemma4"):
        path = gguf_tokens.write_vocabulary(tmp_path / "vocabulary.gguf", VOCABULARIES[name]())
        model = LlamaCpp(path, vocab_only=True)
        assert [model.tokenize(text) for text in TEXTS] == STORED["answers"][STORED["names"][name]]


def test_a_token_shows_the_characters_that_it_is_made_of(tmp_path: Path) -> None:
    """Positions count characters of the text: of a word with its space, of bytes, of letters that the file rewrites."""
    text = "  naïve “Ａ” 👍 x"
    for name in ("gpt2 llama-bpe", "llama", "t5 with a table of characters", "bert", "gemma4"):
        encoding = tokenizer_of(VOCABULARIES[name](), tmp_path).tokenizer.encode(text)
        spans = [
            span for span, special in zip(encoding.offsets, encoding.special_tokens_mask, strict=True) if not special
        ]
        assert sorted(spans) == spans and spans[-1][1] == len(text), name
        shown = {place for start, end in spans for place in range(start, end)}
        assert {place for place, letter in enumerate(text) if not letter.isspace()} <= shown, name


def test_settings_are_those_of_the_header(tmp_path: Path) -> None:
    settings = tokenizer_of(VOCABULARIES["bert"](), tmp_path).settings
    assert settings == {
        "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]", "pad_token": "[PAD]", "mask_token": "[MASK]",
    }  # fmt: skip
    assert tokenizer_of(VOCABULARIES["llama"](), tmp_path).settings == {
        "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
    }  # fmt: skip


def test_an_unknown_name_is_said_and_its_words_are_split_by_the_default_rules(tmp_path: Path) -> None:
    made = tokenizer_of(gguf_tokens.merged_bytes("made-up"), tmp_path)
    assert len(made.notes) == 1 and "made-up" in made.notes[0]
    default = STORED["answers"][STORED["names"]["gpt2 default"]]
    assert [made.tokenizer.encode(text).ids for text in TEXTS] == default


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model": "rwkv"}, "a tokenizer of the kind rwkv"),
        ({"tokens": []}, "no tokens"),
        ({"scores": [0.0]}, "1 of tokenizer.ggml.scores"),
    ],
)
def test_what_cannot_be_read_is_one_line(change: dict[str, Any], says: str, tmp_path: Path) -> None:
    from dataclasses import replace

    from attnctl.errors import AttnctlError

    with pytest.raises(AttnctlError, match=says):
        tokenizer_of(replace(gguf_tokens.scored(), **change), tmp_path)
