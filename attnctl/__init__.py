"""attnctl: the command line for attention, and its small Python API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = ["Trace", "__version__", "attend", "batch", "capture", "open_model"]

if TYPE_CHECKING:
    from attnctl.batching import batch
    from attnctl.models import attend, open_model
    from attnctl.models.huggingface.capture import capture
    from attnctl.readings.trace import Trace

_WHERE = {
    "attend": "attnctl.models",
    "batch": "attnctl.batching",
    "capture": "attnctl.models.huggingface.capture",
    "open_model": "attnctl.models",
    "Trace": "attnctl.readings.trace",
}


def __getattr__(name: str) -> Any:
    # the API costs an import only when it is used: `attnctl --version` needs none of it
    if name not in _WHERE:
        raise AttributeError(f"module 'attnctl' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_WHERE[name]), name)
