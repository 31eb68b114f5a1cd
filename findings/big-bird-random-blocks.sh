#!/usr/bin/env bash
# BigBird's attention weights, as transformers puts them out, do not sum to 1; and its random blocks are all the first block.
#
# A query of BigBird (attention_type "block_sparse") sees the first and the last block of keys, its own block with both
# neighbours, and num_random_blocks blocks that are picked at random. In transformers 5.24.0, outside training, each of the
# random blocks is block 0, which the query sees anyway: the softmax holds the keys of block 0 once more for each random block.
# attentions[layer] holds each of these equal shares once, so that rows sum to much less than 1, and weights times values are
# not the layer's context. The same code is in BigBirdPegasus. One would expect rows that sum to 1, as of every other model.
#
# This script computes one layer's weights by a softmax over the same list of keys. It exits with 1 if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check numpy torch==2.13.0 transformers==5.24.0
"$folder/venv/bin/python" - <<'PYTHON'
import torch
import transformers
from transformers import BigBirdConfig, BigBirdModel

print(f"transformers {transformers.__version__}, torch {torch.__version__}")
BLOCK, RANDOM, COUNT, HEADS = 2, 3, 12, 2  # tokens of a block, random blocks, blocks of the text, heads
torch.manual_seed(0)
config = BigBirdConfig(
    hidden_size=16, num_hidden_layers=1, num_attention_heads=HEADS, intermediate_size=16, vocab_size=50,
    max_position_embeddings=64, block_size=BLOCK, num_random_blocks=RANDOM, sep_token_id=3, attn_implementation="eager",
)
model = BigBirdModel(config).eval()
attention, kept = model.encoder.layer[0].attention.self, {}
for name in ("query", "key", "value"):
    part = getattr(attention, name)
    part.register_forward_hook(lambda _, __, out, name=name: kept.update({name: out[0].view(-1, HEADS, 8).transpose(0, 1)}))
attention.register_forward_hook(lambda _, __, out: kept.update(context=out[0][0].reshape(-1, HEADS, 8).transpose(0, 1)))
with torch.no_grad():
    theirs = model(torch.randint(5, 50, (1, BLOCK * COUNT)), output_attentions=True).attentions[0][0]  # (heads, n, n)
scores = kept["query"] @ kept["key"].mT / 8**0.5


def softmax_over(blocks, query):
    """The weights (heads, n) of a softmax over the keys of these blocks; a block that stands there twice counts twice."""
    keys = torch.tensor([BLOCK * block + i for block in blocks for i in range(BLOCK)])
    shares = scores[:, query, keys].softmax(-1)
    return torch.zeros(HEADS, BLOCK * COUNT).index_add_(1, keys, shares)


query = BLOCK * 5  # in a block in the middle: it sees blocks 0, 4, 5, 6, the last, and the random ones
again = softmax_over([0, 4, 5, 6, COUNT - 1] + [0] * RANDOM, query)  # (heads, n)
of_softmax = float((torch.einsum("hk,hkd->hd", again, kept["value"]) - kept["context"][:, query]).abs().max())
of_theirs = float((torch.einsum("hk,hkd->hd", theirs[:, query], kept["value"]) - kept["context"][:, query]).abs().max())
print(f"block 0 counted {1 + RANDOM} times: weights x values are the layer's own context to {of_softmax:.1e}")
print(f"attentions[0]: weights x values differ from it by {of_theirs:.1e}; the row sums to {theirs[0, query].sum():.2f}")
factor = again[0, 0] / theirs[0, query, 0]
print(f"the softmax's weight of a key of block 0 is {factor:.2f} times the weight that is put out")
if not (of_softmax < 1e-6 < 1e-4 < of_theirs and float(theirs[0, query].sum()) < 0.8 and abs(factor - 1 - RANDOM) < 1e-3):
    raise SystemExit("the behaviour has changed")
PYTHON
echo "as described above"
