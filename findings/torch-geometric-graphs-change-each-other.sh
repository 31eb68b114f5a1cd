#!/usr/bin/env bash
# torch_geometric 2.8.1: with three of its kinds of attention a graph's output depends on the size of the other graphs in the batch.
#
# A batch puts graphs side by side; what one gives must not depend on its neighbours. For attention over all nodes of a graph the smaller
# graphs are padded, and a mask says what is padding. One expects that this is hidden, and for GPSConv's "multihead" and
# SetTransformerAggregation it is. PerformerAttention (GPSConv with attn_type="performer"), SGFormerAttention (SGFormer)
# and PolynormerAttention (Polynormer) take a mask too, but set only the values of padding to 0. Its keys stay in the sum
# that divides: a projected key of zeros is still epsilon in one, and SGFormer divides by the padded number of nodes besides. So
# evaluation with batches of 32 gives other numbers than graph by graph, in eval mode, without an error or a warning.
#
# This script compares a graph of 3 nodes alone and beside one of 60, and exits with 1 if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 torch_geometric==2.8.1 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import torch
import torch_geometric
from torch_geometric.nn import GPSConv, SetTransformerAggregation
from torch_geometric.nn.attention import PolynormerAttention
from torch_geometric.nn.models import SGFormer
from torch_geometric.utils import to_dense_batch

print(f"torch_geometric {torch_geometric.__version__}, torch {torch.__version__}")
torch.manual_seed(0)
SMALL, LARGE, SIZE = 3, 60, 8
x = torch.randn(SMALL + LARGE, SIZE)
batch = torch.tensor([0] * SMALL + [1] * LARGE)
small = torch.tensor([[0, 1, 2], [1, 2, 0]])
nodes = torch.arange(SMALL, SMALL + LARGE)
edges = torch.cat([small, torch.stack([nodes, nodes.roll(-1)])], 1)


def convolution(kind):
    layer = GPSConv(SIZE, None, heads=2, norm=None, attn_type=kind).eval()
    return lambda x, edges, batch: layer(x, edges, batch)[:SMALL]


def dense(layer):
    return lambda x, edges, batch: layer.eval()(*to_dense_batch(x, batch))[0, :SMALL]


network = SGFormer(SIZE, SIZE, 4).eval()
aggregation = SetTransformerAggregation(SIZE, heads=2).eval()
cases = {
    "GPSConv, multihead": (convolution("multihead"), False),
    "SetTransformerAggregation": (lambda x, edges, batch: aggregation(x, batch)[:1], False),
    "GPSConv, performer": (convolution("performer"), True),
    "SGFormer": (lambda x, edges, batch: network(x, edges, batch)[:SMALL], True),
    "PolynormerAttention": (dense(PolynormerAttention(SIZE, 2, 4)), True),
}
changed = []
with torch.no_grad():
    for name, (run, differs) in cases.items():
        alone, beside = run(x[:SMALL], small, batch[:SMALL]), run(x, edges, batch)
        share = ((alone - beside).norm() / alone.norm()).item()
        print(f"{name}: the output beside the other graph differs by {share:.1%} of its size")
        changed += [name] * ((share > 1e-3) != differs)
if changed:
    raise SystemExit(f"the behaviour has changed: {', '.join(changed)}")
PYTHON
echo "as described above"
