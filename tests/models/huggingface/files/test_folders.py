"""A folder that is no checkpoint itself: the one inside is opened, or a line says what the folder is and what converts it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.conftest import Refused, Run
from tests.models.huggingface.conftest import Shelf

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_a_folder_here_wins_over_a_short_name_but_not_over_a_built_in_model(
    shelf: Shelf, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    built_in = run("heatmap", "at eat", "--model", "demo")
    for name in ("gpt2", "demo"):
        shutil.copytree(shelf("llama"), tmp_path / name)
    found = run("heatmap", "at eat", "--model", "gpt2")
    assert found.out == run("heatmap", "at eat", "--model", shelf("llama")).out
    assert "gpt2 is the folder of this name here, not openai-community/gpt2 of the hub" in found.err
    assert run("heatmap", "at eat", "--model", "demo").out == built_in.out
    assert "of the hub" not in run("heatmap", "at eat", "--model", "./gpt2").err


@pytest.mark.parametrize("inner", ["checkpoint-500", f"snapshots/{COMMIT}"])
def test_the_only_checkpoint_of_a_run_or_of_the_hubs_cache_is_opened(
    inner: str, shelf: Shelf, run: Run, tmp_path: Path
) -> None:
    shutil.copytree(shelf("llama"), tmp_path / "m" / inner)
    found = run("heatmap", "at eat", "--model", str(tmp_path / "m"))
    assert found.out == run("heatmap", "at eat", "--model", shelf("llama")).out
    assert f"The checkpoint is the one inside {tmp_path / 'm'}: {inner}." in found.err


def test_of_several_revisions_main_is_opened_and_of_several_steps_none(
    shelf: Shelf, run: Run, refused: Refused, tmp_path: Path
) -> None:
    for inner in ("snapshots/a", f"snapshots/{COMMIT}", "run/checkpoint-900", "run/checkpoint-1000"):
        shutil.copytree(shelf("llama"), tmp_path / inner)
    (tmp_path / "refs").mkdir()
    (tmp_path / "refs" / "main").write_text(COMMIT)
    assert f"snapshots/{COMMIT}." in run("heatmap", "at eat", "--model", str(tmp_path)).err
    line = refused("heatmap", "at eat", "--model", str(tmp_path / "run"))
    assert "holds 2 checkpoints of a run" in line and f"{tmp_path}/run/checkpoint-1000, the last" in line


FILES: list[tuple[list[str], str]] = [
    (["config.json", "onnx/model.onnx"], "a model for ONNX alone (onnx/model.onnx)"),
    (["config.json", "openvino_model.xml"], "a model for OpenVINO alone"),
    (
        ["zero_to_fp32.py", "global_step9/zero_pp_rank_0_mp_rank_00_optim_states.pt"],
        "ZeRO: its own script joins them: python",
    ),
    (["pytorch_model_fsdp_0/.metadata", "pytorch_model_fsdp_0/__0_0.distcp"], "pytorch_model_fsdp_0"),
    (["config.json", ".metadata", "__0_0.distcp"], "join them: accelerate merge-weights"),
    (["params.json", "consolidated.00.pth"], "the format of their authors' own code (params.json)"),
    (
        ["model_index.json", "text_encoder/config.json", "unet/config.json"],
        "a pipeline of diffusers: name a model in it",
    ),
]


@pytest.mark.parametrize(("files", "words"), FILES, ids=[files[-1] for files, _ in FILES])
def test_the_format_of_another_program_is_named(files: list[str], words: str, refused: Refused, tmp_path: Path) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    assert words in refused("heatmap", "a b", "--model", str(tmp_path))


def test_weights_that_mlx_quantised_name_its_converter(
    shelf: Shelf, refused: Refused, run: Run, tmp_path: Path
) -> None:
    """And the word quantization in a configuration alone changes nothing."""
    folder = tmp_path / "m"
    shutil.copytree(shelf("llama"), folder)
    settings = json.loads((folder / "config.json").read_text()) | {"quantization": {"group_size": 64, "bits": 4}}
    (folder / "config.json").write_text(json.dumps(settings))
    assert run("heatmap", "at eat", "--model", str(folder)).code == 0
    name = "model.layers.0.self_attn.q_proj"
    packed = {f"{name}.weight": torch.zeros(4, 4, dtype=torch.uint32), f"{name}.scales": torch.ones(4, 1)}
    save_file(packed | {f"{name}.biases": torch.ones(4, 1)}, folder / "model.safetensors")
    line = refused("heatmap", "at eat", "--model", str(folder))
    assert "MLX quantised to 4 bits: mlx_lm.convert --hf-path" in line and "--dequantize" in line


def test_experts_that_mlx_stacked_are_named(shelf: Shelf, refused: Refused, tmp_path: Path) -> None:
    """mlx-lm 0.32.2 writes a Mixtral so, also with --dequantize: its file was called incomplete."""
    folder = tmp_path / "m"
    shutil.copytree(shelf("mixtral"), folder)
    tensors = load_file(folder / "model.safetensors")
    parts = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
    stacks: dict[str, list[torch.Tensor]] = {}
    for name in sorted(tensors):
        if ".experts." in name:
            module, rest = name.split(".experts.")
            stacked = f"{module}.switch_mlp.{parts[rest.split('.')[1]]}"
            stacks.setdefault(stacked, []).append(tensors.pop(name))
    plain = {f"{name}.weight": torch.stack(experts) for name, experts in stacks.items()}
    save_file(tensors | plain, folder / "model.safetensors")
    line = refused("heatmap", "at eat", "--model", str(folder))
    assert "its experts as mlx-lm stacks them" in line and "switch_mlp.down_proj.weight" in line
    settings = json.loads((folder / "config.json").read_text()) | {"quantization": {"group_size": 64, "bits": 4}}
    (folder / "config.json").write_text(json.dumps(settings))
    name = next(iter(stacks))
    packed = {f"{name}.weight": torch.zeros(4, 4, 4, dtype=torch.uint32), f"{name}.scales": torch.ones(4, 4, 1)}
    save_file(tensors | packed | {f"{name}.biases": torch.ones(4, 4, 1)}, folder / "model.safetensors")
    line = refused("heatmap", "at eat", "--model", str(folder))
    assert "that MLX quantised, and its experts as mlx-lm stacks them" in line and "--hf-path" not in line


def test_convolutions_that_mlx_laid_out_are_named(shelf: Shelf, refused: Refused, tmp_path: Path) -> None:
    """mlx-lm 0.32.2 writes Qwen3-Next so, and adds 1 to its norms: moved back alone, its weights would be others."""
    folder = tmp_path / "m"
    shutil.copytree(shelf("qwen3_next causal"), folder)
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name in sorted(tensors) if name.endswith("conv1d.weight"))
    channels, _, width = tensors[name].shape
    for key in tensors:
        if key.endswith("conv1d.weight"):
            tensors[key] = tensors[key].moveaxis(2, 1).contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "mlx"})
    line = refused("heatmap", "at eat", "--model", str(folder))
    assert f"weights as MLX lays them out ({name} is ({channels}, {width}, 1) in its file" in line
    assert line.endswith("give the folder that mlx-lm made it from")
    settings = json.loads((folder / "config.json").read_text()) | {"quantization": {"group_size": 64, "bits": 4}}
    (folder / "config.json").write_text(json.dumps(settings))
    line = refused("heatmap", "at eat", "--model", str(folder))
    assert f"that MLX quantised, and {name} as MLX lays it out" in line and "--hf-path" not in line
    save_file(tensors | {name: torch.zeros(channels, width, 2)}, folder / "model.safetensors")
    shutil.copy(Path(shelf("qwen3_next causal"), "config.json"), folder)
    assert "MLX" not in refused("heatmap", "at eat", "--model", str(folder))


ADAPTERS: list[tuple[dict[str, Any], str]] = [
    (
        {"base_model_name_or_path": "x/y", "task_type": "CAUSAL_LM", "peft_type": "LORA"},
        "peft.AutoPeftModelForCausalLM.from",
    ),
    ({"base_model_name_or_path": "x/y", "task_type": None, "peft_type": "LORA"}, "peft.AutoPeftModel.from_pretrained"),
    ({"base_model_name_or_path": "x/y", "peft_type": "PROMPT_TUNING"}, "learned prompts for x/y"),
]


@pytest.mark.parametrize(("settings", "words"), ADAPTERS, ids=str)
@pytest.mark.parametrize("beside", [False, True])
def test_an_adapter_names_its_base_and_what_merges_it(
    settings: dict[str, Any], words: str, beside: bool, shelf: Shelf, refused: Refused, tmp_path: Path
) -> None:
    folder = tmp_path / "run" / "checkpoint-5"
    if beside:
        shutil.copytree(shelf("llama"), folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    line = refused("heatmap", "a b", "--model", str(tmp_path / "run"))
    assert words in line and "for x/y" in line
