"""Captures that overlap, nest or run in several threads: each sees its own forwards, and the model is as it was."""

from __future__ import annotations

import threading
from typing import Any

import pytest

pytest.importorskip("transformers", reason="attnctl[hf] is not installed")

import torch

from attnctl.errors import AttnctlError
from attnctl.models.huggingface.attention_call import mask_and_bias
from attnctl.models.huggingface.capture import capture
from tests.tools import architectures as zoo


def looked_up() -> Any:
    from transformers.modeling_utils import AttentionInterface

    return AttentionInterface.get_interface


def test_overlapping_captures_leave_the_model_as_it_was() -> None:
    model, given, before = zoo.build("llama"), zoo.inputs("llama"), looked_up()
    first, second = capture(model), capture(model)
    one, other = first.__enter__(), second.__enter__()
    model(**given)
    first.__exit__(None, None, None)
    model(**given)
    second.__exit__(None, None, None)
    assert ([t.step for t in one], [t.step for t in other]) == ([0, 0], [0, 0, 1, 1])
    assert looked_up() is before and model.config._attn_implementation == "sdpa"


def test_threads_see_their_own_forwards() -> None:
    model, found = zoo.build("llama"), {}
    ready = threading.Barrier(2)

    def run(n: int) -> None:
        with torch.no_grad(), capture(model) as traces:
            ready.wait(30)
            model(**zoo.inputs("llama", n=n))
            ready.wait(30)
        found[n] = [trace.weights.shape[-1] for trace in traces]

    threads = [threading.Thread(target=run, args=(n,)) for n in (5, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {5: [5, 5], 8: [8, 8]}


def test_a_thread_that_watches_nothing_is_watched() -> None:
    model = zoo.build("llama")
    with capture(model) as traces:
        worker = threading.Thread(target=lambda: model(**zoo.inputs("llama")))
        worker.start()
        worker.join()
    assert [trace.layer for trace in traces] == [0, 1]


def test_an_inner_stop_leaves_the_outer_whole() -> None:
    model, given = zoo.build("llama"), zoo.inputs("llama")
    with capture(model) as outer, capture(model, layer=[0], stop=True) as inner:
        output = model(**given)
    assert ([t.layer for t in outer], [t.layer for t in inner]) == ([0, 1], [0])
    assert output is not None


def test_training_mode_inside_a_capture_is_noticed() -> None:
    model = zoo.build("llama")
    with pytest.raises(AttnctlError, match="is in training mode"), capture(model):
        model.train()
        model(**zoo.inputs("llama"))


def test_an_encoder_called_alone_has_steps_too() -> None:
    model = zoo.build("t5, bias")
    with torch.no_grad(), capture(model, layer=[0]) as traces:
        model.generate(input_ids=zoo.inputs("t5, bias")["input_ids"], max_new_tokens=3, min_new_tokens=3)
    steps = [(trace.kind, trace.step) for trace in traces]
    assert steps == [("encoder", 0), *[(kind, step) for step in range(3) for kind in ("decoder", "cross")]]


def test_masks_that_differ_from_head_to_head_are_read() -> None:
    shown = torch.ones(1, 2, 3, 3, dtype=torch.bool).tril()
    shown[0, 1, 2, 0] = False
    mask, bias = mask_and_bias(shown, 3, 3)
    assert mask.equal(torch.ones(3, 3, dtype=torch.bool).tril()[None])
    assert bias[0, 1, 2, 0] < -1e30 and float(bias.ne(0).sum()) == 1


def test_a_row_of_lowest_numbers_sees_everything_alike_as_the_model_computes_it() -> None:
    given = torch.zeros(1, 1, 2, 2)
    given[0, 0, 1] = torch.finfo(torch.float32).min
    given[0, 0, 0, 1] = torch.finfo(torch.float32).min
    mask, bias = mask_and_bias(given, 2, 2)
    assert mask.tolist() == [[[True, False], [True, True]]] and float(bias[0, 0, 1].max()) < -1e30
    assert mask_and_bias(given > -1, 2, 2)[0].tolist() == [[[True, False], [False, False]]]
