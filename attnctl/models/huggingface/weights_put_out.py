"""What architectures outside transformers' interface put out as attention, as weights of each query on each key.

Some put out something else, which their weights follow from: the scores before the softmax, or the columns of a window.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from attnctl import limits
from attnctl.attention import Array
from attnctl.errors import AttnctlError
from attnctl.models.huggingface.attention_sites import attention_modules, names_of_modules

if TYPE_CHECKING:
    from torch.nn import Module
    from transformers import PreTrainedModel

# modules that put out scores, masked and scaled
SCORES = frozenset({"ProphetNetAttention", "SqueezeBertSelfAttention"})


def weights_of_layers(
    network: PreTrainedModel, kind: str, layers: tuple[Array | None, ...]
) -> tuple[Array | None, ...]:
    """What a network put out for each layer of a kind, as weights (batch, heads, n_q, n_k) where these follow from it."""
    names = names_of_modules(network)
    modules = {
        layer: module
        for module in attention_modules(network).values()
        for layer in names[id(module)].layers
        if names[id(module)].kind == kind
    }
    windows = [
        part for layer, part in enumerate(layers) if part is not None and side_of_window(modules.get(layer), part)
    ]
    need = sum(4.0 * part[..., 0].numel() * part.shape[-2] for part in windows)
    limits.check_memory(need, "laying windows out as n × n of every layer", "give a shorter text")
    return tuple(_weights_of_layer(modules.get(layer), part) for layer, part in enumerate(layers))


def _weights_of_layer(module: Module | None, part: Array | None) -> Array | None:
    if module is None or getattr(part, "ndim", 0) != 4 or part is None:
        return part
    if type(module).__name__ in SCORES:
        return torch.softmax(part, dim=-1)  # (batch, heads, n_q, n_k)
    side = side_of_window(module, part)
    if side is None and isinstance(getattr(module, "one_sided_attn_window_size", None), int):
        raise AttnctlError(
            f"{type(module).__name__} puts out columns of tokens that every token looks at (global attention) before those "
            "of its window: only windows are laid out as weights of each query on each key"
        )
    return part if side is None else from_window(part, side)


def side_of_window(module: Module | None, part: Array) -> int | None:
    """How many tokens before and after each are in the window whose columns were put out; None for anything else."""
    side = getattr(module, "one_sided_attn_window_size", None)
    return side if isinstance(side, int) and getattr(part, "ndim", 0) == 4 and part.shape[-1] == 2 * side + 1 else None


def from_window(window: Array, side: int) -> Array:
    """Weights (batch, heads, n, n) of those on the `side` tokens before and after each, (batch, heads, n, 2 side + 1).

    Longformer's (Beltagy et al. 2020), where no token looks, or is seen, everywhere.
    """
    n = window.shape[-2]
    beside = torch.arange(-side, side + 1, device=window.device)  # (2 side + 1,)
    keys = torch.arange(n, device=window.device)[:, None] + beside  # (n, 2 side + 1)
    there = (keys >= 0) & (keys < n)  # (n, 2 side + 1)
    weights = window.new_zeros((*window.shape[:-1], n))  # (batch, heads, n, n)
    shown = torch.where(there, window, torch.zeros_like(window))
    return weights.scatter_add_(-1, keys.clamp(0, n - 1).expand(window.shape), shown)


def to_window(weights: Array, side: int) -> Array:
    """The columns (heads, n, 2 side + 1) of weights (heads, n, n) on the `side` tokens before and after each."""
    padded = torch.nn.functional.pad(weights, (side, side))  # (heads, n, n + 2 side)
    return torch.stack([padded[:, at, at : at + 2 * side + 1] for at in range(weights.shape[-2])], dim=1)


def key_counts(layers: Sequence[Array | None], cached: int = 0) -> set[int]:
    """How many keys a layer may have that attends to the text itself: one for each query of a layer, after those cached."""
    queries = {weights.shape[-2] for weights in layers if getattr(weights, "ndim", 0) == 4 and weights is not None}
    return queries | {cached + n_q for n_q in queries}


def _fits_lengths(weights: Array, lengths: set[int]) -> bool:
    most = max(lengths)
    return weights.shape[-1] in lengths or (weights.shape[-1] > most and not bool(weights[..., most:].any()))


def check_weights(weights: Array, whose: str, lengths: set[int] | None = None) -> None:
    """Raise AttnctlError where what a model puts out as attention are no weights (batch, heads, n_q, n_k).

    `lengths` are the numbers of keys that there may be (None: any); a static cache has more, of which nothing is read.
    """
    what = None
    if getattr(weights, "ndim", 0) == 4 and lengths and not _fits_lengths(weights, lengths):
        what = f"in {weights.shape[-1]} columns for {max(lengths)} keys"
    elif isinstance(weights, tuple):
        what = f"of {len(weights)} streams at once, in a tuple"  # XLNet as it generates
    elif getattr(weights, "ndim", 0) != 4 or not weights.numel():
        what = f"of shape {tuple(weights.shape)}" if hasattr(weights, "shape") else f"a {type(weights).__name__}"
    elif float(weights.min()) < -1e-3 or float(weights.max()) > 1.001:
        what = f"from {float(weights.min()):.2g} to {float(weights.max()):.2g}"
    else:
        sums = weights.float().sum(-1)  # (batch, heads, n_q)
        whole = (sums - 1).abs() < 2e-2
        if not bool((whole | (sums < 1e-3)).all()):  # a row that may see nothing may have none
            odd = float(sums[~whole][0])
            what = f"whose rows sum to {odd:.2f}"
    if what is not None:
        raise AttnctlError(f"{whose} puts out no attention weights of each query on each key, but numbers {what}")
