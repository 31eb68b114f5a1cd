"""Interventions against plain forward hooks, over many architectures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch

import attnctl
from attnctl import attention
from attnctl.api.intervening import intervene
from attnctl.errors import AttnctlError
from attnctl.layer.interventions import Cut, Intervention, cut_edges
from attnctl.models import open_model
from attnctl.models.huggingface import attention_call
from attnctl.models.huggingface.attention_sites import blocks_of
from attnctl.models.huggingface.block_recorder import BlockRecorder, first_of, logits_of
from attnctl.models.huggingface.intervention import apply_interventions
from attnctl.models.huggingface.output_projections import output_projections
from attnctl.source import Changes, TextSource, prepare
from attnctl.watched.model import reference_contexts
from tests.models.huggingface.conftest import Shelf
from tests.tools import architectures as zoo
from tests.tools.sweep.checkpoints import TEXT, opened
from tests.tools.sweep.families import Family, build

DECODERS = [case for case in zoo.DECODERS if "indexer" not in case]
ENCODERS = [case for case in zoo.ENCODERS if case != "vit"]
CASES = [*DECODERS, *ENCODERS, *zoo.SPARSE, *zoo.PAIRS]
PROJECTIONS = ("o_proj", "out_proj", "c_proj", "dense", "out_lin", "o", "wo")
HEADS = 4


pytestmark = pytest.mark.usefixtures("no_gradients")


def projections(model: Any, side: str) -> list[Any]:
    """The output projection of each layer's attention, found by its name: modules that take the heads side by side."""
    found = []
    for name, module in model.named_modules():
        path, _, last = name.lower().rpartition(".")
        crosses = any(part in path for part in ("encoder_attn", "encdec", "cross_attn"))
        own_side = side not in ("encoder", "decoder") or f"{side}." in path
        if last in PROJECTIONS and "att" in path and crosses == (side == "cross") and own_side:
            found.append(module)
    return found


@contextmanager
def zeroed(model: Any, case: str, layer: int, heads: list[int], side: str = "self") -> Iterator[None]:
    """The plain way: a hook before the output projection that sets some heads' slices to 0."""
    shared = "shared" in case
    module = projections(model, side)[0 if shared else layer]
    calls = count()

    def hook(_: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        if shared and next(calls) != layer:
            return args
        x = args[0].clone()
        x.unflatten(-1, (HEADS, -1))[..., heads, :] = 0
        return (x, *args[1:])

    handle = module.register_forward_pre_hook(hook)
    yield
    handle.remove()


def run(model: Any, given: dict[str, Any]) -> torch.Tensor:
    return logits_of(model(**given))


def assert_same_change(ours: torch.Tensor, reference: torch.Tensor, plain: torch.Tensor) -> None:
    """Both are the same logits, and others than those of the model as it is."""
    assert float((reference - plain).abs().max()) > 1e-4, "nothing was changed here"
    torch.testing.assert_close(ours, reference, atol=1e-5 * max(1.0, float(plain.abs().max())), rtol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_heads_zeroed_equal_plain_hooks(case: str) -> None:
    model, given = zoo.build(case), zoo.inputs(case)
    sides = ["encoder", "decoder", "cross"] if case in zoo.PAIRS else ["self"]
    plain = run(model, given)
    for side in sides:
        with zeroed(model, case, 0 if case in zoo.SPARSE else 1, [0, 2], side):
            reference = run(model, given)
        with intervene(model, heads={1: [0, 2]}, attention=None if side == "self" else side):
            assert_same_change(run(model, given), reference, plain)
    with intervene(model, heads={}, edges=[]):
        assert torch.equal(run(model, given), plain)
    assert torch.equal(run(model, given), plain)


WINDOWLESS = [
    case for case in [*DECODERS, "bert", "electra"] if not any(part in case for part in ("window", "sinks", "opt"))
]


@pytest.mark.parametrize("case", WINDOWLESS)
def test_edges_cut_equal_an_additive_mask(case: str) -> None:
    model, given = zoo.build(case, "eager"), zoo.inputs(case)
    edges, low = [(8, 2), (8, 3), (5, 4)], torch.finfo(torch.float32).min
    mask = torch.full((1, 1, 9, 9), low if case in zoo.DECODERS else 0.0).triu(1)
    for query, key in edges:
        mask[..., query, key] = low
    plain = run(model, given)
    reference = run(model, given | {"attention_mask": mask})
    with intervene(model, edges=edges):
        assert_same_change(run(model, given), reference, plain)


@pytest.mark.parametrize("case", ["mistral, window", "gemma2, soft cap and window", "gpt_oss, sinks", "opt"])
def test_edges_cut_equal_a_hooked_mask_where_layers_have_windows(case: str) -> None:
    """The mask that each layer is given, its window in it, with the edge hidden by a hook."""
    model, given = zoo.build(case, "eager"), zoo.inputs(case)
    plain = run(model, given)

    def hide(_: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        mask = kwargs["attention_mask"].clone()
        mask[..., 8, 7] = torch.finfo(mask.dtype).min
        return args, kwargs | {"attention_mask": mask}

    with ExitStack() as stack:
        for layer in getattr(model.model, "decoder", model.model).layers:
            stack.callback(layer.self_attn.register_forward_pre_hook(hide, with_kwargs=True).remove)
        reference = run(model, given)
    with intervene(model, edges=[(-1, -2)]):
        assert_same_change(run(model, given), reference, plain)


@pytest.mark.parametrize("case", ["llama", "gpt2", "gemma3, window", "gpt_oss, sinks"])
@pytest.mark.parametrize("what", [{"heads": {1: [0, 3]}}, {"edges": [(10, 9), (11, 2), (12, 11)]}])
def test_with_a_cache_as_without(case: str, what: dict[str, Any]) -> None:
    model, prompt = zoo.build(case), zoo.inputs(case, n=9)["input_ids"]
    how = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    how |= {"use_cache": True, "output_logits": True, "return_dict_in_generate": True}
    with intervene(model, **what):
        made = model.generate(prompt, **how)
        whole = run(model, {"input_ids": made.sequences[:, :-1]})
    torch.testing.assert_close(torch.stack(made.logits, 1), whole[:, 8:], atol=1e-4, rtol=1e-4)
    assert not torch.equal(torch.stack(model.generate(prompt, **how).logits), torch.stack(made.logits))


def test_a_mean_leaves_padding_out() -> None:
    model, ids = zoo.build("bert"), zoo.inputs("bert", n=6)["input_ids"]
    pad, at = torch.zeros(1, 3, dtype=torch.long), torch.arange(9)[None]
    left, right = torch.cat([pad, ids], 1), torch.cat([ids, pad], 1)
    with intervene(model, heads={0: [1]}, how="mean"):
        alone = run(model, {"input_ids": ids})
        for longer, places, real in ((left, at - 3, slice(3, 9)), (right, at, slice(0, 6))):
            given = {"input_ids": longer, "attention_mask": (longer != 0).long(), "position_ids": places.clamp(0, 5)}
            torch.testing.assert_close(run(model, given)[:, real], alone, atol=1e-5, rtol=1e-5)


def test_edges_in_some_heads_and_layers_only() -> None:
    model, given = zoo.build("llama"), zoo.inputs("llama")
    with intervene(model, edges=[(8, 2)], layer=[1], edge_heads=[0, 1, 2, 3]):
        every = run(model, given)
    with intervene(model, edges=[(8, 2)], layer=[-1]):
        torch.testing.assert_close(run(model, given), every, atol=1e-6, rtol=1e-6)
    with intervene(model, edges=[(8, 2)], edge_heads=[3]), attnctl.capture(model) as traces:
        model(**given)
    for trace in traces:
        assert float(trace.weights[0, 3, 8, 2]) == 0
        assert float(trace.weights[0, :3, 8, 2].min()) > 0
        torch.testing.assert_close(trace.weights.sum(-1), torch.ones(1, 4, 9))


def expected_keys(cuts: list[tuple[list[tuple[int, int]], list[int] | None]], n: int, causal: bool) -> torch.Tensor:
    """Which keys each query of each of four heads is left: (4, n, n). One that has lost all keeps itself."""
    left = torch.ones(n, n, dtype=torch.bool)
    left = (left.tril() if causal else left).repeat(4, 1, 1)
    for edges, heads in cuts:
        for head in range(4) if heads is None else heads:
            for query, key in edges:
                left[head, query, key] = False
    for head, query in (~left.any(-1)).nonzero().tolist():
        left[head, query, query] = True
    return left


NESTED: list[list[tuple[list[tuple[int, int]], list[int] | None]]] = [
    [([(1, 0)], [0]), ([(1, 1)], None)],
    [([(1, 0)], [0]), ([(1, 1)], [0])],
    [([(1, 0)], None), ([(1, 1)], [0, 3])],
    [([(1, 1)], None), ([(1, 0)], [0, 3])],
    [([(1, 0), (4, 4)], [2]), ([(1, 1)], [1]), ([(4, key) for key in range(4)], None)],
    [([(0, 0), (3, 3)], [1]), ([(3, 0), (3, 1), (3, 2)], [1, 2])],
    [([(2, 0), (2, 1)], [0]), ([(2, 2), (2, 1)], [1])],
]


@pytest.mark.grid
@pytest.mark.parametrize("cuts", NESTED)
@pytest.mark.parametrize("case", ["llama", "bert", "t5, bias"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])  # in which two lowest numbers overflow
def test_nested_cuts_are_one_cut(cuts: Any, case: str, dtype: torch.dtype) -> None:
    """What one intervention hides from some heads is lost to those within it; the weights are those of a softmax by hand."""
    model, given = zoo.build(case, dtype=dtype), zoo.inputs(case)
    kind = {"attention": "encoder"} if case in zoo.PAIRS else {}
    with ExitStack() as stack:
        for edges, heads in cuts:
            stack.enter_context(intervene(model, edges=edges, edge_heads=heads, **kind))
        with attnctl.capture(model, layer=0, **kind) as traces:
            model(**given)
    with attnctl.capture(model, layer=0, **kind) as plain:
        model(**given)
    found, scores = traces[0].weights[0].float(), plain[0].scaled_scores[0].float()  # (heads, n, n)
    left = expected_keys(cuts, found.shape[-1], causal=case in zoo.DECODERS)
    wanted = torch.softmax(scores.masked_fill(~left, -torch.inf), -1)
    assert bool(found.isfinite().all()) and float(found[~left].abs().max()) == 0
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5 if dtype == torch.float32 else 1e-2)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_cuts_of_some_heads_in_numpy(dtype: Any) -> None:
    q, k, v = np.random.default_rng(0).normal(size=(3, 4, 5, 8)).astype(dtype)
    call = attention.Call(q, k, v, causal=True)
    cuts = Cut((1,), (1,), heads=frozenset({2})), Cut((0,), (1, 4), heads=frozenset({2, 3})), Cut((2,), (3,))
    weights = attention.run_call(cut_edges(call, [Intervention(cuts=cuts)], 0)).weights
    left = expected_keys([([(1, 1)], [2]), ([(1, 0), (4, 0)], [2, 3]), ([(3, 2)], None)], 5, causal=True).numpy()
    scores = np.where(left, attention.run_call(call).scaled_scores.astype(np.float32), -np.inf)
    wanted = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    np.testing.assert_allclose(weights, wanted, atol=1e-6 if dtype == np.float32 else 1e-3)


def test_no_layers_and_no_heads_are_none() -> None:
    model, given = zoo.build("llama"), zoo.inputs("llama")
    plain = run(model, given)
    for how in ({"layer": []}, {"layer": ()}, {"edge_heads": []}, {"layer": [1], "edge_heads": range(0)}):
        with intervene(model, edges=[(8, 2)], **how):
            assert torch.equal(run(model, given), plain)
    assert Intervention(cuts=(Cut((2,), layers=frozenset()), Cut((2,), layers=frozenset({1})))).first_layer() == 1


def test_a_query_never_loses_its_only_key() -> None:
    model, given = zoo.build("gpt2"), zoo.inputs("gpt2")
    plain = run(model, given)
    with intervene(model, edges=[(0, 0)]):
        assert torch.equal(run(model, given)[:, 0], plain[:, 0])
    with intervene(model, edges=[(4, key) for key in range(5)]), attnctl.capture(model) as traces:
        model(**given)
    assert float(traces[0].weights[0, :, 4, 4].min()) == 1


def test_composes_with_capture_and_itself_and_is_restored_after_an_exception() -> None:
    model, given = zoo.build("llama"), zoo.inputs("llama")
    plain, hooks = run(model, given), len(model._forward_pre_hooks)
    with intervene(model, heads={0: [1]}), intervene(model, heads={1: [2]}):
        nested = run(model, given)
    with intervene(model, heads={0: [1], 1: [2]}):
        assert torch.equal(run(model, given), nested)
        with attnctl.capture(model) as traces:
            torch.testing.assert_close(run(model, given), nested, atol=1e-5, rtol=1e-5)
        assert len(traces) == 2
    with pytest.raises(RuntimeError, match="stop"), intervene(model, heads={0: [1]}):
        raise RuntimeError("stop")
    assert torch.equal(run(model, given), plain)
    assert len(model._forward_pre_hooks) == hooks
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.grid
@pytest.mark.parametrize("case", CASES)
def test_a_replay_from_the_middle_equals_the_whole_forward(case: str) -> None:
    model, given = zoo.build(case), zoo.inputs(case)
    kinds = ("encoder", "decoder", "cross") if case in zoo.PAIRS else ("self",)
    for kind in kinds:
        replay = BlockRecorder(model, kind)
        replay.run(given)
        assert replay.resumes == ("shared" not in case)  # layers of one module are run again from the start
        rows = [Intervention({1: (head,)}) for head in range(HEADS)]
        together = logits_of(replay.resume_from_change(rows))
        for row, one in zip(together, rows, strict=True):
            with apply_interventions(model, [one], kind):
                whole = run(model, given)[0]
            torch.testing.assert_close(row, whole, atol=2e-5 * max(1.0, float(whole.abs().max())), rtol=1e-5)


@pytest.mark.parametrize("case", ["gemma2, soft cap and window", "t5, bias"])
def test_long_texts_by_the_fused_kernel_as_short_ones(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, given = zoo.build(case), zoo.inputs(case)
    with intervene(model, edges=[(-1, 1), (3, 2)]):
        plain = run(model, given)
        monkeypatch.setattr(attention_call, "FUSED_KEYS", 1)
        torch.testing.assert_close(run(model, given), plain, atol=1e-5, rtol=1e-5)


def gated(kind: str) -> tuple[Any, Any, int]:
    """A tiny network, with a learned gate after its attention or without, the output projection of one layer, and that layer."""
    network = build(Family(kind, "causal"), "eager").eval()
    site, _ = list(output_projections(network, own=True).values())[-1]
    return network, network.get_submodule(f"{site.name}.o_proj"), site.layer


def head_of(rows: torch.Tensor, network: Any) -> torch.Tensor:
    """What head 1 has of the rows of an output projection: a view."""
    width = rows.shape[-1] // network.config.get_text_config().num_attention_heads
    return rows[..., width : 2 * width]


@pytest.mark.parametrize("kind", ["llama", "qwen3_next", "laguna"])
@pytest.mark.parametrize("how", ["mean", "resample", "mean of others"])
def test_mean_and_resample_equal_plain_hooks_and_behind_a_gate_replace_what_the_head_adds(kind: str, how: str) -> None:
    network, projection, layer = gated(kind)
    ids = torch.tensor([[5, 6, 7, 8, 9, 10, 11], [12, 13, 5, 14, 15, 16, 17]])
    seen: list[torch.Tensor] = []
    hook = projection.register_forward_pre_hook(lambda _, args: seen.append(args[0].reshape(2, 7, -1)[1]))
    network(ids)
    hook.remove()
    heads = network.config.get_text_config().num_attention_heads
    other = seen[0].reshape(7, heads, -1).transpose(0, 1)  # (heads, n, d_v), of the second text
    given = {"mean": None, "resample": {layer: other}, "mean of others": {layer: other.mean(1)}}[how]

    def replace_head(_: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        rows = args[0].reshape(1, 7, -1).clone()
        one = head_of(rows, network)
        one[:] = {"mean": one.mean(1, keepdim=True), "resample": other[1], "mean of others": other[1].mean(0)}[how]
        return (rows.reshape(args[0].shape), *args[1:])

    hook = projection.register_forward_pre_hook(replace_head)
    wanted = network(ids[:1]).logits
    hook.remove()
    with intervene(network, {layer: [1]}, how=how.split()[0], reference=given):
        found = network(ids[:1]).logits
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    assert float((network(ids[:1]).logits - wanted).abs().max()) > 1e-3


def test_effects_behind_a_gate_are_those_of_hooks_and_of_their_gradient() -> None:
    network, projection, layer = gated("qwen3_next")
    given = {"input_ids": torch.tensor([[5, 6, 7, 8, 9, 10, 11]])}
    exact = attnctl.effects(network, given, target=9, how="mean", layer=[layer])
    first = attnctl.effects(network, given, target=9, how="mean", layer=[layer], approximate=True)
    assert all(any("is the output after the gate" in note for note in found.notes) for found in (exact, first))
    assert not attnctl.effects(network, given, target=9, layer=[layer]).notes
    kept: list[torch.Tensor] = []

    def keep(_: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        kept.append(args[0].detach().requires_grad_())
        return (kept[-1], *args[1:])

    hook = projection.register_forward_pre_hook(keep)
    with torch.enable_grad():
        log_p = network(**given).logits[0, -1].log_softmax(-1)[9]
        slope = torch.autograd.grad(log_p, kept[0])[0].reshape(1, 7, -1)
    hook.remove()
    rows = kept[0].detach().reshape(1, 7, -1)
    move = (rows.mean(1, keepdim=True) - rows) * slope
    wanted = float(head_of(move, network).sum())
    assert next(one for one in first.heads if one.head == 1).log_probability == pytest.approx(wanted, abs=1e-5)


def test_a_reference_file_tells_what_the_gate_lets_through(tmp_path: Any) -> None:
    network, projection, layer = gated("qwen3_next")
    model = opened(Family("qwen3_next", "causal"), network, "self")
    (tmp_path / "texts.txt").write_text(f"{TEXT}\n")
    seen: list[torch.Tensor] = []
    hook = projection.register_forward_pre_hook(lambda _, args: seen.append(args[0][0]))
    found = reference_contexts(model, "another", "mean", str(tmp_path / "texts.txt"))
    hook.remove()
    assert found is not None
    torch.testing.assert_close(torch.as_tensor(found[layer]).flatten(), seen[0].mean(0))


# case → the module that makes a layer's values, and where in what it puts out they begin
VALUES = {
    "gpt2": ("attn.c_attn", 64),
    "llama": ("self_attn.v_proj", 0),
    "gpt_oss, sinks": ("self_attn.v_proj", 0),
    "bert": ("attention.self.value", 0),
    "t5, bias": ("layer.0.SelfAttention.v", 0),
}


def turned_by_hooks(model: Any, tokens: Any, case: str, layer: int) -> np.ndarray:
    """Value zeroing the plain way (Mohebbi et al. 2023): a forward of the whole network for each token: (n, n)."""
    path, first = VALUES[case]
    block, made = blocks_of(model.network)[layer], []
    inputs = dict(model.read("", tokens).inputs)
    for keys in ([], *([key] for key in range(len(tokens)))):

        def zero_value(_: Any, __: Any, output: Any, keys: list[int] = keys) -> Any:
            output = output.clone()
            output[:, keys, first:] = 0
            return output

        hooks = [
            block.get_submodule(path).register_forward_hook(zero_value),
            block.register_forward_hook(lambda _, __, output: made.append(first_of(output))),
        ]
        model.network(**inputs)
        for hook in hooks:
            hook.remove()
    own, *others = (rows[0].double() for rows in made)
    distances = [1 - torch.nn.functional.cosine_similarity(own, other, dim=-1) for other in others]
    turned = torch.stack(distances, -1).numpy()  # (n, n)
    return turned / turned.sum(-1, keepdims=True)


@pytest.mark.parametrize("case", VALUES)
def test_value_zeroing_is_that_of_hooks(case: str, shelf: Shelf) -> None:
    model = open_model(shelf(case))
    source = TextSource(model, "Alice will eat pizza")
    found = prepare(source, Changes("value-zeroing")).trace()
    assert found.measure == "value-zeroing" and [layer.layer for layer in found.layers] == [0, 1]
    for layer in found.layers:
        wanted = turned_by_hooks(model, source.tokens, case, layer.layer)
        np.testing.assert_allclose(layer.weights[0], wanted, atol=2e-5)
        if layer.mask is not None:
            assert not layer.weights[0][~layer.mask].any()
    for measure in ("value-norm", "value-zeroing"):  # what is said of where attention is parked is of weights alone
        assert not any(note.startswith("Of the attention") for note in prepare(source, Changes(measure)).trace().notes)
    one = prepare(source, Changes("value-zeroing"), 1).trace()
    np.testing.assert_array_equal(one.layers[0].weights, found.layers[1].weights)


@pytest.mark.parametrize("case", ["llama", "albert, one layer shared"])
def test_value_zeroing_with_heads_off(case: str, shelf: Shelf) -> None:
    """Where every head of a layer is off, no value turns its output; the other layer has its heads."""
    source = TextSource(open_model(shelf(case), off="0.0,0.1,0.2,0.3"), "Alice will")
    found = prepare(source, Changes("value-zeroing")).trace()
    assert not found.layers[0].weights.any() and np.allclose(found.layers[1].weights.sum(-1), 1)
    assert found.notes[-2].startswith("Off (layer.head): 0.0") and found.notes[-1].startswith("This shows")


@pytest.mark.parametrize("kind", ["decoder", "cross"])
def test_value_zeroing_of_encoder_decoders(kind: str, shelf: Shelf) -> None:
    source = TextSource(open_model(shelf("bart"), attention=kind, target="pizza"), "Alice will")
    found = prepare(source, Changes("value-zeroing")).trace()
    for layer in found.layers:
        assert layer.weights.shape == (1, len(source.tokens), len(source.key_tokens))
        np.testing.assert_allclose(layer.weights.sum(-1), 1, atol=1e-5)


def test_value_zeroing_is_refused_where_blocks_cannot_be_run_again(shelf: Shelf) -> None:
    model: Any = open_model(shelf("bloom, ALiBi"))
    with pytest.raises(AttnctlError, match="BloomForCausalLM computes its attention in code of its own"):
        prepare(TextSource(model, "Alice"), Changes("value-zeroing"))
    model = open_model(shelf("gpt2"))
    calls: list[int] = []

    def drift(block: Any, args: Any, output: Any) -> Any:
        calls.append(1)
        return output + len(calls) if hasattr(output, "ndim") else (output[0] + len(calls), *output[1:])

    hook = model.network.transformer.h[1].register_forward_hook(drift)
    with pytest.raises(AttnctlError, match="GPT2LMHeadModel is not built of blocks that can be run again"):
        prepare(TextSource(model, "Alice"), Changes("value-zeroing"))
    hook.remove()
