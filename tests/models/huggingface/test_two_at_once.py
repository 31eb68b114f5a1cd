"""Forwards of one network in two threads at once: the numbers of one thread to the bit, each text's own."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import attnctl
from attnctl.batching.engines import LOCAL, chunks_of_items
from attnctl.batching.items import Item
from attnctl.batching.work import Work
from attnctl.commands.drift import compute
from attnctl.errors import AttnctlError
from attnctl.formats.documents.json_documents import write_json
from attnctl.layer.interventions import Intervention
from attnctl.models import open_model
from attnctl.models.huggingface import network
from attnctl.models.huggingface.attention_interface import attention_set_to, may_run_at_once
from attnctl.runtime import two_at_once as module
from attnctl.source import record_trace
from attnctl.watched.measure import EffectRequest, measure_effects, watched_text
from tests.models.huggingface.conftest import Shelf
from tests.models.huggingface.test_batches import assert_same
from tests.tools import architectures as zoo

TEXTS = [" ".join(["Alice eats pizza with Bob", "a", "é 🍕", "Bob"][: 1 + number % 4]) for number in range(16)]


def on_two_threads(measure: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a measure returns with two threads of torch, which it uses at once."""
    seen, plain = set[int](), module.copy_context

    def noted() -> Any:
        seen.add(threading.get_ident())
        return plain()

    monkeypatch.setattr(module, "copy_context", noted)
    torch.set_num_threads(2)
    try:
        measured = measure()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert seen  # items were given to threads
    return measured


@pytest.mark.grid
@pytest.mark.parametrize("how", ["zero", "mean"])
@pytest.mark.parametrize("case", ["llama", "gpt2", "bert", "qwen3_next causal", "albert, one layer shared"])
def test_effects_are_those_of_one_thread(case: str, how: str, shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also behind a gate, whose heads are replaced before the projection, which both threads call."""
    model: Any = open_model(shelf(case))

    def measure() -> Any:
        watched = watched_text(model, "at eat will pizza", base=Intervention(how=how))
        return measure_effects(watched, EffectRequest(how=how, batch_size=1))

    alone = measure()
    assert on_two_threads(measure, monkeypatch) == alone


@pytest.mark.parametrize("case", ["llama", "gpt2", "bert", "qwen3_next causal"])
def test_texts_of_a_batch_are_as_if_alone(case: str, shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = open_model(shelf(case))
    work = Work({}, (), batch_size=3, is_named=False)

    def measure() -> list[Any]:
        items = [Item(number, f"text {number}", text) for number, text in enumerate(TEXTS)]
        chunks = chunks_of_items(items, 4)
        return [result.trace for chunk in LOCAL.results(work, chunks, None, model) for result in chunk]

    got = on_two_threads(measure, monkeypatch)
    alone = {text: record_trace(model, text) for text in TEXTS[:4]}  # the others are these again
    for trace, text in zip(got, TEXTS, strict=True):
        assert_same(trace, alone[text])


@pytest.mark.parametrize("case", ["llama", "gemma2, soft cap and window", "qwen3_moe causal"])
def test_prompts_without_a_part_are_those_of_one_thread(
    case: str, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = open_model(shelf(case))
    tokens = model.prompt_tokens("at eat will pizza at eat will")
    read = model.read_prompt(tokens, "", answer=[5, 6])
    groups = [[(start, start + length)] for start in range(0, len(tokens) - 2, 2) for length in (1, 2)]
    alone = [read.log_probabilities(group).tolist() for group in groups]
    forwards = read.forwards
    measured = on_two_threads(lambda: [shares.tolist() for shares in read.log_probabilities_of(groups)], monkeypatch)
    assert measured == alone and read.forwards == forwards + len(groups)


def test_a_prompt_that_is_masked_changes_no_forward_beside_it(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """The part that ends the prompt is masked, the others are left out of it, in the other thread at the same time."""
    model: Any = open_model(shelf("llama"))
    network = model.network.float()
    tokens = model.prompt_tokens("at eat will pizza at eat will")
    read = model.read_prompt(tokens, "", answer=[5, 6])
    ids = [*(token.id for token in tokens), 5, 6]
    parts = [(start, start + 2) for start in range(len(tokens) - 2)]
    last = (len(tokens) - 1, len(tokens))
    expected = []
    for start, end in parts:  # the network alone, without a part of its input
        kept = [place for place in range(len(ids)) if not start <= place < end]
        inputs = {"input_ids": torch.tensor([[ids[place] for place in kept]]), "position_ids": torch.tensor([kept])}
        with torch.inference_mode():
            shares = network(**inputs).logits[0, -3:-1].log_softmax(-1)  # (2, vocabulary)
        expected.append([shares[0, 5].item(), shares[1, 6].item()])
    groups = [[part] for part in parts for part in (last, part)]
    for _ in range(20):
        measured = on_two_threads(
            lambda: [shares.tolist() for shares in read.log_probabilities_of(groups)], monkeypatch
        )
        np.testing.assert_allclose(measured[1::2], expected, rtol=0, atol=1e-5)


def test_a_network_whose_weights_come_and_go_runs_once_at_a_time(shelf: Shelf) -> None:
    network: Any = open_model(shelf("llama")).network  # type: ignore[attr-defined]
    assert may_run_at_once(network)
    network.model.layers[0]._hf_hook = object()  # as accelerate's dispatch_model sets it
    assert not may_run_at_once(network)


def test_a_kernel_stays_replaced_while_another_thread_ends() -> None:
    """The first thread restores the user's kernel while the second asks which one is set."""
    network = zoo.build("llama", "sdpa")
    network.config._attn_implementation_internal = "flex_attention"
    begun, may_end = threading.Event(), threading.Event()

    def first() -> None:
        with attention_set_to(network, "sdpa", "flex_attention".__eq__):
            begun.set()
            may_end.wait(10)

    thread = threading.Thread(target=first)
    thread.start()
    begun.wait(10)

    def is_flex(name: str) -> bool:
        may_end.set()
        thread.join(0.05)  # long enough to restore the kernel, if nothing keeps the thread from it
        return name == "flex_attention"

    with attention_set_to(network, "sdpa", is_flex):
        thread.join()
        assert network.config._attn_implementation_internal == "sdpa"
    assert network.config._attn_implementation_internal == "flex_attention"


def test_a_drift_compared_in_blocks_is_that_of_whole_layers(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = (open_model(shelf("llama"), dtype=dtype) for dtype in ("float32", "bfloat16"))

    def measure() -> Any:
        return attnctl.drift(a, b, "at eat will pizza at eat will")

    whole = measure()
    monkeypatch.setattr(compute, "ROWS", 2)
    monkeypatch.setattr(compute, "MEMORY", 128 * 64 * 3)  # predictions in blocks of three
    alone = measure()
    assert write_json(on_two_threads(measure, monkeypatch), "result") == write_json(alone, "result")
    assert alone.total_variation == pytest.approx(whole.total_variation, rel=1e-6) and whole.total_variation > 0
    assert alone.kl == pytest.approx(whole.kl, rel=1e-6) and whole.kl > 0


@pytest.fixture
def compared_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two models run at once over a text of any length."""
    monkeypatch.setattr(compute, "AT_ONCE", 0)
    monkeypatch.setattr(network, "SHORT", 0)


@pytest.mark.usefixtures("compared_at_once")
@pytest.mark.parametrize("kept", [1, 1 << 30])
@pytest.mark.parametrize("case", ["llama", "gpt2", "bert"])
def test_a_drift_of_two_networks_at_once_is_that_of_one_thread(
    case: str, kept: int, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the two take turns, layer by layer."""
    monkeypatch.setattr(compute, "KEPT_BYTES", kept)
    a, b = (open_model(shelf(case), dtype=dtype) for dtype in ("float32", "bfloat16"))
    sides = set[int]()
    meetings = iter([threading.Barrier(2, timeout=30).wait] * 2)  # or one thread may have done both by then

    def noted(*given: Any) -> Any:
        sides.add(threading.get_ident())
        if threading.current_thread() is not threading.main_thread():
            next(meetings, int)()
        return run_side(*given)

    run_side = compute.run_side
    monkeypatch.setattr(compute, "run_side", noted)

    def measure() -> Any:
        return attnctl.drift(a, b, "at eat will pizza " * 4)

    alone = measure()
    assert sides == {threading.get_ident()}
    sides.clear()
    assert write_json(on_two_threads(measure, monkeypatch), "result") == write_json(alone, "result")
    assert threading.get_ident() not in sides and len(sides) >= 2
    assert alone.total_variation > 0


@pytest.mark.usefixtures("compared_at_once")
@pytest.mark.parametrize("failing", ["A", "B", "comparison"])
def test_a_failure_of_one_of_two_networks_ends_both(
    failing: str, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B waits for the layers of A, which do not come."""
    a, b = (open_model(shelf("llama"), dtype=dtype) for dtype in ("float32", "bfloat16"))

    def fail(*_: object) -> None:
        raise AttnctlError(f"{failing} fails")

    if failing == "comparison":
        monkeypatch.setattr(compute.DriftTally, "_add_weights", fail)
    else:
        layer = {"A": a, "B": b}[failing].network.model.layers[1]  # type: ignore[attr-defined]
        layer.register_forward_pre_hook(fail)
    with pytest.raises(AttnctlError, match=f"{failing} fails"):
        on_two_threads(lambda: attnctl.drift(a, b, "at eat will pizza"), monkeypatch)


@pytest.mark.usefixtures("compared_at_once")
def test_an_interrupt_ends_two_networks(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = (open_model(shelf("llama"), dtype=dtype) for dtype in ("float32", "bfloat16"))
    layer: Any = a.network.model.layers[1]  # type: ignore[attr-defined]

    def interrupt(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)
        time.sleep(0.2)

    layer.register_forward_pre_hook(interrupt)
    torch.set_num_threads(2)
    try:
        with pytest.raises(KeyboardInterrupt):
            attnctl.drift(a, b, "at eat will pizza")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert not [thread for thread in threading.enumerate() if "two at once" in thread.name]


def test_a_network_that_is_compared_with_itself_runs_once_at_a_time(shelf: Shelf) -> None:
    a, b = (open_model(shelf("llama")) for _ in range(2))
    assert compute.may_run_at_once(a, b) and not compute.may_run_at_once(a, a)
    assert not compute.may_run_at_once(*(open_model("demo") for _ in range(2)))
