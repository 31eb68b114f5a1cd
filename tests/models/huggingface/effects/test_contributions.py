"""Direct contributions: they add up to the model's own logit, or the architecture is refused by name."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

import attnctl
from attnctl.errors import AttnctlError
from attnctl.interventions import Intervention
from attnctl.models.huggingface.contributions import TargetLogit, taken_apart
from attnctl.readings.effects import ContributionPart, Contributions
from tests.tools import architectures as zoo

TARGET, AGAINST = 5, 7


pytestmark = pytest.mark.usefixtures("no_gradients")


def apart(model: Any, given: dict[str, Any], query: int = 8, **how: Any) -> Contributions:
    n = given["input_ids"].shape[1]
    base = Intervention(**how)
    return taken_apart(model, given, TargetLogit(n - query, query, TARGET, AGAINST), base)


def part_of(found: Contributions, layer: int, head: int) -> ContributionPart:
    return next(part for part in found.parts if (part.layer, part.head) == (layer, head))


@pytest.mark.parametrize("case", [*zoo.DECODERS, *zoo.SPARSE])
def test_the_parts_add_up_to_the_models_own_logit(case: str) -> None:
    model, given, query = zoo.build(case), zoo.inputs(case), 5
    parts, logits = apart(model, given, query), model(**given).logits[0, query]
    if not parts.notes:  # else they are of the logits before a cap
        assert parts.logit == pytest.approx(float(logits[TARGET] - logits[AGAINST]), abs=1e-5)
    assert parts.sum_of_parts == pytest.approx(parts.logit, rel=1e-4, abs=1e-5)
    heads = [part for part in parts.parts if part.part == "head"]
    assert len(heads) == 4 * (1 if case in zoo.SPARSE else 2)
    for part in heads:
        assert part.keys is not None
        assert sum(part.keys) == pytest.approx(part.value, abs=1e-5)
        assert all(value == 0 for value in part.keys[query + 1 :])


def test_a_head_of_llama_by_the_formula() -> None:
    """Σ weight · value · W_O, through the last norm's scale, along the difference of two rows of the unembedding."""
    model, given = zoo.build("llama"), zoo.inputs("llama")
    with attnctl.capture(model, layer=[0], head=[3]) as traces:
        states = model.model(**given, output_hidden_states=True)
    last = states.last_hidden_state[0, 8]  # after the norm
    stream: dict[str, torch.Tensor] = {}
    handle = model.model.norm.register_forward_pre_hook(lambda _, args: stream.update(x=args[0][0, 8]))
    model(**given)
    handle.remove()
    scale = last / stream["x"]
    output = model.model.layers[0].self_attn.o_proj.weight[:, 24:32] @ traces[0].context[0, 0, 8]
    expected = float((output * scale) @ (model.lm_head.weight[TARGET] - model.lm_head.weight[AGAINST]))
    found = part_of(apart(model, given), 0, 3)
    assert found.value == pytest.approx(expected, rel=1e-4)


def test_capped_logits_are_taken_apart_before_the_cap_which_is_said_and_without_the_heads_that_are_off() -> None:
    model = zoo.build("gemma2, soft cap and window", final_logit_softcapping=0.5)
    given = zoo.inputs("llama")
    parts, logits = apart(model, given), model(**given).logits[0, -1]
    assert "caps its logits at ±0.5" in parts.notes[0]
    assert abs(parts.logit) > abs(float(logits[TARGET] - logits[AGAINST]))
    off = apart(model, given, heads={1: (2,)})
    assert part_of(off, 1, 2).value == 0 and off.logit != pytest.approx(parts.logit, rel=1e-3)
    for found in (parts, off):
        assert found.sum_of_parts == pytest.approx(found.logit, rel=1e-4)


@pytest.mark.parametrize(
    "family, name, settings, said",
    [
        ("bert", "BertLMHeadModel", zoo.TINY | {"is_decoder": True}, "BertLMHeadModel cannot be taken apart"),
        ("roberta", "RobertaForCausalLM", zoo.TINY | {"is_decoder": True}, "RobertaForCausalLM cannot be taken"),
        ("gpt_bigcode", "GPTBigCodeForCausalLM", {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64}, None),
        ("bart", "BartForCausalLM", zoo.BART, "post-norm"),
    ],
)
def test_architectures_are_right_or_refused_by_name(family: str, name: str, settings: Any, said: str | None) -> None:
    model_class = getattr(importlib.import_module(f"transformers.models.{family}.modeling_{family}"), name)
    torch.manual_seed(0)
    model = model_class(model_class.config_class(**settings)).eval()
    if said is None:
        parts = apart(model, zoo.inputs("llama"))
        assert parts.sum_of_parts == pytest.approx(parts.logit, rel=1e-4, abs=1e-5)
    else:
        with pytest.raises(AttnctlError, match=said):
            apart(model, zoo.inputs("llama"))
