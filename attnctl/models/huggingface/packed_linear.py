"""Matrix products of many rows by oneDNN's kernels, each weight laid out for them once in a mode: float32 on a CPU.

torch's own `linear` takes MKL there, which on processors of other makers runs at a third of the speed. A layout is a copy,
so a mode lasts no longer than the reading of one text or batch: the network may be changed in place after that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from attnctl.limits import free_memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedModel

    from attnctl.attention import Array


LEAST_ROWS = 32  # below which laying out does not pay in one pass
LARGEST = 1 << 26  # numbers in a weight: an unembedding of one row a text is not worth a copy
SPARE = 2.0  # times the network's own size that must be free for the copies


class PackedLinear(TorchFunctionMode):
    """Within this, `linear` of many float32 rows takes oneDNN's kernel, and of few where its weight is laid out already.

    Everything else is as it was. Of 8 rows that kernel takes as long as of 1: the time in which the weight is read.
    """

    def __init__(self) -> None:
        super().__init__()
        self._packed: dict[int, tuple[Array, Array]] = {}  # id of a weight → the weight, its layout

    def __torch_function__(
        self,
        func: Callable[..., Array],
        types: object,
        args: tuple[Array, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> Array:
        """One call of a function of torch."""
        if func is torch.nn.functional.linear and not kwargs and _fits_kernel(*args):
            x, weight, *bias = args
            if id(weight) not in self._packed:
                if x.numel() < LEAST_ROWS * x.shape[-1]:
                    return func(*args)
                layout = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), x.numel() // x.shape[-1])
                self._packed[id(weight)] = weight, layout
            given = bias[0] if bias else None
            return torch.ops.mkldnn._linear_pointwise(x, self._packed[id(weight)][1], given, "none", [], "")
        return func(*args, **(kwargs or {}))


def _fits_kernel(x: Array, weight: Array, bias: Array | None = None) -> bool:
    return (
        x.dtype == weight.dtype == torch.float32
        and x.device.type == "cpu"
        and weight.numel() <= LARGEST
        and weight.is_contiguous()
        and not torch.is_grad_enabled()
    )


_shared: dict[int, PackedLinear | None] = {}  # id of a network → the mode that its passes share


@contextmanager
def shared_layouts(network: PreTrainedModel) -> Iterator[None]:
    """Within this, all passes of a network share their layouts: its weights stay as they are."""
    within = id(network) in _shared
    _shared[id(network)] = packing_mode(network)
    try:
        yield
    finally:
        if not within:
            del _shared[id(network)]


def packing_mode(network: PreTrainedModel) -> PackedLinear | None:
    """A mode for a network: that of `shared_layouts`, or a new one; None where there are no such kernels, or no room."""
    if id(network) in _shared:
        return _shared[id(network)]
    there: Any = torch.backends.mkldnn
    if not there.is_available() or network.device.type != "cpu" or network.dtype != torch.float32:
        return None
    free = free_memory()
    if free is not None and free < SPARE * sum(p.numel() * p.element_size() for p in network.parameters()):
        return None
    x, mode = torch.eye(LEAST_ROWS), PackedLinear()
    try:
        with torch.no_grad(), mode:
            same = torch.equal(torch.nn.functional.linear(x, x), x)
    except (AttributeError, RuntimeError, TypeError):
        return None
    return PackedLinear() if same else None


@contextmanager
def packed_products(mode: PackedLinear | None) -> Iterator[None]:
    """Within this, the mode holds; nothing changes without one."""
    if mode is None:
        yield
        return
    with mode:
        yield
