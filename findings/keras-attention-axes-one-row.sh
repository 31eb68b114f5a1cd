#!/usr/bin/env bash
# Keras 3.15.1: MultiHeadAttention with attention_axes and use_causal_mask is not causal if the axis before has size 1.
#
# attention_axes=(2,) lets each row of a series (batch, rows, time, features) attend along time. One expects use_causal_mask=True to hide
# the later times. But the causal mask is made for axis 1, the rows, whatever the axes are: with one row it is a mask of one cell, which
# stretches over all times, and hides nothing. With as many rows as times it is right by chance; with any other number it is an
# error about shapes. So a series of one channel, the simplest case, sees its own future, without an error or a warning.
#
# This script prints which times each time sees, and exits with 1 if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check keras==3.15.1 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
KERAS_BACKEND=jax JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import keras
import numpy as np

print("keras", keras.__version__)
TIMES, RNG = 4, np.random.default_rng(0)


def seen(rows):
    layer = keras.layers.MultiHeadAttention(1, 8, attention_axes=(2,))
    series = RNG.normal(size=(1, rows, TIMES, 8)).astype(np.float32)
    try:
        _, weights = layer(series, series, use_causal_mask=True, return_attention_scores=True)
    except ValueError:
        return "error"
    return " ".join("".join(".x"[int(weight > 0)] for weight in row) for row in np.asarray(weights)[0, 0, 0])


found = {rows: seen(rows) for rows in (1, 2, 4)}
for rows, keys in found.items():
    print(f"{rows} rows of {TIMES} times: {keys}")
if found != {1: "xxxx xxxx xxxx xxxx", 2: "error", 4: "x... xx.. xxx. xxxx"}:
    raise SystemExit("the behaviour has changed")
PYTHON
echo "as described above"
