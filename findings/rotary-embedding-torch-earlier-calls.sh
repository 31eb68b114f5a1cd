#!/usr/bin/env bash
# rotary-embedding-torch 0.9.1: which positions a call rotates by depends on the calls before it, and xPos is another one with a cache.
#
# RotaryEmbedding keeps the angles of earlier calls (cache_if_possible=True is the default), and looks them up by length. One expects
# the same result with and without that. But get_axial_freqs leaves its angles there whatever its offsets, and without scaling:
#
#   offsets of a second call         are ignored: a tile at row 0 and one at row 10 have the same angles
#   interpolate_factor after it      is lost: rotate_queries_or_keys gets the unscaled angles that get_axial_freqs left there
#   weights that are loaded later    are ignored too: load_state_dict changes freqs, and the angles of the old ones go on
#
# freqs_for="pixel" is never cached, and right. Second, use_xpos=True: the decay goes by the distance of two tokens, "t - len // 2"
# of the query minus that of the key. rotate_queries_with_cached_keys, made for decoding with a cache, takes half the number of the
# queries for one and half the number of the keys for the other. So each step has scores as of another distance, by half of the text.
# No error and no warning.
#
# This script compares each with the definition in NumPy, and exits with 1 if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 rotary-embedding-torch==0.9.1 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
from importlib.metadata import version

import numpy as np
import torch
from rotary_embedding_torch import RotaryEmbedding

SIZE, TOKENS = 16, 1024
print(f"rotary-embedding-torch {version('rotary-embedding-torch')}, torch {torch.__version__}")
torch.manual_seed(0)
x = torch.randn(1, 1, 32, SIZE)


def rotated(x, positions, theta=10_000, scale=0):
    """Return pairs of features as complex numbers, rotated by their positions, times xPos's decay to the power `scale`."""
    even = np.arange(0, SIZE, 2)
    pairs = x.double().numpy()[0, 0, :, ::2] + 1j * x.double().numpy()[0, 0, :, 1::2]
    decay = ((even + 0.4 * SIZE) / (1.4 * SIZE)) ** (scale * positions[:, None] / 512)
    return pairs * np.exp(1j * positions[:, None] / theta ** (even / SIZE)) * decay


def distance(result, expected):
    """Return how far a rotated tensor is from complex numbers."""
    return np.abs(result.detach()[0, 0, :, ::2].numpy() + 1j * result.detach()[0, 0, :, 1::2].numpy() - expected).max()


described = []
for cache in (True, False):
    rotary = RotaryEmbedding(SIZE, cache_if_possible=cache)
    here, there = rotary.get_axial_freqs(4, 4), rotary.get_axial_freqs(4, 4, offsets=(10, 0))
    moved = (there - here).abs().max().item()
    scaled = RotaryEmbedding(SIZE, cache_if_possible=cache, interpolate_factor=4.0)
    scaled.get_axial_freqs(32)
    interpolated = distance(scaled.rotate_queries_or_keys(x), rotated(x, np.arange(32) / 4))
    plain = distance(scaled.rotate_queries_or_keys(x), rotated(x, np.arange(32)))
    loaded = RotaryEmbedding(SIZE, cache_if_possible=cache)
    loaded.rotate_queries_or_keys(x)
    loaded.load_state_dict(RotaryEmbedding(SIZE, theta=500_000).state_dict())
    other = distance(loaded.rotate_queries_or_keys(x), rotated(x, np.arange(32), theta=500_000))
    print(f"cache_if_possible={cache}:")
    print(f"  angles of a tile at row 10 less those of a tile at row 0: {moved:.0f} (10 is right)")
    print(f"  distance from positions / 4 {interpolated:.1e}, from positions {plain:.1e} (interpolate_factor=4)")
    print(f"  distance from the base that was loaded {other:.1e}")
    wrong = [moved == 0, interpolated > 0.1, plain < 1e-4, other > 0.1]
    right = [moved == 10, interpolated < 1e-4, plain > 0.1, other < 1e-4]
    described += wrong if cache else right

q, k = torch.randn(2, 1, 1, TOKENS, SIZE).unbind(0)
positions = np.arange(TOKENS)
keys = rotated(k, positions, scale=-1)
defined = (rotated(q, positions, scale=1)[-1:] @ keys.conj().T).real[0]
for name, query in (("all queries", q), ("the last query", q[:, :, -1:])):
    rotary = RotaryEmbedding(SIZE, use_xpos=True)
    one, other = rotary.rotate_queries_with_cached_keys(query, k)
    scores = (one @ other.mT)[0, 0, -1].detach().double().numpy()
    weights, expected = (np.exp(row / 4) / np.exp(row / 4).sum() for row in (scores, defined))
    change = np.abs(scores - defined).max()
    largest = f"largest weight {weights.max():.4f}, by definition {expected.max():.4f}"
    print(f"xPos, {name} of {TOKENS}, last row: scores differ by {change:.1e}; {largest}")
    described.append(change > 0.5 if query is not q else change < 1e-2)
if not all(described):
    raise SystemExit(f"the behaviour has changed: {described}")
PYTHON
echo "as described above"
