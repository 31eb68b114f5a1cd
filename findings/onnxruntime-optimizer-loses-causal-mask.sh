#!/usr/bin/env bash
# ONNX Runtime 1.32.0: its optimizer for transformers takes a causal mask for padding, and any scale for 1/sqrt(d).
#
# onnxruntime.transformers.optimizer (model_type="bert") replaces the nodes of an exported attention by one node, com.microsoft
# Attention. One expects the same network, or nodes that are left as they are. But it looks at the pattern of the nodes, not at what
# they hold: the new node has the weights, the number of heads and the padding. The causal mask of a BERT or RoBERTa with
# is_decoder=True is lost, so that each token sees its future; and so is a scale other than 1/sqrt(d). No error, and no warning that
# says so. (The node could hold both: unidirectional, scale.) It is met by a graph of eager attention from
# torch.onnx.export(dynamo=False). Under sdpa nothing is fused, and all is right.
#
# The models are small and random. Printed: the distance of the last hidden states from torch's, and how far the first token
# moves if the last one is exchanged. This script exits with 1 if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.24.0 onnx==1.23.2 \
    onnxruntime==1.32.0 onnxscript==0.7.2 numpy==2.4.6
cd "$folder"
venv/bin/python -W ignore - <<'PYTHON' 2>log || { cat log >&2; exit 1; }
import numpy as np
import onnxruntime
import torch
import transformers
from onnxruntime.transformers.optimizer import optimize_model
from transformers import BertConfig, BertModel, RobertaConfig, RobertaModel

print(f"torch {torch.__version__}, transformers {transformers.__version__}, onnxruntime {onnxruntime.__version__}")
SIZES = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
IDS = torch.randint(5, 50, (1, 6), generator=torch.Generator().manual_seed(0))
OTHER = IDS.clone()
OTHER[0, -1] = IDS[0, -1] - 1
SEEN = torch.ones_like(IDS)


class States(torch.nn.Module):
    """The last hidden states of a model."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids, seen):
        return self.model(input_ids=ids, attention_mask=seen).last_hidden_state


def tried(kind, config, settings, kernel="eager", scaling=None):
    """Return how many nodes were fused, each graph's distance from torch, and how far the first token moves."""
    torch.manual_seed(0)
    model = kind(config(**SIZES, **settings, attn_implementation=kernel)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(8 if parameter.ndim == 2 else 1)  # so that the attention has something to choose
    for layer in model.encoder.layer if scaling else ():
        layer.attention.self.scaling = scaling
    module = States(model).eval()
    right = module(IDS, SEEN).detach().numpy()
    moved = {"torch": float(np.abs(module(OTHER, SEEN).detach().numpy() - right)[0, 0].max())}
    torch.onnx.export(
        module, (IDS, SEEN), "plain.onnx", dynamo=False, opset_version=17, input_names=["ids", "seen"],
        dynamic_axes={"ids": {0: "batch", 1: "n"}, "seen": {0: "batch", 1: "n"}},
    )
    optimised = optimize_model("plain.onnx", model_type="bert", num_heads=4, hidden_size=32, opt_level=0)
    optimised.save_model_to_file("optimised.onnx")
    apart = {}
    for file in ("plain", "optimised"):
        session = onnxruntime.InferenceSession(f"{file}.onnx", providers=["CPUExecutionProvider"])
        first, second = (session.run(None, {"ids": ids.numpy(), "seen": SEEN.numpy()})[0] for ids in (IDS, OTHER))
        apart[file], moved[file] = float(np.abs(first - right).max()), float(np.abs(first - second)[0, 0].max())
    fused = sum(node.op_type == "Attention" for node in optimised.model.graph.node)
    return fused, apart, moved


CAUSAL = {"is_decoder": True, "use_cache": False}
cases = {
    "BERT": (tried(BertModel, BertConfig, {}), 2, True),
    "BERT, is_decoder": (tried(BertModel, BertConfig, CAUSAL), 2, False),
    "RoBERTa, is_decoder": (tried(RobertaModel, RobertaConfig, CAUSAL), 2, False),
    "BERT, scale 1/d": (tried(BertModel, BertConfig, {}, scaling=1 / 8), 2, False),
    "BERT, is_decoder, sdpa": (tried(BertModel, BertConfig, CAUSAL, kernel="sdpa"), 0, True),
}
changed = False
for name, ((fused, apart, moved), expected, same) in cases.items():
    print(f"{name}: {fused} fused; from torch: exported {apart['plain']:.0e}, optimised {apart['optimised']:.0e}", end="")
    print("; first token moves:", ", ".join(f"{file} {move:.0e}" for file, move in moved.items()))
    right = fused == expected and apart["plain"] < 1e-4 and (apart["optimised"] < 1e-4 if same else apart["optimised"] > 0.01)
    if "is_decoder" in name:
        right &= moved["torch"] < 1e-5 > moved["plain"] and (moved["optimised"] < 1e-5 if same else moved["optimised"] > 0.01)
    changed |= not right
if changed:
    raise SystemExit("the behaviour has changed")
PYTHON
echo "as described above"
