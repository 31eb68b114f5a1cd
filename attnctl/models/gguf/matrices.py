"""Place the weights of a GGUF file in a network: its large matrices stay quantised, and are dequantised as they multiply.

A matrix is a tensor of torch with a shape, a type and a device, without memory of its own. A linear layer asks it for a few
rows after another, an embedding for the rows that it looks up, a stack of experts for the experts that are chosen; any other
operation gets the whole matrix, dequantised for this operation.
"""

from __future__ import annotations

import math
import mmap
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any
from weakref import ReferenceType, ref

import numpy as np
import torch
from torch.nn import functional
from torch.utils._pytree import tree_map

from attnctl.attention import Array
from attnctl.checks import limits
from attnctl.errors import AttnctlError
from attnctl.models.gguf.ahead import begin_rows, is_worthwhile, take_rows
from attnctl.models.gguf.tensors import StoredTensor
from attnctl.models.gguf.weights import Rows, Turned, Weight, as_slice
from attnctl.runtime.arrays import Floats

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SMALL = 1 << 16  # a weight of fewer numbers is dequantised at once
TOGETHER = 1 << 21  # numbers of a matrix that are dequantised and multiplied together
POPULATE_WRITE = 23  # MADV_POPULATE_WRITE of Linux 5.14, which Python's mmap does not name


@dataclass
class Residence:
    """Decide whether the matrices of a network stay dequantised, and hold the memory of those that do.

    On the CPU a matrix stays if all of them together take half of the free memory at most: from its second product on, or
    from its first one, if several forwards are expected. On another device it stays from its first one on, if all fit into
    its free memory.
    """

    device: torch.device
    several: bool = False  # whether several forwards are expected
    size: int = 0  # bytes of all matrices, dequantised
    used: int = 0  # bytes of the memory
    others: dict[tuple[torch.device, torch.dtype], Residence] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)  # two threads may multiply by one matrix at once

    @property
    def first_kept(self) -> int:
        """Return which multiplication of a matrix is the first after which it stays: 1 or 2."""
        return 1 if self.several or self.device.type != "cpu" else 2

    @cached_property
    def suffices(self) -> bool:
        """Return whether the memory suffices for all matrices; it is measured when this is first asked."""
        if self.device.type == "cuda":
            return self.size <= 0.9 * torch.cuda.mem_get_info(self.device)[0]
        free = limits.free_memory()
        return free is not None and self.size <= free / 2

    @cached_property
    def memory(self) -> mmap.mmap:
        """Return memory for all matrices; no page of it is used before a matrix is written there."""
        return mmap.mmap(-1, self.size)

    def on(self, device: torch.device, dtype: torch.dtype) -> Residence:
        """Return the residence of the same matrices in another type or on another device."""
        key = (device, dtype)
        if key not in self.others:
            self.others[key] = Residence(device, self.several, self.size * dtype.itemsize // 4)
        return self.others[key]

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> Array:
        """Return a tensor for numbers that stay."""
        size = math.prod(shape) * dtype.itemsize
        if self.device.type != "cpu" or self.used + size > self.size:
            with torch.inference_mode(False):  # a later forward may have gradients
                return torch.empty(shape, dtype=dtype, device=self.device)
        self.used, begin = self.used + -(-size // 64) * 64, self.used
        first = begin - begin % mmap.PAGESIZE
        with suppress(
            OSError, ValueError
        ):  # all pages in one call: one after another they take longer than dequantising
            self.memory.madvise(POPULATE_WRITE, first, begin + size - first)
        with torch.inference_mode(False):
            return torch.frombuffer(self.memory, dtype=dtype, count=math.prod(shape), offset=begin).reshape(shape)


@dataclass(eq=False)
class _Content:
    """The weight of a matrix, and its rows that stay dequantised; shared by all tensors that stand for this matrix."""

    weight: Weight
    dtype: torch.dtype
    residence: Residence
    uses: Counter[int | None] = field(default_factory=Counter)  # number of an expert, or None for all rows → products
    kept: dict[int | None, Array] = field(default_factory=dict)
    holders: list[tuple[ReferenceType[torch.nn.Module], str]] = field(default_factory=list)  # module, name of parameter
    following: _Content | None = None  # the matrix that multiplies next, if layers run in the order of their modules

    def rows(self, which: Rows) -> Array:
        """Return rows as a tensor of the network's type on its device."""
        if None in self.kept:
            return self.kept[None][which]
        return _tensor_over(self.weight.rows(which)).to(device=self.residence.device, dtype=self.dtype)

    def fill(self, out: Array, which: Rows) -> None:
        """Write rows to a tensor of the network's type on its device; without a copy, if that is float32 on the CPU."""
        if None in self.kept or self.dtype != torch.float32 or self.residence.device.type != "cpu":
            out.copy_(self.rows(which))
        else:
            self.weight.fill(out.numpy(), which)

    def whole(self) -> Array:
        """Return all rows."""
        return self.rows(slice(None))

    def kept_whole(self) -> Array | None:
        """Count a product with all rows; return them if they stay dequantised."""
        with self.residence.lock:
            if None not in self.kept and self._stays(None):
                whole = self.residence.tensor(self.weight.shape, self.dtype)
                for begin, end in row_blocks(self.weight):
                    self.fill(whole[begin:end], slice(begin, end))
                self.kept = {None: whole}
                self._replace(whole)
            return self.kept.get(None)

    def expert(self, number: int) -> Array:
        """Count a product with one row of a stack of matrices; return it."""
        with self.residence.lock:
            if None in self.kept:
                return self.kept[None][number]
            if number not in self.kept:
                row = slice(number, number + 1)
                if not self._stays(number):
                    return self.rows(row)[0]
                expert = self.residence.tensor(self.weight.shape[1:], self.dtype)
                self.fill(expert[None], row)
                self.kept[number] = expert
            return self.kept[number]

    def _replace(self, whole: Array) -> None:
        """Give the modules of the matrix its numbers as a plain parameter: torch then computes without this file."""
        with torch.inference_mode(False):
            plain = torch.nn.Parameter(whole)  # with gradients, as in a loaded network: see `_rows_product`
        for reference, name in self.holders:
            module = reference()
            held: object = None if module is None else module._parameters.get(name)
            if module is not None and isinstance(held, MappedMatrix) and held.content is self:
                module._parameters[name] = plain

    def _stays(self, key: int | None) -> bool:
        self.uses[key] += 1
        return self._is_kept_after(self.uses[key])

    def _is_kept_after(self, uses: int) -> bool:
        return uses >= self.residence.first_kept and self.residence.suffices

    def begin_rows(self, begin: int, end: int) -> None:
        """Begin to dequantise rows that are likely to multiply next, if the matrix is not one that stays then."""
        if None in self.kept or (begin == 0 and self._is_kept_after(self.uses[None] + 1)):
            return
        rows = torch.empty((end - begin, *self.weight.shape[1:]), dtype=self.dtype, device=self.residence.device)
        begin_rows(self, begin, rows, partial(self.fill, which=slice(begin, end)))


class MappedMatrix(torch.Tensor):
    """A matrix whose numbers stay quantised in a mapped file."""

    content: _Content

    @staticmethod
    def __new__(cls, content: _Content) -> MappedMatrix:
        """Make a matrix of a content."""
        matrix: MappedMatrix = torch.Tensor._make_wrapper_subclass(
            cls, content.weight.shape, dtype=content.dtype, device=content.residence.device, requires_grad=False
        )
        matrix.content = content
        return matrix

    def __init__(self, content: _Content) -> None: ...

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
        dense = partial(_dequantised, multiplies=func in PRODUCTS)
        return func(*tree_map(dense, args), **tree_map(dense, kwargs))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
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


def _tensor_over(array: Floats) -> Array:
    """Return a tensor over the memory of an array, which may be a mapped file that cannot be written."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(np.ascontiguousarray(array))


def _dequantised(value: object, multiplies: bool = False) -> object:
    if not isinstance(value, MappedMatrix):
        return value
    kept = value.content.kept_whole() if multiplies else None
    return value.content.whole() if kept is None else kept


# --- functions that need a few rows at a time ----------------------------------------------------------------------


def _linear(x: Array, matrix: Array, bias: Array | None = None) -> Any:
    if not isinstance(matrix, MappedMatrix) or isinstance(x, MappedMatrix):
        return NotImplemented
    if (whole := matrix.content.kept_whole()) is not None:
        return _rows_product(x, whole, bias)
    return _multiplied(x, matrix.content, bias)


def _rows_product(x: Array, rows: Array, bias: Array | None) -> Array:
    """Return x · rowsᵀ as one product of two matrices.

    If neither has gradients, torch multiplies the parts of a part of a tensor (the last token of each text) by as many
    copies of the matrix, one after another.
    """
    return functional.linear(x.reshape(-1, x.shape[-1]), rows, bias).reshape(*x.shape[:-1], len(rows))


def _multiplied(x: Array, content: _Content, bias: Array | None) -> Array:
    if torch.is_grad_enabled() and x.requires_grad:
        product: Array = _Product.apply(x, content)  # type: ignore[no-untyped-call]
        return product if bias is None else product + bias
    out = x.new_empty((*x.shape[:-1], content.weight.shape[0]))
    blocks, is_ahead, buffer = list(row_blocks(content.weight)), is_worthwhile(), None
    for (begin, end), after in zip(blocks, [*blocks[1:], None], strict=True):
        rows = take_rows(content, begin)
        if rows is None:
            if buffer is None:
                shape = (blocks[0][1], *content.weight.shape[1:])
                buffer = x.new_empty(shape, dtype=content.dtype, device=content.residence.device)
            rows = buffer[: end - begin]
            content.fill(rows, slice(begin, end))
        if is_ahead and after is not None:
            content.begin_rows(*after)
        elif is_ahead and content.following is not None:
            content.following.begin_rows(*next(row_blocks(content.following.weight)))
        out[..., begin:end] = _rows_product(x, rows, None if bias is None else bias[begin:end])
    return out


def row_blocks(weight: Weight) -> Iterator[tuple[int, int]]:
    """Yield begin and end of a few rows after another; of all rows, if a few would cost as much."""
    step = max(TOGETHER // max(math.prod(weight.shape[1:]), 1), 1) if weight.gives_rows else weight.shape[0]
    return ((begin, min(begin + step, weight.shape[0])) for begin in range(0, weight.shape[0], step))


class _Product(torch.autograd.Function):
    """x · Wᵀ with a gradient for x; the backward pass dequantises again, so that no matrix is kept for it."""

    @staticmethod
    def forward(ctx: Any, x: Array, content: _Content) -> Array:
        ctx.content = content
        with torch.no_grad():
            return _multiplied(x, content, None)

    @staticmethod
    def backward(ctx: Any, *gradients: Array) -> tuple[Array, None]:
        (gradient,) = gradients
        return _rows_mixed(gradient, ctx.content), None


def _rows_mixed(x: Array, content: _Content) -> Array:
    """Return x · W for x (…, rows of W)."""
    total: Array = 0
    for begin, end in row_blocks(content.weight):
        total = total + x[..., begin:end] @ content.rows(slice(begin, end))
    return total


def _matmul(x: Array, matrix: Array) -> Any:
    """Return x · W: the rows of an unembedding, mixed."""
    if not isinstance(matrix, MappedMatrix) or isinstance(x, MappedMatrix) or matrix.ndim != 2:
        return NotImplemented
    whole = matrix.content.kept_whole()
    return _rows_mixed(x, matrix.content) if whole is None else x @ whole


def _addmm(bias: Array, x: Array, matrix: Array, **factors: float) -> Any:
    """Return bias + x · W; of a Conv1D, whose matrix is the transposed one of the file."""
    if factors or not isinstance(matrix, MappedMatrix) or bias.ndim != 1 or isinstance(x, MappedMatrix):
        return NotImplemented
    content = matrix.content
    if (whole := content.kept_whole()) is not None:
        return torch.addmm(bias, x, whole)
    if not isinstance(content.weight, Turned):
        return NotImplemented
    return _multiplied(x, _Content(content.weight.source, content.dtype, content.residence), bias)


def _embedding(ids: Array, matrix: Array, *args: Any, **kwargs: Any) -> Any:
    if not isinstance(matrix, MappedMatrix):
        return NotImplemented
    used, places = torch.unique(ids, return_inverse=True)
    return functional.embedding(places.to(matrix.device), matrix.content.rows(used.cpu().numpy()))


def _item(matrix: Array, index: object) -> Any:
    """Return rows: of a number, a slice, or a list of numbers."""
    if not isinstance(matrix, MappedMatrix):
        return NotImplemented
    if isinstance(index, torch.Tensor) and index.ndim < 2 and index.dtype in (torch.int64, torch.int32):
        index = int(index) if index.ndim == 0 else index.cpu().numpy() % matrix.shape[0]
    if isinstance(index, int) and not isinstance(index, bool):
        return matrix.content.expert(range(matrix.shape[0])[index])
    if isinstance(index, slice) and index.step in (None, 1):
        return matrix.content.rows(index)
    return matrix.content.rows(as_slice(index)) if isinstance(index, np.ndarray) else NotImplemented


def _moved(matrix: Array, *args: Any, **kwargs: Any) -> Any:
    """Return the matrix for another device or type, still quantised."""
    if not isinstance(matrix, MappedMatrix):
        return NotImplemented
    kwargs.pop("copy", None)
    device, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
    content = matrix.content
    device, dtype = device or content.residence.device, dtype or content.dtype
    if (device, dtype) == (content.residence.device, content.dtype):
        return matrix
    return MappedMatrix(_Content(content.weight, dtype, content.residence.on(device, dtype)))


def _again(matrix: Array, *_: Any, **__: Any) -> Any:
    """Return another tensor for the same matrix."""
    return MappedMatrix(matrix.content) if isinstance(matrix, MappedMatrix) else NotImplemented


BY_ROWS: dict[Any, Callable[..., Any]] = {
    functional.linear: _linear,
    functional.embedding: _embedding,
    torch.addmm: _addmm,
    torch.matmul: _matmul,
    torch.Tensor.matmul: _matmul,
    torch.Tensor.__matmul__: _matmul,
    torch.Tensor.__getitem__: _item,
    torch.Tensor.to: _moved,
    torch.Tensor.detach: _again,
    torch._has_compatible_shallow_copy_type: lambda *_: False,  # asked by Module.to: a moved matrix is another one
}
# other products, of which the second says that a matrix is used again
PRODUCTS = {
    *(torch.addmm, torch.matmul, torch.mm, torch.bmm, torch.einsum, torch.Tensor.matmul, torch.Tensor.__matmul__),
    *(torch.Tensor.__rmatmul__, torch.Tensor.mm, torch.Tensor.bmm),
}
# what is known of a matrix without its numbers
DESCRIPTIONS: set[Any] = {
    *(
        getattr(torch.Tensor, name).__get__
        for name in (
            *("shape", "dtype", "device", "ndim", "requires_grad", "is_leaf", "grad", "grad_fn", "is_meta", "layout"),
            *("is_cpu", "is_cuda", "is_mps", "is_sparse", "is_quantized", "itemsize", "nbytes"),
        )
    ),
    *(getattr(torch.Tensor, name).__set__ for name in ("requires_grad", "grad")),
    *(
        getattr(torch.Tensor, name)
        for name in (
            *("size", "dim", "numel", "nelement", "element_size", "is_floating_point", "is_complex", "requires_grad_"),
            *("stride", "is_contiguous", "ndimension", "__len__", "__hash__", "is_inference"),
        )
    ),
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
    residence = Residence(torch.device(device))
    for key, weight in weights.items():
        if key not in holders:
            raise AttnctlError(f"cannot read {name}: {type(network).__name__} has no parameter {key}")
        if tuple(holders[key].shape) != tuple(weight.shape):
            theirs, ours = tuple(weight.shape), tuple(holders[key].shape)
            raise AttnctlError(f"cannot read {name}: {key} is {theirs} in its file and {ours} by its settings")
        _set_tensor(network, key, _placed(weight, residence, dtype))
    missing = {key for key, value in network.named_parameters() if value.is_meta}
    _compute_buffers(network, device)
    network.tie_weights()
    _tell_holders(network)
    if network._can_set_experts_implementation():
        network.set_experts_implementation("eager")  # expert by expert: the others take the matrices of all at once
    tied = {key for key, value in network.named_parameters(remove_duplicate=False) if not value.is_meta}
    return missing - tied


def expect_forwards(network: torch.nn.Module) -> None:
    """Let a network keep its matrices dequantised from their first product on, where memory suffices."""
    for parameter in network.parameters():
        if isinstance(parameter, MappedMatrix):
            parameter.content.residence.several = True


def _tell_holders(network: PreTrainedModel) -> None:
    """Tell each matrix which modules hold it, and that of a linear layer which linear layer comes next."""
    last: _Content | None = None
    for module in network.modules():
        parameters: dict[str, Any] = dict(module._parameters)
        for name, parameter in parameters.items():
            if isinstance(parameter, MappedMatrix):
                parameter.content.holders.append((ref(module), name))
                if isinstance(module, torch.nn.Linear):
                    if last is not None:
                        last.following = parameter.content
                    last = parameter.content


def _placed(weight: Weight, residence: Residence, dtype: torch.dtype) -> Array:
    """Return a weight as a tensor: quantised if it is large, mapped if the file has it as it is used."""
    is_plain = isinstance(weight, StoredTensor) and weight.kind == "F32" and dtype == torch.float32
    if is_plain or weight.size < SMALL or len(weight.shape) < 2:
        return _tensor_over(weight.array()).to(device=residence.device, dtype=dtype)
    residence.size += -(-weight.size * dtype.itemsize // 64) * 64
    return MappedMatrix(_Content(weight, dtype, residence))


def _set_tensor(network: PreTrainedModel, key: str, value: Array) -> None:
    """Replace a parameter or a buffer of a network by its name."""
    holder, _, name = key.rpartition(".")
    module = network.get_submodule(holder)
    if name in module._buffers:
        module._buffers[name] = value
    else:
        value = torch.nn.Parameter(value, requires_grad=False)
        setattr(module, name, value)
    value._is_hf_initialized = True  # read by transformers: no random numbers for it


def _compute_buffers(network: PreTrainedModel, device: str | torch.device) -> None:
    """Let the network compute its buffers that no file stores, such as the frequencies of rotary positions."""
    for module in network.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.is_meta:
                module._buffers[name] = torch.empty_like(buffer, device=device)
    for parameter in network.parameters():
        parameter._is_hf_initialized = True  # type: ignore[attr-defined]
    network.initialize_weights()  # type: ignore[no-untyped-call]
