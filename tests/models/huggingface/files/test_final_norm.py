"""The norm before the head is told where the forward has one: it is called after the last layer, before the head."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("transformers", reason="attnctl[hf] is not installed")

import torch

from attnctl.models.huggingface.network import has_final_norm, last_stack
from tests.sweep.families import Family, build
from tests.sweep.modes import given

WITH = [
    "gpt2",
    "llama",
    "gpt_neox",
    "opt",
    "bloom",
    "gemma3_text",
    "qwen3_next",
    "falcon",
    "mpt",
    "jamba",
    "xglm",
    "phi",
]
WITH += ["lfm2", "deepseek_v4", "qwen4_exp", "phi4_multimodal"]
WITHOUT = ["openai-gpt", "bert", "roberta", "electra", "bart"]
PAIRS = {"t5": True, "bart": False, "pegasus": True, "bigbird_pegasus": True}


def called_last(family: Family) -> bool:
    """Whether, in a forward, some norm outside the layers and the head begins after the last layer has ended."""
    network = build(family)
    stack = network.get_submodule(last_stack(network))
    inside = {id(part) for part in stack.modules()}
    events: list[str] = []
    for layer in stack:
        layer.register_forward_hook(lambda *_: events.append("layer"))
    for name, part in network.named_modules():
        if (
            "norm" in type(part).__name__.lower()
            and id(part) not in inside
            and not re.search(r"cls\.|predictions", name)
        ):
            part.register_forward_hook(lambda *_, name=name: events.append("norm" if "lm_head" not in name else "head"))
    with torch.no_grad():
        network(**given(family, network))
    return "norm" in events[len(events) - events[::-1].index("layer") :]


@pytest.mark.parametrize("kind", [*WITH, *WITHOUT])
def test_the_norm_before_the_head(kind: str) -> None:
    family = Family(kind, "causal")
    assert has_final_norm(build(family)) is called_last(family) is (kind in WITH)


@pytest.mark.parametrize("kind", PAIRS)
def test_of_two_halves_it_is_the_decoders(kind: str) -> None:
    family = Family(kind, "seq2seq")
    assert has_final_norm(build(family)) is called_last(family) is PAIRS[kind]
