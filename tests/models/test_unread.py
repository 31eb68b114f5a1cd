"""Files of models that are not run: the line that says what each is, and what hands over its attention or weights."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from tests.conftest import Refused

# by `python -m tests.tools.onnx_graphs`
GRAPHS = {
    "softmax": (
        "CAo6+QEKFgoBcQoBaxIGc2NvcmVzIgZNYXRNdWwKLAoGc2NvcmVzEhkvbGF5ZXIuMC9Tb2Z0bWF4X291dHB1dF8wIgdTb2Z0bWF4"
        "CikKGS9sYXllci4wL1NvZnRtYXhfb3V0cHV0XzAKAXYSAWMiBk1hdE11bAoPCgFjEgF5IgdTb2Z0bWF4EgFnWhsKAXESFgoUCAES"
        "EAoCCAEKAggCCgIIBQoCCARaGwoBaxIWChQIARIQCgIIAQoCCAIKAggFCgIIBFobCgF2EhYKFAgBEhAKAggBCgIIAgoCCAUKAggE"
        "YhsKAXkSFgoUCAESEAoCCAEKAggCCgIIBQoCCARCBAoAEBc="
    ),
    "softmax handed out": (
        "CAo6rgIKFgoBcQoBaxIGc2NvcmVzIgZNYXRNdWwKLAoGc2NvcmVzEhkvbGF5ZXIuMC9Tb2Z0bWF4X291dHB1dF8wIgdTb2Z0bWF4"
        "CikKGS9sYXllci4wL1NvZnRtYXhfb3V0cHV0XzAKAXYSAWMiBk1hdE11bAoPCgFjEgF5IgdTb2Z0bWF4EgFnWhsKAXESFgoUCAES"
        "EAoCCAEKAggCCgIIBQoCCARaGwoBaxIWChQIARIQCgIIAQoCCAIKAggFCgIIBFobCgF2EhYKFAgBEhAKAggBCgIIAgoCCAUKAggE"
        "YhsKAXkSFgoUCAESEAoCCAEKAggCCgIIBQoCCARiMwoZL2xheWVyLjAvU29mdG1heF9vdXRwdXRfMBIWChQIARIQCgIIAQoCCAIK"
        "AggFCgIIBEIECgAQFw=="
    ),
    "attention": (
        "CAo6rgEKNQoBcQoBawoBdhIBeSIJQXR0ZW50aW9uKhwKFXFrX21hdG11bF9vdXRwdXRfbW9kZRgAoAECEgFnWhsKAXESFgoUCAES"
        "EAoCCAEKAggCCgIIBQoCCARaGwoBaxIWChQIARIQCgIIAQoCCAIKAggFCgIIBFobCgF2EhYKFAgBEhAKAggBCgIIAgoCCAUKAggE"
        "YhsKAXkSFgoUCAESEAoCCAEKAggCCgIIBQoCCARCBAoAEBc="
    ),
    "attention's scores": (
        "CAo61AEKPQoBcQoBawoBdhIBeRIAEgASAnFrIglBdHRlbnRpb24qHAoVcWtfbWF0bXVsX291dHB1dF9tb2RlGACgAQISAWdaGwoB"
        "cRIWChQIARIQCgIIAQoCCAIKAggFCgIIBFobCgFrEhYKFAgBEhAKAggBCgIIAgoCCAUKAggEWhsKAXYSFgoUCAESEAoCCAEKAggC"
        "CgIIBQoCCARiGwoBeRIWChQIARIQCgIIAQoCCAIKAggFCgIIBGIcCgJxaxIWChQIARIQCgIIAQoCCAIKAggFCgIIBEIECgAQFw=="
    ),
    "attention's weights": (
        "CAo61AEKPQoBcQoBawoBdhIBeRIAEgASAnFrIglBdHRlbnRpb24qHAoVcWtfbWF0bXVsX291dHB1dF9tb2RlGAOgAQISAWdaGwoB"
        "cRIWChQIARIQCgIIAQoCCAIKAggFCgIIBFobCgFrEhYKFAgBEhAKAggBCgIIAgoCCAUKAggEWhsKAXYSFgoUCAESEAoCCAEKAggC"
        "CgIIBQoCCARiGwoBeRIWChQIARIQCgIIAQoCCAIKAggFCgIIBGIcCgJxaxIWChQIARIQCgIIAQoCCAIKAggFCgIIBEIECgAQFw=="
    ),
    "fused": (
        "CAo6sQEKOAoBcQoBawoBdhIBeSIJQXR0ZW50aW9uKhAKCW51bV9oZWFkcxgCoAECOg1jb20ubWljcm9zb2Z0EgFnWhsKAXESFgoU"
        "CAESEAoCCAEKAggCCgIIBQoCCARaGwoBaxIWChQIARIQCgIIAQoCCAIKAggFCgIIBFobCgF2EhYKFAgBEhAKAggBCgIIAgoCCAUK"
        "AggEYhsKAXkSFgoUCAESEAoCCAEKAggCCgIIBQoCCARCBAoAEBc="
    ),
}
WORDS = {
    "softmax": "(y), but it can hand out those of 1 Softmax node (/layer.0/Softmax_output_0): attnctl docs my-checkpoint",
    "softmax handed out": "Its 1 output with weights: /layer.0/Softmax_output_0. Save them: numpy.savez(",
    "attention": "can hand out those of 1 Attention node (qk_matmul_output, mode 3)",
    "attention's scores": "No weights are among its outputs (y, qk), but it can hand out those of 1 Attention node",
    "attention's weights": "Its 1 output with weights: qk.",
    "fused": "and no weights, and its 1 node of fused attention give none: export it without fusing",
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_of_onnx_names_its_weights(
    name: str, refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = base64.b64decode(GRAPHS[name])
    Path("model.onnx").write_bytes(data)
    message = refused("explain", "a b", "--model", "model.onnx", code=1)
    assert "model.onnx is a graph of ONNX, which attnctl does not run" in message and WORDS[name] in message
    for damaged in (b"", data[: len(data) // 2], b"\xff" * 90, b":\x02\x0a\x01" + data, b"\x0b" + data):
        Path("model.onnx").write_bytes(damaged)
        assert "model.onnx is not a sound ONNX file" in refused("explain", "a b", "--model", "model.onnx", code=1)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("w.weights.h5", 'numpy.savez("w.npz", **{w.path: w.numpy() for w in model.weights})'),
        ("model.keras", 'numpy.savez("w.npz", **{w.path: w.numpy() for w in model.weights})'),
        ("state.msgpack", 'flax.serialization.msgpack_restore(data), sep="/"'),
    ],
)
def test_weights_of_others_have_a_line_that_writes_them(
    name: str, line: str, refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "no model" in refused("explain", "a b", "--model", name, code=2)
    Path(name).write_bytes(b"\x89HDF")
    assert line in refused("explain", "a b", "--model", name, code=1)
