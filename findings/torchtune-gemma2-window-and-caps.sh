#!/usr/bin/env bash
# torchtune 0.6.1: Gemma 2 with a cache loses its window, its cap of the logits is before the last matrix, and its two caps are exchanged.
#
# Half of the layers of Gemma 2 see a window of the last tokens (4096), scores are capped at 50 and logits at 30. One expects that
# torchtune.generation.generate gives the same tokens with a cache as without, and that no logit is above the cap. But:
#
#   window   With a cache, the window is counted from the first row of the mask, which is the one row of the new token. So each token
#            after the first window sees the first keys of the text, and not those before it, not even itself.
#   logits   final_capping_value caps the hidden states after the last norm, and the output matrix comes after it: logits are not capped.
#   caps     gemma2_2b, gemma2_9b and gemma2_27b set 30 for the scores and 50 for the end. The component builder gemma2 has the
#            defaults 50 and 30, as Google's models.
#
# No error and no warning; a text shorter than the window shows nothing of the first.
#
# This script generates with and without a cache, prints the first token whose logits differ for three windows, the largest logit, and
# the caps of the three models. It exits with 1 if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    torch==2.13.0 torchao==0.16.0 torchtune==0.6.1 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" -W ignore - <<'PYTHON' 2>"$folder/errors" || { cat "$folder/errors" >&2; exit 1; }
from importlib.metadata import version

import torch
from torchtune.generation import generate
from torchtune.models.gemma2 import gemma2, gemma2_2b, gemma2_9b, gemma2_27b

print(f"torchtune {version('torchtune')}, torch {torch.__version__}")
PROMPT, NEW, FINAL_CAP = 3, 12, 5.0


def small(window):
    """Return a Gemma 2 of two layers with random weights, the first of them with a window."""
    torch.manual_seed(0)
    sizes = {"num_layers": 2, "num_heads": 4, "head_dim": 8, "num_kv_heads": 2, "embed_dim": 32, "intermediate_dim": 32}
    model = gemma2(vocab_size=50, **sizes, max_seq_len=PROMPT + NEW, sliding_window_size=window, final_capping_value=FINAL_CAP)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model.eval()


def logits(window, with_cache):
    """Return the logits of each new token of a greedy continuation."""
    model, prompt = small(window), torch.arange(1, PROMPT + 1)
    with torch.no_grad():
        if with_cache:
            model.setup_caches(1, torch.float32, decoder_max_seq_len=PROMPT + NEW)
        return generate(model, prompt, max_generated_tokens=NEW, top_k=1)[1][0]


differ = {}
for window in (5, 8, PROMPT + NEW):
    gaps = (logits(window, True) - logits(window, False)).abs().amax(-1)
    first = next((PROMPT - 1 + step for step, gap in enumerate(gaps) if gap > 1e-3), None)
    differ[window] = first
    what = "no token differs" if first is None else f"differs from token {first} on, by {gaps[first - PROMPT + 1]:.1f}"
    print(f"window {window}: with a cache, {what}")

# what the token after a window sees with a cache: its first layer's output while one key after the other is exchanged
model = small(5)
layer = model.layers[0].attn
model.setup_caches(1, torch.float32, decoder_max_seq_len=8)
x = torch.randn(1, 8, 32, generator=torch.Generator().manual_seed(1))
mask = torch.ones(8, 8, dtype=torch.bool).tril()[None]


def last(x):
    """Return the output of the window's layer for token 7, after tokens 0 to 6."""
    layer.reset_cache()
    with torch.no_grad():
        for i in range(8):
            out = layer(x[:, i : i + 1], x[:, i : i + 1], mask=mask[:, i : i + 1], input_pos=torch.tensor([i]))
    return out


seen = []
for key in range(7):
    other = x.clone()
    other[:, key] = torch.randn(32, generator=torch.Generator().manual_seed(2))
    seen += [key] * bool((last(other) - last(x)).abs().max() > 0)
print(f"window 5: with a cache, token 7 sees the tokens {seen} before it; one expects [3, 4, 5, 6]")

largest = float(logits(PROMPT + NEW, False).abs().max())
print(f"final_capping_value {FINAL_CAP:g}: the largest logit is {largest:.1f}")

caps = {}
with torch.device("meta"):
    for build in (gemma2_2b, gemma2_9b, gemma2_27b):
        model = build()
        caps[build.__name__] = model.layers[0].attn.softcapping, model.norm.capping_value
        print(f"{build.__name__}: cap of scores {caps[build.__name__][0]:g}, at the end {caps[build.__name__][1]:g}")
described = [
    differ == {5: 5, 8: 8, PROMPT + NEW: None},
    seen == [0, 1, 2, 3, 4],
    largest > FINAL_CAP + 1,
    set(caps.values()) == {(30.0, 50.0)},
]
if not all(described):
    raise SystemExit(f"the behaviour has changed: {described}")
PYTHON
echo "as described above"
