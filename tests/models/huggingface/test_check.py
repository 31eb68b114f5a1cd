"""`check`: the weights and values that are shown against those of the model; whatever is wrong there is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attnctl import attention
from attnctl.errors import AttnctlError
from attnctl.layer import LayerTrace
from attnctl.models import check, open_model
from attnctl.models.check import CONTEXT, EAGER, MULTIPLIED, check_attention
from attnctl.models.huggingface import attention_interface, put_out
from attnctl.source import record_trace
from attnctl.trace import Trace
from attnctl.watched.model import switch_heads_off
from tests.models.huggingface.conftest import FamilyTrace, Shelf
from tests.tools.sweep.checkpoints import TEXT, opened
from tests.tools.sweep.families import Family, build

INSIDE = {  # transformers' interface: family and head, which attention
    "llama causal": "self",
    "gpt_oss causal": "self",  # sinks
    "granite_swa causal": "self",  # sinks taken off after the product
    "diffllama causal": "self",  # two products
    "zaya causal": "self",  # modules named attention within modules named attention
    "albert masked": "self",  # one module for all layers
    "t5 seq2seq": "cross",
}
OUTSIDE = {
    "bloom causal": "self",
    "falcon causal": "self",
    "xlnet causal": "self",
    "reformer causal": "self",  # no softmax, but exp
    "squeezebert masked": "self",  # puts out scores
    "longformer masked": "self",  # puts out the columns of a window
    "led seq2seq": "encoder",
}


def opened_case(family: FamilyTrace, case: str) -> Any:
    return family(*case.split(), attention=(INSIDE | OUTSIDE)[case])[0]


def marks(model: Any, **selection: Any) -> dict[str, bool | None]:
    return {finding.sentence: finding.holds for finding in check_attention(model, TEXT, **selection)}


def shown_otherwise(monkeypatch: pytest.MonkeyPatch, change: Callable[[LayerTrace], LayerTrace]) -> None:
    """Let what is checked differ from what the model does, in its last layer."""

    def record(*args: Any, **how: Any) -> Trace:
        trace = record_trace(*args, **how)
        return replace(trace, layers=(*trace.layers[:-1], change(trace.layers[-1])))

    monkeypatch.setattr(check, "record_trace", record)


def with_wrong_weight(layer: LayerTrace) -> LayerTrace:
    """One weight 0.01 too large, another 0.01 too small: the row still sums to 1."""
    weights, at = np.array(layer.weights), np.shape(layer.weights)[1] - 1
    weights[-1, at, at] += 1e-2
    weights[-1, at, at - 1] -= 1e-2
    return replace(layer, weights=weights)


@pytest.mark.parametrize("case", [*INSIDE, *OUTSIDE])
def test_a_weight_that_is_off_by_a_hundredth_is_found(
    monkeypatch: pytest.MonkeyPatch, family: FamilyTrace, case: str
) -> None:
    model, inside = opened_case(family, case), case in INSIDE
    weights = EAGER if inside else MULTIPLIED
    found = marks(model)
    assert found[weights] is True and found[CONTEXT] is (True if inside else None) and False not in found.values()
    shown_otherwise(monkeypatch, with_wrong_weight)
    found = marks(model)
    assert found[weights] is False and found[CONTEXT] is (False if inside else None)
    if case == "llama causal":  # and where one head is asked for
        found = marks(model, layers=[1], heads=[3])
        assert found[EAGER] is False and found[CONTEXT] is False


def test_values_that_are_not_the_models_are_found(monkeypatch: pytest.MonkeyPatch, family: FamilyTrace) -> None:
    shown_otherwise(monkeypatch, lambda layer: replace(layer, values=np.asarray(layer.values) * np.float32(1.01)))
    for case in ("llama causal", "diffllama causal", "t5 seq2seq"):
        found = marks(opened_case(family, case))
        assert found[EAGER] is True and found[CONTEXT] is False


def test_what_is_not_recomputed_is_not_called_right(monkeypatch: pytest.MonkeyPatch, family: FamilyTrace) -> None:
    monkeypatch.setattr(put_out, "PRODUCTS", frozenset())
    by_what = {finding.sentence: finding for finding in check_attention(opened_case(family, "bloom causal"), TEXT)}
    assert by_what[CONTEXT].holds is None and "values that are not shown" in by_what[CONTEXT].result
    assert by_what[MULTIPLIED].holds is None and "only the sums of its rows were checked" in by_what[MULTIPLIED].result


@pytest.mark.parametrize(("dtype", "said"), [("float32", False), ("bfloat16", None)])
def test_keys_that_an_indexer_picks_otherwise_by_rounding(
    monkeypatch: pytest.MonkeyPatch, dtype: str, said: bool | None
) -> None:
    """In half precision other keys are neither right nor wrong: the scores of two may be alike but for rounding."""
    family = Family("deepseek_v32", "causal")
    model = opened(family, build(family, "sdpa", dtype), "self")
    assert False not in marks(model).values()

    def with_other_keys(layer: LayerTrace) -> LayerTrace:
        return replace(layer, weights=np.roll(np.asarray(layer.weights), 1, axis=-1))  # (heads, n_q, n_k)

    shown_otherwise(monkeypatch, with_other_keys)
    found = {finding.sentence: finding for finding in check_attention(model, TEXT)}
    assert found[CONTEXT].holds is said and found[EAGER].holds is said
    assert ("picks other keys by rounding (bfloat16)" in found[CONTEXT].result) is (said is None)


def test_half_precision_alone_is_nothing_wrong(shelf: Shelf) -> None:
    findings = check_attention(open_model(shelf("llama"), dtype="bfloat16"), "at ate e")
    assert {finding.holds for finding in findings} == {True}


def test_a_model_with_a_head_off_is_checked_with_it_off(monkeypatch: pytest.MonkeyPatch, family: FamilyTrace) -> None:
    model = switch_heads_off(opened_case(family, "gpt_oss causal"), "0.1")
    found = marks(model)
    assert found[EAGER] is True and found[CONTEXT] is True
    shown_otherwise(monkeypatch, with_wrong_weight)
    assert marks(model)[CONTEXT] is False


def test_a_softmax_of_another_temperature_is_found(monkeypatch: pytest.MonkeyPatch, shelf: Shelf) -> None:
    model, plain = open_model(shelf("llama")), attention.softmax
    monkeypatch.setattr(attention, "softmax", lambda x, *more: plain(x * 1.01, *more))
    with pytest.raises(AttnctlError, match=r"layer 0 of LlamaForCausalLM does not attend by the softmax"):
        record_trace(model, TEXT)  # found while it runs
    monkeypatch.setattr(attention_interface, "context_disagreement", lambda *_: None)
    found = {what.split()[0]: holds for what, holds in marks(model).items()}
    assert (found["weights"], found["context"], found["layer"], found["row"]) == (False, False, False, True)
