"""Print small ONNX graphs of attention for tests/models/test_unread.py, in base64 (made with onnx 1.23.2).

python -m tests.tools.onnx_graphs
"""

from __future__ import annotations

import base64
from typing import Any

SHAPE = [1, 2, 5, 4]


def main() -> None:
    """Print a line for each graph."""
    from onnx import TensorProto, helper

    def value(name: str) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE)

    def attention(output: str, mode: int) -> Any:
        outputs = ["y", "", "", output] if output else ["y"]
        return helper.make_node("Attention", ["q", "k", "v"], outputs, qk_matmul_output_mode=mode)

    softmax = [
        helper.make_node("MatMul", ["q", "k"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["/layer.0/Softmax_output_0"]),
        helper.make_node("MatMul", ["/layer.0/Softmax_output_0", "v"], ["c"]),
        helper.make_node("Softmax", ["c"], ["y"]),
    ]
    fused = helper.make_node("Attention", ["q", "k", "v"], ["y"], domain="com.microsoft", num_heads=2)
    graphs = {
        "softmax": (softmax, ["y"]),
        "softmax handed out": (softmax, ["y", "/layer.0/Softmax_output_0"]),
        "attention": ([attention("", 0)], ["y"]),
        "attention's scores": ([attention("qk", 0)], ["y", "qk"]),
        "attention's weights": ([attention("qk", 3)], ["y", "qk"]),
        "fused": ([fused], ["y"]),
    }
    for name, (nodes, outputs) in graphs.items():
        graph = helper.make_graph(nodes, "g", [value(name) for name in "qkv"], [value(name) for name in outputs])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
        print(f"{name!r}: {base64.b64encode(model.SerializeToString()).decode()!r}")


if __name__ == "__main__":
    main()
