"""Words of tokenizers that cut a text before its marks: what a reader takes for one word is one, as Unicode's rules have it."""

from __future__ import annotations

import numpy as np
import pytest

import attnctl
from attnctl.text.tokens import from_encoding
from attnctl.trace import by_words, joined_word, word_groups

tokenizers = pytest.importorskip("tokenizers")

# the published expressions of three tokenizers, and the rules of SmolLM2's: each digit alone, then GPT-2's
LLAMA_3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
SPLITS = {"qwen3": LLAMA_3.replace("{1,3}", ""), "llama 3": LLAMA_3, "gpt-2": GPT_2, "smollm2": GPT_2}
# text → its words, by the grapheme clusters of UAX 29 and the words of its language; marks of two scripts, a decomposed
# accent, an emoji with a variation selector, and one of three joined by ZWJ
WORDS = {
    "नमस्ते दुनिया": ["नमस्ते", "दुनिया"],
    "நன்றி cafe\u0301": ["நன்றி", "cafe\u0301"],
    "I ❤\ufe0f 👩\u200d👩\u200d👧 now": ["I", "❤\ufe0f", "👩\u200d👩\u200d👧", "now"],
    "in 2024, we": ["in", "2024", ",", "we"],
    "a  b   c ": ["a", "b", "c"],
    "one \n two": ["one", "\n", "two"],
    "don't": ["don", "'t"],
}


def tokenizer_of(name: str) -> tokenizers.Tokenizer:
    """A byte-level tokenizer without merges that splits a text as the one of this name does."""
    split = tokenizers.pre_tokenizers
    alphabet = sorted(split.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(tokenizers.models.BPE({piece: at for at, piece in enumerate(alphabet)}, []))
    digits = [split.Digits(individual_digits=True)] if name == "smollm2" else []
    pattern = split.Split(tokenizers.Regex(SPLITS[name]), "isolated")
    made.pre_tokenizer = split.Sequence([*digits, pattern, split.ByteLevel(add_prefix_space=False, use_regex=False)])
    made.decoder = tokenizers.decoders.ByteLevel()
    return made


@pytest.mark.parametrize("name", SPLITS)
@pytest.mark.parametrize("text", WORDS)
def test_marks_digits_and_spaces_join_their_word(name: str, text: str) -> None:
    tokenizer = tokenizer_of(name)
    tokens = from_encoding(text, tokenizer.encode(text), tokenizer)
    groups = word_groups(tokens, text)
    assert [i for group in groups for i in group] == list(range(len(tokens)))
    words = [joined_word([tokens[i] for i in group], text).text for group in groups]
    assert [word.strip(" ") for word in words] == [word if word != "\n" else words[1] for word in WORDS[text]]


def test_rows_of_joined_words_still_sum_to_one() -> None:
    trace = attnctl.attend("a  b   c e\u0301", tokenizer="chars")
    words = by_words(trace)
    assert [token.text for token in words.tokens] == ["a", "b", "c", "e\u0301"]
    for layer, merged in zip(trace.layers, words.layers, strict=True):
        np.testing.assert_allclose(merged.weights.sum(-1), 1, atol=1e-5)
        first = layer.weights[:, 0, 0]  # a is one token, and no other joins it
        np.testing.assert_allclose(merged.weights[:, 0, 0], first, atol=1e-6)
