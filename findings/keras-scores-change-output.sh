#!/usr/bin/env bash
# keras 3.15.1 (jax 0.10.2 as its backend; with torch it is the same)
#
# return_attention_scores=True asks a layer for its weights as well. One expects the same output with and without it.
#
# For a query that may see no key the output differs: without the scores, it is the mean of all values, hidden ones too; with
# them, the weights are all 0, and so is the output (but for its bias). Such queries are no rare case: MultiHeadAttention and
# GroupQueryAttention join the mask of the queries to that of the keys, so each place of padding is one. keras.layers.Attention,
# a third answer, gives such a row equal weights, and returns those.
#
# This script shows all three, and exits with 1 if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check keras==3.15.1 jax==0.10.2
KERAS_BACKEND=jax KERAS_HOME="$folder" "$folder/venv/bin/python" - <<'PYTHON'
import jax
import keras
import numpy as np
from keras import layers
from keras.ops import convert_to_numpy as as_numpy

print(f"keras {keras.__version__}, jax {jax.__version__}")
keras.utils.set_random_seed(0)
x = np.random.default_rng(0).normal(size=(1, 3, 4)).astype("float32")
mask = np.array([[[True, True, False], [True, True, False], [False, False, False]]])  # the third place is padding
described = []
for layer in (layers.MultiHeadAttention(2, 4), layers.GroupQueryAttention(4, 2, 1)):
    name = type(layer).__name__
    alone = as_numpy(layer(x, x, attention_mask=mask))[0]
    output, weights = (as_numpy(a)[0] for a in layer(x, x, return_attention_scores=True, attention_mask=mask))
    print(f"{name}: weights of the padding {weights[0, 2].round(2)}")
    print(f"  its output without scores {alone[2].round(2)}, with scores {output[2].round(2)}")
    print(f"  largest difference for the tokens {abs(alone - output)[:2].max():.0e}")
    # A query of zeros (the biases are zeros too) has equal scores: its output is the mean of the three values.
    flat = as_numpy(layer(np.zeros_like(x), x))[0, 2]
    print(f"  the mean of all values, hidden ones too: {flat.round(2)}")
    described += [not weights[:, 2].any(), not output[2].any(), abs(alone[2] - flat).max() < 1e-5]
    described += [abs(alone[2]).max() > 0.05, abs(alone - output)[:2].max() < 1e-5]

single = layers.Attention()
weights = as_numpy(single([x, x], mask=[None, np.zeros((1, 3), bool)], return_attention_scores=True)[1])[0]
print(f"Attention, no key visible: weights {weights[2].round(2)}")
described.append(abs(weights[2] - 1 / 3).max() < 1e-6)
if not all(described):
    raise SystemExit("the behaviour has changed")
PYTHON
echo "as described: asking for the scores changes the output of queries without keys"
