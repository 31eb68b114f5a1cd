"""What `capture`, `intervene`, `effects` and `AttentionLog` refuse: in one line, arguments of another type by their name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import attnctl
from attnctl.errors import AttnctlError
from tests.tools import architectures as zoo

IDS = torch.tensor([[1, 2, 3]])
RESAMPLED = {0: torch.zeros(4, 5, 8)}
# the function, what it is given besides a llama and its inputs, the error
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("capture", {"head": [4]}, "UsageError: head=4: layer 0 of LlamaForCausalLM has heads 0 to 3"),
    ("capture", {"layer": [7]}, "UsageError: layer=7: the attention of LlamaForCausalLM was recorded in layers 0 to 1"),
    ("capture", {"layer": []}, "UsageError: capture(): layer is empty"),
    ("capture", {"head": []}, "UsageError: capture(): head is empty"),
    ("capture", {"rows": []}, "UsageError: capture(): rows is empty"),
    ("capture", {"attention": "cross"}, "AttnctlError: no cross attention of LlamaForCausalLM"),
    ("capture", {"attention": "sideways"}, "UsageError: no attention 'sideways'"),
    ("capture", {"keep": ["wights"]}, "UsageError: no step 'wights'"),
    ("intervene", {"heads": {2: [0]}}, "UsageError: heads='2.0': LlamaForCausalLM has layers 0 to 1"),
    ("intervene", {"heads": {0: [4]}}, "UsageError: heads='0.4': LlamaForCausalLM has heads 0 to 3 in each layer"),
    ("intervene", {"heads": {0: [0]}, "how": "half"}, "UsageError: how='half': it is zero, mean, resample"),
    ("intervene", {"heads": {0: [0]}, "how": "resample"}, "another text"),
    ("intervene", {"heads": {0: [0]}, "how": "resample", "reference": RESAMPLED}, "5 tokens, this text 9"),
    ("intervene", {"heads": {0: [0]}, "how": "mean", "reference": {0: torch.zeros(3)}}, "(3,): mean needs (4, 8)"),
    ("intervene", {"heads": {0: [0]}, "how": "resample", "reference": {0: torch.zeros(3)}}, "needs (4, n, 8)"),
    (
        "intervene",
        {"model": "bloom, ALiBi", "heads": {0: [0]}},
        "AttnctlError: BloomForCausalLM computes its attention in code",
    ),
    ("intervene", {"heads": {"a": [0]}}, "TypeError: intervene(): a layer of heads is int, not str"),
    ("intervene", {"heads": {0: None}}, "TypeError: intervene(): heads[0] is int or Sequence, not NoneType"),
    ("intervene", {"heads": {0: "x"}}, "TypeError: intervene(): heads[0] is int or list, not str"),
    ("intervene", {"edges": [(0, 1, 2)]}, "TypeError: intervene(): edges is a list of (query, key), not list"),
    ("intervene", {"edges": [(0, 1)], "layer": "all"}, "TypeError: intervene(): layer is int or list, not str"),
    ("intervene", {"heads": {0: [0]}, "how": "mean", "reference": {0: None}}, "reference[0] is an array, not None"),
    ("effects", {"target": 64}, "no id 64: the vocabulary of LlamaForCausalLM has 0 to 63"),
    ("effects", {"target": " Mary"}, "give a tokenizer"),
    ("effects", {"inputs": zoo.inputs("llama", batch=2)}, "one text"),
    ("effects", {"edges": [(2, 5)]}, "looks into the future"),
    ("effects", {"target": [5, 6], "query": 3}, "after the last one"),
    ("effects", {"model": "bert", "approximate": True}, "makes none"),
    ("effects", {"target": ["x"]}, "TypeError: effects(): target is int, not str: 'x'"),
    ("effects", {"edges": [1]}, "TypeError: effects(): edges is a list of (query, key), not list"),
    ("effects", {"tokenizer": 3}, "TypeError: effects(): tokenizer is a tokenizer, not int"),
    ("effects", {"inputs": {"input_ids": [1]}}, "TypeError: effects(): inputs['input_ids'] is a tensor, not list"),
    ("effects", {"inputs": "a text"}, "TypeError: effects(): with a text, model is one of attnctl or its name"),
    ("AttentionLog", {"inputs": None}, "TypeError: AttentionLog(): inputs is Mapping, not NoneType"),
    ("AttentionLog", {"inputs": {"input_ids": [[1]]}}, "AttentionLog(): inputs['input_ids'] is a tensor, not list"),
    ("AttentionLog", {"every": 1.5}, "TypeError: AttentionLog(): every is int, not float"),
    ("AttentionLog", {"layer": "all"}, "TypeError: AttentionLog(): layer is int or list, not str"),
    ("AttentionLog", {"report": 3}, "TypeError: AttentionLog(): report is a function, not int"),
]


def call(function: str, given: dict[str, Any]) -> None:
    """Call a function on a small model; one that looks on, around a forward."""
    model, inputs = zoo.build(given.get("model", "llama")), zoo.inputs("llama")
    how = {name: value for name, value in given.items() if name != "model"}
    if function == "effects":
        attnctl.effects(model, **{"inputs": inputs} | how)
    elif function == "AttentionLog":
        attnctl.AttentionLog(**{"inputs": {"input_ids": IDS}} | how)
    else:
        with getattr(attnctl, function)(model, **how):
            model(**inputs)


@pytest.mark.parametrize(("function", "given", "says"), REFUSED)
def test_what_cannot_be_is_refused_in_one_line(function: str, given: dict[str, Any], says: str) -> None:
    with pytest.raises((AttnctlError, TypeError)) as error:
        call(function, given)
    assert says in f"{type(error.value).__name__}: {error.value}" and "\n" not in str(error.value)


def test_numbers_of_numpy_are_numbers() -> None:
    zero = np.int64(0)
    call("capture", {"layer": zero, "head": zero, "rows": zero})
    call("intervene", {"heads": {zero: zero}, "edges": [(zero, zero)], "layer": zero, "edge_heads": [zero]})
    call("effects", {"layer": zero, "query": zero + 3, "target": zero + 5})
    call("AttentionLog", {"layer": zero})
