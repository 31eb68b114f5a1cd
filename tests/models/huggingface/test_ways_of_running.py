"""Capture of a model that its owner runs in ways of their own: compiled, under autocast, wrapped, in threads, captured twice."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers.modeling_utils import AttentionInterface

import attnctl
from attnctl.api.capturing import capture
from attnctl.errors import AttnctlError
from attnctl.models import attend
from tests.models.huggingface.conftest import Shelf
from tests.models.huggingface.test_capture import assert_as_eager
from tests.tools import architectures as zoo
from tests.tools import folders

pytestmark = pytest.mark.usefixtures("no_gradients")


@pytest.fixture(autouse=True)
def quiet_compiler() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch.compiler.reset()


def compiler_stance() -> str:
    return torch._dynamo.eval_frame._stance.stance


@pytest.mark.parametrize(
    ("case", "how"),
    [("llama", "wrapped"), ("llama", "in place"), ("llama", "its forward"), ("bloom, ALiBi", "in place")],
)
def test_a_compiled_model_is_seen_as_one_that_is_not(case: str, how: str) -> None:
    model, given = zoo.build(case, "sdpa" if case == "llama" else "eager"), zoo.inputs(case)
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
    assert_as_eager(case, traces)
    model(**given)
    assert compiled and len(runs) == compiled, "what was compiled before runs again, and nothing was compiled besides"
    assert compiler_stance() == "default", "and the compiler is as it was"


@pytest.mark.parametrize("case", ["gemma2, soft cap and window", "gpt2"])
def test_under_autocast_weights_are_those_of_eager_under_autocast(case: str) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        model = zoo.build(case)
        with capture(model) as traces:
            model(**zoo.inputs(case))
        assert_as_eager(case, traces)


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


def test_overlapping_captures_leave_the_model_and_the_compiler_as_they_were() -> None:
    model, given, before = zoo.build("llama"), zoo.inputs("llama"), AttentionInterface.get_interface
    first, second = capture(model), capture(model)
    one, other = first.__enter__(), second.__enter__()
    model(**given)
    first.__exit__(None, None, None)
    assert compiler_stance() == "force_eager"
    model(**given)
    second.__exit__(None, None, None)
    assert ([t.step for t in one], [t.step for t in other]) == ([0, 0], [0, 0, 1, 1])
    assert AttentionInterface.get_interface is before and model.config._attn_implementation == "sdpa"
    assert compiler_stance() == "default"


def test_an_inner_capture_does_not_leave_the_forward_of_the_outer_one() -> None:
    model, given = zoo.build("llama"), zoo.inputs("llama")
    with capture(model) as outer, capture(model, layer=0, stop=True) as inner:
        output = model(**given)
    assert ([t.layer for t in outer], [t.layer for t in inner]) == ([0, 1], [0]) and output is not None
    assert torch.equal(outer[0].weights, inner[0].weights)


def run_all(*runs: Callable[[], object]) -> None:
    threads = [threading.Thread(target=run) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_threads_see_their_own_forwards() -> None:
    model, found = zoo.build("llama"), {}
    ready = threading.Barrier(2)

    def run(n: int) -> None:
        with torch.no_grad(), capture(model) as traces:
            ready.wait(30)
            model(**zoo.inputs("llama", n=n))
            ready.wait(30)
        found[n] = [trace.weights.shape[-1] for trace in traces]

    run_all(lambda: run(5), lambda: run(8))
    assert found == {5: [5, 5], 8: [8, 8]}
    with capture(model) as traces:
        run_all(lambda: model(**zoo.inputs("llama")))
    assert [trace.layer for trace in traces] == [0, 1], "a thread that watches nothing is watched"


def test_an_encoder_called_alone_has_steps_too() -> None:
    model = zoo.build("t5, bias")
    with capture(model, layer=[0]) as traces:
        model.generate(input_ids=zoo.inputs("t5, bias")["input_ids"], max_new_tokens=3, min_new_tokens=3)
    steps = [(trace.kind, trace.step) for trace in traces]
    assert steps == [("encoder", 0), *[(kind, step) for step in range(3) for kind in ("decoder", "cross")]]


def test_a_network_whose_weights_are_kept_elsewhere_answers_alike(shelf: Shelf) -> None:
    """Its inputs went to the device that has no data, where accelerate has the weights until a module runs."""
    accelerate = pytest.importorskip("accelerate")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    for case in ("llama", "gpt2"):
        folder = shelf(case)
        network, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
        before = attnctl.attend("at eat will", network, tokenizer=tokenizer)
        heads = attnctl.heads("at eat will", network, tokenizer=tokenizer)
        accelerate.cpu_offload(network, execution_device="cpu")
        assert network.device.type == "meta"
        after = attnctl.attend("at eat will", network, tokenizer=tokenizer)
        for one, two in zip(before.layers, after.layers, strict=True):
            np.testing.assert_array_equal(one.weights, two.weights)
        assert before.model.device == after.model.device == "cpu"
        np.testing.assert_array_equal(before.embeddings, after.embeddings)
        kept = attnctl.heads("at eat will", network, tokenizer=tokenizer)
        assert [one.values for one in kept] == [one.values for one in heads]
        normed = [attnctl.heads("at eat will", network, tokenizer=tokenizer, measure="value-norm")]
        assert normed[0]


def test_training_mode_without_dropout_is_no_hindrance() -> None:
    ids = torch.arange(5, 12)[None]
    quiet = zoo.build("llama").train()
    with attnctl.capture(quiet) as traces:
        quiet(ids)
    wanted = zoo.build("llama").eval()
    with attnctl.capture(wanted) as others:
        wanted(ids)
    for one, two in zip(traces.trace(list("abcdefg")).layers, others.trace(list("abcdefg")).layers, strict=True):
        np.testing.assert_array_equal(one.weights, two.weights)
    quiet.config.attention_dropout = 0.1
    with pytest.raises(AttnctlError, match="training mode"), attnctl.capture(quiet):
        pass
    module = zoo.build("bert", hidden_dropout_prob=0.2).train()
    with pytest.raises(AttnctlError, match="training mode"), attnctl.capture(module):
        pass
