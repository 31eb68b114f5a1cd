"""How words outside a vocabulary are read, and what a trained model says of sentences unlike those it was trained on."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnctl.models import open_model
from attnctl.models.builtin.vocabulary import (
    SHAPES,
    in_parts,
    letter_pieces,
    part_clitic,
    shape_of,
    word_spellings,
)
from attnctl.text.tokens import split_words

# word → its shape, in a sentence; of the first word of one where that differs
SHAPE_OF = """
Zara [Name]
Wugs [Name] [-s]
blicking [-ing]
blicked [-ed]
wugs [-s]
glass [word]
blickly [-ly]
blickness [-ness]
blickful [-ful]
blicker [-er]
42 [0]
3.14 [0]
wug [word]
naïve-ish [-ful]
"""


def test_shapes() -> None:
    for word, inside, *first in map(str.split, SHAPE_OF.split("\n")[1:-1]):
        assert shape_of(word, first=False) == inside and inside in SHAPES
        assert shape_of(word, first=True) == (first or [inside])[0]
    assert shape_of("→", first=False) is shape_of("a_b", first=False) is None


def test_spellings() -> None:
    assert word_spellings("It")[:2] == ("It", "it")
    assert "don't" in word_spellings("Don’t") and "UK" in word_spellings("uk")
    assert "Jose" in word_spellings("José") and "jose" in word_spellings("José")


def test_unknown_words_are_told_apart_by_their_letters() -> None:
    assert letter_pieces("Zorblax", 1024) == letter_pieces("zórblax", 1024) != letter_pieces("Quimbly", 1024)
    model: Any = open_model("demo")
    rows = model.embed(model.tokenize("Zorblax met Quimbly and Zorblax ."))  # (6, d_model)
    assert (rows[0] == rows[4]).all() and not np.allclose(rows[0], rows[2])
    assert all(token.id == model.tokenize("Zorblax")[0].id for token in model.tokenize("Zorblax Quimbly"))


def test_a_clitic_is_a_word_of_its_own_where_the_vocabulary_has_it() -> None:
    known = {"'s", "'ll", "don't", "Alice"}
    assert part_clitic("Alice's", known) == ("Alice", "'s") and part_clitic("Alice’s", known) == ("Alice", "’s")
    assert part_clitic("don't", known) is part_clitic("o'clock", known) is part_clitic("Alice's", {"Alice"}) is None
    text = "Alice’s cat, they'll say, don't bite."
    tokens = list(in_parts(split_words(text), known))
    assert [t.text for t in tokens] == ["Alice", "’s", "cat", ",", "they", "'ll", "say", ",", "don't", "bite", "."]
    assert all(text[t.start : t.end] == t.text for t in tokens)
    apart = "Alice 's cat says 'so ' s"
    tokens = list(in_parts(split_words(apart), known))
    assert [t.text for t in tokens] == ["Alice", "'s", "cat", "says", "'", "so", "'", "s"]
    assert all(apart[t.start : t.end] == t.text for t in tokens)
