#!/usr/bin/env bash
# x-transformers 2.31.10: with two of its options a model generates something else with the cache of keys than without it.
#
# generate() keeps the keys and values of earlier tokens, unless cache_kv=False. One expects the same logits either way, and a model
# says with can_cache_kv whether that holds: it is False for attn_selective. It is True for these, which need more than keys:
#
#   attn_data_dependent_alibi   a bias from the sum of gates since the query: for a single new token it has nothing to sum
#   shift_tokens=1              half of the features come from the token before, which a single new token does not have
#
# So a model that was trained with one of these is another one when it writes. No error and no warning.
#
# Each model is small and random. This script prints how far the logits of five tokens are apart, and whether greedy texts agree;
# it exits with 1 if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 x-transformers==2.31.10 numpy==2.4.6
cd "$folder"
venv/bin/python - <<'PYTHON' 2>log || { cat log >&2; exit 1; }
from importlib.metadata import version

import torch
from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

print(f"x-transformers {version('x-transformers')}, torch {torch.__version__}")
torch.set_grad_enabled(False)
torch.manual_seed(0)
ids = torch.randint(0, 20, (1, 10))
gates = {"attn_data_dependent_alibi": True}
cases = [{}, {"attn_head_learned_sink": True}, gates, gates | {"attn_data_dependent_alibi_per_row": True}]
cases += [{"shift_tokens": 1}, {"attn_selective": True}]
seen = []
for options in cases:
    torch.manual_seed(0)
    layers = Decoder(dim=32, depth=2, heads=4, attn_dim_head=32, **options)
    model = TransformerWrapper(num_tokens=20, max_seq_len=32, attn_layers=layers).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.normal_(0, 0.3)
    whole = model(ids)
    _, cache = model(ids[:, :5], return_intermediates=True)
    apart = 0.0
    for length in range(6, 11):  # a token more each time
        logits, cache = model(ids[:, :length], cache=cache, return_intermediates=True)
        apart = max(apart, float((logits[:, -1] - whole[:, length - 1]).abs().max()))
    writer = AutoregressiveWrapper(model)
    texts = [writer.generate(ids[:, :5], 8, temperature=0.0, cache_kv=cached) for cached in (True, False)]
    seen.append((model.can_cache_kv, apart > 0.05))
    same = "same text" if torch.equal(*texts) else "another text"
    print(f"{options}: can_cache_kv {model.can_cache_kv}, logits {apart:.0e} apart, {same}")
if seen != [(True, False)] * 2 + [(True, True)] * 3 + [(False, True)]:
    raise SystemExit("the behaviour has changed")
PYTHON
echo "as described above"
