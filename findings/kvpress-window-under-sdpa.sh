#!/usr/bin/env bash
# kvpress 0.5.5: which keys SnapKVPress and TOVAPress keep of a model with a sliding window depends on the attention kernel.
#
# Both rate the keys of a prompt by the weights that the last queries give them. Under eager they take the model's own weights.
# Under sdpa, the default, they compute them again, and one expects the same. But they compute causal attention without the window:
# keys that no query of the window can see get a rating, take a share of the softmax, and are kept instead of others. Mistral is in
# the list of tested models, and Mistral 7B v0.1 has a window. No error and no warning. Without a window both kernels keep the same.
#
# The model is small and random, the prompt has 20 tokens, the window 6, half of the keys are to be kept. This script exits with 1
# if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check kvpress==0.5.5 transformers==5.2.0 torch==2.13.0
cd "$folder"
HF_HUB_OFFLINE=1 venv/bin/python - <<'PYTHON' 2>log || { cat log >&2; exit 1; }
from importlib.metadata import version

import torch
import transformers
from kvpress import SnapKVPress, TOVAPress

print(f"kvpress {version('kvpress')}, transformers {transformers.__version__}")
torch.set_grad_enabled(False)
SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
SIZES |= {"num_key_value_heads": 2, "max_position_embeddings": 64}
ids = torch.arange(3, 23)[None]


def keys_of(window, kernel, press=None):
    """Return the cache's keys, (heads, keys, size), with the press or without one."""
    torch.manual_seed(0)
    configuration = transformers.MistralConfig(**SIZES, sliding_window=window)
    model = transformers.MistralForCausalLM._from_config(configuration, attn_implementation=kernel).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.normal_(0, 0.3)
    cache = transformers.DynamicCache()
    if press is None:
        model(ids, past_key_values=cache)
    else:
        with press(model):
            model(ids, past_key_values=cache)
    return cache.layers[0].keys[0]


def kept(window, kernel, press):
    """Return the places of the kept keys in the prompt, of the first head."""
    every, some = keys_of(window, kernel)[0], keys_of(window, kernel, press)[0]
    return sorted(torch.cdist(some, every).argmin(1).tolist())


same = {}
for press in (SnapKVPress(0.5, window_size=4), TOVAPress(0.5)):
    for window in (None, 6):
        places = {kernel: kept(window, kernel, press) for kernel in ("eager", "sdpa")}
        same[type(press).__name__, window] = places["eager"] == places["sdpa"]
        for kernel, numbers in places.items():
            print(f"{type(press).__name__}, window {window}, {kernel}: keeps {numbers}")
if same != {key: key[1] is None for key in same}:
    raise SystemExit("the behaviour has changed")
PYTHON
echo "as described above"
