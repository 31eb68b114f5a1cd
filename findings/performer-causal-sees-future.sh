#!/usr/bin/env bash
# performer-pytorch 1.1.4: with causal=True the output of the first tokens depends on keys of the future.
#
# Performer's positive features are exp(w k - |k|^2 / 2). So that they do not overflow, softmax_kernel subtracts the maximum over the
# features of all keys, and then adds 1e-4 to each feature. Without the 1e-4 the maximum would cancel, and one expects that a causal
# layer does not see its future. But the maximum is that of the whole text: one long key at its end makes the features of all keys
# before it small against the 1e-4, and every earlier token comes near the mean of its past. So a prefix has other outputs than the
# same tokens in a longer text, and a model that writes token by token is another one than it was in training. No error, no warning.
# With generalized_attention=True, which has no exp, it is right. This is no noise of the random features: they are drawn once.
#
# This script makes the last key longer, prints how far the weights of earlier tokens move, and compares them with NumPy. It exits with 1
# if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    torch==2.13.0 performer-pytorch==1.1.4 local-attention==1.11.2 setuptools==80.9.0 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
from importlib.metadata import version

import numpy as np
import torch
from performer_pytorch import FastAttention

TOKENS, SIZE, FEATURES = 64, 64, 256
print(f"performer-pytorch {version('performer-pytorch')}, torch {torch.__version__}")
torch.manual_seed(0)
q, k, other = torch.randn(3, 1, 1, TOKENS, SIZE).unbind(0)
longer = k.clone()
longer[..., -1, :] = 2 * other[..., -1, :]  # twice as long as the others
values = torch.eye(TOKENS)[None, None]  # the output is the weights


def defined(projection, k, epsilon):
    """Return the weights by the definition, with the maximum over all keys and epsilon added to each feature."""
    w, rows, keys = (part.double().numpy() for part in (projection, q[0, 0], k[0, 0]))
    halves = [(part**2).sum(-1, keepdims=True) / 2 / SIZE**0.5 for part in (rows, keys)]
    rows, keys = ((part / SIZE**0.25) @ w.T for part in (rows, keys))
    rows = (np.exp(rows - halves[0] - rows.max(-1, keepdims=True)) + epsilon) / FEATURES**0.5
    keys = (np.exp(keys - halves[1] - keys.max()) + epsilon) / FEATURES**0.5
    # The layer adds 1e-6 to each sum by which it divides, beside its features of about 6e-6.
    return np.tril(rows @ keys.T) / (rows * (keys.cumsum(0) + epsilon / 100)).sum(-1, keepdims=True)


described = []
for name, general in (("softmax", False), ("ReLU (generalized_attention=True)", True)):
    layer = FastAttention(SIZE, FEATURES, causal=True, generalized_attention=general)
    before, after = layer(q, k, values)[0, 0], layer(q, longer, values)[0, 0]
    prefix = layer(q[..., :32, :], longer[..., :32, :], values[..., :32, :32])[0, 0]
    moved = (after - before)[:-1].abs().max().item()
    apart = (after[:32, :32] - prefix).abs().max().item()
    print(f"{name}: a longer last key moves earlier weights by {moved:.2f}; the first 32 tokens alone differ by {apart:.2f}")
    largest = [rows[8:-1].amax(-1).mean().item() for rows in (before, after)]
    print(f"  largest weight of rows 8 to 62, mean: {largest[0]:.3f}, {largest[1]:.3f} with the longer last key")
    described.append((moved < 1e-6 and apart < 1e-6) if general else (moved > 0.3 and apart > 0.3))
    if not general:
        same = np.abs(defined(layer.projection_matrix, longer, 1e-4) - after.numpy()).max()
        without = [defined(layer.projection_matrix, keys, 0) for keys in (k, longer)]
        still = np.abs(without[1] - without[0])[:-1].max()
        print(f"  NumPy with the maximum of all keys and 1e-4: distance {same:.0e}; without the 1e-4 earlier weights move by {still:.0e}")
        described += [same < 1e-3, still < 1e-9]
if not all(described):
    raise SystemExit(f"the behaviour has changed: {described}")
PYTHON
echo "as described above"
