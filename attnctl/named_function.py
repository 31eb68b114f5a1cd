"""Functions named by module, imported when they are called: values know no renderer and no file format at run time."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def call_named(target: str, /, *arguments: object, **options: object) -> Any:
    """Call the function that "module:function" names. Its errors are its own."""
    return find_named(target)(*arguments, **options)


def find_named(target: str) -> Any:
    """The attribute that "module:attribute" names, its module imported."""
    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute)
