#!/usr/bin/env bash
# keras 3.15.1 (jax 0.10.2 as its backend; with torch it is the same)
#
# Embedding(mask_zero=True) puts a mask of the padding on its output, and the layers after it read and pass on that mask. One
# expects that a layer which reads a mask leaves it there for the next layer.
#
# MultiHeadAttention takes the mask off its inputs while it runs. So the first layer that reads a tensor hides the padding, and
# the next one that reads the same tensor does not: in a residual block, Add()([h, attention(h, h)]) meets an h without a mask,
# drops the mask of the other, and from the second block on each token attends to the padding. Nothing warns.
# GroupQueryAttention, in the same model, keeps the mask, and warns for each block that it will be destroyed.
#
# This script shows both, and exits with 1 if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check keras==3.15.1 jax==0.10.2
KERAS_BACKEND=jax KERAS_HOME="$folder" "$folder/venv/bin/python" - <<'PYTHON'
import warnings

import jax
import keras
import numpy as np
from keras import layers
from keras.ops import convert_to_numpy as as_numpy

print(f"keras {keras.__version__}, jax {jax.__version__}")
keras.utils.set_random_seed(0)
ids = np.array([[7, 8, 0, 0]])  # two tokens and two places of padding


def on_padding(make, blocks=3):
    """Return the largest weight of the first token on the padding, in each block of a model with residuals."""
    tokens = keras.Input((4,), dtype="int32")
    h = layers.Embedding(10, 8, mask_zero=True)(tokens)
    maps = []
    for _ in range(blocks):
        attended, weights = make()(h, h, return_attention_scores=True)
        h = layers.LayerNormalization()(layers.Add()([h, attended]))
        maps.append(weights)
    return [float(as_numpy(weights)[0, :, 0, 2:].max()) for weights in keras.Model(tokens, maps)(ids)]


seen, about = {}, {}
for make in (lambda: layers.MultiHeadAttention(2, 4), lambda: layers.GroupQueryAttention(4, 2, 1)):
    name = make().name
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        seen[name] = on_padding(make)
    about[name] = sum("destroy the mask" in str(warning.message) for warning in warned)
    print(f"{name}: largest weight on padding by block {[round(w, 2) for w in seen[name]]}, {about[name]} warnings of a lost mask")

warnings.simplefilter("ignore")
h = layers.Embedding(10, 8, mask_zero=True)(ids)
attention = layers.MultiHeadAttention(2, 4)
twice = [as_numpy(attention(h, h, return_attention_scores=True)[1])[0, 0, 0].round(2) for _ in range(2)]
print(f"one MultiHeadAttention, called twice on one tensor: {twice[0]}, then {twice[1]}")

many, grouped = seen.values()
described = many[0] == 0 and min(many[1:]) > 0.05 and max(grouped) == 0 and [n > 0 for n in about.values()] == [False, True]
if not (described and not twice[0][2:].any() and twice[1].min() > 0.2):
    raise SystemExit("the behaviour has changed")
PYTHON
echo "as described: the first MultiHeadAttention hides the padding, and those after it do not"
