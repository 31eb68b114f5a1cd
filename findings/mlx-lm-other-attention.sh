#!/usr/bin/env bash
# mlx-lm 0.32.2 (mlx 0.32.4): checkpoints with a sliding window are computed without it, and a rotary base may be another one.
#
# mlx-lm opens the folders of transformers as they are. One expects the same network, or that what is not known is refused. Two
# kinds of settings are passed over, without an error or a warning:
#
#   sliding_window     of Mistral, Mixtral, Qwen2, Qwen3, StarCoder2, Gemma 2 and Phi-3: each token sees all tokens before it
#   rope_parameters    where transformers 5 writes the base and the scaling of the rotary positions. Llama and Qwen2 have their
#                      own default for the base then (10,000 and 1,000,000), and no scaling. With rope_theta and rope_scaling, as
#                      transformers 4 wrote them, they are right. (Granite, which needs rope_theta, refuses such a folder.)
#
# For each, a small random checkpoint is opened. Its logits for 24 tokens are compared with those of transformers 5.24.0 for the
# same weights, with the setting and with it taken away. This script exits with 1 if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.24.0 mlx-lm==0.32.2 \
    "mlx[cpu]==0.32.4" numpy==2.4.6
cd "$folder"
venv/bin/python -W ignore - <<'PYTHON' 2>log || { cat log >&2; exit 1; }
import json
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx
import numpy as np
import torch
from mlx_lm.utils import load_model
from transformers import AutoConfig, AutoModelForCausalLM

mx.set_default_device(mx.cpu)
print(", ".join(f"{name} {version(name)}" for name in ("mlx-lm", "mlx", "transformers", "torch")))
SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64,
}
IDS = torch.arange(3, 27)[None]
ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
SCALED = ROPE | {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SCALED["original_max_position_embeddings"] = 16
ALL_LAYERS = {"use_sliding_window": True, "max_window_layers": 0}
SMALL = {"head_dim": 8, "query_pre_attn_scalar": 8}


def model_of(kind, settings):
    """Return a model of the same random weights each time."""
    config = AutoConfig.for_model(kind, **SIZES, **settings)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval().float()
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=random) * 0.4)
    return model


def compared(kind, settings, without, old_names):
    """Return how far mlx-lm's logits are from those of the setting, and from those without it."""
    model, other = (model_of(kind, {"rope_parameters": ROPE, "pad_token_id": 0} | each) for each in (settings, without))
    model.save_pretrained(kind)
    if old_names:  # as transformers 4 wrote it
        path = Path(kind) / "config.json"
        config = json.loads(path.read_text())
        rope = config.pop("rope_parameters")
        config["rope_theta"] = rope.pop("rope_theta")
        config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
        path.write_text(json.dumps(config))
    with torch.no_grad():
        right, plain = (each(IDS).logits.numpy() for each in (model, other))
    opened, _ = load_model(Path(kind))
    logits = np.array(opened(mx.array(IDS.numpy())).astype(mx.float32))
    return [float(np.abs(logits - each).max()) for each in (right, plain)]


WINDOW, TWO = {"sliding_window": 6}, {"num_local_experts": 2}
NO_WINDOW = {"sliding_window": None}
OTHER_BASE = {"rope_parameters": ROPE | {"rope_theta": 500.0}}
cases = [  # what, family, its setting, without it, whether config.json has the names of transformers 4, whether it is lost
    ("window of 6", "mistral", WINDOW, NO_WINDOW, True, True),
    ("window of 6", "mixtral", WINDOW | TWO, NO_WINDOW | TWO, True, True),
    ("window of 6", "qwen2", WINDOW | ALL_LAYERS, {}, True, True),
    ("window of 6", "qwen3", WINDOW | ALL_LAYERS | {"head_dim": 8}, {"head_dim": 8}, True, True),
    ("window of 6", "starcoder2", WINDOW, NO_WINDOW, True, True),
    ("window of 6", "gemma2", WINDOW | SMALL, {"sliding_window": 64} | SMALL, True, True),
    ("window of 6", "phi3", WINDOW, NO_WINDOW, True, True),
    ("base 500, rope_parameters", "llama", OTHER_BASE, {}, False, True),
    ("base 500, rope_theta", "llama", OTHER_BASE, {}, True, False),
    ("base 10,000, rope_parameters", "qwen2", {}, {"rope_parameters": ROPE | {"rope_theta": 1e6}}, False, True),
    ("scaling llama3, rope_parameters", "llama", {"rope_parameters": SCALED}, {}, False, True),
    ("scaling llama3, rope_scaling", "llama", {"rope_parameters": SCALED}, {}, True, False),
]
changed = False
for what, kind, settings, without, old_names, lost in cases:
    right, plain = compared(kind, settings, without, old_names)
    print(f"{kind}, {what}: from transformers {right:.0e}, without the setting {plain:.0e}")
    changed |= (plain if lost else right) > 0.02 or (right if lost else plain) < 1
if changed:
    raise SystemExit("the behaviour has changed")
PYTHON
echo "as described above"
