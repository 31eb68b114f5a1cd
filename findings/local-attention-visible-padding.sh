#!/usr/bin/env bash
# local-attention 1.11.2: with autopad the last tokens attend to padding, and exact_windowsize is one key more than the window.
#
# LocalAttention cuts a text into windows, and autopad=True makes its length a multiple of the window. One expects that this padding
# is hidden. In a causal one it is. In the others it is a key of zeros like any other: of 10 tokens with a window of 4, the last six give
# a sixth to a quarter of their attention to two keys that do not exist, so a text's last tokens change with its length modulo the window.
# A mask of nothing but True, which says nothing, hides the padding.
#
# exact_windowsize=True should let a query see "at maximum the number of keys equal to the window size": it sees 5 of a window of 4.
# Last, a query whose keys are all hidden by the mask gets equal shares of every key, those before the first token too. Their
# values are -1, not 0: with values of 0 and 1, its output is negative. No error and no warning.
#
# This script prints which keys each query sees, and exits with 1 if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 local-attention==1.11.2 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
from importlib.metadata import version

import torch
from local_attention import LocalAttention

print(f"local-attention {version('local-attention')}, torch {torch.__version__}")
TOKENS, WINDOW = 10, 4
flat = torch.zeros(1, TOKENS, 8)  # all scores are equal
values = torch.eye(TOKENS)[None]  # the output is the weights
everything = torch.ones(1, TOKENS, dtype=torch.bool)


def weights(mask=None, **settings):
    """Return the weight of each query (row) at each key, and print which are seen."""
    layer = LocalAttention(window_size=WINDOW, autopad=True, use_rotary_pos_emb=False, **settings).eval()
    rows = layer(flat, flat, values, mask=mask)[0]
    print(f"{settings}, {'no mask' if mask is None else 'a mask'}")
    for row in rows:
        print(f"  {''.join('.x'[int(weight > 0)] for weight in row)}  sum {row.sum():.2f}")
    return rows


both = weights(causal=False)
masked = weights(everything, causal=False)
exact = weights(causal=True, exact_windowsize=True)
left = everything.clone()
left[0, :2] = False
unseeing = weights(left, causal=True)
described = [
    torch.allclose(both.sum(-1), torch.tensor([1] * 4 + [10 / 12] * 4 + [6 / 8] * 2)),
    torch.allclose(masked.sum(-1), torch.ones(TOKENS)),
    (exact > 0).sum(-1).tolist() == [1, 2, 3, 4, 5, 5, 5, 5, 5, 5],
    bool((unseeing[:2].sum(-1) < -1).all()) and torch.allclose(unseeing[2:].sum(-1), torch.ones(TOKENS - 2)),
]
if not all(described):
    raise SystemExit(f"the behaviour has changed: {described}")
PYTHON
echo "as described above"
