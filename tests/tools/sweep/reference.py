"""What transformers itself computes, recorded without attnctl: each call of its own attention functions, module by module."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch

OVER_LAYERS = "AttentionResidual"  # Inkling 2: each token attends to its own earlier states by the same functions


@dataclass(frozen=True)
class Reference:
    """One call of attention: the module's names, its weights (None of the fused kernel), its context (batch, n, heads, d)."""

    names: tuple[str, ...]
    weights: torch.Tensor | None
    context: torch.Tensor
    half: bool = False  # one of two calls of differential attention


@contextmanager
def recorded(model: Any) -> Iterator[list[Reference]]:
    """Every call of eager_attention_forward, or of the fused kernel, that modules of `model` make in this context."""
    from transformers.modeling_utils import AttentionInterface

    names: dict[int, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if not type(module).__name__.endswith(OVER_LAYERS):
            names.setdefault(id(module), []).append(name)
    calls: list[Reference] = []

    def recording(kernel: Any) -> Any:
        def run(module: Any, *args: Any, **kwargs: Any) -> Any:
            context, weights = kernel(module, *args, **kwargs)
            if id(module) in names:
                kept = None if weights is None else weights.detach().clone()
                calls.append(
                    Reference(tuple(names[id(module)]), kept, context.detach().clone(), hasattr(module, "lambda_init"))
                )
            return context, weights

        return run

    files = {sys.modules[cls.__module__] for module in model.modules() for cls in type(module).__mro__[:3]}
    with ExitStack() as stack:
        for file in files:
            if hasattr(file, "eager_attention_forward"):
                wrapped = recording(file.eager_attention_forward)
                stack.enter_context(patch.object(file, "eager_attention_forward", wrapped))
        fused = AttentionInterface._global_mapping["sdpa"]
        stack.enter_context(patch.dict(AttentionInterface._global_mapping, {"sdpa": recording(fused)}))
        yield calls


# --- families that put out something else than their weights ----------------------------------------------------------

# families → the kinds of attention of which they do
PUT_OUT_OTHERWISE = {
    "led": ("encoder",),
    "longformer": ("self",),
    "prophetnet": ("encoder", "cross"),
    "squeezebert": ("self",),
}


@contextmanager
def softmaxes(model: Any) -> Iterator[dict[str, list[torch.Tensor]]]:
    """What each module's softmax gives in this context: name of the innermost module that runs → one tensor a call."""
    running: list[str] = []
    found: dict[str, list[torch.Tensor]] = {}
    plain = torch.nn.functional.softmax

    def recording(*args: Any, **kwargs: Any) -> torch.Tensor:
        weights = plain(*args, **kwargs)
        found.setdefault(running[-1], []).append(weights.detach().clone())
        return weights

    def leave(*_: Any) -> None:
        running.pop()

    with ExitStack() as stack:
        for name, module in model.named_modules():
            if any(True for _ in module.children()) and not isinstance(module, torch.nn.Softmax):
                stack.callback(module.register_forward_pre_hook(lambda *_, name=name: running.append(name)).remove)
                stack.callback(module.register_forward_hook(leave).remove)
        stack.enter_context(patch.object(torch.nn.functional, "softmax", recording))
        yield found


def true_weights(family: str, found: dict[str, list[torch.Tensor]], put_out: dict[str, Any]) -> dict[str, Any]:
    """What was put out, (kind → forwards → layers), with the weights by the modules' own softmax in its place."""
    for kind in PUT_OUT_OTHERWISE[family]:
        forwards = put_out.get(kind, [])
        names = sorted(name for name in found if _is_of_kind(name, kind))
        told = (layers for layers in forwards if any(part is not None for part in layers))
        for step, layers in enumerate(list(told)):
            forwards[[id(one) for one in forwards].index(id(layers))] = tuple(
                _laid_out(found[name][step], part) for name, part in zip(names, layers, strict=True)
            )
    return put_out


def _is_of_kind(name: str, kind: str) -> bool:
    cross, decoder = "cross_attn" in name or "encoder_attn" in name, ".decoder." in name or name.startswith("decoder.")
    return {"self": True, "cross": cross, "decoder": decoder and not cross, "encoder": not decoder}[kind]


def _laid_out(weights: torch.Tensor, put_out: torch.Tensor) -> torch.Tensor:
    """Weights (batch, heads, n, n); of a window's columns (batch, n, heads, 2 side + 1), each put where its key is."""
    if weights.shape == put_out.shape:
        return weights
    batch, heads, n, width = put_out.shape
    weights = weights.to(put_out.device)
    wide = torch.zeros(batch, heads, n, n, dtype=weights.dtype, device=put_out.device)
    for query in range(n):
        for column in range(width):
            key = query + column - width // 2
            if 0 <= key < n:
                wide[:, :, query, key] = weights[:, query, :, column]
    return wide * (put_out.sum(-1, keepdim=True) > 0)  # padding asks nothing
