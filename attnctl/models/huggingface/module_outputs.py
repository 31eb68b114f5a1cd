"""What each module of attention hands on, and with which weights it multiplies its values, whatever code it attends in.

Seen among the operations of the module itself: neither transformers' interface nor what a module puts out is asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch.overrides import TorchFunctionMode

from attnctl.arrays import Floats, as_numpy
from attnctl.attention import Array
from attnctl.models.huggingface.attention_call import from_window, side_of_window, to_window
from attnctl.models.huggingface.attention_session import Output, modules_named_attention, names_of_modules

if TYPE_CHECKING:
    from torch.nn import Module
    from transformers import PreTrainedModel


SOFTMAX = frozenset({"softmax", "exp"})  # torch's functions that make weights: Reformer takes exp(scores - logsumexp)
PRODUCTS = frozenset({"matmul", "bmm", "einsum"})  # those that multiply weights with values
Place = tuple[int, int]  # a layer, and the id of a module that stands for it


@dataclass(frozen=True)
class ShownLayer:
    """What is shown of some heads of a layer: weights (heads, n_q, n_k), and values (heads, n_k, d_v) where known.

    With `sinks` a learned sink takes a part of each row.
    """

    heads: tuple[int, ...]
    weights: Floats
    values: Floats | None = None
    sinks: bool = False


@dataclass
class ModuleOutputs:
    """Of one forward: what each module of attention hands on, and the weights that it multiplies its values with.

    A place is in `multiplied` only where the product of its softmax with something was met.
    """

    outputs: dict[Place, Floats] = field(default_factory=dict)  # (1, n, d_model), or as the module has its axes
    multiplied: dict[Place, Floats] = field(default_factory=dict)  # (heads, n_q, n_k)

    @property
    def weights_by_layer(self) -> dict[int, Floats]:
        """The weights met in each layer, (heads, n_q, n_k)."""
        return {layer: weights for (layer, _), weights in self.multiplied.items()}

    def errors_by_layer(self, own: ModuleOutputs) -> dict[int, float]:
        """How far these outputs are from its `own`, max |Δ| / max |output|, of the layers whose product was met."""
        found: dict[int, float] = {}
        for place in self.multiplied.keys() & self.outputs.keys() & own.outputs.keys():
            theirs, ours = own.outputs[place], self.outputs[place]
            largest = max(float(abs(theirs).max(initial=0)), 1e-9)
            found[place[0]] = float(abs(theirs - ours).max(initial=0)) / largest
        return found


@contextmanager
def module_outputs(
    network: PreTrainedModel, kind: str, shown: Mapping[int, ShownLayer], own: ModuleOutputs | None = None
) -> Iterator[ModuleOutputs]:
    """Within this, one forward of `network` fills what is yielded.

    `shown` tells each layer's shape. With `own`, of a forward before, and on the eager functions, the weights shown take
    the place of the module's own as these are multiplied with the values, and weights times values the place of the
    product where the values are shown too; the network goes on with its `own` outputs, so that every layer is given what
    it was given before.
    """
    names, watch = names_of_modules(network), _ProductWatch(shown, replaces=own is not None)
    shared = hasattr(network.config, "num_hidden_groups")  # a few modules stand for all layers in turn (ALBERT)
    calls: Counter[object] = Counter()

    def begin(module: Module, _: object) -> None:
        key: object = type(module) if shared else id(module)
        layer = calls[key] if shared else names[id(module)].site_of_occurrence(calls[key]).layer
        calls[key] += 1
        watch.within.append(((layer, id(module)), module))

    def end(_: object, __: object, output: Output) -> Output:
        place, _ = watch.within.pop()
        first = _first_array(output)
        if first is None:
            return None
        watch.found.outputs[place] = as_numpy(first.clone())
        before = None if own is None else own.outputs.get(place)
        return None if before is None else _with_first(output, torch.as_tensor(before).to(first))

    with ExitStack() as stack:
        for module in modules_named_attention(network).values():
            if names[id(module)].kind == kind:
                stack.callback(module.register_forward_pre_hook(begin).remove)
                stack.callback(module.register_forward_hook(end).remove)
        stack.enter_context(watch)
        yield watch.found


def _with_first(output: Output, array: Array) -> Output:
    """What a module hands on, with another array in the place of the first."""
    if isinstance(output, torch.Tensor):
        return array
    if isinstance(output, dict):
        name = next(iter(output))
        return type(output)({**output, name: _with_first(output[name], array)})
    parts = (_with_first(output[0], array), *output[1:])
    return type(output)(*parts) if hasattr(output, "_fields") else type(output)(parts)  # named tuples, others


def _first_array(output: Output) -> Array | None:
    """The first array in what a module hands on, alone or in tuples, lists and mappings."""
    while isinstance(output, tuple | list | dict) and output:
        output = next(iter(output.values() if isinstance(output, dict) else output))
    return output if isinstance(output, torch.Tensor) else None


class _ProductWatch(TorchFunctionMode):
    """Sees the softmax of a module, follows its numbers to the product with the values, and may replace them there.

    `within` are the modules that are running, the innermost last: its is the softmax.
    """

    def __init__(self, shown: Mapping[int, ShownLayer], replaces: bool) -> None:
        super().__init__()
        self._shown, self._replaces = shown, replaces
        self._derived: dict[int, Array] = {}  # the softmax, and what was made of it
        self.within: list[tuple[Place, Module]] = []
        self.found = ModuleOutputs()

    def __torch_function__(
        self,
        func: Callable[..., Array],
        types: object,
        args: tuple[Array, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> Array:
        name, how = getattr(func, "__name__", "").strip("_"), kwargs or {}
        shown = self._shown.get(self.within[-1][0][0]) if self.within else None
        if shown is None:
            self._derived.clear()
            return func(*args, **how)
        at = next((at for at, part in enumerate(args) if id(part) in self._derived), None)
        if name in PRODUCTS and at is not None and tuple(args[at].shape[-2:]) == shown.weights.shape[-2:]:
            return self._product(func, args, at, how)
        result = func(*args, **how)
        if isinstance(result, torch.Tensor) and name not in PRODUCTS and (name in SOFTMAX or at is not None):
            if name == "softmax":
                result = self._replaced_window(result, shown)
            self._derived[id(result)] = result
        return result

    def _product(self, func: Callable[..., Array], args: tuple[Array, ...], at: int, how: dict[str, object]) -> Array:
        """The product of weights with values, as the module makes it, or of what is shown."""
        operand, shown = args[at], self._shown[self.within[-1][0][0]]
        own = operand.reshape(-1, *operand.shape[-2:])  # (heads, n_q, n_k)
        if max(shown.heads) >= own.shape[0]:
            return func(*args, **how)
        self.found.multiplied[self.within[-1][0]] = as_numpy(own)
        if not self._replaces:
            return func(*args, **how)
        weights, changed = _as_multiplied(shown, own), own.clone()
        changed[list(shown.heads)] = weights
        result = func(*args[:at], changed.reshape(operand.shape), *args[at + 1 :], **how)
        if shown.values is None:
            return result
        values = torch.as_tensor(shown.values).to(own)  # (heads shown, n_k, d_v)
        flat = result.reshape(-1, *result.shape[-2:])  # (heads, n_q, d_v)
        if flat.shape != (*own.shape[:2], values.shape[-1]):  # a half of the values at a time, say
            return result
        flat = flat.clone()
        flat[list(shown.heads)] = weights @ values
        return flat.reshape(result.shape)

    def _replaced_window(self, columns: Array, shown: ShownLayer) -> Array:
        """The softmax; of a window's columns (batch, n and padding, heads, 2 side + 1) those of what is shown."""
        place, module = self.within[-1]
        side, n = side_of_window(module, columns), shown.weights.shape[-1]
        if side is None or columns.shape[1] < n or max(shown.heads) >= columns.shape[2]:
            return columns
        self.found.multiplied[place] = as_numpy(from_window(columns[:, :n].transpose(1, 2), side)[0])
        if not self._replaces:
            return columns
        changed, weights = columns.clone(), torch.as_tensor(shown.weights).to(columns)
        changed[0, :n, list(shown.heads)] = to_window(weights, side).transpose(0, 1)  # (n, heads, 2 side + 1)
        return changed


def _as_multiplied(shown: ShownLayer, own: Array) -> Array:
    """The weights shown, (heads, n_q, n_k); where the module takes a sink's part off afterwards, as shares without it."""
    weights = torch.as_tensor(shown.weights).to(own)
    mine = own[list(shown.heads)].sum(-1, keepdim=True)  # (heads, n_q, 1)
    if shown.sinks and bool((mine - 1).abs().max() < 1e-2):
        weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-12) * mine
    return weights
