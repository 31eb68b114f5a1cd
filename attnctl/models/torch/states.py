"""Recognise linear attention that adds up keys times values token by token: a recurrence, or a running sum.

Each token's key and value, both features, are multiplied into a matrix. These are summed over tokens, and the sum is the
state that a query reads. There is no table of tokens in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from attnctl.attention import Array
from attnctl.models.torch.contractions import Contraction
from attnctl.models.torch.layouts import Layout
from attnctl.models.torch.tensors import ByTensor, tensors_in

SUMS = frozenset(["sum", "cumsum", "mean"])
ADDITIONS = frozenset(["add", "iadd", "radd", "sub", "isub", "rsub"])


@dataclass(frozen=True, eq=False)
class Outer:
    """A product of two features of each token, in the last two axes of a tensor; whether tokens were summed."""

    module: str
    is_sum: bool = False


@dataclass(eq=False)
class States:
    """Which tensors of a running model are products of keys and values, or their sum."""

    outer: ByTensor[Outer] = field(default_factory=ByTensor)
    is_empty: bool = True  # nothing has to be looked up, as in most models

    def note(self, product: Contraction, layouts: ByTensor[Layout], module: str, out: Array) -> None:
        """Note a product of two activations in which a feature of each has an axis of its own, the last two."""
        sizes = {
            letter: size
            for letters, tensor in zip(product.letters, product.operands, strict=True)
            for letter, size in zip(letters, tensor.shape, strict=True)
        }
        if any(sizes[letter] > 1 for letter in product.summed) or len(product.result) < 3:
            return
        apart = [{x for x in product.letters[side] if x not in (*product.letters[1 - side], ".")} for side in (0, 1)]
        if [len(letters) for letters in apart] != [1, 1] or apart[0] | apart[1] != set(product.result[-2:]):
            return
        for side in (0, 1):
            layout = layouts.get(product.operands[side])
            if layout is None or len(layout) != len(product.letters[side]):
                return
            axis = layout[product.letters[side].index(next(iter(apart[side])))]
            if not axis or not all(atom.feature for atom in axis):
                return
        self.outer[out] = Outer(module)
        self.is_empty = False

    def is_read(self, product: Contraction) -> bool:
        """Return whether a product multiplies a sum over tokens by a query, along one of its two features."""
        if self.is_empty:
            return False
        for tensor, letters in zip(product.operands, product.letters, strict=True):
            if self._is_sum(tensor) and len(product.summed & set(letters[-2:])) == 1:
                return True
        return False

    def follow(self, name: str, args: Sequence[Any], keywords: Mapping[str, Any], out: Any) -> bool:
        """Follow products and their sums through a call; return whether it reads a sum."""
        if self.is_empty:
            return False
        known = [tensor for tensor in tensors_in(args, keywords) if tensor in self.outer]
        if not known:
            return False
        if name == "einsum":
            return any(map(self._is_sum, known))  # of three tensors: others are products
        name = name.strip("_")
        before, marks = known[0], list(dict.fromkeys(self.outer[tensor] for tensor in known))
        dim = keywords.get("dim", args[1] if len(args) > 1 else None)
        if name == "sum" and isinstance(dim, int) and dim % before.ndim >= before.ndim - 2:
            return self._is_sum(before)  # after a product with the query, place by place
        is_sum = name in SUMS or any(mark.is_sum for mark in marks)
        if name in ADDITIONS and len(marks) > 1:  # of two tokens; two layers are two modules
            is_sum = is_sum or len({mark.module for mark in marks}) == 1
        for part in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(part, torch.Tensor) and part.ndim > 1 and part.shape[-2:] == before.shape[-2:]:
                self.outer[part] = replace(marks[0], is_sum=True) if is_sum else marks[0]
        return False

    def _is_sum(self, tensor: Array) -> bool:
        mark = self.outer.get(tensor)
        return mark is not None and mark.is_sum
