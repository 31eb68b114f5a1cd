#!/usr/bin/env bash
# transformers 5.24.0: whether two families read a text from left to right depends on the kernel, and on padding beside it.
#
# 1. AIMv2's text encoder (Aimv2TextModel) is causal: it calls create_causal_mask. But without an attention_mask it skips the
#    call, and with one of ones create_causal_mask returns None for sdpa, whose module says is_causal=False. So under sdpa,
#    the default, the first token changes with the last one; under eager with a mask of ones it does not, and under sdpa it
#    does not if another row of the batch has padding. The same text gets other embeddings alone and in a padded batch.
# 2. PaliGemma (Gemma 1) without token_type_ids reads picture and prompt both ways under sdpa, from left to right under eager.
#
# Seen with transformers 5.24.0 and torch 2.13.0: change of the first token's output when the last token is exchanged:
#   AIMv2      eager no mask: moves    eager ones: 0    sdpa no mask: moves    sdpa ones: moves    sdpa ones, padded batch: 0
#   PaliGemma  eager: 0                sdpa: moves      (without token_type_ids)
# Exits non-zero if that changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet "torch==2.13.0" "transformers==5.24.0" "numpy==2.4.6"
cat > "$work/run.py" <<'PYTHON'
import warnings

import torch
from transformers import Aimv2TextConfig, Aimv2TextModel, PaliGemmaConfig, PaliGemmaForConditionalGeneration

warnings.simplefilter("ignore")
torch.set_grad_enabled(False)
SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}


def moved(run, ids, place):
    """Return how far the first token's output moves when the token at a place is exchanged."""
    other = ids.clone()
    other[0, place] += 1
    return float((run(ids) - run(other))[0, 0].abs().max())


torch.manual_seed(0)
aim = Aimv2TextModel(Aimv2TextConfig(**SIZES, vocab_size=128, eos_token_id=127)).eval()
one = torch.tensor([[5, 9, 33, 17, 28, 127]])
two = torch.cat([one, one])
ones, padded = torch.ones_like(one), torch.tensor([[1] * 6, [1] * 4 + [0] * 2])
seen = {}
for name, kernel, ids, mask in (
    ("eager, no mask", "eager", one, None),
    ("eager, ones", "eager", one, ones),
    ("sdpa, no mask", "sdpa", one, None),
    ("sdpa, ones", "sdpa", one, ones),
    ("sdpa, padded batch", "sdpa", two, padded),
):
    aim.set_attn_implementation(kernel)
    seen[f"AIMv2 {name}"] = moved(lambda x: aim(input_ids=x, attention_mask=mask).last_hidden_state, ids, 4)
text = SIZES | {"model_type": "gemma", "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 128}
picture = SIZES | {"model_type": "siglip_vision_model", "image_size": 16, "patch_size": 8, "projection_dim": 32}
config = PaliGemmaConfig(text_config=text, vision_config=picture, projection_dim=32, image_token_id=127)
pali = PaliGemmaForConditionalGeneration(config).eval()
ids, pixels = torch.tensor([[127] * 4 + [5, 6, 7, 8]]), torch.randn(1, 3, 16, 16)
for kernel in ("eager", "sdpa"):
    pali.set_attn_implementation(kernel)
    run = lambda x: pali(input_ids=x, pixel_values=pixels, attention_mask=torch.ones_like(x)).logits
    seen[f"PaliGemma {kernel}"] = moved(run, ids, 7)
for name, change in seen.items():
    print(f"{name}: {change:.6f}")
moves = {name for name, change in seen.items() if change > 1e-6}
assert moves == {"AIMv2 eager, no mask", "AIMv2 sdpa, no mask", "AIMv2 sdpa, ones", "PaliGemma sdpa"}, "this has changed"
PYTHON
HF_HUB_OFFLINE=1 "$work/venv/bin/python" "$work/run.py"
