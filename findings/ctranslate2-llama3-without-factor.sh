#!/usr/bin/env bash
# CTranslate2 4.8.5: a converted Llama 3.1 or 3.2 has positions without their scaling, and other settings of attention are lost too.
#
# The converter refuses what it cannot do: YaRN, for example. Of Llama 3's scaling ("rope_type": "llama3") it writes the kind and two of
# the four numbers, but not factor and original_max_position_embeddings. The converted model computes as if nothing were scaled, without
# an error or a warning. The same holds for three settings that it does not read: scale_attn_by_inverse_layer_idx of
# GPT-2, attn_logit_softcapping of Gemma 2 (its default is 50), and Falcon's rope_theta where transformers 5 has it.
#
# For each, a small random checkpoint is converted. Its logits are compared with those of transformers 5.24.0 for the same
# weights, with the setting and with it taken away. This script exits with 1 if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    ctranslate2==4.8.5 torch==2.13.0 transformers==5.24.0 numpy==2.4.6
cd "$folder"
HF_HUB_OFFLINE=1 venv/bin/python - <<'PYTHON' 2>log || { cat log >&2; exit 1; }
import ctranslate2
import numpy as np
import torch
import transformers
from ctranslate2.converters import TransformersConverter
from tokenizers import Tokenizer, models

print(f"ctranslate2 {ctranslate2.__version__}, transformers {transformers.__version__}")
torch.set_grad_enabled(False)
WORDS, IDS = 64, list(range(4, 52))
SIZES = {"vocab_size": WORDS, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 32}
GEMMA = SIZES | {"head_dim": 16, "num_key_value_heads": 2, "sliding_window": 999, "final_logit_softcapping": None}
FALCON = {"vocab_size": WORDS, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "bias": False}


def rope(theta):
    return {"rope_type": "default", "rope_theta": theta}


# name → class, settings, the setting, what it is when it is taken away
CASES = {
    "Llama, no scaling": ("LlamaForCausalLM", SIZES, {"rope_parameters": rope(5e5)}, {"rope_parameters": rope(5e5)}),
    "Llama, llama3": ("LlamaForCausalLM", SIZES, {"rope_parameters": LLAMA3}, {"rope_parameters": rope(5e5)}),
    "GPT-2, scale_attn_by_inverse_layer_idx": (
        "GPT2LMHeadModel", {"vocab_size": WORDS, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64},
        {"scale_attn_by_inverse_layer_idx": True}, {"scale_attn_by_inverse_layer_idx": False},
    ),
    "Gemma 2, attn_logit_softcapping": (
        "Gemma2ForCausalLM", GEMMA, {"attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 16},
        {"attn_logit_softcapping": None, "query_pre_attn_scalar": 16},
    ),
    "Falcon, rope_theta": ("FalconForCausalLM", FALCON, {"rope_parameters": rope(1e6)}, {"rope_parameters": rope(1e4)}),
}


def logits(path, name, settings):
    model_class = getattr(transformers, name)
    config = model_class.config_class(**settings)
    model = model_class.from_pretrained(path, config=config, attn_implementation="eager", dtype=torch.float32).eval()
    return model(torch.tensor([IDS])).logits[0].numpy()


def converted(path):
    words = Tokenizer(models.WordLevel({f"t{number}": number for number in range(WORDS)}, unk_token="t3"))
    special = {"bos_token": "t1", "eos_token": "t2", "unk_token": "t3", "pad_token": "t0"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, **special).save_pretrained(path)
    TransformersConverter(path).convert(f"{path}-ct2")
    generator = ctranslate2.Generator(f"{path}-ct2", device="cpu", intra_threads=1)
    return np.array(generator.forward_batch([[f"t{number}" for number in IDS]]))[0, :, :WORDS]


as_described = []
for number, (name, (model_class, settings, chosen, without)) in enumerate(CASES.items()):
    torch.manual_seed(0)
    model = getattr(transformers, model_class)(getattr(transformers, model_class).config_class(**settings, **chosen))
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.normal_(0, 0.4)
    model.save_pretrained(str(number))
    theirs = converted(str(number))
    by_setting = np.abs(theirs - logits(str(number), model_class, settings | chosen)).max()
    by_none = np.abs(theirs - logits(str(number), model_class, settings | without)).max()
    print(f"{name}: from transformers {by_setting:.1e} with the setting, {by_none:.1e} without it")
    as_described.append(by_none < 1e-2 and (by_setting > 0.1 or number == 0))
if not all(as_described):
    raise SystemExit("the behaviour has changed")
PYTHON
echo "as described above"
