#!/usr/bin/env bash
# MPT's settings of ALiBi change nothing in transformers.
#
# MPT's config.json says in attn_config whether ALiBi is used ("alibi"), how steep it is ("alibi_bias_max"), and whether a prefix
# is read in both directions ("prefix_lm"). transformers 5.24.0 has these fields in MptAttentionConfig and documents them
# as one would expect; its network reads none of them. A checkpoint with alibi_bias_max 16, or without ALiBi, is computed with
# ALiBi and 8, without an error or a warning: attention falls off with distance in the wrong way.
#
# This script computes one network's first attention under five configurations, and by the definition of ALiBi (Press et al.
# 2022; slopes of llm-foundry: 2 to the power of -alibi_bias_max * head / heads). It exits with 1 if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.24.0
"$folder/venv/bin/python" - <<'PYTHON'
import torch
import transformers
from transformers import MptConfig, MptModel

print(f"transformers {transformers.__version__}, torch {torch.__version__}")
HEADS, WIDTH, IDS = 4, 32, torch.arange(6)[None]


def network(**attention):
    torch.manual_seed(0)
    config = MptConfig(d_model=WIDTH, n_heads=HEADS, n_layers=1, vocab_size=16, max_seq_len=16, attn_config=attention)
    return MptModel(config).eval()


def weights(**attention):
    with torch.no_grad():
        return network(**attention)(IDS, output_attentions=True).attentions[0][0]  # (heads, n, n)


def by_definition(steepest):
    """softmax(q k / sqrt(d) + slope * (key - query)) over the keys up to the query; no bias for `steepest` None."""
    model = network()
    with torch.no_grad():
        block = model.blocks[0]
        q, k, _ = block.attn.Wqkv(block.norm_1(model.wte(IDS)))[0].chunk(3, dim=-1)
        q, k = (x.view(-1, HEADS, WIDTH // HEADS).transpose(0, 1) for x in (q, k))
        scores = q @ k.mT / (WIDTH / HEADS) ** 0.5
        places = torch.arange(IDS.shape[1])
        if steepest is not None:
            slopes = 2.0 ** (-steepest * torch.arange(1, HEADS + 1) / HEADS)
            scores = scores + slopes[:, None, None] * (places[None] - places[:, None])
        return scores.masked_fill(places[None] > places[:, None], float("-inf")).softmax(-1)


usual = weights()
agrees = float((usual - by_definition(8)).abs().max()) < 1e-6
print(f"default settings: the weights are those of ALiBi with alibi_bias_max 8: {agrees}")
same = []
for settings, right in (({"alibi_bias_max": 16}, 16), ({"alibi": False}, None)):
    theirs = weights(**settings)
    same.append(torch.equal(theirs, usual))
    distance = float((theirs - by_definition(right)).abs().max())
    print(f"{settings}: the same weights to the bit: {same[-1]}; up to {distance:.3f} from what the setting says")
for settings in ({"prefix_lm": True}, {"attn_type": "multiquery_attention"}):
    same.append(torch.equal(weights(**settings), usual))
    print(f"{settings}: the same weights to the bit: {same[-1]}")
if not (agrees and all(same)):
    raise SystemExit("the behaviour has changed")
PYTHON
echo "as described above"
