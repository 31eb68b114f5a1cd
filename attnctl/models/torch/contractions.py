"""Read a product of two tensors, however it is written, as letters for its axes: `matmul`, `einsum`, `linear`, `conv2d`."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from attnctl.attention import Array

MATMUL = {
    "matmul": 0,
    "__matmul__": 0,
    "linalg_matmul": 0,
    "bmm": 0,
    "mm": 0,
    "mv": 0,
    "dot": 0,
    "baddbmm": 1,
    "addmm": 1,
    "addmv": 1,
}
CONVOLUTIONS = frozenset(["conv1d", "conv2d", "conv3d"])
PRODUCTS = frozenset([*MATMUL, *CONVOLUTIONS, "einsum", "linear", "tensordot", "inner"])


@dataclass(frozen=True, eq=False)
class Contraction:
    """A product of two tensors: a letter for each axis of operands and result; `.` for one of size 1 that is spread."""

    operands: tuple[Array, Array]
    letters: tuple[str, str]
    result: str

    @property
    def summed(self) -> set[str]:
        """Return the letters that both operands have and the result has not."""
        return (set(self.letters[0]) & set(self.letters[1])) - set(self.result)


def contraction_of(name: str, args: Sequence[object], keywords: Mapping[str, object]) -> Contraction | None:
    """Return the product that a call of the function `name` computes; None if it is none of two tensors."""
    if name == "einsum":
        return _einsum(args)
    first = MATMUL.get(name, 0)
    operands = list(args[first : first + 2])
    of_layers = dict.fromkeys(("linear", *CONVOLUTIONS), ("input", "weight"))
    names = {"baddbmm": ("batch1", "batch2"), **of_layers}.get(name, ("input", "other"))
    operands += [keywords[key] for key in names[len(operands) :] if key in keywords]
    if len(operands) != 2 or not all(isinstance(part, torch.Tensor) for part in operands):
        return None
    a, b = operands
    assert isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
    if name in ("linear", "inner"):
        letters = string.ascii_letters[: a.ndim]
        return Contraction((a, b), (letters, f"Z{letters[-1]}"[-b.ndim :]), letters[:-1] + "Z" * (b.ndim - 1))
    if name in CONVOLUTIONS:
        if a.ndim != b.ndim or a.shape[1] != b.shape[1] or any(size > 1 for size in b.shape[2:]):
            return None  # a wider kernel, or groups of channels
        letters = string.ascii_letters[: a.ndim]
        return Contraction((a, b), (letters, f"Z{letters[1]}" + "." * (b.ndim - 2)), f"{letters[0]}Z{letters[2:]}")
    if name == "tensordot":
        return _tensordot(a, b, keywords.get("dims", args[2] if len(args) > 2 else 2))
    return _matmul(a, b)


def _matmul(a: Array, b: Array) -> Contraction:
    """Return matmul's axes: the last two are multiplied, those before are spread."""
    lead = string.ascii_lowercase[: max(a.ndim, b.ndim) - 2] if max(a.ndim, b.ndim) > 2 else ""
    left = lead[len(lead) - max(a.ndim - 2, 0) :] + "XY"[-min(a.ndim, 2) :]
    right = lead[len(lead) - max(b.ndim - 2, 0) :] + ("YZ" if b.ndim > 1 else "Y")
    result = lead + "X" * (a.ndim > 1) + "Z" * (b.ndim > 1)
    sizes: dict[str, int] = {}
    for array, letters in ((a, left), (b, right)):
        for letter, size in zip(letters, array.shape, strict=True):
            sizes[letter] = max(sizes.get(letter, 1), int(size))
    spread = [
        "".join(
            "." if size == 1 and sizes[letter] > 1 and letter in lead else letter
            for letter, size in zip(letters, array.shape, strict=True)
        )
        for array, letters in ((a, left), (b, right))
    ]
    return Contraction((a, b), (spread[0], spread[1]), result)


def _einsum(args: Sequence[object]) -> Contraction | None:
    equation, *rest = args
    operands = list(rest[0]) if len(rest) == 1 and isinstance(rest[0], (tuple, list)) else list(rest)
    if (
        not isinstance(equation, str)
        or len(operands) != 2
        or not all(isinstance(part, torch.Tensor) for part in operands)
    ):
        return None
    tensors: list[Array] = operands
    a, b = tensors
    inputs, _, result = equation.replace(" ", "").partition("->")
    letters = inputs.split(",")
    if "->" not in equation:
        both = "".join(letters).replace(".", "")
        result = ("..." if "..." in equation else "") + "".join(sorted(x for x in set(both) if both.count(x) == 1))
    free = [letter for letter in string.ascii_letters if letter not in equation]
    count = max(
        (
            array.ndim - len(text.replace("...", ""))
            for array, text in zip(tensors, letters, strict=True)
            if "..." in text
        ),
        default=0,
    )
    more = "".join(free[:count])
    whole = [
        text.replace(
            "...",
            more[len(more) - (array.ndim - len(text.replace("...", ""))) :]
            if array.ndim > len(text.replace("...", ""))
            else "",
        )
        for array, text in zip(tensors, letters, strict=True)
    ]
    result = result.replace("...", more)
    if any(len(set(text)) != len(text) for text in whole):
        return None
    return Contraction((a, b), (whole[0], whole[1]), result)


def scaled_einsum(args: Sequence[object]) -> Contraction | None:
    """Return the product of two tensors in an einsum of several; None if the others do more than multiply its results."""
    equation, *operands = args
    if not isinstance(equation, str) or "->" not in equation or "." in equation or len(operands) < 3:
        return None
    inputs, _, result = equation.replace(" ", "").partition("->")
    both = [pair for pair in zip(operands, inputs.split(","), strict=True) if set(pair[1]) - set(result)]
    if len(both) != 2 or not all(isinstance(part, torch.Tensor) for part, _ in both):
        return None
    (_, first), (_, second) = both
    return _einsum((f"{first},{second}->{result}", *(part for part, _ in both)))


def _tensordot(a: Array, b: Array, dims: object) -> Contraction | None:
    if isinstance(dims, int):
        left_dims, right_dims = list(range(a.ndim - dims, a.ndim)), list(range(dims))
    elif isinstance(dims, (tuple, list)) and len(dims) == 2:
        left_dims, right_dims = ([part] if isinstance(part, int) else list(part) for part in dims)
    else:
        return None
    left, right = list(string.ascii_lowercase[: a.ndim]), list(string.ascii_uppercase[: b.ndim])
    for i, j in zip(left_dims, right_dims, strict=True):
        right[j] = left[i]
    summed = {left[i] for i in left_dims}
    result = [letter for letter in (*left, *right) if letter not in summed]
    return Contraction((a, b), ("".join(left), "".join(right)), "".join(result))


def summed_product(
    factors: tuple[Array, Array], whole: Array, args: Sequence[object], keywords: Mapping[str, object], out: Array
) -> Contraction | None:
    """Return the product that the sum over one axis of `whole` is, whose factors were multiplied place by place."""
    dim = keywords.get("dim", keywords.get("axis", args[1] if len(args) > 1 else None))
    dim = dim[0] if isinstance(dim, (tuple, list)) and len(dim) == 1 else dim
    if not isinstance(dim, int) or out.ndim != whole.ndim - 1:
        return None
    product = spread_product(factors, whole)
    return replace(product, result=product.result.replace(product.result[dim], ""))


def spread_product(factors: tuple[Array, Array], whole: Array) -> Contraction:
    """Return the product `whole` of two factors that were multiplied place by place, with nothing summed."""
    letters = string.ascii_letters[: whole.ndim]
    spread = [
        "".join(
            "." if size == 1 and whole.shape[index] > 1 else letters[index]
            for index, size in enumerate(factor.shape, whole.ndim - factor.ndim)
        )
        for factor in factors
    ]
    return Contraction(factors, (spread[0], spread[1]), letters)
