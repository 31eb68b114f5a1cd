"""Recognise a softmax over the edges of a graph: exponentials that are divided by sums over the groups of an index.

A graph network (GAT, graph transformers of PyTorch Geometric) rates each edge, sums the exponentials of a node's edges by
`scatter_add`, and divides. Its weights stand in a list of edges, not in a table of tokens: there is a name, but no map.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from attnctl.models.torch.tensors import ByTensor, tensors_in

EDGES = (
    "its softmax goes over the groups of an index (the edges of a graph): it has a weight for each edge, and no map of "
    "tokens"
)
SUMS = frozenset(["scatter_add", "index_add", "scatter_reduce", "index_reduce", "segment_reduce"])
QUOTIENTS = frozenset(["div", "divide", "true_divide", "truediv", "itruediv"])
PRODUCTS = frozenset(["mul", "multiply", "rmul", "imul"])
# functions whose result is what the first argument was: exponentials, their sums, or weights
RESHAPES = "view reshape unsqueeze squeeze expand expand_as flatten unflatten transpose permute contiguous to type_as"
PICKS = "getitem index_select gather repeat_interleave add radd clamp clamp_min dropout float half bfloat16"
PASSES = frozenset(f"{RESHAPES} {PICKS}".split())


@dataclass(eq=False)
class EdgeSoftmax:
    """The tensors of a forward that are exponentials, sums of them over an index, and quotients of both."""

    exponentials: ByTensor[bool] = field(default_factory=ByTensor)
    sums: ByTensor[bool] = field(default_factory=ByTensor)
    weights: ByTensor[bool] = field(default_factory=ByTensor)

    def meet_values(self, name: str, args: Sequence[Any], keywords: Mapping[str, Any], out: Any) -> bool:
        """Note what a function makes of these tensors; return whether it multiplies weights of edges with values."""
        name = name.strip("_")
        if not isinstance(out, torch.Tensor):
            return False
        if name == "exp":
            self.exponentials[out] = True
        elif name in SUMS and any(tensor in self.exponentials for tensor in tensors_in(args, keywords)):
            self.sums[out] = True
        elif name in PASSES and args and isinstance(args[0], torch.Tensor):
            for known in (self.exponentials, self.sums, self.weights):
                if args[0] in known:
                    known[out] = True
        elif name in QUOTIENTS and len(args) == 2 and isinstance(args[1], torch.Tensor):
            if args[0] in self.exponentials and args[1] in self.sums:
                self.weights[out] = True
        elif name in PRODUCTS:
            return any(tensor in self.weights and tensor.numel() < out.numel() for tensor in tensors_in(args, keywords))
        return False
