"""Look below code that a `TorchFunctionMode` cannot look into: functions in TorchScript, operators of other packages.

A dispatch mode sees torch's operators there. It is on only where there is such code, since it costs time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from attnctl.attention import Array
from attnctl.models.torch.tensors import tensors_in

LOOKS_FUSED = re.compile("attention|attn|fmha|flash|xformers", re.IGNORECASE)
ATTENDS = re.compile("softmax|scaled_dot_product")
OWN = ("aten", "prim", "prims", "higher_order", "profiler", "inductor")  # namespaces of torch's own operators


class Below(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Call each of torch's operators from Python, so that a `TorchFunctionMode` sees those of a function in TorchScript.

    Within a function that such a mode sees, the mode is off, and sees nothing twice. `note` is called with each softmax and
    each kernel of attention.
    """

    supports_higher_order_operators = True  # flex_attention

    def __init__(self, note: Callable[[], object] = lambda: None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.note = note

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operator; note one that attends."""
        if ATTENDS.search(func.__name__):
            self.note()
        return func(*args, **(kwargs or {}))


def is_foreign(func: Any) -> bool:
    """Return whether a function is an operator of another package than torch."""
    if not isinstance(func, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return False
    return str(func).partition(".")[0] not in OWN


def called_by_itself(func: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any]) -> tuple[Any, bool]:
    """Call an operator of another package. Return its result, and whether it attends.

    Its name tells that, arguments with the shapes of queries, keys and values, or a softmax among the operators of which it
    is put together. A kernel with another name and other arguments does not tell.
    """
    noted: list[bool] = []
    with Below(lambda: noted.append(True)):
        out = func(*args, **keywords)
    attends = bool(noted) or bool(LOOKS_FUSED.search(str(func))) or _has_queries_keys_values(args, keywords)
    return out, attends


def _has_queries_keys_values(args: Sequence[Any], keywords: Mapping[str, Any]) -> bool:
    """Return whether the first three arrays of numbers have the shapes of queries, keys and values."""
    arrays: list[Array] = [part for part in tensors_in(args, keywords) if part.is_floating_point() and part.ndim > 2]
    if len(arrays) < 3:
        return False
    q, k, v = arrays[:3]
    return bool(q.shape[-1] == k.shape[-1] and k.shape[:-1] == v.shape[:-1] and q.shape[:1] == k.shape[:1])


def scripted_functions_attend() -> bool:
    """Return whether any function that was put into TorchScript in this process computes a softmax."""
    unit: Any = torch.jit._state._python_cu
    return any(ATTENDS.search(_graph_of(function)) for function in unit.get_functions())


def _graph_of(function: Any) -> str:
    try:
        return str(function.inlined_graph if hasattr(function, "inlined_graph") else function.graph)
    except RuntimeError:
        return ""
