"""Capture of a model that its owner runs in ways of their own: compiled, under autocast. Costs 3 seconds."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("transformers", reason="attnctl[hf] is not installed")

import numpy as np
import torch

from attnctl.errors import AttnctlError, UsageError
from attnctl.models import attend
from attnctl.models.huggingface.capture import Captures, capture
from attnctl.models.huggingface.configured_sizes import sizes_of_settings
from attnctl.models.huggingface.network import network_info
from tests.models.huggingface.test_capture import eager
from tests.tools import architectures as zoo
from tests.tools import folders


@pytest.fixture(autouse=True)
def quiet_compiler() -> Iterator[None]:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        yield
    torch.compiler.reset()


def assert_as_eager(case: str, traces: Captures) -> None:
    reference = eager(case, zoo.inputs(case))
    assert [(t.kind, t.layer) for t in traces] == sorted(reference)
    for t in traces:
        assert torch.equal(t.weights, reference[t.kind, t.layer]), t.layer


@pytest.mark.parametrize("how", ["wrapped", "in place", "its forward"])
def test_a_compiled_model_is_seen_as_one_that_is_not(how: str) -> None:
    model, given = zoo.build("llama"), zoo.inputs("llama")
    runs: list[int] = []

    def counting(graph: Any, _: Any) -> Any:
        runs.append(1)
        return graph.forward

    if how == "wrapped":
        model = torch.compile(model, backend=counting)
    elif how == "in place":
        model.compile(backend=counting)
    else:
        model.forward = torch.compile(model.forward, backend=counting)
    model(**given)  # compiled before anybody looks on
    compiled = len(runs)
    with capture(model) as traces:
        model(**given)
    assert_as_eager("llama", traces)
    assert traces[0].model == "LlamaForCausalLM"
    model(**given)
    assert compiled and len(runs) == compiled, "what was compiled before runs again, and nothing was compiled besides"
    assert torch._dynamo.eval_frame._stance.stance == "default", "and the compiler is as it was"


def test_a_compiled_model_outside_the_interface() -> None:
    model, given = zoo.build("bloom, ALiBi", "eager"), zoo.inputs("bloom, alibi")
    model.compile(backend="eager")
    model(**given)
    with capture(model) as traces:
        model(**given)
    assert_as_eager("bloom, ALiBi", traces)


def test_overlapping_captures_leave_the_compiler_as_it_was() -> None:
    model = zoo.build("llama")
    first, second = capture(model), capture(model)
    traces = [first.__enter__(), second.__enter__()]
    model(**zoo.inputs("llama"))
    assert [len(one) for one in traces] == [2, 2]
    first.__exit__(None, None, None)
    assert torch._dynamo.eval_frame._stance.stance == "force_eager"
    second.__exit__(None, None, None)
    assert torch._dynamo.eval_frame._stance.stance == "default"


@pytest.mark.parametrize("case", ["llama", "gemma2, soft cap and window", "gpt2"])
def test_under_autocast_weights_are_those_of_eager_under_autocast(case: str) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        model = zoo.build(case)
        with capture(model) as traces:
            model(**zoo.inputs(case))
        assert_as_eager(case, traces)


def test_a_layer_before_the_first_is_refused() -> None:
    model = zoo.build("llama")
    with pytest.raises(UsageError, match="no layer -3 in LlamaForCausalLM"), capture(model, layer=[-3]):
        model(**zoo.inputs("llama"))


def test_layers_that_attend_twice_are_layers_of_their_own() -> None:
    """ALBERT's groups may hold several layers each, which transformers counts in what it puts out."""
    case = "albert, one layer shared"
    model, given = zoo.build(case, inner_group_num=2), zoo.inputs(case)
    reference = eager(case, given, inner_group_num=2)
    assert len(reference) == 4 == network_info(model, "albert", "self").n_layers
    for asked, layer in ((1, 1), (-1, 3), (-4, 0)):
        with capture(model, layer=[asked]) as traces:
            model(**given)
        assert [t.layer for t in traces] == [layer]
        torch.testing.assert_close(traces[0].weights, reference["self", layer])
    assert sizes_of_settings(model.config.to_dict(), "albert", "").layers == 4


class Adapted(torch.nn.Module):
    """A model in a wrapper as PEFT's, whose learned prompts stand before a text."""

    def __init__(self, model: Any, prompts: bool) -> None:
        super().__init__()
        self.base_model, self.config = model, model.config
        self.active_peft_config = SimpleNamespace(is_prompt_learning=prompts)
        self.get_input_embeddings, self.get_base_model = model.get_input_embeddings, lambda: model

    def forward(self, **given: Any) -> Any:
        return self.base_model(**given)


def test_a_wrapped_model_reads_a_text() -> None:
    model, reader = zoo.build("llama", vocab_size=len(folders.VOCABULARY)), folders.tokenizer()
    plain = attend("at ate", model=model, tokenizer=reader)
    for wrapped in (torch.compile(model, backend="eager"), Adapted(model, prompts=False).eval()):
        trace = attend("at ate", model=wrapped, tokenizer=reader)
        assert trace.model == plain.model
        for layer, same in zip(trace.layers, plain.layers, strict=True):
            np.testing.assert_array_equal(layer.weights, same.weights)
    with pytest.raises(AttnctlError, match="Adapted puts learned prompts before the text"):
        attend("at ate", model=Adapted(model, prompts=True).eval(), tokenizer=reader)
