#!/usr/bin/env bash
# torch 2.13.0: flex_attention ignores the blocks of a BlockMask unless it is compiled.
#
# BlockMask.from_kv_blocks makes a mask from a list of blocks: which blocks of keys each block of queries sees. mask_mod is optional
# there. One expects that torch.compile changes the speed of a function and not its result, and a warning says so: uncompiled,
# flex_attention uses "an unfused implementation". Compiled, it goes by the blocks. Uncompiled, it asks mask_mod about each pair of
# tokens and never reads the blocks: without a mask_mod each query sees every key, and with a causal one all of its past. So a
# model that selects blocks computes dense attention where someone debugs it, or does not compile it.
#
# Here a query sees the block of its own, of two. This script compares both with dense attention and with that of each block
# alone, and exits with 1 if the behaviour changes. A C++ compiler is needed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cd "$folder"
TORCHINDUCTOR_CACHE_DIR="$folder/cache" venv/bin/python - <<'PYTHON' 2>log || { cat log >&2; exit 1; }
import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention

print(f"torch {torch.__version__}")
torch.set_grad_enabled(False)
torch.manual_seed(0)
SIZE, N = 128, 256
q, k, v = torch.randn(3, 1, 1, N, 16)
number = torch.tensor([[[1, 1]]], dtype=torch.int32)  # of blocks of keys, for each block of queries
index = torch.tensor([[[[0, 1], [1, 0]]]], dtype=torch.int32)  # their numbers
blocks = BlockMask.from_kv_blocks(number, index, BLOCK_SIZE=SIZE)
causal = BlockMask.from_kv_blocks(number, index, BLOCK_SIZE=SIZE, mask_mod=lambda b, h, i, j: i >= j)
places = torch.arange(N)
own = places[:, None] // SIZE == places // SIZE
past = places[:, None] >= places
answers = {"every key": own | True, "its own block": own, "its past": past, "its past in its own block": own & past}
compiled = torch.compile(flex_attention)


def visible(function, mask):
    output = function(q, k, v, block_mask=mask)
    for name, shown in answers.items():
        weights = (q @ k.mT / 4).masked_fill(~shown, float("-inf")).softmax(-1)
        if float((output - weights @ v).abs().max()) < 1e-5:
            return name
    return "something else"


seen = {}
for name, mask in (("no mask_mod", blocks), ("a causal mask_mod", causal)):
    for way, function in (("uncompiled", flex_attention), ("compiled", compiled)):
        seen[name, way] = visible(function, mask)
        print(f"{name}, {way}: a query sees {seen[name, way]}")
if list(seen.values()) != ["every key", "its own block", "its past", "its past in its own block"]:
    raise SystemExit("the behaviour has changed")
PYTHON
echo "as described above"
