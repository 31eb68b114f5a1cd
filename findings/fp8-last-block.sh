#!/usr/bin/env bash
# A float8 weight with one scale for each block of 128 x 128 has a smaller last block when its rows are no multiple of 128.
#
# transformers 5.24.0, which dequantises such a checkpoint where there is no GPU, takes the size of a block from the shapes:
# rows of the weight / rows of the scale. For 192 rows and 2 rows of scales that is 96, where weight_block_size says 128: rows
# 96 to 127 are multiplied by the second scale. The result is wrong without an error or a warning. For 576 rows and 5 rows of
# scales (DeepSeek-V3's kv_a_proj_with_mqa has 576) the division has a remainder, and it raises ValueError.
#
# This script shows both on the class that does it, and exits with 1 if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.24.0 accelerate==1.15.0
"$folder/venv/bin/python" - <<'PYTHON'
import torch
import transformers
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

print(f"transformers {transformers.__version__}, torch {torch.__version__}")


def by_blocks(weight, scales, size=128):
    """The meaning of weight_block_size [128, 128]: row i has the scale of row i // 128."""
    rows = torch.arange(weight.shape[0]) // size
    columns = torch.arange(weight.shape[1]) // size
    return weight.float() * scales[rows][:, columns]


def dequantised(weight, scales):
    parts = {"weight": [weight], "weight_scale_inv": [scales]}
    return next(iter(Fp8Dequantize(None).convert(parts).values()))


def case(rows):
    weight = torch.ones(rows, 128).to(torch.float8_e4m3fn)
    scales = torch.arange(1.0, -(-rows // 128) + 1)[:, None]  # 1, 2, ...: a block is its number
    return weight, scales


weight, scales = case(256)
same = torch.equal(dequantised(weight, scales), by_blocks(weight, scales))
print(f"256 rows, 2 scales: equal to the blocks of 128 rows: {same}")

weight, scales = case(192)
theirs, right = dequantised(weight, scales), by_blocks(weight, scales)
wrong = (theirs != right).any(1).nonzero().flatten().tolist()
print(f"192 rows, 2 scales: rows {wrong[0]} to {wrong[-1]} are {theirs[wrong[0], 0]:g} where the file says {right[wrong[0], 0]:g}")

weight, scales = case(576)
try:
    dequantised(weight, scales)
    refused = False
except ValueError as error:
    refused = True
    print(f"576 rows, 5 scales: ValueError: {error}")

if not (same and wrong == list(range(96, 128)) and refused):
    raise SystemExit("the behaviour has changed")
PYTHON
echo "as described above"
