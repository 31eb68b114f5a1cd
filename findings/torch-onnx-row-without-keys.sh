#!/usr/bin/env bash
# torch.onnx.export: what a query that sees no key looks at depends on the opset and on the type of the mask.
#
# In torch 2.13.0 scaled_dot_product_attention gives such a row 0, whether its mask is of booleans or of 0 and -inf. One expects
# that the exported model does the same, or, as a softmax of -inf is written out, NaN. It does three things (ONNX Runtime 1.32.0):
#
#   mask          torch   opset 18, 20   opset 23, 24
#   booleans      0       1/n each       0
#   0 and -inf    0       NaN            0
#
# So a query of padding reads every key, hidden ones too, in one export, is NaN in another, and is 0 in a third. From opset 23 on
# the graph has the operator Attention; before, it is written out, and a mask of booleans becomes one of the lowest number.
#
# This script exports one module eight times, and exits with 1 if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    torch==2.13.0 onnx==1.23.2 onnxscript==0.7.2 onnxruntime==1.32.0 numpy==2.4.6
cd "$folder"
venv/bin/python - <<'PYTHON' 2>"$folder/log" || { cat "$folder/log" >&2; exit 1; }
import logging

import numpy as np
import onnxruntime
import torch

logging.disable(logging.CRITICAL)
print(f"torch {torch.__version__}, onnxruntime {onnxruntime.__version__}")
torch.manual_seed(0)
q, k, v = torch.randn(1, 1, 2, 4), torch.randn(1, 1, 4, 4), torch.eye(4)[None, None]  # the output is the weights
sees = torch.tensor([[False] * 4, [True, True, False, True]])
masks = {"booleans": sees, "0 and -inf": torch.zeros(2, 4).masked_fill(~sees, float("-inf"))}


class Attention(torch.nn.Module):
    def forward(self, q, k, v, mask):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def named(row):
    row = np.asarray(row)
    return "NaN" if np.isnan(row).all() else {0.0: "0", 0.25: "1/n each"}.get(float(row[0]), "other")


found = {}
for name, mask in masks.items():
    right = Attention()(q, k, v, mask)[0, 0].numpy()
    found[name] = [named(right[0])]
    for opset in (18, 20, 23, 24):
        program = torch.onnx.export(Attention(), (q, k, v, mask), dynamo=True, opset_version=opset, verbose=False)
        program.save("model.onnx")
        session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
        given = zip((part.name for part in session.get_inputs()), (q, k, v, mask), strict=True)
        weights = session.run(None, {part: tensor.numpy() for part, tensor in given})[0][0, 0]
        assert np.allclose(weights[1], right[1], atol=1e-5)  # the row that sees keys is right everywhere
        found[name].append(named(weights[0]))
    for version, row in zip(("torch", "opset 18", "opset 20", "opset 23", "opset 24"), found[name], strict=True):
        print(f"{name}, {version}: {row}")
right = {"booleans": ["0", "1/n each", "1/n each", "0", "0"], "0 and -inf": ["0", "NaN", "NaN", "0", "0"]}
if found != right:
    raise SystemExit("the behaviour has changed")
PYTHON
echo "as described above"
