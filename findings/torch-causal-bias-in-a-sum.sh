#!/usr/bin/env bash
# torch 2.13.0: a mask of torch.nn.attention.bias, added to scores, adds what the memory held, and no mask.
#
# causal_upper_left(4, 4) and causal_lower_right(4, 4) return a CausalBias, "a bias representing causal attention patterns", made for
# scaled_dot_product_attention. It is a tensor of float32, and prints as a triangle of booleans. To see the weights one writes
# softmax(scores + bias), and expects the same mask, or a refusal.
#
# There is neither. The tensor's own numbers were never set, and its shape is (variant, queries, keys): (1, 4, 4) for upper left,
# (2, 4, 4) for lower right, as the first number is the variant's. So the sum fits scores of (batch, heads, 4, 4) whenever there are as
# many heads, or the variant is 1. No key of the future gets -inf: most often the numbers are 0, and each query sees all keys.
# The result goes on through softmax, products and .item(); only printing it fails, as it is a CausalBias without a variant.
#
# This script shows both, and exits with 1 if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import torch
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.nn.functional import scaled_dot_product_attention as attention

print(f"torch {torch.__version__}")
torch.manual_seed(0)
q, k = torch.randn(2, 1, 2, 4, 8)
values = torch.eye(4).expand(1, 2, 4, 4)  # the output is the weights
future = torch.ones(4, 4, dtype=torch.bool).triu(1)
described = []
for make in (causal_upper_left, causal_lower_right):
    bias = make(4, 4)
    weights = attention(q, k, values, attn_mask=bias)
    total = q @ k.mT + bias
    torch.softmax(total, -1).sum().item()  # no error here
    hidden = torch.tensor(total.tolist())[..., future].isneginf()
    print(f"{make.__name__}(4, 4): shape {tuple(bias.shape)}, prints as {str(bias)[7:36]}...")
    print(f"  in scaled_dot_product_attention: {(weights[..., future] == 0).float().mean():.0%} of the future is hidden")
    print(f"  added to scores: {hidden.float().mean():.0%} of the future is hidden")
    try:
        str(total)
        prints = True
    except AttributeError as error:
        print(f"  printing the sum: {error}")
        prints = False
    described += [bool((weights[..., future] == 0).all()), not hidden.any(), not prints]
    described += [bias.shape == (int(bias.variant), 4, 4), bias.dtype == torch.float32, "True" in str(bias)]
if not all(described):
    raise SystemExit("the behaviour has changed")
PYTHON
echo "as described: added to scores, the causal bias hides nothing"
