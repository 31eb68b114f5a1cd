"""Networks whose matrices stay quantised, beside the same networks with the library's dequantised numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attnctl.checks import limits
from attnctl.errors import AttnctlError
from attnctl.models.gguf import ahead, matrices, tensors
from attnctl.models.gguf.matrices import MappedMatrix, empty_network, place_weights
from attnctl.models.gguf.tensors import GgufFile
from attnctl.models.gguf.weights import Turned, Weight
from attnctl.runtime.arrays import one_thread
from tests.models.gguf.test_tensors import written
from tests.tools.pretend_cuda import pretend_cuda

package: Any = pytest.importorskip("gguf")
transformers: Any = pytest.importorskip("transformers")
SIZES = {"vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", SIZES | {"num_key_value_heads": 2, "tie_word_embeddings": True}),
    "untied": ("Qwen2", SIZES | {"num_key_value_heads": 2, "tie_word_embeddings": False}),  # and biases of Q, K, V
    "gpt2": ("GPT2", {"vocab_size": 96, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 32}),  # Conv1D
    "gemma": ("Gemma", SIZES | {"num_key_value_heads": 2, "head_dim": 16}),  # its embeddings are scaled
    "mixtral": ("Mixtral", SIZES | {"num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2}),
}
CLASSES = {"gpt2": "GPT2LMHeadModel"}
IDS = torch.tensor([[5, 17, 3, 90, 5, 41, 8]])
Pair = tuple[Any, Any]


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices of these sizes are dequantised in several steps."""
    monkeypatch.setattr(matrices, "SMALL", 256)
    monkeypatch.setattr(matrices, "TOGETHER", 640)


def weights_of(network: Any, path: Path, kind: str = "Q8_0") -> tuple[dict[str, Weight], dict[str, torch.Tensor]]:
    """The parameters of a network in a GGUF file of this kind, and the same as the library dequantises them."""
    form, stored, right, turned = package.GGMLQuantizationType[kind], {}, {}, set[str]()
    for name, parameter in network.named_parameters():
        array = parameter.detach().numpy()
        if type(network.get_submodule(name.rpartition(".")[0])).__name__ == "Conv1D" and array.ndim == 2:
            turned.add(name)
            array = np.ascontiguousarray(array.T)
        if array.ndim < 2:
            stored[name], right[name] = (array, "F32"), parameter.detach()
            continue
        stored[name] = package.quantize(array, form), kind
        dense = package.dequantize(stored[name][0], form)
        right[name] = torch.from_numpy(np.ascontiguousarray(dense.T if name in turned else dense))
    tensors = GgufFile.open(written(path, stored)).tensors
    return {name: Turned(tensor) if name in turned else tensor for name, tensor in tensors.items()}, right


def pair(tmp_path: Path, family: str, **options: Any) -> Pair:
    """A network with mapped matrices, and the same one with the numbers that the library dequantises."""
    name, sizes = FAMILIES[family]
    model_class, config = (
        getattr(transformers, CLASSES.get(family, f"{name}ForCausalLM")),
        getattr(transformers, f"{name}Config")(**sizes),
    )
    torch.manual_seed(0)
    plain = model_class(copy.deepcopy(config)).eval().requires_grad_(False)
    weights, right = weights_of(plain, tmp_path / "m.gguf")
    plain.load_state_dict(right, strict=False)
    mapped = empty_network(model_class, config, options.get("dtype", torch.float32))
    assert place_weights(mapped, weights, name="m.gguf", **options) == set()
    return mapped.eval(), plain


def logits(network: Any, **options: Any) -> torch.Tensor:
    with torch.inference_mode():
        result: torch.Tensor = network(IDS, use_cache=False, **options).logits
    return result


def mapped_parts(network: Any) -> dict[str, MappedMatrix]:
    return {name: value for name, value in network.named_parameters() if isinstance(value, MappedMatrix)}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("free", [0.0, 1e12])
def test_a_network_computes_what_the_dequantised_one_does(
    family: str, free: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of three forwards: with matrices dequantised again in each, and with those that stay from the second on."""
    monkeypatch.setattr(limits, "free_memory", lambda: free)
    mapped, plain = pair(tmp_path, family)
    right = logits(plain)
    parts = mapped_parts(mapped)
    assert len(parts) >= 8
    for _ in range(3):
        torch.testing.assert_close(logits(mapped), right, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(logits(mapped, logits_to_keep=2), right[:, -2:], atol=1e-5, rtol=1e-5)
    stay = [name for name, matrix in parts.items() if matrix.content.kept]
    assert bool(stay) == bool(free), stay
    if free and family in ("untied", "mixtral"):
        assert {name for name in parts if "embed" not in name} == set(stay)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("order", "dtype"),
    [("of modules", torch.float32), ("another", torch.float32), ("of modules", torch.bfloat16)],
    ids=["of modules", "another", "bfloat16"],
)
def test_rows_are_dequantised_ahead_where_a_forward_has_one_of_several_threads(
    family: str, order: str, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the next matrix is another one than expected: rows of it are not taken then."""
    taken: list[bool] = []

    def taking(*which: Any) -> Any:
        rows = ahead.take_rows(*which)
        taken.append(rows is not None)
        return rows

    monkeypatch.setattr(limits, "free_memory", lambda: 0.0)
    monkeypatch.setattr(tensors, "worker_count", lambda: 2)
    monkeypatch.setattr(matrices, "take_rows", taking)
    mapped, plain = pair(tmp_path, family, dtype=dtype)
    plain = plain.to(dtype)
    contents = [value.content for value in mapped_parts(mapped).values()]
    if order == "another":
        for content, following in zip(contents, reversed(contents), strict=True):
            content.following = following
    off = 1e-5 if dtype == torch.float32 else 2e-2
    with one_thread():
        for _ in range(2):
            torch.testing.assert_close(logits(mapped), logits(plain), atol=off, rtol=off)
    assert 1 < sum(taken) < len(taken)
    if order == "of modules" and family == "untied":
        assert sum(taken) == len(taken) - 2  # all but the first of each forward


def test_an_error_of_rows_ahead_is_raised_where_they_are_taken() -> None:
    def fail(_: Any) -> None:
        raise AttnctlError("damaged")

    ahead.begin_rows("matrix", 0, torch.empty(1), fail)
    with pytest.raises(AttnctlError, match="damaged"):
        ahead.take_rows("matrix", 0)
    assert ahead.take_rows("matrix", 0) is None


def test_one_forward_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does a look at the matrices behind it, as the sum of contributions takes one."""
    monkeypatch.setattr(limits, "free_memory", lambda: 1e12)
    mapped, plain = pair(tmp_path, "llama")
    logits(mapped)
    o_proj, right = mapped.model.layers[0].self_attn.o_proj.weight, plain.model.layers[0].self_attn.o_proj.weight
    assert torch.equal(o_proj.T, right.T) and torch.equal(o_proj.detach().clone(), right)
    assert torch.equal(o_proj.double(), right.double()) and torch.equal(o_proj[[3, 1]], right[[3, 1]])
    assert torch.equal(o_proj[2:5], right[2:5]) and torch.equal(o_proj[-1], right[-1])
    assert not any(matrix.content.kept for matrix in mapped_parts(mapped).values())


def test_rows_are_mixed(tmp_path: Path) -> None:
    """As the directions of a logit are, by the rows of an unembedding."""
    mapped, plain = pair(tmp_path, "llama")
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(1))
    mix, head = torch.randn(3, 96, generator=torch.Generator().manual_seed(2)), plain.model.embed_tokens.weight
    matrix = mapped.model.embed_tokens.weight
    for product in (
        mix @ matrix,
        torch.matmul(mix, matrix),
        mix.matmul(matrix),
    ):  # the second and third from what stays
        torch.testing.assert_close(product, mix @ head, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(matrix @ x.T, head @ x.T, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_are_those_of_the_dequantised_network(family: str, tmp_path: Path) -> None:
    mapped, plain = pair(tmp_path, family)
    ours, right = dict(mapped.named_parameters()), dict(plain.named_parameters())
    assert ours.keys() == right.keys() == mapped.state_dict().keys() & right.keys()
    for name, value in right.items():
        assert (ours[name].shape, ours[name].dtype, ours[name].device) == (value.shape, value.dtype, value.device)
        assert torch.equal(ours[name] + 0, value), name
    assert sum(p.numel() for p in mapped.parameters()) == sum(p.numel() for p in plain.parameters())
    for name, buffer in plain.named_buffers():  # the frequencies of the positions
        assert torch.equal(dict(mapped.named_buffers())[name], buffer), name
    assert repr(next(iter(mapped_parts(mapped).values()))).endswith("stored as Q8_0)")


def test_gradients_pass_through(tmp_path: Path) -> None:
    mapped, plain = pair(tmp_path, "llama")
    gradients = []
    for network in (mapped, plain):
        x = plain.model.embed_tokens(IDS).clone().requires_grad_()
        (gradient,) = torch.autograd.grad(network(inputs_embeds=x, use_cache=False).logits[0, -1, 7], x)
        gradients.append(gradient)
    torch.testing.assert_close(*gradients, atol=1e-6, rtol=1e-4)


def test_a_network_changes_type_and_is_copied(tmp_path: Path) -> None:
    """Its matrices stay quantised; half precision is that of torch on the dequantised numbers."""
    mapped, plain = pair(tmp_path, "untied")
    right = logits(plain.to(torch.bfloat16))
    for network in (mapped.to(torch.bfloat16), pair(tmp_path, "untied", dtype=torch.bfloat16)[0]):
        parts = mapped_parts(network)
        assert parts and {matrix.dtype for matrix in network.parameters()} == {torch.bfloat16}
        torch.testing.assert_close(logits(network), right, atol=0.02, rtol=0.02)
    assert mapped_parts(copy.deepcopy(mapped)).keys() == parts.keys()
    again = mapped.to("cpu")
    assert mapped_parts(again).keys() == parts.keys() and again.device == torch.device("cpu")


def test_weights_that_do_not_fit_are_refused_and_missing_ones_named(tmp_path: Path) -> None:
    _, plain = pair(tmp_path, "untied")
    weights, _ = weights_of(plain, tmp_path / "m.gguf")
    empty: Callable[[], Any] = lambda: empty_network(type(plain), copy.deepcopy(plain.config))  # noqa: E731
    key = "model.layers.0.self_attn.k_proj.weight"
    less = {name: weight for name, weight in weights.items() if name != key}
    assert place_weights(empty(), less, name="m.gguf") == {key}
    with pytest.raises(AttnctlError, match=r"m.gguf: .*k_proj.weight is \(64, 64\) in its file and \(32, 64\) by"):
        place_weights(empty(), weights | {key: weights["model.layers.0.self_attn.q_proj.weight"]}, name="m.gguf")
    with pytest.raises(AttnctlError, match="Qwen2ForCausalLM has no parameter model.x"):
        place_weights(empty(), weights | {"model.x": weights[key]}, name="m.gguf")


@pytest.mark.parametrize("free", [0, 10**12])
def test_on_a_gpu_matrices_are_dequantised_once_if_they_fit(
    free: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a pretended one: each matrix is dequantised on the CPU and copied; it stays there if there is room for all."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (free, free))
    with pretend_cuda():
        mapped, plain = pair(tmp_path, "untied", device="cuda")
        assert {parameter.device.type for parameter in mapped.parameters()} == {"cuda"}
        matrices_of_products = {name for name in mapped_parts(mapped) if "embed" not in name}
        assert len(matrices_of_products) > 10
        with torch.inference_mode():
            for _ in range(2):
                ours = mapped(IDS.to("cuda"), use_cache=False).logits.cpu()
                torch.testing.assert_close(ours, logits(plain), atol=1e-5, rtol=1e-5)
        left = mapped_parts(mapped)
        assert {name for name in matrices_of_products if name in left} == (set() if free else matrices_of_products)
        assert not any(matrix.content.kept for matrix in left.values())


def test_matrices_stay_as_plain_parameters_where_forwards_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the first product on; torch multiplies by one alone, tied or not, and gradients pass."""
    monkeypatch.setattr(limits, "free_memory", lambda: 1e12)
    mapped, plain = pair(tmp_path, "llama")
    matrices.expect_forwards(mapped)
    torch.testing.assert_close(logits(mapped), logits(plain), atol=1e-5, rtol=1e-5)
    assert not mapped_parts(mapped) and mapped.lm_head.weight is mapped.model.embed_tokens.weight
    right = dict(plain.named_parameters())
    for name, value in mapped.named_parameters():
        assert torch.equal(value, right[name]), name
    last = [network(inputs_embeds=plain.model.embed_tokens(IDS)).logits[0, -1] for network in (mapped, plain)]
    torch.testing.assert_close(*last, atol=1e-5, rtol=1e-5)
    assert last[0].requires_grad  # kept in inference, and of use outside of it
