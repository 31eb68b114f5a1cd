#!/usr/bin/env bash
# TransformerLens 4.3.0: enable_compatibility_mode() changes what gpt-oss computes.
#
# Its default "folds" the biases of the values into the bias of the output: "because attention patterns add up to 1, the value
# biases always have a constant effect on a head's output". One expects the same logits, as for Qwen 2, which has such biases too.
# But gpt-oss has a learned sink in each head's softmax, which takes a share of each row and has no value: its patterns add up to
# less than 1, often to much less. So each query gets the whole bias where it should get a share, and patterns of later layers
# and logits are those of another network. No error and no warning. With fold_value_biases=False they are right.
#
# The checkpoints are small and random, with biases and sinks of the size 0.2; logits are compared with those of transformers 5.24.0.
# This script exits with 1 if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    transformer-lens==4.3.0 transformers==5.24.0 torch==2.13.0 tokenizers==0.23.3
cd "$folder"
HF_HUB_OFFLINE=1 venv/bin/python - <<'PYTHON' 2>log || { cat log >&2; exit 1; }
import copy
from importlib.metadata import version

import torch
import transformers
from tokenizers import Tokenizer, models
from transformer_lens.model_bridge import TransformerBridge

print(f"transformer-lens {version('transformer-lens')}, transformers {transformers.__version__}")
torch.set_grad_enabled(False)
words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(64)}, unk_token="w0"))
special = {"bos_token": "w1", "eos_token": "w2", "pad_token": "w0", "unk_token": "w0"}
transformers.PreTrainedTokenizerFast(tokenizer_object=words, **special).save_pretrained("words")
tokenizer = transformers.AutoTokenizer.from_pretrained("words")
SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"num_key_value_heads": 2, "max_position_embeddings": 64}
EXPERTS = {"head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 32}
ids = torch.arange(3, 15)[None]
differences = {}
for name, further in (("Qwen2ForCausalLM", {}), ("GptOssForCausalLM", EXPERTS)):
    model_class = getattr(transformers, name)
    torch.manual_seed(0)
    model = model_class._from_config(model_class.config_class(**SIZES, **further), attn_implementation="eager").eval()
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter) * (0.3 if parameter.dim() > 1 else 0.2))
    model.config.architectures = [name]
    model.config.save_pretrained(name)
    output = model(ids, output_attentions=True)
    sums = output.attentions[0].sum(-1)
    print(f"{name}: rows of the first layer add up to {float(sums.min()):.2f} to {float(sums.max()):.2f}")
    for label, settings in (("default", {}), ("fold_value_biases=False", {"fold_value_biases": False})):
        bridge = TransformerBridge.boot_transformers(name, hf_model=copy.deepcopy(model), tokenizer=tokenizer)
        bridge.enable_compatibility_mode(disable_warnings=True, **settings)
        logits, cache = bridge.run_with_cache(ids)
        moved = float((logits.log_softmax(-1) - output.logits.log_softmax(-1)).abs().max())
        patterns = float((cache["blocks.1.attn.hook_pattern"] - output.attentions[1]).abs().max())
        differences[name, label] = moved, patterns
        print(f"{name}, {label}: log probabilities differ by up to {moved:.1e}, patterns of the second layer by {patterns:.1e}")
wrong = differences.pop(("GptOssForCausalLM", "default"))
if min(wrong) < 0.01 or max(map(max, differences.values())) > 1e-4:
    raise SystemExit("the behaviour has changed")
PYTHON
echo "as described above"
