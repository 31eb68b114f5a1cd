#!/usr/bin/env bash
# ONNX Attention (opset 23) with a soft cap and a mask gives other numbers in ONNX Runtime 1.26.0 than in 1.32.0.
#
# One expects that a key which the mask hides gets no weight. Version 1.26.0 adds the mask before the soft cap: tanh maps -inf
# to -1, so that a hidden key has the score -softcap and keeps a share of each row. Version 1.32.0 adds it after the cap.
# The output qk_matmul_output moves with it: mode 1 is "after the mask" in one and "after the soft cap" in the other, and in
# mode 0, "the output of qk matmul", the reference evaluator of onnx 1.23.2 returns the scores after the soft cap.
#
# This script runs one graph in all three, and exits with 1 if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/run.py" <<'PYTHON'
import sys

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, reference

CAP, HIDDEN = 2.0, [0.0, 0.0, -np.inf]
query = np.array([[[[1.0, 0.0]]]], np.float32)
keys = np.array([[[[3.0, 0.0], [1.0, 0.0], [2.0, 0.0]]]], np.float32)
feeds = {"q": query, "k": keys, "v": keys, "m": np.array([HIDDEN], np.float32)}
raw = (query @ keys.swapaxes(-1, -2))[0, 0, 0]
scores = {
    "Q K": raw,
    "Q K + mask": raw + HIDDEN,
    "cap(Q K)": CAP * np.tanh(raw / CAP),
    "cap(Q K + mask)": CAP * np.tanh((raw + HIDDEN) / CAP),
    "cap(Q K) + mask": CAP * np.tanh(raw / CAP) + HIDDEN,
}


def graph(mode):
    node = helper.make_node(
        "Attention", ["q", "k", "v", "m"], ["y", "", "", "qk"], scale=1.0, softcap=CAP, qk_matmul_output_mode=mode
    )
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, value.shape) for name, value in feeds.items()]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y", "qk")]
    body = helper.make_graph([node], "g", inputs, outputs)
    return helper.make_model(body, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


def by_runtime(model):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def by_reference(model):
    return reference.ReferenceEvaluator(model).run(None, feeds)


def told(run):
    with np.errstate(invalid="ignore"):
        *modes, weights = (np.asarray(run(graph(mode))[1])[0, 0, 0] for mode in range(4))
    names = [next((name for name, right in scores.items() if np.allclose(found, right)), "other") for found in modes]
    return [*names, f"{weights[2]:.3f}"]


if sys.argv[1] == "reference":
    print("onnx", "|".join(told(by_reference)))
else:
    print("onnxruntime", "|".join(told(by_runtime)))
PYTHON
seen=""
for version in 1.26.0 1.32.0; do
    python3 -m venv "$folder/venv-$version"
    "$folder/venv-$version/bin/pip" install --quiet --disable-pip-version-check \
        onnxruntime==$version onnx==1.23.2 numpy==2.4.6 ml_dtypes==0.6.0
    line=$("$folder/venv-$version/bin/python" "$folder/run.py" runtime)
    echo "ONNX Runtime $version: modes 0, 1, 2, weight of the hidden key: ${line#onnxruntime }"
    seen+="${line#onnxruntime };"
done
line=$("$folder/venv-1.32.0/bin/python" "$folder/run.py" reference)
echo "reference of onnx 1.23.2: modes 0, 1, 2, weight of the hidden key: ${line#onnx }"
seen+="${line#onnx }"
expected="Q K|Q K + mask|cap(Q K + mask)|0.015;Q K|cap(Q K)|cap(Q K) + mask|0.000;cap(Q K)|cap(Q K)|cap(Q K) + mask|0.000"
if [ "$seen" != "$expected" ]; then
    echo "the behaviour has changed"
    exit 1
fi
