"""Folders that are no checkpoint: of a run, of the hub's cache, of an adapter, or in the format of another program."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from attnctl.checks import limits
from attnctl.errors import AttnctlError
from attnctl.formats.arrays import safetensors_header
from attnctl.runtime.files import parse_json, read_bytes
from attnctl.text import for_pasting, visible_text

if TYPE_CHECKING:
    from attnctl.text import Document

ADAPTER = "adapter_config.json"
MODELS = (ADAPTER, "config.json")  # a folder with one of these is read, or refused for what it is
# task of an adapter → the end of the name of PEFT's class that opens it with its base
PEFT_CLASSES = {
    "CAUSAL_LM": "ForCausalLM", "SEQ_2_SEQ_LM": "ForSeq2SeqLM", "SEQ_CLS": "ForSequenceClassification",
    "TOKEN_CLS": "ForTokenClassification", "QUESTION_ANS": "ForQuestionAnswering",
    "FEATURE_EXTRACTION": "ForFeatureExtraction",
}  # fmt: skip
LEARNED_PROMPTS = ("PROMPT_TUNING", "MULTITASK_PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING", "ADAPTION_PROMPT", "CPT")
# files of programs that run a model without its weights being readable here → what they are
COMPILED = {
    "*.onnx": "ONNX", "onnx/*.onnx": "ONNX", "openvino_model.xml": "OpenVINO", "*.tflite": "LiteRT",
    "*.mlpackage": "Core ML", "rank0.engine": "TensorRT",
}  # fmt: skip


def folder_inside(path: Path) -> Path:
    """Return the checkpoint's folder within a run's folder or a folder of the hub's cache; `path` for other folders.

    Raises AttnctlError, with their names, if there are several.
    """
    if any((path / name).exists() for name in MODELS):
        return path
    snapshots = path if path.name == "snapshots" else path / "snapshots"
    if snapshots.is_dir():
        main = path.parent / "refs" / "main" if path.name == "snapshots" else path / "refs" / "main"
        if main.is_file() and (snapshot := snapshots / _revision_in(main)).is_dir():
            return snapshot
        return _only_one(
            path, sorted(filter(Path.is_dir, snapshots.iterdir())), "revisions of a model in the hub's cache"
        )
    steps = {int(step[1]): place for place in path.iterdir() if (step := re.fullmatch(r"checkpoint-(\d+)", place.name))}
    return _only_one(path, [steps[step] for step in sorted(steps)], "checkpoints of a run")


def _revision_in(file: Path) -> str:
    return Path(read_bytes(file, limits.SETTINGS_BYTES).decode(errors="replace").strip() or "-").name


def _only_one(path: Path, places: list[Path], kind: str) -> Path:
    """Return the only one of these folders; `path` if there is none. Raises AttnctlError if there are several."""
    if len(places) > 1:
        raise AttnctlError(f"the folder {path} holds {len(places)} {kind}: name one, such as {places[-1]}, the last")
    return places[0] if places else path


def check_format(path: Path) -> None:
    """Raise AttnctlError, with what converts it, for a folder in the format of another program, or of an adapter."""
    if (path / ADAPTER).exists():
        raise AttnctlError(_adapter_refusal(path))
    if (path / "model_index.json").is_file():
        parts = sorted(place.parent.name for place in path.glob("*/config.json"))
        part = next((name for name in parts if name.startswith("text_encoder")), parts[0] if parts else "text_encoder")
        raise AttnctlError(
            f"the folder {path} holds a pipeline of diffusers: name a model in it, such as {path / part}"
        )
    readable = any(path.glob("*.safetensors"))
    if readable:
        _check_mlx(path)
        return
    place, here = for_pasting(str(path)), f"the folder {path} holds"
    if (path / "zero_to_fp32.py").is_file() or any(path.glob("global_step*/*zero_pp_rank*")):
        raise AttnctlError(
            f"{here} the parts of DeepSpeed's ZeRO: its own script joins them: "
            f"python {for_pasting(str(path / 'zero_to_fp32.py'))} {place} {place} --safe_serialization"
        )
    places = (path, *sorted(path.glob("pytorch_model_fsdp_*")))
    if (saved := next((folder for folder in places if any(folder.glob("*.distcp"))), None)) is not None:
        command = f"accelerate merge-weights {for_pasting(str(saved))} {place}"
        raise AttnctlError(f"{here} the parts of a model that FSDP or torch.distributed saved: join them: {command}")
    if (path / "params.json").is_file() and any(path.glob("consolidated*")):
        raise AttnctlError(
            f"{here} weights in the format of their authors' own code (params.json): give the folder of the same model for "
            "transformers, which has a config.json"
        )
    for pattern, program in COMPILED.items():
        if (file := next(path.glob(pattern), None)) is not None and not any(path.glob("*.bin")):
            raise AttnctlError(
                f"{here} a model for {program} alone ({file.relative_to(path)}), which does not hand out its attention: "
                "give the folder that it was exported from"
            )


def _check_mlx(path: Path) -> None:
    """Raise AttnctlError for weights that MLX quantised: whole numbers of 32 bits, with scales and biases beside them."""
    if not (path / "config.json").is_file():
        return
    settings = parse_json(read_bytes(path / "config.json", limits.SETTINGS_BYTES), f"{path}/config.json")
    quantised = settings.get("quantization") if isinstance(settings, dict) else None
    if not isinstance(quantised, dict) or "bits" not in quantised:
        return
    for file in sorted(path.glob("*.safetensors")):
        header = safetensors_header(file)
        if stacked := stacked_by_mlx(header):
            raise AttnctlError(f"the folder {path} holds weights that MLX quantised, and {stacked}")
        if moved := next((tensor for tensor, entry in header.items() if _is_moved_filter(tensor, entry)), None):
            raise AttnctlError(
                f"the folder {path} holds weights that MLX quantised, and {visible_text(moved[:80])} as MLX lays it out, "
                "which mlx_lm.convert keeps: give the folder that mlx-lm made it from"
            )
        packed = (name.removesuffix(".weight") for name, entry in header.items() if entry.get("dtype") == "U32")
        if any(f"{name}.scales" in header and f"{name}.biases" in header for name in packed):
            raise AttnctlError(
                f"the folder {path} holds weights that MLX quantised to {quantised['bits']} bits: mlx_lm.convert --hf-path "
                f"{for_pasting(str(path))} --mlx-path dequantised --dequantize writes plain ones"
            )


def stacked_by_mlx(names: Iterable[str]) -> str | None:
    """Return what is wrong if the experts of a network are under the names of mlx-lm, all in one tensor, else None."""
    name = next((name for name in names if ".switch_mlp." in name), None)
    if name is None:
        return None
    return (
        f"its experts as mlx-lm stacks them ({visible_text(name[:80])}), which transformers does not read and "
        "mlx_lm.convert keeps: give the folder that mlx-lm made it from"
    )


def _is_moved_filter(name: str, entry: Document) -> bool:
    """Return whether a tensor is a filter for each channel, (channels, 1, width) in torch, with its axes in MLX's order."""
    shape = entry.get("shape", ())
    return "conv" in name and len(shape) == 3 and shape[2] == 1 < shape[1]


def moved_by_mlx(stored: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    """Return whether a stored convolution has its input channels last, as in MLX, and not behind its output channels."""
    return len(expected) > 2 and stored != expected and stored == (expected[0], *expected[2:], expected[1])


def _adapter_refusal(path: Path) -> str:
    """Return what an adapter is of, and the command that merges it into its base."""
    settings = parse_json(read_bytes(path / ADAPTER, limits.SETTINGS_BYTES), f"{path}/{ADAPTER}")
    settings = settings if isinstance(settings, dict) else {}
    base = settings.get("base_model_name_or_path")
    of_base = f" for {visible_text(base[:200])}" if isinstance(base, str) and base else ""
    if settings.get("peft_type") in LEARNED_PROMPTS:
        return (
            f"the folder {path} holds learned prompts{of_base} ({settings['peft_type']}), which belong to no token and "
            "cannot be merged: in Python, attnctl.capture records the model with them"
        )
    kind = PEFT_CLASSES.get(str(settings.get("task_type")), "")
    command = (
        f"import sys, peft, transformers as t; m = peft.AutoPeftModel{kind}.from_pretrained(sys.argv[1]); "
        "t.AutoTokenizer.from_pretrained(m.peft_config[m.active_adapter].base_model_name_or_path)"
        '.save_pretrained("merged"); m.merge_and_unload().save_pretrained("merged")'
    )
    return (
        f"the folder {path} holds a PEFT adapter{of_base}, which changes that model's weights: merge it into them once, and "
        f"give the folder merged: python -c '{command}' {for_pasting(str(path))}"
    )
