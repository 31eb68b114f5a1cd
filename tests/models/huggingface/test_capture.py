"""Capture against transformers' own eager path, over many architectures.

One head, padding on either side, half precision, generation and a forward left early are run by `test_sweep`.
"""

from __future__ import annotations

import re
import warnings
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("transformers", reason="attnctl[hf] is not installed")


import torch

from attnctl import attention
from attnctl.errors import AttnctlError, UsageError
from attnctl.formats.storage import load
from attnctl.models.huggingface import capture as capturing
from attnctl.models.huggingface.attention_call import check_keywords, context_disagreement
from attnctl.models.huggingface.capture import capture
from attnctl.models.huggingface.intervention import intervene
from attnctl.readings.traces.trace import SINK_NOTE
from tests.tools import architectures as zoo

KINDS = {
    "attentions": "self",
    "encoder_attentions": "encoder",
    "decoder_attentions": "decoder",
    "cross_attentions": "cross",
}


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.filterwarnings("ignore", category=FutureWarning)
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        yield
    torch.set_num_threads(threads)


def eager(case: str, given: dict[str, Any], **how: Any) -> dict[tuple[str, int], torch.Tensor]:
    """The weights that transformers itself puts out: (kind, layer) → (batch, heads, n_q, n_k)."""
    output = zoo.build(case, "eager", **how)(**given, output_attentions=True)
    return {
        (kind, layer): weights
        for key, kind in KINDS.items()
        for layer, weights in enumerate(getattr(output, key, None) or ())
    }


@pytest.mark.parametrize("case", [*zoo.DECODERS, *zoo.ENCODERS, *zoo.PAIRS])
def test_equals_eager_to_the_last_bit(case: str) -> None:
    given = zoo.inputs(case)
    model = zoo.build(case)
    before = model.config._attn_implementation
    with capture(model) as traces:
        model(**given)
    assert model.config._attn_implementation == before
    reference = eager(case, given)
    assert {(t.kind, t.layer) for t in traces} == set(reference)
    for t in traces:
        assert torch.equal(t.weights, reference[t.kind, t.layer]), (t.kind, t.layer)
        assert t.context is not None
        assert t.values is not None
        torch.testing.assert_close(t.context, t.weights @ t.values)


@pytest.mark.parametrize("case", zoo.OUTSIDE)
def test_outside_the_interface_gives_the_weights_only(case: str) -> None:
    given = zoo.inputs(case)
    model = zoo.build(case, "eager")
    with capture(model, layer=[-1], head=[0, 3]) as traces:
        model(**given)
    reference = eager(case, given)
    assert [t.layer for t in traces] == [1]
    assert torch.equal(traces[0].weights, reference["self", 1][:, [0, 3]])
    assert traces[0].queries is None


def test_caps_windows_sinks_and_biases_bite() -> None:
    """Without them the weights would be others, so the parity above is no accident."""

    def all_of(case: str) -> list[capturing.Captured]:
        model = zoo.build(case)
        with capture(model) as traces:
            model(**zoo.inputs(case))
        return traces

    capped = all_of("gemma2, soft cap and window")[0]
    assert float(capped.scores.abs().max()) * 0.5 > 3 > 1.5 >= float(capped.scaled_scores.abs().max())
    assert not capped.mask[0, 8, :6].any()
    sunk = all_of("gpt_oss, sinks")[1]
    assert float(sunk.weights.sum(-1).min()) < 0.5
    biased = all_of("t5, bias")[0]
    assert float((biased.scaled_scores - biased.scores).abs().max()) > 0.1
    assert float(all_of("granite, own scale")[0].scaled_scores.abs().max()) > 1


@pytest.mark.parametrize("sink", [10.0, 20.0, 60.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sink_that_takes_nearly_all_of_a_row(sink: float, dtype: torch.dtype) -> None:
    model = zoo.build("gpt_oss, sinks").to(dtype)
    for name, part in model.named_parameters():
        if name.endswith("sinks"):
            part.data.fill_(sink)
    with capture(model) as traces:
        model(**zoo.inputs("gpt_oss, sinks"))
    assert 0 < float(traces[0].weights.sum(-1).max()) < 0.01
    rows = torch.randn(3, 1, 2, 4, 8)
    call = attention.Call(*rows, sinks=torch.full((2,), sink))
    steps = attention.run_call(call)
    context = steps.context.transpose(1, 2)  # (1, n_q, heads, d_v)
    shares = steps.weights / steps.weights.sum(-1, keepdim=True)
    assert context_disagreement(call, context, steps.weights) is context_disagreement(call, context, shares) is None
    assert context_disagreement(call, context, steps.weights.flip(-1) + 0.01) and context_disagreement(
        call, context + 1, None
    )


@pytest.mark.parametrize("case", ["gpt2", "gemma3, window", "deepseek_v3, d_k is not d_v", "bert", "t5, bias", "bart"])
def test_a_forward_is_left_once_all_was_seen(case: str) -> None:
    model, given, left = zoo.build(case), zoo.inputs(case), True
    with capture(model) as whole:
        model(**given)
    with capture(model, layer=[0], stop=True) as traces:
        model(**given)
        left = False
    assert left and {(trace.kind, trace.layer) for trace in traces} == {(t.kind, 0) for t in whole if t.layer == 0}
    for trace in traces:
        same = next(t for t in whole if (t.kind, t.layer) == (trace.kind, trace.layer))
        torch.testing.assert_close(trace.weights, same.weights, rtol=0, atol=1e-6)
    with capture(model) as again:  # the model is as it was
        model(**given)
    assert all(torch.equal(a.weights, b.weights) for a, b in zip(whole, again, strict=True))


def test_one_number_stands_for_a_list_and_none_is_refused() -> None:
    model, given = zoo.build("llama"), zoo.inputs("llama")
    with capture(model, layer=1, head=2, rows=0) as traces:
        model(**given)
    assert [(t.layer, t.heads, t.weights.shape[-2]) for t in traces] == [(1, (2,), 1)]
    for name in ("layer", "head", "rows"):
        with pytest.raises(UsageError, match=f"{name} is empty"), capture(model, **{name: []}):
            pytest.fail("nothing was asked for")


def test_captures_may_be_nested() -> None:
    model, given = zoo.build("llama"), zoo.inputs("llama")
    with capture(model, layer=0) as outer, capture(model) as inner:
        model(**given)
    assert ([t.layer for t in outer], [t.layer for t in inner]) == ([0], [0, 1])
    assert torch.equal(outer[0].weights, inner[0].weights)


def test_shared_layers_run_to_the_end() -> None:
    model = zoo.build("albert, one layer shared")
    with capture(model, layer=[1], stop=True) as traces:
        output = model(**zoo.inputs("albert, one layer shared"))
    assert [trace.layer for trace in traces] == [1] and output is not None


def test_rows_and_kept_steps() -> None:
    model = zoo.build("llama")
    given = zoo.inputs("llama")
    with capture(model, layer=[0], head=[-1], rows=[-1, 2], keep=["queries"]) as traces:
        model(**given)
    reference = eager("llama", given)["self", 0]
    assert traces[0].weights.shape == (1, 1, 2, 9)
    torch.testing.assert_close(traces[0].weights[0, 0], reference[0, 3, [8, 2]], rtol=0, atol=1e-6)
    assert traces[0].queries.shape == (1, 1, 2, 8)
    assert traces[0].scores is None


def test_the_output_is_what_it_would_be() -> None:
    model = zoo.build("gemma2, soft cap and window", "eager")
    given = zoo.inputs("gemma2, soft cap and window")
    plain = model(**given).logits
    with capture(model):
        assert torch.equal(model(**given).logits, plain)
    with capture(model, layer=[0], head=[0]):
        torch.testing.assert_close(model(**given).logits, plain, rtol=1e-4, atol=1e-5)


def test_layers_not_asked_for_build_no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    plain = attention.run_call
    monkeypatch.setattr(attention, "run_call", lambda call: runs.append(call) or plain(call))
    model = zoo.build("llama")
    with capture(model, layer=[1], head=[0]):
        model(**zoo.inputs("llama"))
    whole, *rows = sorted((call.queries.shape for call in runs), key=lambda shape: shape[1])
    assert whole == (1, 1, 9, 8)
    assert rows == [(1, 4, 8, 8)], "but the few rows of one call that are held against the kernel's own answer"


def test_refusals() -> None:
    model = zoo.build("llama")
    given = zoo.inputs("llama")
    with (
        pytest.raises(UsageError, match="no head 4 in layer 0 of LlamaForCausalLM: it has heads 0 to 3"),
        capture(model, head=[4]),
    ):
        model(**given)
    with pytest.raises(UsageError, match="no layer 7"), capture(model, layer=[7]):
        model(**given)
    with pytest.raises(AttnctlError, match="no cross attention"), capture(model, attention="cross"):
        model(**given)
    with pytest.raises(UsageError, match="no attention 'sideways'"), capture(model, attention="sideways"):
        pass
    with pytest.raises(UsageError, match="no step 'wights'"), capture(model, keep=["wights"]):
        pass
    outside, given = zoo.build("bloom, ALiBi", "eager"), zoo.inputs("bloom, ALiBi")
    outside.register_forward_hook(lambda *_: SimpleNamespace(attentions=()))
    with pytest.raises(AttnctlError, match="Bloom.* puts out no attention weights"), capture(outside):
        outside(**given)
    model.train()
    with pytest.raises(AttnctlError, match="training mode"), capture(model):
        pass


def test_an_unknown_keyword_is_an_error() -> None:
    """What may change a score is never ignored; what is not given does no harm."""
    check_keywords("X", {"tilt": None, "scaling": 1.0, "position_ids": 3})
    with pytest.raises(AttnctlError, match="X hands its attention the keyword 'tilt'"):
        check_keywords("X", {"tilt": 0.5})


def test_what_was_captured_becomes_a_trace(tmp_path: Any) -> None:
    given = zoo.inputs("llama")
    n = given["input_ids"].shape[1]
    with capture(zoo.build("llama")) as traces:
        zoo_model = zoo.build("llama")
    assert repr(traces) == "Captures: nothing yet" and not traces
    with pytest.raises(UsageError, match="nothing was captured"):
        traces.trace()
    with capture(zoo_model) as traces:
        zoo_model(**given)
    assert len(repr(traces).splitlines()) == len(repr(traces[0]).splitlines()) == 1 and len(repr(traces[0])) < 200
    names = [f"t{at}" for at in range(n)]
    trace = traces.trace(names)
    assert [token.text for token in trace.tokens] == names and len(trace.layers) == zoo_model.config.num_hidden_layers
    assert torch.equal(torch.from_numpy(trace.layers[0].weights), traces[0].weights[0].float())
    trace.save(tmp_path / "run.json")
    again = load(tmp_path / "run.json")
    assert again.layers[1].weights.shape == trace.layers[1].weights.shape
    trace.figure().savefig(tmp_path / "grid.png")
    assert (tmp_path / "grid.png").stat().st_size > 5000 and "<iframe" in trace._repr_html_()
    alone = traces[1].trace(names)
    assert [layer.layer for layer in alone.layers] == [1]
    with capture(zoo_model, layer=0, rows=-1) as traces:
        zoo_model(**given)
    last = traces.trace()
    assert last.layers[0].rows == (n - 1,) and last.tokens[-1].text == str(n - 1)
    for how, says in (
        ({"item": 9}, "no text 9"),
        ({"step": 3}, "no forward 3"),
        ({"kind": "cross"}, "no cross attention"),
    ):
        with pytest.raises(UsageError, match=says):
            traces.trace(**how)
    with pytest.raises(UsageError, match=f"tokens has 1 names for {n} positions"):
        traces.trace(["one"])
    with pytest.raises(TypeError, match="list of str"):
        traces.trace("one")


def test_generation_and_two_texts_become_traces() -> None:
    model, given = zoo.build("llama"), zoo.inputs("llama")
    n = given["input_ids"].shape[1]
    with capture(model, layer=0) as traces:
        model.generate(**given, max_new_tokens=2, min_new_tokens=2, do_sample=False, pad_token_id=0)
    second = traces.trace(step=1)
    assert len(second.tokens) == n + 1 and second.layers[0].rows == (n,)
    case = next(iter(zoo.PAIRS))
    pair = zoo.build(case)
    with capture(pair) as traces:
        pair(**zoo.inputs(case))
    with pytest.raises(UsageError, match="several kinds"):
        traces.trace()
    crossed = traces.trace(kind="cross")
    assert crossed.layers[0].weights.shape[1:] == (len(crossed.tokens), len(crossed.key_tokens))


def test_what_a_learned_sink_takes_is_in_the_trace(tmp_path: Any) -> None:
    """The rows summed to less than 1, and nothing in the trace said why."""
    model = zoo.build("gpt_oss, sinks")
    with capture(model) as traces:
        model(**zoo.inputs("gpt_oss, sinks"))
    trace = traces.trace()
    sinks = trace.layers[0].sink_weights
    assert sinks is not None and sinks.max() > 0.1 and SINK_NOTE in trace.notes
    trace.save(tmp_path / "run.json")
    assert load(tmp_path / "run.json").notes == trace.notes


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_capture_in_half_precision_is_believed(dtype: torch.dtype, tmp_path: Any) -> None:
    model = zoo.build("llama").to(dtype)
    with capture(model) as traces:
        model(**zoo.inputs("llama"))
    trace = traces.trace()
    assert f"torch.{trace.model.dtype}" == str(dtype)
    trace.save(tmp_path / "run.json")
    assert load(tmp_path / "run.json").notes == trace.notes


def test_layers_of_other_keys_are_no_trace() -> None:
    """A sliding window's cache is cut: the trace was written, and could not be read."""
    traces = capturing.Captures(
        capturing.Captured("", "self", layer, (0,), 0, torch.ones(1, 1, 1, keys) / keys, n_queries=1)
        for layer, keys in ((0, 3), (1, 5))
    )
    with pytest.raises(UsageError, match=r"layer 1 has 1 queries and 5 keys, layer 0 1 and 3.*give one call"):
        traces.trace()
    assert traces[1].trace().layers[0].weights.shape == (1, 1, 5)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("LongT5", zoo.T5 | {"local_radius": 3}),
        ("BigBirdPegasus", zoo.BART | {"block_size": 2, "num_random_blocks": 1}),
        ("PegasusX", zoo.BART | {"block_size": 4, "num_global_tokens": 2}),
    ],
)
def test_an_encoder_that_cannot_be_shown_is_named(name: str, settings: dict[str, Any]) -> None:
    """Neither captured nor switched off in silence; BigBirdPegasus takes other modules for a short text as it runs."""
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{name}Config")(**settings)
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config).eval()
    given = {"input_ids": torch.arange(40)[None], "decoder_input_ids": torch.arange(5)[None]}
    said = rf"encoder layers 0, 1 \({name}\w+\) attend in code of their own, and what they attend to is not shown"
    with pytest.warns(UserWarning, match=said), capture(model) as traces:
        model(**given)
    assert {call.kind for call in traces} == {"cross", "decoder"}
    assert re.fullmatch(said, traces.unseen) and re.search(said, repr(traces))
    assert re.search(said[1:], traces.trace(kind="cross").notes[-1])
    with pytest.raises(UsageError, match=rf"no encoder attention was captured: {said}"):
        traces.trace(kind="encoder")
    with warnings.catch_warnings(), capture(model, attention="cross") as traces:
        warnings.simplefilter("error")
        model(**given)
    assert traces.unseen == ""
    says = "encoder layer 0 .* what it attends to cannot be changed"
    with pytest.raises(AttnctlError, match=says), intervene(model, {0: [0]}, attention="encoder"):
        model(**given)
    with intervene(model, {0: [0]}, attention="cross"):
        model(**given)


def test_weights_that_no_forward_puts_out_are_named() -> None:
    """In generation an encoder runs apart, and LED, outside the interface, tells no weights of it."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LEDConfig(**zoo.BART, attention_window=4, attn_implementation="eager")
    model = transformers.LEDForConditionalGeneration(config).eval()
    said = "its encoder attention is not shown: no forward put out its weights"
    with pytest.warns(UserWarning, match=said), capture(model) as traces, torch.no_grad():
        model.generate(input_ids=torch.arange(5, 21)[None], max_new_tokens=2)
    assert {call.kind for call in traces} == {"cross", "decoder"} and traces.unseen == said
