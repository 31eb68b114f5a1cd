"""A CUDA device for machines without one: tensors that say they are on `cuda:0` while their numbers stay on the CPU.

`with pretend_cuda():` makes torch say that one CUDA device is there. What is made for it or moved to it is a
`PretendCuda`; as on a GPU, an operation that mixes it with a tensor of the CPU raises, and so does turning it into NumPy
without `.cpu()`. Because the numbers are real, results can be compared with those of the CPU, which FakeTensorMode's cannot.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map

CUDA = torch.device("cuda", 0)
T = torch.Tensor

MOVES = {T.to, T.cpu, T.cuda}
# a value of the CPU may be read into the device by these, and an index of the CPU is carried over by torch itself
MIXING = {T.copy_, T.__getitem__, T.__setitem__}
PLAIN = {T.requires_grad.__get__, T.grad_fn.__get__, T.is_leaf.__get__, T.shape.__get__, T.dtype.__get__,
         T.layout.__get__, T.dim, T.size, T.numel, T.is_floating_point, T.is_contiguous, T.stride, T.item, T.tolist, T.__bool__,
         T.__len__, T.__format__, T.__repr__, T.backward, T.is_quantized.__get__}  # fmt: skip


class PretendCuda(torch.Tensor):
    """A tensor of the pretended device."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


def is_cuda(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cuda"


def tagged(value: Any) -> Any:
    """Every tensor in `value` as one of the device; a leaf that wants a gradient stays one."""

    def one(x: Any) -> Any:
        if type(x) is not T:
            return x
        if x.requires_grad and x.is_leaf:
            return x.detach().as_subclass(PretendCuda).requires_grad_()
        return x.as_subclass(PretendCuda)

    return tree_map(one, value)


def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """One operation with a pretended tensor among its arguments, or one that makes or moves a tensor to the device."""
    with torch._C.DisableTorchFunctionSubclass():
        if func == T.device.__get__:
            return CUDA
        if func == T.is_cuda.__get__:
            return True
        if func == T.is_cpu.__get__:
            return False
        if func in (T.numpy, T.__array__):
            raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first")
        if func in MOVES:
            return moved(func, args, kwargs)
        if func in PLAIN:
            return func(*args, **kwargs)
        kwargs = on_cpu(kwargs)
        tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, T)]
        # torch lets a number of the CPU (0 axes) take part, and carries an index over
        foreign = [x for x in tensors if not isinstance(x, PretendCuda) and x.dim() > 0]
        if foreign and len(foreign) < len(tensors) and func not in MIXING:
            raise RuntimeError(
                f"{func.__name__}: expected all tensors on the same device, but found at least two, cuda:0 and cpu"
            )
        if func is T.copy_ or func is T.__setitem__:
            func(*args, **kwargs)
            return args[0] if func is T.copy_ else None
        return tagged(func(*args, **kwargs))


def on_cpu(kwargs: dict[str, Any]) -> dict[str, Any]:
    """The keywords of an operation, those of the device turned to the CPU, where its numbers really are."""
    return {**kwargs, "device": "cpu"} if is_cuda(kwargs.get("device")) else kwargs


def moved(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """`.to`, `.cpu`, `.cuda`: where the tensor then is."""
    x, *rest = args
    wanted = [a for a in (*rest, *kwargs.values()) if isinstance(a, (str, torch.device, T))]
    there: Any = isinstance(x, PretendCuda)
    rest = list(rest)
    if func is T.cpu:
        there, func, rest = False, T.clone, []
    elif func is T.cuda:
        there, func, rest = True, T.clone, []
    for other in wanted:
        there = isinstance(other, PretendCuda) if isinstance(other, T) else is_cuda(other)
    rest = ["cpu" if isinstance(a, (str, torch.device)) else a for a in rest]
    kwargs = {k: "cpu" if isinstance(a, (str, torch.device)) else a for k, a in kwargs.items()}
    out = func(x, *rest, **kwargs)
    return out.as_subclass(PretendCuda if there else T)


class Mode(TorchFunctionMode):
    """Catches the operations that make a tensor on the device, or move one there."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        own = [
            t for t in types if t is not PretendCuda and "__torch_function__" in vars(t) and "torch" not in t.__module__
        ]
        if own and torch._C._is_torch_function_enabled():  # a tensor that computes in its own way comes first
            with self:
                return own[0].__torch_function__(func, types, args, kwargs)
        if any(issubclass(t, PretendCuda) for t in types):
            return run(func, args, kwargs)
        if func in MOVES and args and isinstance(args[0], T):
            return run(func, args, kwargs)
        out = func(*args, **on_cpu(kwargs))
        return tagged(out) if is_cuda(kwargs.get("device")) else out


def moved_module(module: torch.nn.Module) -> torch.nn.Module:
    """`module` with its parameters and buffers on the pretended device."""
    for part in module.modules():
        for name, p in list(part._parameters.items()):
            if p is not None:
                part._parameters[name] = torch.nn.Parameter(p.data.as_subclass(PretendCuda), p.requires_grad)
        for name, b in list(part._buffers.items()):
            if b is not None:
                part._buffers[name] = b.as_subclass(PretendCuda)
    return module


@contextlib.contextmanager
def pretend_cuda() -> Iterator[None]:
    """A context in which torch has one CUDA device, the pretended one."""
    to: Callable[..., Any] = torch.nn.Module.to

    def moving(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        wanted = [a for a in (*args, *kwargs.values()) if isinstance(a, (str, torch.device))]
        if any(is_cuda(a) for a in wanted):
            return moved_module(module)
        return to(module, *args, **kwargs)

    with (
        mock.patch("torch.cuda.is_available", lambda: True),
        mock.patch("torch.cuda.device_count", lambda: 1),
        mock.patch.object(torch.nn.Module, "to", moving),
        Mode(),
    ):
        yield
