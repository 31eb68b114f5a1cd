#!/usr/bin/env bash
# keras-hub 0.32.0: scaling of rotary positions is lost on the way from four settings, or is another one than its name says.
#
# 1. Backbone.from_preset reads a checkpoint of transformers. One expects that its scaling is read or refused: "linear" of a Llama raises
#    ValueError. But transformers 5 writes it as "rope_parameters", of which only rope_theta is read. So a Llama 3.1 that was saved
#    anew (fine-tuned, quantised, renamed) computes as if it had none. With "rope_scaling", of transformers 4, it is right. For
#    Qwen2 and Mistral neither is read: YaRN, which Qwen2.5's cards tell users to add to config.json for long texts, changes nothing.
# 2. LlamaBackbone(rope_position_scaling_factor=4) "scales positions". It does nothing: the class for Llama has frequencies of its own.
# 3. RotaryEmbedding(rope_type="dynamic") divides every frequency by factor ** (d / (d - 2)). That is the power by which NTK multiplies
#    the base, which leaves the first frequency as it is and divides the last one by the factor. Here all are divided by more than that:
#    it is "linear" with a larger factor, at each length of text. "linear" and "yarn" are right.
#
# No error and no warning. The checkpoints are small and random. This script compares frequencies with NumPy, and outputs with and without
# the setting. It exits with 1 if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    keras-hub==0.32.0 keras==3.15.1 jax==0.10.2 numpy==2.4.6 safetensors==0.8.0
cat > "$folder/run.py" <<'PYTHON'
import json
import sys
from importlib.metadata import version
from pathlib import Path

import keras
import keras_hub
import numpy as np
from safetensors.numpy import save_file

FOLDER = Path(sys.argv[1])
VOCABULARY, WIDTH, HEADS, TOKENS = 50, 64, 2, 96
SIZE = WIDTH // HEADS
print(f"keras-hub {version('keras-hub')}, keras {keras.__version__}, backend {keras.backend.backend()}")
RNG = np.random.default_rng(0)
TOKEN_IDS = RNG.integers(VOCABULARY, size=(1, TOKENS))
INPUTS = {"token_ids": TOKEN_IDS, "padding_mask": np.ones_like(TOKEN_IDS)}
described = []

WEIGHTS = {"model.embed_tokens.weight": (VOCABULARY, WIDTH), "lm_head.weight": (VOCABULARY, WIDTH), "model.norm.weight": (WIDTH,)}
for layer in ("model.layers.0.", "model.layers.1."):
    WEIGHTS |= {f"{layer}self_attn.{name}_proj.weight": (WIDTH, WIDTH) for name in "qkvo"}
    WEIGHTS |= {f"{layer}self_attn.{name}_proj.bias": (WIDTH,) for name in "qkv"}
    WEIGHTS |= {f"{layer}mlp.{name}_proj.weight": (WIDTH, WIDTH) for name in ("gate", "up", "down")}
    WEIGHTS |= {f"{layer}{name}_layernorm.weight": (WIDTH,) for name in ("input", "post_attention")}
WEIGHTS = {name: RNG.normal(size=shape, scale=0.3).astype(np.float32) for name, shape in WEIGHTS.items()}
CONFIG = {
    "vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": HEADS, "num_key_value_heads": HEADS,
    "intermediate_size": WIDTH, "tie_word_embeddings": False, "rms_norm_eps": 1e-6, "use_sliding_window": False, "sliding_window": None,
    "head_dim": SIZE, "max_position_embeddings": 128,
}  # fmt: skip


def output(model_type, settings):
    """Return the last hidden states of a checkpoint with these settings of its positions."""
    path = FOLDER / f"{model_type}-{len(list(FOLDER.iterdir()))}"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG | settings | {"model_type": model_type}))
    biases = model_type == "qwen2"
    save_file({name: value for name, value in WEIGHTS.items() if biases or "bias" not in name}, path / "model.safetensors")
    backbone = {"llama": "Llama3Backbone", "qwen2": "QwenBackbone", "mistral": "MistralBackbone"}[model_type]
    return np.asarray(getattr(keras_hub.models, backbone).from_preset(str(path)).predict(INPUTS, verbose=0))


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3["original_max_position_embeddings"] = 16
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
for model_type, scaling in (("llama", LLAMA3), ("qwen2", YARN), ("mistral", YARN)):
    plain = output(model_type, {"rope_theta": 10_000.0})
    written = {
        "rope_scaling": {"rope_theta": 10_000.0, "rope_scaling": scaling},
        "rope_parameters": {"rope_parameters": {"rope_theta": 10_000.0, **scaling}},
    }
    for name, settings in written.items():
        change = np.abs(output(model_type, settings) - plain).max()
        print(f"{model_type}, {scaling['rope_type']} as {name}: the output moves by {change:.2g}")
        described.append(change > 0.1 if (model_type, name) == ("llama", "rope_scaling") else change == 0)

sizes = {"vocabulary_size": VOCABULARY, "num_layers": 2, "num_query_heads": HEADS, "num_key_value_heads": HEADS}
sizes |= {"hidden_dim": WIDTH, "intermediate_dim": WIDTH}
models = [keras_hub.models.LlamaBackbone(**sizes, rope_position_scaling_factor=factor) for factor in (1.0, 4.0)]
weights = [RNG.normal(size=weight.shape, scale=0.3) for weight in models[0].get_weights()]
outputs = []
for model in models:
    model.set_weights(weights)
    outputs.append(np.asarray(model.predict(INPUTS, verbose=0)))
change = np.abs(outputs[1] - outputs[0]).max()
print(f"LlamaBackbone, rope_position_scaling_factor 1 and 4: the output moves by {change:.2g}")
described.append(change == 0)

FACTOR, BASE = 4.0, 10_000.0
plain = BASE ** -(np.arange(0, SIZE, 2) / SIZE)
expected = {"linear": plain / FACTOR, "dynamic": (BASE * FACTOR ** (SIZE / (SIZE - 2))) ** -(np.arange(0, SIZE, 2) / SIZE)}
x = np.zeros((1, 2, SIZE), np.float32)
x[..., : SIZE // 2] = 1  # each pair of features is (1, 0): the angle of the second token is the frequency
for name, frequencies in expected.items():
    y = np.asarray(keras_hub.layers.RotaryEmbedding(rope_type=name, scaling_factor=FACTOR)(x))[0, 1]
    divided = plain / np.arctan2(y[SIZE // 2 :], y[: SIZE // 2])
    right = plain / frequencies
    got, wanted = (f"{numbers[0]:.2f} and {numbers[-1]:.2f}" for numbers in (divided, right))
    print(f"{name}, factor 4: first and last frequency are divided by {got}; by {wanted} is right")
    described.append(np.allclose(divided, FACTOR if name == "linear" else FACTOR ** (SIZE / (SIZE - 2)), rtol=1e-3))
if not all(described):
    raise SystemExit(f"the behaviour has changed: {described}")
PYTHON
mkdir "$folder/checkpoints"
export KERAS_BACKEND=jax KERAS_HOME="$folder/keras" TF_CPP_MIN_LOG_LEVEL=3
"$folder/venv/bin/python" -W ignore "$folder/run.py" "$folder/checkpoints" 2> "$folder/log" || { cat "$folder/log"; exit 1; }
echo "as described above"
