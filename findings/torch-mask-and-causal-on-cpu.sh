#!/usr/bin/env bash
# torch 2.13.0
#
# The documentation of scaled_dot_product_attention says that an error is thrown if both attn_mask and is_causal are set.
#
# On a CPU it is thrown only where the call falls to the "math" kernel. The kernel that takes most calls applies both, in
# silence: a key is visible if the mask and the causal order allow it. So the same call gives numbers for (1, heads, n, d) and
# an error for (heads, n, d), and code that was tried with dropout 0 fails at the first step of training with dropout.
#
# This script shows each, and exits with 1 if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import re

import torch
from torch.nn.functional import scaled_dot_product_attention as attention

print(f"torch {torch.__version__}")
text = " ".join(attention.__doc__.split())
print("documentation:", re.search(r"[^.]*both attn_mask and is_causal[^.]*\.", text)[0].strip())

torch.manual_seed(0)
q, k, v = torch.randn(3, 1, 2, 4, 8)
mask = torch.tensor([True, False, True, True]).expand(4, 4)  # nobody sees the second key
both = mask & torch.ones(4, 4, dtype=torch.bool).tril()


def tried(*arrays, mask=mask, **settings):
    try:
        return attention(*arrays, attn_mask=mask, is_causal=True, **settings)
    except RuntimeError as error:
        return str(error).splitlines()[0]


output = tried(q, k, v)
right = attention(q, k, v, attn_mask=both)
print(f"(1, heads, n, d): no error; equal to the two masks joined: {torch.allclose(output, right, atol=1e-6)}")
refused = {
    "(heads, n, d)": tried(q[0], k[0], v[0]),
    "dropout 0.1": tried(q, k, v, dropout_p=0.1),
    "a bias that learns": tried(q, k, v, mask=torch.zeros(4, 4, requires_grad=True)),
}
for case, message in refused.items():
    print(f"{case}: {message if isinstance(message, str) else 'no error'}")
known = all(isinstance(message, str) and "is_causal=True" in message for message in refused.values())
if not (torch.is_tensor(output) and torch.allclose(output, right, atol=1e-6) and known):
    raise SystemExit("the behaviour has changed")
PYTHON
echo "as described: on a CPU the error depends on the shape, the dropout and the gradient"
