#!/usr/bin/env bash
# tsai 1.0.1: TransformerRNNPlus, TransformerLSTMPlus and TransformerGRUPlus attend across the batch, not along time.
#
# They put torch's TransformerEncoderLayer before a recurrent network, and time steps should look at each other. The layer is made with
# batch_first=True, and the model transposes (batch, time, features) to (time, batch, features) before it calls it. So the layer takes the
# time steps for texts, and the series of a batch for the tokens of each. One expects that what the model says of a series is the same
# whatever else stands in its batch, in eval mode. It is not: evaluation in batches of another size, or in another choice
# of series, gives other numbers; alone, a series attends to nothing but itself, and no time step sees another one in that layer.
# There is no error and no warning. PatchTST of the same package attends along time.
#
# This script compares a series alone with the same one in a batch, and exits with 1 if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 tsai==1.0.1
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import torch
import tsai
from tsai.models.PatchTST import PatchTST
from tsai.models.TransformerRNNPlus import TransformerGRUPlus, TransformerLSTMPlus, TransformerRNNPlus

print(f"tsai {tsai.__version__}, torch {torch.__version__}")
SERIES, CHANNELS, STEPS = 4, 3, 24
x = torch.randn(SERIES, CHANNELS, STEPS, generator=torch.Generator().manual_seed(0))
cases = {
    PatchTST: (dict(d_model=16, n_heads=4, n_layers=1, patch_len=4, stride=4, pred_dim=2), False),
    TransformerRNNPlus: (dict(d_model=16, nhead=4), True),
    TransformerLSTMPlus: (dict(d_model=16, nhead=4), True),
    TransformerGRUPlus: (dict(d_model=16, nhead=4), True),
}
changed = []
for kind, (options, differs) in cases.items():
    torch.manual_seed(0)
    model = kind(c_in=CHANNELS, c_out=2, seq_len=STEPS, **options).eval()
    with torch.no_grad():
        alone, beside = model(x[:1])[0], model(x)[0]
    share = ((alone - beside).norm() / alone.norm()).item()
    print(f"{kind.__name__}: the output of a series in a batch of {SERIES} differs by {share:.1%} of its size")
    changed += [kind.__name__] * ((share > 1e-3) != differs)

model = TransformerRNNPlus(c_in=CHANNELS, c_out=2, seq_len=STEPS, d_model=16, nhead=4).eval()
layer, other = model.backbone.enc_layers[0], x.clone()
other[:, :, 0] += 1.0  # the first step of every series
kept = []
layer.register_forward_hook(lambda _, __, output: kept.append(output))
with torch.no_grad():
    model(x), model(other)
moved = (kept[0] - kept[1]).abs().amax((1, 2)) > 1e-6  # (time,)
print(f"of {STEPS} time steps, {int(moved.sum())} moved behind the attention when the first one was changed")
changed += ["steps that see each other"] * (moved.nonzero().flatten().tolist() != [0])
if changed:
    raise SystemExit(f"the behaviour has changed: {', '.join(changed)}")
PYTHON
echo "as described above"
