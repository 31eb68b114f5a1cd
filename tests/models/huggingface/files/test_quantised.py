"""Weights that are whole numbers or float8 with scales beside them: read as their products, or refused by name.

The right weights are NumPy's, from the bytes of the file.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import attnctl
from attnctl.errors import AttnctlError
from attnctl.models import open_model
from tests.models.huggingface.conftest import Shelf
from tests.tools import folders
from tests.tools.numpy_llama import Array, attention, tensors_of

TEXT = "Alice will eat"
Tensors = dict[str, torch.Tensor]
Scaled = Callable[[torch.Tensor, torch.Generator], Tensors]  # a weight → what lies in its place, by the end of its name


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama whose projections have 32 and 192 rows or columns: 192 is no multiple of a block of 128."""
    return folders.write(tmp_path_factory.mktemp("quantised") / "llama", "llama", intermediate_size=192)


def numbers(weight: torch.Tensor, kind: torch.dtype, seed: torch.Generator) -> torch.Tensor:
    drawn = torch.randn(weight.shape, generator=seed) * 40
    return drawn.clamp(-127, 127).to(kind)


def scale(seed: torch.Generator, *shape: int) -> torch.Tensor:
    return (torch.rand(shape, generator=seed) + 0.5) * 0.01


def by_tensor(end: str, kind: torch.dtype = torch.float8_e4m3fn, *shape: int, **beside: torch.Tensor) -> Scaled:
    return lambda weight, seed: {"weight": numbers(weight, kind, seed), end: scale(seed, *shape)} | beside


def by_row(end: str, kind: torch.dtype, *more: int) -> Scaled:
    return lambda weight, seed: {"weight": numbers(weight, kind, seed), end: scale(seed, len(weight), *more)}


def by_group(weight: torch.Tensor, seed: torch.Generator) -> Tensors:
    rows, columns = weight.shape
    return {"weight": numbers(weight, torch.int8, seed), "weight_scale": scale(seed, rows, columns // 16)}


def by_block(weight: torch.Tensor, seed: torch.Generator) -> Tensors:
    rows, columns = (-(-side // 128) for side in weight.shape)
    return {"weight": numbers(weight, torch.float8_e4m3fn, seed), "weight_scale_inv": scale(seed, rows, columns)}


def rewritten(folder: Path, scaled: Scaled, settings: dict[str, Any]) -> Path:
    """The folder with what `scaled` makes of each projection, and these settings in its config.json."""
    tensors, seed = dict[str, torch.Tensor](), torch.Generator().manual_seed(0)
    for name, tensor in load_file(folder / "model.safetensors").items():
        if not name.endswith("_proj.weight"):
            tensors[name] = tensor
            continue
        tensors |= {name.removesuffix("weight") + end: part.clone() for end, part in scaled(tensor, seed).items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    stated = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(stated | settings))
    return folder


def products(tensors: dict[str, Array]) -> dict[str, Array]:
    """Each weight times its scale, which is repeated over its rows, columns, groups or blocks of 128."""
    made = dict[str, Array]()
    for name, tensor in tensors.items():
        beside = {end: tensors.get(f"{name.removesuffix('weight')}{end}") for end in ENDS}
        end, part = next(((end, part) for end, part in beside.items() if part is not None), ("", np.ones(())))
        if part.ndim == 1 and part.size > 1:
            part = part[:, None]
        for axis in range(part.ndim):
            side, count = tensor.shape[axis] if tensor.ndim == 2 else 1, part.shape[axis]
            if count not in (1, side):
                width = 128 if end == "weight_scale_inv" else side // count
                part = np.repeat(part, width, axis).take(range(side), axis)
        made[name] = tensor * part / (127 if end == "SCB" else 1) if name.endswith("weight") else tensor
    return made


def right_weights(folder: Path, ids: list[int]) -> list[Array]:
    tensors = products(tensors_of(folder / "model.safetensors"))
    return attention(tensors, json.loads((folder / "config.json").read_text()), ids)


ENDS = ("weight_scale", "weight_scale_inv", "scale_weight", "SCB")
FP8_BLOCKS = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "FP8", "producer": {"name": "modelopt"}}
BESIDE = {"input_scale": torch.tensor(3.0)}
READ: dict[str, tuple[Scaled, dict[str, Any], str]] = {
    "modelopt": (
        by_tensor("weight_scale", **BESIDE),
        {"quantization_config": MODELOPT},
        "modelopt FP8, dequantised",
    ),
    "fp8 with weight_scale": (
        by_tensor("weight_scale", torch.float8_e4m3fn, 1),
        {"quantization_config": {"quant_method": "fp8", "activation_scheme": "static"}},
        "fp8, dequantised",
    ),
    "a method that nobody knows": (
        by_row("weight_scale", torch.int8, 1),
        {"quantization_config": {"quant_method": "w8a8_int8"}},
        "w8a8_int8, dequantised",
    ),
    "settings without a method": (
        by_row("weight_scale", torch.int8, 1),
        {"quantization_config": {"bits": 8}},
        "8-bit, dequantised",
    ),
    "compression_config": (
        by_row("weight_scale", torch.float8_e4m3fn, 1),
        {"compression_config": {"quant_method": "compressed-tensors", "format": "float-quantized"}},
        "compressed-tensors float-quantized, dequantised",
    ),
    # its library is not installed, or needs a GPU
    "fbgemm": (
        by_row("weight_scale", torch.float8_e4m3fn, 1),
        {"quantization_config": {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}},
        "fbgemm_fp8, dequantised",
    ),
    "bitsandbytes, stripped": (by_row("SCB", torch.int8), {}, "bitsandbytes 8-bit, dequantised"),
    "rows, stripped": (by_row("weight_scale", torch.int8), {}, "int8, dequantised"),
    "groups, stripped": (by_group, {}, "int8, dequantised"),
    "scale_weight": (by_tensor("scale_weight", torch.float8_e4m3fn, 1), {}, "float8, dequantised"),
    "blocks, stripped": (by_block, {}, "float8, dequantised"),
    # transformers divides the rows of a weight by those of its scale: blocks of 96 rows, where the file's have 128 and 64
    "blocks, the last one smaller": (by_block, {"quantization_config": FP8_BLOCKS}, "fp8, dequantised"),
}


@pytest.mark.parametrize("case", READ)
def test_a_weight_is_its_number_times_its_scale(case: str, plain: Path, tmp_path: Path) -> None:
    scaled, settings, quantised = READ[case]
    folder = rewritten(Path(shutil.copytree(plain, tmp_path / "m")), scaled, settings)
    trace = attnctl.attend(TEXT, str(folder))
    right = right_weights(folder, [token.id or 0 for token in trace.tokens])
    for layer, weights in zip(trace.layers, right, strict=True):
        np.testing.assert_allclose(layer.weights, weights, atol=1e-4)
    assert trace.model.quantised == quantised and not [note for note in trace.notes if "file" in note]


def test_settings_beside_the_configuration_name_the_quantisation(plain: Path, tmp_path: Path) -> None:
    folder = rewritten(Path(shutil.copytree(plain, tmp_path / "m")), by_tensor("weight_scale"), {})
    settings = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
    (folder / "hf_quant_config.json").write_text(json.dumps(settings))
    trace = attnctl.attend(TEXT, str(folder))
    np.testing.assert_allclose(
        trace.layers[0].weights, right_weights(folder, [token.id or 0 for token in trace.tokens])[0], atol=1e-4
    )
    assert trace.model.quantised == "modelopt FP8, dequantised"


def replaced(**parts: torch.Tensor) -> Scaled:
    """Tensors of these names in place of each weight."""
    return lambda weight, seed: dict(parts)


WORDS, BYTES, ONE = torch.zeros(4, 4, dtype=torch.int32), torch.zeros(4, 4, dtype=torch.uint8), torch.ones(1)
REFUSED: dict[str, tuple[Scaled, dict[str, Any], str]] = {
    "GPTQ": (replaced(qweight=WORDS, qzeros=WORDS, scales=ONE, g_idx=WORDS), {}, "GPTQ, and no quantization_config"),
    "AWQ": (replaced(qweight=WORDS, qzeros=WORDS, scales=ONE), {}, "GPTQ or AWQ, and no"),
    "HQQ": (replaced(W_q=BYTES, meta=ONE), {}, "HQQ"),
    "quanto": (replaced(**{"weight._data": BYTES, "weight._scale": ONE}), {}, "quanto"),
    "torchao": (replaced(_weight_qdata=BYTES, _weight_scale=ONE), {}, "torchao"),
    "MLX": (
        replaced(weight=WORDS, scales=ONE, biases=ONE),
        {"quantization_config": {"group_size": 64, "bits": 4}},
        "MLX 4-bit",
    ),
    "EXL2": (replaced(q_weight=WORDS, q_scale=WORDS), {"quantization_config": {"quant_method": "exl2"}}, "exl2"),
    "EXL3": (replaced(trellis=WORDS.short(), suh=ONE, svh=ONE), {}, "EXL3"),
    "bitsandbytes, 4 bits": (replaced(weight=BYTES, **{"weight.absmax": ONE, "weight.quant_map": ONE}), {}, "4-bit"),
    "NVFP4": (replaced(weight=BYTES, weight_scale=ONE, weight_scale_2=ONE), {"quantization_config": MODELOPT}, "model"),
    "zero points": (
        by_tensor("weight_scale", torch.int8, weight_zero_point=ONE),
        {"quantization_config": {"quant_method": "ours"}},
        "ours.*weight_zero_point beside it",
    ),
    "smoothed": (by_tensor("weight_scale", pre_quant_scale=torch.ones(32)), {}, "float8.*pre_quant_scale beside it"),
    "no scale": (lambda weight, seed: {"weight": numbers(weight, torch.int8, seed)}, {}, "int8.*without a scale"),
    "a scale of another shape": (by_tensor("weight_scale", torch.int8, 5, 3), {}, r"int8.*its scale \(5, 3\)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_quantisations_are_refused_by_name(case: str, plain: Path, tmp_path: Path) -> None:
    scaled, settings, name = REFUSED[case]
    folder = rewritten(Path(shutil.copytree(plain, tmp_path / "m")), scaled, settings)
    with pytest.raises(AttnctlError, match=f"m is quantised by .*{name}") as caught:
        open_model(str(folder))
    assert "\n" not in str(caught.value) and "incomplete" not in str(caught.value)


def float8_alone(weight: torch.Tensor, seed: torch.Generator) -> Tensors:
    return {"weight": (torch.randn(weight.shape, generator=seed) * 0.4).to(torch.float8_e4m3fn)}


def cache_scales(weight: torch.Tensor, seed: torch.Generator) -> Tensors:
    return {"weight": torch.randn(weight.shape, generator=seed) * 0.4, "k_scale": ONE, "v_scale": ONE}


HEALTHY: dict[str, tuple[Scaled, dict[str, Any]]] = {
    "float8 without a scale": (float8_alone, {}),
    "scales of the cache": (cache_scales, {}),
    # a copy that was dequantised keeps its configuration
    "a method, and plain weights": (cache_scales, {"quantization_config": MODELOPT}),
}


@pytest.mark.parametrize("case", HEALTHY)
def test_what_needs_no_scale_is_read_without_a_note(case: str, plain: Path, tmp_path: Path) -> None:
    scaled, settings = HEALTHY[case]
    folder = rewritten(Path(shutil.copytree(plain, tmp_path / "m")), scaled, settings)
    trace = attnctl.attend(TEXT, str(folder))
    tensors = tensors_of(folder / "model.safetensors")
    right = attention(tensors, json.loads((folder / "config.json").read_text()), [t.id or 0 for t in trace.tokens])
    for layer, weights in zip(trace.layers, right, strict=True):
        np.testing.assert_allclose(layer.weights, weights, atol=1e-5)
    assert not [note for note in trace.notes if "file" in note or "warns" in note]


def test_a_text_is_generated_as_its_folder_says(plain: Path, tmp_path: Path) -> None:
    """What transformers reads from a folder beside the weights is there, if the weights were dequantised."""
    folder = rewritten(Path(shutil.copytree(plain, tmp_path / "m")), by_tensor("weight_scale"), {})
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 7]}))
    network: Any = open_model(str(folder)).network  # type: ignore[attr-defined]
    assert network.generation_config.eos_token_id == [2, 7] and network.config.name_or_path == str(folder)


def test_a_stack_of_experts_has_its_scales(shelf: Shelf, tmp_path: Path) -> None:
    """transformers joins the experts of a layer into one tensor after reading: each must be scaled before."""
    folder, other = (Path(shutil.copytree(shelf("mixtral"), tmp_path / name)) for name in "ab")
    tensors, scaled = load_file(folder / "model.safetensors"), dict[str, torch.Tensor]()
    seed = torch.Generator().manual_seed(0)
    for name, tensor in list(tensors.items()):
        if ".experts." in name:
            part = scale(seed, len(tensor), 1)
            scaled |= {name: numbers(tensor, torch.int8, seed), f"{name}_scale": part}
            tensors[name] = scaled[name].float() * part
    assert scaled
    save_file(tensors | scaled, folder / "model.safetensors", {"format": "pt"})
    save_file(tensors, other / "model.safetensors", {"format": "pt"})
    for ours, right in zip(*(attnctl.attend(TEXT, str(path)).layers for path in (folder, other)), strict=True):
        np.testing.assert_allclose(ours.weights, right.weights, atol=1e-5)
