#!/usr/bin/env bash
# keras-hub 0.32.0: whether Qwen 2 and 3 have a sliding window depends on the backend of Keras, and a checkpoint of Qwen 2 never has one.
#
# Qwen3Backbone(sliding_window_size=8) should let a token see itself and the seven before it, as MistralBackbone(sliding_window=8) does,
# and Keras promises the same numbers with each backend. With tensorflow it is so. With jax and torch the attention calls a fused kernel,
# and returns before it comes to the window: each token sees its whole past. QwenBackbone does the same. (Issue 2186 of the repository
# is this for Gemma 2, and was mended there.)
#
# A checkpoint of Qwen 2 that says "use_sliding_window": true has no window with tensorflow either. from_preset passes
# use_sliding_window, where QwenBackbone has use_sliding_window_attention; an argument that it does not have is taken in silence.
#
# The models are small and random. This script exchanges each token, prints how many keys each query sees, and exits with 1 if the
# behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    keras-hub==0.32.0 keras==3.15.1 jax==0.10.2 torch==2.13.0 numpy==2.4.6 safetensors==0.8.0
cat > "$folder/run.py" <<'PYTHON'
import json
import sys
from pathlib import Path

import keras
import keras_hub
import numpy as np

WINDOW, TOKENS = 8, 16
SIZES = {"vocabulary_size": 50, "num_layers": 1, "num_query_heads": 2, "num_key_value_heads": 2, "hidden_dim": 64, "intermediate_dim": 64}
CHECKPOINT = {
    "model_type": "qwen2", "vocab_size": 50, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 2, "intermediate_size": 64, "rms_norm_eps": 1e-6, "rope_theta": 10_000.0, "tie_word_embeddings": False,
    "max_position_embeddings": 64, "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 0,
}  # fmt: skip
(Path(sys.argv[1]) / "config.json").write_text(json.dumps(CHECKPOINT))
models = {
    "Mistral": keras_hub.models.MistralBackbone(**SIZES, sliding_window=WINDOW),
    "Qwen3": keras_hub.models.Qwen3Backbone(**SIZES, head_dim=32, sliding_window_size=WINDOW),
    "Qwen": keras_hub.models.QwenBackbone(**SIZES, use_sliding_window_attention=True, sliding_window_size=WINDOW),
    "Qwen from config.json": keras_hub.models.QwenBackbone.from_preset(sys.argv[1], load_weights=False),
}
tokens = np.arange(TOKENS)[None]


def output(model, tokens):
    """Return the last hidden state of each token."""
    return np.asarray(model.predict({"token_ids": tokens, "padding_mask": np.ones_like(tokens)}, verbose=0))[0]


whole, window = [*range(1, TOKENS + 1)], [min(i + 1, WINDOW) for i in range(TOKENS)]
backend = keras.backend.backend()
described = {"Mistral": window, "Qwen from config.json": whole}
described |= dict.fromkeys(("Qwen", "Qwen3"), window if backend == "tensorflow" else whole)
for name, model in models.items():
    before = output(model, tokens)
    moved = []
    for i in range(TOKENS):
        other = tokens.copy()
        other[0, i] = 40
        moved.append(np.abs(output(model, other) - before).max(-1) > 1e-6)
    seen = np.sum(moved, 0).tolist()
    print(f"{backend}, {name}, a window of {WINDOW}: keys that each query sees: {' '.join(map(str, seen))}")
    if seen != described[name]:
        raise SystemExit("the behaviour has changed")
PYTHON
mkdir "$folder/checkpoint"
export KERAS_HOME="$folder/keras" TF_CPP_MIN_LOG_LEVEL=3
"$folder/venv/bin/python" -c 'from importlib.metadata import version; print("keras-hub", version("keras-hub"), "keras", version("keras"))'
for backend in tensorflow jax torch; do
    export KERAS_BACKEND=$backend
    "$folder/venv/bin/python" -W ignore "$folder/run.py" "$folder/checkpoint" 2> "$folder/log" || { cat "$folder/log"; exit 1; }
done
echo "as described above"
