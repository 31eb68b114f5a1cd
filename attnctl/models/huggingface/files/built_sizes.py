"""Parameters of attention as transformers builds it, for architectures that have more than four matrices a layer."""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnctl.text import Document

OTHER_INPUT = re.compile(r"vision|visual|image|audio|speech", re.IGNORECASE)  # encoders of other inputs are not counted
OTHER_ATTENTION = re.compile(r"Delta|Lightning|Linear")  # no softmax, and not counted
NO_MATRIX = re.compile(r"norm|bias", re.IGNORECASE)


def attention_parameters(network: Any) -> int:
    """Parameters of every attention module of a network, its biases and norms left out; shared ones once."""
    from attnctl.models.huggingface.attention_sites import attention_modules

    count = 0
    for name, part in attention_modules(network).items():
        if OTHER_INPUT.search(name) or OTHER_ATTENTION.search(type(part).__name__):
            continue
        beside = getattr(network.get_submodule(name.rpartition(".")[0]) if "." in name else network, "output", None)
        parts: list[Any] = [part, getattr(beside, "dense", None)]  # BERT's W_O stands beside
        for one in (one for one in parts if one is not None):
            named = one.named_parameters()
            count += sum(p.numel() for n, p in named if p.ndim >= 2 and not NO_MATRIX.search(n))
    return count


def built_parameters(settings: Document) -> int | None:
    """Parameters of attention of the network that a config.json describes, built without memory; None where it cannot be."""
    from attnctl.light_import import complete_torch

    try:
        import torch
        import transformers
        from transformers.models.auto.modeling_auto import MODEL_MAPPING

        complete_torch()
        kind = str(settings.get("model_type"))
        with warnings.catch_warnings(), torch.device("meta"):
            warnings.simplefilter("ignore")
            config = transformers.AutoConfig.for_model(**settings | {"model_type": kind})
            model_class: Any = MODEL_MAPPING[type(config)]
            network = model_class(config)
    except Exception:  # whatever a configuration of any kind makes of its class
        return None
    return attention_parameters(network) or None
