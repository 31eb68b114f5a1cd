"""The norm before the head is told where the run calls one: after the last layer, before the head."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers", reason="attnctl[hf] is not installed")

from attnctl.source import record_trace
from tests.tools.sweep.checkpoints import TEXT, opened
from tests.tools.sweep.families import Family, build

WITH = ["gpt2", "llama", "gpt_neox", "opt", "bloom", "gemma3_text", "qwen3_next", "falcon", "mpt", "jamba", "xglm"]
WITH += ["phi", "lfm2", "deepseek_v4", "qwen4_exp", "phi4_multimodal", "longcat_flash"]
WITHOUT = ["openai-gpt", "bert", "roberta", "electra", "bart"]
PAIRS = {"t5": True, "bart": False, "pegasus": True, "bigbird_pegasus": True}


@pytest.mark.parametrize("kind", [*WITH, *WITHOUT])
def test_the_norm_before_the_head(kind: str) -> None:
    family = Family(kind, "causal")
    model = opened(family, build(family), "self")
    trace = record_trace(model, TEXT)
    assert trace.model.final_norm is (kind in WITH)
    part = record_trace(model, TEXT, layers=[trace.layers[0].layer], predictions=False)  # left early, it is not known
    assert part.model.final_norm in (None, kind in WITH)


@pytest.mark.parametrize("kind", PAIRS)
def test_of_two_halves_it_is_the_decoders(kind: str) -> None:
    family = Family(kind, "seq2seq")
    assert record_trace(opened(family, build(family), "decoder"), TEXT).model.final_norm is PAIRS[kind]
