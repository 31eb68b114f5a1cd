#!/usr/bin/env bash
# h-transformer-1d 0.1.9: the two halves of a text never see each other, and a causal model misses the block of tokens just before.
#
# H-Transformer-1D (Zhu and Soricut, 2021) sees near tokens singly and far ones in averages, in a hierarchy of levels. Each pair of tokens
# belongs to one level, so that every token sees the whole text, or the whole past. One expects the same of HTransformer1D. But:
#
#   causal=False   has one level too few, the coarsest, which joins the halves: no depth lets one half learn of the other
#   causal=True    computes the finest level for the tokens' own block only. Blocks 2, 4, 6 ... do not see the block before them, so that
#                  the first token of block 2 sees nothing but itself. (Issue 22 of the repository says that a level is missing here.)
#
# Besides, each level of HAttention1D subtracts its own maximum before exp, and the sums are added as if it were the same one: a level
# whose best key has the score 0 counts as much as one whose best has the score 20. No error and no warning.
#
# This script prints which blocks of tokens move (rows) when a block is exchanged (columns), and compares one layer with a softmax in
# NumPy, with one maximum and with one for each level. It exits with 1 if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    torch==2.13.0 h-transformer-1d==0.1.9 rotary-embedding-torch==0.9.1 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
from importlib.metadata import version

import numpy as np
import torch
from h_transformer_1d import HTransformer1D
from h_transformer_1d.h_transformer_1d import HAttention1D

BLOCK, BLOCKS, VOCABULARY = 8, 8, 50
print(f"h-transformer-1d {version('h-transformer-1d')}, torch {torch.__version__}")


def moved(causal):
    """Return for each block of tokens (row) which blocks move its logits."""
    torch.manual_seed(0)
    settings = {"num_tokens": VOCABULARY, "dim": 32, "depth": 4, "heads": 2, "dim_head": 16, "block_size": BLOCK}
    model = HTransformer1D(**settings, max_seq_len=BLOCK * BLOCKS, causal=causal).eval()
    tokens = torch.randint(VOCABULARY, (1, BLOCK * BLOCKS))
    with torch.no_grad():
        logits = model(tokens)
        columns = []
        for block in range(BLOCKS):
            other = tokens.clone()
            other[0, block * BLOCK : (block + 1) * BLOCK] = torch.randint(VOCABULARY, (BLOCK,))
            change = (model(other) - logits).abs().reshape(BLOCKS, -1).amax(-1)
            columns.append(change > 0)
    return ["".join(".x"[int(cell)] for cell in row) for row in torch.stack(columns, 1)]


both = moved(causal=False)
causal = moved(causal=True)
print("causal=False, 4 layers:", *both, sep="\n  ")
print("causal=True, 4 layers:", *causal, sep="\n  ")


torch.manual_seed(0)
layer = HAttention1D(16, heads=1, dim_head=16, block_size=4).eval()
x = 3 * torch.randn(1, 16, 16)  # 4 blocks: two levels, both without averages, of 2 blocks each
with torch.no_grad():
    result = layer(x)[0].numpy()
    q, k, v = (part[0].double().numpy() for part in layer.to_qkv(x).chunk(3, -1))
    out = [parameter.double().numpy() for parameter in layer.to_out.parameters()]
scores = q @ k.T / 4
block = np.arange(16) // 4
own = block[:, None] == block
beside = (block[:, None] // 2 == block // 2) & ~own
together, apart = np.zeros((16, 16)), np.zeros((16, 16))
for i in range(16):
    seen = own[i] | beside[i]
    together[i, seen] = np.exp(scores[i, seen] - scores[i, seen].max())
    for level in (own[i], beside[i]):
        apart[i, level] = np.exp(scores[i, level] - scores[i, level].max())
distances = []
for name, weights in (("one maximum", together), ("a maximum for each level", apart)):
    weights /= weights.sum(-1, keepdims=True)
    distances.append(np.abs(weights @ v @ out[0].T + out[1] - result).max())
    largest = weights.max(-1).mean()
    print(f"distance of the layer from the softmax with {name}: {distances[-1]:.1e}; largest weight of a row, mean {largest:.2f}")

halves = ["xxxx...."] * 4 + ["....xxxx"] * 4
past = ["".join("x" if j == i or j < i - i % 2 else "." for j in range(BLOCKS)) for i in range(BLOCKS)]
described = [both == halves, causal == past, distances[0] > 0.1, distances[1] < 1e-5]
if not all(described):
    raise SystemExit(f"the behaviour has changed: {described}")
PYTHON
echo "as described above"
