#!/usr/bin/env bash
# transformers 5.24.0: Falcon with ALiBi (falcon-rw-1b, falcon-rw-7b) has other attention where one asks to see it.
#
# output_attentions=True makes FalconAttention leave the fused kernel for its eager code. One expects the weights that the fused
# kernel used. But the model has put ALiBi into the mask for every kernel, and the eager code adds it to the scores as well:
# softmax((Q K + 2 ALiBi) / sqrt(d)). The weights, and the logits beside them, are those of another network. Without
# output_attentions the same call with attn_implementation="sdpa", the default, adds ALiBi once. No error and no warning.
# (A difference of the two kernels was mended in 2024, transformers issue 29946; this one is another.)
#
# This script computes the weights of the first layer by the definition, with ALiBi once and twice, and the logits three ways.
# It exits with 1 if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.24.0
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PYTHON'
import torch
import transformers
from transformers import FalconConfig, FalconForCausalLM

print(f"transformers {transformers.__version__}, torch {torch.__version__}")
torch.set_grad_enabled(False)
HEADS, SIZE, IDS = 4, 8, torch.arange(6)[None]
config = FalconConfig(
    vocab_size=16, hidden_size=HEADS * SIZE, num_hidden_layers=1, num_attention_heads=HEADS,
    alibi=True, multi_query=False, parallel_attn=False, bias=True, new_decoder_architecture=False,
)  # as falcon-rw-1b, but small


def network(kernel):
    torch.manual_seed(0)
    model = FalconForCausalLM._from_config(config, attn_implementation=kernel).eval()
    for parameter in model.parameters():
        parameter.normal_(0, 0.5)
    return model


model = network("sdpa")
block, n = model.transformer.h[0], IDS.shape[1]
fused = block.self_attention.query_key_value(block.input_layernorm(model.transformer.word_embeddings(IDS)))
q, k, _ = fused[0].view(n, HEADS, 3, SIZE).permute(2, 1, 0, 3)
slopes = 2.0 ** (-8 * torch.arange(1, HEADS + 1) / HEADS)  # Press et al. 2022
alibi, future = slopes[:, None, None] * torch.arange(n), torch.ones(n, n).triu(1).bool()
shown = model(IDS, output_attentions=True).attentions[0][0]
distance = {}
for times in (1, 2):
    right = ((q @ k.mT + times * alibi) / SIZE**0.5).masked_fill(future, float("-inf")).softmax(-1)
    distance[times] = float((shown - right).abs().max())
    print(f"output_attentions against the definition with ALiBi {times} x: {distance[times]:.1e}")
usual = model(IDS).logits
asked = float((model(IDS, output_attentions=True).logits - usual).abs().max())
eager = float((network("eager")(IDS).logits - usual).abs().max())
print(f"logits of sdpa with output_attentions, against those without: {asked:.3f}")
print(f"logits of eager, against those of sdpa: {eager:.3f}")
if not (distance[2] < 1e-6 < 1e-3 < distance[1] and asked > 1e-2 and eager > 1e-2):
    raise SystemExit("the behaviour has changed")
PYTHON
echo "as described above"
