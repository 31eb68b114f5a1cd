"""Whether a network normalises the residual stream once more before its head, by the code of its forward."""

from __future__ import annotations

import inspect
import re
from typing import Any

from attnctl.models.huggingface.attention_sites import attention_modules

_EMBEDDED = re.compile(r"emb|per_layer|proj", re.IGNORECASE)  # norms of embeddings, and of what goes into layers


def has_final_norm(network: Any) -> bool:
    """Whether a norm beside the stack of layers whose output is read, or beside what holds it, is called after it."""
    stack = last_stack(network)
    while stack:
        holder, _, own = stack.rpartition(".")
        module = network.get_submodule(holder)
        for name, part in module.named_children():
            if "norm" in type(part).__name__.lower() and _called_after(module, name, own):
                return True
        stack = holder
    return False


def _called_after(module: Any, norm: str, layers: str) -> bool:
    """Whether a module's forward calls its child `norm` below its child `layers`."""
    try:
        code = inspect.getsource(type(module).forward)
    except (OSError, TypeError):
        return not _EMBEDDED.search(norm)
    return code.rfind(f"self.{norm}(") > code.rfind(f"self.{layers}") >= 0


def last_stack(network: Any) -> str:
    """The name of the list of layers whose output predictions are made of: the decoder's, where there are two."""
    import torch

    attending = list(attention_modules(network))
    stacks = [
        str(name)
        for name, part in network.named_modules()
        if isinstance(part, torch.nn.ModuleList) and any(one.startswith(f"{name}.") for one in attending)
    ]
    stacks = [name for name in stacks if not re.search(r"vision|visual|audio", name)]
    outer = [name for name in stacks if not any(name.startswith(f"{other}.") for other in stacks)]
    decoders = [name for name in outer if "decoder" in name]
    return (decoders or outer or [""])[-1]
