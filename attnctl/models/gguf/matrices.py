"""Place the weights of a GGUF file in a network: its large matrices stay quantised, and are dequantised as they multiply.

A matrix is a tensor of torch with a shape, a type and a device, without memory of its own. A linear layer asks it for a few
rows after another, an embedding for the rows that it looks up, a stack of experts for the experts that are chosen; any other
operation gets the whole matrix, dequantised for this operation.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn import functional
from torch.utils._pytree import tree_map

from attnctl import limits
from attnctl.arrays import Floats
from attnctl.attention import Array
from attnctl.errors import AttnctlError
from attnctl.models.gguf.weights import Rows, Turned, Weight, as_slice

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SMALL = 1 << 16  # a weight of fewer numbers is dequantised at once
TOGETHER = 1 << 21  # numbers of a matrix that are dequantised and multiplied together


@dataclass
class Residence:
    """Decide whether the matrices of a network stay dequantised: from their second use on, if half of the memory is enough."""

    size: int = 0  # bytes of all matrices, dequantised

    @cached_property
    def suffices(self) -> bool:
        """Return whether all matrices, dequantised, take half of the free memory at most; computed when it is first asked."""
        free = limits.free_memory()
        return free is not None and self.size <= free / 2


@dataclass
class _Content:
    """The weight of a matrix, and its rows that stay dequantised; shared by all tensors that stand for this matrix."""

    weight: Weight
    residence: Residence
    uses: dict[object, int] = field(default_factory=dict)  # number of a row, or None for all rows → uses
    kept: dict[object, Floats] = field(default_factory=dict)

    def rows(self, which: Rows, key: object = None) -> Floats:
        """Return rows in float32; those of a `key` are kept from their second use on."""
        if None in self.kept:
            return self.kept[None][which]
        if key is not None and key in self.kept:
            return self.kept[key]
        rows = self.weight.rows(which)
        if key is not None and self.is_used_again(key):
            self.kept[key] = rows
        return rows

    def whole(self) -> Floats | None:
        """Return the whole matrix in float32 if it stays dequantised; count its use."""
        if None not in self.kept and self.is_used_again(None):
            self.kept[None] = self.weight.array()
            self.uses.clear()
        return self.kept.get(None)

    def is_used_again(self, key: object) -> bool:
        """Count a use; return whether what was used should be kept."""
        self.uses[key] = self.uses.get(key, 0) + 1
        return self.uses[key] > 1 and self.residence.suffices


class MappedMatrix(torch.Tensor):
    """A matrix whose numbers stay quantised in a mapped file."""

    content: _Content

    @staticmethod
    def __new__(cls, content: _Content, dtype: torch.dtype, device: torch.device | str) -> MappedMatrix:
        """Make a matrix of a content, which multiplies in `dtype` on `device`."""
        matrix: MappedMatrix = torch.Tensor._make_wrapper_subclass(
            cls, content.weight.shape, dtype=dtype, device=torch.device(device), requires_grad=False
        )
        matrix.content = content
        return matrix

    def __init__(self, content: _Content, dtype: torch.dtype, device: torch.device | str) -> None: ...

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function of torch: by rows if it can be, otherwise with the dequantised matrix."""
        kwargs = kwargs or {}
        if func in DESCRIPTIONS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if func in BY_ROWS and (result := BY_ROWS[func](*args, **kwargs)) is not NotImplemented:
            return result
        return func(*tree_map(_dequantised, args), **tree_map(_dequantised, kwargs))

    @classmethod
    def __torch_dispatch__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call an operation of torch's core with the dequantised matrix."""
        return func(*tree_map(_dequantised, args), **tree_map(_dequantised, kwargs or {}))

    def __deepcopy__(self, memo: object) -> MappedMatrix:
        """Return the matrix itself: nobody writes to it."""
        return self

    def __repr__(self, **_: object) -> str:  # type: ignore[override]
        kinds = sorted({source.kind for source in self.content.weight.sources})
        return f"MappedMatrix(shape={tuple(self.shape)}, dtype={self.dtype}, stored as {', '.join(kinds)})"

    def tensor(self, rows: Floats) -> Array:
        """Return rows as a tensor of the matrix's type on its device."""
        return _tensor_over(rows).to(device=self.device, dtype=self.dtype)

    def dequantised(self) -> Array:
        """Return the whole matrix as a tensor with memory of its own."""
        whole = self.content.whole()
        return self.tensor(self.content.weight.array() if whole is None else whole)


def _tensor_over(array: Floats) -> Array:
    """Return a tensor over the memory of an array, which may be a mapped file that cannot be written."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(np.ascontiguousarray(array))


def _dequantised(value: object) -> object:
    return value.dequantised() if isinstance(value, MappedMatrix) else value


# --- functions that need a few rows at a time ----------------------------------------------------------------------


def _linear(x: Array, matrix: Array, bias: Array | None = None) -> Any:
    if not isinstance(matrix, MappedMatrix) or isinstance(x, MappedMatrix):
        return NotImplemented
    whole = matrix.content.whole()
    if whole is not None:
        return functional.linear(x, matrix.tensor(whole), bias)
    return _multiplied(x, matrix, matrix.content.weight, bias)


def _multiplied(x: Array, matrix: MappedMatrix, weight: Weight, bias: Array | None) -> Array:
    if torch.is_grad_enabled() and x.requires_grad:
        product: Array = _Product.apply(x, matrix, weight)
        return product if bias is None else product + bias
    out = x.new_empty((*x.shape[:-1], weight.shape[0]))
    for begin, end in _row_blocks(weight):
        block = matrix.tensor(weight.rows(slice(begin, end)))
        out[..., begin:end] = functional.linear(x, block, None if bias is None else bias[begin:end])
    return out


def _row_blocks(weight: Weight) -> Iterator[tuple[int, int]]:
    """Yield begin and end of a few rows after another."""
    step = max(TOGETHER // max(math.prod(weight.shape[1:]), 1), 1)
    return ((begin, min(begin + step, weight.shape[0])) for begin in range(0, weight.shape[0], step))


class _Product(torch.autograd.Function):
    """x · Wᵀ with a gradient for x; the backward pass dequantises again, so that no matrix is kept for it."""

    @staticmethod
    def forward(ctx: Any, x: Array, matrix: MappedMatrix, weight: Weight) -> Array:
        ctx.matrix, ctx.weight = matrix, weight
        with torch.no_grad():
            return _multiplied(x, matrix, weight, None)

    @staticmethod
    def backward(ctx: Any, *gradients: Array) -> tuple[Array, None, None]:
        (gradient,) = gradients
        blocks = (
            gradient[..., begin:end] @ ctx.matrix.tensor(ctx.weight.rows(slice(begin, end)))
            for begin, end in _row_blocks(ctx.weight)
        )
        total = next(blocks)
        for part in blocks:
            total = total + part
        return total, None, None


def _addmm(bias: Array, x: Array, matrix: Array, **factors: float) -> Any:
    """Return bias + x · W; of a Conv1D, whose matrix is stored transposed."""
    is_turned = isinstance(matrix, MappedMatrix) and isinstance(matrix.content.weight, Turned)
    if factors or not is_turned or bias.ndim != 1 or isinstance(x, MappedMatrix):
        return NotImplemented
    assert isinstance(matrix, MappedMatrix) and isinstance(matrix.content.weight, Turned)
    whole = matrix.content.whole()
    if whole is not None:
        return torch.addmm(bias, x, matrix.tensor(whole))
    return _multiplied(x, matrix, matrix.content.weight.source, bias)


def _embedding(ids: Array, matrix: Array, *args: Any, **kwargs: Any) -> Any:
    if not isinstance(matrix, MappedMatrix):
        return NotImplemented
    used, places = torch.unique(ids, return_inverse=True)
    return functional.embedding(places.to(matrix.device), matrix.tensor(matrix.content.rows(used.cpu().numpy())))


def _item(matrix: Array, index: object) -> Any:
    """Return rows: of a number, a slice, or a list of numbers."""
    if not isinstance(matrix, MappedMatrix) or isinstance(index, bool):
        return NotImplemented
    if (
        isinstance(index, torch.Tensor)
        and index.ndim < 2
        and not index.is_floating_point()
        and index.dtype != torch.bool
    ):
        index = int(index) if index.ndim == 0 else index.cpu().numpy() % matrix.shape[0]
    if isinstance(index, int):
        number = range(matrix.shape[0])[index]
        return matrix.tensor(matrix.content.rows(slice(number, number + 1), number))[0]
    if isinstance(index, slice) and index.step in (None, 1):
        return matrix.tensor(matrix.content.rows(index))
    if isinstance(index, np.ndarray):
        return matrix.tensor(matrix.content.rows(as_slice(index)))
    return NotImplemented


def _moved(matrix: Array, *args: Any, **kwargs: Any) -> Any:
    """Return the matrix for another device or type, still quantised."""
    if not isinstance(matrix, MappedMatrix):
        return NotImplemented
    kwargs.pop("copy", None)
    device, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
    return MappedMatrix(matrix.content, dtype or matrix.dtype, device or matrix.device)


def _again(matrix: Array, *_: Any, **__: Any) -> Any:
    """Return another tensor for the same matrix."""
    assert isinstance(matrix, MappedMatrix)
    return MappedMatrix(matrix.content, matrix.dtype, matrix.device)


BY_ROWS: dict[Any, Callable[..., Any]] = {
    functional.linear: _linear,
    functional.embedding: _embedding,
    torch.addmm: _addmm,
    torch.Tensor.__getitem__: _item,
    torch.Tensor.to: _moved,
    torch.Tensor.detach: _again,
}
# what is known of a matrix without its numbers
DESCRIPTIONS = {
    *(
        getattr(torch.Tensor, name).__get__
        for name in (
            *("shape", "dtype", "device", "ndim", "requires_grad", "is_leaf", "grad", "grad_fn", "is_meta", "layout"),
            *("is_cpu", "is_cuda", "is_mps", "is_sparse", "is_quantized", "itemsize", "nbytes"),
        )
    ),
    *(
        getattr(torch.Tensor, name)
        for name in (
            *("size", "dim", "numel", "nelement", "element_size", "is_floating_point", "is_complex", "requires_grad_"),
            *("stride", "is_contiguous", "ndimension", "__len__", "__hash__", "is_inference"),
        )
    ),
    torch.Tensor.requires_grad.__set__,  # type: ignore[attr-defined]
    torch.Tensor.grad.__set__,  # type: ignore[attr-defined]
    torch.is_floating_point,
    torch.is_complex,
    torch.numel,
}


# --- a network ---------------------------------------------------------------------------------------------------


def empty_network(model_class: Any, config: Any, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """Return a network without memory for its parameters and buffers, on torch's device meta."""
    from contextlib import ExitStack

    with ExitStack() as stack:
        for context in model_class.get_init_context(dtype, False, False, None):
            stack.enter_context(context)
        return model_class(config)  # type: ignore[no-any-return]


def place_weights(
    network: PreTrainedModel,
    weights: Mapping[str, Weight],
    *,
    name: str,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
) -> set[str]:
    """Give the parameters of a network on the device meta their weights; return the names of those without one.

    `weights` by name of parameter (or of a buffer that a file stores); `name` is the file's, for errors. Raises AttnctlError
    for a weight of no parameter, and for one of another shape.
    """
    holders = dict(network.named_parameters()) | dict(network.named_buffers())
    residence = Residence()
    for key, weight in weights.items():
        if key not in holders:
            raise AttnctlError(f"cannot read {name}: {type(network).__name__} has no parameter {key}")
        if tuple(holders[key].shape) != tuple(weight.shape):
            theirs, ours = tuple(weight.shape), tuple(holders[key].shape)
            raise AttnctlError(f"cannot read {name}: {key} is {theirs} in its file and {ours} by its settings")
        _set_tensor(network, key, _placed(weight, residence, dtype, device))
    missing = {key for key, value in network.named_parameters() if value.is_meta}
    _compute_buffers(network, device)
    network.tie_weights()
    if network._can_set_experts_implementation():
        network.set_experts_implementation("eager")  # expert by expert: the others take the matrices of all at once
    tied = {key for key, value in network.named_parameters(remove_duplicate=False) if not value.is_meta}
    return missing - tied


def _placed(weight: Weight, residence: Residence, dtype: torch.dtype, device: str | torch.device) -> Array:
    """Return a weight as a tensor: quantised if it is large, in float32 if it is small, mapped if it is stored like that."""
    kinds = {source.kind for source in weight.sources}
    is_plain = weight.sources == (weight,) and kinds == {"F32"} and dtype == torch.float32
    if is_plain or weight.size < SMALL or len(weight.shape) < 2:
        return _tensor_over(weight.array()).to(device=device, dtype=dtype)
    residence.size += 4 * weight.size
    return MappedMatrix(_Content(weight, residence), dtype, device)


def _set_tensor(network: PreTrainedModel, key: str, value: Array) -> None:
    """Replace a parameter or a buffer of a network by its name."""
    holder, _, name = key.rpartition(".")
    module = network.get_submodule(holder)
    if name in module._buffers:
        module._buffers[name] = value
    else:
        value = torch.nn.Parameter(value, requires_grad=False)
        setattr(module, name, value)
    value._is_hf_initialized = True  # type: ignore[attr-defined]  # read by transformers: no random numbers for it


def _compute_buffers(network: PreTrainedModel, device: str | torch.device) -> None:
    """Let the network compute its buffers that no file stores, such as the frequencies of rotary positions."""
    for module in network.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.is_meta:
                module._buffers[name] = torch.empty_like(buffer, device=device)
    for parameter in network.parameters():
        parameter._is_hf_initialized = True  # type: ignore[attr-defined]
    network.initialize_weights()
