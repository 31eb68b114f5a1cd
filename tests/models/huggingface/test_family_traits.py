"""What a family does differently is said and shown: each trait against the model's own arithmetic."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attnctl import attention
from attnctl.api.capturing import capture
from attnctl.attention import Call
from attnctl.errors import AttnctlError, UsageError
from attnctl.formats.storage import load, save_value
from attnctl.models.check import check_attention
from attnctl.models.huggingface import family_traits
from attnctl.models.huggingface.attention_interface import WatchOptions, watch_attention
from attnctl.models.huggingface.checkpoint import Checkpoint
from attnctl.models.huggingface.family_traits import Traits
from attnctl.readings.questions.headline import headline
from attnctl.readings.statistics_reading import HeadStatisticsReading
from attnctl.readings.trace_reading import TraceReading
from attnctl.render.form_builders.explanation import Explanation
from attnctl.render.terminal.console import Shown, as_text
from attnctl.source import Changes, TextSource, TraceSource, prepare, record_trace
from attnctl.trace import Trace
from tests.conftest import check_schema
from tests.models.huggingface.conftest import FamilyTrace
from tests.tools.sweep.checkpoints import TEXT, opened
from tests.tools.sweep.families import Family, build
from tests.tools.sweep.modes import given, ids, takes


def ran(model: Checkpoint, name: str) -> tuple[Any, Any]:
    """What the module of this name is given and puts out, over TEXT."""
    seen: list[Any] = []
    hook = model.network.get_submodule(name).register_forward_hook(
        lambda _, args, kwargs, output: seen.append((kwargs.get("hidden_states", args[0] if args else None), output)),
        with_kwargs=True,
    )
    with torch.no_grad():
        model.network(torch.tensor([[token.id for token in model.tokenize(TEXT)]]))
    hook.remove()
    return seen[0]  # type: ignore[no-any-return]


def explained(trace: Trace, layer: int, *steps: str) -> str:
    found = headline(trace, layer=layer)
    assert found is not None
    return as_text(Shown(Explanation(trace, [found], {found.layer: [found.head]}, steps or None).forms()), 200)


def kept_whole(trace: Trace, tmp_path: Path) -> None:
    """The trace as JSON fits the schema; JSON and NPZ give every number back."""
    assert check_schema(json.loads(trace.to_json())) == "trace"
    for name in ("run.json", "run.npz"):
        save_value(trace, tmp_path / name)
        for ours, theirs in zip(trace.layers, load(tmp_path / name).layers, strict=True):
            for (array, one), (_, other) in zip(ours.arrays_kept(), theirs.arrays_kept(), strict=True):
                np.testing.assert_array_equal(one, other, err_msg=array.name)


def test_differential_attention_shows_both_maps_and_says_what_counts(family: FamilyTrace, tmp_path: Path) -> None:
    """λ of each layer by the formula of Ye et al. (2024), eq. 3."""
    model, trace = family("diffllama")
    factors = []
    for layer in trace.layers:
        module = model.network.get_submodule(f"model.layers.{layer.layer}.self_attn")
        pairs = [(module.lambda_q1, module.lambda_k1), (module.lambda_q2, module.lambda_k2)]
        first, second = (float(torch.dot(q, k).detach().exp()) for q, k in pairs)
        factors.append(first - second + module.lambda_init)
    said = next(note for note in trace.notes if note.startswith("Differential attention (Ye et al. 2024)"))
    assert said.endswith(f"λ {min(factors):.2f} to {max(factors):.2f} by layer.")
    kept_whole(trace, tmp_path)


def test_a_learned_sink_is_a_column(family: FamilyTrace, tmp_path: Path) -> None:
    model, trace = family("gpt_oss")
    for layer in trace.layers:
        sinks = model.network.get_submodule(f"model.layers.{layer.layer}.self_attn").sinks.detach().numpy()
        scores = np.where(layer.mask, layer.scaled_scores, -np.inf)
        whole = np.exp(scores).sum(-1) + np.exp(sinks)[:, None]  # (heads, n)
        np.testing.assert_allclose(layer.sink_weights, np.exp(sinks)[:, None] / whole, atol=1e-5)
        np.testing.assert_allclose(layer.weights.sum(-1) + layer.sink_weights, 1, atol=1e-6)
    said = explained(trace, 0, "weights")
    header, row = (line.split() for line in said.splitlines() if re.search(r"sink +Σ$|▸", line))
    assert header[-2:] == ["sink", "Σ"] and row[-1] == "1.00"
    assert "each row a whole" not in said and "a learned sink" in said
    assert re.search(r"^ +sink +0\.\d\d", said, re.MULTILINE)  # of the query whose row is written out
    assert "% to the sink" in explained(trace, 0, "summary")
    kept_whole(trace, tmp_path)


def test_a_learned_gate_says_how_far_it_is_shut(family: FamilyTrace, tmp_path: Path) -> None:
    model, trace = family("qwen3_next")
    layer = trace.layer(1)
    module = model.network.get_submodule("model.layers.1.self_attn")
    hidden, _ = ran(model, "model.layers.1.self_attn")
    n, heads = len(trace.tokens), len(layer.heads)
    gate = module.q_proj(hidden).view(n, heads, -1).chunk(2, dim=-1)[1].sigmoid()  # (n, heads, d_v)
    context = torch.tensor(layer.context).transpose(0, 1)  # (n, heads, d_v)
    share = (gate * context).norm(dim=-1) / context.norm(dim=-1)
    np.testing.assert_allclose(layer.gate, share.T.detach().numpy(), atol=1e-5)
    assert any(note.startswith("A learned gate after the context lets ") for note in trace.notes)
    said = explained(trace, 1, "gate", "summary")
    assert re.search(r"this head looks, and is \d+ % shut", said) and re.search(r"its gate is \d+ % shut", said)
    # where the model is left after its last layer asked for, too, and for some heads and queries
    part = record_trace(model, TEXT, layers=[1], heads=[2], rows=[3], predictions=False).layer(1)
    np.testing.assert_allclose(part.gate, layer.gate[[2]][:, [3]], atol=1e-6)
    statistics = prepare(TextSource(model, TEXT)).read(HeadStatisticsReading(trace.tokens))
    np.testing.assert_allclose([head["gate"] for head in statistics], layer.gate.mean(-1), atol=1e-6)
    kept_whole(trace, tmp_path)


@pytest.mark.parametrize("kind", ["lfm3", "llama", "bitnet", "diffllama"])
def test_gates_are_those_of_families_that_have_one(family: FamilyTrace, kind: str) -> None:
    """A norm after the context is none."""
    for layer in family(kind)[1].layers:
        assert (layer.gate is not None) is (kind == "lfm3")
        assert layer.gate is None or (layer.gate.min() > 0 and layer.gate.max() <= 1)


def test_keys_that_an_indexer_does_not_pick_are_masked(family: FamilyTrace) -> None:
    """DeepSeek-V3.2, of 4 keys a query: as its indexer's module puts them out."""
    model, trace = family("deepseek_v32")
    for layer in trace.layers:
        _, picked = ran(model, f"model.layers.{layer.layer}.self_attn.indexer")
        for query, shown in enumerate(layer.mask):
            assert set(np.flatnonzero(shown)) == {key for key in picked[0, query].tolist() if key <= query}
    assert "An indexer picks the keys that each query may see: the others are masked." in trace.notes


def test_shared_keys_say_whose_they_are(family: FamilyTrace) -> None:
    model, trace = family("gemma3n_text")
    note = next(note for note in trace.notes if "no keys and values of their own" in note)
    assert "layer 2 reads those of layer 0; layer 3 reads those of layer 1" in note
    for reader, owner in ((2, 0), (3, 1)):
        np.testing.assert_array_equal(trace.layer(reader).keys, trace.layer(owner).keys)
    alone = record_trace(model, TEXT, layers=[3], predictions=False)
    assert any("layer 3 reads those of layer 1" in note for note in alone.notes)


def test_what_a_family_lacks_is_named_and_of_a_plain_model_nothing_is_said(family: FamilyTrace) -> None:
    jamba, qwen, plain = (family(kind)[1] for kind in ("jamba", "qwen3_next", "llama"))
    said = "Layers 0, 2 have no softmax attention.*JambaMambaMixer"
    assert any(re.match(said, note) for note in jamba.notes)
    said = "Layer 0 has no softmax attention.*Qwen3NextGatedDeltaNet"
    assert any(re.match(said, note) for note in qwen.notes)
    assert [note for note in plain.notes if not note.startswith("Of the attention")] == []
    for layer in plain.layers:
        known = {array.name for array, _ in layer.arrays_kept()}
        assert not known & {"gate", "sink_weights"}


PROJECTIONS = {
    "llama causal": "model.layers.1.self_attn.o_proj",
    "gpt2 causal": "transformer.h.1.attn.c_proj",
    "bert masked": "bert.encoder.layer.1.attention.output.dense",
    "gpt_neox causal": "gpt_neox.layers.1.attention.dense",
}


@pytest.mark.parametrize(("name", "projection"), PROJECTIONS.items())
def test_value_norms_go_through_the_output_projection(family: FamilyTrace, name: str, projection: str) -> None:
    """Kobayashi et al. 2020: ‖weight · value W_O‖, of each key and head, against the projection's own product."""
    model, trace = family(*name.split())
    layer, project = trace.layers[1], model.network.get_submodule(projection)
    values = torch.tensor(layer.values)  # (heads, n, d_v)
    heads, n, d_v = values.shape
    alone = torch.zeros(heads, n, heads, d_v)
    for at in range(heads):
        alone[at, :, at] = values[at]
    with torch.no_grad():
        written = project(alone.flatten(0, 1).flatten(1)) - project(torch.zeros(1, heads * d_v))  # (heads · n, d_model)
    expected = layer.weights * written.norm(dim=-1).numpy().reshape(heads, 1, n)
    expected /= expected.sum(-1, keepdims=True)
    found = prepare(TextSource(model, TEXT), Changes("value-norm"), 1).trace(predictions=False)
    np.testing.assert_allclose(found.layers[0].weights, expected, atol=1e-5)
    assert not any("without W_O" in note for note in found.notes) and any("Kobayashi" in note for note in found.notes)


@pytest.mark.parametrize(
    "name",
    ["deepseek_v3 causal", "mimo_v2_flash causal", "moshi causal", "zamba2 causal", "electra masked", "t5 seq2seq"]
    + ["t5gemma2 seq2seq", "esm masked", "longcat_flash causal", "qwen3_next causal", "bitnet causal", "gpt2 causal"],
)
def test_the_output_projection_is_what_the_context_goes_into(name: str) -> None:
    """W_O told is the matrix whose input the context is, as the network runs; where it goes into none, none is told."""
    wanted = Family(*name.split())
    network, fed, calls, told = build(wanted), [], {}, {}
    kind = {"t5gemma2 seq2seq": "decoder"}.get(name, "cross" if wanted.head == "seq2seq" else "self")
    traits = Traits(network, kind)

    def keep_input(module: Any, args: tuple[Any, ...], _: object) -> None:
        fed.append((module, args[0].detach().clone()))

    def keep_call(site: Any, call: Call) -> None:
        calls[site] = attention.run_call(call).context.transpose(1, 2)  # (1, n, heads, d_v)
        told[site] = traits.see_call(replace(site, layer=len(calls)), call)()  # LongCat attends twice a layer

    for part in network.modules():
        if type(part).__name__ in ("Linear", "Conv1D", "BitLinear"):
            part.register_forward_hook(keep_input)
    options = WatchOptions(after=traits.see_context)
    own = watch_attention(network, keep_call, lambda site: site.kind == kind, options)
    inputs = given(wanted, network) | ({"use_cache": False} if takes(network, "use_cache") else {})
    with torch.no_grad(), traits.watch(), own:
        network(**inputs)
    assert calls
    for site, context in calls.items():
        flat = context.reshape(*context.shape[:2], -1)  # (1, n, heads · d_v)
        real = [
            module.weight if type(module).__name__ == "Conv1D" else module.weight.T
            for module, given_ in fed
            if given_.shape == flat.shape and torch.allclose(given_, flat, atol=1e-4, rtol=1e-4)
        ]
        assert (told[site] is None) is (not real), site.name
        assert not real or any(np.array_equal(told[site], matrix.detach().numpy()) for matrix in real), site.name


@pytest.mark.parametrize(("kind", "layers"), [("bitnet", None), ("qwen3_next", [1]), ("diffllama", [1])])
def test_value_norms_say_where_more_than_a_projection_follows(family: FamilyTrace, kind: str, layers: Any) -> None:
    source = TextSource(family(kind)[0], TEXT)
    found = prepare(source, Changes("value-norm"), layers).trace(predictions=False)
    assert any("without W_O" in note for note in found.notes)
    plain = prepare(source, layer=layers).read(TraceReading(None, False))
    for layer, own in zip(found.layers, plain.layers, strict=True):
        lengths = own.weights * np.linalg.norm(own.values, axis=-1)[:, None]
        np.testing.assert_allclose(layer.weights, lengths / lengths.sum(-1, keepdims=True), atol=1e-5)


@pytest.mark.parametrize(("kind", "layers"), [("bitnet", None), ("qwen3_next", [1])])
def test_a_gate_or_norm_that_no_name_tells_of_is_found_by_the_run(
    family: FamilyTrace, kind: str, layers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(family_traits, "is_changed_between", lambda module, width: False)
    with pytest.raises(AttnctlError, match="does more to its heads' outputs than a projection"):
        prepare(TextSource(family(kind)[0], TEXT), Changes("value-norm"), layers).trace(predictions=False)


def test_rollout_names_what_it_cannot_follow(family: FamilyTrace) -> None:
    model, trace = family("jamba")
    says = r"rollout.*: it follows .* every layer: layer 0 of jamba has no attention: it is in 1, 3"
    with pytest.raises(UsageError, match=says):
        prepare(TextSource(model, TEXT), Changes("rollout"))
    with pytest.raises(AttnctlError, match="layer 0 is not in this trace: it holds 1, 3"):
        prepare(TraceSource(trace), Changes("rollout"))


def test_sinks_of_each_query_are_read(family: FamilyTrace) -> None:
    """Inkling 2: a learned sink that depends on the query; trace, statistics by tiles and check agree with eager."""
    model, trace = family("inkling2_text")
    own, _ = model.own_attention(trace.tokens, TEXT, {})
    statistics = prepare(TextSource(model, TEXT)).read(HeadStatisticsReading(trace.tokens))
    by_head = {(head.layer, head.head): head for head in statistics}
    for layer in trace.layers:
        assert layer.weights is not None and layer.sink_weights is not None
        np.testing.assert_allclose(layer.weights, own[layer.layer], atol=1e-6)
        assert layer.sink_weights.std(axis=1).max() > 0.01  # they differ by query
        for head, taken in zip(layer.heads, layer.sink_weights, strict=True):
            assert by_head[layer.layer, head]["sink"] == pytest.approx(float(taken.mean()), abs=1e-5)
    assert all(finding.holds is not False for finding in check_attention(model, TEXT))


def test_a_layer_that_attends_twice_is_refused_where_one_layer_is_asked_for() -> None:
    """The first of BLT's three layers 0 is not shown as the layer 0, though the forward could be left after it."""
    model = opened(Family("blt", "causal"), build(Family("blt", "causal")), "self")
    with pytest.raises(AttnctlError, match="attends several times in what it calls layer 0"):
        record_trace(model, TEXT, layers=[0], predictions=False)


@pytest.mark.parametrize("kind", ["minimax_m3_vl_text", "qwen4_exp_text"])
def test_blocks_that_an_indexer_picks_are_the_keys_that_are_seen(family: FamilyTrace, kind: str) -> None:
    """MiniMax M3 scores blocks for each group of heads apart, Qwen 4 one query's after another's: the mask is shown."""
    _, trace = family(kind)
    assert "An indexer picks the keys that each query may see: the others are masked." in trace.notes
    if kind.startswith("minimax"):
        weights = trace.layers[1].weights
        assert ((weights[0] < 1e-6) != (weights[3] < 1e-6)).any()
    else:  # of a query's whole blocks of 2 keys the 4 best are seen, and the key after the last of them
        masks = [layer.mask for layer in trace.layers if layer.mask is not None]
        shown = [[int(row[: at + 1].sum()) for at, row in enumerate(mask)] for mask in masks]
        assert [2 * min((at + 1) // 2, 4) + (at + 1) % 2 for at in range(len(trace.tokens))] in shown


@pytest.mark.parametrize(("kind", "kernel"), [("llama", "eager"), ("llama", "sdpa"), ("gpt2", "sdpa")])
def test_a_mask_of_each_heads_own_is_read(kind: str, kernel: str) -> None:
    """A mask (batch, heads, n, n) that hides other keys from each head: the weights are those of the model's eager path."""
    network, n = build(Family(kind, "causal"), kernel), 9
    shown = torch.rand(1, 4, n, n, generator=torch.Generator().manual_seed(0)) < 0.6  # (1, heads, n, n)
    shown = (shown | torch.eye(n, dtype=torch.bool)).tril()
    dark = torch.where(shown, 0.0, torch.finfo(torch.float32).min)
    with torch.no_grad():
        own = build(Family(kind, "causal"))(input_ids=ids(1, n), attention_mask=dark, output_attentions=True)
        with capture(network) as calls:
            after = network(input_ids=ids(1, n), attention_mask=dark)
    assert torch.allclose(after.logits, own.logits, atol=1e-4)
    for call, weights in zip(calls, own.attentions, strict=True):
        assert torch.allclose(call.weights, weights, atol=1e-5)
        assert not call.weights[~shown].any()


@pytest.mark.parametrize(
    ("kind", "layer", "words"),
    [
        ("gpt_oss", 0, "no token may look at the ones after it or at tokens 4 positions away or more."),
        ("gpt_oss", 1, "no token may look at the ones after it."),
        ("llama4_text", 0, "no token may look at the ones after it or at tokens of another chunk of 4."),
    ],
)
def test_what_a_layers_own_mask_hides_is_said(family: FamilyTrace, kind: str, layer: int, words: str) -> None:
    """A window, or a chunk of the text, in the layers that have one: read off the mask itself."""
    _, trace = family(kind)
    assert words in " ".join(explained(trace, layer, "mask").split())


WITH_NORM = [
    "gpt2",
    "llama",
    "opt",
    "bloom",
    "jamba",
    "lfm2",
    "phi4_multimodal",
    "t5 seq2seq",
    "pegasus seq2seq",
]
WITHOUT_NORM = ["openai-gpt", "bert", "bart", "bart seq2seq"]


@pytest.mark.parametrize("name", [*WITH_NORM, *WITHOUT_NORM])
def test_the_norm_before_the_head(family: FamilyTrace, name: str) -> None:
    """Told where the run calls one: after the last layer, before the head; of two halves it is the decoder's."""
    model, trace = family(*name.split(), attention="decoder" if "seq2seq" in name else "self")
    assert trace.model.final_norm is (name in WITH_NORM)
    part = record_trace(model, TEXT, layers=[trace.layers[0].layer], predictions=False)  # left early, it is not known
    assert part.model.final_norm in (None, name in WITH_NORM)


@pytest.mark.parametrize("heads", [4, 1])
def test_falcon_adds_alibi_once_as_its_fused_kernel_does(heads: int) -> None:
    """Under eager transformers 5.24 adds it twice. The weights by definition: Press et al. 2022, with Falcon's scale."""
    from transformers import FalconConfig, FalconForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 8 * heads, "num_attention_heads": heads, "num_hidden_layers": 2, "vocab_size": 128}
    config = FalconConfig(**sizes, alibi=True, multi_query=False, parallel_attn=False, new_decoder_architecture=False)
    networks = {}
    for kernel in ("eager", "sdpa"):
        torch.manual_seed(0)
        networks[kernel] = FalconForCausalLM._from_config(config, attn_implementation=kernel).eval()
        with torch.no_grad():
            for parameter in networks[kernel].parameters():
                parameter.normal_(0, 0.5)
    model = opened(Family("falcon", "causal"), networks["eager"], "self")
    tokens = model.tokenize(TEXT)
    places = torch.tensor([[token.id for token in tokens]])
    trace = record_trace(model, TEXT)
    with torch.no_grad():
        logits = networks["sdpa"](places).logits[0, -1]
        block = networks["sdpa"].transformer.h[0]
        fused = block.self_attention.query_key_value(
            block.input_layernorm(networks["sdpa"].transformer.word_embeddings(places))
        )
    n, d = len(tokens), 8
    queries, keys, _ = fused[0].view(n, heads, 3, d).permute(2, 1, 0, 3)  # (heads, n, d) each
    slopes = torch.tensor([2.0 ** (-8 * (head + 1) / heads) for head in range(heads)])
    scores = (queries @ keys.mT + slopes[:, None, None] * torch.arange(n)) / d**0.5
    right = scores.masked_fill(torch.ones(n, n).triu(1).bool(), float("-inf")).softmax(-1)
    np.testing.assert_allclose(trace.layers[0].weights, right, rtol=0, atol=1e-6)
    best = logits.softmax(-1)
    last = [prediction for prediction in trace.predictions if prediction.position == n - 1]
    assert last[0].id == int(best.argmax())
    for prediction in last:
        assert prediction.probability == pytest.approx(float(best[prediction.id]), abs=1e-6)
    assert any("ALiBi" in note for note in trace.notes)
    assert not networks["eager"].transformer.h[0].self_attention._forward_pre_hooks
