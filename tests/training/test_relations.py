"""Measuring relations: heads made by hand must come out right, and the bundled models must hold what is said of them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from attnctl.attention import Call
from attnctl.layer import Run
from attnctl.layer.computed import ComputedLayer
from attnctl.models import open_model
from attnctl.models.builtin.bundled import path_of
from attnctl.readings.trace import ModelInfo
from attnctl.tokens import words
from attnctl.training import grammar
from attnctl.training.grammar import Link, Sentence
from attnctl.training.relations import Sample, evaluate, look, word_weights


class Made:
    """A model whose two heads look at the previous and at the first token, whatever the text."""

    info = ModelInfo(name="made", kind="dot", n_heads=2, n_layers=1, causal=True)
    tokenize = staticmethod(words)

    def run(self, tokens: Any, visit: Any, text: str = "") -> Run:
        n = len(tokens)
        keys = np.eye(n, dtype=np.float32)[None].repeat(2, 0)
        at = np.arange(n)
        queries = 50 * np.stack([np.eye(n)[np.maximum(at - 1, 0)], np.eye(n)[at * 0]]).astype(np.float32)
        visit(ComputedLayer.of(0, Call(queries, keys, keys, scale=1.0, causal=True)))
        return Run(tuple(tokens))


def test_a_head_is_right_where_its_largest_weight_on_another_word_is() -> None:
    s = Sentence(["Alice", "will", "eat", "pizza"], [Link("verb", 2, 0), Link("object", 3, 2), Link("first", 0, 0)])
    found = look(Made(), Sample([s], {link.relation: [(0, link)] for link in s.links}))
    assert found["verb"].right.tolist() == [[[False, True]]]
    assert found["object"].right.tolist() == [[[True, False]]]
    assert found["first"].right.tolist() == [[[False, False]]]  # a word never finds itself


def test_made_heads_score_what_the_rules_score() -> None:
    measured = {m.relation: m for m in evaluate(Made(), count=200)}
    pronoun = measured[grammar.PRONOUN]
    assert pronoun.untrained is None
    obj = measured[grammar.OBJECT_VERB]
    assert obj.offset == -1 and obj.head == 0 and obj.held_out == pytest.approx(obj.by_offset)
    assert measured[grammar.PAST_DISTRACTOR].by_nearest == 0 and measured[grammar.PAST_DISTRACTOR].by_first == 1


def test_split_words_are_pooled() -> None:
    """A model that reads letters: a word is looked at by the sum of its letters, and looks as its last one."""
    from attnctl.tokens import characters

    class Letters(Made):
        tokenize = staticmethod(characters)

    w = word_weights(Letters(), Sentence(["the", "cat"]))
    assert w.shape == (1, 2, 2, 2)
    assert w[0, 0, 1, 1] == pytest.approx(1) and w[0, 1, 1, 0] == pytest.approx(1)


@pytest.mark.parametrize("name", ["demo", "demo-masked"])
def test_the_bundled_model_holds_what_its_card_says(name: str) -> None:
    model: Any = open_model(name)
    card = figures(name)
    assert path_of(name).stat().st_size < 1_000_000
    measured = {m.relation: m for m in evaluate(model, count=300)}
    goals = [m for m in measured.values() if m.goal is not None]
    assert len(goals) == (4 if name == "demo" else 2)
    for m in goals:
        assert (m.layer, m.head) == (card[m.relation]["layer"], card[m.relation]["head"])
        assert m.held_out == pytest.approx(card[m.relation]["held_out"], abs=0.04) and m.held_out > m.goal - 0.02
        assert m.untrained is not None and max(m.untrained, m.by_offset) < 0.6


def figures(name: str) -> dict[str, Any]:
    with safe_open(str(path_of(name)), framework="np") as file:
        found: dict[str, Any] = json.loads(file.metadata()["figures"])
    return found


@pytest.mark.parametrize("name", ["demo", "demo-masked"])
def test_the_famous_sentence(name: str) -> None:
    model: Any = open_model(name)
    sentence = Sentence(["Alice", "will", "eat", "pizza"])
    w = word_weights(model, sentence)
    assert w[:, :, 2, 0].max() > 0.5  # eat → Alice
    assert w[:, :, 3, 2].max() > 0.5  # pizza → eat
