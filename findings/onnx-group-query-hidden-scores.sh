#!/usr/bin/env bash
# ONNX Runtime 1.32.0: scores that GroupQueryAttention puts out have 0 for hidden keys, so that their softmax shows the future.
#
# com.microsoft GroupQueryAttention can put out the "values of QK matrix multiplication before (1) or after (2) softmax
# normalization" (qk_output), and MultiHeadAttention its "normalized Q * K". One expects that the softmax of the first gives the
# weights, and that "normalized" means after it. MultiHeadAttention's are the scores, scaled and masked, before the softmax, which
# gives the weights. GroupQueryAttention's hold 0 for each key that is hidden: for the future of a query, for keys before its
# window, for keys after the end of a short text in a batch. 0 is a score like any other, and more than one below 0, so the softmax
# gives hidden keys a share, often most of the row. MultiHeadAttention has the lowest number there, and so has ONNX's own Attention
# (qk_matmul_output_mode 2).
#
# This script takes the softmax of each output, and prints how much of each row falls on keys that the operator hides. It exits
# with 1 if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
import onnxruntime
from onnx import helper
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

N, D = 4, 8
Q, K, V = np.random.default_rng(0).normal(size=(3, 1, N, D)).astype(np.float32)
SCALED = Q[0] @ K[0].T / np.sqrt(D)
LAST = {"s": np.array([N - 1], np.int32), "t": np.array(N, np.int32)}
# a text of two tokens in a batch of four: its last token is number 1
SHORT = {"s": np.array([1], np.int32), "t": np.array(N, np.int32)}


def scores(operator, more, n_out, **settings):
    """Return what one node puts out as its scores (n, n), after the outputs before it."""
    feeds = {"q": Q, "k": K, "v": V, **more}
    names = ["q", "k", "v", *(["", ""] if more else []), *more]
    outputs = [f"o{number}" if number in (0, n_out) or operator != "Attention" else "" for number in range(n_out + 1)]
    kind = helper.np_dtype_to_tensor_dtype
    inputs = [helper.make_tensor_value_info(name, kind(value.dtype), value.shape) for name, value in feeds.items()]
    made = [helper.make_tensor_value_info(name, kind(Q.dtype), None) for name in outputs if name]
    domain = "" if operator == "Attention" else "com.microsoft"
    graph = helper.make_graph([helper.make_node(operator, names, outputs, domain=domain, **settings)], "g", inputs, made)
    versions = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=versions, ir_version=11).SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return session.run(outputs[-1:], feeds)[0][0, 0]


def softmax(rows):
    rows = np.exp(rows - rows.max(-1, keepdims=True))
    return rows / rows.sum(-1, keepdims=True)


print("onnxruntime", onnxruntime.__version__)
for schema in get_all_operator_schema():
    if schema.domain == "com.microsoft" and schema.name in ("GroupQueryAttention", "MultiHeadAttention"):
        print(f"{schema.name}, output {schema.outputs[3].name}: {schema.outputs[3].description}")
grouped = {"num_heads": 1, "kv_num_heads": 1}
LOWEST = np.finfo(np.float32).min
triangle = np.tri(N, dtype=bool)
window = triangle & ~np.tri(N, k=-2, dtype=bool)
cases = {  # what is put out, which keys a query sees, the number for a hidden one
    "MultiHeadAttention": (scores("MultiHeadAttention", {}, 3, num_heads=1, unidirectional=1), triangle, LOWEST),
    "Attention, mode 2": (
        scores("Attention", {}, 3, q_num_heads=1, kv_num_heads=1, is_causal=1, qk_matmul_output_mode=2), triangle, LOWEST,
    ),
    "GroupQueryAttention, before": (scores("GroupQueryAttention", LAST, 3, **grouped, qk_output=1), triangle, 0),
    "GroupQueryAttention, before, window of 2": (
        scores("GroupQueryAttention", LAST, 3, **grouped, qk_output=1, local_window_size=2), window, 0,
    ),
    "GroupQueryAttention, before, text of 2": (
        scores("GroupQueryAttention", SHORT, 3, **grouped, qk_output=1), triangle & (np.arange(N) < 2), 0,
    ),
}
changed = False
for name, (put_out, seen, number) in cases.items():
    weights, right = softmax(put_out), softmax(np.where(seen, SCALED, -np.inf))
    lost = np.where(seen, 0, weights).sum(-1)
    print(f"{name}: hidden keys have {put_out[~seen].max():.3g}, and a share of {' '.join(f'{share:.2f}' for share in lost)}")
    changed |= not np.allclose(put_out[seen], SCALED[seen], atol=1e-5) or not (put_out[~seen] == number).all()
    changed |= np.allclose(weights, right, atol=1e-5) != (number < 0)
after = scores("GroupQueryAttention", LAST, 3, **grouped, qk_output=2)
changed |= not np.allclose(after, softmax(np.where(triangle, SCALED, -np.inf)), atol=1e-5)
print("GroupQueryAttention, after: the weights")
if changed:
    raise SystemExit("the behaviour has changed")
PYTHON
echo "as described above"
