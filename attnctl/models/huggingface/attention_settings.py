"""Which attention a model's configurations name: read, and set for a while."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

_lock = threading.RLock()


def enter_readable(model: PreTrainedModel, stack: ExitStack) -> None:
    """Flash and flex attention hide keys by other means than masks: such a model runs on torch's fused kernel here."""
    if any(not _is_readable(name) for _, name in _attention_configurations(model)):
        stack.enter_context(attention_set_to(model, "sdpa" if type(model)._supports_sdpa else "eager", _is_readable))


def attention_implementations(model: PreTrainedModel) -> list[str | None]:
    """The attention that each configuration within `model` names."""
    return [name for _, name in _attention_configurations(model)]


def _is_readable(name: str | None) -> bool:
    return not any(other in (name or "") for other in ("flash", "flex", "paged"))


@contextmanager
def attention_set_to(
    model: PreTrainedModel, name: str, spare: Callable[[str | None], bool] = lambda name: False
) -> Iterator[None]:
    """Every configuration within `model` set to attention `name`, but those `spare` is true of, and put back afterwards.

    Where two threads do so at once, what was there before the first is put back with the last.
    """
    changed = []
    with _lock:
        for config, before in _attention_configurations(model):
            if not spare(before) or id(config) in _changed:
                count, first = _changed.get(id(config), (0, before))
                _changed[id(config)] = (count + 1, first)
                config._attn_implementation_internal = name
                changed.append(config)
    try:
        yield
    finally:
        with _lock:
            for config in changed:
                count, first = _changed.pop(id(config))
                if count > 1:
                    _changed[id(config)] = (count - 1, first)
                else:
                    config._attn_implementation_internal = first


_changed: dict[int, tuple[int, str | None]] = {}  # configurations set to another attention: how often, what it was


def _attention_configurations(model: PreTrainedModel) -> list[tuple[PreTrainedConfig, str | None]]:
    """Every configuration within `model`, those without a module of their own too, and its attention."""
    found: dict[int, PreTrainedConfig] = {}
    waiting: list[Any] = [part.config for part in model.modules() if hasattr(part, "config")]
    while waiting:
        config = waiting.pop()
        if id(config) not in found and hasattr(config, "_attn_implementation_internal"):
            found[id(config)] = config
            waiting += list(vars(config).values())
    return [(config, config._attn_implementation_internal) for config in found.values()]
