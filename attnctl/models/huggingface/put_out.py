"""Read the weights of architectures outside transformers' attention interface: as output, or as multiplied.

This uses eager attention. Some networks put out other numbers, from which the weights follow: scores before the softmax,
the columns of a window, or one of several equal weights of a key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from attnctl.attention import Array
from attnctl.checks import limits
from attnctl.checks.tolerances import NEGATIVE, OWN_ROW, WHOLE_ROW
from attnctl.errors import AttnctlError
from attnctl.models.huggingface.attention_sites import (
    Keywords,
    Output,
    attention_sites,
    modules_named_attention,
    sites_of_modules,
)
from attnctl.models.huggingface.blockwise_modules import copies_of_blocks
from attnctl.models.huggingface.optional_fields import output_value
from attnctl.runtime.arrays import Floats, as_numpy

if TYPE_CHECKING:
    from torch.nn import Module
    from transformers import PreTrainedModel


# modules that put out scores, masked and scaled
SCORES = frozenset({"ProphetNetAttention", "SqueezeBertSelfAttention"})
PADDING = frozenset({"BigBirdBlockSparseAttention"})  # modules of networks that pad a text to whole blocks
FIELDS = {  # kind → field of an output with its weights
    "self": "attentions",
    "encoder": "encoder_attentions",
    "decoder": "decoder_attentions",
    "cross": "cross_attentions",
}


def attentions_put_out(output: Output, kind: str) -> tuple[Array | None, ...]:
    """Return what a network puts out as the attention of each layer of a kind; () if it puts out none."""
    parts = tuple(output_value(output, FIELDS[kind]) or ())
    return parts if any(part is not None for part in parts) else ()


def weights_put_out(
    network: PreTrainedModel,
    output: Output,
    kind: str,
    name: str,
    cached: int = 0,
    wants: Callable[[int], bool] = lambda layer: True,
) -> dict[int, Array]:
    """Return layer → weights (batch, heads, n_q, n_k) of one kind that a network put out; `cached` keys precede the text's.

    Raises AttnctlError if a layer that `wants` accepts put out something else.
    """
    modules = {site.layer: module for site, module in attention_sites(network, kind).items()}
    parts = {layer: part for layer, part in enumerate(attentions_put_out(output, kind)) if part is not None}
    windows = [part for layer, part in parts.items() if side_of_window(modules.get(layer), part)]
    need = sum(4.0 * part[..., 0].numel() * part.shape[-2] for part in windows)
    limits.check_memory(need, "laying windows out as n × n of every layer", "give a shorter text")
    weights = {layer: _as_weights(modules.get(layer), part) for layer, part in parts.items()}
    if kind == "self" and any(type(module).__name__ in PADDING for module in modules.values()):
        answer = output_value(output, "last_hidden_state")
        answer = output_value(output, "logits") if answer is None else answer
        if answer is not None and answer.ndim == 3:  # (batch, n, …)
            n = answer.shape[1]
            weights = {layer: part[..., :n, :n] if _has_heads(part) else part for layer, part in weights.items()}
    n_q = {part.shape[-2] for part in weights.values() if _has_heads(part)}
    # some networks pool the tokens between layers
    lengths = set() if kind == "cross" else n_q | {cached + n for n in n_q}
    weights = {layer: part for layer, part in weights.items() if wants(layer)}
    for layer, part in weights.items():
        _check_weights(part, f"{'' if kind == 'self' else f'{kind} '}layer {layer} of {name}", lengths)
    return weights


def _as_weights(module: Module | None, part: Array) -> Array:
    """Return the weights (batch, heads, n_q, n_k) that follow from what a module put out; else the same array."""
    if type(module).__name__ in SCORES and _has_heads(part):
        return torch.softmax(part, dim=-1)  # (batch, heads, n_q, n_k)
    if module is not None and type(module).__name__ == "BigBirdBlockSparseAttention" and _has_heads(part):
        return _of_big_bird(module, part)
    side = side_of_window(module, part)
    if side is None and _window_side(module) is not None:
        raise AttnctlError(
            f"{type(module).__name__} puts out columns of global attention before the columns of its window: only windows "
            "can be shown as weights of each query on each key"
        )
    return part if side is None else from_window(part, side)


def _of_big_bird(module: Any, part: Array) -> Array:
    """Return the weights (batch, heads, n, n) of BigBird's sparse attention, which puts out one weight of each key.

    Outside training each random block is the first block again: the softmax holds its keys several times, each time with the
    same weight, and the matrix that is put out holds that weight once.
    """
    size = module.block_size
    copies = copies_of_blocks(part.shape[-1] // size, module.num_random_blocks)
    copies = copies.repeat_interleave(size, 0).repeat_interleave(size, 1)  # (n, n)
    return part * copies.to(part)


def side_of_window(module: Module | None, part: Array) -> int | None:
    """Return how many tokens before and after each token are in the window of these columns; None for anything else."""
    side = _window_side(module)
    return side if side is not None and _has_heads(part) and part.shape[-1] == 2 * side + 1 else None


def _window_side(module: Module | None) -> int | None:
    """Return the window's side of a module that attends in windows (Longformer, LED); None for any other."""
    side = getattr(module, "one_sided_attn_window_size", None)
    return side if isinstance(side, int) else None


def _has_heads(part: Array) -> bool:
    """Return whether what a module puts out is a tensor (batch, heads, n_q, …)."""
    return isinstance(part, torch.Tensor) and part.ndim == 4


def from_window(window: Array, side: int) -> Array:
    """Return weights (batch, heads, n, n) from weights in each token's window, (batch, heads, n, 2 side + 1).

    The window is Longformer's (Beltagy et al. 2020), without tokens that look, or are seen, everywhere.
    """
    n = window.shape[-2]
    offsets = torch.arange(-side, side + 1, device=window.device)  # (2 side + 1,)
    keys = torch.arange(n, device=window.device)[:, None] + offsets  # (n, 2 side + 1)
    is_token = (keys >= 0) & (keys < n)  # (n, 2 side + 1)
    weights = window.new_zeros((*window.shape[:-1], n))  # (batch, heads, n, n)
    inside = torch.where(is_token, window, torch.zeros_like(window))
    return weights.scatter_add_(-1, keys.clamp(0, n - 1).expand(window.shape), inside)


def _check_weights(weights: Array, layer: str, lengths: set[int]) -> None:
    """Raise AttnctlError if what a model puts out as attention are not weights (batch, heads, n_q, n_k).

    `lengths` are the allowed numbers of keys (empty: any); a static cache has more keys, with weights of 0.
    """
    problem, limit = None, max(lengths, default=0)
    if isinstance(weights, tuple):
        problem = f"of {len(weights)} streams at once, in a tuple"  # XLNet during generation
    elif not _has_heads(weights) or not weights.numel():
        problem = f"of shape {tuple(weights.shape)}" if torch.is_tensor(weights) else f"a {type(weights).__name__}"
    elif (
        lengths and weights.shape[-1] not in lengths and (weights.shape[-1] < limit or bool(weights[..., limit:].any()))
    ):
        problem = f"in {weights.shape[-1]} columns for {limit} keys"
    elif (low := weights.min().item()) < -NEGATIVE or weights.max().item() > 1 + NEGATIVE:
        problem = f"from {low:.2g} to {weights.max().item():.2g}"
    else:
        sums = weights.float().sum(-1)  # (batch, heads, n_q)
        whole = ((sums - 1).abs() < OWN_ROW) | (sums < WHOLE_ROW)  # a row without visible keys may have weights of 0
        if not bool(whole.all()):
            problem = f"whose rows sum to {sums[~whole][0].item():.2f}"
    if problem is not None:
        raise AttnctlError(f"{layer} puts out no attention weights of each query on each key, but numbers {problem}")


# --- among the operations of a module ------------------------------------------------------------------------------

# torch's functions that compute weights: Reformer uses exp(scores - logsumexp)
SOFTMAX = frozenset({"softmax", "exp"})
PRODUCTS = frozenset({"matmul", "bmm", "einsum"})  # torch's functions that multiply weights with values


@contextmanager
def weights_multiplied(
    network: PreTrainedModel, kind: str, shapes: Mapping[int, tuple[int, ...]]
) -> Iterator[dict[int, Floats]]:
    """Record one forward of `network` within this context; yield layer → the weights that it multiplies its values with.

    The weights are (heads, n_q, n_k), of layers where the product of a softmax was found; `shapes` are the (n_q, n_k) of
    each layer. Neither transformers' interface nor the network's output is used.
    """
    sites, calls, watch = sites_of_modules(network), Counter[int](), _ProductWatch(shapes)

    def begin(module: Module, _: object) -> None:
        module_sites = sites[id(module)]
        watch.within.append((module_sites[calls[id(module)] % len(module_sites)].layer, module))
        calls[id(module)] += 1

    def end(*_: object) -> None:
        watch.within.pop()

    with ExitStack() as stack:
        for module in modules_named_attention(network).values():
            if sites[id(module)][0].kind == kind:
                stack.callback(module.register_forward_pre_hook(begin).remove)
                stack.callback(module.register_forward_hook(end, always_call=True).remove)
        stack.enter_context(watch)
        yield watch.found


class _ProductWatch(TorchFunctionMode):
    """A watch over the softmax of a running module, which follows its numbers to the product with the values."""

    def __init__(self, shapes: Mapping[int, tuple[int, ...]]) -> None:
        super().__init__()
        self._shapes = shapes
        self._derived: dict[int, Array] = {}  # ids of the softmax and of arrays computed from it
        self.within: list[tuple[int, Module]] = []  # running layers and modules; the softmax belongs to the innermost
        self.found: dict[int, Floats] = {}

    def __torch_function__(
        self, func: Callable[..., Array], types: object, args: tuple[Array, ...] = (), kwargs: Keywords | None = None
    ) -> Array:
        result, name = func(*args, **(kwargs or {})), getattr(func, "__name__", "").strip("_")
        layer, module = self.within[-1] if self.within else (-1, None)
        if layer not in self._shapes:
            self._derived.clear()
            return result
        shape = self._shapes[layer]
        operand = next((part for part in args if id(part) in self._derived), None)
        if name in PRODUCTS:
            if operand is not None and tuple(operand.shape[-2:]) == shape:
                self.found[layer] = as_numpy(operand.reshape(-1, *shape))  # (heads, n_q, n_k)
        elif isinstance(result, torch.Tensor) and (name in SOFTMAX or operand is not None):
            self._derived[id(result)] = result
            side = side_of_window(module, result)  # of (batch, n and padding, heads, window)
            if name == "softmax" and side is not None and result.shape[1] >= shape[0]:
                self.found[layer] = as_numpy(from_window(result[:, : shape[0]].transpose(1, 2), side)[0])
        return result


class TopK(TorchFunctionMode):
    """A record of the arrays that top-k is called with."""

    def __init__(self) -> None:
        super().__init__()
        self.taken_of: list[Array] = []

    def __torch_function__(
        self, func: Callable[..., Array], types: object, args: tuple[Array, ...] = (), kwargs: Keywords | None = None
    ) -> Array:
        if func in (torch.topk, torch.Tensor.topk):
            self.taken_of.append(args[0])
        return func(*args, **(kwargs or {}))
