#!/usr/bin/env bash
# ONNX Runtime 1.32.0 (and 1.23.2): MultiHeadAttention with unidirectional=1 and more keys than queries hides nothing in the last row.
#
# With as many queries as keys the mask of com.microsoft MultiHeadAttention is the usual triangle. With 3 queries and 5 keys there are
# two conventions: the triangle begins at the first key (query i sees keys 0 to i), or it ends at the last (queries are the last
# tokens). The CPU kernel does the first for every row but the last one, which sees all keys, those of the future too:
#
#   x....
#   xx...
#   xxxxx
#
# So the number of keys that a query sees jumps, and a single query sees everything. If a key is padding (key_padding_mask), it stays
# hidden. With past_key, as decoders are exported, the rows are right. ONNX's own operator Attention (opset 23) with
# is_causal=1 begins at the first key in every row. No error and no warning.
#
# This script prints which keys each query sees, and exits with 1 if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/run.py" <<'PYTHON'
import numpy as np
import onnxruntime
from onnx import TensorProto, helper

SIZE = 8
RNG = np.random.default_rng(0)


def seen(operator, n_q, n_k, past=0):
    """Return which keys each query sees: with values of the identity the output is the weights."""
    domain = "" if operator == "Attention" else "com.microsoft"
    settings = {"is_causal": 1, "q_num_heads": 1, "kv_num_heads": 1} if not domain else {"unidirectional": 1, "num_heads": 1}
    q, k = (RNG.normal(size=(1, n, SIZE)).astype(np.float32) for n in (n_q, n_k))
    v = np.eye(n_k, SIZE, dtype=np.float32)[None]
    feeds = {"q": q, "k": k[:, past:], "v": v[:, past:]}
    names, outputs = ["q", "k", "v"], ["y"]
    if past:
        feeds |= {"pk": k[:, None, :past], "pv": v[:, None, :past]}
        names, outputs = [*names, "", "", "", "pk", "pv"], ["y", "present_k", "present_v"]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, value.shape) for name, value in feeds.items()]
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph([helper.make_node(operator, names, outputs, domain=domain, **settings)], "g", inputs, made)
    versions = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=versions, ir_version=11)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    weights = session.run(["y"], feeds)[0][0, :, :n_k]
    return ["".join(".x"[int(weight > 0)] for weight in row) for row in weights]


print("onnxruntime", onnxruntime.__version__)
cases = {
    "MultiHeadAttention, 3 queries, 3 keys": (seen("MultiHeadAttention", 3, 3), ["x..", "xx.", "xxx"]),
    "MultiHeadAttention, 3 queries, 5 keys": (seen("MultiHeadAttention", 3, 5), ["x....", "xx...", "xxxxx"]),
    "MultiHeadAttention, 3 queries, 5 keys of which 2 are past": (
        seen("MultiHeadAttention", 3, 5, past=2), ["xxx..", "xxxx.", "xxxxx"],
    ),
    "Attention, 3 queries, 5 keys": (seen("Attention", 3, 5), ["x....", "xx...", "xxx.."]),
}
for name, (rows, _) in cases.items():
    print(f"{name}: {' '.join(rows)}")
if any(rows != described for rows, described in cases.values()):
    raise SystemExit("the behaviour has changed")
PYTHON
for version in 1.23.2 1.32.0; do
    python3 -m venv "$folder/venv-$version"
    "$folder/venv-$version/bin/pip" install --quiet --disable-pip-version-check onnxruntime==$version onnx==1.23.2 numpy==2.4.6
    "$folder/venv-$version/bin/python" "$folder/run.py"
done
echo "as described above"
