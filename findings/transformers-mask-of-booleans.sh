#!/usr/bin/env bash
# transformers 5.24.0: a four-dimensional attention_mask of booleans hides keys under sdpa, and hides nothing under eager.
#
# attention_mask may have four dimensions (batch, 1, queries, keys): a mask of one's own, as packed documents need it. Under sdpa,
# the default, true means "visible", as in torch. To see the weights one opens the same model with attn_implementation="eager", and
# expects the same mask. But the eager functions add it to the scores, as 1 and 0: every key is visible, the future and the other
# documents too, and the keys that should be seen are e times as strong. No error and no warning. (A mask of two dimensions may be
# of booleans, integers or floats: all are the same.) The right mask for both is 0 and the lowest number.
#
# Change of the logits of the first token when the last token is exchanged, for a causal mask:
#   sdpa   booleans: 0        0 and the lowest number: 0
#   eager  booleans: moves    0 and the lowest number: 0
#
# Seen in Llama, BERT and GPT-2. This script exits with 1 if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.24.0 numpy==2.4.6
cd "$folder"
HF_HUB_OFFLINE=1 venv/bin/python - <<'PYTHON' 2>log || { cat log >&2; exit 1; }
import torch
import transformers

print(f"transformers {transformers.__version__}, torch {torch.__version__}")
torch.set_grad_enabled(False)
SIZES = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"intermediate_size": 48, "max_position_embeddings": 64}
ids, other = torch.arange(3, 9)[None], torch.tensor([[3, 4, 5, 6, 7, 20]])
visible = torch.ones(1, 1, 6, 6).tril().bool()
masks = {"booleans": visible, "0 and the lowest number": torch.zeros(1, 1, 6, 6).masked_fill(~visible, torch.finfo().min)}
changed = {}
for name in ("LlamaForCausalLM", "BertLMHeadModel", "GPT2LMHeadModel"):
    for kernel in ("sdpa", "eager"):
        torch.manual_seed(0)
        model_class = getattr(transformers, name)
        model = model_class._from_config(model_class.config_class(**SIZES), attn_implementation=kernel).eval()
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3)
        for kind, mask in masks.items():
            first = [model(text, attention_mask=mask).logits[0, 0] for text in (ids, other)]
            change = float((first[0] - first[1]).abs().max())
            changed[name, kernel, kind] = change
            print(f"{name}, {kernel}, {kind}: the first token's logits move by {change:.2f}")
moves = {key for key, change in changed.items() if change > 0.05}
if moves != {key for key in changed if key[1:] == ("eager", "booleans")} or max(
    change for key, change in changed.items() if key not in moves
) > 1e-6:
    raise SystemExit("the behaviour has changed")
PYTHON
echo "as described above"
