"""What transformers itself computes, recorded without attnctl: each call of its own attention functions, module by module."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch


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
