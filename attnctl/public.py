"""Let a package name what is public of it, in one place; a name's module is imported when the name is asked for.

    if TYPE_CHECKING:
        from attnctl.formats.audio import read_audio as read_audio
    else:
        __getattr__, __dir__, __all__ = public_names(__name__, {"attnctl.formats.audio": "read_audio"})

A type checker reads the first branch, so that a wrong name is an error. Python takes the second, so that the program starts
without what it does not use. `tests/test_public.py` holds the two equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

NO_NAMES: Mapping[str, str] = {}


def public_names(
    package: str, modules: Mapping[str, str], more: Mapping[str, str] = NO_NAMES
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package.

    `modules` maps a module to its public names, with a space between two; `more` maps a name to its module.
    """
    module_of = {name: module for module, names in modules.items() for name in names.split()} | dict(more)
    listed = sorted(module_of)

    def value_of(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(module_of[name]), name)

    return value_of, lambda: listed, listed
