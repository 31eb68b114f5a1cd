#!/usr/bin/env bash
# x-transformers 2.31.10: which query heads share a key head is another matter than in torch and transformers.
#
# With kv_heads=2 and heads=4 one expects what enable_gqa=True of torch 2.13.0 and every Llama of transformers do: neighbours share,
# query heads 0 and 1 have key head 0, heads 2 and 3 have key head 1. x-transformers lets them take turns: query head h has key
# head h modulo 2, so that heads 0 and 2 share. Either is a network that can be trained, and all tensors have the same shapes. So
# weights that are carried from one to the other fit, and compute something else, without an error or a warning.
#
# This script computes one layer's output three ways, with and without flash, and exits with 1 if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 x-transformers==2.31.10 numpy==2.4.6
cd "$folder"
venv/bin/python - <<'PYTHON' 2>log || { cat log >&2; exit 1; }
from importlib.metadata import version

import torch
from torch.nn.functional import scaled_dot_product_attention
from x_transformers import Attention

print(f"x-transformers {version('x-transformers')}, torch {torch.__version__}")
torch.set_grad_enabled(False)
HEADS, SIZE, N = 4, 8, 6
distances = {}
for flash in (False, True):
    for shared in (1, 2, 4):
        torch.manual_seed(0)
        layer = Attention(dim=32, heads=HEADS, dim_head=SIZE, kv_heads=shared, causal=True, flash=flash).eval()
        x = torch.randn(1, N, 32)
        q = layer.to_q(x).view(1, N, HEADS, SIZE).transpose(1, 2)
        k, v = (project(x).view(1, N, shared, SIZE).transpose(1, 2) for project in (layer.to_k, layer.to_v))
        turns = [head % shared for head in range(HEADS)]
        contexts = {
            "neighbours": scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
            "turns": scaled_dot_product_attention(q, k[:, turns], v[:, turns], is_causal=True),
        }
        output = layer(x)[0] if isinstance(layer(x), tuple) else layer(x)
        for way, context in contexts.items():
            other = layer.to_out(context.transpose(1, 2).reshape(1, N, -1))
            distances[flash, shared, way] = float((output - other).abs().max())
        apart = {way: f"{distances[flash, shared, way]:.0e}" for way in contexts}
        print(f"flash {flash}, {shared} of {HEADS} key heads: neighbours share: {apart['neighbours']}, take turns: {apart['turns']}")
if {key for key, distance in distances.items() if distance > 1e-5} != {(flash, 2, "neighbours") for flash in (False, True)}:
    raise SystemExit("the behaviour has changed")
PYTHON
echo "as described above"
