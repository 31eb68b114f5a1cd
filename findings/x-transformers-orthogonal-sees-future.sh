#!/usr/bin/env bash
# x-transformers 2.31.10: three options let a causal decoder see its future.
#
# attn_orthog_projected_values and attn_orthog_projected_values_per_head take away from each token's output the part along its own
# value, orthog_residual the part along its residual. One expects that this is done for each token, or head, by itself: a Decoder is
# causal. orthog_project flattens all axes but the batch's ("b *") before it projects: one number for the whole text, into which
# every token goes, the last one too. The attention's own mask is right; but logits of the first token change with the last token,
# and a prefix has other logits than the same tokens in a longer text. No error and no warning.
#
# The models are small and random. This script prints the change of logits, and exits with 1 if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 x-transformers==2.31.10 numpy==2.4.6
cd "$folder"
venv/bin/python - <<'PYTHON' 2>log || { cat log >&2; exit 1; }
from importlib.metadata import version

import torch
from x_transformers import Decoder, TransformerWrapper

print(f"x-transformers {version('x-transformers')}, torch {torch.__version__}")
torch.set_grad_enabled(False)
torch.manual_seed(0)
ids = torch.randint(0, 20, (1, 8))
other = ids.clone()
other[0, -1] = (other[0, -1] + 1) % 20
names = ["attn_value_rmsnorm", "gate_residual", "attn_orthog_projected_values", "attn_orthog_projected_values_per_head"]
seen = {}
for name in [*names, "orthog_residual"]:
    torch.manual_seed(0)
    layers = Decoder(dim=32, depth=2, heads=4, attn_dim_head=8, **{name: True})
    model = TransformerWrapper(num_tokens=20, max_seq_len=32, attn_layers=layers).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.normal_(0, 0.3)
    moved = float((model(ids) - model(other))[0, 0].abs().max())  # of the first token, when the last one is exchanged
    prefix = float((model(ids[:, :4]) - model(ids)[:, :4]).abs().max())
    seen[name] = (moved > 1e-3, prefix > 1e-3)
    print(f"{name}: the first token's logits move by {moved:.0e}, those of a prefix are {prefix:.0e} apart")
if list(seen.values()) != [(False, False)] * 2 + [(True, True)] * 3:
    raise SystemExit("the behaviour has changed")
PYTHON
echo "as described above"
