"""Matrix products of many rows by oneDNN's kernels, each weight laid out for them once: float32 on a CPU.

torch's own `linear` takes MKL there, which on processors of other makers runs at a third of the speed. A layout is a copy,
so it lasts no longer than the reading of one text or batch: the network may be changed in place after that. torch's
function is exchanged, not watched by a mode, which would stand in the way of every other function as well.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from attnctl.limits import free_memory

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from attnctl.attention import Array


LEAST_ROWS = 32  # below which laying out does not pay in one pass
LARGEST = 1 << 26  # numbers in a weight: an unembedding of one row a text is not worth a copy
Linear = Callable[..., Any]  # torch's `linear`
SPARE = 2.0  # times the network's own size that must be free for the copies


class PackedLinear:
    """Within `packed_products`, `linear` of many float32 rows takes oneDNN's kernel; of few, where its weight is laid out.

    Of 8 rows that kernel takes as long as of 1: the time in which the weight is read.
    """

    def __init__(self) -> None:
        self._packed: dict[int, tuple[Array, Array]] = {}  # id of a weight → the weight, its layout

    def product(self, plain: Linear, x: Array, weight: Array, bias: Array | None = None) -> Array:
        """Rows (…, d_in) through a weight (d_out, d_in) and its bias: (…, d_out); by `plain` where no kernel is for it."""
        if not _fits_kernel(x, weight):
            return plain(x, weight, bias)
        if id(weight) not in self._packed:
            if x.numel() < LEAST_ROWS * x.shape[-1]:
                return plain(x, weight, bias)
            layout = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), x.numel() // x.shape[-1])
            self._packed[id(weight)] = weight, layout
        return torch.ops.mkldnn._linear_pointwise(x, self._packed[id(weight)][1], bias, "none", [], "")


def _fits_kernel(x: Array, weight: Array) -> bool:
    return (
        x.dtype == weight.dtype == torch.float32
        and x.device.type == "cpu"
        and weight.numel() <= LARGEST
        and weight.is_contiguous()
        and not torch.is_grad_enabled()
    )


_shared: dict[int, PackedLinear | None] = {}  # id of a network → what its passes share


@contextmanager
def shared_layouts(network: PreTrainedModel) -> Iterator[None]:
    """Within this, all passes of a network share their layouts: its weights stay as they are."""
    within = id(network) in _shared
    _shared[id(network)] = packing_of_network(network)
    try:
        yield
    finally:
        if not within:
            del _shared[id(network)]


def packing_of_network(network: PreTrainedModel) -> PackedLinear | None:
    """What makes a network's products, that of `shared_layouts` or new; None without such kernels, or room for layouts."""
    if id(network) in _shared:
        return _shared[id(network)]
    there: Any = torch.backends.mkldnn
    if not there.is_available() or network.device.type != "cpu" or network.dtype != torch.float32:
        return None
    free = free_memory()
    if free is not None and free < SPARE * sum(p.numel() * p.element_size() for p in network.parameters()):
        return None
    x = torch.eye(LEAST_ROWS)
    try:
        with torch.no_grad():
            same = torch.equal(PackedLinear().product(functional.linear, x, x), x)
    except (AttributeError, RuntimeError, TypeError):
        return None
    return PackedLinear() if same else None


_own = threading.local()  # of each thread, `packing`: what its products are made by
_standing_in = threading.Lock()
_users = 0  # how many are within `packed_products`


@contextmanager
def packed_products(packing: PackedLinear | None) -> Iterator[None]:
    """Within this, this thread's `torch.nn.functional.linear` is by `packing`; nothing changes without one."""
    if packing is None:
        yield
        return
    before = getattr(_own, "packing", None)
    _own.packing = packing
    _count_user(1)
    try:
        yield
    finally:
        _count_user(-1)
        _own.packing = before


def _count_user(more: int) -> None:
    """One more user of `_linear`, or one less: it stands in the place of torch's while there is any."""
    global _users, _plain
    with _standing_in:
        if not _users:
            _plain, functional.linear = functional.linear, _linear
        _users += more
        if not _users:
            functional.linear = _plain


def _linear(input: Array, weight: Array, bias: Array | None = None) -> Array:  # torch's own names
    packing: PackedLinear | None = getattr(_own, "packing", None)
    return _plain(input, weight, bias) if packing is None else packing.product(_plain, input, weight, bias)


_plain: Linear = functional.linear
