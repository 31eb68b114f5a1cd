#!/usr/bin/env bash
# torch 2.13.0: what nn.TransformerEncoder sees depends on whether gradients are recorded.
#
# In eval mode and under torch.no_grad() its layers take a "fast path", of which one expects the same numbers. Two differ:
#
# 1. is_causal=True without a mask ("if specified, applies a causal mask", says its documentation). With gradients this is refused:
#    "Need attn_mask if specifying the is_causal hint". Under no_grad it is accepted, and nothing is hidden: tokens see their future.
# 2. A causal mask with padding on the left, as one pads texts for generation. The padding's own rows see no key. With gradients
#    they are 0, and every real token has its numbers. Under no_grad they are NaN, and from the second layer on all tokens of the
#    text are, although they see no padding: a hidden key has weight 0, and 0 times NaN is NaN. So a model that trains well
#    writes NaN when it is evaluated.
#
# This script runs one module both ways, and exits with 1 if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cd "$folder"
venv/bin/python - <<'PYTHON' 2>log || { cat log >&2; exit 1; }
import torch
from torch import nn

print(f"torch {torch.__version__}")
torch.manual_seed(0)
encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
x = torch.randn(1, 4, 8)
changed = x.clone()
changed[0, -1] += 1
future = torch.ones(4, 4).triu(1).bool()  # true is hidden
padding = torch.tensor([[True, True, False, False]])
cases = {
    "is_causal=True alone": {"is_causal": True},
    "a causal mask": {"mask": future, "is_causal": True},
    "a causal mask, padding on the left": {"mask": future, "is_causal": True, "src_key_padding_mask": padding},
}


def described(**settings):
    try:
        output, moved = encoder(x, **settings)[0], encoder(changed, **settings)[0]
    except RuntimeError as error:
        return "refused" if "Need attn_mask" in str(error) else "another error"
    if output[2:].isnan().all():
        return "NaN at every real token"
    return "the future is seen" if float((output - moved)[2].abs().max()) > 1e-3 else "causal"


seen = {}
for name, settings in cases.items():
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients):
            seen[name, gradients] = described(**settings)
        print(f"{name}, {'with gradients' if gradients else 'under no_grad'}: {seen[name, gradients]}")
right = ["refused", "the future is seen", "causal", "causal", "causal", "NaN at every real token"]
if list(seen.values()) != right:
    raise SystemExit("the behaviour has changed")
PYTHON
echo "as described above"
